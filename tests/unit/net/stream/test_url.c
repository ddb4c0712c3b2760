/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/url.h"

static void test_parse(void **state)
{
	static const struct {
		const char *text;
		bool tls;
		const char *host;
		uint16_t port;
		const char *path, *again;
	} rows[] = {
		{"https://h", true, "h", 443, "/", "https://h/"},
		{"http://h/", false, "h", 80, "/", "http://h/"},
		{"HTTPS://R.Example.COM/V2/", true, "r.example.com", 443, "/V2/",
			"https://r.example.com/V2/"},
		{"http://h:5000/a?b=c", false, "h", 5000, "/a?b=c", "http://h:5000/a?b=c"},
		{"http://h:80/a", false, "h", 80, "/a", "http://h/a"},
		{"http://h:00080/a", false, "h", 80, "/a", "http://h/a"},
		{"https://h:80", true, "h", 80, "/", "https://h:80/"},
		{"https://h:/a", true, "h", 443, "/a", "https://h/a"},
		{"https://h:65535/", true, "h", 65535, "/", "https://h:65535/"},
		{"http://h:1/", false, "h", 1, "/", "http://h:1/"},
		{"http://h?x=1", false, "h", 80, "/?x=1", "http://h/?x=1"},
		{"http://h#f/a", false, "h", 80, "/", "http://h/"},
		{"http://h/a?b#c?d", false, "h", 80, "/a?b", "http://h/a?b"},
		{"http://h/?a/../b", false, "h", 80, "/?a/../b", "http://h/?a/../b"},
		{"http://h//a/../b/%2e%zz", false, "h", 80, "//a/../b/%2e%zz",
			"http://h//a/../b/%2e%zz"},
		{"http://h/user@host:1", false, "h", 80, "/user@host:1", "http://h/user@host:1"},
		{"http://h/a|b{c}^`\"<>", false, "h", 80, "/a|b{c}^`\"<>", "http://h/a|b{c}^`\"<>"},
		{"http://[::1]/", false, "::1", 80, "/", "http://[::1]/"},
		{"https://[2001:DB8::A]:5000", true, "2001:db8::a", 5000, "/",
			"https://[2001:db8::a]:5000/"},
		{"http://[::ffff:10.0.0.1]:/x", false, "::ffff:10.0.0.1", 80, "/x",
			"http://[::ffff:10.0.0.1]/x"},
		{"http://10.0.0.1:5000/", false, "10.0.0.1", 5000, "/", "http://10.0.0.1:5000/"},
		{"http://0X7F.1/", false, "0x7f.1", 80, "/", "http://0x7f.1/"},
		{"http://1.2.3.4a/", false, "1.2.3.4a", 80, "/", "http://1.2.3.4a/"},
		{"http://1.0xg/", false, "1.0xg", 80, "/", "http://1.0xg/"},
		{"http://a_b.c-d./", false, "a_b.c-d.", 80, "/", "http://a_b.c-d./"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_URL struct url url = {0};
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *text = NULL;

		if (url_parse(rows[i].text, "it", &url, &err) < 0)
			fail_msg("%s: %s", rows[i].text, err.message);
		assert_int_equal(url.tls, rows[i].tls);
		assert_string_equal(url.host, rows[i].host);
		assert_int_equal(url.port, rows[i].port);
		assert_string_equal(url.path, rows[i].path);
		text = url_text(&url);
		assert_string_equal(text, rows[i].again);
	}
}

static void assert_refused(const char *text, const char *why)
{
	struct url url = {0};
	AUTO_ERR struct err err = {0};

	if (url_parse(text, "the realm", &url, &err) != -ERR_REMOTE)
		fail_msg("%s was taken", text);
	assert_int_equal(err.id, E_HTTP_URL);
	assert_true(str_starts(err.message, "the realm "));
	if (!strstr(err.message, why))
		fail_msg("%s: %s", text, err.message);
	assert_null(strstr(err.message, "secret"));
	assert_null(url.host);
}

static void test_refuse(void **state)
{
	static const char *const rows[][2] = {
		{"", "http://"},
		{"h", "http://"},
		{"/a", "http://"},
		{"//h/a", "http://"},
		{"://h/", "http://"},
		{"1http://h/", "http://"},
		{"+http://h/", "http://"},
		{"ftp://h/", "scheme"},
		{"file:///etc/passwd", "scheme"},
		{"httpx://h/", "scheme"},
		{"httpss://h/", "scheme"},
		{"htt://h/", "scheme"},
		{"javascript:alert(1)", "scheme"},
		{"localhost:5000/a", "scheme"},
		{"http:/h/", "host"},
		{"http:h", "host"},
		{"http:", "host"},
		{"http://", "host"},
		{"http:///a", "host"},
		{"http://:80/", "host"},
		{"http://?a", "host"},
		{"http://#a", "host"},
		{"http:\\\\h\\a", "0x5c at offset 5"},
		{"http://h\\@evil/", "0x5c"},
		{"http://good/\\", "0x5c"},
		{"http://me:secret@h/", "user name"},
		{"http://me@h/", "user name"},
		{"http://@h/", "user name"},
		{"http://good:80@evil:80/", "user name"},
		{" http://h/", "0x20 at offset 0"},
		{"http://h/ ", "0x20"},
		{"http://h/\ta", "0x09"},
		{"http://h/a\r\nX: y", "0x0d at offset 10"},
		{"http://h/\x7f", "0x7f"},
		{"http://h\xc3\xa9/", "0xc3"},
		{"http://h/\xff", "0xff"},
		{"http://h:0/", "port"},
		{"http://h:00000/", "port"},
		{"http://h:65536/", "port"},
		{"http://h:99999/", "port"},
		{"http://h:000080/", "port"},
		{"http://h:4294967376/", "port"},
		{"http://h:-1/", "port"},
		{"http://h:+80/", "port"},
		{"http://h:80:80/", "port"},
		{"http://h:8x/", "port"},
		{"http://::1/", "host"},
		{"http://%6c/", "not a valid name"},
		{"http://h%00.x/", "not a valid name"},
		{"http://.h/", "not a valid name"},
		{"http://a..b/", "not a valid name"},
		{"http://./", "not a valid name"},
		{"http://-h/", "not a valid name"},
		{"http://127.0.0.1./", "not a valid name"},
		{"http://169.254.169.254.:80/", "not a valid name"},
		{"http://1.2.3.4.5/", "not a valid name"},
		{"http://1.2.3.256/", "not a valid name"},
		{"http://4294967296/", "not a valid name"},
		{"http://0x7f.0.0.0x1.0x/", "not a valid name"},
		{"http://08.0.0.1/", "not a valid name"},
		{"http://h.1/", "not a valid name"},
		{"http://h.0xa/", "not a valid name"},
		{"http://h;x/", "not a valid name"},
		{"http://h,x/", "not a valid name"},
		{"http://a]/", "not a valid name"},
		{"http://[::1/", "["},
		{"http://[]/", "IPv6"},
		{"http://[1.2.3.4]/", "IPv6"},
		{"http://[h]/", "IPv6"},
		{"http://[fe80::1%25eth0]/", "IPv6"},
		{"http://[fe80::1%eth0]/", "IPv6"},
		{"http://[v1.x]/", "IPv6"},
		{"http://[::1]x/", "port"},
		{"http://[::1]:x/", "port"},
		{"http://[::1].evil/", "port"},
		{"http://[::1][::2]/", "port"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_refused(rows[i][0], rows[i][1]);
}

static char *long_url(const char *start, size_t len)
{
	char *text = mem_alloc(len + 1, 1);

	memset(text, 'a', len);
	memcpy(text, start, strlen(start));
	return text;
}

static void test_limits(void **state)
{
	AUTO_FREE char *most = long_url("http://h/", URL_MAX);
	AUTO_FREE char *more = long_url("http://h/", URL_MAX + 1);
	AUTO_FREE char *query = long_url("http://h?", URL_MAX);
	AUTO_FREE char *huge = long_url("http://h/", 1 << 20);
	AUTO_FREE char *host = long_url("http://", strlen("http://") + URL_HOST_MAX);
	AUTO_FREE char *name = long_url("http://", strlen("http://") + URL_HOST_MAX + 1);
	AUTO_FREE char *reference = long_url("b/", URL_MAX - 10);
	AUTO_URL struct url url = {0};
	AUTO_URL struct url other = {0};
	AUTO_URL struct url resolved = {0};

	assert_int_equal(url_parse(most, "it", &url, NULL), 0);
	assert_int_equal(url_parse(host, "it", &other, NULL), 0);
	assert_refused(more, "8192");
	assert_refused(huge, "8192");
	assert_refused(query, "8192"); /* the slash makes it longer */
	assert_refused(name, "not a valid name");
	url_done(&url);
	assert_int_equal(url_parse("http://h/1234567890/x", "it", &url, NULL), 0);
	assert_int_equal(url_resolve(&url, reference, "it", &resolved, NULL), -ERR_REMOTE);
	assert_int_equal(url_resolve(&url, huge, "it", &resolved, NULL), -ERR_REMOTE);
	reference[URL_MAX - 40] = '\0';
	assert_int_equal(url_resolve(&url, reference, "it", &resolved, NULL), 0);
}

/* RFC 3986, section 5.4, and what servers send besides. */
static void test_resolve(void **state)
{
	static const char *const rows[][2] = {
		{"g", "http://a/b/c/g"},
		{"./g", "http://a/b/c/g"},
		{"g/", "http://a/b/c/g/"},
		{"/g", "http://a/g"},
		{"//g", "http://g/"},
		{"?y", "http://a/b/c/d;p?y"},
		{"g?y", "http://a/b/c/g?y"},
		{"#s", "http://a/b/c/d;p?q"},
		{"g#s", "http://a/b/c/g"},
		{"g?y#s", "http://a/b/c/g?y"},
		{";x", "http://a/b/c/;x"},
		{"g;x?y#s", "http://a/b/c/g;x?y"},
		{"", "http://a/b/c/d;p?q"},
		{".", "http://a/b/c/"},
		{"./", "http://a/b/c/"},
		{"..", "http://a/b/"},
		{"../", "http://a/b/"},
		{"../g", "http://a/b/g"},
		{"../..", "http://a/"},
		{"../../", "http://a/"},
		{"../../g", "http://a/g"},
		{"../../../g", "http://a/g"},
		{"../../../../g", "http://a/g"},
		{"/./g", "http://a/g"},
		{"/../g", "http://a/g"},
		{"g.", "http://a/b/c/g."},
		{".g", "http://a/b/c/.g"},
		{"g..", "http://a/b/c/g.."},
		{"..g", "http://a/b/c/..g"},
		{"./../g", "http://a/b/g"},
		{"./g/.", "http://a/b/c/g/"},
		{"g/./h", "http://a/b/c/g/h"},
		{"g/../h", "http://a/b/c/h"},
		{"g;x=1/./y", "http://a/b/c/g;x=1/y"},
		{"g;x=1/../y", "http://a/b/c/y"},
		{"g?y/./x", "http://a/b/c/g?y/./x"},
		{"g?y/../x", "http://a/b/c/g?y/../x"},
		{"g#s/../x", "http://a/b/c/g"},
		{"http://o/a/../../b?c/..", "http://o/b?c/.."},
		{"HTTPS://O:5000", "https://o:5000/"},
		{"//o:81/x", "http://o:81/x"},
		{"//o?q", "http://o/?q"},
		{"/", "http://a/"},
		{"/..", "http://a/"},
		{"/.", "http://a/"},
		{"/a//../b", "http://a/a/b"},
		{"/a//..", "http://a/a/"},
		{"/.//evil/x", "http://a//evil/x"},
		{"///x", NULL},
		{"g:h", NULL},
		{"http:g", NULL},
		{"//", NULL},
		{"//me@evil/", NULL},
		{"\\\\evil", NULL},
		{"/\\evil", NULL},
		{"/a b", NULL},
		{"/a\nb", NULL},
		{"ftp://a/", NULL},
	};
	AUTO_URL struct url base = {0};

	assert_int_equal(url_parse("http://a/b/c/d;p?q", "it", &base, NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_URL struct url url = {0};
		AUTO_FREE char *text = NULL;
		AUTO_ERR struct err err = {0};
		int r = url_resolve(&base, rows[i][0], "the location", &url, &err);

		if ((r == 0) != (rows[i][1] != NULL))
			fail_msg("%s: %s", rows[i][0], r < 0 ? err.message : url.path);
		assert_true(r == 0 || (err.id == E_HTTP_URL && !url.host));
		text = r == 0 ? url_text(&url) : NULL;
		if (text && !str_eq(text, rows[i][1]))
			fail_msg("%s: %s", rows[i][0], text);
	}
}

static void test_resolve_keeps_base(void **state)
{
	AUTO_URL struct url base = {0};
	AUTO_URL struct url url = {0};
	AUTO_FREE char *text = NULL;

	assert_int_equal(url_parse("https://[::1]:5000?q=a/b", "it", &base, NULL), 0);
	assert_int_equal(url_resolve(&base, "x?y", "it", &url, NULL), 0);
	text = url_text(&url);
	assert_string_equal(text, "https://[::1]:5000/x?y");
	assert_true(url_same_origin(&base, &url));
}

static void test_make(void **state)
{
	AUTO_URL struct url url = {0};
	AUTO_URL struct url ip = {0};
	struct url no = {0};

	assert_int_equal(url_make(true, "R.io:5000", "/v2/?a=b", &url, NULL), 0);
	assert_true(url.tls && url.port == 5000);
	assert_string_equal(url.host, "r.io");
	assert_string_equal(url.path, "/v2/?a=b");
	assert_int_equal(url_make(false, "[::1]", "/", &ip, NULL), 0);
	assert_true(!ip.tls && ip.port == 80);
	assert_string_equal(ip.host, "::1");
	assert_int_equal(url_make(true, "h", "", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "h", "v2", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "h", "/a#b", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "h", "/a b", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "h/x", "/", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "h?x", "/", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "u@h", "/", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "", "/", &no, NULL), -ERR_REMOTE);
	assert_int_equal(url_make(true, "::1", "/", &no, NULL), -ERR_REMOTE);
	assert_null(no.host);
}

static bool same(const char *a, const char *b)
{
	AUTO_URL struct url one = {0};
	AUTO_URL struct url two = {0};

	assert_int_equal(url_parse(a, "it", &one, NULL), 0);
	assert_int_equal(url_parse(b, "it", &two, NULL), 0);
	return url_same_origin(&one, &two);
}

static void test_origin(void **state)
{
	assert_true(same("https://h/a", "HTTPS://H:443/b"));
	assert_true(same("http://[::A]:80", "http://[::a]/"));
	assert_false(same("https://h/", "http://h/"));
	assert_false(same("https://h/", "https://h:444/"));
	assert_false(same("https://h:80/", "http://h:80/"));
	assert_false(same("https://h/", "https://h./"));
	assert_false(same("https://h/", "https://x.h/"));
}

static void test_loopback(void **state)
{
	static const struct {
		const char *text;
		bool is;
	} rows[] = {
		{"http://localhost/", true},
		{"http://LocalHost:5000/", true},
		{"http://a.b.localhost/", true},
		{"http://127.0.0.1/", true},
		{"http://127.255.0.1/", true},
		{"http://127.1/", true},
		{"http://0x7f.1/", true},
		{"http://2130706433/", true},
		{"http://[::1]/", true},
		{"http://[::ffff:127.0.0.1]/", true},
		{"http://localhost./", false},
		{"http://localhost.example/", false},
		{"http://notlocalhost/", false},
		{"http://127.0.0.1.example/", false},
		{"http://0.0.0.0/", false},
		{"http://10.0.0.1/", false},
		{"http://[::]/", false},
		{"http://[::2]/", false},
		{"http://h/localhost", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_URL struct url url = {0};

		assert_int_equal(url_parse(rows[i].text, "it", &url, NULL), 0);
		if (url_is_loopback(&url) != rows[i].is)
			fail_msg("%s", rows[i].text);
	}
}

static void test_shown(void **state)
{
	static const char *const rows[][2] = {
		{"https://h:443/v2/a:b@c?token=secret", "https://h/v2/a:b@c?…"},
		{"http://[::1]:5000", "http://[::1]:5000/"},
		{"http://h/a?", "http://h/a?…"},
		{"http://h/%41~!$&'()*+,;=", "http://h/%41~!$&'()*+,;="},
		{"http://h/<\"|>", "http://h/%3C%22%7C%3E"},
	};
	struct url raw = {.host = (char *)"h", .port = 80, .path = (char *)"/a\x1b[1m\xff\n"};
	AUTO_FREE char *escaped = url_shown(&raw);

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_URL struct url url = {0};
		AUTO_FREE char *shown = NULL;

		assert_int_equal(url_parse(rows[i][0], "it", &url, NULL), 0);
		shown = url_shown(&url);
		assert_string_equal(shown, rows[i][1]);
	}
	assert_string_equal(escaped, "http://h/a%1B%5B1m%FF%0A");
}

static void test_authority(void **state)
{
	static const char *const rows[][2] = {
		{"https://h:443/", "h"},
		{"https://h:80/", "h:80"},
		{"http://h:80/", "h"},
		{"http://[::1]:80/", "[::1]"},
		{"http://[::1]:8080/", "[::1]:8080"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_URL struct url url = {0};
		AUTO_FREE char *text = NULL;

		assert_int_equal(url_parse(rows[i][0], "it", &url, NULL), 0);
		text = url_authority(&url);
		assert_string_equal(text, rows[i][1]);
	}
}

static void test_add_param(void **state)
{
	static const char *const rows[][3] = {
		{"/a", "x:y z&=?/#%+", "/a?k=x%3Ay%20z%26%3D%3F%2F%23%25%2B"},
		{"/a?b=c", "-._~Az09", "/a?b=c&k=-._~Az09"},
		{"/a?", "", "/a?k="},
		{"/a?b&", "\xc3\xa9", "/a?b&k=%C3%A9"},
		{"/a&", "1", "/a&?k=1"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *got = url_add_param(rows[i][0], "k", rows[i][1]);

		assert_string_equal(got, rows[i][2]);
	}
}

static void test_copy(void **state)
{
	AUTO_URL struct url from = {0};
	AUTO_URL struct url to = {0};
	AUTO_FREE char *text = NULL;

	assert_int_equal(url_parse("https://h:1/a?b", "it", &from, NULL), 0);
	url_copy(&from, &to);
	url_done(&from);
	url_done(&from);
	url_done(NULL);
	text = url_text(&to);
	assert_string_equal(text, "https://h:1/a?b");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_refuse),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_resolve),
		cmocka_unit_test(test_resolve_keeps_base),
		cmocka_unit_test(test_make),
		cmocka_unit_test(test_origin),
		cmocka_unit_test(test_loopback),
		cmocka_unit_test(test_shown),
		cmocka_unit_test(test_authority),
		cmocka_unit_test(test_add_param),
		cmocka_unit_test(test_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

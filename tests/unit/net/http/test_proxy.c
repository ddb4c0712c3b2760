/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/proxy.h"

static void test_env(void **state)
{
	static const char *const both[] = {"HTTPS_PROXY=A", "https_proxy=a", "http_proxy=b",
		"HTTP_PROXY=B", "ALL_PROXY=C", "all_proxy=c", "no_proxy=d", "NO_PROXY=D", NULL};
	static const char *const upper[] = {
		"HTTPS_PROXY=A", "HTTP_PROXY=B", "ALL_PROXY=C", "NO_PROXY=D", NULL};
	static const char *const empty[] = {
		"https_proxy=", "HTTPS_PROXY=A", "http_proxy=", "all_proxy=", "no_proxyx=y", NULL};
	struct proxy_env env;

	proxy_env_read(both, &env);
	assert_string_equal(env.https_proxy, "a");
	assert_string_equal(env.http_proxy, "b");
	assert_string_equal(env.all_proxy, "c");
	assert_string_equal(env.no_proxy, "d");
	proxy_env_read(upper, &env);
	assert_string_equal(env.https_proxy, "A");
	assert_null(env.http_proxy);
	assert_string_equal(env.all_proxy, "C");
	assert_string_equal(env.no_proxy, "D");
	proxy_env_read(empty, &env);
	assert_string_equal(env.https_proxy, "A");
	assert_null(env.http_proxy);
	assert_null(env.all_proxy);
	assert_null(env.no_proxy);
	proxy_env_read(NULL, &env);
	assert_null(env.https_proxy);
}

static char *requested(const struct proxy_env *env, const char *text)
{
	AUTO_URL struct url url = {0};
	AUTO_ERR struct err err = {0};
	char *proxy = NULL;

	assert_int_equal(url_parse(text, "it", &url, NULL), 0);
	if (proxy_for(env, &url, &proxy, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return proxy;
}

static void assert_proxy(const struct proxy_env *env, const char *text, const char *want)
{
	AUTO_FREE char *got = requested(env, text);

	if (!str_eq(got, want))
		fail_msg("%s: %s, not %s", text, got ? got : "straight", want ? want : "straight");
}

static void test_choose(void **state)
{
	struct proxy_env all = {
		.https_proxy = "http://s:1", .http_proxy = "http://p:2", .all_proxy = "http://a:3"};
	struct proxy_env rest = {.https_proxy = "", .all_proxy = "http://a:3"};
	struct proxy_env none = {0};

	assert_proxy(&all, "https://h/", "http://s:1");
	assert_proxy(&all, "http://h/", "http://p:2");
	assert_proxy(&rest, "https://h/", "http://a:3");
	assert_proxy(&rest, "http://h/", "http://a:3");
	assert_proxy(&none, "https://h/", NULL);
	assert_proxy(&all, "https://localhost:5000/", NULL);
	assert_proxy(&all, "http://x.localhost/", NULL);
	assert_proxy(&all, "http://127.0.0.2/", NULL);
	assert_proxy(&all, "http://127.1/", NULL);
	assert_proxy(&all, "https://[::1]/", NULL);
	assert_proxy(&all, "https://10.0.0.1/", "http://s:1");
}

static void test_forms(void **state)
{
	static const char *const rows[][3] = {
		{"proxy", "http://proxy:80", "http://proxy:80"},
		{"proxy:3128", "http://proxy:3128", "http://proxy:3128"},
		{"proxy:", "http://proxy:80", "http://proxy:80"},
		{"10.0.0.1:8080", "http://10.0.0.1:8080", "http://10.0.0.1:8080"},
		{"http://Proxy.Example:80/", "http://proxy.example:80", "http://proxy.example:80"},
		{"HTTPS://proxy", "https://proxy:443", "https://proxy:443"},
		{"https://proxy:80", "https://proxy:80", "https://proxy:80"},
		{"socks4://p", "socks4://p:1080", "socks4://p:1080"},
		{"socks4a://p", "socks4a://p:1080", "socks4a://p:1080"},
		{"socks5://p:80", "socks5://p:80", "socks5://p:80"},
		{"socks5h://p/", "socks5h://p:1080", "socks5h://p:1080"},
		{"http://[2001:db8::1]", "http://[2001:db8::1]:80", "http://[2001:db8::1]:80"},
		{"[::1]:3128", "http://[::1]:3128", "http://[::1]:3128"},
		{"http://me:secret@p:1", "http://me:secret@p:1", "http://p:1"},
		{"me:secret@p", "http://me:secret@p:80", "http://p:80"},
		{"http://me:se%40c:ret@p:1", "http://me:se%40c:ret@p:1", "http://p:1"},
		{"http://me:s@cr#t?x@p:1", "http://me:s%40cr%23t%3Fx@p:1", "http://p:1"},
		{"http://a]:[b\\c@[::1]:1", "http://a%5D:%5Bb%5Cc@[::1]:1", "http://[::1]:1"},
		{"http://@p:1", "http://p:1", "http://p:1"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct proxy_env env = {.https_proxy = rows[i][0]};
		AUTO_URL struct url url = {0};
		AUTO_FREE char *shown = NULL;
		const char *variable = NULL;

		assert_proxy(&env, "https://h/", rows[i][1]);
		assert_int_equal(url_parse("https://h/", "it", &url, NULL), 0);
		assert_int_equal(proxy_shown(&env, &url, &shown, &variable, NULL), 0);
		assert_string_equal(shown, rows[i][2]);
		assert_string_equal(variable, "HTTPS_PROXY");
	}
}

static void assert_bad(const struct proxy_env *env, const char *text, const char *variable)
{
	AUTO_URL struct url url = {0};
	AUTO_ERR struct err err = {0};
	const char *named = NULL;
	char *proxy = NULL;

	assert_int_equal(url_parse(text, "it", &url, NULL), 0);
	assert_int_equal(proxy_shown(env, &url, &proxy, &named, NULL), -ERR_CONFIG);
	if (proxy_for(env, &url, &proxy, &err) != -ERR_CONFIG)
		fail_msg("%s", proxy);
	assert_int_equal(err.id, E_CONFIG);
	assert_true(str_starts(err.message, variable));
	assert_true(str_starts(err.hint, variable));
	assert_null(strstr(err.message, "secret"));
	assert_null(proxy);
}

static void test_bad_forms(void **state)
{
	static const char *const rows[] = {"http://", "http:///", "://p", "ftp://p", "socks://p",
		"socks5hh://p", "http//p", "http:/p", "http://p:0", "http://p:65536", "http://p:x",
		"http://p:1:2", "http://p/x", "http://p?x", "http://p#x", "http://p/?x", "p q",
		" p", "p\n", "http://p\x7f", "http://p\xc3\xa9", "http://u\n:secret@p",
		"http://u:secret@", "http://u:sec/ret@p", "http://[::1", "http://::1:80",
		"http://p\\q", "http://%70", "@", "http://http://p", "-p"};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct proxy_env https = {.https_proxy = rows[i], .all_proxy = "http://p"};
		struct proxy_env http = {.http_proxy = rows[i], .https_proxy = "http://p"};
		struct proxy_env all = {.all_proxy = rows[i]};
		struct proxy_env unused = {.https_proxy = rows[i], .no_proxy = "h"};

		assert_bad(&https, "https://h/", "HTTPS_PROXY");
		assert_bad(&http, "http://h/", "http_proxy");
		assert_bad(&all, "https://h/", "ALL_PROXY");
		assert_proxy(&unused, "https://h/", NULL);
		assert_proxy(&https, "https://localhost/", NULL);
	}
}

static void test_shown_straight(void **state)
{
	struct proxy_env env = {.https_proxy = "p", .no_proxy = "*"};
	AUTO_URL struct url url = {0};
	const char *variable = "x";
	char *shown = (char *)"x";

	assert_int_equal(url_parse("https://h/", "it", &url, NULL), 0);
	assert_int_equal(proxy_shown(&env, &url, &shown, &variable, NULL), 0);
	assert_null(shown);
	assert_null(variable);
}

static void test_no_proxy(void **state)
{
	static const struct {
		const char *no_proxy, *url;
		bool straight;
	} rows[] = {
		{"*", "https://h/", true},
		{"a,*", "https://h/", true},
		{" * ", "https://h/", true},
		{"", "https://h/", false},
		{" ,, ", "https://h/", false},
		{"example.com", "https://example.com/", true},
		{"example.com", "https://EXAMPLE.com/", true},
		{"Example.COM", "https://example.com/", true},
		{"example.com", "https://r.example.com/", true},
		{"example.com", "https://a.r.example.com:5000/", true},
		{"example.com", "https://badexample.com/", false},
		{"example.com", "https://example.com.evil/", false},
		{"example.com", "https://com/", false},
		{".example.com", "https://r.example.com/", true},
		{".example.com", "https://example.com/", true},
		{"*.example.com", "https://r.example.com/", true},
		{"*.example.com", "https://badexample.com/", false},
		{"r*.example.com", "https://r1.example.com/", false},
		{"example.com.", "https://example.com/", true},
		{"example.com", "https://example.com./", true},
		{".example.com.", "https://r.example.com./", true},
		{"..", "https://h/", false},
		{".", "https://h./", false},
		{"a.b c.d\te.f,g.h", "https://c.d/", true},
		{"a.b c.d\te.f,g.h", "https://e.f/", true},
		{" a.b , g.h ", "https://g.h/", true},
		{"h:443", "https://h/", true},
		{"h:443", "https://h:5000/", false},
		{"h:5000", "https://x.h:5000/", true},
		{".h:5000", "https://x.h:5000/", true},
		{"h.:5000", "https://h:5000/", true},
		{"h:", "https://h/", false},
		{"h:x", "https://h/", false},
		{"h:443:443", "https://h/", false},
		{":443", "https://h/", false},
		{"https://h", "https://h/", false},
		{"10.0.0.1", "https://10.0.0.1/", true},
		{"10.0.0.1", "https://10.0.0.2/", false},
		{"10.0.0.1", "https://10.1/", true},
		{"10.0.0.1.", "https://10.0.0.1/", true},
		{"10.0.0.1:5000", "https://10.0.0.1:5000/", true},
		{"10.0.0.1:5000", "https://10.0.0.1/", false},
		{"0.0.1", "https://10.0.0.1/", false},
		{".0.0.1", "https://10.0.0.1/", false},
		{"10.0.0.0/8", "https://10.9.9.9/", true},
		{"10.1.2.3/8", "https://10.9.9.9/", true},
		{"10.0.0.0/8", "https://11.0.0.0/", false},
		{"10.0.0.0/8", "https://[::ffff:10.0.0.1]/", true},
		{"10.0.0.0/8", "https://10.example/", false},
		{"192.168.1.128/25", "https://192.168.1.127/", false},
		{"192.168.1.128/25", "https://192.168.1.200/", true},
		{"10.0.0.1/32", "https://10.0.0.1/", true},
		{"10.0.0.1/32", "https://10.0.0.0/", false},
		{"0.0.0.0/0", "https://8.8.8.8/", true},
		{"0.0.0.0/0", "https://[2a00::1]/", false},
		{"::/0", "https://[2a00::1]/", true},
		{"::/0", "https://h/", false},
		{"10.0.0.0/33", "https://10.0.0.1/", false},
		{"10.0.0.0/-1", "https://10.0.0.1/", false},
		{"10.0.0.0/", "https://10.0.0.1/", false},
		{"10.0.0.0/8:443", "https://10.0.0.1/", false},
		{"/8", "https://10.0.0.1/", false},
		{"10.0.0.0/18446744073709551600", "https://10.0.0.1/", false},
		{"2001:DB8::1", "https://[2001:db8::1]/", true},
		{"2001:db8:0::1", "https://[2001:db8::1]:5000/", true},
		{"[2001:db8::1]", "https://[2001:db8::1]:5000/", true},
		{"[2001:db8::1]:5000", "https://[2001:db8::1]:5000/", true},
		{"[2001:db8::1]:5000", "https://[2001:db8::1]/", false},
		{"[2001:db8::1]x", "https://[2001:db8::1]/", false},
		{"[2001:db8::1", "https://[2001:db8::1]/", false},
		{"2001:db8::/32", "https://[2001:db8:5::1]/", true},
		{"2001:db8::/32", "https://[2001:db9::1]/", false},
		{"2001:db8::/129", "https://[2001:db8::1]/", false},
		{"[2001:db8::]/32", "https://[2001:db8::1]/", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct proxy_env env = {.https_proxy = "http://p:1", .no_proxy = rows[i].no_proxy};
		AUTO_FREE char *got = requested(&env, rows[i].url);

		if (!got != rows[i].straight)
			fail_msg("NO_PROXY=\"%s\" %s", rows[i].no_proxy, rows[i].url);
	}
}

static void test_long(void **state)
{
	AUTO_BUF struct buf list;
	struct proxy_env env = {.https_proxy = "http://p:1"};

	buf_init(&list, 2 << 20);
	while (list.len < 1 << 20)
		buf_addf(&list, "host%zu.example,", list.len);
	env.no_proxy = list.data;
	assert_proxy(&env, "https://h/", "http://p:1");
	buf_adds(&list, "h");
	env.no_proxy = list.data;
	assert_proxy(&env, "https://h/", NULL);
	memset(list.data, 'a', list.len);
	assert_proxy(&env, "https://h/", "http://p:1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_env),
		cmocka_unit_test(test_choose),
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_bad_forms),
		cmocka_unit_test(test_shown_straight),
		cmocka_unit_test(test_no_proxy),
		cmocka_unit_test(test_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

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
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "tests/unit/effort.h"

static void test_find(void **state)
{
	AUTO_STRV struct strv headers = {0};

	assert_null(field_find(&headers, "a"));
	strv_add(&headers, "range-x: no");
	strv_add(&headers, "range: 0-1");
	strv_add(&headers, "range: 0-2");
	strv_add(&headers, "empty:");
	strv_add(&headers, "tight:x");
	strv_add(&headers, "wide: \t x y ");
	strv_add(&headers, "no colon");
	assert_string_equal(field_find(&headers, "range"), "0-1");
	assert_string_equal(field_find(&headers, "empty"), "");
	assert_string_equal(field_find(&headers, "tight"), "x");
	assert_string_equal(field_find(&headers, "wide"), "x y ");
	assert_null(field_find(&headers, "no colon"));
	assert_null(field_find(&headers, "rang"));
	assert_null(field_find(&headers, ""));
}

/* As scheme(key=value;…) with blanks between. */
static char *text_of(const struct challenge_list *list)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	vec_foreach (struct challenge, challenge, list) {
		assert_int_equal(challenge->keys.n, challenge->values.n);
		buf_addf(&out, "%s%s(", out.len ? " " : "", challenge->scheme);
		for (size_t i = 0; i < challenge->keys.n; i++)
			buf_addf(&out, "%s%s=%s", i ? ";" : "", challenge->keys.v[i],
				challenge->values.v[i]);
		buf_addc(&out, ')');
	}
	return buf_take(&out);
}

static char *parsed(const char *value)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_CHALLENGES struct challenge_list list = {0};

	strv_add(&headers, "server: x");
	strv_addf(&headers, "www-authenticate: %s", value);
	challenges_parse(&headers, &list);
	return text_of(&list);
}

static void test_challenges(void **state)
{
	static const char *const rows[][2] = {
		{"Bearer realm=\"https://a/t\",service=\"r.io\",scope=\"repository:a/b:pull,push\"",
			"bearer(realm=https://a/t;service=r.io;scope=repository:a/b:pull,push)"},
		{"Basic realm=\"x\"", "basic(realm=x)"},
		{"BASIC REALM=\"X\"", "basic(realm=X)"},
		{"Basic", "basic()"},
		{"Basic ", "basic()"},
		{"", ""},
		{" , ,, ", ""},
		/* RFC 9110, section 11.6.1 */
		{"Basic realm=\"simple\", Newauth realm=\"apps\", type=1, title=\"Login to "
		 "\\\"apps\\\"\"",
			"basic(realm=simple) newauth(realm=apps;type=1;title=Login to \"apps\")"},
		{"Negotiate, Basic realm=\"x\"", "negotiate() basic(realm=x)"},
		{"Negotiate YII/a-b._~+==, Bearer realm=\"x\"", "negotiate() bearer(realm=x)"},
		{"Negotiate YII== ,Basic", "negotiate() basic()"},
		{"Bearer realm = \"x\" ,\tservice\t=\ty", "bearer(realm=x;service=y)"},
		{"Bearer ,,realm=x,,,service=y,", "bearer(realm=x;service=y)"},
		{"Bearer realm=\"x\" service=\"y\"", "bearer(realm=x;service=y)"},
		{"Bearer realm=\"x\"service=\"y\"", "bearer(realm=x;service=y)"},
		{"Bearer realm=\"x\" Basic realm=\"y\"", "bearer(realm=x) basic(realm=y)"},
		{"Bearer Basic realm=\"y\"", "bearer() basic(realm=y)"},
		{"Bearer realm=https://a/t?x,service=r.io:5000",
			"bearer(realm=https://a/t?x;service=r.io:5000)"},
		{"Bearer realm=\"\"", "bearer(realm=)"},
		{"Bearer realm=\"a\\\\b\\c\"", "bearer(realm=a\\bc)"},
		{"Bearer realm=\"a,b=c\"", "bearer(realm=a,b=c)"},
		{"Bearer realm=x,realm=y", "bearer(realm=x;realm=y)"},
		{"Bearer service=r,realm=\"unended", "bearer(service=r)"},
		{"Bearer service=r,realm=\"unended\\", "bearer(service=r)"},
		{"Bearer service=r,realm=\"unended\\\"", "bearer(service=r)"},
		{"Bearer service=r,realm=", "bearer(service=r)"},
		{"Bearer service=r,realm", "bearer(service=r) realm()"},
		{"Bearer realm=\"x\";service=\"y, z\", Basic", "bearer(realm=x) basic()"},
		{"realm=\"stray\", Basic realm=\"x\"", "basic(realm=x)"},
		{"\"Basic, quoted\", Basic realm=\"x\"", "basic(realm=x)"},
		{"=== Basic", "basic()"},
		{"@(\xff) Basic realm=\xc3\xa9", "basic(realm=\xc3\xa9)"},
		{"Bearer:realm=\"x\"", ""},
		{"Bearer\"x\"", ""},
		{"Foo!#$%&'*+-.^_`|~ a=b", "foo!#$%&'*+-.^_`|~(a=b)"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *got = parsed(rows[i][0]);

		if (!str_eq(got, rows[i][1]))
			fail_msg("%s: %s", rows[i][0], got);
	}
}

static void test_several_fields(void **state)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_CHALLENGES struct challenge_list list = {0};
	AUTO_FREE char *text = NULL;

	strv_add(&headers, "www-authenticate: Basic realm=\"unended");
	strv_add(&headers, "proxy-authenticate: Digest");
	strv_add(&headers, "www-authenticate:Bearer realm=\"x\", a=b");
	strv_add(&headers, "www-authenticate: Bearer realm=\"y\"");
	challenges_parse(&headers, &list);
	text = text_of(&list);
	assert_string_equal(text, "basic() bearer(realm=x;a=b) bearer(realm=y)");
	assert_string_equal(challenge_param(challenge_find(&list, "bearer"), "realm"), "x");
	assert_null(challenge_param(challenge_find(&list, "bearer"), "service"));
	assert_null(challenge_param(challenge_find(&list, "basic"), "realm"));
	assert_null(challenge_find(&list, "digest"));
	assert_null(challenge_find(&list, "Bearer"));
}

static void test_challenge_limits(void **state)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_CHALLENGES struct challenge_list list = {0};
	AUTO_BUF struct buf many;

	buf_init(&many, 1 << 20);
	buf_adds(&many, "www-authenticate: Basic");
	for (int i = 0; i < 1000; i++)
		buf_addf(&many, "%c k%d=v%d", i ? ',' : ' ', i, i);
	for (int i = 0; i < 1000; i++)
		buf_addf(&many, ", S%d a=b", i);
	strv_add(&headers, many.data);
	strv_add(&headers, "www-authenticate: Last");
	challenges_parse(&headers, &list);
	assert_int_equal(list.n, CHALLENGES_MAX);
	assert_int_equal(list.v[0].keys.n, CHALLENGE_PARAMS_MAX);
	assert_string_equal(list.v[0].keys.v[CHALLENGE_PARAMS_MAX - 1], "k15");
	assert_string_equal(list.v[1].scheme, "s0");
	assert_string_equal(list.v[CHALLENGES_MAX - 1].scheme, "s14");
}

/* Text of which nothing can be used is read once, not once for each byte. */
static void test_garbage(void **state)
{
	static const char *const pieces[] = {"=", "\"", "\\", "a=\"", "a =", ";", "\"\"", "=\"x\"",
		"a=", "Basic=\"x\",", "@ ", " "};
	int64_t start = effort_ms();

	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		AUTO_BUF struct buf value;
		AUTO_FREE char *got = NULL;

		buf_init(&value, 2 << 20);
		while (value.len < 1 << 20)
			buf_adds(&value, pieces[i]);
		got = parsed(value.data);
		assert_string_equal(got, "");
	}
	assert_true(effort_ms() - start < 60000);
}

enum { DAY_S = 24 * 3600 };

static void test_dates(void **state)
{
	static const struct {
		const char *text;
		int64_t s; /* -1: none */
	} rows[] = {
		{"Sun, 06 Nov 1994 08:49:37 GMT", 784111777},
		{"Sunday, 06-Nov-94 08:49:37 GMT", 784111777},
		{"Sun Nov  6 08:49:37 1994", 784111777},
		{"Sun Nov 16 08:49:37 1994", 784111777 + 10 * DAY_S},
		{"Sun, 06 Nov 1994 08:49:37 GMT ", 784111777},
		{"Thu, 01 Jan 1970 00:00:01 GMT", 1},
		{"Wed, 31 Dec 1969 23:59:59 GMT", 0},
		{"Mon, 01 Jan 0000 00:00:00 GMT", 0},
		{"Thursday, 01-Jan-70 00:00:09 GMT", 9},
		{"Friday, 31-Dec-69 23:59:59 GMT", 3155759999},
		{"Saturday, 01-Jan-00 00:00:00 GMT", 946684800},
		{"Thu, 29 Feb 2024 00:00:00 GMT", 1709164800},
		{"Tue, 31 Dec 2024 23:59:60 GMT", 1735689599},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 253402300799},
		{"Wed, 29 Feb 2023 00:00:00 GMT", -1},
		{"Sun, 00 Nov 1994 08:49:37 GMT", -1},
		{"Sun, 31 Nov 1994 08:49:37 GMT", -1},
		{"Sun, 06 Nov 1994 24:49:37 GMT", -1},
		{"Sun, 06 Nov 1994 08:60:37 GMT", -1},
		{"Sun, 06 Nov 1994 08:49:61 GMT", -1},
		{"Sun, 6 Nov 1994 08:49:37 GMT", -1},
		{"Sun, 06 nov 1994 08:49:37 GMT", -1},
		{"Sun, 06 Nov 1994 08:49:37 UTC", -1},
		{"Sun, 06 Nov 1994 08:49:37 GMT+1", -1},
		{"Sun, 06 Nov 1994 08:49:37", -1},
		{"Sun, 06 Nov 94 08:49:37 GMT", -1},
		{"So, 06 Nov 1994 08:49:37 GMT", -1},
		{"Sun Nov 6 08:49:37 1994", -1},
		{"Sun Nov  x 08:49:37 1994", -1},
		{"Sun, ", -1},
		{"Sun", -1},
		{"", -1},
		{"1994-11-06T08:49:37Z", -1},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t want = rows[i].s < 0 ? -1 : rows[i].s * 1000;

		if (field_date(rows[i].text) != want)
			fail_msg("%s: %lld", rows[i].text, (long long)field_date(rows[i].text));
	}
}

static void test_retry_after(void **state)
{
	static const struct {
		const char *text;
		int64_t now_ms, ms;
	} rows[] = {
		{"0", 5, 0},
		{"120", 5, 120000},
		{" 7 ", 5, 7000},
		{"007", 5, 7000},
		{"31536000", 5, RETRY_AFTER_MAX_MS},
		{"31536001", 5, RETRY_AFTER_MAX_MS},
		{"9223372036854775808", 5, RETRY_AFTER_MAX_MS},
		{"18446744073709551616", 5, RETRY_AFTER_MAX_MS},
		{"99999999999999999999999999999999999999999999", 5, RETRY_AFTER_MAX_MS},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 784111776500, 500},
		{" Sun, 06 Nov 1994 08:49:37 GMT", 784111777000, 0},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 1794111777000, 0},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 784111777000, RETRY_AFTER_MAX_MS},
		{"Fri, 31 Dec 9999 23:59:59 GMT", INT64_MIN, RETRY_AFTER_MAX_MS},
		{"Wed, 31 Dec 1969 23:59:59 GMT", INT64_MAX, 0},
		{"", 5, -1},
		{"-1", 5, -1},
		{"+1", 5, -1},
		{"1.5", 5, -1},
		{"1s", 5, -1},
		{"1, 2", 5, -1},
		{"soon", 5, -1},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t got = field_retry_after(rows[i].text, rows[i].now_ms);

		if (got != rows[i].ms)
			fail_msg("%s: %lld", rows[i].text, (long long)got);
	}
}

static void test_upload_range(void **state)
{
	static const char *const bad[] = {"", "0", "0-", "-", "1-5", "00-5", "0-5-6", "0-5,7-9",
		"0--1", "bytes 0-5", "bytes=", "bytes=1-2", "bytes=bytes=0-1",
		"0-18446744073709551615", "0-18446744073709551616", "0-99999999999999999999999",
		"0- 5", "0-5 ", "0-0x5", "x"};
	uint64_t n = 7;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (field_upload_range(bad[i], &n))
			fail_msg("%s", bad[i]);
	}
	assert_int_equal(n, 7);
	assert_true(field_upload_range("0-99", &n) && n == 100);
	assert_true(field_upload_range("bytes=0-99", &n) && n == 100);
	assert_true(field_upload_range("0-0", &n) && n == 0);
	assert_true(field_upload_range("0-1", &n) && n == 2);
	assert_true(field_upload_range("0-18446744073709551614", &n) && n == UINT64_MAX);
}

static void test_number(void **state)
{
	static const char *const bad[] = {"", " 1", "1 ", "-1", "+1", "1.0", "0x1", "1e3",
		"18446744073709551615", "18446744073709551616", "28446744073709551614"};
	uint64_t n = 7;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (field_number(bad[i], &n))
			fail_msg("%s", bad[i]);
	}
	assert_int_equal(n, 7);
	assert_true(field_number("0", &n) && n == 0);
	assert_true(field_number("0012", &n) && n == 12);
	assert_true(field_number("18446744073709551614", &n) && n == UINT64_MAX - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_challenges),
		cmocka_unit_test(test_several_fields),
		cmocka_unit_test(test_challenge_limits),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_dates),
		cmocka_unit_test(test_retry_after),
		cmocka_unit_test(test_upload_range),
		cmocka_unit_test(test_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

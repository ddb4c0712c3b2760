/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static void test_starts_and_ends(void **state)
{
	assert_true(str_starts("abc", "ab"));
	assert_true(str_starts("abc", ""));
	assert_true(str_starts("", ""));
	assert_false(str_starts("ab", "abc"));
	assert_true(str_ends("abc", "bc"));
	assert_true(str_ends("abc", "abc"));
	assert_true(str_ends("", ""));
	assert_false(str_ends("bc", "abc"));
	assert_false(str_ends("abc", "ab"));
	assert_true(str_eq(NULL, NULL));
	assert_false(str_eq(NULL, ""));
	assert_true(str_empty(NULL) && str_empty("") && !str_empty("x"));
}

static void test_to_int(void **state)
{
	static const struct {
		const char *s;
		int64_t min, max, want;
	} good[] = {
		{"0", 0, 0, 0},
		{"-0", 0, 0, 0},
		{"007", 0, 9, 7},
		{"65535", 1, 65535, 65535},
		{"-5", -5, 5, -5},
		{"9223372036854775807", INT64_MIN, INT64_MAX, INT64_MAX},
		{"-9223372036854775808", INT64_MIN, INT64_MAX, INT64_MIN},
	};
	static const char *const bad[] = {"", "-", "+1", " 1", "1 ", "1x", "0x1", "1.0", "--1",
		"9223372036854775808", "-9223372036854775809", "99999999999999999999", "٣"};
	int64_t value = 42;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(
			str_to_int(good[i].s, good[i].min, good[i].max, "n", &value, NULL), 0);
		assert_true(value == good[i].want);
	}
	value = 42;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(
			str_to_int(bad[i], INT64_MIN, INT64_MAX, "n", &value, NULL), -ERR_USAGE);
	assert_int_equal(value, 42);
}

static void test_to_int_says_why(void **state)
{
	AUTO_ERR struct err err = {0};
	int64_t value;

	assert_int_equal(str_to_int("65536", 1, 65535, "the port", &value, &err), -ERR_USAGE);
	assert_string_equal(
		err.message, "the port must be a whole number from 1 to 65535, not \"65536\"");
	assert_int_equal(str_to_int("\n", 0, INT64_MAX, "--tail", &value, &err), -ERR_USAGE);
	assert_string_equal(
		err.message, "--tail must be a whole number of at least 0, not \"\\n\"");
}

static void test_to_size(void **state)
{
	static const struct {
		const char *s;
		uint64_t want;
	} good[] = {
		{"0", 0},
		{"4096", 4096},
		{"500Mi", 500ull << 20},
		{"2Gi", 2ull << 30},
		{"10M", 10000000},
		{"1k", 1000},
		{"1K", 1000},
		{"1.5Gi", 3ull << 29},
		{"0.5Ki", 512},
		{"0.3Ki", 307},
		{"0.001k", 1},
		{"0.0001k", 0},
		{"18446744073709551615", UINT64_MAX},
		{"15Ei", 15ull << 60},
		{"15.999999999999999999Ei", UINT64_MAX - 1},
		{"18.446744073709551615E", UINT64_MAX},
	};
	static const char *const bad[] = {"", "Mi", "-1", "+1", " 1", "1 ", "1 Mi", "1mi", "1MiB",
		"1B", "1.5", "1.", "1.Mi", ".5Mi", "1.2.3Mi", "1e3", "0x10", "16Ei",
		"18446744073709551616", "19E", "1.0000000000000000000Ki", "000000000000000000001"};
	uint64_t value;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(str_to_size(good[i].s, &value, NULL), 0);
		assert_true(value == good[i].want);
	}
	value = 42;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(str_to_size(bad[i], &value, NULL), -ERR_USAGE);
	assert_true(value == 42);

	AUTO_ERR struct err err = {0};
	str_to_size("1 Mi", &value, &err);
	assert_string_equal(err.message, "\"1 Mi\" is not a size like 4096, 500Mi, 1.5Gi or 10M");
}

static void test_size(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *want;
	} rows[] = {
		{0, "0 B"},
		{812, "812 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{10188, "9.9 KiB"},
		{10189, "10 KiB"},
		{1023 * 1024 + 511, "1023 KiB"},
		{1023 * 1024 + 512, "1.0 MiB"},
		{3250586, "3.1 MiB"},
		{1ull << 30, "1.0 GiB"},
		{(1ull << 40) - 1, "1.0 TiB"},
		{1ull << 60, "1.0 EiB"},
		{UINT64_MAX, "16 EiB"},
	};
	char out[16];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		assert_string_equal(str_size(rows[i].bytes, out), rows[i].want);
		assert_true(strlen(out) <= 8);
	}
	/* Never wider, never a smaller figure for more bytes within a unit. */
	for (unsigned shift = 0; shift < 64; shift++)
		for (int64_t near = -600; near <= 600; near++)
			assert_true(strlen(str_size((1ull << shift) + (uint64_t)near, out)) <= 8);
}

static void test_utf8(void **state)
{
	static const struct {
		const char *s;
		size_t len;
	} rows[] = {
		{"a", 1},
		{"\x7f", 1},
		{"\xc2\x80", 2},
		{"\xdf\xbf", 2},
		{"\xe0\xa0\x80", 3},
		{"\xed\x9f\xbf", 3},
		{"\xee\x80\x80", 3},
		{"\xef\xbf\xbf", 3},
		{"\xf0\x90\x80\x80", 4},
		{"\xf4\x8f\xbf\xbf", 4},
		/* continuation, overlong, surrogates, above U+10FFFF, cut, wrong second byte */
		{"\x80", 0},
		{"\xbf", 0},
		{"\xc0\x80", 0},
		{"\xc1\xbf", 0},
		{"\xe0\x9f\xbf", 0},
		{"\xf0\x8f\xbf\xbf", 0},
		{"\xed\xa0\x80", 0},
		{"\xed\xbf\xbf", 0},
		{"\xf4\x90\x80\x80", 0},
		{"\xf5\x80\x80\x80", 0},
		{"\xff", 0},
		{"\xfe", 0},
		{"\xc2", 0},
		{"\xe2\x82", 0},
		{"\xf0\x9f\x98", 0},
		{"\xc2\x41", 0},
		{"\xe2\x82\x41", 0},
		{"\xf0\x9f\x98\xc0", 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		size_t len = strlen(rows[i].s);
		assert_int_equal(str_utf8_len(rows[i].s, len), rows[i].len);
		assert_int_equal(str_is_utf8(rows[i].s, len), rows[i].len != 0);
	}
	assert_int_equal(str_utf8_len("", 0), 0);
	assert_int_equal(str_utf8_len("\0", 1), 1);
	assert_int_equal(str_utf8_len("\xe2\x82\xac", 2), 0);
	assert_true(str_is_utf8("", 0));
	assert_true(str_is_utf8("a\0\xc3\xa9", 4));
	assert_false(str_is_utf8("a\xc3", 2));
}

static void test_shell_quote(void **state)
{
	static const struct {
		const char *s, *want;
	} rows[] = {
		{"", "''"},
		{"train.py", "train.py"},
		{"a/b_c-d.e,f:g@h%i+j", "a/b_c-d.e,f:g@h%i+j"},
		{"--lr=0.1", "--lr=0.1"},
		{"a b", "'a b'"},
		{"it's", "'it'\\''s'"},
		{"'", "''\\'''"},
		{"$HOME", "'$HOME'"},
		{"~", "'~'"},
		{"a\nb", "'a\nb'"},
		{"*", "'*'"},
		{"a;b", "'a;b'"},
		{"\\", "'\\'"},
		{"!", "'!'"},
		{"#", "'#'"},
		{"é", "'é'"},
		{"lr=1", "'lr=1'"},
		{"=ls", "'=ls'"},
		{"while", "'while'"},
		{"whiles", "whiles"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_BUF struct buf out;
		buf_init(&out, 100);
		str_shell_quote(&out, rows[i].s);
		assert_string_equal(out.data, rows[i].want);
	}
}

static void test_shell_join(void **state)
{
	char *const words[] = {"python", "train.py", "lr=0.1", "for", "", "a b", NULL};
	char *const assignment[] = {"A=1", "B=2", NULL};
	char *const none[] = {NULL};
	AUTO_BUF struct buf out;

	buf_init(&out, 100);
	str_shell_join(&out, words);
	assert_string_equal(out.data, "python train.py lr=0.1 for '' 'a b'");
	buf_reset(&out);
	str_shell_join(&out, assignment);
	assert_string_equal(out.data, "'A=1' B=2");
	buf_reset(&out);
	str_shell_join(&out, none);
	assert_string_equal(out.data, "");
}

static void test_escape(void **state)
{
	static const struct {
		const char *s, *want;
	} rows[] = {
		{"", ""},
		{"plain text", "plain text"},
		{"grüße 日本 👩‍🔬", "grüße 日本 👩‍🔬"},
		{"a\nb\tc\\d", "a\\nb\\tc\\\\d"},
		{"\r\x1b[31m\x7f", "\\x0d\\x1b[31m\\x7f"},
		{"\xff\xc3", "\\xff\\xc3"},
		{"\xc2\x9b", "\\xc2\\x9b"},
		{"a\u202e\u200bb", "a\\xe2\\x80\\xae\\xe2\\x80\\x8bb"},
		{"\xed\xa0\x80", "\\xed\\xa0\\x80"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *s = str_escaped(rows[i].s);
		assert_string_equal(s, rows[i].want);
	}
	AUTO_BUF struct buf out;
	buf_init(&out, 100);
	str_escape(&out, "a\0b", 3);
	assert_string_equal(out.data, "a\\x00b");
}

static void test_shown_is_bounded(void **state)
{
	char longer[200];

	for (size_t shift = 0; shift < 4; shift++) {
		memset(longer, 'a', shift);
		for (size_t i = shift; i + 4 < sizeof(longer); i += 4)
			memcpy(longer + i, "\xf0\x9f\x98\x80", 5);
		AUTO_FREE char *s = str_shown(longer);
		assert_true(strlen(s) <= 64 + strlen("…"));
		assert_true(str_ends(s, "\xf0\x9f\x98\x80…"));
		assert_true(str_is_utf8(s, strlen(s)));
	}
	memset(longer, '\xff', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	AUTO_FREE char *bad = str_shown(longer);
	assert_int_equal(strlen(bad), 64 * 4 + strlen("…"));
	longer[64] = '\0';
	memset(longer, 'x', 64);
	AUTO_FREE char *exact = str_shown(longer);
	assert_string_equal(exact, longer);
	AUTO_FREE char *none = str_shown("");
	assert_string_equal(none, "");
}

static void test_distance(void **state)
{
	char a[300], b[300];

	assert_int_equal(str_distance("", ""), 0);
	assert_int_equal(str_distance("abc", ""), 3);
	assert_int_equal(str_distance("", "abc"), 3);
	assert_int_equal(str_distance("kitten", "sitting"), 3);
	assert_int_equal(str_distance("submit", "sumbit"), 1);
	assert_int_equal(str_distance("ab", "ba"), 1);
	assert_int_equal(str_distance("ca", "abc"), 3);
	memset(a, 'a', sizeof(a));
	memset(b, 'b', sizeof(b));
	a[255] = b[255] = '\0';
	assert_int_equal(str_distance(a, b), 255);
	assert_int_equal(str_distance(a, ""), 255);
	a[255] = 'a';
	a[256] = '\0';
	assert_int_equal(str_distance(a, a + 1), 255);
	assert_int_equal(str_distance(a, a), 0);
}

static void test_suggest(void **state)
{
	static const char *const commands[] = {"cancel", "checkout", "config", "diff", "explain",
		"forward", "gc", "logs", "ps", "restart", "show", "submit", "wait", "why"};
	static const struct {
		const char *word, *want;
	} rows[] = {
		{"sumbit", "submit"},
		{"sub", "submit"},
		{"log", "logs"},
		{"lgos", "logs"},
		{"submit", "submit"},
		{"c", NULL},
		{"conifg", "config"},
		{"ch", "checkout"},
		{"w", NULL},
		{"pz", "ps"},
		{"x", NULL},
		{"", NULL},
		{"kubectl", NULL},
		{"forwrad", "forward"},
		{"SHOW", NULL},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *got = str_suggest(rows[i].word, commands, ARRAY_LEN(commands));
		if (rows[i].want)
			assert_string_equal(got, rows[i].want);
		else
			assert_null(got);
	}
	assert_null(str_suggest("submit", NULL, 0));
	char longer[1000];
	memset(longer, 's', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	assert_null(str_suggest(longer, commands, ARRAY_LEN(commands)));
}

static void test_suggest_needs_more_likeness_for_longer_words(void **state)
{
	static const char *const names[] = {"abcdefghijklmnop"};

	assert_non_null(str_suggest("xyzdefghijklmnop", names, 1));
	assert_null(str_suggest("xyzwefghijklmnop", names, 1));
	static const char *const tie[] = {"train", "brain"};
	assert_string_equal(str_suggest("grain", tie, 2), "train");
}

static void test_columns(void **state)
{
	static const struct {
		const char *s;
		size_t want;
	} rows[] = {
		{"", 0},
		{"abc", 3},
		{"grüße", 5},
		{"e\u0301", 1},
		{"日本語", 6},
		{"한국어", 6},
		{"ｆｕｌｌ", 8},
		{"😀", 2},
		{"🇩🇪", 2},
		{"✓…→", 3},
		{"a\u200bb", 2},
		{"\t\n\x1b", 0},
		{"\xff\xff", 2},
		{"\u20ac", 1},
		{"\U0010ffff", 1},
		{"\U000e0100", 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_int_equal(str_columns(rows[i].s), rows[i].want);
}

static void test_is_plain(void **state)
{
	assert_true(str_is_plain(""));
	assert_true(str_is_plain("loss/train 1 \xc3\xa4"));
	assert_false(str_is_plain("a\nb"));
	assert_false(str_is_plain("a\033[31m"));
	assert_false(str_is_plain("a\xc2\x9b"));
	assert_false(str_is_plain("a\xff"));
	assert_false(str_is_plain("a\xe2\x80\xae"));
}

static void test_csv_quote(void **state)
{
	static const struct {
		const char *s, *want;
	} rows[] = {
		{"", ""},
		{"plain text", "plain text"},
		{"a,b", "\"a,b\""},
		{"say \"x\"", "\"say \"\"x\"\"\""},
		{"two\nlines", "\"two\nlines\""},
		{"\r", "\"\r\""},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_BUF struct buf out;

		buf_init(&out, 100);
		str_csv_quote(&out, rows[i].s);
		assert_string_equal(out.len ? out.data : "", rows[i].want);
	}
}

static void test_fit(void **state UNUSED)
{
	assert_int_equal(str_fit("", 0), 0);
	assert_int_equal(str_fit("abc", 9), 3);
	assert_int_equal(str_fit("abc", 2), 2);
	/* Of 1, 2, 3 and 4 bytes. */
	assert_int_equal(str_fit("a\xc3\xa4", 2), 1);
	assert_int_equal(str_fit("a\xe2\x82\xac"
				 "b",
				 3),
		1);
	assert_int_equal(str_fit("a\xe2\x82\xac"
				 "b",
				 4),
		4);
	assert_int_equal(str_fit("\xf0\x9f\x98\x80", 3), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_csv_quote),
		cmocka_unit_test(test_is_plain),
		cmocka_unit_test(test_starts_and_ends),
		cmocka_unit_test(test_to_int),
		cmocka_unit_test(test_to_int_says_why),
		cmocka_unit_test(test_to_size),
		cmocka_unit_test(test_size),
		cmocka_unit_test(test_utf8),
		cmocka_unit_test(test_shell_quote),
		cmocka_unit_test(test_shell_join),
		cmocka_unit_test(test_escape),
		cmocka_unit_test(test_shown_is_bounded),
		cmocka_unit_test(test_distance),
		cmocka_unit_test(test_suggest),
		cmocka_unit_test(test_suggest_needs_more_likeness_for_longer_words),
		cmocka_unit_test(test_columns),
		cmocka_unit_test(test_fit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

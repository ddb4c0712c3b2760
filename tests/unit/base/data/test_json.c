/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "tests/unit/effort.h"

enum { SIZE_ENOUGH = 64 << 20 };

static struct json *parse(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct json *json = NULL;

	if (json_parse(text, strlen(text), JSON_SIZE_MAX, "it", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

static char *print(const struct json *json)
{
	AUTO_BUF struct buf out;

	buf_init(&out, SIZE_ENOUGH);
	json_print(json, &out);
	assert_false(out.full);
	return buf_take(&out);
}

static void check_print(const struct json *json, const char *want)
{
	AUTO_FREE char *text = print(json);

	assert_string_equal(text, want);
}

static void check_same(const char *text)
{
	AUTO_JSON struct json *json = parse(text);

	check_print(json, text);
}

static void check_refused_bytes(const char *text, size_t len, enum err_id id, const char *message)
{
	AUTO_ERR struct err err = {0};
	struct json *json = (struct json *)"untouched";

	int r = json_parse(text, len, JSON_SIZE_MAX, "it", &json, &err);
	if (r == 0)
		fail_msg("accepted: %s", text);
	assert_int_equal(err.id, id);
	assert_int_equal(r, -(int)err.code);
	assert_string_equal(err.message, message);
	assert_string_equal((const char *)json, "untouched");
}

static void test_kinds(void **state)
{
	AUTO_JSON struct json *json =
		parse(" { \"n\" : null , \"t\":true,\"f\":false,\t\"i\":-12,\n\"d\":2.5,"
		      "\r\"s\":\"x\",\"a\":[1,2],\"o\":{\"k\":\"v\"} } ");
	static const enum json_kind kinds[] = {JSON_NULL, JSON_BOOL, JSON_BOOL, JSON_NUMBER,
		JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT};
	size_t n = 0;

	assert_int_equal(json_kind(json), JSON_OBJECT);
	for (const struct json *m = json_first(json); m; m = json_next(m))
		assert_int_equal(json_kind(m), kinds[n++]);
	assert_int_equal(n, 8);
	assert_int_equal(json_count(json), 8);
	assert_string_equal(json_key(json_first(json)), "n");
	assert_true(json_get_bool(json, "t", false));
	assert_false(json_get_bool(json, "f", true));
	assert_int_equal(json_get_int(json, "i", 0), -12);
	assert_true(json_get_num(json, "d", 0) == 2.5);
	assert_string_equal(json_get_str(json, "s"), "x");
	assert_int_equal(json_int(json_next(json_first(json_get(json, "a"))), 0), 2);
	assert_string_equal(json_get_str(json_get(json, "o"), "k"), "v");
}

static void test_lenient(void **state)
{
	AUTO_JSON struct json *json = parse("{\"s\":\"x\",\"i\":1,\"d\":1.5,\"K\":2,\"n\":null}");

	assert_null(json_get(NULL, "s"));
	assert_null(json_get_str(NULL, "s"));
	assert_null(json_get(json, "missing"));
	assert_null(json_get_str(json, "i"));
	assert_null(json_get_str(json, "n"));
	assert_int_equal(json_get_int(json, "s", 7), 7);
	assert_int_equal(json_get_int(json, "d", 7), 7);
	assert_int_equal(json_get_int(json, "k", 7), 7);
	assert_int_equal(json_get_int(json, "K", 7), 2);
	assert_true(json_get_num(json, "s", 0.5) == 0.5);
	assert_true(json_get_bool(json, "i", true));
	assert_null(json_get(json_get(json, "s"), "s"));
	assert_null(json_str(NULL));
	assert_int_equal(json_int(NULL, 3), 3);
	assert_null(json_first(NULL));
	assert_null(json_next(NULL));
	assert_null(json_key(NULL));
	assert_int_equal(json_count(NULL), 0);
	assert_int_equal(json_count(json_get(json, "s")), 0);
	assert_int_equal(json_kind(NULL), JSON_NULL);
	json_free(NULL);
}

static void test_accepted(void **state)
{
	static const char *const texts[] = {
		"null",
		"true",
		"false",
		"\"\"",
		"0",
		"-0",
		"[]",
		"{}",
		"[[],{}]",
		"{\"\":0}",
		"{\"a\":{\"a\":1},\"b\":{\"a\":1}}",
		"\"\x7f\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf\"",
		"\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\"",
		"[0.1,-2.5,1e+20,1e-07,1.7976931348623157e+308,4.94065645841247e-324]",
		"[9007199254740993,-9223372036854775808,18446744073709551616,1e999,-1E-999]",
		"[123456789012345,1234567890123456]",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		check_same(texts[i]);
}

static void test_normalised(void **state)
{
	static const char *const pairs[][2] = {
		{" \t\r\n[ 1 , 2 ] \n", "[1,2]"},
		{"\"\\u00e9\\u20ac\\ud83d\\ude00\\/\"",
			"\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\""},
		{"[1.0,1e2,1E+2,100e-2,1e15,-0.0]", "[1,100,100,1,1000000000000000,-0]"},
		{"[0.10,1e17,0.1234567890123456789]", "[0.1,1e+17,0.12345678901234568]"},
		{"[0e999,0.000e-999]", "[0,0]"},
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		AUTO_JSON struct json *json = parse(pairs[i][0]);
		check_print(json, pairs[i][1]);
	}
}

static const char *const refused[][2] = {
	{"", "no value (line 1, column 1)"},
	{" \n ", "no value (line 2, column 2)"},
	{"nul", "no value (line 1, column 1)"},
	{"True", "no value (line 1, column 1)"},
	{"NaN", "no value (line 1, column 1)"},
	{"-Infinity", "a number without digits (line 1, column 2)"},
	{"\xef\xbb\xbf{}", "no value (line 1, column 1)"},
	{"[1,]", "no value (line 1, column 4)"},
	{"[,1]", "no value (line 1, column 2)"},
	{"[1 2]", "neither , nor ] behind a value (line 1, column 4)"},
	{"[1}", "neither , nor ] behind a value (line 1, column 3)"},
	{"[", "no value (line 1, column 2)"},
	{"[1", "neither , nor ] behind a value (line 1, column 3)"},
	{"{\"a\":1,}", "no key in quotes (line 1, column 8)"},
	{"{a:1}", "no key in quotes (line 1, column 2)"},
	{"{'a':1}", "no key in quotes (line 1, column 2)"},
	{"{\"a\"}", "no : behind a key (line 1, column 5)"},
	{"{\"a\":}", "no value (line 1, column 6)"},
	{"{\"a\":1", "neither , nor } behind a value (line 1, column 7)"},
	{"{", "no key in quotes (line 1, column 2)"},
	{"[1] x", "more text behind the value (line 1, column 5)"},
	{"{}{}", "more text behind the value (line 1, column 3)"},
	{"1 // no", "more text behind the value (line 1, column 3)"},
	{"truex", "more text behind the value (line 1, column 5)"},
	{"0123", "a number with a leading zero (line 1, column 5)"},
	{"-01", "a number with a leading zero (line 1, column 4)"},
	{"+1", "no value (line 1, column 1)"},
	{".5", "no value (line 1, column 1)"},
	{"1.", "a number without digits behind its point (line 1, column 3)"},
	{"1.e1", "a number without digits behind its point (line 1, column 3)"},
	{"1e", "a number without digits in its exponent (line 1, column 3)"},
	{"1e+", "a number without digits in its exponent (line 1, column 4)"},
	{"-", "a number without digits (line 1, column 2)"},
	{"0x10", "more text behind the value (line 1, column 2)"},
	{"1_000", "more text behind the value (line 1, column 2)"},
	{"\"a", "a string without its end (line 1, column 3)"},
	{"\"a\\", "a string without its end (line 1, column 4)"},
	{"\"a\nb\"", "a control character in a string (line 1, column 3)"},
	{"\"\t\"", "a control character in a string (line 1, column 2)"},
	{"\"\\x41\"", "an unknown escape in a string (line 1, column 3)"},
	{"\"\\'\"", "an unknown escape in a string (line 1, column 3)"},
	{"\"\\u12g4\"", "\\u without four hex digits (line 1, column 6)"},
	{"\"\\u", "\\u without four hex digits (line 1, column 4)"},
	{"\"\\u0000\"", "a NUL character in a string (line 1, column 8)"},
	{"{\"a\\u0000\":1}", "a NUL character in a string (line 1, column 10)"},
	{"\"\\ud800\"", "half of a surrogate pair (line 1, column 8)"},
	{"\"\\udc00\\ud800\"", "half of a surrogate pair (line 1, column 8)"},
	{"\"\\ud800\\u0041\"", "half of a surrogate pair (line 1, column 14)"},
	{"\"\\ud800\\n\"", "half of a surrogate pair (line 1, column 9)"},
	{"\"\xff\"", "bytes that are not UTF-8 (line 1, column 2)"},
	{"\"\xc0\x80\"", "bytes that are not UTF-8 (line 1, column 2)"},
	{"\"\xed\xa0\x80\"", "bytes that are not UTF-8 (line 1, column 2)"},
	{"\"\xf4\x90\x80\x80\"", "bytes that are not UTF-8 (line 1, column 2)"},
	{"\"\xe2\x82\"", "bytes that are not UTF-8 (line 1, column 2)"},
	{"\"\xe2", "bytes that are not UTF-8 (line 1, column 2)"},
	{"{\"\xff\":1}", "bytes that are not UTF-8 (line 1, column 3)"},
	{"{\n  \"a\": 1,\n  \"b\": x\n}", "no value (line 3, column 8)"},
};

static void test_refused(void **state)
{
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		AUTO_FREE char *message = mem_printf("it is not valid JSON: %s", refused[i][1]);
		check_refused_bytes(refused[i][0], strlen(refused[i][0]), E_DATA, message);
	}
}

static void test_raw_nul(void **state)
{
	check_refused_bytes("{}\0", 3, E_DATA,
		"it is not valid JSON: more text behind the value (line 1, column 3)");
	check_refused_bytes("\"a\0b\"", 5, E_DATA,
		"it is not valid JSON: a control character in a string (line 1, column 3)");
	check_refused_bytes("\"\\\0\"", 4, E_DATA,
		"it is not valid JSON: an unknown escape in a string (line 1, column 3)");
}

/* The text may end anywhere, also where no NUL follows. */
static void test_every_prefix(void **state)
{
	static const char text[] =
		"{\"a\":[1.5e+3,true,false,null,\"\\ud83d\\ude00\\n\xe2\x82\xac\"]}";

	for (size_t len = 0; len < strlen(text); len++) {
		AUTO_FREE char *copy = mem_dup(text, len);
		struct json *json;
		assert_int_equal(json_parse(copy, len, 1000, "it", &json, NULL), -ERR_IO);
	}
	AUTO_FREE char *copy = mem_dup(text, strlen(text));
	AUTO_JSON struct json *json = NULL;
	assert_int_equal(json_parse(copy, strlen(text), 1000, "it", &json, NULL), 0);
}

static void test_duplicate_keys(void **state)
{
	check_refused_bytes("{\"a\":1,\"b\":2,\"a\":3}", 19, E_DATA, "it has the key \"a\" twice");
	check_refused_bytes(
		"[{\"x\":{\"a\":1,\"\\u0061\":2}}]", 26, E_DATA, "it has the key \"a\" twice");
	check_refused_bytes("{\"a\\n\":1,\"a\\n\":2}", 17, E_DATA, "it has the key \"a\\n\" twice");
	check_same("{\"a\":1,\"A\":2}");
	/* Of a long one only the beginning is shown, in whole characters. */
	AUTO_FREE char *key = mem_printf("%063d\xc3\xa9%0100d", 0, 0);
	AUTO_FREE char *text = mem_printf("{\"%s\":1,\"%s\":2}", key, key);
	AUTO_FREE char *message = mem_printf("it has the key \"%063d…\" twice", 0);
	check_refused_bytes(text, strlen(text), E_DATA, message);
}

static char *repeat(const char *open, size_t n, const char *close)
{
	AUTO_BUF struct buf text;

	buf_init(&text, SIZE_ENOUGH);
	for (size_t i = 0; i < n; i++)
		buf_adds(&text, open);
	for (size_t i = 0; i < n; i++)
		buf_adds(&text, close);
	return buf_take(&text);
}

static void test_depth(void **state)
{
	AUTO_FREE char *fits = repeat("[", JSON_DEPTH_MAX, "]");
	AUTO_FREE char *deep = repeat("[", JSON_DEPTH_MAX + 1, "]");
	AUTO_FREE char *huge = repeat("[", 4 << 20, "");
	AUTO_FREE char *objects = repeat("{\"a\":", 100000, "");

	check_same(fits);
	check_refused_bytes(
		deep, strlen(deep), E_DATA_LIMIT, "it has more than 64 levels (line 1, column 65)");
	check_refused_bytes(
		huge, strlen(huge), E_DATA_LIMIT, "it has more than 64 levels (line 1, column 65)");
	check_refused_bytes(objects, strlen(objects), E_DATA_LIMIT,
		"it has more than 64 levels (line 1, column 321)");
}

static void test_ceilings(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_FREE char *many = repeat(",1", JSON_VALUES_MAX, "");
	AUTO_FREE char *digits = repeat("7", 64, "");

	assert_int_equal(json_parse("[1,2]", 5, 4, "the list", &json, &err), -ERR_LIMIT);
	assert_int_equal(err.id, E_DATA_LIMIT);
	assert_string_equal(err.message, "the list is larger than 4 B");
	assert_int_equal(json_parse("[1,2]", 5, 5, "the list", &json, NULL), 0);
	many[0] = '[';
	check_refused_bytes(many, strlen(many), E_DATA_LIMIT,
		"it has more than 1000000 values (line 1, column 2000000)");
	check_refused_bytes(digits, 64, E_DATA_LIMIT,
		"it has a number of more than 63 characters (line 1, column 65)");
	digits[63] = '\0';
	check_same(digits);
}

static void test_many_keys_are_fast(void **state)
{
	enum { N = 100000 };
	AUTO_BUF struct buf text;
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	buf_init(&text, SIZE_ENOUGH);
	for (int i = 0; i < N; i++)
		buf_addf(&text, "%c\"some/prefix/of/it/%d\":%d", i ? ',' : '{', i, i);
	buf_addc(&text, '}');
	int64_t start_ms = effort_ms();
	assert_int_equal(json_parse(text.data, text.len, JSON_SIZE_MAX, "it", &json, &err), 0);
	assert_int_equal(json_count(json), N);
	AUTO_FREE char *printed = print(json);
	assert_string_equal(printed, text.data);
	/* A pairwise comparison takes half a minute. */
	assert_in_range(effort_ms() - start_ms, 0, 4000);

	buf_truncate(&text, text.len - 1);
	buf_adds(&text, ",\"some/prefix/of/it/50000\":1}");
	check_refused_bytes(
		text.data, text.len, E_DATA, "it has the key \"some/prefix/of/it/50000\" twice");
}

static void test_integers_are_exact(void **state)
{
	static const int64_t values[] = {0, 1, -1, 999999999999999, 1000000000000000,
		9007199254740991, 9007199254740992, 9007199254740993, -9007199254740993, INT64_MAX,
		INT64_MAX - 1, INT64_MIN, INT64_MIN + 1, 1234567890123456789};

	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
		AUTO_JSON struct json *made = json_object();
		json_set_int(made, "v", values[i]);
		assert_int_equal(json_kind(json_get(made, "v")), JSON_NUMBER);
		assert_true(json_get_int(made, "v", 5) == values[i]);
		AUTO_FREE char *want = mem_printf("{\"v\":%lld}", (long long)values[i]);
		check_print(made, want);
		AUTO_JSON struct json *read = parse(want);
		assert_true(json_get_int(read, "v", 5) == values[i]);
		assert_true(json_get_num(read, "v", 5) == (double)values[i]);
		check_print(read, want);
		AUTO_JSON struct json *clone = json_clone(read);
		assert_true(json_get_int(clone, "v", 5) == values[i]);
	}
}

/* The texts that are kept are found by counting numbers: others stand before and between. */
static void test_exact_numbers_among_others(void **state)
{
	check_same("{\"a\":[1,2.5,9007199254740993],\"9007199254740995\":9007199254740997,"
		   "\"s\":\"9007199254740999 1\",\"b\":3,\"c\":{\"d\":-9007199254741001,\"e\":4}}");
}

static void test_integers_out_of_range(void **state)
{
	AUTO_JSON struct json *json =
		parse("[9223372036854775808,-9223372036854775809,1e300,1e999,0.5,1e18,-1e3]");
	static const int64_t want[] = {7, 7, 7, 7, 7, 1000000000000000000, -1000};
	size_t i = 0;

	for (const struct json *m = json_first(json); m; m = json_next(m))
		assert_true(json_int(m, 7) == want[i++]);
	AUTO_JSON struct json *object = parse("{\"big\":1e999,\"small\":-1e-999}");
	assert_true(isinf(json_get_num(object, "big", 0)));
	assert_true(json_get_num(object, "small", 1) == 0);
	assert_int_equal(json_kind(json_get(object, "big")), JSON_NUMBER);
}

static void check_num(double value, const char *want)
{
	AUTO_JSON struct json *json = json_object();

	json_set_num(json, "v", value);
	AUTO_FREE char *text = mem_printf("{\"v\":%s}", want);
	check_print(json, text);
}

static void test_doubles(void **state)
{
	check_num(0.1, "0.1");
	check_num(0.1 + 0.2, "0.30000000000000004");
	check_num(1.0 / 3, "0.3333333333333333");
	check_num(3, "3");
	check_num(-2.5e-8, "-2.5e-08");
	check_num(1e15, "1000000000000000");
	check_num(9007199254740992.0, "9007199254740992");
	check_num(9007199254740994.0, "9007199254740994");
	check_num(1e22, "1e+22");
	check_num(NAN, "null");
	check_num(INFINITY, "null");
	check_num(-INFINITY, "null");
}

static void test_make(void **state)
{
	AUTO_JSON struct json *json = json_object();
	struct json *list = json_array();

	json_set_str(json, "s", "a\"b\\c\n");
	json_set_str(json, "none", NULL);
	json_set_int(json, "i", 3);
	json_set_bool(json, "t", true);
	json_set_bool(json, "f", false);
	json_set(json, "n", json_null());
	json_add_str(list, "x");
	json_add_str(list, NULL);
	AUTO_STRV struct strv words = {0};
	strv_add(&words, "p");
	strv_add(&words, "q");
	json_add_strv(list, &words);
	json_add(list, json_object());
	json_set(json, "list", list);
	json_set_str(json_sub(json_sub(json, "a"), "b"), "c", "d");
	json_set_int(json_sub(json_sub(json, "a"), "b"), "e", 1);
	check_print(json, "{\"s\":\"a\\\"b\\\\c\\n\",\"none\":null,\"i\":3,\"t\":true,\"f\":false,"
			  "\"n\":null,\"list\":[\"x\",null,\"p\",\"q\",{}],"
			  "\"a\":{\"b\":{\"c\":\"d\",\"e\":1}}}");
}

static void test_replace_and_remove(void **state)
{
	AUTO_JSON struct json *json = parse("{\"a\":1,\"b\":2,\"c\":3}");

	json_set_str(json, "b", "new");
	check_print(json, "{\"a\":1,\"b\":\"new\",\"c\":3}");
	json_set_int(json, "a", 9);
	json_set_int(json, "c", 9007199254740993);
	check_print(json, "{\"a\":9,\"b\":\"new\",\"c\":9007199254740993}");
	json_remove(json, "missing");
	json_remove(json, "c");
	json_set_int(json, "d", 4);
	check_print(json, "{\"a\":9,\"b\":\"new\",\"d\":4}");
	json_remove(json, "a");
	json_remove(json, "b");
	json_remove(json, "d");
	check_print(json, "{}");
	json_set_int(json, "x", 1);
	json_sub(json, "x");
	check_print(json, "{\"x\":{}}");
}

static void test_clone(void **state)
{
	AUTO_JSON struct json *json = parse("{\"a\":[1,{\"b\":\"x\"}]}");
	AUTO_JSON struct json *list = json_array();

	json_add(list, json_clone(json_get(json, "a")));
	json_free(TAKE(json));
	check_print(list, "[[1,{\"b\":\"x\"}]]");
	assert_null(json_key(json_first(list)));
}

static void test_bytes(void **state)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_JSON struct json *list = json_array();

	json_set_bytes(json, "ok", "caf\xc3\xa9!", 5);
	json_set_bytes(json, "bad", "a\xff\xfe z", 5);
	json_set_bytes(json, "nul", "a\0b", 3);
	json_set_str(json, "cut", "x\xe2\x82");
	json_set_int(json, "k\xff", 1);
	check_print(json, "{\"ok\":\"caf\xc3\xa9\","
			  "\"bad\":\"a\xef\xbf\xbd\xef\xbf\xbd z\",\"bad_b64\":\"Yf/+IHo=\","
			  "\"nul\":\"a\xef\xbf\xbd"
			  "b\",\"nul_b64\":\"YQBi\","
			  "\"cut\":\"x\xef\xbf\xbd\xef\xbf\xbd\",\"cut_b64\":\"eOKC\","
			  "\"k\xef\xbf\xbd\":1}");
	json_add_str(list, "\x80");
	check_print(list, "[\"\xef\xbf\xbd\"]");
}

static void test_pretty(void **state)
{
	AUTO_JSON struct json *json = parse("{\"a\":[1,[],{}],\"b\":{\"c\":null}}");
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	json_print_pretty(json, &out);
	assert_string_equal(out.data, "{\n  \"a\": [\n    1,\n    [],\n    {}\n  ],\n"
				      "  \"b\": {\n    \"c\": null\n  }\n}");
}

static void test_print_limit(void **state)
{
	AUTO_JSON struct json *json = parse("[\"0123456789\"]");
	AUTO_BUF struct buf out;

	buf_init(&out, 8);
	json_print(json, &out);
	assert_true(out.full);
}

static void test_template(void **state)
{
	const char *none = NULL;
	AUTO_JSON struct json *json = json_make(
		"{'a': %s, %s: [1, %d, %lld, -2, %s, %s], 'out': %s, "
		"'b': {'yes': true, 'no': false, 'empty': []}, 'out': %p, 'c': %p}",
		"it's \"x\"", "k", 3, 1LL << 60, "one", none, none, NULL, (void *)json_array());
	AUTO_JSON struct json *list = json_make("[{}, 'a']");

	check_print(json, "{\"a\":\"it's \\\"x\\\"\",\"k\":[1,3,1152921504606846976,-2,\"one\"],"
			  "\"b\":{\"yes\":true,\"no\":false,\"empty\":[]},\"c\":[]}");
	check_print(list, "[{},\"a\"]");
}

/* It is printed, cloned and freed once for each place. */
static void test_an_array_in_two_places(void **state UNUSED)
{
	AUTO_JSON struct json *tree = json_object();
	AUTO_BUF struct buf text = buf_with(1000);
	struct json *list = json_array();

	json_add_str(list, "a");
	json_add(list, json_object());
	json_set(tree, "one", list);
	json_set(tree, "two", json_same_array(list));
	AUTO_JSON struct json *clone = json_clone(tree);
	json_print(clone, &text);
	assert_string_equal(text.data, "{\"one\":[\"a\",{}],\"two\":[\"a\",{}]}");
	assert_int_equal(json_count(json_get(tree, "two")), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_array_in_two_places),
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_lenient),
		cmocka_unit_test(test_accepted),
		cmocka_unit_test(test_normalised),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_raw_nul),
		cmocka_unit_test(test_every_prefix),
		cmocka_unit_test(test_duplicate_keys),
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_ceilings),
		cmocka_unit_test(test_many_keys_are_fast),
		cmocka_unit_test(test_integers_are_exact),
		cmocka_unit_test(test_exact_numbers_among_others),
		cmocka_unit_test(test_integers_out_of_range),
		cmocka_unit_test(test_doubles),
		cmocka_unit_test(test_make),
		cmocka_unit_test(test_replace_and_remove),
		cmocka_unit_test(test_clone),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_pretty),
		cmocka_unit_test(test_print_limit),
		cmocka_unit_test(test_template),
	};

	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}

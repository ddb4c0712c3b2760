/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes.h"

static int read_text(const char *text, struct cases *ret, struct err *err)
{
	return cases_read(text, strlen(text), "cases.csv", ret, err);
}

static void test_files(void **state)
{
	static const struct {
		const char *text, *keys, *values;
	} files[] = {
		{"lr,seed\n0.1,1\n0.03,2\n", "lr|seed", "0.1|1|0.03|2"},
		{"lr,seed\r\n0.1,1\r\n\r\n0.03,2", "lr|seed", "0.1|1|0.03|2"},
		{"\xef\xbb\xbf\n  \n\"lr\", seed \n 0.1 ,\"a,b\"\n\"say \"\"x\"\"\", \"\" \n",
			"lr|seed", "0.1|a,b|say \"x\"|"},
		{"a\n1..5\nit\"s\n[1 2]\nx y\n1\n1\n", "a", "1..5|it\"s|[1 2]|x y|1|1"},
		{"a,b\nx,\xc3\xa4\n", "a|b", "x|\xc3\xa4"},
		{"a\n1\r", "a", "1"},
		{"{\"lr\":1e-4,\"opt\":\"adam\"}\n{\"opt\":\"sgd\",\"lr\":0.10}\n", "lr|opt",
			"1e-4|adam|0.10|sgd"},
		{"\xef\xbb\xbf\n {\"a\" : -1.50E+3 , \"b\":true}\r\n\r\n{\"b\":null,\"a\":\"\"}",
			"a|b", "-1.50E+3|true||null"},
		{"{\"a\":[1, {\"x\": \"}\\\"]\"}],\"b\":12345678901234567890}", "a|b",
			"[1,{\"x\":\"}\\\"]\"}]|12345678901234567890"},
		{"{\"a\":\"x\\\\\",\"b\":{ } ,\"c\":2}", "a|b|c", "x\\|{}|2"},
	};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_CASES struct cases cases = {0};
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *keys = NULL, *values = NULL;

		if (read_text(files[i].text, &cases, &err) < 0)
			fail_msg("%s: %s", files[i].text, err.message);
		keys = strv_join(&cases.keys, "|");
		values = strv_join(&cases.values, "|");
		assert_string_equal(keys, files[i].keys);
		assert_string_equal(values, files[i].values);
		assert_int_equal(cases.values.n, cases.n * cases.keys.n);
	}
}

static void test_bad_files(void **state)
{
	static const struct {
		const char *text, *message, *hint;
	} bad[] = {
		{"", "cases.csv:1: the file is empty", NULL},
		{"\n \n", "cases.csv:3: the file is empty", NULL},
		{"a,b\n", "cases.csv:2: there are names, but no cases", NULL},
		{"a,,b\n1,2,3\n", "cases.csv:1: a column has no name", NULL},
		{",lr\n0,0.1\n", "cases.csv:1: a column has no name", NULL},
		{"a;b\n1;2\n", "cases.csv:1: \"a;b\" is not a name: a letter", NULL},
		{"0.1,0.2\n", "cases.csv:1: \"0.1\" is not a name", NULL},
		{"a,b,a\n1,2,3\n", "cases.csv:1: the name a stands twice", NULL},
		{"a,study\n1,2\n", "cases.csv:1: {study} has a meaning of its own", NULL},
		{"a,b\n1,2\n\n3\n", "cases.csv:4: 1 values, but 2 names", NULL},
		{"a,b\n1,2,3\n", "cases.csv:2: more values than the 2 names", NULL},
		{"a,b\n1,\n", "cases.csv:2: there is no value for b", "\"\" is an empty one"},
		{"a,b\n,2\n", "cases.csv:2: there is no value for a", "\"\" is an empty one"},
		{"a\n\"x\n", "cases.csv:2: a line ends within quotes", NULL},
		{"a\n\"x", "cases.csv:2: a quote is not closed", NULL},
		{"a\n\"x\"y\n", "cases.csv:2: there is text behind a closing quote", NULL},
		{"a\nx\ty\n", "cases.csv:2: a value is not plain text", NULL},
		{"a\nx\ry\n", "cases.csv:2: a value is not plain text", NULL},
		{"a\n\xff\n", "cases.csv:2: a value is not plain text", NULL},
		{"[{\"a\":1}]", "cases.csv:1: each line must be an object; this is a list",
			"jq -c '.[]' cases.csv"},
		{"{\"a\":1}\n{\"b\":1}\n", "cases.csv:2: the first line does not have the key b",
			NULL},
		{"{\"a\":1,\"b\":2}\n\n{\"b\":1}\n", "cases.csv:3: the key a is missing", NULL},
		{"{\"a\":1}\n[1]\n", "cases.csv:2: each line must be an object with", NULL},
		{"{}\n", "cases.csv:1: each line must be an object with members", NULL},
		{"{\"a b\":1}\n", "cases.csv:1: \"a b\" is not a name", NULL},
		{"{\"args\":1}\n", "cases.csv:1: {args} has a meaning of its own", NULL},
		{"{\"a\":\"x\\ny\"}\n", "cases.csv:1: a value is not plain text", NULL},
		{"{\"a\":1}\n{\"a\":\n", "cases.csv:2 is not valid JSON", NULL},
		{"{\"a\":1,\"a\":2}\n", "cases.csv:1 has the key \"a\" twice", NULL},
		{"{\"a\":01}\n", "cases.csv:1 is not valid JSON", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_CASES struct cases cases = {0};
		AUTO_ERR struct err err = {0};

		if (read_text(bad[i].text, &cases, &err) >= 0)
			fail_msg("%s is accepted", bad[i].text);
		assert_int_equal(err.id, E_DATA);
		if (!str_starts(err.message, bad[i].message))
			fail_msg("%s, not %s", err.message, bad[i].message);
		if (bad[i].hint)
			assert_string_equal(err.hint, bad[i].hint);
		assert_int_equal(cases.n, 0);
		assert_int_equal(cases.keys.n, 0);
	}
}

static void assert_limit(const struct buf *text)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(cases_read(text->data, text->len, "it", &cases, &err), -ERR_LIMIT);
	assert_string_equal(err.message, "it:10002: a study has at most 10000 members");
}

static void test_limits(void **state)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_BUF struct buf csv = {0}, lines = {0};
	AUTO_ERR struct err err = {0};

	buf_init(&csv, 1 << 20);
	buf_init(&lines, 1 << 20);
	buf_adds(&csv, "a\n");
	buf_adds(&lines, "\n");
	for (int i = 0; i < CASES_MAX; i++) {
		buf_addf(&csv, "%d\n", i);
		buf_addf(&lines, "{\"a\":%d}\n", i);
	}
	assert_int_equal(cases_read(csv.data, csv.len, "it", &cases, &err), 0);
	assert_int_equal(cases.n, CASES_MAX);
	assert_string_equal(cases_get(&cases, 9999, 0), "9999");
	cases_done(&cases);
	assert_int_equal(cases_read(lines.data, lines.len, "it", &cases, &err), 0);
	assert_int_equal(cases.n, CASES_MAX);
	buf_adds(&csv, "x\n");
	buf_adds(&lines, "{\"a\":1}\n");
	assert_limit(&csv);
	assert_limit(&lines);
	assert_int_equal(cases_read("[1]", 3, "my\ncases", &cases, &err), -ERR_IO);
	assert_string_equal(
		err.message, "my\\ncases:1: each line must be an object; this is a list");
	assert_int_equal(cases_read("[1]", 3, "my cases", &cases, &err), -ERR_IO);
	assert_string_equal(err.hint, "jq -c '.[]' 'my cases'");
	assert_int_equal(cases_read("a\0b", 3, "it", &cases, &err), -ERR_IO);
	assert_int_equal(cases_read("", CASES_FILE_MAX + 1, "it", &cases, &err), -ERR_LIMIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

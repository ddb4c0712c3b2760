/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "snap/ignore/ignore.h"
#include "tests/unit/effort.h"

#define NO  IGNORE_NO_MATCH
#define YES IGNORE_MATCH
#define NEG IGNORE_NEGATED

struct row {
	const char *rules, *path;
	bool is_dir;
	enum ignore_decision decision;
};

static const struct row rows[] = {
	/* names */
	{"foo\n", "foo", false, YES},
	{"foo\n", "a/b/foo", false, YES},
	{"foo\n", "a/b/foo", true, YES},
	{"foo\n", "foo/bar", false, NO},
	{"foo\n", "xfoo", false, NO},
	{"foo\n", "FOO", false, NO},
	{"foo", "foo", false, YES},
	{"*.o\n", "a/x.o", false, YES},
	{"*.o\n", ".o", false, YES},
	{"*.o\n", "x.oo", false, NO},
	{"*\n", "a/b", false, YES},
	{"f?o\n", "foo", false, YES},
	{"f[!a]o\n", "foo", false, YES},
	{"f[^o]o\n", "foo", false, NO},
	{"[[]a]\n", "[a]", false, YES},
	{"\\[a]\n", "[a]", false, YES},
	{"[a\n", "[a", false, NO},
	/* the last rule decides, directories, negation */
	{"foo\n!foo\n", "foo", false, NEG},
	{"!foo\nfoo\n", "foo", false, YES},
	{"*.o\n!x.o\n*\n!*.a\n", "x.o", false, YES},
	{"*\n!x.o\n", "x.o", false, NEG},
	{"x.o\n!*.o\nx.*\n", "x.o", false, YES},
	{"foo/\n", "foo", false, NO},
	{"foo/\n", "foo", true, YES},
	{"foo\n!foo/\n", "foo", false, YES},
	{"foo\n!foo/\n", "foo", true, NEG},
	{"foo/\n!foo\n", "foo", true, NEG},
	{"a/b/\n", "a/b", true, YES},
	{"a/b/\n", "a/b", false, NO},
	/* paths */
	{"/foo\n", "foo", false, YES},
	{"/foo\n", "a/foo", false, NO},
	{"a/foo\n", "a/foo", false, YES},
	{"a/foo\n", "b/a/foo", false, NO},
	{"a/*\n", "a/foo", false, YES},
	{"a/*\n", "a/b/foo", false, NO},
	{"a/**\n", "a/b/foo", false, YES},
	{"a/**\n", "a", true, NO},
	{"**/foo\n", "foo", false, YES},
	{"**/foo\n", "a/b/foo", false, YES},
	{"**/a/foo\n", "x/a/foo", false, YES},
	{"a/**/b\n", "a/b", false, YES},
	{"a/**/b\n", "a/x/y/b", false, YES},
	{"a/**/b\n", "ab", false, NO},
	/* what git cuts off before the first wildcard makes these stars a component of their own */
	{"a**/b\n", "ax/y/b", false, YES},
	{"a**/b\n", "ab", false, YES},
	{"*a**/b\n", "xay/b", false, YES},
	{"*a**/b\n", "xay/z/b", false, NO},
	{"//foo\n", "foo", false, NO},
	{"foo//\n", "foo", true, NO},
	/* blanks, comments, escapes, line ends */
	{"foo \n", "foo", false, YES},
	{"foo   \n", "foo ", false, NO},
	{"foo\\ \n", "foo ", false, YES},
	{"foo\\  \n", "foo ", false, YES},
	{"foo \\ \n", "foo  ", false, YES},
	{"foo\\\n", "foo", false, NO},
	{"foo\\\n", "foo\\", false, NO},
	{"foo\t\n", "foo", false, NO},
	{"foo\t\n", "foo\t", false, YES},
	{" foo\n", "foo", false, NO},
	{" foo\n", " foo", false, YES},
	{"#foo\n", "#foo", false, NO},
	{"\\#foo\n", "#foo", false, YES},
	{" #foo\n", " #foo", false, YES},
	{"\\!foo\n", "!foo", false, YES},
	{"!!foo\n", "!foo", false, NEG},
	{"foo\r\n", "foo", false, YES},
	{"foo\r\n", "foo\r", false, NO},
	{"foo\r\r\n", "foo\r", false, YES},
	{"foo\r", "foo", false, YES},
	{"foo \r\n", "foo", false, YES},
	{"f\roo\n", "f\roo", false, YES},
	{"\xef\xbb\xbf"
	 "foo\n",
		"foo", false, YES},
	{"a\n\xef\xbb\xbf"
	 "foo\n",
		"foo", false, NO},
	{"\xff\n", "\xff", false, YES},
	{"?\n", "\xc3\xa9", false, NO},
	/* nothing */
	{"", "foo", false, NO},
	{"\n\n", "foo", false, NO},
	{"\r\n", "foo", false, NO},
	{"!\n", "foo", false, NO},
	{"/\n", "foo", true, NO},
	{"//\n", "foo", true, NO},
	{"!/\n", "foo", true, NO},
	{"   \n", "foo", false, NO},
	{"\\\n", "foo", false, NO},
};

static enum ignore_decision query(const char *rules, size_t len, const char *dir, bool ignore_case,
	const char *path, bool is_dir)
{
	struct ignore *ignore = ignore_parse(rules, len, dir, ignore_case, NULL);
	enum ignore_decision decision = ignore_check(ignore, path, is_dir);

	ignore_free(ignore);
	return decision;
}

static void test_table(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *row = &rows[i];
		enum ignore_decision decision =
			query(row->rules, strlen(row->rules), "", false, row->path, row->is_dir);
		if (decision != row->decision)
			fail_msg("rules \"%s\", path \"%s\": %d, not %d", row->rules, row->path,
				decision, row->decision);
	}
}

static void test_nul(void **state)
{
	static const char rules[] = "foo\0bar\nx\n\0y\n";

	assert_int_equal(query(rules, sizeof(rules) - 1, "", false, "foo", false), YES);
	assert_int_equal(query(rules, sizeof(rules) - 1, "", false, "bar", false), NO);
	assert_int_equal(query(rules, sizeof(rules) - 1, "", false, "x", false), YES);
	assert_int_equal(query(rules, sizeof(rules) - 1, "", false, "y", false), NO);
}

static void test_ignore_case(void **state)
{
	static const char rules[] = "Foo\n*.O\n/Src/a*\nb[A-C]\nLib/X\n";

	assert_int_equal(query(rules, strlen(rules), "", true, "fOO", false), YES);
	assert_int_equal(query(rules, strlen(rules), "", true, "x.o", false), YES);
	assert_int_equal(query(rules, strlen(rules), "", true, "src/Abc", false), YES);
	assert_int_equal(query(rules, strlen(rules), "", true, "Bb", false), YES);
	assert_int_equal(query(rules, strlen(rules), "", true, "lib/x", false), YES);
	assert_int_equal(query(rules, strlen(rules), "", false, "lib/x", false), NO);
	/* only ASCII letters have a case */
	assert_int_equal(query("\xc3\x89\n", 3, "", true, "\xc3\xa9", false), NO);
}

static void test_directory_of_the_file(void **state)
{
	static const char rules[] = "/foo\nb/*.o\nname\n";

	assert_int_equal(query(rules, strlen(rules), "a/d", false, "a/d/foo", false), YES);
	assert_int_equal(query(rules, strlen(rules), "a/d", false, "a/d/b/x.o", false), YES);
	assert_int_equal(query(rules, strlen(rules), "a/d", false, "a/d/x/y/name", false), YES);
	assert_int_equal(query(rules, strlen(rules), "a/d", false, "foo", false), NO);
	assert_int_equal(query(rules, strlen(rules), "a/d", false, "a/dd/name", false), NO);
	assert_int_equal(query(rules, strlen(rules), "a/d", false, "a/d", true), NO);
}

static void test_chain(void **state)
{
	struct ignore *global = ignore_parse("*.log\nx\ny\n", 10, "", false, NULL);
	struct ignore *root = ignore_parse("!y\n", 3, "", false, global);
	struct ignore *dir = ignore_parse("!x\nz\n", 5, "d", false, root);

	assert_int_equal(ignore_check(dir, "d/x", false), NEG);
	assert_int_equal(ignore_check(root, "d/x", false), YES);
	assert_int_equal(ignore_check(dir, "d/y", false), NEG);
	assert_int_equal(ignore_check(dir, "d/a.log", false), YES);
	assert_int_equal(ignore_check(dir, "d/z", false), YES);
	assert_int_equal(ignore_check(dir, "z", false), NO);
	assert_int_equal(ignore_check(NULL, "z", false), NO);
	ignore_free(dir);
	ignore_free(root);
	ignore_free(global);
}

/* Plain names are looked up, not tried one by one; with other rules between them the order still
 * decides. */
static void test_many_names(void **state)
{
	enum { N = 100000 };
	char *text = mem_alloc(N, 16), *at = text;
	char name[16];

	for (int i = 0; i < N; i++)
		at += snprintf(at, 16, i % 3 ? "n%d\n" : "!n%d\n", i);
	struct ignore *ignore = ignore_parse(text, (size_t)(at - text), "", false, NULL);
	int64_t start = effort_ms();
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		assert_int_equal(ignore_check(ignore, name, false), i % 3 ? YES : NEG);
	}
	assert_true(effort_ms() - start < 15000);
	ignore_free(ignore);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_nul),
		cmocka_unit_test(test_ignore_case),
		cmocka_unit_test(test_directory_of_the_file),
		cmocka_unit_test(test_chain),
		cmocka_unit_test(test_many_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

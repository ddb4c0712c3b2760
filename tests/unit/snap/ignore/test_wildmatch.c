/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "snap/ignore/ignore.h"
#include "snap/ignore/wildmatch.h"

/* Whether each of the four ways to match says yes. */
struct row {
	const char *pattern, *text;
	bool path, path_fold, plain, plain_fold;
};

static const struct row rows[] = {
	/* literals, ?, * */
	{"foo", "foo", 1, 1, 1, 1},
	{"foo", "bar", 0, 0, 0, 0},
	{"foo", "FOO", 0, 1, 0, 1},
	{"FOO", "foo", 0, 1, 0, 1},
	{"", "", 1, 1, 1, 1},
	{"", "a", 0, 0, 0, 0},
	{"*", "", 1, 1, 1, 1},
	{"???", "foo", 1, 1, 1, 1},
	{"??", "foo", 0, 0, 0, 0},
	{"f*", "foo", 1, 1, 1, 1},
	{"*f", "foo", 0, 0, 0, 0},
	{"*foo*", "foo", 1, 1, 1, 1},
	{"*ob*a*r*", "foobar", 1, 1, 1, 1},
	{"*ab", "aaaaaaabababab", 1, 1, 1, 1},
	{"foo\\*", "foo*", 1, 1, 1, 1},
	{"foo\\*bar", "foobar", 0, 0, 0, 0},
	{"f\\\\oo", "f\\oo", 1, 1, 1, 1},
	{"foo\\", "foo", 0, 0, 0, 0},
	{"foo\\", "foo\\", 0, 0, 0, 0},
	{"\\A", "A", 1, 0, 1, 0},
	{"\\A", "a", 0, 0, 0, 0},
	{"\\a", "A", 0, 1, 0, 1},
	/* slashes */
	{"foo?bar", "foo/bar", 0, 0, 1, 1},
	{"foo*bar", "foo/baz/bar", 0, 0, 1, 1},
	{"foo**bar", "foo/baz/bar", 0, 0, 1, 1},
	{"foo**bar", "foobazbar", 1, 1, 1, 1},
	{"foo/**/bar", "foo/bar", 1, 1, 0, 0},
	{"foo/**/bar", "foo/a/b/bar", 1, 1, 1, 1},
	{"foo/**/**/bar", "foo/bar", 1, 1, 0, 0},
	{"foo/**/**/bar", "foo/b/a/z/bar", 1, 1, 1, 1},
	{"**/foo", "foo", 1, 1, 0, 0},
	{"**/foo", "bar/baz/foo", 1, 1, 1, 1},
	{"**/foo", "XXX/foo", 1, 1, 1, 1},
	{"*/foo", "bar/baz/foo", 0, 0, 1, 1},
	{"**/bar/*", "deep/foo/bar", 0, 0, 0, 0},
	{"**/bar/**", "deep/foo/bar/baz/x", 1, 1, 1, 1},
	{"**/bar/*/*", "deep/foo/bar/baz/x", 1, 1, 1, 1},
	{"foo/**", "foo", 0, 0, 0, 0},
	{"foo/**", "foo/a/b", 1, 1, 1, 1},
	{"**", "a/b/c", 1, 1, 1, 1},
	{"*", "a/b", 0, 0, 1, 1},
	{"a/**\\/b", "a/x/y/b", 1, 1, 1, 1},
	{"a/**\\/b", "a/b", 0, 0, 0, 0},
	{"**/*a*b*g*n*t", "abcd/abcdefg/abcdefghijk/abcdefghijklmnop.txt", 1, 1, 1, 1},
	{"*/*/*", "foo/bar", 0, 0, 0, 0},
	{"*/*/*", "foo/bb/aa/rr", 0, 0, 1, 1},
	{"**/**/**", "foo/bb/aa/rr", 1, 1, 1, 1},
	{"*X*i", "abcXdefXghi", 1, 1, 1, 1},
	{"*X*i", "ab/cXd/efXg/hi", 0, 0, 1, 1},
	{"*/*X*/*/*i", "ab/cXd/efXg/hi", 1, 1, 1, 1},
	{"**/*X*/**/*i", "ab/cXd/efXg/hi", 1, 1, 1, 1},
	{"-*-*-*-*-*-*-12-*-*-*-m-*-*-*",
		"-adobe-courier-bold-o-normal--12-120-75-75-m-70-iso8859-1", 1, 1, 1, 1},
	{"-*-*-*-*-*-*-12-*-*-*-m-*-*-*",
		"-adobe-courier-bold-o-normal--12-120-75-75-X-70-iso8859-1", 0, 0, 0, 0},
	/* brackets */
	{"t[a-g]n", "ten", 1, 1, 1, 1},
	{"t[!a-g]n", "ten", 0, 0, 0, 0},
	{"t[!a-g]n", "ton", 1, 1, 1, 1},
	{"t[^a-g]n", "ton", 1, 1, 1, 1},
	{"a[]]b", "a]b", 1, 1, 1, 1},
	{"a[]-]b", "a-b", 1, 1, 1, 1},
	{"a[]-]b", "aab", 0, 0, 0, 0},
	{"a[]a-]b", "aab", 1, 1, 1, 1},
	{"]", "]", 1, 1, 1, 1},
	{"[!]a-]", "b", 1, 1, 1, 1},
	{"[!]a-]", "]", 0, 0, 0, 0},
	{"foo[/]bar", "foo/bar", 0, 0, 1, 1},
	{"foo[^a]bar", "foo/bar", 0, 0, 1, 1},
	{"f[^eiu][^eiu][^eiu][^eiu][^eiu]r", "foo/bar", 0, 0, 1, 1},
	{"[ab", "ab", 0, 0, 0, 0},
	{"[ab", "[ab", 0, 0, 0, 0},
	{"[!", "ab", 0, 0, 0, 0},
	{"[-", "ab", 0, 0, 0, 0},
	{"[-]", "-", 1, 1, 1, 1},
	{"[a-", "-", 0, 0, 0, 0},
	{"[!a-", "-", 0, 0, 0, 0},
	{"[--A]", "-", 1, 1, 1, 1},
	{"[ --]", "$", 1, 1, 1, 1},
	{"[ --]", "0", 0, 0, 0, 0},
	{"[---]", "-", 1, 1, 1, 1},
	{"[a-e-n]", "j", 0, 0, 0, 0},
	{"[a-e-n]", "-", 1, 1, 1, 1},
	{"[!------]", "a", 1, 1, 1, 1},
	{"[]-a]", "[", 0, 0, 0, 0},
	{"[]-a]", "^", 1, 1, 1, 1},
	{"[!]-a]", "[", 1, 1, 1, 1},
	{"[a^bc]", "^", 1, 1, 1, 1},
	{"[a-]b]", "-b]", 1, 1, 1, 1},
	{"[\\]", "\\", 0, 0, 0, 0},
	{"[\\\\]", "\\", 1, 1, 1, 1},
	{"[!\\\\]", "a", 1, 1, 1, 1},
	{"[A-\\\\]", "G", 1, 1, 1, 1},
	{"[\\-_]", "-", 1, 1, 1, 1},
	{"[\\]]", "]", 1, 1, 1, 1},
	{"[\\^]", "^", 1, 1, 1, 1},
	{"[,-.]", "-", 1, 1, 1, 1},
	{"[\\1-\\3]", "2", 1, 1, 1, 1},
	{"[[-\\]]", "\\", 1, 1, 1, 1},
	{"[[-\\]]", "-", 0, 0, 0, 0},
	/* classes */
	{"[[:alpha:]][[:digit:]][[:upper:]]", "a1B", 1, 1, 1, 1},
	{"[[:digit:][:upper:][:space:]]", "a", 0, 1, 0, 1},
	{"[[:digit:][:upper:][:space:]]", "A", 1, 1, 1, 1},
	{"[[:digit:][:upper:][:space:]]", "1", 1, 1, 1, 1},
	{"[[:digit:][:upper:][:spaci:]]", "1", 0, 0, 0, 0},
	{"[[:xdigit:]]", "f", 1, 1, 1, 1},
	{"[[:alnum:][:alpha:][:blank:][:cntrl:][:digit:][:graph:][:lower:][:print:]"
	 "[:punct:][:space:][:upper:][:xdigit:]]",
		"_", 1, 1, 1, 1},
	{"[^[:alnum:][:alpha:][:blank:][:cntrl:][:digit:][:lower:][:space:][:upper:][:xdigit:]]",
		".", 1, 1, 1, 1},
	{"[a-c[:digit:]x-z]", "5", 1, 1, 1, 1},
	{"[a-c[:digit:]x-z]", "q", 0, 0, 0, 0},
	{"[[:space:]]", "\v", 0, 0, 0, 0},
	{"[[:cntrl:]]", "\x7f", 1, 1, 1, 1},
	{"[[:print:]]", "\xc3", 0, 0, 0, 0},
	{"[![:alpha:]]", "\xc3", 1, 1, 1, 1},
	{"[[:alpha]", ":", 1, 1, 1, 1},
	{"[[:]", "[", 1, 1, 1, 1},
	{"[[:", "[", 0, 0, 0, 0},
	{"[[::]]", ":", 0, 0, 0, 0},
	/* case */
	{"[A-Z]", "a", 0, 1, 0, 1},
	{"[a-z]", "A", 0, 1, 0, 1},
	{"[A]", "a", 0, 0, 0, 0},
	{"[a]", "A", 0, 1, 0, 1},
	{"[[:upper:]]", "a", 0, 1, 0, 1},
	{"[[:lower:]]", "A", 0, 1, 0, 1},
	{"[B-Za]", "A", 0, 1, 0, 1},
	{"[B-a]", "A", 0, 1, 0, 1},
	{"[Z-y]", "z", 0, 1, 0, 1},
};

static void check(const struct row *row, bool pathname, bool fold, bool expected)
{
	if (wildmatch(row->pattern, row->text, pathname, fold) != expected)
		fail_msg("wildmatch(\"%s\", \"%s\", pathname %d, fold %d) is not %d", row->pattern,
			row->text, pathname, fold, expected);
}

static void test_table(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		check(&rows[i], true, false, rows[i].path);
		check(&rows[i], true, true, rows[i].path_fold);
		check(&rows[i], false, false, rows[i].plain);
		check(&rows[i], false, true, rows[i].plain_fold);
	}
}

static char *repeated(const char *piece, size_t n, const char *end)
{
	size_t len = strlen(piece);
	char *text = mem_alloc(n * len + strlen(end) + 1, 1);

	for (size_t i = 0; i < n; i++)
		memcpy(text + i * len, piece, len);
	memcpy(text + n * len, end, strlen(end));
	return text;
}

/* Each of these takes a backtracking matcher longer than the world has left. */
static void test_hostile(void **state)
{
	static const struct {
		const char *piece, *end, *text, *text_end;
		bool pathname;
	} cases[] = {
		{"*a", "b", "a", "", false},
		{"*a", "b", "a", "", true},
		{"**/*a", "b", "a/", "c", true},
		{"**/", "b", "a/", "c", true},
		{"*/", "b", "a/", "c", true},
		{"**/*/", "b", "a/", "c", true},
		{"*?", "b", "a", "", true},
		{"*[ab]", "c", "a", "", true},
		{"**/a*", "/b", "a/aa/", "", true},
	};
	int64_t start = clock_ms();
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char *pattern = repeated(cases[i].piece, 1000, cases[i].end);
		char *text =
			repeated(cases[i].text, 4000 / strlen(cases[i].text), cases[i].text_end);
		assert_false(wildmatch(pattern, text, cases[i].pathname, false));
		free(pattern);
		free(text);
	}
	assert_true(clock_ms() - start < 20000);
}

static void test_longer_than_any_path(void **state)
{
	char *pattern = repeated("a", WILD_TEXT_MAX + 1, "");
	char *fits = repeated("a", WILD_TEXT_MAX, "");

	assert_true(wildmatch(fits, fits, true, false));
	assert_false(wildmatch(pattern, pattern, true, false));
	free(pattern);
	free(fits);
	pattern = repeated("[a-z]", 1000000, "");
	assert_false(wildmatch(pattern, "a", false, false));
	free(pattern);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_longer_than_any_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

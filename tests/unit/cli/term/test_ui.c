/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/auto.h"
#include "cli/term/app.h"
#include "cli/term/manual.h"
#include "cli/term/ui.h"

enum { ENOUGH = 1 << 20 };

static const struct app plain = {.utf8 = true, .columns = 80};
static const struct app colored = {.utf8 = true, .out_color = true, .columns = 80};
static const struct app ascii = {.plain = true, .columns = 80};
static const struct app console = {.utf8 = true, .plain = true, .columns = 80};

static void check_text(const struct app *app, const char *text, const char *want)
{
	AUTO_BUF struct buf out;

	buf_init(&out, ENOUGH);
	ui_text(app, UI_OUT, text, strlen(text), &out);
	assert_string_equal(out.data, want);
}

static void filters_what_is_foreign(void **state)
{
	check_text(&plain, "a\033[2Jb\007\r\n", "a^[[2Jb^G^M\n");
	check_text(&colored, "\033]0;title\007", "^[]0;title^G");
	check_text(&plain,
		"\xc2\x9b"
		"31m \xff é",
		"\\xc2\\x9b31m \\xff é");
	check_text(&plain, "", "");
}

static void colors_by_stream(void **state)
{
	check_text(&plain, UI_RED "x" UI_OFF "\n", "x\n");
	check_text(&colored, UI_RED "x" UI_OFF "\n", "\033[31mx\033[0m\n");
	check_text(&colored, UI_RED "x", "\033[31mx\033[0m");
}

static void ascii_locale(void **state)
{
	check_text(&ascii, "a · b… → c — d × e", "a - b... -> c - d x e");
	check_text(&ascii, "é", "\\xc3\\xa9");
	check_text(&plain, "a · b…", "a · b…");
	check_text(&console, "é · \xff…", "é - \\xff...");
}

static void cuts(void **state)
{
	static const struct {
		const char *text;
		size_t columns;
		const char *want;
	} cases[] = {
		{"abcdef", 6, "abcdef"},
		{"abcdef", 5, "abcd…"},
		{"abcdef", 1, "…"},
		{"日本語", 6, "日本語"},
		{"日本語", 5, "日本…"},
		{"日本語", 4, "日…"},
		{"e\xcc\x81x", 2, "e\xcc\x81x"},
		{"", 0, ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_BUF struct buf out;

		buf_init(&out, ENOUGH);
		ui_cut(&plain, cases[i].text, cases[i].columns, &out);
		assert_string_equal(out.data, cases[i].want);
	}
	AUTO_BUF struct buf out;
	buf_init(&out, ENOUGH);
	ui_cut(&ascii, "abcdef", 5, &out);
	assert_string_equal(out.data, "ab...");
}

static void wraps(void **state)
{
	AUTO_BUF struct buf out;

	buf_init(&out, ENOUGH);
	ui_wrap("  one two `three four five` six", 9, 2, &out);
	assert_string_equal(out.data, "one two\n  `three four five`\n  six");
	buf_reset(&out);
	ui_wrap("", 10, 2, &out);
	assert_string_equal(out.data, "");
}

static const struct ui_column columns[] = {{"ID"}, {"N", .right = true}, {"COMMAND"}};

static void fill(struct ui_table *table)
{
	ui_table_init(table, columns, ARRAY_LEN(columns));
	ui_table_add(table, "", "a");
	ui_table_addf(table, UI_RED, "%d", 12);
	ui_table_add(table, "", "python train.py");
	ui_table_add(table, "", "日本");
	ui_table_add(table, "", "");
	ui_table_add(table, "", "x\ny\033[2J");
	ui_table_add(table, "", "c");
	ui_table_add(table, "", "7");
	ui_table_add(table, "", "");
}

static void check_table(const struct app *app, size_t width, const char *want)
{
	AUTO_TABLE struct ui_table table = {0};
	AUTO_BUF struct buf out, shown;

	fill(&table);
	buf_init(&out, ENOUGH);
	buf_init(&shown, ENOUGH);
	ui_table_format(app, &table, width, &out);
	ui_text(app, UI_OUT, out.data, out.len, &shown);
	assert_string_equal(shown.data, want);
}

static void tables(void **state)
{
	check_table(&plain, 0,
		"ID     N  COMMAND\n"
		"a     12  python train.py\n"
		"日本      x y^[[2J\n"
		"c      7\n");
	check_table(&plain, 20,
		"ID     N  COMMAND\n"
		"a     12  python tr…\n"
		"日本      x y^[[2J\n"
		"c      7\n");
	/* Where cut texts are not enough, columns are left out, and at last the first one is
	 * cut. */
	check_table(&plain, 13, "ID     N\na     12\n日本\nc      7\n");
	check_table(&plain, 3, "ID\na\n日…\nc\n");
}

/* The widest of those that may be cut, down to eight columns. */
static void cut_columns(void **state)
{
	static const struct ui_column three[] = {
		{"A", .cut = true}, {"ID"}, {"B", .right = true, .cut = true}};
	static const struct {
		size_t width;
		const char *want;
	} rows[] = {
		{0, "A             ID                    B\naaaabbbbcccc  never cut  日本日本日本\n"},
		{33, "A           ID                  B\naaaabbbbc…  never cut   日本日本…\n"},
		{29, "A         ID                B\naaaabbb…  never cut   日本日…\n"},
		{28, "A             ID\naaaabbbbcccc  never cut\n"},
		{19, "A         ID\naaaabbb…  never cut\n"},
		{9, "A\naaaabbbb…\n"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_TABLE struct ui_table table = {0};
		AUTO_BUF struct buf out, shown;
		buf_init(&out, ENOUGH);
		buf_init(&shown, ENOUGH);
		ui_table_init(&table, three, ARRAY_LEN(three));
		ui_table_add(&table, "", "aaaabbbbcccc");
		ui_table_add(&table, "", "never cut");
		ui_table_add(&table, "", "日本日本日本");
		ui_table_format(&plain, &table, rows[i].width, &out);
		ui_text(&plain, UI_OUT, out.data, out.len, &shown);
		assert_string_equal(shown.data, rows[i].want);
	}
}

static void empty_table(void **state)
{
	AUTO_TABLE struct ui_table table = {0};
	AUTO_BUF struct buf out;

	buf_init(&out, ENOUGH);
	ui_table_init(&table, columns, ARRAY_LEN(columns));
	ui_table_format(&plain, &table, 80, &out);
	assert_string_equal(out.data,
		UI_BOLD "ID" UI_OFF "  " UI_BOLD "N" UI_OFF "  " UI_BOLD "COMMAND" UI_OFF "\n");
}

/* Which columns go, the least important first. */
static void dropped_columns(void **state)
{
	static const struct ui_column four[] = {
		{"A", .drop = 9}, {"BB", .drop = 1}, {"CC", .drop = 2}, {"DD"}};
	static const struct {
		size_t width;
		const char *want;
	} rows[] = {
		{13, "A  BB  CC  DD\n"},
		{12, "A  BB  DD\n"},
		{8, "A  DD\n"},
		{4, "A\n"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_TABLE struct ui_table table = {0};
		AUTO_BUF struct buf out, shown;
		buf_init(&out, ENOUGH);
		buf_init(&shown, ENOUGH);
		ui_table_init(&table, four, ARRAY_LEN(four));
		ui_table_format(&plain, &table, rows[i].width, &out);
		ui_text(&plain, UI_OUT, out.data, out.len, &shown);
		assert_string_equal(shown.data, rows[i].want);
	}
}

static void check_fit(const char *text, unsigned wide, size_t indent, const char *want)
{
	const struct app narrow = {.utf8 = true, .columns = wide, .out_tty = true};
	AUTO_BUF struct buf out, same;

	buf_init(&out, ENOUGH);
	buf_init(&same, ENOUGH);
	ui_fit(&narrow, UI_OUT, text, indent, &out);
	assert_string_equal(out.data, want);
	ui_fit(&narrow, UI_ERR, text, indent, &same);
	assert_string_equal(same.data, text);
}

static void fitted_lines(void **state)
{
	check_fit("one two  three\nfour\n", 9, 2, "one two\n  three\nfour\n");
	check_fit("  a bb   ccc", 12, 2, "  a bb   ccc");
	check_fit("  a bb   ccc", 11, 4, "  a bb\n    ccc");
	/* Colours have no width, and what is wider than all stays in one piece. */
	check_fit(UI_RED "one" UI_OFF " two", 7, 2, UI_RED "one" UI_OFF " two");
	check_fit("abc https://example.org/x b", 10, 2, "abc\n  https://example.org/x\n  b");
	check_fit("see `one two` x", 10, 2, "see\n  `one two`\n  x");
	check_fit("a /long/path/of/it b", 10, 2, "a /long/path/of/it\n  b");
	check_fit("log    https://example.org/x", 10, 7, "log    https://example.org/x");
	/* Parts stay together where they can. */
	check_fit("run a (back: one two · stop: three four)", 30, 4,
		"run a (back: one two\n    · stop: three four)");
	check_fit(
		"run a (back: one two · stop: b)", 17, 2, "run a\n  (back: one two\n  · stop: b)");
	check_fit("\n\n", 10, 2, "\n\n");
}

static void ages(void **state)
{
	char text[32];

	assert_string_equal(ui_age(-5, text), "0 s");
	assert_string_equal(ui_age(99 * 1000, text), "99 s");
	assert_string_equal(ui_age(100 * 1000, text), "1 min");
	assert_string_equal(ui_age(99LL * 60 * 1000, text), "99 min");
	assert_string_equal(ui_age(100LL * 60 * 1000, text), "1 h");
	assert_string_equal(ui_age(47LL * 3600 * 1000, text), "47 h");
	assert_string_equal(ui_age(48LL * 3600 * 1000, text), "2 d");
}

static void errors(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out, shown;

	buf_init(&out, ENOUGH);
	buf_init(&shown, ENOUGH);
	err_set(&err, E_IO, "a\nerror: forged \033[31m");
	err_evidence(&err, "line\n2");
	err_hint(&err, "try\tagain");
	app_error_text(&plain, &err, &out);
	ui_text(&plain, UI_ERR, out.data, out.len, &shown);
	assert_string_equal(shown.data, "error: a error: forged    [io]\n"
					"  line 2\n"
					"  hint: try again\n");
}

static void manual_pages(void **state)
{
	static const char source[] =
		"x(1)\n\n# NAME\n\n*x* - an _exact\\_word_ and a_b\n\n"
		"\t- one item that is too long\n\t- two\n\n```\n*as* it is\n```\n";
	AUTO_BUF struct buf out, shown;

	buf_init(&out, ENOUGH);
	buf_init(&shown, ENOUGH);
	manual_render(source, 30, &out);
	ui_text(&plain, UI_OUT, out.data, out.len, &shown);
	assert_string_equal(shown.data, "NAME\n"
					"    x - an exact_word and\n"
					"    a_b\n"
					"\n"
					"        - one item that is\n"
					"          too long\n"
					"        - two\n"
					"\n"
					"        *as* it is\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(filters_what_is_foreign),
		cmocka_unit_test(colors_by_stream),
		cmocka_unit_test(ascii_locale),
		cmocka_unit_test(cuts),
		cmocka_unit_test(wraps),
		cmocka_unit_test(tables),
		cmocka_unit_test(cut_columns),
		cmocka_unit_test(dropped_columns),
		cmocka_unit_test(fitted_lines),
		cmocka_unit_test(empty_table),
		cmocka_unit_test(ages),
		cmocka_unit_test(errors),
		cmocka_unit_test(manual_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/data/toml.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

static void expect(char *got, const char *want)
{
	if (want)
		assert_string_equal(got ? got : "(nothing)", want);
	else
		assert_null(got);
	free(got);
}

static void expect_toml(const char *text, const char *path, const char *want)
{
	expect(toml_find_string(text, strlen(text), path), want);
}

static void test_toml_strings(void **state)
{
	static const char text[] = "# c\ntop = 'x'\n[project]\nname = \"a-b\" # c\n"
				   "version = 1\n[ project . \"urls\" ]\nhome = \"u\"\n"
				   "[tool.uv]\ndev = []\nproject.name = 'deep'\n";

	expect_toml(text, "top", "x");
	expect_toml(text, "project.name", "a-b");
	expect_toml(text, "project.version", NULL);
	expect_toml(text, "project.urls.home", "u");
	expect_toml(text, "tool.uv.project.name", "deep");
	expect_toml(text, "name", NULL);
	expect_toml("project.name = \"x\"", "project.name", "x");
	expect_toml("[project]\r\nname = \"crlf\"\r\n", "project.name", "crlf");
	expect_toml("", "project.name", NULL);
}

/* Names need no escapes: a string that has one is not understood, and ends where it ends. */
static void test_toml_escapes(void **state)
{
	expect_toml("a = \"q\\\"b\" # c\nb = 'x'", "a", NULL);
	expect_toml("a = \"q\\\"b = 'no'\"\nb = 'x'", "b", "x");
	expect_toml("a = 'no \\n escape'", "a", "no \\n escape");
	expect_toml("a = \"\\u12", "a", NULL);
	expect_toml("a = \"\xff\"", "a", NULL);
	expect_toml("a = \"open\nb = \"x\"", "b", "x");
}

/* What stands inside of other values is no key and no table. */
static void test_toml_is_not_misled(void **state)
{
	expect_toml("d = \"\"\"\n[project]\nname = \"no\"\n\"\"\"\n[project]\nname = \"yes\"\n",
		"project.name", "yes");
	expect_toml("d = '''\nname = \"no\"\n'''\nname = 'yes'\n", "name", "yes");
	expect_toml(
		"deps = [\n  \"a\", # ]\n  'name = x',\n  \"]\"\n]\nname = 'yes'\n", "name", "yes");
	expect_toml("deps = [\nname = 'no'\n]\nname = 'yes'\n", "name", "yes");
	expect_toml("t = { a = \"]\",\n b = 'x' }\nname = 'yes'\n", "name", "yes");
	expect_toml("[x\nname = 'no'\n", "x.name", NULL);
	expect_toml("[x\nname = 'no'\n", "name", NULL);
	expect_toml("d = \"\"\"never closed\nname = 'no'\n", "name", NULL);
	expect_toml("garbage\n= 1\n!!!\nname = 'yes'", "name", "yes");
}

static void test_toml_tables(void **state)
{
	static const char text[] =
		"[project.scripts]\ntrain = \"m:main\"\nn = 1\n\"e val\" = 'm:e'\n"
		"[[tool.uv.index]]\nurl = 'x'\n[tool.uvx]\n";
	AUTO_STRV struct strv keys = {0};

	assert_true(toml_has_table(text, strlen(text), "tool.uv"));
	assert_true(toml_has_table(text, strlen(text), "project"));
	assert_false(toml_has_table(text, strlen(text), "tool.u"));
	toml_table_keys(text, strlen(text), "project.scripts", &keys);
	assert_int_equal(keys.n, 2);
	assert_string_equal(keys.v[0], "train");
	assert_string_equal(keys.v[1], "eval");
}

static void test_toml_limits(void **state)
{
	AUTO_FREE char *text = mem_alloc(1, 200001);
	AUTO_STRV struct strv keys = {0};
	AUTO_BUF struct buf many;

	memset(text, '[', 200000);
	expect_toml(text, "a", NULL);
	memcpy(text, "a='", 3);
	memset(text + 3, 'x', 9000);
	memcpy(text + 9003, "'\n", 2);
	text[9005] = '\0';
	expect_toml(text, "a", NULL);
	buf_init(&many, 1 << 20);
	for (int i = 0; i < 1000; i++)
		buf_addf(&many, "k%d = 'v'\n", i);
	toml_table_keys(many.data, many.len, "", &keys);
	assert_int_equal(keys.n, TOML_KEYS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_toml_strings),
		cmocka_unit_test(test_toml_escapes),
		cmocka_unit_test(test_toml_is_not_misled),
		cmocka_unit_test(test_toml_tables),
		cmocka_unit_test(test_toml_limits),
	};

	return cmocka_run_group_tests_name("toml", tests, NULL, NULL);
}

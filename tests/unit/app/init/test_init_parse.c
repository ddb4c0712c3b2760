/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "app/init/init_parse.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"

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
	expect(init_toml_string(text, strlen(text), path), want);
}

static void test_toml_strings(void **state)
{
	static const char text[] = "# c\ntop = 'x'\n[project]\nname = \"a-b\" # c\n"
				   "version = 1\n[ project . \"urls\" ]\nhome = \"u\"\n"
				   "[tool.uv]\ndev = []\nproject.name = 'deep'\n";

	(void)state;
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

static void test_toml_escapes(void **state)
{
	(void)state;
	expect_toml("a = \"q\\\"b\\\\t\\tu\\u00e9\\U0001F600\"", "a",
		"q\"b\\t\tu\303\251\360\237\230\200");
	expect_toml("a = 'no \\n escape'", "a", "no \\n escape");
	expect_toml("a = \"\\u0000\"", "a", NULL);
	expect_toml("a = \"\\uD800\"", "a", NULL);
	expect_toml("a = \"\\U00110000\"", "a", NULL);
	expect_toml("a = \"\\x\"", "a", NULL);
	expect_toml("a = \"\\u12", "a", NULL);
	expect_toml("a = \"\xff\"", "a", NULL);
	expect_toml("a = \"open\nb = \"x\"", "b", "x");
}

/* What stands inside of other values is no key and no table. */
static void test_toml_is_not_misled(void **state)
{
	(void)state;
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

	(void)state;
	assert_true(init_toml_has_table(text, strlen(text), "tool.uv"));
	assert_true(init_toml_has_table(text, strlen(text), "project"));
	assert_false(init_toml_has_table(text, strlen(text), "tool.u"));
	init_toml_keys(text, strlen(text), "project.scripts", &keys);
	assert_int_equal(keys.n, 2);
	assert_string_equal(keys.v[0], "train");
	assert_string_equal(keys.v[1], "eval");
}

static void test_toml_limits(void **state)
{
	AUTO_FREE char *text = mem_alloc(1, 200001);
	AUTO_STRV struct strv keys = {0};
	AUTO_BUF struct buf many;

	(void)state;
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
	init_toml_keys(many.data, many.len, "", &keys);
	assert_int_equal(keys.n, INIT_NAMES_MAX);
}

static void test_ini(void **state)
{
	static const char text[] = "[options]\nname = no\n[metadata]\n# name = no\nlong =\n"
				   "\tname = no\nname: my pkg \n";

	(void)state;
	expect(init_ini_string(text, strlen(text), "metadata", "name"), "my pkg");
	expect(init_ini_string(text, strlen(text), "metadata", "version"), NULL);
	expect(init_ini_string("name=x", 6, "metadata", "name"), NULL);
	expect(init_ini_string("[metadata]\nname=\xff", 17, "metadata", "name"), NULL);
}

static void expect_setup(const char *text, const char *want)
{
	expect(init_setup_name(text, strlen(text)), want);
}

static void test_setup(void **state)
{
	(void)state;
	expect_setup("name='no'\nsetup(\n    filename='no', name = 'yes',\n)", "yes");
	expect_setup("setup(name=\"x\")", "x");
	expect_setup("setup(name=NAME, y=1)", NULL);
	expect_setup("setup(name='a\nb')", NULL);
	expect_setup("setup(name=", NULL);
	expect_setup("setup(name", NULL);
	expect_setup("print()", NULL);
}

static void expect_docker(const char *text, const char *want)
{
	expect(init_docker_base(text, strlen(text)), want);
}

static void test_docker(void **state)
{
	(void)state;
	expect_docker("FROM python:3.12\nRUN x\n", "python:3.12");
	expect_docker("from a AS build\nFROM b\n", "b");
	expect_docker("FROM a:1 AS Base\nFROM x AS other\nFROM base\n", "a:1");
	expect_docker("FROM a AS b\nFROM b AS c\nFROM c\n", "a");
	expect_docker("FROM b AS b\n", "b");
	expect_docker("FROM --platform=$BUILDPLATFORM a:2 AS x\nCOPY . .\n", "a:2");
	expect_docker("ARG V=3.12\nARG I=\"python:${V}-slim\"\nFROM $I\n", "python:3.12-slim");
	expect_docker("ARG V\nFROM python:${V:-3.11}\n", "python:3.11");
	expect_docker("ARG V\nFROM python:$V\n", NULL);
	expect_docker("FROM python:${V+x}\n", NULL);
	expect_docker("FROM python:${V\n", NULL);
	expect_docker("FROM a\nARG V=no\nFROM x:$V\n", NULL);
	expect_docker("# c\nFROM \\\n# c\n  a:1 \\\n  AS x\n", "a:1");
	expect_docker("# escape=`\nFROM `\n a\n", "a");
	expect_docker("RUN echo \\\nFROM no\nFROM yes\n", "yes");
	expect_docker("FROM\n", NULL);
	expect_docker("", NULL);
	expect_docker("FROM \xff\n", NULL);
	expect_docker("FROM scratch", "scratch");
	expect_docker("FROM $", NULL);
}

static void test_lines(void **state)
{
	static const char make[] = "V := 1\ntrain := 2\n.PHONY: run\nrun: a\n\techo\ntest :\n";
	static const char ignore[] = "# c\n/data/\n*.tmp\nruns\n!logs\nout/x\n";

	(void)state;
	assert_true(init_make_has(make, strlen(make), "run"));
	assert_true(init_make_has(make, strlen(make), "test"));
	assert_false(init_make_has(make, strlen(make), "train"));
	assert_false(init_make_has(make, strlen(make), "ru"));
	assert_true(init_ignore_names(ignore, strlen(ignore), "data", false));
	assert_true(init_ignore_names(ignore, strlen(ignore), "runs", false));
	assert_false(init_ignore_names(ignore, strlen(ignore), "logs", false));
	assert_false(init_ignore_names(ignore, strlen(ignore), "out", false));
	assert_false(init_ignore_names(ignore, strlen(ignore), "data", true));
	assert_true(init_ignore_names(ignore, strlen(ignore), "runs", true));
}

static void test_ssh(void **state)
{
	static const char text[] = "Host gpu1 gpu2 *.lab !x\n  HostName h\nhost=gpu3\nHost *\n"
				   "Host gpu1\nHostname no\nMatch host x\n";
	AUTO_STRV struct strv hosts = {0};

	(void)state;
	init_ssh_hosts(text, strlen(text), &hosts);
	assert_int_equal(hosts.n, 3);
	assert_string_equal(hosts.v[0], "gpu1");
	assert_string_equal(hosts.v[1], "gpu2");
	assert_string_equal(hosts.v[2], "gpu3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_toml_strings),
		cmocka_unit_test(test_toml_escapes),
		cmocka_unit_test(test_toml_is_not_misled),
		cmocka_unit_test(test_toml_tables),
		cmocka_unit_test(test_toml_limits),
		cmocka_unit_test(test_ini),
		cmocka_unit_test(test_setup),
		cmocka_unit_test(test_docker),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_ssh),
	};

	return cmocka_run_group_tests_name("init_parse", tests, NULL, NULL);
}

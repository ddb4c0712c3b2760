/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "app/init/init_parse.h"
#include "base/data/yaml.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static void expect(char *got, const char *want)
{
	if (want)
		assert_string_equal(got ? got : "(nothing)", want);
	else
		assert_null(got);
	free(got);
}

static void test_ini(void **state)
{
	static const char text[] = "[options]\nname = no\n[metadata]\n# name = no\nlong =\n"
				   "\tname = no\nname: my pkg \n";

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

	init_ssh_hosts(text, strlen(text), &hosts);
	assert_int_equal(hosts.n, 3);
	assert_string_equal(hosts.v[0], "gpu1");
	assert_string_equal(hosts.v[1], "gpu2");
	assert_string_equal(hosts.v[2], "gpu3");
}

enum { TEXT_MAX = 1 << 16 };

static char *written(const char *s)
{
	struct buf out;

	buf_init(&out, TEXT_MAX);
	assert_true(init_yaml_scalar(&out, s));
	assert_false(out.full);
	return out.data;
}

static struct yaml *parsed(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct yaml *yaml = NULL;

	if (yaml_parse(text, strlen(text), "test", &yaml, &err) < 0)
		fail_msg("%s: %s", err.message, text);
	return yaml;
}

static void expect_text(const char *s, const char *want)
{
	AUTO_FREE char *text = written(s);

	assert_string_equal(text, want);
}

static void expect_round(const char *s)
{
	AUTO_FREE char *scalar = written(s);
	AUTO_FREE char *text =
		mem_printf("k: %s # c\nl: [%s, %s]\nm: {k: %s}\n", scalar, scalar, scalar, scalar);
	AUTO_YAML struct yaml *yaml = parsed(text);
	const struct yaml *list = yaml_get(yaml, "l");

	assert_string_equal(yaml_get(yaml, "k")->text, s);
	assert_string_equal(list->first->text, s);
	assert_string_equal(list->first->next->text, s);
	assert_null(list->first->next->next);
	assert_string_equal(yaml_get(yaml_get(yaml, "m"), "k")->text, s);
	assert_false(yaml_is_null(yaml_get(yaml, "k")));
}

static void test_plain(void **state)
{
	static const char *const plain[] = {"resnet", "train.py", "./train.sh", "uv sync --frozen",
		"/srv/data", "_x", "a@b", "lr=0.1", "A-b+c"};

	for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
		expect_text(plain[i], plain[i]);
		expect_round(plain[i]);
	}
}

static void test_quoted(void **state)
{
	static const char *const quoted[][2] = {{"", "\"\""}, {"1", "\"1\""}, {"1e3", "\"1e3\""},
		{"null", "\"null\""}, {"Yes", "\"Yes\""}, {"~", "\"~\""}, {"- a", "\"- a\""},
		{"a: b", "\"a: b\""}, {"a #b", "\"a #b\""}, {" a", "\" a\""}, {"a ", "\"a \""},
		{"a  b", "\"a  b\""}, {"say \"hi\"", "\"say \\\"hi\\\"\""}, {"a\\b", "\"a\\\\b\""},
		{"a\nb\tc", "\"a\\nb\\tc\""}, {"\x1b[31m", "\"\\x1B[31m\""}, {"\x7f", "\"\\x7F\""},
		{"*x", "\"*x\""}, {"&x", "\"&x\""}, {"!x", "\"!x\""}, {"a,b", "\"a,b\""},
		{"[a]", "\"[a]\""}, {"{a}", "\"{a}\""}, {"%x", "\"%x\""}, {"@x", "\"@x\""},
		{"`x`", "\"`x`\""}, {"'", "\"'\""}, {"python:3.12", "\"python:3.12\""},
		{"gr\303\274n", "\"gr\303\274n\""}, {"\xe2\x80\xa8", "\"\\u2028\""},
		{"\xc2\x85", "\"\\x85\""}, {"\xe2\x80\xae", "\"\\u202E\""},
		{"\xef\xbb\xbf", "\"\\uFEFF\""}, {"\xef\xbf\xbe", "\"\\uFFFE\""},
		{"\xf3\xa0\x80\xa0", "\"\\U000E0020\""},
		{"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""}};

	for (size_t i = 0; i < ARRAY_LEN(quoted); i++) {
		expect_text(quoted[i][0], quoted[i][1]);
		expect_round(quoted[i][0]);
	}
}

static void test_every_character(void **state)
{
	for (int c = 1; c < 0x80; c++) {
		char one[] = {(char)c, '\0'}, inside[] = {'a', (char)c, 'b', '\0'};

		expect_round(one);
		expect_round(inside);
	}
}

static void test_long(void **state)
{
	AUTO_FREE char *s = mem_alloc(1, 5001);

	memset(s, 'x', 5000);
	expect_round(s);
	memset(s, '"', 5000);
	expect_round(s);
}

static void test_not_utf8(void **state)
{
	static const char *const bad[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80"};
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out;

	buf_init(&out, 100);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(init_yaml_scalar(&out, bad[i]));
	strv_add(&words, "a");
	strv_add(&words, bad[0]);
	assert_false(init_yaml_list(&out, &words));
	assert_int_equal(out.len, 0);
}

static void test_list(void **state)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out;

	buf_init(&out, 100);
	assert_true(init_yaml_list(&out, &words));
	assert_string_equal(out.data, "[]");
	buf_reset(&out);
	strv_add(&words, "python");
	strv_add(&words, "a b, c");
	assert_true(init_yaml_list(&out, &words));
	assert_string_equal(out.data, "[python, \"a b, c\"]");
}

static void expect_comment(const char *s, size_t max, const char *want)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	init_yaml_comment(&out, s, max);
	assert_string_equal(out.data, want);
	AUTO_FREE char *text = mem_printf("# %s\nk: v # %s\n", out.data, out.data);
	AUTO_YAML struct yaml *yaml = parsed(text);
	assert_string_equal(yaml->first->key, "k");
	assert_null(yaml->first->next);
	assert_string_equal(yaml->first->text, "v");
}

static void test_comment(void **state)
{
	expect_comment("plain: # text", 100, "plain: # text");
	expect_comment("a\nimage: x", 100, "a\\x0aimage: x");
	expect_comment("a\xe2\x80\xa8image: x", 100, "a\\xe2\\x80\\xa8image: x");
	expect_comment("a\xc2\x85x: y\r\x1b", 100, "a\\xc2\\x85x: y\\x0d\\x1b");
	expect_comment("\xff\xef\xbf\xbf", 100, "\\xff\\xef\\xbf\\xbf");
	expect_comment("gr\303\274n", 100, "gr\303\274n");
	expect_comment("gr\303\274n", 3, "gr...");
	expect_comment("", 0, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ini),
		cmocka_unit_test(test_setup),
		cmocka_unit_test(test_docker),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_ssh),
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_quoted),
		cmocka_unit_test(test_every_character),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_not_utf8),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_comment),
	};

	return cmocka_run_group_tests_name("init_parse", tests, NULL, NULL);
}

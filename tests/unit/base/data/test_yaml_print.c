/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/data/yaml.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static struct json *parse(const char *text)
{
	struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	if (json_parse(text, strlen(text), JSON_SIZE_MAX, "the test", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

static char *print(const struct json *json)
{
	AUTO_BUF struct buf out;

	buf_init(&out, JSON_SIZE_MAX);
	yaml_print(json, &out);
	assert_int_equal(buf_check(&out, "the test", NULL), 0);
	return buf_take(&out);
}

static void check(const char *json_text, const char *yaml)
{
	AUTO_JSON struct json *json = parse(json_text);
	AUTO_FREE char *text = print(json);

	assert_string_equal(text, yaml);
}

static void test_blocks(void **state)
{
	check("{\"a\":1,\"b\":{\"c\":[1,{\"d\":2,\"e\":[]},[3,[4,5]],\"x\"],\"f\":{}},\"g\":null}",
		"a: 1\n"
		"b:\n"
		"  c:\n"
		"  - 1\n"
		"  - d: 2\n"
		"    e: []\n"
		"  - - 3\n"
		"    - - 4\n"
		"      - 5\n"
		"  - x\n"
		"  f: {}\n"
		"g: null\n");
	check("[{\"a\":{\"b\":true}},false]", "- a:\n    b: true\n- false\n");
	check("{}", "{}\n");
	check("[]", "[]\n");
	check("\"x\"", "x\n");
	check("\"a\\nb\"", "|-\n  a\n  b\n");
}

static void test_quotes(void **state)
{
	static const struct {
		const char *json, *yaml;
	} cases[] = {
		{"\"plain text\"", "plain text"},
		{"\"\"", "\"\""},
		{"\"yes\"", "\"yes\""},
		{"\"No\"", "\"No\""},
		{"\"NULL\"", "\"NULL\""},
		{"\"~\"", "\"~\""},
		{"\"y\"", "\"y\""},
		{"\"1e3\"", "\"1e3\""},
		{"\"0x1f\"", "\"0x1f\""},
		{"\"0o17\"", "\"0o17\""},
		{"\"1_000\"", "\"1_000\""},
		{"\"12:30:45\"", "\"12:30:45\""},
		{"\"2026-11-21\"", "\"2026-11-21\""},
		{"\"2026-11-21T08:00:00Z\"", "\"2026-11-21T08:00:00Z\""},
		{"\".inf\"", "\".inf\""},
		{"\"-1\"", "\"-1\""},
		{"\"+5\"", "\"+5\""},
		{"\"500m\"", "500m"},
		{"\"2Gi\"", "2Gi"},
		{"\"- a\"", "\"- a\""},
		{"\"? a\"", "\"? a\""},
		{"\": a\"", "\": a\""},
		{"\"a: b\"", "\"a: b\""},
		{"\"a:\"", "\"a:\""},
		{"\"a:b\"", "a:b"},
		{"\"a #b\"", "\"a #b\""},
		{"\"a#b\"", "a#b"},
		{"\"#a\"", "\"#a\""},
		{"\"&a\"", "\"&a\""},
		{"\"*a\"", "\"*a\""},
		{"\"!a\"", "\"!a\""},
		{"\"|\"", "\"|\""},
		{"\">\"", "\">\""},
		{"\"%a\"", "\"%a\""},
		{"\"@a\"", "\"@a\""},
		{"\"`a\"", "\"`a\""},
		{"\"[a\"", "\"[a\""},
		{"\"{a\"", "\"{a\""},
		{"\"'a\"", "\"'a\""},
		{"\"<<\"", "\"<<\""},
		{"\"=\"", "\"=\""},
		{"\"---\"", "\"---\""},
		{"\" a\"", "\" a\""},
		{"\"a \"", "\"a \""},
		{"\"\\\"a\\\"\"", "'\"a\"'"},
		{"\"\\\"it's\\\"\"", "\"\\\"it's\\\"\""},
		{"\"a\\\\b\"", "a\\b"},
		{"\"a\\tb\"", "\"a\\tb\""},
		{"\"\\u001b[0m\"", "\"\\u001b[0m\""},
		{"\"a\\u0085b\"", "\"a\\u0085b\""},
		{"\"a\\u2028b\"", "\"a\\u2028b\""},
		{"\"\\ufeffa\"", "\"\\ufeffa\""},
		{"\"\\n\"", "\"\\n\""},
		{"\"a\\n\\n\"", "\"a\\n\\n\""},
		{"\" a\\nb\"", "\" a\\nb\""},
		{"\"a\\r\\nb\"", "\"a\\u000d\\nb\""},
		{"\"$(HOME)/x\"", "$(HOME)/x"},
		{"\"/bin/sh\"", "/bin/sh"},
		{"\"\xc3\xa9t\xc3\xa9\"", "\"\xc3\xa9t\xc3\xa9\""},
		{"1e+21", "1.0e+21"},
		{"1.25", "1.25"},
		{"12345678901234567890", "12345678901234567890"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *yaml = mem_printf("%s\n", cases[i].yaml);
		AUTO_JSON struct json *json = parse(cases[i].json);
		AUTO_FREE char *text = print(json);
		assert_string_equal(text, yaml);
	}
}

static void test_keys(void **state)
{
	check("{\"yes\":1,\"a: b\":2,\"\":3,\"x\\ny\":4,\"1\":5}",
		"\"yes\": 1\n\"a: b\": 2\n\"\": 3\n\"x\\ny\": 4\n\"1\": 5\n");
}

static void test_lines(void **state)
{
	check("{\"a\":[\"x\\n\\n\\ty\\n\",\"p\\n q \\n-\"],\"b\":1}",
		"a:\n- |\n  x\n\n  \ty\n- |-\n  p\n   q \n  -\nb: 1\n");
}

/*
 * Round trips
 */

static uint32_t next(uint32_t *seed)
{
	*seed = *seed * 1664525U + 1013904223U;
	return *seed >> 8;
}

static char *random_text(uint32_t *seed)
{
	static const char *const parts[] = {"a", "yes", "no", "null", " ", "  ", "\n", "\t", ":",
		": ", " #", "-", "- ", "?", "1", "0x", "e3", ".", "'", "\"", "\\", "{", "[", "|",
		">", "%", "@", "!", "&", "*", "~", "\r", "\x1b", "\xc2\x85", "\xe2\x80\xa8",
		"\xef\xbb\xbf", "\xc3\xa9", "\xf0\x9f\x98\x80", ",", "}", "]", "=", "<<", "_",
		"$(x)", "---", "..."};
	AUTO_BUF struct buf text;

	buf_init(&text, 4096);
	for (uint32_t n = next(seed) % 6; n; n--)
		buf_adds(&text, parts[next(seed) % ARRAY_LEN(parts)]);
	return buf_take(&text);
}

static struct json *random_value(uint32_t *seed, unsigned depth)
{
	uint32_t kind = next(seed) % (depth > 3 ? 4 : 6);
	struct json *json = kind == 5 ? json_object() : json_array();

	for (uint32_t n = next(seed) % 4; n; n--) {
		AUTO_FREE char *key = mem_printf("%u", n), *more = random_text(seed);
		AUTO_FREE char *name = mem_printf("%s%s", more, key), *text = random_text(seed);
		if (kind == 5)
			json_set(json, name, random_value(seed, depth + 1));
		else if (kind == 4)
			json_add(json, random_value(seed, depth + 1));
		else
			json_add_str(json, text);
	}
	return json;
}

static bool is_same(const struct json *json, const struct yaml *yaml)
{
	const struct yaml *below = yaml->first;

	if (json_str(json))
		return yaml->kind == YAML_SCALAR && str_eq(json_str(json), yaml->text) &&
		       !yaml_is_null(yaml);
	if (yaml->kind != (json_kind(json) == JSON_OBJECT ? YAML_MAP : YAML_LIST))
		return false;
	for (const struct json *item = json_first(json); item;
		item = json_next(item), below = below->next)
		if (!below || !str_eq(json_key(item), below->key) || !is_same(item, below))
			return false;
	return !below;
}

static void test_round_trip(void **state)
{
	for (uint32_t i = 0; i < 20000; i++) {
		uint32_t seed = i;
		AUTO_JSON struct json *json = random_value(&seed, 0);
		AUTO_FREE char *text = print(json);
		AUTO_YAML struct yaml *yaml = NULL;
		AUTO_ERR struct err err = {0};

		if (yaml_parse(text, strlen(text), "out", &yaml, &err) < 0)
			fail_msg("seed %u: %s in:\n%s", i, err.message, text);
		if (!is_same(json, yaml))
			fail_msg("seed %u is another value:\n%s", i, text);
	}
}

/* One document per value, and what each should be, for the YAML of Python where there is one. */
static void test_python(void **state)
{
	static const char script[] =
		"import sys, json\n"
		"try:\n import yaml\nexcept ImportError:\n sys.exit(77)\n"
		"want = [json.loads(l) for l in open(sys.argv[1] + '/json', encoding='utf-8')]\n"
		"have = list(yaml.safe_load_all(open(sys.argv[1] + '/yaml', encoding='utf-8')))\n"
		"bad = [i for i, (a, b) in enumerate(zip(want, have)) if a != b]\n"
		"sys.exit(1 if bad or len(want) != len(have) else 0)\n";
	char dir[] = "/tmp/dlrun-yaml-XXXXXX";

	assert_non_null(mkdtemp(dir));
	AUTO_FREE char *json_name = mem_printf("%s/json", dir);
	AUTO_FREE char *yaml_name = mem_printf("%s/yaml", dir);
	AUTO_FREE char *py_name = mem_printf("%s/check.py", dir);
	AUTO_FREE char *command = mem_printf("python3 %s %s", py_name, dir);
	FILE *json_file = fopen(json_name, "we"), *yaml_file = fopen(yaml_name, "we");
	FILE *py_file = fopen(py_name, "we");
	assert_true(json_file && yaml_file && py_file);
	fputs(script, py_file);
	fclose(py_file);
	for (uint32_t i = 0; i < 500; i++) {
		uint32_t seed = i * 7;
		AUTO_JSON struct json *json = random_value(&seed, 0);
		AUTO_FREE char *text = print(json);
		AUTO_BUF struct buf line;
		buf_init(&line, JSON_SIZE_MAX);
		json_print(json, &line);
		fprintf(json_file, "%s\n", line.data);
		fprintf(yaml_file, "---\n%s", text);
	}
	fclose(json_file);
	fclose(yaml_file);
	int status = system(command);
	unlink(json_name);
	unlink(yaml_name);
	unlink(py_name);
	rmdir(dir);
	if (status == 77 << 8 || status == 127 << 8)
		skip();
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_quotes),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_python),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

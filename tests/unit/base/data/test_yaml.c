/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/yaml.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static struct yaml *parse(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct yaml *yaml = NULL;

	if (yaml_parse(text, strlen(text), "f.yaml", &yaml, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return yaml;
}

static void check_refused_bytes(const char *text, size_t len, const char *message)
{
	AUTO_ERR struct err err = {0};
	struct yaml *yaml = (struct yaml *)"untouched";

	int r = yaml_parse(text, len, "f.yaml", &yaml, &err);
	if (r == 0)
		fail_msg("accepted: %s", text);
	assert_int_equal(r, -ERR_CONFIG);
	assert_int_equal(err.id, E_CONFIG_SYNTAX);
	assert_string_equal(err.message, message);
	assert_string_equal((const char *)yaml, "untouched");
}

static void check_refused(const char *text, const char *message)
{
	check_refused_bytes(text, strlen(text), message);
}

static void check_scalar(const struct yaml *node, unsigned line, const char *text, bool plain)
{
	assert_non_null(node);
	assert_int_equal(node->kind, YAML_SCALAR);
	assert_int_equal(node->mark.line, line);
	assert_string_equal(node->text, text);
	assert_int_equal(node->plain, plain);
	assert_null(node->first);
}

static void test_tree(void **state)
{
	AUTO_YAML struct yaml *root = parse("# about\n"
					    "name: digits\n"
					    "command: [python, 'train.py', \"--lr\\t\"]\n"
					    "env:\n"
					    "  A: 1\n"
					    "  \"B\":\n"
					    "\n"
					    "text: |\n"
					    "  two\n"
					    "  lines\n"
					    "list:\n"
					    "- x: 1\n"
					    "  y: 2\n"
					    "- {}\n"
					    "- []\n");

	assert_int_equal(root->kind, YAML_MAP);
	assert_null(root->key);
	assert_null(root->parent);
	check_scalar(yaml_get(root, "name"), 2, "digits", true);
	assert_int_equal(yaml_get(root, "name")->key_mark.line, 2);
	assert_ptr_equal(yaml_get(root, "name")->parent, root);

	const struct yaml *command = yaml_get(root, "command");
	assert_int_equal(command->kind, YAML_LIST);
	assert_int_equal(command->mark.line, 3);
	check_scalar(command->first, 3, "python", true);
	assert_null(command->first->key);
	check_scalar(command->first->next, 3, "train.py", false);
	check_scalar(command->first->next->next, 3, "--lr\t", false);
	assert_null(command->first->next->next->next);

	const struct yaml *env = yaml_get(root, "env");
	assert_int_equal(env->kind, YAML_MAP);
	assert_int_equal(env->key_mark.line, 4);
	assert_int_equal(env->mark.line, 5);
	check_scalar(yaml_get(env, "A"), 5, "1", true);
	assert_true(yaml_is_null(yaml_get(env, "B")));
	assert_string_equal(env->first->next->key, "B");
	assert_int_equal(env->first->next->key_mark.line, 6);
	check_scalar(yaml_get(root, "text"), 8, "two\nlines\n", false);

	const struct yaml *list = yaml_get(root, "list");
	check_scalar(yaml_get(list->first, "y"), 13, "2", true);
	assert_int_equal(list->first->next->kind, YAML_MAP);
	assert_null(list->first->next->first);
	assert_int_equal(list->first->next->next->kind, YAML_LIST);
	assert_null(list->next);
}

static void test_get(void **state)
{
	AUTO_YAML struct yaml *root = parse("a: 1\nb: [c]\n");

	assert_null(yaml_get(NULL, "a"));
	assert_null(yaml_get(root, "A"));
	assert_null(yaml_get(yaml_get(root, "a"), "a"));
	assert_null(yaml_get(yaml_get(root, "b"), "c"));
	yaml_tree_free(NULL);
}

static void test_empty(void **state)
{
	static const char *const texts[] = {
		"", "\n\n", "# only this\n", "---\n", "---\n...\n", "\xef\xbb\xbf", "   \n"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		AUTO_YAML struct yaml *root = parse(texts[i]);
		assert_int_equal(root->kind, YAML_MAP);
		assert_null(root->first);
		assert_null(root->text);
		assert_in_range(root->mark.line, 1, 2);
	}
	struct yaml *none = NULL;
	assert_int_equal(yaml_parse(NULL, 0, "f", &none, NULL), 0);
	assert_int_equal(none->kind, YAML_MAP);
	yaml_tree_free(none);
}

static void test_other_roots(void **state)
{
	AUTO_YAML struct yaml *scalar = parse("just text\n");
	AUTO_YAML struct yaml *list = parse("- 1\n- 2\n");
	AUTO_YAML struct yaml *quoted = parse("''\n");

	check_scalar(scalar, 1, "just text", true);
	assert_int_equal(list->kind, YAML_LIST);
	check_scalar(list->first->next, 2, "2", true);
	check_scalar(quoted, 1, "", false);
}

static void test_null(void **state)
{
	AUTO_YAML struct yaml *root =
		parse("a:\nb: ~\nc: null\nd: Null\ne: NULL\n"
		      "f: ''\ng: \"null\"\nh: nULL\ni: 0\nj: []\nk: |\n  ~\n");

	assert_true(yaml_is_null(NULL));
	for (const struct yaml *m = root->first; m; m = m->next)
		assert_int_equal(yaml_is_null(m), strchr("abcde", *m->key) != NULL);
}

static void test_directive_and_escapes(void **state)
{
	AUTO_YAML struct yaml *root = parse("%YAML 1.1\n---\n'on': yes\nb: >\n  folded\n  text\n"
					    "c: caf\xc3\xa9\nd: \"\\u20ac\\x41\"\n");

	check_scalar(yaml_get(root, "on"), 3, "yes", true);
	check_scalar(yaml_get(root, "b"), 4, "folded text\n", false);
	check_scalar(yaml_get(root, "c"), 7, "caf\xc3\xa9", true);
	check_scalar(yaml_get(root, "d"), 8,
		"\xe2\x82\xac"
		"A",
		false);
}

static const char *const refused[][2] = {
	{"a: 1\nb: 2\na: 3\n", "f.yaml:3:1: the key 'a' is set twice, first on line 1"},
	{"m:\n  x: 1\n  'x': 2\n", "f.yaml:3:3: the key 'x' is set twice, first on line 2"},
	{"m: {x: 1, \"\\x78\": 2}\n", "f.yaml:1:11: the key 'x' is set twice, first on line 1"},
	{"\n- x: 1\n  y: 2\n  x: 3\n", "f.yaml:4:3: the key 'x' is set twice, first on line 2"},
	{"a:\n  b: 1\n\tc: 2\n", "f.yaml:3:1: a tab in the indentation"},
	{"\ta: 1\n", "f.yaml:1:1: a tab in the indentation"},
	{"a: &x 1\n", "f.yaml:1:4: anchors (&name) are not accepted"},
	{"a: 1\nb: &x [1]\n", "f.yaml:2:4: anchors (&name) are not accepted"},
	{"a: 1\nb:\n  &x c: 1\n", "f.yaml:3:3: anchors (&name) are not accepted"},
	{"a: 1\nb: *a\n", "f.yaml:2:4: aliases (*name) are not accepted"},
	{"*a : 1\n", "f.yaml:1:1: aliases (*name) are not accepted"},
	{"a: !!str 1\n", "f.yaml:1:4: tags (!name) are not accepted"},
	{"a: ! 1\n", "f.yaml:1:4: tags (!name) are not accepted"},
	{"a: !env HOME\n", "f.yaml:1:4: tags (!name) are not accepted"},
	{"a: !!map {}\n", "f.yaml:1:4: tags (!name) are not accepted"},
	{"!!seq [a]\n", "f.yaml:1:1: tags (!name) are not accepted"},
	{"!!str a: 1\n", "f.yaml:1:1: tags (!name) are not accepted"},
	{"<<: {a: 1}\n", "f.yaml:1:1: merge keys (<<) are not accepted"},
	{"a: 1\n---\nb: 1\n", "f.yaml:2:1: a second document starts here, only one is accepted"},
	{"---\n---\n", "f.yaml:2:1: a second document starts here, only one is accepted"},
	{"? [a]\n: 1\n", "f.yaml:1:3: a key must be a single word or text"},
	{"{a: 1}: 1\n", "f.yaml:1:1: a key must be a single word or text"},
	{"a: 1\n? {b: 1}\n: 1\n", "f.yaml:2:3: a key must be a single word or text"},
	{": 1\n", "f.yaml:1:1: while parsing a block mapping did not find expected key"},
	{"a: 1\n? \n: 1\n", "f.yaml:2:2: a key is missing before \":\""},
	{"a: \"x\\0y\"\n", "f.yaml:1:4: a NUL character in a text"},
	{"\"x\\0\": 1\n", "f.yaml:1:1: a NUL character in a text"},
	{"a: b: c\n", "f.yaml:1:5: mapping values are not allowed in this context"},
	{"a: 1\nb\nc: 1\n", "f.yaml:3:1: while scanning a simple key could not find expected ':'"},
	{"a: [1\n", "f.yaml:2:1: while parsing a flow sequence did not find expected ',' or ']'"},
	{"a: 'x\n", "f.yaml:2:1: while scanning a quoted scalar found unexpected end of stream"},
	{"a: @x\n", "f.yaml:1:4: while scanning for the next token found character that "
		    "cannot start any token"},
	{"a: 1\nb: \x01\n", "f.yaml:2:4: control characters are not allowed"},
	{"a: 1\n\nb: \xff\n", "f.yaml:3:4: invalid leading UTF-8 octet"},
	{"a: \xc3", "f.yaml:1:4: incomplete UTF-8 octet sequence"},
	{"a: \xed\xa0\x80\n", "f.yaml:1:4: invalid Unicode character"},
	{"a: \"\\ud800\"\n", "f.yaml:1:7: while parsing a quoted scalar found invalid Unicode "
			     "character escape code"},
	{"a: 1\n  b: 2\n", "f.yaml:2:4: mapping values are not allowed in this context"},
	{"%TAG ! tag:x,2000:\n---\na: !y 1\n", "f.yaml:3:4: tags (!name) are not accepted"},
	{"%YAML 3.0\n---\na: 1\n", "f.yaml:1:1: found incompatible YAML document"},
	{"\xff\xfe"
	 "a",
		"f.yaml:1:1: invalid leading UTF-8 octet"},
};

static void test_refused(void **state)
{
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
		check_refused(refused[i][0], refused[i][1]);
	check_refused_bytes("a: 1\0\n", 6, "f.yaml:1:5: control characters are not allowed");
}

static void test_same_keys_in_other_maps(void **state)
{
	AUTO_YAML struct yaml *root = parse("a: {a: 1, b: 2}\nb: [{a: 1}, {a: 2}]\nc:\n  a: 1\n");

	check_scalar(yaml_get(yaml_get(root, "c"), "a"), 4, "1", true);
}

static void test_tab_hint(void **state)
{
	AUTO_ERR struct err err = {0};
	struct yaml *yaml;
	const char *text = "a:\n\tb: 1\n";

	assert_int_equal(yaml_parse(text, strlen(text), "f.yaml", &yaml, &err), -ERR_CONFIG);
	assert_string_equal(err.hint, "indent with spaces");
}

static char *repeat(const char *open, size_t n, const char *close)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 4 << 20);
	for (size_t i = 0; i < n; i++)
		buf_adds(&text, open);
	for (size_t i = 0; i < n; i++)
		buf_adds(&text, close);
	return buf_take(&text);
}

static void test_depth(void **state)
{
	AUTO_FREE char *fits = repeat("[", YAML_DEPTH_MAX, "]");
	AUTO_FREE char *deep = repeat("[", YAML_DEPTH_MAX + 1, "]");

	AUTO_YAML struct yaml *root = parse(fits);
	assert_int_equal(root->kind, YAML_LIST);
	check_refused(deep, "f.yaml:1:65: nested deeper than 64 levels");
}

/* libyaml alone takes 6 s for 64 KiB of [. */
static void test_deep_is_fast(void **state)
{
	static const char *const opens[] = {"[", "[\n", "- ", "{a: ", "? ", "[? ", "{", "-\n "};
	static const size_t sizes[] = {65536, YAML_SIZE_MAX};

	for (size_t i = 0; i < 2 * sizeof(opens) / sizeof(*opens); i++) {
		const char *open = opens[i / 2];
		AUTO_FREE char *text = repeat(open, sizes[i % 2] / strlen(open), "");
		AUTO_ERR struct err err = {0};
		struct yaml *yaml;
		int64_t start_ms = clock_ms();
		assert_int_equal(yaml_parse(text, strlen(text), "f", &yaml, &err), -ERR_CONFIG);
		assert_in_range(clock_ms() - start_ms, 0, 500);
	}
}

/* libyaml alone takes 7 s for 1 MiB of them, in front of a document or behind the first. */
static void test_tag_directives(void **state)
{
	static const char *const starts[] = {"", "a: 1\n...\n"};
	static const char *const breaks[] = {"\n", "\r", "\r\n", "\xc2\x85", "\xe2\x80\xa8"};

	for (size_t i = 0; i < 2 * sizeof(breaks) / sizeof(*breaks); i++) {
		AUTO_BUF struct buf text;

		buf_init(&text, YAML_SIZE_MAX);
		buf_adds(&text, starts[i % 2]);
		for (int n = 0; text.len < YAML_SIZE_MAX - 100; n++)
			buf_addf(&text, "%%TAG !t%d! x%s", n, breaks[i / 2]);
		buf_adds(&text, "---\nb: 2\n");
		int64_t start_ms = clock_ms();
		AUTO_ERR struct err err = {0};
		struct yaml *yaml;
		assert_int_equal(yaml_parse(text.data, text.len, "f", &yaml, &err), -ERR_CONFIG);
		assert_non_null(strstr(err.message, ": more than 100 %TAG directives"));
		assert_in_range(clock_ms() - start_ms, 0, 2000);
	}
	AUTO_BUF struct buf fits;
	buf_init(&fits, YAML_SIZE_MAX);
	for (int n = 0; n < 100; n++)
		buf_addf(&fits, "%%TAG !t%d! x\n", n);
	buf_adds(&fits, "---\na: [");
	for (int n = 0; n < 100; n++)
		buf_adds(&fits, "'%TAG', \"x %TAG\", ");
	buf_adds(&fits, "]\n");
	AUTO_YAML struct yaml *root = parse(fits.data);
	assert_int_equal(yaml_get(root, "a")->kind, YAML_LIST);
	buf_adds(&fits, "%TAG");
	check_refused(fits.data, "f.yaml:103:1: more than 100 %TAG directives");
}

static void test_size(void **state)
{
	AUTO_FREE char *text = mem_alloc(YAML_SIZE_MAX + 2, 1);

	memset(text, '#', YAML_SIZE_MAX + 1);
	check_refused(text, "f.yaml is larger than 1 MiB");
	text[YAML_SIZE_MAX] = '\0';
	AUTO_YAML struct yaml *root = parse(text);
	assert_null(root->first);
}

static void test_events(void **state)
{
	AUTO_FREE char *many = repeat("- x\n", YAML_EVENTS_MAX, "");
	/* Two for the stream, two for the document, two for the list. */
	AUTO_FREE char *fits = repeat("- x\n", YAML_EVENTS_MAX - 6, "");

	check_refused(many, "f.yaml:9998:3: more than 10,000 keys and values");
	AUTO_YAML struct yaml *root = parse(fits);
	assert_int_equal(root->kind, YAML_LIST);
}

static void test_many_keys(void **state)
{
	AUTO_BUF struct buf text;
	size_t n = 0;

	buf_init(&text, YAML_SIZE_MAX);
	for (int i = 0; i < 4990; i++)
		buf_addf(&text, "key%d: %d\n", i, i);
	AUTO_YAML struct yaml *root = parse(text.data);
	for (const struct yaml *m = root->first; m; m = m->next)
		assert_int_equal(m->mark.line, ++n);
	assert_int_equal(n, 4990);
	buf_adds(&text, "key7: again\n");
	check_refused(text.data, "f.yaml:4991:1: the key 'key7' is set twice, first on line 8");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tree),
		cmocka_unit_test(test_get),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_other_roots),
		cmocka_unit_test(test_null),
		cmocka_unit_test(test_directive_and_escapes),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_same_keys_in_other_maps),
		cmocka_unit_test(test_tab_hint),
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_deep_is_fast),
		cmocka_unit_test(test_tag_directives),
		cmocka_unit_test(test_size),
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_many_keys),
	};

	return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layer/layer.h"

static char *repeat(const char *s, size_t n)
{
	size_t len = strlen(s);
	char *text = mem_alloc(n * len + 1, 1);

	for (size_t i = 0; i < n; i++)
		memcpy(text + i * len, s, len);
	return text;
}

static void test_valid(void **state)
{
	const char *const good[] = {"a", "a/b", ".a", "..a", "a..", "...", "-", " ", "\n", "\xff",
		"a/.w/h", "wh.x", ".wh", "a\\b"};
	const char *const bad[] = {"", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/.", "a/..",
		"a/../b", ".wh.", ".wh.a", "a/.wh.b", ".wh.a/b", ".wh..wh..opq"};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		assert_true(layer_path_is_valid(good[i]));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(layer_path_is_valid(bad[i]));
}

static void test_lengths(void **state)
{
	AUTO_FREE char *name = repeat("n", 255), *long_name = repeat("n", 256);
	AUTO_FREE char *path = repeat("d/", 2047), *full = mem_printf("%sx", path);
	AUTO_FREE char *over = mem_printf("%sxy", path), *member = mem_printf("dlrun/src/%s", full);
	AUTO_FREE char *member_over = mem_printf("dlrun/src/%s", over);
	AUTO_FREE char *far = repeat("d/", 4000);
	AUTO_FREE char *whiteout = mem_printf("dlrun/src/.wh.%s", name);
	AUTO_FREE char *whiteout_over = mem_printf("dlrun/src/.wh.%s", long_name);
	AUTO_ERR struct err err = {0};
	struct layer_path parsed;

	assert_true(layer_path_is_valid(name));
	assert_false(layer_path_is_valid(long_name));
	assert_int_equal(strlen(full), 4095);
	assert_true(layer_path_is_valid(full));
	assert_false(layer_path_is_valid(over));
	assert_int_equal(layer_path_parse(member, "/dlrun/src", &parsed, &err), 0);
	assert_string_equal(parsed.path, full);
	assert_int_equal(layer_path_parse(whiteout, "/dlrun/src", &parsed, &err), 0);
	assert_string_equal(parsed.path, name);
	assert_true(layer_path_parse(member_over, "/dlrun/src", &parsed, &err) < 0);
	assert_int_equal(err.id, E_IMAGE);
	err_clear(&err);
	assert_true(layer_path_parse(far, "/dlrun/src", &parsed, &err) < 0);
	assert_int_equal(err.id, E_IMAGE);
	err_clear(&err);
	assert_true(layer_path_parse(long_name, "/dlrun/src", &parsed, &err) < 0);
	err_clear(&err);
	assert_true(layer_path_parse(whiteout_over, "/dlrun/src", &parsed, &err) < 0);
}

static const struct {
	const char *name;
	enum layer_place place;
	enum layer_mark mark;
	const char *path;
} parsed_names[] = {
	{"dlrun/src/a", LAYER_INSIDE, LAYER_PLAIN, "a"},
	{"dlrun/src/a/", LAYER_INSIDE, LAYER_PLAIN, "a"},
	{"./dlrun/src/a/b", LAYER_INSIDE, LAYER_PLAIN, "a/b"},
	{"./././dlrun//src/./a/.", LAYER_INSIDE, LAYER_PLAIN, "a"},
	{"dlrun/src/..a/.b", LAYER_INSIDE, LAYER_PLAIN, "..a/.b"},
	{"dlrun/src/\xff\n", LAYER_INSIDE, LAYER_PLAIN, "\xff\n"},
	{".", LAYER_ABOVE, LAYER_PLAIN, ""},
	{"./", LAYER_ABOVE, LAYER_PLAIN, ""},
	{"dlrun", LAYER_ABOVE, LAYER_PLAIN, ""},
	{"dlrun/", LAYER_ABOVE, LAYER_PLAIN, ""},
	{"dlrun/src", LAYER_ABOVE, LAYER_PLAIN, ""},
	{"dlrun/src/.", LAYER_ABOVE, LAYER_PLAIN, ""},
	{"dlru", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"dlrunx", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"dlrun/s", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"dlrun/src2", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"dlrun/src2/a", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"etc/passwd", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"src/a", LAYER_OUTSIDE, LAYER_PLAIN, ""},
	{"dlrun/src/.wh.a", LAYER_INSIDE, LAYER_REMOVED, "a"},
	{"dlrun/src/d/.wh.a", LAYER_INSIDE, LAYER_REMOVED, "d/a"},
	{"dlrun/src/d/.wh.a/", LAYER_INSIDE, LAYER_REMOVED, "d/a"},
	{"dlrun/src/.wh.wh.a", LAYER_INSIDE, LAYER_REMOVED, "wh.a"},
	{"dlrun/src/.wh....", LAYER_INSIDE, LAYER_REMOVED, "..."},
	{"dlrun/.wh.src", LAYER_ABOVE, LAYER_REMOVED, ""},
	{".wh.dlrun", LAYER_ABOVE, LAYER_REMOVED, ""},
	{".wh.dlrunx", LAYER_OUTSIDE, LAYER_REMOVED, ""},
	{"etc/.wh.passwd", LAYER_OUTSIDE, LAYER_REMOVED, ""},
	{"dlrun/src/d/.wh..wh..opq", LAYER_INSIDE, LAYER_EMPTIED, "d"},
	{"dlrun/src/.wh..wh..opq", LAYER_ABOVE, LAYER_EMPTIED, ""},
	{"dlrun/.wh..wh..opq", LAYER_ABOVE, LAYER_EMPTIED, ""},
	{".wh..wh..opq", LAYER_ABOVE, LAYER_EMPTIED, ""},
	{"etc/.wh..wh..opq", LAYER_OUTSIDE, LAYER_EMPTIED, ""},
};

static void test_parse(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(parsed_names); i++) {
		AUTO_ERR struct err err = {0};
		struct layer_path path;
		if (layer_path_parse(parsed_names[i].name, "/dlrun/src", &path, &err))
			fail_msg("%s: %s", parsed_names[i].name, err.message);
		if (path.place != parsed_names[i].place || path.mark != parsed_names[i].mark ||
			!str_eq(path.path, parsed_names[i].path))
			fail_msg("%s: place %d, mark %d, path %s", parsed_names[i].name, path.place,
				path.mark, path.path);
	}
}

static void test_refused(void **state)
{
	const char *const bad[] = {"", "/", "/a", "/dlrun/src/a", "..", "../a", "a/..", "a/../b",
		"dlrun/src/../../etc/passwd", "./..", ".wh.", "a/.wh.", ".wh..", ".wh...",
		"a/.wh...", ".wh..wh.", ".wh..wh.a", ".wh..wh..opq/a", ".wh.a/b", "a/.wh.b/c",
		"a/.wh./", ".wh..wh..opqx", ".wh..wh.plnk"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_ERR struct err err = {0};
		struct layer_path path;
		if (layer_path_parse(bad[i], "/dlrun/src", &path, &err) == 0)
			fail_msg("%s was taken as %s", bad[i], path.path);
		assert_int_equal(err.id, E_IMAGE);
	}
}

static void test_workdirs(void **state)
{
	AUTO_ERR struct err err = {0};
	struct layer_path path;

	assert_string_equal(layer_prefix("/"), "");
	assert_string_equal(layer_prefix("/a/b"), "a/b");
	assert_int_equal(layer_path_parse("etc/x", "/", &path, &err), 0);
	assert_int_equal(path.place, LAYER_INSIDE);
	assert_string_equal(path.path, "etc/x");
	assert_int_equal(layer_path_parse("./", "/", &path, &err), 0);
	assert_int_equal(path.place, LAYER_ABOVE);
	assert_int_equal(layer_path_parse("w/x", "/w", &path, &err), 0);
	assert_string_equal(path.path, "x");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_valid),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_workdirs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

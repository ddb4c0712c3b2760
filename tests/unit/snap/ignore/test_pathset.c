/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "snap/ignore/ignore.h"

static void init(struct pathset *set, const char *const *paths, size_t n)
{
	AUTO_STRV struct strv given = {0};

	for (size_t i = 0; i < n; i++)
		strv_add(&given, paths[i]);
	assert_int_equal(pathset_init(set, &given, "include", NULL), 0);
}

static void test_normal_form(void **state)
{
	static const char *const given[] = {
		"b", "./a//b/", "a-b", "a/./c", "b/", "...", "a/..b", "x."};
	static const char *const normal[] = {"...", "a-b", "a/..b", "a/b", "a/c", "b", "x."};
	struct pathset set;

	init(&set, given, ARRAY_LEN(given));
	assert_int_equal(set.paths.n, ARRAY_LEN(normal));
	for (size_t i = 0; i < ARRAY_LEN(normal); i++)
		assert_string_equal(set.paths.v[i], normal[i]);
	assert_false(set.all);
	pathset_done(&set);
	pathset_done(&set);
}

static void test_refused(void **state)
{
	static const char *const bad[] = {"", "/", "/a", "..", "../a", "a/..", "a/../b", "./.."};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_STRV struct strv given = {0};
		struct err err = {0};
		struct pathset set;
		strv_add(&given, "fine");
		strv_add(&given, bad[i]);
		assert_int_equal(pathset_init(&set, &given, "paths", &err), -ERR_USAGE);
		assert_int_equal(err.id, E_SNAPSHOT_INCLUDE);
		assert_int_equal(strncmp(err.message, "paths: \"", 8), 0);
		assert_non_null(err.hint);
		assert_int_equal(set.paths.n, 0);
		err_clear(&err);
	}
}

static void test_none_and_all(void **state)
{
	static const char *const dot[] = {"./", "a"};
	struct pathset set;

	assert_int_equal(pathset_init(&set, NULL, "include", NULL), 0);
	assert_false(pathset_covers(&set, "a"));
	assert_false(pathset_at_root(&set).covered || pathset_at_root(&set).below);
	pathset_done(&set);
	init(&set, dot, 2);
	assert_true(set.all);
	assert_true(pathset_covers(&set, "b/c"));
	assert_true(pathset_at_root(&set).covered);
	pathset_done(&set);
}

static void test_covers(void **state)
{
	static const char *const given[] = {"a/b", "a-b", "c"};
	struct pathset set;

	init(&set, given, ARRAY_LEN(given));
	assert_true(pathset_covers(&set, "a/b"));
	assert_true(pathset_covers(&set, "a/b/x/y"));
	assert_true(pathset_covers(&set, "a-b"));
	assert_true(pathset_covers(&set, "c/a"));
	assert_false(pathset_covers(&set, "a"));
	assert_false(pathset_covers(&set, "a/bb"));
	assert_false(pathset_covers(&set, "a/c"));
	assert_false(pathset_covers(&set, "a-bc"));
	assert_false(pathset_covers(&set, "cc"));
	assert_false(pathset_covers(&set, "b"));
	pathset_done(&set);
}

static void test_reach(void **state)
{
	static const char *const given[] = {"a/b/c", "a-b", "a", "d/e/f"};
	struct pathset set;

	init(&set, given, ARRAY_LEN(given));
	struct pathset_reach root = pathset_at_root(&set);
	assert_true(root.below && !root.covered);
	struct pathset_reach a = pathset_enter(&set, root, "a");
	assert_true(a.covered);
	assert_true(pathset_enter(&set, a, "a/x").covered);
	struct pathset_reach d = pathset_enter(&set, root, "d");
	assert_true(!d.covered && d.below);
	assert_false(pathset_enter(&set, root, "d-").below);
	struct pathset_reach e = pathset_enter(&set, d, "d/e");
	assert_true(!e.covered && e.below);
	assert_true(pathset_enter(&set, e, "d/e/f").covered);
	struct pathset_reach g = pathset_enter(&set, e, "d/e/g");
	assert_false(g.covered || g.below);
	pathset_done(&set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_normal_form),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_none_and_all),
		cmocka_unit_test(test_covers),
		cmocka_unit_test(test_reach),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

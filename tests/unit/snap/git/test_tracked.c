/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/util/vec.h"
#include "snap/git/gitindex.h"

static const char *const paths[] = {"a", "a-b", "a-b/c", "a/b", "a/b-c", "a/b/c", "a/b/d/e", "a/b0",
	"a0/x", "b", "c/\xff", "z/a/a", "z/a/b", "z/b"};

static void fill(struct tracked *tracked)
{
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct tracked_path *entry = vec_push(tracked);
		entry->path = arena_strdup(&tracked->arena, paths[i]);
		entry->mode = TRACKED_MODE_FILE;
	}
}

static void test_find(void **state)
{
	struct tracked tracked = {0};

	assert_null(tracked_find(&tracked, "a"));
	fill(&tracked);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		assert_ptr_equal(tracked_find(&tracked, paths[i]), &tracked.v[i]);
	assert_null(tracked_find(&tracked, ""));
	assert_null(tracked_find(&tracked, "a/"));
	assert_null(tracked_find(&tracked, "a/b/d"));
	assert_null(tracked_find(&tracked, "zz"));
	tracked_done(&tracked);
	tracked_done(&tracked);
}

/* The names of directory a with some that the index does not have, in order. */
static void test_cursor(void **state)
{
	struct tracked tracked = {0};
	struct tracked_cursor cursor;
	size_t n;

	fill(&tracked);
	tracked.v[7].mode = TRACKED_MODE_GITLINK;
	tracked_cursor_init(&cursor, &tracked, "a", 3, 5);
	assert_null(tracked_cursor_file(&cursor, "A"));
	assert_ptr_equal(tracked_cursor_file(&cursor, "b"), &tracked.v[3]);
	assert_null(tracked_cursor_file(&cursor, "b "));
	assert_ptr_equal(tracked_cursor_file(&cursor, "b-c"), &tracked.v[4]);
	assert_null(tracked_cursor_file(&cursor, "b-d"));
	assert_int_equal(tracked_cursor_dir(&cursor, "b", &n), 5);
	assert_int_equal(n, 2);
	assert_true(tracked_cursor_is_gitlink(&cursor, "b0"));
	assert_false(tracked_cursor_is_gitlink(&cursor, "b"));
	assert_false(tracked_cursor_is_gitlink(&cursor, "c"));
	assert_ptr_equal(tracked_cursor_file(&cursor, "b0"), &tracked.v[7]);
	tracked_cursor_dir(&cursor, "c", &n);
	assert_int_equal(n, 0);
	assert_null(tracked_cursor_file(&cursor, "d"));
	tracked_done(&tracked);

	tracked_cursor_init(&cursor, NULL, "", 0, 0);
	assert_null(tracked_cursor_file(&cursor, "a"));
	tracked_cursor_dir(&cursor, "a", &n);
	assert_int_equal(n, 0);
	assert_false(tracked_cursor_is_gitlink(&cursor, "a"));
}

/* Any subset of the names, asked in order, finds what a search from the start finds. */
static void test_cursor_finds_all(void **state)
{
	enum { N = 300, ROUNDS = 200 };
	struct tracked tracked = {0};
	unsigned random = 1;
	char name[16];

	for (int i = 0; i < N; i++) {
		struct tracked_path *entry = vec_push(&tracked);
		snprintf(name, sizeof(name), i % 7 ? "%04d" : "%04d/x", i);
		entry->path = arena_strdup(&tracked.arena, name);
	}
	for (int round = 0; round < ROUNDS; round++) {
		struct tracked_cursor cursor;
		tracked_cursor_init(&cursor, &tracked, "", 0, N);
		for (int i = 0; i < N; i++) {
			size_t n;
			random = random * 1103515245 + 12345;
			if (random >> 16 & (1U << round % 6))
				continue;
			snprintf(name, sizeof(name), "%04d", i);
			if (i % 7) {
				assert_ptr_equal(tracked_cursor_file(&cursor, name), &tracked.v[i]);
			} else {
				assert_int_equal(tracked_cursor_dir(&cursor, name, &n), i);
				assert_int_equal(n, 1);
			}
		}
	}
	tracked_done(&tracked);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_cursor),
		cmocka_unit_test(test_cursor_finds_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/mem.h"

static void test_empty(void **state)
{
	struct arena arena = {0};

	arena_done(NULL);
	arena_done(&arena);
	assert_non_null(arena_alloc(&arena, 0));
	arena_done(&arena);
	assert_null(arena.blocks);
	assert_int_equal(arena.bytes, 0);
}

/* Pieces of all sizes: aligned, apart from each other, and as they were when more were added. */
static void test_pieces(void **state)
{
	enum { N = 3000 };
	static unsigned char *pieces[N];
	struct arena arena = {0};
	size_t sum = 0;

	for (size_t i = 0; i < N; i++) {
		size_t size = i % 100 == 99 ? i * 100 : i % 97;
		pieces[i] = arena_alloc(&arena, size);
		assert_int_equal((uintptr_t)pieces[i] % _Alignof(max_align_t), 0);
		memset(pieces[i], (int)(i % 251), size);
		char *s = arena_strndup(&arena, "abcdef", i % 6);
		assert_int_equal(strlen(s), i % 6);
		sum += size + i % 6 + 1;
	}
	assert_int_equal(arena.bytes, sum);
	for (size_t i = 0; i < N; i++)
		for (size_t k = 0; k < (i % 100 == 99 ? i * 100 : i % 97); k++)
			assert_int_equal(pieces[i][k], i % 251);
	arena_done(&arena);
}

static void test_strings_are_packed(void **state)
{
	struct arena arena = {0};
	char *a = arena_strdup(&arena, "ab");
	char *b = arena_strdup(&arena, "");

	assert_string_equal(a, "ab");
	assert_string_equal(b, "");
	assert_ptr_equal(b, a + 3);
	arena_done(&arena);
}

/* A large piece does not end the block that small ones come from. */
static void test_large_piece_stands_alone(void **state)
{
	struct arena arena = {0};
	char *a = arena_strdup(&arena, "a");
	char *large = arena_alloc(&arena, 1 << 20);
	char *b = arena_strdup(&arena, "b");

	memset(large, 'x', 1 << 20);
	assert_ptr_equal(b, a + 2);
	assert_string_equal(a, "a");
	arena_done(&arena);
	/* Also as the first of all. */
	large = arena_alloc(&arena, 1 << 20);
	memset(large, 'x', 1 << 20);
	assert_string_equal(arena_strdup(&arena, "c"), "c");
	arena_done(&arena);
}

static void test_merge(void **state)
{
	struct arena a = {0}, b = {0}, none = {0};
	char *of_a = arena_strdup(&a, "of a");
	char *of_b = arena_strdup(&b, "of b");

	for (int i = 0; i < 5000; i++)
		arena_strdup(&b, "0123456789");
	size_t bytes = a.bytes + b.bytes;
	arena_merge(&a, &b);
	assert_null(b.blocks);
	assert_int_equal(a.bytes, bytes);
	assert_int_equal(b.bytes, 0);
	arena_merge(&a, &none);
	arena_merge(&none, &a);
	assert_int_equal(none.bytes, bytes);
	arena_done(&a);
	arena_strdup(&none, "more");
	assert_string_equal(of_a, "of a");
	assert_string_equal(of_b, "of b");
	arena_done(&none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_strings_are_packed),
		cmocka_unit_test(test_large_piece_stands_alone),
		cmocka_unit_test(test_merge),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

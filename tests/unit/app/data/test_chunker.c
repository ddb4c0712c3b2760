/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/data/chunker.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

/* Of the reference implementation; the last has all parts: lanes, eight bytes, four, and one. */
static void test_hash(void **state)
{
	static const struct {
		const char *text;
		uint64_t hash;
	} cases[] = {
		{"", 0xef46db3751d8e999ULL},
		{"a", 0xd24ec4f1a98c6e5bULL},
		{"abc", 0x44bc2cf5ad770999ULL},
		{"Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1ULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(chunk_hash((const uint8_t *)cases[i].text, strlen(cases[i].text)),
			cases[i].hash);
}

struct chunks VEC_OF(size_t);

static void cut_all(const uint8_t *data, size_t len, struct chunks *ret)
{
	struct chunker chunker;

	chunker_init(&chunker);
	for (size_t at = 0; at < len;) {
		size_t left = len - at, size = chunk_cut(&chunker, data + at, left);
		assert_true(size > 0 && size <= CHUNK_MAX);
		assert_true(size >= CHUNK_MIN || size == left);
		at += size;
		*vec_push(ret) = at;
	}
}

static uint8_t *noise(size_t len)
{
	uint8_t *data = mem_alloc(len, 1);
	uint64_t state = 7;

	for (size_t i = 0; i < len; i++) {
		state = state * 6364136223846793005ULL + 1442695040888963407ULL;
		data[i] = (uint8_t)(state >> 56);
	}
	return data;
}

enum { LEN = 32 << 20, INSERTED = 11 };

/* Behind an insertion the ends of chunks are the same bytes again. */
static void test_insertion(void **state)
{
	uint8_t *data = noise(LEN), *other = mem_alloc(LEN + INSERTED, 1);
	struct chunks one = {0}, two = {0};
	size_t n_same = 0, at = LEN / 2;

	memcpy(other, data, at);
	memcpy(other + at + INSERTED, data + at, LEN - at);
	cut_all(data, LEN, &one);
	cut_all(other, LEN + INSERTED, &two);
	for (size_t i = 0; i < one.n; i++)
		for (size_t k = 0; k < two.n; k++)
			n_same += two.v[k] == one.v[i] + (one.v[i] > at ? INSERTED : 0);
	assert_true(one.n > LEN / CHUNK_AVERAGE / 3 && one.n < LEN / CHUNK_AVERAGE * 3);
	assert_true(n_same + 3 >= one.n);
	vec_done(&one);
	vec_done(&two);
	free(data);
	free(other);
}

/* Bytes that never make a cut. */
static void test_zeros(void **state)
{
	uint8_t *data = mem_alloc(3 * CHUNK_MAX + 1, 1);
	struct chunks all = {0};

	cut_all(data, 3 * CHUNK_MAX + 1, &all);
	assert_int_equal(all.v[all.n - 1], 3 * CHUNK_MAX + 1);
	vec_done(&all);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hash),
		cmocka_unit_test(test_insertion),
		cmocka_unit_test(test_zeros),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

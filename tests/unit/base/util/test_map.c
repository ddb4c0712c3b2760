/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"

static void test_empty(void **state)
{
	struct map map = {0};
	size_t pos = 0;
	const char *key;
	void *value;

	assert_null(map_get(&map, "x"));
	assert_int_equal(map_each(&map, &pos, &key, &value), 0);
	map_done(&map);
	map_done(NULL);
}

static void test_put_get(void **state)
{
	struct map map = {0};
	char key[] = "key";
	int a, b;

	assert_null(map_put(&map, key, &a));
	key[0] = 'K'; /* the map has a copy */
	assert_ptr_equal(map_get(&map, "key"), &a);
	assert_null(map_get(&map, "Key"));
	assert_null(map_get(&map, "ke"));
	assert_null(map_put(&map, "", &b));
	assert_ptr_equal(map_get(&map, ""), &b);
	assert_ptr_equal(map_put(&map, "key", &b), &a);
	assert_int_equal(map.n, 2);
	assert_ptr_equal(map_get(&map, "key"), &b);
	map_done(&map);
	assert_int_equal(map.n, 0);
}

enum { N = 20000 };
static char values[N];

static const char *name(char out[static 64], int i)
{
	/* Lengths on both sides of the hash's words. */
	snprintf(out, 64, "%.*s%d", i % 20, "abcdefghijklmnopqrst", i);
	return out;
}

/* Against a plain array. */
static void test_many(void **state)
{
	struct map map = {0};
	char key[64];

	for (int i = 0; i < N; i += 2)
		assert_null(map_put(&map, name(key, i), &values[i]));
	assert_int_equal(map.n, N / 2);
	for (int i = 0; i < N; i++)
		assert_ptr_equal(map_get(&map, name(key, i)), i % 2 ? NULL : &values[i]);
	for (int i = 0; i < N; i++)
		assert_ptr_equal(
			map_put(&map, name(key, i), &values[0]), i % 2 ? NULL : &values[i]);
	assert_int_equal(map.n, N);
	map_done(&map);
}

static void test_each(void **state)
{
	static char seen[N];
	struct map map = {0};
	char key[64];
	size_t pos = 0, n = 0;
	const char *at;
	void *value;

	memset(seen, 0, sizeof(seen));
	for (int i = 0; i < N; i += 7)
		map_put(&map, name(key, i), &values[i]);
	for (; map_each(&map, &pos, &at, &value); n++) {
		ptrdiff_t i = (char *)value - values;
		assert_int_equal(seen[i]++, 0);
		assert_string_equal(at, name(key, (int)i));
	}
	assert_int_equal(n, map.n);
	assert_int_equal(map_each(&map, &pos, &at, &value), 0);
	map_done(&map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_put_get),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_each),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

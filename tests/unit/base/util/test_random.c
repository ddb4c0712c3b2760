/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/random.h"

static void test_random_bytes(void **state)
{
	uint8_t a[1000] = {0}, b[1000] = {0};
	int zeros = 0;

	random_bytes(a, sizeof(a));
	random_bytes(b, sizeof(b));
	assert_memory_not_equal(a, b, sizeof(a));
	/* Also behind what the system gives at once. */
	assert_memory_not_equal(a + 900, b + 900, 100);
	for (size_t i = 0; i < sizeof(a); i++)
		zeros += a[i] == 0;
	assert_true(zeros < 100);
	a[0] = 7;
	random_bytes(a, 0);
	assert_int_equal(a[0], 7);
}

static void test_random_below(void **state)
{
	int seen[6] = {0};

	for (int i = 0; i < 6000; i++) {
		uint32_t n = random_below(6);
		assert_true(n < 6);
		seen[n]++;
	}
	/* 1000 of each are expected; 700 would be ten standard deviations off. */
	for (int i = 0; i < 6; i++)
		assert_in_range(seen[i], 700, 1300);
	assert_int_equal(random_below(1), 0);
	for (int i = 0; i < 100; i++)
		assert_true(random_below(0xffffffff) < 0xffffffff);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_bytes),
		cmocka_unit_test(test_random_below),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

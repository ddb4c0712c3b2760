/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>

#include "base/util/clock.h"

static void test_doubles_up_to_the_maximum(void **state)
{
	assert_int_equal(backoff_ms(0, 100, 1000), 0);
	assert_int_equal(backoff_ms(1, 100, 1000), 100);
	assert_int_equal(backoff_ms(2, 100, 1000), 200);
	assert_int_equal(backoff_ms(4, 100, 1000), 800);
	assert_int_equal(backoff_ms(5, 100, 1000), 1000);
	assert_int_equal(backoff_ms(UINT_MAX, 100, 1000), 1000);
	assert_int_equal(backoff_ms(1, 2000, 1000), 1000);
}

static void test_jitter_is_at_most_half(void **state)
{
	int64_t lowest = INT64_MAX, highest = 0;

	for (int i = 0; i < 2000; i++) {
		int64_t ms = backoff_jitter_ms(3, 100, 1000);

		lowest = ms < lowest ? ms : lowest;
		highest = ms > highest ? ms : highest;
	}
	assert_in_range(lowest, 200, 240);
	assert_in_range(highest, 360, 400);
	assert_int_equal(backoff_jitter_ms(0, 100, 1000), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_doubles_up_to_the_maximum),
		cmocka_unit_test(test_jitter_is_at_most_half),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/plot/svg.h"

static void expect(const struct series_point *points, size_t n, const char *want)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 4096);
	assert_int_equal(spark_add(points, n, &text), *want != '\0');
	assert_string_equal(text.data, want);
}

static void test_few(void **state)
{
	static const struct series_point one[] = {{0, 0, 1}};
	static const struct series_point flat[] = {{0, 0, 1}, {9, 0, 1}};
	static const struct series_point up[] = {{0, 0, 1}, {1, 0, 2}, {2, 0, NAN}, {4, 0, 3}};
	static const struct series_point none[] = {{0, 0, NAN}, {1, 0, 2}, {2, 0, INFINITY}};
	static const struct series_point same[] = {{5, 0, 1}, {5, 0, 9}};

	expect(NULL, 0, "");
	expect(one, 1, "");
	expect(none, 3, "");
	expect(flat, 2, "▁▁");
	expect(up, 4, "▁▅█");
	expect(same, 2, "▁█");
}

/* Also of steps and values at the ends of their ranges. */
static void test_extreme(void **state)
{
	static const struct series_point far[] = {
		{INT64_MIN, 0, -1e308}, {0, 0, 0}, {INT64_MAX, 0, 1e308}};
	static const struct series_point back[] = {{9, 0, 2}, {0, 0, 1}, {5, 0, 3}};
	AUTO_BUF struct buf text;

	buf_init(&text, 4096);
	assert_true(spark_add(far, 3, &text));
	assert_true(spark_add(back, 3, &text));
	assert_int_equal(text.len % 3, 0);
}

static void test_many(void **state)
{
	enum { N = 64000 };
	struct series_point *points = mem_alloc(N, sizeof(*points));
	AUTO_BUF struct buf text;

	for (int i = 0; i < N; i++)
		points[i] = (struct series_point){i, i, N - i};
	/* A hole is a blank. */
	for (int i = N / 2; i < N / 2 + N / SPARK_WIDTH; i++)
		points[i].value = NAN;
	buf_init(&text, 4096);
	assert_true(spark_add(points, N, &text));
	assert_int_equal(text.len, 3 * (SPARK_WIDTH - 1) + 1);
	assert_memory_equal(text.data, "█", 3);
	assert_memory_equal(text.data + text.len - 3, "▁", 3);
	free(points);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_few),
		cmocka_unit_test(test_extreme),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests_name("spark", tests, NULL, NULL);
}

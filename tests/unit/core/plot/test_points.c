/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/err.h"
#include "base/util/mem.h"
#include "core/plot/points.h"

#define NUMBER(text, number)                                                                       \
	{                                                                                          \
		text, true, number                                                                 \
	}

static const struct points_value rates[] = {
	NUMBER("0.001", 0.001), NUMBER("0.1", 0.1), NUMBER("1", 1), {NULL, false, 0}};
static const struct points_value losses[] = {
	NUMBER("0.4", 0.4), NUMBER("0.2", 0.2), NUMBER("0.3", 0.3), NUMBER("0.9", 0.9)};
static const struct points_value words[] = {
	{"<sgd>", false, 0}, {"adam", false, 0}, {"<sgd>", false, 0}, NUMBER("7", 7)};
static const char *const names[] = {"a-22222", "b-22222", "<c>", "d-22222"};
static const char *const urls[] = {"/a", "/b", "/c?x=1&y=\"", "/d"};

static size_t count(const char *text, const char *part)
{
	size_t n = 0;

	for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
		n++;
	return n;
}

static void test_axes(void **state)
{
	static const struct points_value same[] = {NUMBER("1", 1), NUMBER("1", 1)};
	static const struct points_value odd[] = {NUMBER("inf", (double)INFINITY),
		NUMBER("nan", (double)NAN), NUMBER("1", 1), NUMBER("2", 2)};
	struct points_value many[POINTS_WORDS_MAX + 1];
	struct points_axis axis;

	assert_true(points_axis_make("lr", rates, 4, &axis));
	assert_true(fabs(axis.at[0] + 3) < 1e-9 && fabs(axis.at[2]) < 1e-9);
	assert_true(isnan(axis.at[3]));
	points_axis_done(&axis);
	assert_true(points_axis_make("loss", losses, 4, &axis));
	assert_true(axis.at[0] > 0.39 && axis.at[0] < 0.41);
	points_axis_done(&axis);
	assert_true(points_axis_make("opt", words, 4, &axis));
	assert_int_equal(axis.axis.n, 3);
	assert_string_equal(axis.axis.ticks[0].text, "7");
	assert_true(axis.at[0] == axis.at[2] && axis.at[0] != axis.at[1]);
	points_axis_done(&axis);
	assert_true(points_axis_make("odd", odd, 4, &axis));
	assert_true(isnan(axis.at[0]) && isnan(axis.at[1]) && axis.at[2] < axis.at[3]);
	points_axis_done(&axis);
	/* Nothing to be told apart. */
	assert_false(points_axis_make("same", same, 2, &axis));
	assert_false(points_axis_make("none", rates + 3, 1, &axis));
	assert_false(points_axis_make("no", NULL, 0, &axis));
	for (size_t i = 0; i < ARRAY_LEN(many); i++)
		many[i] = (struct points_value){mem_printf("w%zu", i), false, 0};
	assert_false(points_axis_make("many", many, ARRAY_LEN(many), &axis));
	assert_true(points_axis_make("fewer", many, ARRAY_LEN(many) - 1, &axis));
	points_axis_done(&axis);
	for (size_t i = 0; i < ARRAY_LEN(many); i++)
		free((char *)(uintptr_t)many[i].text);
}

static void test_long_words(void **state)
{
	/* A character of three bytes does not fit as a whole. */
	static const struct points_value values[] = {
		{"aaaaaaaaaaaaaaaaaaaaaa\xe2\x82\xac", false, 0}, {"b", false, 0}};
	struct points_axis axis;

	assert_true(points_axis_make("w", values, 2, &axis));
	assert_string_equal(axis.axis.ticks[0].text, "aaaaaaaaaaaaaaaaaaaaaa");
	points_axis_done(&axis);
}

static void test_drawings(void **state)
{
	struct points_axis axes[3];
	AUTO_BUF struct buf scatter, parallel;

	assert_true(points_axis_make("params.<lr>", rates, 4, &axes[0]));
	assert_true(points_axis_make("opt", words, 4, &axes[1]));
	assert_true(points_axis_make("loss", losses, 4, &axes[2]));
	const struct points points = {4, names, urls, &axes[2], true};
	buf_init(&scatter, 1 << 20);
	buf_init(&parallel, 1 << 20);
	points_scatter(&points, &axes[0], &axes[2], &scatter);
	points_parallel(&points, axes, 3, &parallel);
	/* One has no place along x. */
	assert_int_equal(count(scatter.data, "<circle "), 3);
	assert_int_equal(count(parallel.data, "<path class=\"c\""), 4);
	assert_non_null(
		strstr(scatter.data, "<title>a-22222\nparams.&lt;lr&gt; 0.001\nloss 0.4</title>"));
	assert_non_null(strstr(parallel.data, "\nopt &lt;sgd&gt;\n"));
	for (int i = 0; i < 2; i++) {
		const char *text = i ? parallel.data : scatter.data;

		assert_null(strstr(text, "<c>"));
		assert_null(strstr(text, "<lr>"));
		assert_null(strstr(text, "style"));
		assert_non_null(strstr(text, "href=\"/c?x=1&amp;y=&quot;\""));
		/* The lowest is on top. */
		assert_true(strstr(text, "<title>b-22222") > strstr(text, "<title>a-22222"));
		assert_non_null(strstr(text, "<a class=\"v0\" href=\"/b\">"));
	}
	for (size_t i = 0; i < ARRAY_LEN(axes); i++)
		points_axis_done(&axes[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_axes),
		cmocka_unit_test(test_long_words),
		cmocka_unit_test(test_drawings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

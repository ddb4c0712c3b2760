/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "cli/plot/chart.h"
#include "core/plot/svg.h"
#include "cli/term/ui.h"

enum { ENOUGH = 4 << 20, POINTS_MAX = 200000 };

static struct series_point points[4][POINTS_MAX];

/*
 * Axes
 */

static void check_axis(
	enum axis_kind kind, double min, double max, unsigned wanted, const char *texts)
{
	AUTO_BUF struct buf got;
	struct axis axis;

	buf_init(&got, ENOUGH);
	axis_make(kind, min, max, wanted, &axis);
	assert_true(axis.min < axis.max && (axis.min <= min || fabs(min) > 1e300));
	for (size_t i = 0; i < axis.n; i++) {
		assert_true(axis.ticks[i].at >= axis.min - (axis.max - axis.min) * 1e-5);
		assert_true(axis.ticks[i].at <= axis.max + (axis.max - axis.min) * 1e-5);
		assert_true(i == 0 || axis.ticks[i].at > axis.ticks[i - 1].at);
		buf_addf(&got, "%s%s", i ? " " : "", axis.ticks[i].text);
	}
	assert_string_equal(got.data, texts);
}

static void test_number_axis(void **state)
{
	check_axis(AXIS_NUMBER, 0, 1, 5, "0.0 0.2 0.4 0.6 0.8 1.0");
	check_axis(AXIS_NUMBER, -1, 1, 4, "-1.0 -0.5 0.0 0.5 1.0");
	check_axis(AXIS_NUMBER, 2.31, 2.34, 3, "2.31 2.32 2.33 2.34");
	check_axis(AXIS_NUMBER, 0, 30, 3, "0 10 20 30");
	check_axis(AXIS_NUMBER, 0, 3e-7, 3, "0 1e-07 2e-07 3e-07");
	check_axis(AXIS_NUMBER, 0, 4e9, 2, "0 2e+09 4e+09");
	check_axis(AXIS_NUMBER, 1000000, 1000002, 2, "1000000 1000001 1000002");
	/* One value, also none at all, and all that there is. */
	check_axis(AXIS_NUMBER, 5, 5, 2, "4.5 5.0 5.5");
	check_axis(AXIS_NUMBER, 0, 0, 2, "-1 0 1");
	check_axis(AXIS_NUMBER, -1.7e308, 1.7e308, 2, "0");
	check_axis(AXIS_NUMBER, 0, 5e-324, 2, "");
}

static void test_step_axis(void **state)
{
	check_axis(AXIS_STEP, 0, 15, 5, "0 5 10 15");
	check_axis(AXIS_STEP, 0, 2, 10, "0 1 2");
	check_axis(AXIS_STEP, 7, 7, 4, "7");
	check_axis(AXIS_STEP, 0, 5000, 5, "0 1000 2000 3000 4000 5000");
	check_axis(AXIS_STEP, 0, 25000, 5, "0 5k 10k 15k 20k 25k");
	check_axis(AXIS_STEP, 0, 2500000, 3, "0 1000k 2000k");
	check_axis(AXIS_STEP, 0, 12000000, 3, "0 5M 10M");
	check_axis(AXIS_STEP, -9.2e18, 9.2e18, 2, "0");
}

static void test_duration_axis(void **state)
{
	check_axis(AXIS_DURATION, 0, 0.5, 5, "0.0s 0.1s 0.2s 0.3s 0.4s 0.5s");
	check_axis(AXIS_DURATION, 0, 40, 4, "0s 10s 20s 30s 40s");
	check_axis(AXIS_DURATION, 0, 100, 4, "0s 30s 1m00 1m30");
	check_axis(AXIS_DURATION, 0, 3600, 4, "0s 15m 30m 45m 60m");
	check_axis(AXIS_DURATION, 0, 86400, 4, "0s 6h 12h 18h 24h");
	check_axis(AXIS_DURATION, 0, 86400 * 30, 3, "0s 10d 20d 30d");
}

static void test_time_axis(void **state)
{
	setenv("TZ", "IST-5:30", 1);
	tzset();
	/* 2023-11-15 03:43:20 there. */
	check_axis(AXIS_TIME, 1700000000, 1700000060, 4, "03:43:30 03:43:45 03:44:00 03:44:15");
	check_axis(AXIS_TIME, 1700000000, 1700003600, 4, "03:45 04:00 04:15 04:30");
	check_axis(AXIS_TIME, 1700000000, 1700000000 + 86400 * 3, 3, "11-16 11-17 11-18");
	check_axis(AXIS_TIME, -1e300, 1e300, 2, "01-01");
	setenv("TZ", "UTC", 1);
	tzset();
}

static void test_log_axis(void **state)
{
	check_axis(AXIS_LOG, -3, 0, 4, "0.001 0.01 0.1 1");
	check_axis(AXIS_LOG, 0, 1, 4, "1 2 5 10");
	check_axis(AXIS_LOG, -12, 4, 4, "1e-12 1e-08 0.0001 1 1e+04");
	check_axis(AXIS_LOG, log10(2), log10(3), 4, "2 2.5 3");
	check_axis(AXIS_LOG, 0, 0, 4, "0.5 1 2");
	check_axis(AXIS_LOG, -323, 308, 2, "1e-316 1");
}

/*
 * Charts
 */

static struct series_curve curve_of(size_t i, size_t n)
{
	return (struct series_curve){.dir = "", .tag = "t", .points = points[i], .n = n};
}

/* Steps from 0, a second each. */
static struct series_curve values(size_t i, size_t n, const double *list)
{
	for (size_t k = 0; k < n; k++)
		points[i][k] = (struct series_point){.step = (int64_t)k,
			.wall_time_s = 1700000000 + (double)k,
			.value = list[k]};
	return curve_of(i, n);
}

static void check_chart(const struct chart *chart, const char *wanted)
{
	AUTO_BUF struct buf out;

	buf_init(&out, ENOUGH);
	chart_draw(chart, &out);
	if (strcmp(out.data, wanted) != 0)
		fprintf(stderr, "%s", out.data);
	assert_string_equal(out.data, wanted);
}

static void test_braille(void **state)
{
	static const double up[] = {0, 1, 2, 3, 4};
	const struct chart_line line = {.label = "run", .curve = values(0, 5, up)};

	check_chart(&(struct chart){.title = "loss",
			    .lines = &line,
			    .n_lines = 1,
			    .width = 20,
			    .height = 3,
			    .utf8 = true},
		UI_BOLD "loss" UI_OFF "\n"
			"4 ┤⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀" UI_CYAN "⢀⣀⡤⠴⠚⠉" UI_OFF "\n"
			"2 ┤⠀⠀⠀⠀" UI_CYAN "⢀⣀⡤⠴⠒⠚⠉⠉" UI_OFF "\n"
			"0 ┤" UI_CYAN "⣠⠤⠖⠋⠉" UI_OFF "\n"
			"  └┬────────────────\n"
			"   0            step\n"
			"  " UI_CYAN "⠤" UI_OFF " run  4 @4\n");
	check_chart(
		&(struct chart){
			.title = "loss", .lines = &line, .n_lines = 1, .width = 20, .height = 3},
		UI_BOLD "loss" UI_OFF "\n"
			"4 +          " UI_CYAN "*******" UI_OFF "\n"
			"2 +  " UI_CYAN "*********" UI_OFF "\n"
			"0 +" UI_CYAN "***" UI_OFF "\n"
			"  ++----------------\n"
			"   0            step\n"
			"  " UI_CYAN "*" UI_OFF " run  4 @4\n");
}

/* Seams, gaps, marks, letters. */
static void test_marks(void **state)
{
	static const double list[] = {0, 1, 2, (double)NAN, 2, 1, -(double)INFINITY, 3};
	static const double other[] = {3, 3, 3, 3, 3, 3, 3, 3};
	static const int64_t seams[] = {4};
	struct chart_line lines[] = {{.label = "a\033[31m b", .curve = values(0, 8, list)},
		{.label = "", .curve = values(1, 8, other)}};
	struct chart chart = {
		.title = "x", .lines = lines, .n_lines = 2, .width = 40, .height = 4, .utf8 = true};

	lines[0].curve.seams = seams;
	lines[0].curve.n_seams = 1;
	check_chart(&chart, UI_BOLD
		"x" UI_OFF "\n"
		"  │" UI_YELLOW "⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉b⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉b⠉⠉⠉⠉⠉⠉⠉⠉⠉b⠉⠉⠉⠉b" UI_OFF "\n"
		"2 ┤⠀⠀⠀⠀⠀⠀⠀" UI_CYAN "⢀⣠⠴⠒⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀a⢤⣀" UI_OFF "\n"
		"  │⠀⠀⠀" UI_CYAN "⢀⣠⠴⠚⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀" UI_OFF UI_DIM "┊⠀" UI_OFF UI_CYAN
		"⠈⠙⠲a" UI_OFF "\n"
		"0 ┤" UI_CYAN "a⠴⠚⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀" UI_OFF UI_DIM "┊" UI_OFF "\n"
		"  └┬──────────────" UI_CYAN "×" UI_OFF "──────────┬────" UI_CYAN "×" UI_OFF
		"─────\n"
		"   0                         5      step\n"
		"  " UI_CYAN "a" UI_OFF " a b  3 @7  × 2 not finite  ┊ started again at step 4\n"
		"  " UI_YELLOW "b" UI_OFF "      3 @7\n");
	chart.color = true;
	check_chart(&chart, UI_BOLD
		"x" UI_OFF "\n"
		"  │" UI_YELLOW "⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉b" UI_OFF "\n"
		"2 ┤⠀⠀⠀⠀⠀⠀⠀" UI_CYAN "⢀⣠⠴⠒⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠲⢤⣀" UI_OFF "\n"
		"  │⠀⠀⠀" UI_CYAN "⢀⣠⠴⠚⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀" UI_OFF UI_DIM "┊⠀" UI_OFF UI_CYAN
		"⠈⠙⠲⠄" UI_OFF "\n"
		"0 ┤" UI_CYAN "⣠⠴⠚⠉⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀" UI_OFF UI_DIM "┊" UI_OFF "\n"
		"  └┬──────────────" UI_CYAN "×" UI_OFF "──────────┬────" UI_CYAN "×" UI_OFF
		"─────\n"
		"   0                         5      step\n"
		"  " UI_CYAN "a" UI_OFF " a b  3 @7  × 2 not finite  ┊ started again at step 4\n"
		"  " UI_YELLOW "b" UI_OFF "      3 @7\n");
}

/* No values at all, none that can be drawn, one, many in each column. */
static void test_few_and_many(void **state)
{
	static const double nothing[] = {(double)NAN, (double)NAN}, minus[] = {-1, 0}, one[] = {7};
	struct chart_line line = {.label = "run", .curve = values(0, 0, NULL)};
	struct chart chart = {.title = "t", .lines = &line, .n_lines = 1, .width = 20, .height = 2};

	check_chart(&chart, UI_BOLD "t" UI_OFF "\n  no values to draw\n");
	line.curve = values(0, 2, nothing);
	check_chart(&chart,
		UI_BOLD "t" UI_OFF "\n"
			" 1 +\n"
			"-1 +\n"
			"   +" UI_CYAN "x" UI_OFF "--------------" UI_CYAN "x" UI_OFF "\n"
			"    0           step\n"
			"  " UI_CYAN "*" UI_OFF " run  nan @1  x 2 not finite\n");
	line.curve = values(0, 2, minus);
	chart.view.log = true;
	check_chart(&chart, UI_BOLD "t" UI_OFF "\n  no values to draw\n");
	chart.view.log = false;
	line.curve = values(0, 1, one);
	check_chart(&chart, UI_BOLD "t" UI_OFF "\n"
				    "7 +" UI_CYAN "*" UI_OFF "\n"
				    "  |\n"
				    "  ++----------------\n"
				    "   0            step\n"
				    "  " UI_CYAN "*" UI_OFF " run  7 @0\n");
	for (size_t i = 0; i < POINTS_MAX; i++)
		points[0][i] = (struct series_point){(int64_t)i, 0, i % 2 ? 1 : 0};
	line.curve = curve_of(0, POINTS_MAX);
	check_chart(&chart, UI_BOLD "t" UI_OFF "\n"
				    "1.0 +" UI_CYAN "***************" UI_OFF "\n"
				    "0.0 +" UI_CYAN "***************" UI_OFF "\n"
				    "    ++--------------\n"
				    "     0          step\n"
				    "  " UI_CYAN "*" UI_OFF " run  1 @199999\n");
	/* Times that are none. */
	chart.view.x = TRACE_WALL;
	points[0][0].wall_time_s = (double)NAN;
	line.curve = curve_of(0, 1);
	check_chart(&chart, UI_BOLD "t" UI_OFF "\n  no values to draw\n");
}

/* TensorBoard's own numbers for a weight of 0.6. */
static void test_smoothing(void **state)
{
	static const double list[] = {1, (double)NAN, 2, 3};
	static const double wanted[] = {1, (double)NAN, 1.625, 2.3265306122448979};
	const struct trace_view view = {.x = TRACE_REL, .smooth = 0.6};
	struct series_curve curve = values(0, 4, list);
	struct trace_point point;
	struct trace trace;

	trace_begin(&trace, &curve, &view);
	for (size_t i = 0; i < 4; i++) {
		assert_true(trace_next(&trace, &point));
		assert_true(point.x == (double)i && point.at == i);
		assert_true(isnan(wanted[i]) ? isnan(point.y) : fabs(point.y - wanted[i]) < 1e-12);
	}
	assert_false(trace_next(&trace, &point));
}

static void test_columns(void **state)
{
	static const double list[] = {1, 5, 3, (double)NAN, 2};
	static const int64_t seams[] = {1, 4};
	const struct trace_view view = {.x = TRACE_STEP};
	struct series_curve curve = values(0, 5, list);
	struct trace_column columns[3];

	curve.seams = seams;
	curve.n_seams = 2;
	trace_columns(&curve, &view, 0, 4, 3, columns);
	/* 0 | 1 2 | 3 4 */
	assert_true(columns[0].has && columns[0].first == 1 && columns[0].last == 1);
	assert_true(columns[1].first == 5 && columns[1].last == 3 && columns[1].min == 3 &&
		    columns[1].max == 5);
	assert_true(columns[2].not_finite && columns[2].has && columns[2].min == 2);
	assert_true(!columns[0].seam && columns[1].seam && columns[2].seam);
	/* What is outside is left out. */
	trace_columns(&curve, &view, 1, 2, 2, columns);
	assert_true(columns[0].first == 5 && columns[1].last == 3);
}

/*
 * SVG
 */

static void test_svg(void **state)
{
	static const double list[] = {1, 2, (double)NAN, 4}, one[] = {3};
	static const int64_t seams[] = {1};
	struct chart_line lines[] = {{.label = "<a&'b'\"\001>", .curve = values(0, 4, list)},
		{.label = "two", .curve = values(1, 1, one)}};
	const struct chart charts[] = {{.title = "<script>",
					       .lines = lines,
					       .n_lines = 2,
					       .view = {.smooth = 0.5},
					       .width = 300,
					       .height = 100},
		{.title = "empty", .width = 300, .height = 100}};
	static const char *const wanted[] = {"&lt;script&gt;", "&lt;a&amp;&#39;b&#39;&quot;^A&gt;",
		"width=\"300\"", ">no values to draw<", "class=\"s\"", "class=\"c r\"",
		"two · 3 @0", "× 1 not finite", "M64 "};
	AUTO_BUF struct buf out;

	lines[0].curve.seams = seams;
	lines[0].curve.n_seams = 1;
	buf_init(&out, ENOUGH);
	svg_draw(charts, 2, &out);
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		if (!strstr(out.data, wanted[i]))
			fail_msg("%s is not in %s", wanted[i], out.data);
	assert_null(strstr(out.data, "<script"));
	assert_null(strstr(out.data, "nan"));
	assert_true(str_is_utf8(out.data, out.len));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_number_axis),
		cmocka_unit_test(test_step_axis),
		cmocka_unit_test(test_duration_axis),
		cmocka_unit_test(test_time_axis),
		cmocka_unit_test(test_log_axis),
		cmocka_unit_test(test_braille),
		cmocka_unit_test(test_marks),
		cmocka_unit_test(test_few_and_many),
		cmocka_unit_test(test_smoothing),
		cmocka_unit_test(test_columns),
		cmocka_unit_test(test_svg),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

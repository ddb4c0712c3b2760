/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/plot/chart.h"
#include "cli/plot/plot_group.h"

enum { MEMBERS_MAX = 70, POINTS_MAX = 5000 };

static struct series_point points[MEMBERS_MAX][POINTS_MAX];
static struct plot_member members[MEMBERS_MAX];
static size_t n_members;

/* text: "STEP:VALUE STEP:VALUE …" */
static void add(size_t run, const char *value, const char *dir, const char *tag, const char *text)
{
	struct series_point *own = points[n_members];
	size_t n = 0;

	for (const char *at = text; *at; n++) {
		char *end;
		own[n].step = strtoll(at, &end, 10);
		own[n].value = strtod(end + 1, &end);
		own[n].wall_time_s = 1e9 + (double)n_members;
		at = end + strspn(end, " ");
	}
	members[n_members++] = (struct plot_member){
		&points[run], value, {.dir = dir, .tag = tag, .points = own, .n = n}};
}

/* "VALUE DIR TAG RUNS: STEP=MEDIAN/BEST*COUNT …" for each group, each in a line. */
static void expect(const char *wanted)
{
	AUTO_PLOT_GROUPS struct plot_groups groups = {0};
	AUTO_BUF struct buf out;

	plot_groups_make(members, n_members, &groups);
	buf_init(&out, 1 << 20);
	vec_foreach (struct plot_group, group, &groups) {
		buf_addf(&out, "%s %s %s %zu:", group->value ? group->value : "none",
			*group->dir ? group->dir : ".", group->tag, group->n_runs);
		for (size_t i = 0; i < group->n; i++) {
			assert_int_equal(group->median[i].step, group->best[i].step);
			buf_addf(&out, " %lld=%g/%g*%zu", (long long)group->median[i].step,
				group->median[i].value, group->best[i].value, group->counts[i]);
		}
		buf_addc(&out, '\n');
	}
	n_members = 0;
	assert_string_equal(out.data, wanted);
}

static void test_median_and_best(void **state)
{
	add(0, "0.1", "", "loss", "0:3 1:2 2:1");
	add(1, "0.1", "", "loss", "0:5 1:1 2:4");
	add(2, "0.1", "", "loss", "0:4 1:9 2:2");
	add(3, "0.01", "", "loss", "0:8 1:7");
	add(4, "0.01", "", "loss", "0:6 1:9");
	expect("0.01 . loss 2: 0=7/6*2 1=8/7*2\n0.1 . loss 3: 0=4/3*3 1=2/1*3 2=2/1*3\n");
	add(0, "a", "", "val/accuracy", "0:0.5 1:0.75");
	add(1, "a", "", "val/accuracy", "0:0.25 1:0.5");
	expect("a . val/accuracy 2: 0=0.375/0.5*2 1=0.625/0.75*2\n");
}

static void test_steps_that_differ(void **state)
{
	/* Between two values a run is on the line, before and behind them it does not count. */
	add(0, "x", "", "loss", "0:0 10:10 20:0");
	add(1, "x", "", "loss", "5:1 15:3");
	expect("x . loss 2: 0=0/0*1 5=3/1*2 10=6/2*2 15=4/3*2 20=0/0*1\n");
	add(0, "x", "", "loss", "0:nan 1:2 2:inf 3:4");
	add(1, "x", "", "loss", "0:1 1:1 2:1 3:1");
	expect("x . loss 2: 0=1/1*1 1=1.5/1*2 2=1/1*1 3=2.5/1*2\n");
	add(0, "x", "", "loss", "");
	add(1, "x", "", "loss", "7:1");
	expect("x . loss 2: 7=1/1*1\n");
	add(0, "x", "", "loss", "0:1.7e308");
	add(1, "x", "", "loss", "0:1.7e308");
	expect("x . loss 2: 0=1.7e+308/1.7e+308*2\n");
}

static void test_directories(void **state)
{
	/* Names that a program makes of the time are not what runs are told apart by; a training
	 * and a validation curve of one run are. */
	add(0, "x", "runs/Nov26_host", "loss", "0:1");
	add(1, "x", "runs/Nov27_host", "loss", "0:3");
	expect("x . loss 2: 0=2/1*2\n");
	add(0, "x", "a/train", "loss", "0:1");
	add(0, "x", "a/val", "loss", "0:2");
	add(1, "x", "b/train", "loss", "0:3");
	add(1, "x", "b/val", "loss", "0:6");
	expect("x train loss 2: 0=2/1*2\nx val loss 2: 0=4/2*2\n");
	/* Two of one run that cannot be told apart: the newer one. */
	add(0, "x", "a/train", "loss", "0:1");
	add(0, "x", "b/train", "loss", "0:5");
	expect("x train loss 1: 0=5/5*1\n");
}

static void test_order_of_groups(void **state)
{
	add(0, "10", "", "loss", "0:1");
	add(1, "9", "", "loss", "0:1");
	add(2, NULL, "", "loss", "0:1");
	add(3, "adam", "", "loss", "0:1");
	add(4, "1e-3", "", "acc", "0:1");
	add(5, "1e-3", "", "loss", "0:1");
	expect("1e-3 . acc 1: 0=1/1*1\n1e-3 . loss 1: 0=1/1*1\n9 . loss 1: 0=1/1*1\n"
	       "10 . loss 1: 0=1/1*1\nadam . loss 1: 0=1/1*1\nnone . loss 1: 0=1/1*1\n");
	expect("");
}

static void test_many_points_are_thinned(void **state)
{
	AUTO_PLOT_GROUPS struct plot_groups groups = {0};

	for (size_t i = 0; i < 60; i++) {
		for (size_t k = 0; k < POINTS_MAX; k++)
			points[i][k] = (struct series_point){
				.step = (int64_t)k, .wall_time_s = 1e9, .value = (double)(k + i)};
		members[i] = (struct plot_member){&points[i], "x",
			{.dir = "", .tag = "loss", .points = points[i], .n = POINTS_MAX}};
	}
	plot_groups_make(members, 60, &groups);
	assert_int_equal(groups.n, 1);
	assert_int_equal(groups.v[0].n, PLOT_GROUP_STEPS);
	assert_int_equal(groups.v[0].median[0].step, 0);
	assert_int_equal(groups.v[0].median[PLOT_GROUP_STEPS - 1].step, POINTS_MAX - 1);
	for (size_t i = 0; i < PLOT_GROUP_STEPS; i++) {
		double step = (double)groups.v[0].median[i].step;
		assert_true(groups.v[0].median[i].value == step + 29.5);
		assert_true(groups.v[0].best[i].value == step);
		assert_int_equal(groups.v[0].counts[i], 60);
	}
}

static void test_charts_have_bands(void **state)
{
	AUTO_PLOT_GROUPS struct plot_groups groups = {0};
	AUTO(plot_charts_done) struct plot_charts charts = {0};
	const struct strv all = {0};
	AUTO_BUF struct buf out;

	add(0, "0.1", "", "loss", "0:0 20:0");
	add(1, "0.1", "", "loss", "0:10 20:10");
	add(2, "0.3", "", "lr", "0:1 1:1");
	plot_groups_make(members, n_members, &groups);
	n_members = 0;
	assert_int_equal(plot_groups_charts(&groups, "lr", &all, 1, &charts), 1);
	assert_int_equal(charts.n, 1);
	assert_string_equal(charts.v[0].title, "loss by lr");
	assert_string_equal(charts.v[0].lines.v[0].label, "lr=0.1 (2 runs)");
	const struct chart chart = {.title = charts.v[0].title,
		.lines = charts.v[0].lines.v,
		.n_lines = 1,
		.width = 30,
		.height = 5};
	buf_init(&out, 1 << 20);
	chart_draw(&chart, &out);
	if (!strstr(out.data, "....."))
		fail_msg("%s", out.data);
	assert_non_null(strstr(out.data, "lr=0.1 (2 runs)  5 @20, best 0\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_median_and_best),
		cmocka_unit_test(test_steps_that_differ),
		cmocka_unit_test(test_directories),
		cmocka_unit_test(test_order_of_groups),
		cmocka_unit_test(test_many_points_are_thinned),
		cmocka_unit_test(test_charts_have_bands),
	};

	return cmocka_run_group_tests_name("plot_group", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/summary.h"

enum { NOW_MS = 1000 * 1000 };

static struct run_list runs;
static struct strv keys;
static struct study_summary summary;

static int begin(void **state)
{
	runs = (struct run_list){0};
	keys = (struct strv){0};
	summary = (struct study_summary){0};
	return 0;
}

static int end(void **state)
{
	study_summary_done(&summary);
	run_list_done(&runs);
	strv_done(&keys);
	return 0;
}

static struct run *add_run(enum run_state state, const char *lr, const char *seed)
{
	struct run *run = run_new("tiger-0-4k2x9", "tiger-0");

	run_set_state(run, state);
	json_set_str(json_sub(run->doc, "params"), "lr", lr);
	json_set_str(json_sub(run->doc, "params"), "seed", seed);
	*vec_push(&runs) = run;
	return run;
}

static void set_metric(struct run *run, const char *name, double last, double min, double max)
{
	struct json *metric = json_sub(json_sub(run->doc, "metrics"), name);

	json_set_num(metric, "value", last);
	json_set_num(metric, "min", min);
	json_set_num(metric, "max", max);
}

static void set_times(struct run *run, int64_t start_ms, int64_t end_ms)
{
	struct json *times = json_sub(run->doc, "times");

	run_set_time(times, "started", start_ms);
	run_set_time(times, "ended", end_ms);
}

static void summarise(size_t parallel)
{
	study_summary_done(&summary);
	study_summarise(&runs, &keys, parallel, NOW_MS, &summary);
}

static void add_keys(void)
{
	strv_add(&keys, "lr");
	strv_add(&keys, "seed");
}

static void test_rows_of_the_first_axis(void **state)
{
	add_keys();
	add_run(RUN_RUNNING, "0.1", "1");
	add_run(RUN_FAILED, "0.1", "2");
	add_run(RUN_QUEUED, "0.03", "1");
	add_run(RUN_RUNNING, "0.03", "2");
	add_run(RUN_SUCCEEDED, "0.1", "3");
	summarise(0);
	assert_int_equal(summary.keys.n, 1);
	assert_int_equal(summary.rows.n, 2);
	assert_string_equal(summary.rows.v[0].values.v[0], "0.1");
	assert_int_equal(summary.rows.v[0].n, 3);
	assert_int_equal(summary.rows.v[0].counts.states[RUN_FAILED], 1);
	assert_string_equal(summary.rows.v[1].values.v[0], "0.03");
	assert_int_equal(summary.rows.v[1].n, 2);
	assert_int_equal(summary.all.n, 5);
	assert_int_equal(summary.all.counts.states[RUN_RUNNING], 2);
	assert_null(summary.metric);
}

static void test_rows_of_each_member(void **state)
{
	add_keys();
	add_run(RUN_RUNNING, "0.1", "1");
	add_run(RUN_RUNNING, "0.2", "1");
	summarise(0);
	assert_int_equal(summary.keys.n, 2);
	assert_int_equal(summary.rows.n, 2);
	assert_string_equal(summary.rows.v[1].values.v[0], "0.2");
	assert_string_equal(summary.rows.v[1].values.v[1], "1");
}

/* "1" and "2,3" are other values than "1,2" and "3". */
static void test_values_are_told_apart(void **state)
{
	add_keys();
	add_run(RUN_RUNNING,
		"a\x1f"
		"b",
		"c");
	add_run(RUN_RUNNING, "a",
		"b\x1f"
		"c");
	add_run(RUN_RUNNING, "", "");
	summarise(0);
	assert_int_equal(summary.rows.n, 3);
}

static void test_best_and_median(void **state)
{
	add_keys();
	set_metric(add_run(RUN_SUCCEEDED, "0.1", "1"), "val_loss", 0.5, 0.4, 3);
	set_metric(add_run(RUN_SUCCEEDED, "0.1", "2"), "val_loss", 0.3, 0.2, 3);
	add_run(RUN_QUEUED, "0.1", "3");
	set_metric(add_run(RUN_RUNNING, "0.1", "4"), "val_loss", 0.9, 0.8, 3);
	set_metric(add_run(RUN_RUNNING, "0.2", "1"), "val_loss", 1.5, 1, 3);
	set_metric(add_run(RUN_RUNNING, "0.2", "2"), "val_loss", 2.5, 2, 3);
	summarise(0);
	assert_string_equal(summary.metric, "val_loss");
	assert_int_equal(summary.goal, COMPARE_MIN);
	assert_int_equal(summary.rows.v[0].n_values, 3);
	assert_true(summary.rows.v[0].best == 0.2);
	assert_true(summary.rows.v[0].median == 0.4);
	assert_ptr_equal(summary.rows.v[0].member, runs.v[1]);
	assert_true(summary.rows.v[1].median == 1.5);
	assert_true(summary.all.best == 0.2);
	assert_int_equal(summary.all.n_values, 5);
}

static void test_highest_is_best(void **state)
{
	add_keys();
	set_metric(add_run(RUN_SUCCEEDED, "0.1", "1"), "accuracy", 0.5, 0.1, 0.6);
	set_metric(add_run(RUN_SUCCEEDED, "0.1", "2"), "accuracy", 0.7, 0.1, 0.9);
	summarise(0);
	assert_int_equal(summary.goal, COMPARE_MAX);
	assert_true(summary.all.best == 0.9);
}

static void test_time_left(void **state)
{
	add_keys();
	summarise(2);
	assert_int_equal(summary.left_ms, 0);
	set_times(add_run(RUN_RUNNING, "0.1", "1"), NOW_MS - 4000, 0);
	summarise(2);
	assert_int_equal(summary.left_ms, -1);
	set_times(add_run(RUN_SUCCEEDED, "0.1", "2"), NOW_MS - 20000, NOW_MS - 10000);
	summarise(2);
	assert_int_equal(summary.left_ms, 6000);
	/* 6 s of the one that runs, and 10 s for each of five others, two at a time. */
	for (int i = 0; i < 5; i++)
		add_run(RUN_QUEUED, "0.1", "3");
	summarise(2);
	assert_int_equal(summary.left_ms, 28000);
	/* Longer than those before it: nothing tells how long. */
	set_times(runs.v[0], NOW_MS - 40000, 0);
	summarise(100);
	assert_int_equal(summary.left_ms, 10000);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_rows_of_the_first_axis),
		TEST(test_rows_of_each_member),
		TEST(test_values_are_told_apart),
		TEST(test_best_and_median),
		TEST(test_highest_is_best),
		TEST(test_time_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

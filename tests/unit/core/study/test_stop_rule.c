/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"
#include "core/study/stop_rule.h"

enum { MEMBERS = 10, POINTS = 100 };

static struct series_point points[MEMBERS][POINTS];
static struct stop_curve curves[MEMBERS];
static struct stop_judgements judgements;
static struct stop_rule rule;

static int begin(void **state)
{
	memset(curves, 0, sizeof(curves));
	for (size_t i = 0; i < MEMBERS; i++)
		curves[i].points = points[i];
	judgements = (struct stop_judgements){0};
	rule = (struct stop_rule){0};
	return 0;
}

static int end(void **state)
{
	vec_done(&judgements);
	stop_rule_done(&rule);
	return 0;
}

static void use_rule(const char *text)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(stop_rule_parse(text, &rule, &err), 0);
}

static void add_point(size_t member, int64_t step, double time_s, double value)
{
	points[member][curves[member].n++] = (struct series_point){step, time_s, value};
}

/* "0@1 1@1x": members and the rungs that they were judged at, with an x where they were stopped. */
static void judged(size_t n, const char *wanted)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 4096);
	stop_rule_judge(&rule, curves, n, &judgements);
	vec_foreach (struct stop_judgement, each, &judgements)
		buf_addf(&text, "%s%zu@%lld%s", text.len ? " " : "", each->member,
			(long long)stop_rule_step(&rule, each->rung), each->stops ? "x" : "");
	assert_string_equal(text.data ? text.data : "", wanted);
}

static void test_good_rules(void **state)
{
	static const struct {
		const char *text, *metric, *described;
		bool highest;
	} cases[] = {
		{"metric=val_loss,goal=min,halving=3,at=step", "val_loss",
			"the best 1 of 3 by lowest val_loss at steps 1, 3, 9, …", false},
		{"halving=2,from=100,metric=accuracy", "accuracy",
			"the best 1 of 2 by highest accuracy at steps 100, 200, 400, …", true},
		{"median,metric=x/y,goal=max,from=5", "x/y",
			"those not worse than the median by highest x/y at steps 5, 10, 15, …",
			true},
		{"metric=accuracy,goal=min,median,from=1", "accuracy",
			"those not worse than the median by lowest accuracy at steps 1, 2, 3, …",
			false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STOP_RULE struct stop_rule got = {0};
		assert_int_equal(stop_rule_parse(cases[i].text, &got, NULL), 0);
		assert_string_equal(got.metric, cases[i].metric);
		assert_int_equal(got.highest, cases[i].highest);
		AUTO_FREE char *described = stop_rule_describe(&got);
		assert_string_equal(described, cases[i].described);
	}
}

static void test_bad_rules(void **state)
{
	static const char *const bad[] = {"", ",", "metric=loss", "halving=3", "metric=,halving=3",
		"metric=loss,halving=1", "metric=loss,halving=x", "metric=loss,halving=3.5",
		"metric=loss,halving=", "metric=loss,halving=101", "metric=loss,halving=3,median",
		"metric=loss,median,median", "metric=loss,median=3", "metric=speed,halving=3",
		"metric=loss,goal=mid,halving=3", "metric=loss,halving=3,from=0",
		"metric=loss,halving=3,from=-1", "metric=loss,halving=3,from=99999999999999999999",
		"metric=loss,halving=3,at=epoch", "metric=loss,median", "metric=loss,halving=3,",
		"metric=loss halving=3"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_STOP_RULE struct stop_rule got = {0};
		AUTO_ERR struct err err = {0};
		assert_int_equal(stop_rule_parse(bad[i], &got, &err), -ERR_USAGE);
		assert_int_equal(strncmp(err.message, "--stop: '", 9), 0);
		assert_non_null(err.hint);
	}
}

static void test_steps_end(void **state)
{
	use_rule("metric=loss,halving=10,from=7");
	assert_int_equal(stop_rule_step(&rule, 2), 700);
	assert_true(stop_rule_step(&rule, 19) == INT64_MAX);
	assert_true(stop_rule_step(&rule, 1000000) == INT64_MAX);
	stop_rule_done(&rule);
	use_rule("metric=loss,median,from=5");
	assert_int_equal(stop_rule_step(&rule, 9), 50);
	assert_true(stop_rule_step(&rule, STOP_RUNGS_MAX) == INT64_MAX);
}

static void test_halving(void **state)
{
	use_rule("metric=loss,halving=2,from=10");
	for (size_t i = 0; i < 4; i++)
		for (int64_t step = 5; step <= 25; step += 5)
			add_point(i, step, (double)(step * 100) + (double)i, (double)i + 1);
	/* In the order of their times; the first is alone, the last two are not of the best half. */
	judged(4, "0@10 1@10x 2@10x 3@10x 0@20");
	/* Nobody is judged twice. */
	judged(4, "0@10 1@10x 2@10x 3@10x 0@20");
}

static void test_late_comers_are_compared_with_all(void **state)
{
	use_rule("metric=acc,halving=3,from=1");
	for (size_t i = 0; i < 4; i++)
		add_point(i, 1, (double)i, (double)i);
	judged(4, "0@1 1@1 2@1 3@1");
	/* Two of five may go on, and 2 and 3 are better. */
	add_point(4, 1, 9, 1.5);
	judged(5, "0@1 1@1 2@1 3@1 4@1x");
}

static void test_equals_go_on(void **state)
{
	use_rule("metric=acc,halving=2,from=1");
	for (size_t i = 0; i < 4; i++)
		add_point(i, 1, (double)i, 0);
	judged(4, "0@1 1@1 2@1 3@1");
}

/* What was recorded stays, though a curve that came later began before. */
static void test_recorded_judgements_stay(void **state)
{
	use_rule("metric=loss,halving=2,from=1");
	add_point(1, 1, 10, 5);
	judged(2, "1@1");
	add_point(0, 1, 5, 1);
	judged(2, "1@1 0@1");
	add_point(1, 2, 20, 5);
	add_point(0, 2, 21, 6);
	judged(2, "1@1 0@1 1@2 0@2x");
}

static void test_what_is_no_number_is_worst(void **state)
{
	use_rule("metric=loss,halving=2,from=1");
	add_point(0, 1, 1, NAN);
	add_point(1, 1, 2, INFINITY);
	add_point(2, 1, 3, 7);
	judged(3, "0@1x 1@1 2@1");
}

static void test_steps_that_are_left_out(void **state)
{
	use_rule("metric=loss,halving=2,from=10");
	/* One point stands for both rungs. */
	add_point(0, 25, 1, 3);
	add_point(1, 9, 1, 1);
	judged(3, "0@10 0@20");
}

static void test_median(void **state)
{
	use_rule("metric=loss,median,from=2");
	for (size_t i = 0; i < 5; i++)
		for (int64_t step = 1; step <= 2; step++)
			add_point(i, step, (double)(step * 10) + (double)i, (double)(10 - i));
	/* Three of them must have been there before; the fourth is better than all of them. */
	judged(4, "0@2 1@2 2@2 3@2");
	add_point(5, 1, 30, 8.5);
	add_point(5, 2, 31, 20);
	add_point(6, 1, 30, 9.5);
	add_point(6, 2, 32, 8.9);
	/* Averages 10, 9, 8, 7, 6: 8 is the median, 8.5 the best of member 5. */
	judged(6, "0@2 1@2 2@2 3@2 4@2 5@2x");
	judged(7, "0@2 1@2 2@2 3@2 4@2 5@2x 6@2x");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_good_rules),
		TEST(test_bad_rules),
		TEST(test_steps_end),
		TEST(test_halving),
		TEST(test_late_comers_are_compared_with_all),
		TEST(test_equals_go_on),
		TEST(test_recorded_judgements_stay),
		TEST(test_what_is_no_number_is_worst),
		TEST(test_steps_that_are_left_out),
		TEST(test_median),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

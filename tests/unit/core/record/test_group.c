/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "core/record/group.h"

/* params: an object as JSON. */
static struct run *make_member(
	const char *id, const char *group, enum run_state state, const char *params)
{
	AUTO_FREE char *name = mem_strndup(id, strlen(id) - RUN_SUFFIX - 1);
	struct run *run = run_new(id, name);
	struct json *json = NULL;

	json_set_str(run->doc, "group", group);
	json_set_str(run->doc, "state", run_state_name(state));
	assert_int_equal(json_parse(params, strlen(params), 1 << 16, "test", &json, NULL), 0);
	json_set(run->doc, "params", json);
	return run;
}

static int64_t index_of(const char *id, const char *group)
{
	AUTO_RUN struct run *run = make_member(id, group, RUN_FAILED, "{}");

	return run_member_index(run);
}

static void test_index(void **state)
{
	assert_int_equal(index_of("tiger-0-4k2x9", "tiger-4k2x9"), 0);
	assert_int_equal(index_of("tiger-12-4k2x9", "tiger-4k2x9"), 12);
	assert_int_equal(index_of("tiger-99999-4k2x9", "tiger-4k2x9"), 99999);
	assert_int_equal(index_of("tiger-07-4k2x9", "tiger-4k2x9"), -1);
	assert_int_equal(index_of("tiger-7-4k2x8", "tiger-4k2x9"), -1);
	assert_int_equal(index_of("tiger-999999-4k2x9", "tiger-4k2x9"), -1);
	assert_int_equal(index_of("tiger-7-8-4k2x9", "tiger-4k2x9"), -1);
	assert_int_equal(index_of("tiger-4k2x9", "tiger-4k2x9"), -1);
	assert_int_equal(index_of("tiger-7-4k2x9", "tiger"), -1);
	assert_int_equal(index_of("tiger-7-4k2x9", "t"), -1);
	assert_int_equal(index_of("tiger-7-4k2x9", ""), -1);
	assert_int_equal(index_of("tiger-7-4k2x9", NULL), -1);
	assert_int_equal(index_of("a123456789012345678901234567890123-7-4k2x9",
				 "a123456789012345678901234567890123456789-4k2x9"),
		-1);
}

static void test_order(void **state)
{
	static const char *const ids[] = {"tiger-10-4k2x9", "other-4k2x9", "tiger-2-4k2x9",
		"tiger-1-4k2x9", "added-4k2x9", "tiger-0-4k2x9"};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_STRV struct strv words = {0};

	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		*vec_push(&runs) = make_member(ids[i], "tiger-4k2x9", RUN_FAILED, "{}");
	group_sort(&runs);
	vec_foreach (struct run *, run, &runs)
		strv_add(&words, run_id(*run));
	AUTO_FREE char *joined = strv_join(&words, " ");
	assert_string_equal(joined, "tiger-0-4k2x9 tiger-1-4k2x9 tiger-2-4k2x9 tiger-10-4k2x9 "
				    "other-4k2x9 added-4k2x9");
}

static void expect_counts(const char *states, const char *text, enum run_state all)
{
	static const struct {
		char letter;
		enum run_state state;
	} letters[] = {{'s', RUN_SUCCEEDED}, {'f', RUN_FAILED}, {'l', RUN_LOST}, {'r', RUN_RUNNING},
		{'q', RUN_QUEUED}, {'c', RUN_CANCELLED}, {'u', RUN_UNKNOWN}};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf out;
	struct group_counts counts;

	for (; *states; states++)
		for (size_t i = 0; i < ARRAY_LEN(letters); i++)
			if (letters[i].letter == *states)
				*vec_push(&runs) =
					make_member("a-22222", "g", letters[i].state, "{}");
	group_count(&runs, &counts);
	buf_init(&out, 1 << 16);
	group_counts_text(&counts, &out);
	assert_string_equal(out.data, text);
	assert_int_equal(group_state(&counts), all);
}

static void test_counts(void **state)
{
	expect_counts("sss", "3 succeeded", RUN_SUCCEEDED);
	expect_counts("sfsf", "2 succeeded, 2 failed", RUN_FAILED);
	expect_counts("cs", "1 succeeded, 1 cancelled", RUN_CANCELLED);
	expect_counts("lcs", "1 succeeded, 1 lost, 1 cancelled", RUN_LOST);
	expect_counts("sfrq", "1 succeeded, 1 failed, 1 running, 1 queued", RUN_RUNNING);
	expect_counts("fq", "1 failed, 1 queued", RUN_QUEUED);
	expect_counts("fu", "1 failed, 1 unknown", RUN_UNKNOWN);
}

static void test_axes(void **state)
{
	static const char *const params[] = {
		"{\"lr\":\"0.1\",\"seed\":1,\"data\":\"x\",\"opt\":\"sgd\"}",
		"{\"lr\":\"3e-2\",\"seed\":2,\"data\":\"x\",\"opt\":\"adam\"}",
		"{\"lr\":\"0.1\",\"seed\":10,\"data\":\"x\",\"warmup\":true}"};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf out;

	for (size_t i = 0; i < ARRAY_LEN(params); i++)
		*vec_push(&runs) = make_member("a-22222", "g", RUN_FAILED, params[i]);
	AUTO_JSON struct json *axes = group_axes(&runs);
	buf_init(&out, 1 << 16);
	json_print(axes, &out);
	assert_string_equal(out.data,
		"{\"lr\":[\"3e-2\",\"0.1\"],\"seed\":[\"1\",\"2\",\"10\"],"
		"\"opt\":[\"adam\",\"sgd\",null],\"warmup\":[\"true\",null]}");
}

static void test_order_of_values(void **state)
{
	assert_true(group_compare_values("9", "10") < 0);
	assert_true(group_compare_values("1e-3", "0.01") < 0);
	assert_true(group_compare_values("-1", "0") < 0);
	assert_true(group_compare_values("10", "adam") < 0);
	assert_true(group_compare_values("sgd", "adam") > 0);
	assert_true(group_compare_values("nan", "1") > 0);
	assert_true(group_compare_values("z", NULL) < 0);
	assert_int_equal(group_compare_values(NULL, NULL), 0);
	assert_int_equal(group_compare_values("a", "a"), 0);
	/* The same number in two forms is two values, always in one order. */
	assert_true(group_compare_values("0.1", "1e-1") == -group_compare_values("1e-1", "0.1"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_axes),
		cmocka_unit_test(test_order_of_values),
	};

	return cmocka_run_group_tests_name("group", tests, NULL, NULL);
}

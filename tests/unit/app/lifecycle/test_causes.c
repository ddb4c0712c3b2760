/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "app/lifecycle/causes.h"
#include "app/lifecycle/why.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static struct run *make_member(int index, enum run_state state)
{
	char id[RUN_ID_SIZE];

	run_member_id("tiger-4k2x9", (size_t)index, id);
	AUTO_FREE char *name = mem_strndup(id, strlen(id) - RUN_SUFFIX - 1);
	struct run *run = run_new(id, name);
	json_set_str(run->doc, "group", "tiger-4k2x9");
	json_set_str(run->doc, "state", run_state_name(state));
	return run;
}

static void expect_text(const struct causes *causes, const char *text)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 16);
	causes_text(causes, &out);
	assert_string_equal(out.data, text);
}

static void test_same_causes_are_counted_together(void **state)
{
	static const struct {
		enum run_state state;
		const char *text;
		bool is_exact;
	} rows[] = {
		{RUN_QUEUED, "3 runs are in front", false},
		{RUN_FAILED, "the program exited with 1", true},
		{RUN_FAILED, "CUDA out of memory. Tried 2.00 GiB", false},
		{RUN_SUCCEEDED, NULL, true},
		{RUN_FAILED, "CUDA out of memory. Tried 12.5 GiB", false},
		{RUN_QUEUED, "12 runs are in front", false},
		{RUN_FAILED, "the program exited with 2", true},
		{RUN_SUCCEEDED, NULL, true},
		{RUN_LOST, "the program exited with 1", true},
	};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_CAUSES struct causes causes = {0};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct run *run = make_member((int)i, rows[i].state);
		*vec_push(&runs) = run;
		causes_add(&causes, run, rows[i].text, rows[i].is_exact);
	}
	causes_sort(&causes);
	expect_text(&causes,
		"2 succeeded, 2 failed: CUDA out of memory. Tried 2.00 GiB (tiger-2, tiger-4), "
		"1 failed: the program exited with 1 (tiger-1), "
		"1 failed: the program exited with 2 (tiger-6), "
		"1 lost: the program exited with 1 (tiger-8), "
		"2 queued: 3 runs are in front (tiger-0, tiger-5)");
}

static void test_many_names_are_cut(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_CAUSES struct causes causes = {0};

	for (int i = 0; i < 30; i++) {
		struct run *run = make_member(i, RUN_FAILED);
		*vec_push(&runs) = run;
		causes_add(&causes, run, "boom", true);
	}
	expect_text(&causes,
		"30 failed: boom (tiger-0, tiger-1, tiger-2, tiger-3, tiger-4 and 25 more)");
}

static void expect_cause(struct run *run, const char *output, const char *text, bool is_exact)
{
	const struct dirs dirs = {.state = "/nonexistent"};
	AUTO_BUF struct buf cause;

	buf_init(&cause, 1 << 16);
	assert_int_equal(run_cause(&dirs, run, output, strlen(output), &cause), is_exact);
	assert_string_equal(cause.data ? cause.data : "", text);
	run_free(run);
}

static struct run *make_failed(const char *text)
{
	struct run_exit exit = {.known = true, .code = 1, .origin = "job", .reason = "Error"};
	struct run *run = make_member(3, RUN_RUNNING);

	run_add_attempt(run, "machine:tiger-3-4k2x9/1");
	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &exit);
	json_set_str(run->doc, "text", text);
	return run;
}

static void test_cause_of_a_run(void **state)
{
	expect_cause(make_failed("the program exited with 1"),
		"Traceback (most recent call last):\n  File \"/s/tiger-3-4k2x9/attempts/1/tree/train.py\", line 3, in <module>\n"
		"    raise ValueError('lr must be > 0')\nValueError: lr must be > 0\n",
		"ValueError: lr must be > 0 (train.py:3)", false);
	expect_cause(make_failed("the program exited with 1"), "bye\n", "the program exited with 1",
		true);
	expect_cause(make_member(1, RUN_SUCCEEDED), "", "", true);
	struct run *queued = make_member(2, RUN_QUEUED);
	json_set_str(queued->doc, "text", "waits for a free GPU");
	expect_cause(queued, "", "waits for a free GPU", false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_causes_are_counted_together),
		cmocka_unit_test(test_many_names_are_cut),
		cmocka_unit_test(test_cause_of_a_run),
	};

	return cmocka_run_group_tests_name("causes", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/runs/after_check.h"
#include "app/runs/held.h"
#include "core/store/store.h"
#include "core/study/study.h"
#include "tests/unit/silentfix.h"

/* What the store says of the runs that one begins after. */

static void add_run(const char *id, enum run_state run_state, int code, const char *study)
{
	AUTO_RUN struct run *run = run_new(id, "a");
	const struct run_exit exit = {.known = true,
		.code = code,
		.origin = "job",
		.reason = code ? "Error" : "Completed"};
	AUTO_SPEC struct spec spec = {.cwd = mem_strdup(".")};

	strv_add(&spec.command, "true");
	if (study) {
		spec.study = (struct spec_study){.id = mem_strdup(study), .size = 2};
		json_set_str(run->doc, "group", study);
		json_set_str(json_sub(run->doc, "study"), "id", study);
	}
	run->spec = spec_to_json(&spec);
	run_set_state(run, run_state);
	if (run_state_is_final(run_state))
		run_set_exit(run, &exit);
	ok(store_insert(open_store(), run, error));
}

static void check(const char *id, bool is_study, bool any, enum after_state want, const char *text)
{
	AUTO_AFTER_CHECK struct after_check check = {0};
	AUTO_AFTER struct after_list list = {0};

	after_add(&list, id, is_study, any);
	ok(after_check(&session, &list, &check, error));
	assert_int_equal(check.state, want);
	if (text)
		assert_string_equal(check.text, text);
	else
		assert_null(check.text);
	assert_int_equal(check.pending.n > 0 || is_study, want == AFTER_WAITS || is_study);
}

static void test_a_run(void **state)
{
	static const struct {
		enum run_state state;
		int code;
		enum after_state ok, any;
		const char *text;
	} cases[] = {
		{RUN_QUEUED, 0, AFTER_WAITS, AFTER_WAITS, NULL},
		{RUN_RUNNING, 0, AFTER_WAITS, AFTER_WAITS, NULL},
		{RUN_SUCCEEDED, 0, AFTER_MET, AFTER_MET, NULL},
		{RUN_FAILED, 3, AFTER_NEVER, AFTER_MET, "failed with exit 3"},
		{RUN_CANCELLED, 143, AFTER_NEVER, AFTER_MET, "was cancelled"},
		{RUN_LOST, 125, AFTER_NEVER, AFTER_MET, "was lost"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *id = mem_printf("a%zu-22222", i);
		AUTO_FREE char *text = cases[i].text ? mem_printf("%s %s, and it was to succeed",
							       id, cases[i].text)
						     : NULL;
		add_run(id, cases[i].state, cases[i].code, NULL);
		check(id, false, false, cases[i].ok, text);
		check(id, false, true, cases[i].any, NULL);
	}
	check("gone-22222", false, true, AFTER_MET, NULL);
	check("gone-22222", false, false, AFTER_NEVER,
		"gone-22222 was removed, and it was to succeed");
}

static void test_a_study(void **state)
{
	AUTO_STUDY struct study study = {0};

	ok(study_claim(&session.dirs, "tiger", &study, error));
	/* Nothing of it is made, and somebody makes it. */
	check(study.id, true, false, AFTER_WAITS, NULL);
	add_run("tiger-0-22222", RUN_SUCCEEDED, 0, study.id);
	check(study.id, true, false, AFTER_WAITS, NULL);
	study_release(&study);
	AUTO_FREE char *text =
		mem_printf("%s has only 1 of its 2 runs, and it was to succeed", study.id);
	check(study.id, true, false, AFTER_NEVER, text);
	check(study.id, true, true, AFTER_MET, NULL);
	add_run("tiger-1-22222", RUN_RUNNING, 0, study.id);
	check(study.id, true, false, AFTER_WAITS, NULL);
}

/* A failure is told though others have not ended. */
static void test_several(void **state)
{
	AUTO_AFTER_CHECK struct after_check check = {0};
	AUTO_AFTER struct after_list list = {0};

	add_run("a-22222", RUN_RUNNING, 0, NULL);
	add_run("b-22222", RUN_FAILED, 1, NULL);
	after_add(&list, "a-22222", false, false);
	after_add(&list, "b-22222", false, true);
	ok(after_check(&session, &list, &check, error));
	assert_int_equal(check.state, AFTER_WAITS);
	assert_int_equal(check.pending.n, 1);
	after_add(&list, "b-22222", false, false);
	after_check_done(&check);
	ok(after_check(&session, &list, &check, error));
	assert_int_equal(check.state, AFTER_NEVER);
	assert_string_equal(check.id, "b-22222");
}

static void test_who_waits(void **state)
{
	AUTO_RUN struct run *other = run_new("a-22222", "a");
	AUTO_RUN struct run *run = run_new("b-22222", "b");
	AUTO_AFTER struct after_list list = {0};

	run_set_state(run, RUN_QUEUED);
	assert_false(after_waits_for(run, other));
	run->spec = json_object();
	after_add(&list, "a-22222", false, false);
	json_set(run->spec, AFTER_RECORD, after_to_json(&list));
	assert_true(after_waits_for(run, other));
	assert_false(after_waits_for(run, run));
	run_set_state(run, RUN_RUNNING);
	assert_false(after_waits_for(run, other));
}

static void test_a_held_record(void **state)
{
	AUTO_RUN struct run *run = run_new("b-22222", "b");
	AUTO_AFTER struct after_list list = {0};
	AUTO_ERR struct err cause = {0};

	after_add(&list, "a-22222", false, false);
	held_set_after(run, &list);
	assert_true(run_is_held(run) && run_is_unsent(run) && held_is_after(run));
	assert_string_equal(json_get_str(run->doc, "text"), "after a-22222");
	int64_t since_ms = held_since_ms(run);
	err_set(&cause, E_SSH_UNREACHABLE, "box is away");
	held_set(run, &cause);
	assert_false(held_is_after(run));
	assert_int_equal(held_since_ms(run), since_ms);
	held_set_after(run, &list);
	assert_null(json_get(json_get(run->doc, RUN_HELD), "error"));
	held_end_after(run, "a-22222 was lost, and it was to succeed");
	struct run_exit exit;
	run_get_exit(run, &exit);
	assert_int_equal(run_state(run), RUN_CANCELLED);
	assert_int_equal(exit.code, 143);
	assert_string_equal(exit.reason, AFTER_REASON);
	assert_int_equal(run_exit_status(run), 143);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_run, make_silent_session, remove_session),
		cmocka_unit_test_setup_teardown(test_a_study, make_silent_session, remove_session),
		cmocka_unit_test_setup_teardown(test_several, make_silent_session, remove_session),
		cmocka_unit_test(test_who_waits),
		cmocka_unit_test(test_a_held_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "app/lifecycle/cancel.h"
#include "app/lifecycle/follow.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/submit/send.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/foreign.h"
#include "core/record/places.h"
#include "core/store/store.h"
#include "tests/unit/silentfix.h"

/* Records, marks and the order of runs that are held. No sender is started: there is no program. */

enum { LONG_MS = 60 * 1000 };

static void set_cause(enum err_id id, struct run *run)
{
	AUTO_ERR struct err cause = {0};

	err_set(&cause, id, "box is away");
	held_set(run, &cause);
}

/* As submit_hold does. */
static void hold(const char *id, bool marked)
{
	AUTO_RUN struct run *run = run_new(id, "x");
	struct run_list one = {.v = &run, .n = 1, .cap = 1};

	session.env.self = NULL;
	json_set_str(json_sub(run->doc, "target"), "kind", "ssh");
	json_set_str(json_sub(run->doc, "target"), "name", "box");
	set_cause(E_SSH_UNREACHABLE, run);
	if (marked)
		ok(held_mark(&session.dirs, id, error));
	ok(store_insert_new(open_store(), &one, error));
}

static void test_a_record_that_is_held(void **state)
{
	AUTO_RUN struct run *run = run_new("a-22222", "a");

	assert_false(run_is_held(run));
	assert_int_equal(held_since_ms(run), 0);
	json_set_str(json_sub(run->doc, "target"), "name", "box");
	set_cause(E_SSH_UNREACHABLE, run);
	assert_true(run_is_held(run) && run_is_unsent(run));
	assert_int_equal(run_state(run), RUN_QUEUED);
	assert_string_equal(json_get_str(run->doc, "text"), "queued here: no answer from box");
	int64_t since_ms = held_since_ms(run);
	assert_true(since_ms > 0);
	/* Another try fails otherwise: since when it waits stays. */
	json_set_str(json_sub(run->doc, RUN_HELD), "since", "2020-01-01T00:00:00.000Z");
	set_cause(E_SSH_LOGIN, run);
	assert_true(held_since_ms(run) < since_ms);
	assert_string_equal(json_get_str(run->doc, "text"), "queued here: box is away");
	set_cause(E_REGISTRY_UNREACHABLE, run);
	assert_string_equal(json_get_str(run->doc, "text"), "queued here: box is away");
	set_cause(E_SSH_LOGIN, run);
	assert_string_equal(
		json_get_str(json_get(json_get(run->doc, RUN_HELD), "error"), "id"), "ssh.login");
	run_add_attempt(run, "handle");
	assert_true(run_is_held(run) && !run_is_unsent(run));
	held_clear(run);
	assert_false(run_is_held(run));
	assert_null(json_get_str(run->doc, "text"));
	set_cause(E_SSH_LOGIN, run);
	run_set_state(run, RUN_CANCELLED);
	assert_false(run_is_held(run));
}

static void test_marks(void **state)
{
	AUTO_STRV struct strv ids = {0};

	assert_false(held_any(&session.dirs, NULL));
	ok(held_mark(&session.dirs, "a-22222", error));
	ok(held_mark(&session.dirs, "b-22222", error));
	put("state/dlrun/queue/lock", "");
	assert_true(held_any(&session.dirs, &ids));
	assert_int_equal(ids.n, 2);
	held_unmark(&session.dirs, "a-22222");
	held_unmark(&session.dirs, "b-22222");
	held_unmark(&session.dirs, "b-22222");
	assert_false(held_any(&session.dirs, NULL));
}

static void test_the_list_has_the_order_of_submission(void **state)
{
	static const char *const ids[] = {"c-22222", "b-33333", "d-44444", "a-55555"};
	AUTO(run_list_done) struct run_list runs = {0}, none = {0};

	ok(queue_list(&session, &none, error));
	assert_int_equal(none.n, 0);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		hold(ids[i], true);
	ok(queue_list(&session, &runs, error));
	assert_int_equal(runs.n, ARRAY_LEN(ids));
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		assert_string_equal(run_id(runs.v[i]), ids[i]);
}

/* Not asked for, not failed as one whose submit was killed; what another process did is read. */
static void test_a_refresh_reads_it_again(void **state)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_RUN struct run *now = NULL;
	struct run_list one = {.v = &run, .n = 1, .cap = 1};

	hold("e-22222", true);
	ok(store_get(open_store(), "e-22222", &run, error));
	ok(runs_refresh(&session, &one, LONG_MS, error));
	assert_int_equal(run_state(run), RUN_QUEUED);
	assert_true(run_is_unsent(run));
	ok(store_get(open_store(), "e-22222", &now, error));
	held_clear(now);
	run_set_state(now, RUN_FAILED);
	ok(store_update_known(open_store(), now, error));
	ok(runs_refresh(&session, &one, LONG_MS, error));
	assert_int_equal(run_state(run), RUN_FAILED);
}

static void test_it_is_taken_back(void **state)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_STRV struct strv ids = {0};
	struct ending ending = {0};

	hold("f-22222", true);
	put("state/dlrun/runs/f-22222/x", "");
	ok(store_get(open_store(), "f-22222", &run, error));
	ending.run = run;
	ok(runs_cancel(&session, &ending, 1, LONG_MS, NULL, NULL, error));
	assert_false(err_is_set(&ending.err));
	assert_false(ending.ended_before);
	assert_int_equal(run_state(run), RUN_CANCELLED);
	assert_int_equal(run_exit_status(run), 143);
	held_any(&session.dirs, &ids);
	assert_true(strv_find(&ids, "f-22222") < 0);
}

static void on_kept(void *ctx, const struct run *run, const struct err *why)
{
	snprintf(ctx, 64, "%s", err_info(why->id)->name);
}

/* Its cancel found a sender at work, which died: the next one sends nothing. */
static void test_a_sender_ends_what_was_cancelled(void **state)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_STRV struct strv ids = {0};
	char why[64] = "";
	const struct queue_events events = {.kept = on_kept, .ctx = why};

	hold("g-22222", true);
	ok(store_get(open_store(), "g-22222", &run, error));
	json_set_bool(run->doc, "cancelling", true);
	ok(store_update_known(open_store(), run, error));
	run_free(TAKE(run));
	ok(queue_send(&session, &events, NULL, error));
	ok(store_get(open_store(), "g-22222", &run, error));
	assert_int_equal(run_state(run), RUN_CANCELLED);
	assert_false(run_cancelling(run));
	held_any(&session.dirs, &ids);
	assert_true(strv_find(&ids, "g-22222") < 0);
}

/* Its settings are not those of another directory. */
static void test_it_stays_without_its_tree(void **state)
{
	AUTO_RUN struct run *run = NULL;
	char why[64] = "";
	const struct queue_events events = {.kept = on_kept, .ctx = why};

	hold("h-22222", true);
	ok(store_get(open_store(), "h-22222", &run, error));
	json_set_str(json_sub(run->doc, "origin"), "root", "/nonexistent/tree");
	ok(store_update_known(open_store(), run, error));
	run_free(TAKE(run));
	ok(queue_send(&session, &events, NULL, error));
	assert_string_equal(why, "io.read");
	ok(store_get(open_store(), "h-22222", &run, error));
	assert_true(run_is_held(run));
}

/*
 * Runs that wait for others
 */

static void hold_after(const char *id, const char *list)
{
	AUTO_RUN struct run *run = NULL;

	hold(id, true);
	ok(store_get(open_store(), id, &run, error));
	json_free(run->spec);
	run->spec = json_object();
	AUTO_JSON struct json *json = NULL;
	ok(json_parse(list, strlen(list), 1 << 20, "list", &json, error));
	json_set(run->spec, AFTER_RECORD, json_clone(json));
	ok(store_update_known(open_store(), run, error));
}

struct told {
	char failed[RUN_ID_SIZE], ended[RUN_ID_SIZE], kept[RUN_ID_SIZE];
	int n;
};

static void on_failed(void *ctx, const struct run *run, const struct err *why)
{
	struct told *told = ctx;

	assert_int_equal(why->id, E_DATA);
	told->n++;
	snprintf(told->failed, sizeof(told->failed), "%s", run_id(run));
}

static void on_ended(void *ctx, const struct run *run)
{
	struct told *told = ctx;

	told->n++;
	snprintf(told->ended, sizeof(told->ended), "%s", run_id(run));
}

static void on_told_kept(void *ctx, const struct run *run, const struct err *why)
{
	struct told *told = ctx;

	told->n++;
	snprintf(told->kept, sizeof(told->kept), "%s", run_id(run));
}

/* An error of one run is told, and the others are dealt with. */
static void test_each_for_itself(void **state)
{
	static const char *const all[] = {"i-22222", "j-22222", "k-22222", "l-22222"};
	struct told told = {{0}};
	const struct queue_events events = {
		.failed = on_failed, .ended = on_ended, .kept = on_told_kept, .ctx = &told};
	AUTO_RUN struct run *running = new_run("m-22222");

	run_set_state(running, RUN_PREPARING);
	json_set(running->doc, "attempts", json_array());
	held_set_after(running, &(struct after_list){0});
	ok(store_insert(open_store(), running, error));
	hold_after(all[0], "[{\"run\":\"../x\",\"when\":\"ok\"}]");
	hold_after(all[1], "[{\"run\":\"gone-22222\",\"when\":\"ok\"}]");
	hold_after(all[2], "[{\"run\":\"m-22222\",\"when\":\"any\"}]");
	hold_after(all[3], "[{\"run\":\"j-22222\",\"when\":\"any\"}]");
	ok(queue_send(&session, &events, NULL, error));
	assert_string_equal(told.failed, "i-22222");
	assert_string_equal(told.ended, "j-22222");
	assert_string_equal(told.kept, "l-22222");
	AUTO_RUN struct run *waits = NULL;
	ok(store_get(open_store(), "k-22222", &waits, error));
	assert_true(run_is_unsent(waits));
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		ok(store_remove(open_store(), all[i], error));
		held_unmark(&session.dirs, all[i]);
	}
	ok(store_remove(open_store(), "m-22222", error));
}

/*
 * Members of a study
 */

/* Kept for a tree that is not there, or (list) waiting for others. */
static void hold_member_after(const char *study, size_t index, const char *list)
{
	AUTO_RUN struct run *run = NULL;
	char id[RUN_ID_SIZE];

	run_member_id(study, index, id);
	if (list)
		hold_after(id, list);
	else
		hold(id, false);
	held_unmark(&session.dirs, id);
	ok(store_get(open_store(), id, &run, error));
	json_set_str(run->doc, "group", study);
	json_set_str(json_sub(run->doc, "study"), "id", study);
	json_set_int(json_sub(run->doc, "study"), "index", (int64_t)index);
	json_set_str(json_sub(run->doc, "origin"), "root", "/nonexistent/tree");
	ok(store_update_known(open_store(), run, error));
}

/* The same, or waiting for a run that is gone. */
static void hold_member(const char *study, size_t index, bool is_after)
{
	hold_member_after(
		study, index, is_after ? "[{\"run\":\"gone-22222\",\"when\":\"ok\"}]" : NULL);
}

static enum run_state state_of(const char *id)
{
	AUTO_RUN struct run *run = NULL;

	ok(store_get(open_store(), id, &run, error));
	return run_state(run);
}

/* A run that ended otherwise ends all of them, and is told once; not one of the same group that is
 * none of them. */
static void test_a_study_ends_as_one(void **state)
{
	struct told told = {{0}};
	const struct queue_events events = {.failed = on_failed, .ended = on_ended, .ctx = &told};
	AUTO_RUN struct run *other = NULL;

	ok(held_mark(&session.dirs, "w-22222", error));
	for (size_t i = 0; i < 3; i++)
		hold_member("w-22222", i, true);
	hold_member("w-22222", 3, false);
	ok(store_get(open_store(), "w-3-22222", &other, error));
	json_remove(other->doc, "study");
	ok(store_update_known(open_store(), other, error));
	ok(queue_send(&session, &events, NULL, error));
	assert_string_equal(told.ended, "w-0-22222");
	assert_int_equal(told.n, 1);
	assert_int_equal(state_of("w-0-22222"), RUN_CANCELLED);
	assert_int_equal(state_of("w-1-22222"), RUN_CANCELLED);
	assert_int_equal(state_of("w-2-22222"), RUN_CANCELLED);
	assert_int_equal(state_of("w-3-22222"), RUN_QUEUED);
	ok(store_remove(open_store(), "w-3-22222", error));
	ok(queue_send(&session, &events, NULL, error));
	assert_false(exists("state/dlrun/queue/w-22222"));
}

/* One whose cancel died before its end: the others still wait. */
static void test_a_member_ends_while_the_others_wait(void **state)
{
	const struct queue_events events = {0};
	AUTO_RUN struct run *before = new_run("c-33333");
	AUTO_RUN struct run *member = NULL;

	run_set_state(before, RUN_PREPARING);
	json_set(before->doc, "attempts", json_array());
	held_set_after(before, &(struct after_list){0});
	ok(store_insert(open_store(), before, error));
	ok(held_mark(&session.dirs, "b-22222", error));
	for (size_t i = 0; i < 3; i++)
		hold_member_after("b-22222", i, "[{\"run\":\"c-33333\",\"when\":\"any\"}]");
	ok(store_get(open_store(), "b-1-22222", &member, error));
	json_set_bool(member->doc, "cancelling", true);
	ok(store_update_known(open_store(), member, error));
	ok(queue_send(&session, &events, NULL, error));
	assert_int_equal(state_of("b-0-22222"), RUN_QUEUED);
	assert_int_equal(state_of("b-1-22222"), RUN_CANCELLED);
	assert_int_equal(state_of("b-2-22222"), RUN_QUEUED);
	for (size_t i = 0; i < 3; i++) {
		char id[RUN_ID_SIZE];
		run_member_id("b-22222", i, id);
		ok(store_remove(open_store(), id, error));
	}
	ok(store_remove(open_store(), "c-33333", error));
	held_unmark(&session.dirs, "b-22222");
}

static void on_member_kept(void *ctx, const struct run *run, const struct err *why)
{
	int *n = ctx;

	*n += str_eq(json_get_str(run->doc, "group"), "x-22222");
}

static void test_a_study_has_one_mark(void **state)
{
	int n = 0;
	const struct queue_events events = {.kept = on_member_kept, .ctx = &n};

	ok(held_mark(&session.dirs, "x-22222", error));
	hold_member("x-22222", 0, false);
	hold_member("x-22222", 1, false);
	ok(queue_send(&session, &events, NULL, error));
	assert_int_equal(n, 2);
	assert_true(exists("state/dlrun/queue/x-22222"));
	ok(store_remove(open_store(), "x-0-22222", error));
	ok(queue_send(&session, &events, NULL, error));
	assert_true(exists("state/dlrun/queue/x-22222"));
	ok(store_remove(open_store(), "x-1-22222", error));
	ok(queue_send(&session, &events, NULL, error));
	assert_false(exists("state/dlrun/queue/x-22222"));
}

/* One has been sent; the others are taken back together, and one of them was before. */
static void test_a_study_is_taken_back(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct ending endings[4] = {{0}};

	for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
		char id[RUN_ID_SIZE];
		hold_member("z-22222", i, false);
		run_member_id("z-22222", i, id);
		ok(store_get(open_store(), id, vec_push(&runs), error));
		endings[i].run = runs.v[i];
	}
	AUTO_RUN struct run *sent = run_copy(runs.v[1]);
	run_add_attempt(sent, "ssh:box/1");
	held_clear(sent);
	ok(store_update_known(open_store(), sent, error));
	ok(runs_cancel(&session, &endings[3], 1, LONG_MS, NULL, NULL, error));
	assert_false(endings[3].ended_before);
	ok(runs_cancel(&session, endings, 4, 0, NULL, NULL, error));
	assert_int_equal(state_of("z-0-22222"), RUN_CANCELLED);
	assert_int_equal(state_of("z-1-22222"), RUN_QUEUED);
	assert_int_equal(state_of("z-2-22222"), RUN_CANCELLED);
	assert_int_equal(run_exit_status(runs.v[2]), 143);
	assert_false(endings[0].ended_before || endings[2].ended_before);
	assert_true(endings[3].ended_before);
	for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
		assert_int_equal(err_is_set(&endings[i].err), i == 1);
		err_done(&endings[i].err);
	}
}

/* The others end, and that one is named. */
static void test_a_member_is_removed_while_all_are_taken_back(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct ending endings[3] = {{0}};

	for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
		char id[RUN_ID_SIZE];
		hold_member("r-22222", i, false);
		run_member_id("r-22222", i, id);
		ok(store_get(open_store(), id, vec_push(&runs), error));
		endings[i].run = runs.v[i];
	}
	ok(store_remove(open_store(), "r-1-22222", error));
	ok(runs_cancel(&session, endings, 3, 0, NULL, NULL, error));
	assert_int_equal(state_of("r-0-22222"), RUN_CANCELLED);
	assert_int_equal(state_of("r-2-22222"), RUN_CANCELLED);
	for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
		assert_int_equal(endings[i].err.id, i == 1 ? E_RUN_NOT_FOUND : E_NONE);
		err_done(&endings[i].err);
	}
}

static int n_opened;

static int open_no_host(
	void *ctx, struct loop *loop, const char *host, struct channel_opener *ret, struct err *err)
{
	n_opened++;
	return err_set(err, E_SSH_UNREACHABLE, "no route to %s", host);
}

/* For one member: the others are marked. For a run of its own it is asked again. */
static void test_a_silent_target_is_asked_once(void **state)
{
	static const char *const ids[] = {"g-0-44444", "g-1-44444", "g-2-44444", "h-44444"};
	AUTO(run_list_done) struct run_list runs = {0};
	struct ending endings[ARRAY_LEN(ids)] = {{0}};

	session.env.open_host = open_no_host;
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		AUTO_RUN struct run *run = silent_run(ids[i]);
		if (i < 3)
			json_set_str(json_sub(run->doc, "study"), "id", "g-44444");
		set_cause(E_SSH_UNREACHABLE, run);
		ok(store_insert(open_store(), run, error));
		ok(store_get(open_store(), ids[i], vec_push(&runs), error));
		endings[i].run = runs.v[i];
	}
	ok(runs_cancel(&session, endings, ARRAY_LEN(ids), 0, NULL, NULL, error));
	session.env.open_host = silent_open_host;
	assert_int_equal(n_opened, 2);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		assert_int_equal(endings[i].err.id, E_SSH_UNREACHABLE);
		assert_true(run_is_held(runs.v[i]) && run_cancelling(runs.v[i]));
		ok(store_remove(open_store(), ids[i], error));
		err_done(&endings[i].err);
	}
}

/* Also where the first is removed. */
static void test_members_have_one_lock(void **state)
{
	AUTO_RUN struct run *one = run_new("y-1-22222", "y-1");
	AUTO_RUN struct run *two = run_new("y-2-22222", "y-2");
	AUTO_RUN struct run *other = run_new("y-3-22222", "y-3");
	AUTO_FD int fd = -1;
	AUTO_FD int fd_other = -1;
	AUTO_ERR struct err none = {0};
	int fd_two = -1;

	json_set_str(json_sub(one->doc, "study"), "id", "y-22222");
	json_set_str(json_sub(two->doc, "study"), "id", "y-22222");
	ok(held_lock(&session.dirs, one, 0, &fd, error));
	assert_true(exists("state/dlrun/runs/y-0-22222/" RUN_SUBMIT_LOCK));
	assert_true(held_lock(&session.dirs, two, 0, &fd_two, &none) < 0);
	assert_int_equal(none.id, E_IO_LOCK);
	ok(held_lock(&session.dirs, other, 0, &fd_other, error));
}

/* Its sender died when it had begun: the next one asks for the end before it counts as sent. */
static void test_a_refresh_keeps_a_cancel(void **state)
{
	AUTO_RUN struct run *run = new_run("n-22222");
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	struct attempt_state now;

	run_set_state(run, RUN_QUEUED);
	set_cause(E_SSH_UNREACHABLE, run);
	json_set_bool(run->doc, "cancelling", true);
	ok(store_insert(open_store(), run, error));
	put("state/dlrun/runs/n-22222/attempts/1/log", "");
	attempt_state_init(&now);
	now.state = RUN_RUNNING;
	now.program = now.supervisor;
	ok(attempt_state_write(in_root("state/dlrun/runs/n-22222/attempts/1"), &now, error));
	ok(runs_refresh(&session, &one, LONG_MS, error));
	assert_true(run_is_held(run) && run_cancelling(run));
	json_set_bool(run->doc, "cancelling", false);
	ok(store_update_known(open_store(), run, error));
	ok(runs_refresh(&session, &one, LONG_MS, error));
	assert_false(run_is_held(run));
	assert_int_equal(run_state(run), RUN_RUNNING);
	ok(store_remove(open_store(), "n-22222", error));
}

/* The mark of a run that waits names the others. */
static void test_an_end_lets_a_sender_start(void **state)
{
	AUTO_RUN struct run *run = new_run("p-22222");
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	AUTO_AFTER struct after_list list = {0};

	session.env.self = NULL;
	after_add(&list, "p-22222", false, false);
	ok(held_mark_after(&session.dirs, "q-22222", &list, error));
	put("state/dlrun/queue/kicked", "60000");
	run_set_state(run, RUN_RUNNING);
	held_kick_ended(&session, &one);
	assert_true(exists("state/dlrun/queue/kicked"));
	run_set_state(run, RUN_SUCCEEDED);
	held_kick_ended(&session, &one);
	assert_false(exists("state/dlrun/queue/kicked"));
	held_unmark(&session.dirs, "q-22222");
	/* Nobody waits for it. */
	ok(held_mark(&session.dirs, "q-22222", error));
	put("state/dlrun/queue/kicked", "60000");
	held_kick_ended(&session, &one);
	assert_true(exists("state/dlrun/queue/kicked"));
	held_unmark(&session.dirs, "q-22222");
}

static void set_places(struct run *run, const char *at)
{
	struct json *list = json_array();
	static const char *const names[] = {"box", "other"};

	for (int i = 0; i < 2; i++) {
		struct json *item = json_object();
		json_set_str(item, "target", names[i]);
		json_set_str(item, "state", i ? "untried" : "chosen");
		json_set_str(item, "at", at);
		json_add(list, item);
	}
	json_set(run->doc, RUN_PLACES, list);
	json_set_str(json_sub(run->doc, "target"), "name", "box");
	json_set_str(json_sub(run->doc, "target"), "kind", "kubernetes");
}

static void test_a_run_that_may_move(void **state)
{
	AUTO_RUN struct run *run = run_new("s-22222", "s");
	AUTO_RUN struct run *foreign = run_new("t-22222", "t");

	run_add_attempt(run, "kube:0/ns/job/s-22222");
	run_set_state(run, RUN_QUEUED);
	set_places(run, "2026-01-01T00:00:00Z");
	assert_true(run_may_move(run));
	/* Of a study that the cluster starts as a whole. */
	json_set_str(json_sub(run->doc, "study"), "id", "u-22222");
	assert_false(run_may_move(run));
	json_remove(run->doc, "study");
	/* The machine that has submitted it moves it. */
	foreign_take(foreign, NULL, NULL, NULL);
	run_add_attempt(foreign, "kube:0/ns/job/t-22222");
	run_set_state(foreign, RUN_QUEUED);
	set_places(foreign, "2026-01-01T00:00:00Z");
	assert_false(run_may_move(foreign));
	assert_false(run_is_watched(foreign));
	/* Nobody else knows where that one sends it, until it has begun or was started again here. */
	assert_true(run_may_be_elsewhere(foreign) && !run_may_be_elsewhere(run));
	run_set_time(json_sub(foreign->doc, "times"), "started", 5000);
	assert_false(run_may_be_elsewhere(foreign));
	json_remove(json_sub(foreign->doc, "times"), "started");
	held_restart(foreign);
	assert_false(run_may_be_elsewhere(foreign));
}

/* A run that has ended while it was moved stays where it is started again. */
static void test_a_restart_waits_anew(void **state)
{
	AUTO_RUN struct run *run = run_new("v-22222", "v");
	int64_t at_ms = 0, now_ms = clock_wall_ms();

	run_add_attempt(run, "kube:0/ns/job/v-22222");
	run_set_state(run, RUN_QUEUED);
	set_places(run, "2026-01-01T00:00:00Z");
	json_set_str(json_sub(run->doc, RUN_MOVING), "to", "other");
	assert_true(run_is_moving(run));
	held_restart(run);
	assert_false(run_is_moving(run));
	const struct json *place = json_first(json_get(run->doc, RUN_PLACES));
	ok(clock_parse(json_get_str(place, "at"), &at_ms, error));
	assert_true(at_ms >= now_ms - 1000);
	assert_string_equal(json_get_str(place, "state"), "chosen");
}

static void test_a_place_names_the_server(void **state)
{
	AUTO_FREE char *place = held_place("kube:0123456789abcdef/ns/job/a-22222-1");

	assert_string_equal(place, "kube:0123456789abcdef");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_record_that_is_held),
		cmocka_unit_test(test_marks),
		cmocka_unit_test(test_the_list_has_the_order_of_submission),
		cmocka_unit_test(test_a_refresh_reads_it_again),
		cmocka_unit_test(test_it_is_taken_back),
		cmocka_unit_test(test_a_sender_ends_what_was_cancelled),
		cmocka_unit_test(test_it_stays_without_its_tree),
		cmocka_unit_test(test_each_for_itself),
		cmocka_unit_test(test_a_study_ends_as_one),
		cmocka_unit_test(test_a_member_ends_while_the_others_wait),
		cmocka_unit_test(test_a_study_has_one_mark),
		cmocka_unit_test(test_a_study_is_taken_back),
		cmocka_unit_test(test_a_member_is_removed_while_all_are_taken_back),
		cmocka_unit_test(test_a_silent_target_is_asked_once),
		cmocka_unit_test(test_members_have_one_lock),
		cmocka_unit_test(test_a_refresh_keeps_a_cancel),
		cmocka_unit_test(test_an_end_lets_a_sender_start),
		cmocka_unit_test(test_a_run_that_may_move),
		cmocka_unit_test(test_a_restart_waits_anew),
		cmocka_unit_test(test_a_place_names_the_server),
	};

	return cmocka_run_group_tests(tests, make_silent_session, remove_session);
}

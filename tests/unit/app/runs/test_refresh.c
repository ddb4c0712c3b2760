/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "core/store/store.h"
#include "tests/unit/silentfix.h"

/* A refresh beside something else that runs the loop. The host that is asked never responds. */

enum { SOON_MS = 200, LONG_MS = 60 * 1000 };

struct heard {
	int calls, status, result;
};

static int on_refreshed(void *ctx, int status, struct err *err)
{
	struct heard *heard = ctx;

	heard->calls++;
	heard->status = status;
	loop_stop(session_loop(&session));
	return heard->result < 0 ? err_set(err, E_CANCELED, "enough") : 0;
}

static void insert(struct run_list *runs, struct run *run)
{
	run_set_state(run, RUN_RUNNING);
	ok(store_insert(open_store(), run, error));
	*vec_push(runs) = run;
}

/* Its row says that it runs, and it has ended. */
static void add_ended(struct run_list *runs, const char *id)
{
	AUTO_FREE char *dir = mem_printf("state/dlrun/runs/%s/attempts/1", id);
	AUTO_FREE char *log = mem_printf("%s/log", dir);
	struct target_status end = {.ended_ms = 5000};

	insert(runs, new_run(id));
	put(log, "");
	attempt_set_end(&end, RUN_FAILED, 3, 0, "job", "Error", NULL);
	ok(attempt_end_write(in_root(dir), &end, 0, error));
	target_status_done(&end);
}

static enum run_state stored(const char *id)
{
	AUTO_RUN struct run *run = NULL;

	ok(store_get(open_store(), id, &run, error));
	return run_state(run);
}

static void test_beside_others(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0}, more = {0};
	struct heard heard = {0}, slow = {0};

	add_ended(&runs, "a-22222");
	insert(&more, silent_run("b-22222"));
	struct refresh *waits = refresh_start(&session, &more, LONG_MS, on_refreshed, &slow);
	refresh_start(&session, &runs, LONG_MS, on_refreshed, &heard);
	assert_int_equal(heard.calls, 0);
	ok(loop_run(session_loop(&session), error));
	/* One that takes long holds up no other. */
	assert_int_equal(heard.calls, 1);
	assert_int_equal(heard.status, 0);
	assert_int_equal(run_state(runs.v[0]), RUN_FAILED);
	assert_int_equal(stored("a-22222"), RUN_FAILED);
	refresh_cancel(waits);
	assert_int_equal(slow.calls, 0);
	assert_int_equal(run_state(more.v[0]), RUN_RUNNING);
}

static void test_nothing_to_ask(void **state)
{
	struct run_list none = {0};
	struct heard heard = {0};

	refresh_start(&session, &none, LONG_MS, on_refreshed, &heard);
	assert_int_equal(heard.calls, 0);
	ok(loop_run(session_loop(&session), error));
	assert_int_equal(heard.calls, 1);
	ok(runs_refresh(&session, &none, LONG_MS, error));
	refresh_cancel(NULL);
}

static void test_the_time_is_over(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct heard heard = {0};

	add_ended(&runs, "c-22222");
	insert(&runs, silent_run("d-22222"));
	refresh_start(&session, &runs, SOON_MS, on_refreshed, &heard);
	ok(loop_run(session_loop(&session), error));
	assert_int_equal(heard.calls, 1);
	assert_int_equal(run_state(runs.v[0]), RUN_FAILED);
	assert_int_equal(run_state(runs.v[1]), RUN_UNKNOWN);
	assert_true(str_ends(json_get_str(runs.v[1]->doc, "text"), "box did not answer in time"));
	assert_int_equal(stored("d-22222"), RUN_RUNNING);
}

static void test_done_may_end_the_loop(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_ERR struct err err = {0};
	struct heard heard = {.result = -1};

	add_ended(&runs, "e-22222");
	refresh_start(&session, &runs, LONG_MS, on_refreshed, &heard);
	assert_int_equal(loop_run(session_loop(&session), &err), -ERR_CANCELED);
	assert_string_equal(err.message, "enough");
	assert_int_equal(heard.calls, 1);
}

/* Only while it waits, and not where it has places of another kind. */
static void test_hosts_that_it_may_go_to(void **state)
{
	AUTO_RUN struct run *run = silent_run("f-22222");
	struct json *pool = json_array(), *places = json_array();

	run_set_state(run, RUN_QUEUED);
	assert_false(run_may_change_host(run) || run_has_choice(run) || run_is_watched(run));
	json_add_str(pool, "box");
	json_set(json_sub(run->doc, "target"), TARGET_POOL, pool);
	assert_false(run_may_change_host(run) || run_has_choice(run));
	json_add_str(pool, "bin");
	assert_true(run_may_change_host(run) && run_has_choice(run) && run_may_move(run));
	assert_true(run_is_watched(run));
	run_set_time(json_sub(run->doc, "times"), "started", 5000);
	assert_false(run_may_change_host(run) || run_may_move(run));
	assert_true(run_has_choice(run));
	json_remove(json_sub(run->doc, "times"), "started");
	json_set(run->doc, "places", places);
	assert_false(run_may_change_host(run));
	json_remove(run->doc, "places");
	run_set_state(run, RUN_CANCELLED);
	assert_false(run_may_change_host(run) || run_is_watched(run));
}

/* A place of several has taken the attempt: only its handle changes. */
static void test_a_handle_that_changes(void **state)
{
	AUTO_RUN struct run *run = silent_run("g-22222");

	run_set_handle(run, "ssh:bin/g-22222/1");
	assert_int_equal(run_attempts(run), 1);
	assert_string_equal(run_handle(run), "ssh:bin/g-22222/1");
	assert_string_equal(run_attempt_handle(run, 1), "ssh:bin/g-22222/1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_beside_others),
		cmocka_unit_test(test_nothing_to_ask),
		cmocka_unit_test(test_the_time_is_over),
		cmocka_unit_test(test_done_may_end_the_loop),
		cmocka_unit_test(test_hosts_that_it_may_go_to),
		cmocka_unit_test(test_a_handle_that_changes),
	};

	return cmocka_run_group_tests(tests, make_silent_session, remove_session);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "app/lifecycle/restart.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

static struct run *gang(const char *kind, int nodes, int retries)
{
	AUTO_FREE char *spec = mem_printf("{\"schema\": \"dlrun/spec/v1\", \"command\": [\"a\"], "
					  "\"cwd\": \".\", \"retries\": %d}",
		retries);
	struct run *run = run_new("a-23456", "a");

	json_free(run->spec);
	assert_int_equal(json_parse(spec, strlen(spec), JSON_SIZE_MAX, "it", &run->spec, NULL), 0);
	json_set_str(json_sub(run->doc, "target"), "kind", kind);
	json_set_int(json_sub(run->doc, "resources"), "nodes", nodes);
	return run;
}

static void ended_at(
	struct run *run, const char *handle, const char *origin, const char *reason, int code)
{
	const struct run_exit exit = {
		.known = true, .code = code, .origin = origin, .reason = reason};

	run_add_attempt(run, handle);
	run_set_attempt_exit(run, &exit, 1, 2);
	run_set_exit(run, &exit);
	run_set_state(run, RUN_FAILED);
}

static void ended(struct run *run, const char *origin, const char *reason, int code)
{
	ended_at(run, "kube:a/b/c", origin, reason, code);
}

static void test_a_jobset_does_it_itself(void **state)
{
	AUTO_RUN struct run *run = gang("kubernetes", 2, 3);

	ended_at(run, "kube:a/b/jobset/c", "job", "Error", 9);
	assert_true(run_restarts_by_itself(run));
	assert_false(run_wants_retry(run));
	ended_at(run, "kube:a/jobset/c", "job", "Error", 9);
	assert_false(run_restarts_by_itself(run));
	assert_true(run_wants_retry(run));
}

static bool wants(const char *kind, int nodes, int retries, const char *origin, const char *reason)
{
	AUTO_RUN struct run *run = gang(kind, nodes, retries);

	ended(run, origin, reason, 9);
	return run_wants_retry(run);
}

static void test_which(void **state)
{
	assert_true(wants("kubernetes", 2, 1, "job", "Error"));
	assert_true(wants("kubernetes", 2, 1, "job", "Signal"));
	assert_true(wants("kubernetes", 2, 1, "cluster", "Evicted"));
	assert_true(wants("kubernetes", 2, 1, "cluster", "NodeLost"));
	assert_false(wants("kubernetes", 2, 0, "job", "Error"));
	assert_true(wants("kubernetes", 2, 0, "cluster", "Evicted"));
	assert_true(wants("kubernetes", 2, 0, "cluster", "Deleted"));
	assert_false(wants("kubernetes", 2, 0, "job", "Evicted"));
	assert_true(wants("kubernetes", 2, 1, "job", "Evicted"));
	assert_false(wants("kubernetes", 1, 1, "cluster", "Deleted"));
	assert_false(wants("kubernetes", 1, 1, "job", "Error"));
	assert_false(wants("local", 2, 1, "job", "Error"));
	assert_false(wants("kubernetes", 2, 1, "dlrun", "Timeout"));
	assert_false(wants("kubernetes", 2, 1, "dlrun", "Cancelled"));
	assert_false(wants("kubernetes", 2, 1, "cluster", "StartFailed"));
}

static void test_how_often(void **state)
{
	AUTO_RUN struct run *run = gang("kubernetes", 2, 2);

	assert_false(run_wants_retry(run));
	ended(run, "job", "Error", 1);
	assert_true(run_wants_retry(run));
	ended(run, "cluster", "Preempted", 125);
	assert_true(run_wants_retry(run));
	ended(run, "job", "Error", 1);
	assert_true(run_wants_retry(run));
	ended(run, "cluster", "Evicted", 125);
	assert_true(run_wants_retry(run));
	ended(run, "job", "Error", 1);
	assert_false(run_wants_retry(run));
	json_set_int(run->doc, RUN_RETRIES_FROM, run_attempts(run));
	ended(run, "job", "Error", 1);
	assert_true(run_wants_retry(run));
}

static void test_never_without_end(void **state)
{
	AUTO_RUN struct run *run = gang("kubernetes", 2, 2);

	for (int i = 1; i < RETRY_ATTEMPTS_MAX; i++) {
		ended(run, "cluster", "Evicted", 125);
		assert_true(run_wants_retry(run));
	}
	ended(run, "cluster", "Evicted", 125);
	assert_false(run_wants_retry(run));
}

static void test_states(void **state)
{
	AUTO_RUN struct run *run = gang("kubernetes", 2, 2);

	ended(run, "job", "Error", 1);
	for (int i = RUN_PREPARING; i <= RUN_UNKNOWN; i++) {
		run_set_state(run, (enum run_state)i);
		assert_int_equal(run_wants_retry(run), i == RUN_FAILED);
	}
	run_set_state(run, RUN_FAILED);
	json_set_bool(run->doc, RUN_RETRIES_STOPPED, true);
	assert_false(run_wants_retry(run));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_which),
		cmocka_unit_test(test_a_jobset_does_it_itself),
		cmocka_unit_test(test_how_often),
		cmocka_unit_test(test_never_without_end),
		cmocka_unit_test(test_states),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

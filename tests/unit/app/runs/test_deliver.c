/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/runs/deliver.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "tests/unit/runfix.h"

/* The text of a run that waits for its code, by what the process that sends it has left behind. */

static const struct err nothing = {0};

static struct run *waiting_run(const char *id)
{
	AUTO_FREE char *lock = mem_printf("state/dlrun/runs/%s/attempts/1/deliver.lock", id);
	struct run *run = run_new(id, "a");
	char machine[OS_ID_SIZE];

	assert_true(os_machine_id(machine));
	json_set_str(json_sub(run->doc, "origin"), "machine", machine);
	run_add_attempt(run, "kube:s/ns/a");
	put(lock, "");
	return run;
}

static struct target_status waiting_status(bool for_code)
{
	return (struct target_status){.waits_for_code = for_code,
		.text = mem_strdup("waits for its code"),
		.hint = mem_strdup("wait")};
}

static void check(const struct run *run, bool for_code, const char *text, const char *hint)
{
	AUTO(target_status_done) struct target_status status = waiting_status(for_code);

	deliver_explain(&session, run, &status);
	assert_string_equal(status.text, text);
	assert_string_equal(status.hint, hint);
}

static void test_cause(void **state)
{
	AUTO_RUN struct run *run = waiting_run("a-22222");
	AUTO_ERR struct err denied = {0}, full = {0};

	check(run, true, "waits for its code", "wait");
	err_set(&denied, E_KUBE_DENIED, "pods/exec is \"forbidden\"");
	err_hint(&denied, "dlrun init --rbac");
	deliver_report(&session, run, &denied);
	check(run, true, "waits for its code: pods/exec is \"forbidden\"", "dlrun init --rbac");
	/* What it waits for now is something else. */
	check(run, false, "waits for its code", "wait");
	err_set(&full, E_KUBE_EXEC, "exit status 1: no space");
	deliver_report(&session, run, &full);
	check(run, true, "waits for its code: exit status 1: no space", "wait");
	deliver_report(&session, run, &nothing);
	check(run, true, "waits for its code", "wait");
	deliver_report(&session, run, &nothing);
}

/* A file that was cut, or is none of ours, explains nothing. */
static void test_damaged(void **state)
{
	static const char *const texts[] = {"", "{\"ok\":false", "[]\n", "\n", "{\"ok\":true}\n"};
	AUTO_RUN struct run *run = waiting_run("b-22222");

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		put("state/dlrun/runs/b-22222/attempts/1/deliver.error", texts[i]);
		check(run, true, "waits for its code", "wait");
	}
}

static void test_elsewhere(void **state)
{
	AUTO_RUN struct run *run = waiting_run("c-22222");

	json_set_str(json_sub(run->doc, "origin"), "machine", "another");
	check(run, true, "waits for its code, which the machine that submitted it sends", "wait");
	check(run, false, "waits for its code", "wait");
}

/* Its members wait for one process. */
static void test_study(void **state)
{
	AUTO_RUN struct run *one = waiting_run("d-22222"), *other = waiting_run("e-22222");
	AUTO_ERR struct err denied = {0};

	json_set_str(json_sub(one->doc, "study"), "id", "s-22222");
	json_set_str(json_sub(other->doc, "study"), "id", "s-22222");
	put("state/dlrun/studies/s-22222/deliver.lock", "");
	err_set(&denied, E_KUBE_DENIED, "no");
	deliver_report(&session, one, &denied);
	check(other, true, "waits for its code: no", "wait");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cause),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_elsewhere),
		cmocka_unit_test(test_study),
	};

	return cmocka_run_group_tests(tests, make_session, remove_session);
}

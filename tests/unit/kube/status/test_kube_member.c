/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * State of a member of a study, from the status of the study's Job and the pods of its index, 7.
 */

#define INDEX "batch.kubernetes.io/job-completion-index"
#define POD_OF(name, failures, node, about, phase, state)                                          \
	"{\"metadata\":{\"name\":\"" name "\",\"creationTimestamp\":\"2026-08-01T12:00:0" failures \
	"Z\",\"ownerReferences\":[{\"uid\":\"j\"}],\"annotations\":{\"" INDEX                      \
	"\":\"7\",\"batch.kubernetes.io/job-index-failure-count\":\"" failures "\"}" about         \
	"},\"spec\":{\"restartPolicy\":\"Never\",\"containers\":[{\"name\":\"program\"}]" node     \
	"},\"status\":{\"phase\":\"" phase                                                         \
	"\",\"containerStatuses\":[{\"name\":\"program\",\"state\":{" state "}}]}}"
#define NODE              ",\"nodeName\":\"n\""
#define DELETED           ",\"deletionTimestamp\":\"2026-08-01T12:00:30Z\",\"deletionGracePeriodSeconds\":30"
#define RUNS              "\"running\":{\"startedAt\":\"2026-08-01T12:00:05Z\"}"
#define EXIT(code)        "\"terminated\":{\"exitCode\":" #code ",\"reason\":\"Error\"}"
#define POD(phase, state) POD_OF("p", "0", NODE, "", phase, state)
#define NEVER                                                                                      \
	"\"terminated\":{\"exitCode\":125,\"reason\":\"Error\",\"message\":\"dlrun: cancelled\"}"
#define NEVER_FAST                                                                                 \
	"\"terminated\":{\"exitCode\":0,\"reason\":\"Completed\",\"message\":\"dlrun: cancelled\"}"
#define FAILED(reason)                                                                             \
	"\"conditions\":[{\"type\":\"Failed\",\"status\":\"True\",\"reason\":\"" reason            \
	"\",\"message\":\"why\",\"lastTransitionTime\":\"2026-08-01T13:00:00Z\"}]"

static const struct {
	const char *name, *status, *pods;
	bool was_cancelled, is_stopped;
	enum kube_phase is;
	int code; /* of its end */
	const char *says;
} rows[] = {
	{"nothing yet", "", "", false, false, KUBE_QUEUED, 0, NULL},
	{"others run", "\"active\":2", "", false, false, KUBE_QUEUED, 0,
		"2 others of its study run before it"},
	{"waits for a node", "\"active\":3", POD_OF("p", "0", "", "", "Pending", "\"waiting\":{}"),
		false, false, KUBE_QUEUED, 0, NULL},
	{"runs", "\"active\":3,\"completedIndexes\":\"0-6,8\",\"failedIndexes\":\"17,70-77\"",
		POD("Running", RUNS), false, false, KUBE_RUNNING, 0, NULL},
	{"succeeded", "\"completedIndexes\":\"0,2-9\"", POD("Succeeded", EXIT(0)), false, false,
		KUBE_SUCCEEDED, 0, NULL},
	{"succeeded and gone", "\"completedIndexes\":\"7\"", "", false, false, KUBE_SUCCEEDED, 0,
		NULL},
	{"succeeded, and all others were stopped",
		"\"completedIndexes\":\"7\"," FAILED("DeadlineExceeded"), "", false, false,
		KUBE_SUCCEEDED, 0, NULL},
	{"has just succeeded", "\"active\":2", POD("Succeeded", EXIT(0)), false, false,
		KUBE_SUCCEEDED, 0, NULL},
	{"failed", "\"failedIndexes\":\"3,5-7\"", POD("Failed", EXIT(3)), false, false, KUBE_FAILED,
		3, "the program exited with 3"},
	{"failed and gone", "\"failedIndexes\":\"7\"", "", false, false, KUBE_FAILED, 125,
		"index 7 of the study failed"},
	{"failed, and with it the study",
		"\"failedIndexes\":\"7\"," FAILED("MaxFailedIndexesExceeded"),
		POD("Failed", EXIT(3)), false, false, KUBE_FAILED, 3, "the program exited with 3"},
	{"has just failed", "\"active\":2", POD("Failed", EXIT(3)), false, false, KUBE_FAILED, 3,
		"the program exited with 3"},
	{"another one failed", FAILED("MaxFailedIndexesExceeded"), POD("Failed", EXIT(143)), false,
		false, KUBE_CANCELLED, 143, "another member of its study failed"},
	{"another one failed before it began", FAILED("MaxFailedIndexesExceeded"), "", false, false,
		KUBE_CANCELLED, 143, "another member of its study failed"},
	{"all were cancelled elsewhere", FAILED("DeadlineExceeded"), "", false, false,
		KUBE_CANCELLED, 143, "it was cancelled"},
	{"all were cancelled here", FAILED("DeadlineExceeded"), POD("Failed", EXIT(143)), true,
		true, KUBE_CANCELLED, 143, "it was cancelled"},
	{"failed before all were cancelled", FAILED("DeadlineExceeded"), POD("Failed", EXIT(3)),
		true, true, KUBE_FAILED, 3, "the program exited with 3"},
	/* one */
	{"cancelled before it began", "\"active\":2", "", true, true, KUBE_CANCELLED, 143,
		"it was cancelled"},
	{"not cancelled yet", "\"active\":2", "", true, false, KUBE_QUEUED, 0, NULL},
	{"is being ended", "\"active\":2", POD_OF("p", "0", NODE, DELETED, "Running", RUNS), true,
		true, KUBE_RUNNING, 0, NULL},
	{"cancelled while it ran", "\"failedIndexes\":\"7\"", POD("Failed", EXIT(143)), true, true,
		KUBE_CANCELLED, 143, "it was cancelled"},
	{"its next try did not begin", "\"failedIndexes\":\"7\"",
		POD_OF("p", "0", NODE, "", "Failed", EXIT(143)) "," POD_OF(
			"q", "1", NODE, "", "Failed", NEVER),
		true, true, KUBE_CANCELLED, 143, "it was cancelled"},
	{"cancelled elsewhere before it began", "\"failedIndexes\":\"7\"", POD("Failed", NEVER),
		false, false, KUBE_CANCELLED, 143, "it was cancelled"},
	{"cancelled elsewhere in a study that fails fast", "\"completedIndexes\":\"7\"",
		POD("Succeeded", NEVER_FAST), false, false, KUBE_CANCELLED, 143,
		"it was cancelled"},
	{"has just found that", "\"active\":2", POD("Succeeded", NEVER_FAST), false, false,
		KUBE_CANCELLED, 143, "it was cancelled"},
	{"had succeeded when it was cancelled", "\"completedIndexes\":\"7\"",
		POD("Succeeded", EXIT(0)), true, true, KUBE_SUCCEEDED, 0, NULL},
};

static struct json *parsed(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct json *json = NULL;

	if (json_parse(text, strlen(text), 1 << 20, "it", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

static struct json *study(const char *status)
{
	AUTO_FREE char *text = mem_printf(
		"{\"metadata\":{\"name\":\"s-22222\",\"uid\":\"j\",\"annotations\":{\"x\":\"y\"}},"
		"\"spec\":{\"completionMode\":\"Indexed\",\"completions\":90,\"parallelism\":2,"
		"\"backoffLimitPerIndex\":1,\"maxFailedIndexes\":0,\"podFailurePolicy\":{\"rules\":"
		"[{\"action\":\"FailIndex\",\"onExitCodes\":{\"containerName\":\"program\","
		"\"operator\":\"In\",\"values\":[3,125]}}]},\"template\":{\"metadata\":{\"a\":1},"
		"\"spec\":{\"b\":2}}},\"status\":{%s}}",
		status);

	return parsed(text);
}

static void test_rows(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_JSON struct json *job = study(rows[i].status);
		AUTO_JSON struct json *own = kube_member_job(job, 7, false);
		AUTO_FREE char *text = mem_printf("[%s]", rows[i].pods);
		AUTO_JSON struct json *pods = parsed(text);
		AUTO_KUBE_STATUS struct kube_status status = {0};
		const struct json *each[4] = {0};
		size_t n = 0;

		for (const struct json *pod = json_first(pods); pod; pod = json_next(pod))
			each[n++] = pod;
		const struct kube_facts facts = {.run_id = "s-7-22222",
			.job_name = "s-22222",
			.kube_namespace = "me",
			.is_member = true,
			.job = own,
			.pods = {each, n, true},
			.now_ms = 1785590000000,
			.was_cancelled = rows[i].was_cancelled,
			.is_stopped = rows[i].is_stopped};
		kube_status_of(&facts, &status);
		if (status.phase != rows[i].is || status.exit.code != rows[i].code ||
			(rows[i].says &&
				!(status.sentence && strstr(status.sentence, rows[i].says))))
			fail_msg("%s: %s, exit %d, %s", rows[i].name, kube_phase_name(status.phase),
				status.exit.code, status.sentence ? status.sentence : "-");
		assert_int_equal(status.n_ranks, 1);
	}
}

/* Where the pod is gone, too. */
static void test_job_tells_who_was_cancelled(void **state)
{
	static const char *const lists[] = {"", "7", "0,6-8", "6,8-70"};
	static const enum kube_phase phases[] = {
		KUBE_SUCCEEDED, KUBE_CANCELLED, KUBE_CANCELLED, KUBE_SUCCEEDED};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		AUTO_JSON struct json *job = study("\"completedIndexes\":\"0-89\"");
		AUTO_KUBE_STATUS struct kube_status status = {0};

		json_set_str(json_sub(json_sub(job, "metadata"), "annotations"),
			"dlrun.io/cancelled", lists[i]);
		AUTO_JSON struct json *own = kube_member_job(job, 7, false);
		const struct kube_facts facts = {.run_id = "s-7-22222",
			.job_name = "s-22222",
			.kube_namespace = "me",
			.is_member = true,
			.job = own,
			.pods = {.known = true},
			.now_ms = 1785590000000};
		kube_status_of(&facts, &status);
		assert_int_equal(status.phase, phases[i]);
	}
}

static void test_list_of_indexes(void **state)
{
	static const char *const lists[] = {"", "0", "9", "0-9", "1,3-5,9", "0-1,8-9"};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		bool marks[10] = {false};

		kube_mark_indexes(lists[i], marks, 10);
		AUTO_FREE char *list = kube_list_indexes(marks, 10);
		assert_string_equal(list, lists[i]);
	}
}

static void test_has_ended(void **state)
{
	AUTO_JSON struct json *job = study("\"completedIndexes\":\"1,7\",\"failedIndexes\":\"9\"");
	AUTO_JSON struct json *over = study(FAILED("DeadlineExceeded"));

	assert_true(kube_member_has_ended(job, 7));
	assert_true(kube_member_has_ended(job, 9));
	assert_false(kube_member_has_ended(job, 8));
	assert_true(kube_member_has_ended(over, 8));
	assert_null(kube_member_job(NULL, 7, true));
}

/* Only for those who ask: the specification is the largest part. */
static void test_views_are_small(void **state)
{
	AUTO_JSON struct json *job = study("");
	AUTO_JSON struct json *with = kube_member_job(job, 7, true);
	AUTO_JSON struct json *without = kube_member_job(job, 7, false);

	assert_int_equal(json_get_int(kube_at(with, "spec.template.spec"), "b", 0), 2);
	assert_null(kube_at(without, "spec.template.spec"));
	assert_int_equal(json_get_int(kube_at(without, "spec.template.metadata"), "a", 0), 1);
	assert_null(kube_annotation(without, "x"));
	assert_int_equal(json_get_int(kube_at(without, "spec"), "completions", 0), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_job_tells_who_was_cancelled),
		cmocka_unit_test(test_list_of_indexes),
		cmocka_unit_test(test_has_ended),
		cmocka_unit_test(test_views_are_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

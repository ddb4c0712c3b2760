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
 * What becomes of a Job, foretold from its pods: a row is the Job's spec, what lies beside it in
 * its metadata, and its pods.
 */

#define ONE "\"completionMode\":\"Indexed\",\"completions\":1,\"parallelism\":1"
#define TWO "\"completionMode\":\"Indexed\",\"completions\":2,\"parallelism\":2"

#define IGNORES                                                                                    \
	"{\"action\":\"Ignore\",\"onPodConditions\":[{\"type\":\"DisruptionTarget\",\"status\":"   \
	"\"True\"}]}"
#define FAILS                                                                                      \
	"{\"action\":\"FailJob\",\"onPodConditions\":[{\"type\":\"DisruptionTarget\",\"status\":"  \
	"\"True\"}]}"
#define CODES(action, operator)                                                                    \
	"{\"action\":\"" action                                                                    \
	"\",\"onExitCodes\":{\"containerName\":\"program\",\"operator\":\""                        \
	operator"\",\"values\":[125,126,127]}}"
#define RULES(list) ",\"podFailurePolicy\":{\"rules\":[" list "]}"
#define RETRIES(n)  ",\"backoffLimitPerIndex\":" #n
#define NO_RETRY    ONE RETRIES(0) RULES(IGNORES)
#define TWO_RETRIES ONE RETRIES(2) RULES(IGNORES "," CODES("FailIndex", "In"))
#define GANG        TWO ",\"backoffLimit\":0" RULES(FAILS)
#define POD_SPEC(more)                                                                             \
	"{\"restartPolicy\":\"Never\",\"containers\":[{\"name\":\"program\"" more "}]}"
#define PLAIN     POD_SPEC("")
#define DISRUPTED ",\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\"}]"
#define BY(code)                                                                                   \
	"{\"name\":\"program\",\"state\":{\"terminated\":{\"exitCode\":" #code                     \
	",\"reason\":\"x\"}}}"
#define RUNS "{\"name\":\"program\",\"state\":{\"running\":{}}}"

/* owner: uid of its Job; index; failures: of this index before; about: more of its metadata. */
#define POD_OF(owner, index, failures, about, spec, phase, containers, more)                       \
	"{\"metadata\":{\"name\":\"p\",\"ownerReferences\":[{\"uid\":\"" owner "\"}],"             \
	"\"annotations\":{\"batch.kubernetes.io/job-completion-index\":\"" #index                  \
	"\",\"batch.kubernetes.io/job-index-failure-count\":\"" #failures "\"}" about              \
	"},\"spec\":" spec ",\"status\":{\"phase\":\"" phase                                       \
	"\",\"containerStatuses\":[" containers "]" more "}}"
#define POD(index, failures, phase, containers)                                                    \
	POD_OF("job", index, failures, "", PLAIN, phase, containers, "")
#define DELETED ",\"deletionTimestamp\":\"2026-08-01T12:00:30Z\",\"deletionGracePeriodSeconds\":30"

static const struct {
	const char *name, *spec, *about, *pods;
	enum kube_outlook is;
} rows[] = {
	/* success */
	{"exited with 0", NO_RETRY, "", POD(0, 0, "Running", BY(0)), KUBE_OUTLOOK_SUCCEEDS},
	{"exited with 0 unseen", NO_RETRY, "", POD(0, 0, "Pending", BY(0)), KUBE_OUTLOOK_SUCCEEDS},
	{"not known", NO_RETRY, "", POD(0, 0, "Unknown", BY(0)), KUBE_OUTLOOK_OPEN},
	{"succeeded", NO_RETRY, "", POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_SUCCEEDS},
	{"succeeded and removed", NO_RETRY, "",
		POD_OF("job", 0, 0, DELETED, PLAIN, "Succeeded", BY(0), ""), KUBE_OUTLOOK_SUCCEEDS},
	{"succeeded at the second try", TWO_RETRIES, "",
		POD(0, 0, "Failed", BY(1)) "," POD(0, 1, "Running", BY(0)), KUBE_OUTLOOK_SUCCEEDS},
	{"succeeded at the last try", TWO_RETRIES, "", POD(0, 2, "Succeeded", BY(0)),
		KUBE_OUTLOOK_SUCCEEDS},
	{"no pod", NO_RETRY, "", "", KUBE_OUTLOOK_OPEN},
	{"runs", NO_RETRY, "", POD(0, 0, "Running", RUNS), KUBE_OUTLOOK_OPEN},
	{"another container runs", NO_RETRY, "",
		POD_OF("job", 0, 0, "", "{\"restartPolicy\":\"Never\",\"containers\":[{},{}]}",
			"Running", BY(0) ",{\"name\":\"proxy\",\"state\":{\"running\":{}}}", ""),
		KUBE_OUTLOOK_OPEN},
	{"nothing is told of another container", NO_RETRY, "",
		POD_OF("job", 0, 0, "", "{\"restartPolicy\":\"Never\",\"containers\":[{},{}]}",
			"Running", BY(0), ""),
		KUBE_OUTLOOK_OPEN},
	{"another container failed", NO_RETRY, "",
		POD_OF("job", 0, 0, "", "{\"restartPolicy\":\"Never\",\"containers\":[{},{}]}",
			"Running",
			BY(0) ",{\"name\":\"proxy\",\"state\":{\"terminated\":{\"exitCode\":2}}}",
			""),
		KUBE_OUTLOOK_OPEN},
	{"is restarted in its pod", NO_RETRY, "",
		POD_OF("job", 0, 0, "", "{\"restartPolicy\":\"OnFailure\",\"containers\":[{}]}",
			"Running", BY(0), ""),
		KUBE_OUTLOOK_OPEN},
	{"has a policy of its own", NO_RETRY, "",
		POD_OF("job", 0, 0, "", POD_SPEC(",\"restartPolicy\":\"Always\""), "Running", BY(0),
			""),
		KUBE_OUTLOOK_OPEN},
	{"a time limit may come first", NO_RETRY, "",
		POD_OF("job", 0, 0, "",
			"{\"restartPolicy\":\"Never\",\"activeDeadlineSeconds\":9,\"containers\":[{}]}",
			"Running", BY(0), ""),
		KUBE_OUTLOOK_OPEN},
	{"is being removed", NO_RETRY, "",
		POD_OF("job", 0, 0, DELETED, PLAIN, "Running", BY(0), ""), KUBE_OUTLOOK_OPEN},
	{"is being preempted", NO_RETRY, "",
		POD_OF("job", 0, 0, "", PLAIN, "Running", BY(0), DISRUPTED), KUBE_OUTLOOK_OPEN},
	/* failure */
	{"failed", NO_RETRY, "", POD(0, 0, "Failed", BY(1)), KUBE_OUTLOOK_FAILS},
	{"exited with 1, and may be disrupted yet", NO_RETRY, "", POD(0, 0, "Running", BY(1)),
		KUBE_OUTLOOK_OPEN},
	{"disrupted", NO_RETRY, "", POD_OF("job", 0, 0, "", PLAIN, "Failed", BY(137), DISRUPTED),
		KUBE_OUTLOOK_OPEN},
	{"failed and removed", NO_RETRY, "",
		POD_OF("job", 0, 0, DELETED, PLAIN, "Failed", BY(1), ""), KUBE_OUTLOOK_OPEN},
	{"failed the first time of three", TWO_RETRIES, "", POD(0, 0, "Failed", BY(1)),
		KUBE_OUTLOOK_OPEN},
	{"failed the last time", TWO_RETRIES, "",
		POD(0, 0, "Failed", BY(1)) "," POD(0, 1, "Failed", BY(1)) "," POD(
			0, 2, "Failed", BY(1)),
		KUBE_OUTLOOK_FAILS},
	{"the others are gone", TWO_RETRIES, "", POD(0, 2, "Failed", BY(1)), KUBE_OUTLOOK_FAILS},
	{"not repeated by its status", TWO_RETRIES, "", POD(0, 0, "Failed", BY(127)),
		KUBE_OUTLOOK_FAILS},
	{"disrupted and of such a status", TWO_RETRIES, "",
		POD_OF("job", 0, 0, "", PLAIN, "Failed", BY(127), DISRUPTED), KUBE_OUTLOOK_OPEN},
	{"repeated by its status", ONE RETRIES(1) RULES(CODES("FailIndex", "NotIn")), "",
		POD(0, 0, "Failed", BY(127)), KUBE_OUTLOOK_OPEN},
	{"not of the statuses", ONE RETRIES(1) RULES(CODES("FailIndex", "NotIn")), "",
		POD(0, 0, "Failed", BY(1)), KUBE_OUTLOOK_FAILS},
	{"ignored by its status", ONE RETRIES(0) RULES(CODES("Ignore", "In")), "",
		POD(0, 0, "Failed", BY(126)), KUBE_OUTLOOK_OPEN},
	{"counted by its status", ONE RETRIES(0) RULES(CODES("Count", "In")), "",
		POD(0, 0, "Failed", BY(126)), KUBE_OUTLOOK_FAILS},
	{"an unknown answer", ONE RETRIES(0) RULES(CODES("Wonder", "In")), "",
		POD(0, 0, "Failed", BY(126)), KUBE_OUTLOOK_OPEN},
	{"the backoff of a Job", ONE ",\"backoffLimit\":6", "", POD(0, 0, "Failed", BY(1)),
		KUBE_OUTLOOK_OPEN},
	/* several */
	{"a gang that succeeded", GANG, "",
		POD(0, 0, "Running", BY(0)) "," POD(1, 0, "Succeeded", BY(0)),
		KUBE_OUTLOOK_SUCCEEDS},
	{"half of a gang", GANG, "", POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
	{"a gang that failed", GANG, "",
		POD(0, 0, "Failed", BY(1)) "," POD(1, 0, "Failed", BY(143)), KUBE_OUTLOOK_FAILS},
	{"a gang that is being stopped", GANG, "",
		POD(0, 0, "Failed", BY(1)) "," POD(1, 0, "Running", RUNS), KUBE_OUTLOOK_OPEN},
	{"a gang that was disrupted", GANG, "",
		POD_OF("job", 0, 0, "", PLAIN, "Failed", BY(137), DISRUPTED) "," POD(
			1, 0, "Succeeded", BY(0)),
		KUBE_OUTLOOK_FAILS},
	{"one index failed, one is missing", TWO RETRIES(0), "", POD(0, 0, "Failed", BY(1)),
		KUBE_OUTLOOK_OPEN},
	{"one index failed, one succeeded", TWO RETRIES(0), "",
		POD(0, 0, "Failed", BY(1)) "," POD(1, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_FAILS},
	{"an index that the Job has not", NO_RETRY, "", POD(1, 0, "Succeeded", BY(0)),
		KUBE_OUTLOOK_OPEN},
	/* other Jobs */
	{"pods of a namesake", NO_RETRY, "",
		POD_OF("other", 0, 0, "", PLAIN, "Succeeded", BY(0), ""), KUBE_OUTLOOK_OPEN},
	{"a pod of a namesake runs", NO_RETRY, "",
		POD_OF("other", 0, 0, "", PLAIN, "Running", RUNS, "") "," POD(
			0, 0, "Succeeded", BY(0)),
		KUBE_OUTLOOK_SUCCEEDS},
	{"is being removed", NO_RETRY, DELETED, POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
	{"suspended", "\"suspend\":true," TWO RETRIES(0), "",
		POD(0, 0, "Succeeded", BY(0)) "," POD(1, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
	{"has a deadline", NO_RETRY ",\"activeDeadlineSeconds\":60", "",
		POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
	{"another controller", NO_RETRY ",\"managedBy\":\"kueue.x-k8s.io/multikueue\"", "",
		POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
	{"the usual controller", NO_RETRY ",\"managedBy\":\"kubernetes.io/job-controller\"", "",
		POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_SUCCEEDS},
	{"rules of success", NO_RETRY ",\"successPolicy\":{}", "", POD(0, 0, "Succeeded", BY(0)),
		KUBE_OUTLOOK_OPEN},
	{"without indexes", "\"completions\":1,\"parallelism\":1", "",
		POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
	{"more in parallel", "\"completionMode\":\"Indexed\",\"completions\":1,\"parallelism\":2",
		"", POD(0, 0, "Succeeded", BY(0)), KUBE_OUTLOOK_OPEN},
};

static struct json *parsed(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct json *json = NULL;

	if (json_parse(text, strlen(text), 1 << 20, "it", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

static void test_rows(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *job_text =
			mem_printf("{\"metadata\":{\"uid\":\"job\"%s},\"spec\":{%s}}",
				rows[i].about, rows[i].spec);
		AUTO_FREE char *pods_text = mem_printf("[%s]", rows[i].pods);
		AUTO_JSON struct json *job = parsed(job_text), *pods = parsed(pods_text);
		const struct json *each[4] = {0};
		struct kube_items items = {.v = each, .known = true};

		for (const struct json *pod = json_first(pods); pod; pod = json_next(pod))
			each[items.n++] = pod;
		if (kube_job_outlook(job, &items) != rows[i].is)
			fail_msg("%s: %d", rows[i].name, kube_job_outlook(job, &items));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

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
 * A run of one learner and two actors, whose Jobs are read as one.
 */

#define INDEX "batch.kubernetes.io/job-completion-index"
#define JOB_OF(role, first, n, more, restart, status)                                              \
	"{\"metadata\":{\"name\":\"a-" role "-0\",\"uid\":\"" role "\",\"labels\":{"               \
	"\"dlrun.io/role\":\"" role "\",\"dlrun.io/gang\":\"a-w-0\""                               \
	",\"jobset.sigs.k8s.io/restart-attempt\":\"" restart "\"},\"annotations\":{"               \
	"\"dlrun.io/first-rank\":\"" #first "\",\"dlrun.io/roles\":\"learner 1,actors 2\"" more    \
	"}},\"spec\":{\"completions\":" #n "},\"status\":{" status "}}"
#define ENDS                  ",\"dlrun.io/ends-with\":\"learner\""
#define LEARNER(more, status) JOB_OF("learner", 0, 1, more, "0", status)
#define ACTORS(more, status)  JOB_OF("actors", 1, 2, more, "0", status)
#define WITH(type, second, more)                                                                   \
	"\"conditions\":[{\"type\":\"" type                                                        \
	"\",\"status\":\"True\",\"lastTransitionTime\":\"2026-08-01T12:00:" second "Z\"" more "}]"
#define POD(role, first, index, state)                                                             \
	"{\"metadata\":{\"name\":\"a-" role "-0-" #index                                           \
	"\",\"labels\":{\"dlrun.io/role\":\"" role "\"},\"annotations\":{\"" INDEX "\":\"" #index  \
	"\",\"dlrun.io/first-rank\":\"" #first                                                     \
	"\"}},\"spec\":{\"nodeName\":\"n\",\"restartPolicy\":\"Never\",\"containers\":[{\"name\":" \
	"\"program\"}]},\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":"       \
	"\"program\",\"state\":{" state "}}]}}"
#define RUNS    "\"running\":{\"startedAt\":\"2026-08-01T12:00:00Z\"}"
#define EXIT(n) "\"terminated\":{\"exitCode\":" #n ",\"reason\":\"Error\"}"

static struct json *roles_test_list(const char *items)
{
	AUTO_FREE char *text = mem_printf("{\"items\":[%s]}", items);
	struct json *json;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "test", &json, NULL), 0);
	return json;
}

static const struct json *roles_test_only(const struct json *list)
{
	assert_int_equal(json_count(json_get(list, "items")), 1);
	return json_first(json_get(list, "items"));
}

static const struct {
	const char *name, *jobs, *pods;
	enum kube_phase is, ranks[3];
	const char *says;
} rows[] = {
	{"runs", ACTORS("", "\"active\":2") "," LEARNER("", "\"active\":1"),
		POD("actors", 1, 0, RUNS) "," POD("learner", 0, 0, RUNS) "," POD(
			"actors", 1, 1, RUNS),
		KUBE_RUNNING, {KUBE_RUNNING, KUBE_RUNNING, KUBE_RUNNING}, NULL},
	{"one has ended, and nothing says that it is the end of the run",
		LEARNER("", WITH("Complete", "10", "") ",\"completedIndexes\":\"0\"") "," ACTORS(
			"", "\"active\":2"),
		POD("actors", 1, 0, RUNS) "," POD("actors", 1, 1, RUNS), KUBE_RUNNING,
		{KUBE_SUCCEEDED, KUBE_RUNNING, KUBE_RUNNING}, NULL},
	{"all have ended",
		LEARNER("", WITH("Complete", "10", "") ",\"completedIndexes\":\"0\"") "," ACTORS(
			"", WITH("Complete", "11", "") ",\"completedIndexes\":\"0,1\""),
		"", KUBE_SUCCEEDED, {KUBE_SUCCEEDED, KUBE_SUCCEEDED, KUBE_SUCCEEDED}, NULL},
	{"the role that counts has ended",
		LEARNER(ENDS, WITH("Complete", "10", "") ",\"completedIndexes\":\"0\"") "," ACTORS(
			ENDS, "\"active\":1,\"completedIndexes\":\"1\""),
		"", KUBE_SUCCEEDED, {KUBE_SUCCEEDED, KUBE_CANCELLED, KUBE_SUCCEEDED}, NULL},
	{"the others have been removed by then",
		LEARNER(ENDS, WITH("Complete", "10", "") ",\"completedIndexes\":\"0\""), "",
		KUBE_SUCCEEDED, {KUBE_SUCCEEDED, KUBE_CANCELLED, KUBE_CANCELLED}, NULL},
	{"another one has failed behind it",
		LEARNER(ENDS, WITH("Complete", "10", "") ",\"completedIndexes\":\"0\"") "," ACTORS(
			ENDS, WITH("Failed", "12", ",\"reason\":\"BackoffLimitExceeded\"")),
		"", KUBE_SUCCEEDED, {KUBE_SUCCEEDED, KUBE_CANCELLED, KUBE_CANCELLED}, NULL},
	{"another one has failed before",
		LEARNER(ENDS, WITH("Complete", "12", "") ",\"completedIndexes\":\"0\"") "," ACTORS(
			ENDS, WITH("Failed", "10", ",\"reason\":\"BackoffLimitExceeded\"")),
		POD("actors", 1, 1, EXIT(3)), KUBE_FAILED,
		{KUBE_SUCCEEDED, KUBE_FAILED, KUBE_FAILED}, "the program exited with 3"},
	{"a rank has failed", LEARNER("", "\"active\":1") "," ACTORS("", "\"active\":1"),
		POD("actors", 1, 1, EXIT(3)) "," POD("learner", 0, 0, RUNS), KUBE_RUNNING,
		{KUBE_RUNNING, KUBE_QUEUED, KUBE_FAILED},
		"actors.1 failed: the program exited with 3; the cluster decides whether it is "
		"tried again"},
};

static void test_states(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_JSON struct json *jobs = roles_test_list(rows[i].jobs);
		AUTO_JSON struct json *pods = roles_test_list(rows[i].pods);
		AUTO_KUBE_STATUS struct kube_status status = {0};
		const struct json *list[3] = {0};
		size_t n = 0;

		for (const struct json *pod = json_first(json_get(pods, "items")); pod;
			pod = json_next(pod))
			list[n++] = pod;
		kube_join_roles(jobs);
		const struct kube_facts facts = {.run_id = "a-3k2f9",
			.job_name = "a",
			.job = roles_test_only(jobs),
			.pods = {list, n, true},
			.now_ms = INT64_C(1785585700000)};
		kube_status_of(&facts, &status);
		print_message("%s: %s\n", rows[i].name, status.sentence ? status.sentence : "-");
		assert_int_equal(status.phase, rows[i].is);
		assert_int_equal(status.n_ranks, 3);
		for (size_t k = 0; k < 3; k++)
			assert_int_equal(status.ranks.v[k].phase, rows[i].ranks[k]);
		if (rows[i].says)
			assert_string_equal(status.sentence, rows[i].says);
	}
}

static void test_hint_names_the_role(void **state)
{
	AUTO_JSON struct json *jobs = roles_test_list(LEARNER("", "\"active\":1") "," ACTORS(
		"", WITH("Failed", "10", ",\"reason\":\"BackoffLimitExceeded\"")));
	AUTO_JSON struct json *pods = roles_test_list(POD("actors", 1, 0, EXIT(3)));
	AUTO_KUBE_STATUS struct kube_status status = {0};
	const struct json *pod = roles_test_only(pods);

	kube_join_roles(jobs);
	const struct kube_facts facts = {.run_id = "a-3k2f9",
		.job_name = "a",
		.job = roles_test_only(jobs),
		.pods = {&pod, 1, true}};
	kube_status_of(&facts, &status);
	assert_int_equal(status.phase, KUBE_FAILED);
	assert_int_equal(status.first_failed, 1);
	assert_string_equal(status.hint, "dlrun logs a-3k2f9 --role actors --rank 0");
	assert_string_equal(status.evidence.v[0],
		"first rank to fail: actors.0 (2 others were stopped because of it)");
}

/* Only those that a JobSet has made last count, other Jobs stay as they are, and what is one Job
 * already is not joined again. */
static void test_joined(void **state)
{
	AUTO_JSON struct json *jobs = roles_test_list(
		JOB_OF("actors", 1, 2, "", "1", "\"active\":2") "," JOB_OF("learner", 0, 1, "", "0",
			"\"failed\":1") ",{\"metadata\":{\"name\":\"b\"}}," JOB_OF("learner", 0, 1,
			"", "1", "\"active\":1,\"startTime\":\"2026-08-01T12:00:00Z\""));
	const struct json *items, *joined;

	kube_join_roles(jobs);
	kube_join_roles(jobs);
	items = json_get(jobs, "items");
	assert_int_equal(json_count(items), 2);
	joined = json_first(items);
	assert_string_equal(kube_str_at(joined, "metadata.name"), "a-w-0");
	assert_int_equal(json_get_int(json_get(joined, "status"), "active", 0), 3);
	assert_int_equal(json_get_int(json_get(joined, "status"), "failed", 0), 0);
	assert_string_equal(kube_str_at(joined, "status.startTime"), "2026-08-01T12:00:00Z");
	assert_int_equal(kube_ranks_of(joined), 3);
	assert_string_equal(kube_str_at(json_next(joined), "metadata.name"), "b");
	assert_int_equal(kube_ranks_of(json_next(joined)), 1);
}

static void test_rank_names(void **state)
{
	static const struct {
		const char *roles;
		int rank;
		const char *want;
	} cases[] = {{"learner 1,actors 2", 0, "learner.0"}, {"learner 1,actors 2", 2, "actors.1"},
		{"learner 1,actors 2", 3, "rank 3"}, {"", 1, "rank 1"}, {"a", 0, "rank 0"},
		{",,b x,c 1", 0, "c.0"}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *text =
			mem_printf("{\"metadata\":{\"annotations\":{\"dlrun.io/roles\":\"%s\"}}}",
				cases[i].roles);
		AUTO_JSON struct json *list = roles_test_list(text);
		AUTO_FREE char *name = kube_rank_name(roles_test_only(list), cases[i].rank);

		assert_string_equal(name, cases[i].want);
	}
}

static void test_deciding_ranks(void **state)
{
	static const struct {
		const char *roles, *ends;
		int first, end;
	} cases[] = {{"learner 1,actors 2", ENDS, 0, 1}, {"actors 2,learner 1", ENDS, 2, 3},
		{"actors 2,learner 1", "", 0, 3}, {"a 1,b 1", ENDS, 0, 2}, {"", ENDS, 0, 1},
		{"learner 99999", ENDS, 0, 1}, {"learner x,a 2", ENDS, 0, 2}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *text =
			mem_printf("{\"metadata\":{\"annotations\":{\"dlrun.io/roles\":\"%s\"%s}}}",
				cases[i].roles, cases[i].ends);
		AUTO_JSON struct json *list = roles_test_list(text);
		int first, end;

		kube_deciding_ranks(roles_test_only(list), &first, &end);
		assert_int_equal(first, cases[i].first);
		assert_int_equal(end, cases[i].end);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_hint_names_the_role),
		cmocka_unit_test(test_joined),
		cmocka_unit_test(test_rank_names),
		cmocka_unit_test(test_deciding_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

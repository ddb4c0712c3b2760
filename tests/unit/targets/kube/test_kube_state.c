/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/kubetarget.h"

/*
 * Why a run waits, as the cluster's own words for it are found: nodes and Kueue's Workloads.
 */

#define LIST(items) "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[" items "]}"
#define FORBIDDEN                                                                                  \
	"{\"kind\":\"Status\",\"status\":\"Failure\",\"reason\":\"Forbidden\",\"code\":403}"
#define NOT_FOUND                                                                                  \
	"{\"kind\":\"Status\",\"status\":\"Failure\",\"reason\":\"NotFound\",\"code\":404}"
#define SPEC                                                                                       \
	"{\"containers\":[{\"name\":\"program\",\"resources\":{\"limits\":{\"nvidia.com/gpu\":\"8\"}}}]}"
#define CREATED "\"creationTimestamp\":\"2026-01-02T03:04:05Z\""
#define JOB_OF(suspend)                                                                            \
	LIST("{\"metadata\":{\"name\":\"" JOB                                                      \
	     "\",\"uid\":\"j\",\"resourceVersion\":\"1\"," CREATED                                 \
	     ",\"labels\":{\"kueue.x-k8s.io/queue-name\":\"gpu\"}},\"spec\":{\"suspend\":" suspend \
	     ",\"template\":{\"spec\":" SPEC "}}}")
#define POD                                                                                        \
	LIST("{\"metadata\":{\"name\":\"p\",\"uid\":\"q\",\"resourceVersion\":\"1\"," CREATED      \
	     ",\"labels\":{\"job-name\":\"" JOB "\"}},\"spec\":" SPEC                              \
	     ",\"status\":{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\","      \
	     "\"status\":\"False\",\"reason\":\"Unschedulable\",\"message\":\"0/1 nodes are "      \
	     "available: 1 Insufficient nvidia.com/gpu.\"}]}}")
#define WORKLOAD                                                                                     \
	LIST("{\"metadata\":{\"name\":\"other\",\"ownerReferences\":[{\"uid\":\"x\"}]}},"            \
	     "{\"metadata\":{\"name\":\"w\",\"ownerReferences\":[{\"uid\":\"j\"}]},\"spec\":"        \
	     "{\"queueName\":\"gpu\"},\"status\":{\"conditions\":[{\"type\":\"QuotaReserved\","      \
	     "\"status\":\"False\",\"reason\":\"Pending\",\"message\":\"couldn't assign flavors to " \
	     "pod set main: insufficient unused quota for nvidia.com/gpu in flavor a100, 6 more "    \
	     "needed\"}]}}")
#define NODE                                                                                        \
	LIST("{\"metadata\":{\"name\":\"n\"},\"status\":{\"allocatable\":{\"nvidia.com/gpu\":"      \
	     "\"4\",\"cpu\":\"8\",\"memory\":\"64Gi\",\"pods\":\"110\"},\"conditions\":[{\"type\":" \
	     "\"Ready\",\"status\":\"True\"}]}}")

static struct {
	const char *jobs, *job, *pods, *pods_first, *nodes, *workloads, *growth;
	atomic_int n_nodes, n_workloads, n_pods, n_jobs, n_growth;
} cluster;

static bool print_list(struct fix_conn *conn, const char *text)
{
	return print_json(conn,
		text == NULL              ? 404
		: str_eq(text, FORBIDDEN) ? 403
					  : 200,
		text ? text : NOT_FOUND);
}

static bool on_request(struct fix_conn *conn)
{
	free(fix_body(conn));
	if (strstr(conn->path, "/dlrun-system/configmaps/dlrun-autoscale")) {
		atomic_fetch_add(&cluster.n_growth, 1);
		return print_list(conn, cluster.growth);
	}
	if (strstr(conn->path, "/nodes")) {
		atomic_fetch_add(&cluster.n_nodes, 1);
		return print_list(conn, cluster.nodes);
	}
	if (strstr(conn->path, "/workloads")) {
		atomic_fetch_add(&cluster.n_workloads, 1);
		assert_non_null(strstr(conn->path, "job-uid%3Dj"));
		return print_list(conn, cluster.workloads);
	}
	if (strstr(conn->path, "/events"))
		return print_list(conn, LIST(""));
	if (strstr(conn->path, "/jobs/" JOB))
		return print_list(conn, cluster.job);
	if (strstr(conn->path, "/pods"))
		return print_list(
			conn, atomic_fetch_add(&cluster.n_pods, 1) == 0 && cluster.pods_first
				      ? cluster.pods_first
				      : cluster.pods);
	atomic_fetch_add(&cluster.n_jobs, 1);
	return print_list(conn, cluster.jobs);
}

static void begin(struct place *place, const char *jobs, const char *pods)
{
	cluster.jobs = jobs;
	cluster.pods = pods;
	cluster.nodes = cluster.workloads = cluster.job = cluster.pods_first = NULL;
	cluster.growth = NULL;
	atomic_store(&cluster.n_growth, 0);
	atomic_store(&cluster.n_pods, 0);
	atomic_store(&cluster.n_jobs, 0);
	atomic_store(&cluster.n_nodes, 0);
	atomic_store(&cluster.n_workloads, 0);
	place_init(place, on_request);
}

static void query(struct place *place, struct target_status *ret, int status)
{
	WAITED(call, place);

	call.call.deadline_ms = clock_ms() + 20000;
	assert_int_equal(
		place->target->ops->state(place->target, place->handle, ret, &call.call, NULL), 0);
	assert_int_equal(loop_run(place->session.loop, NULL), 0);
	assert_true(call.over);
	assert_int_equal(call.status, status);
}

static void says(struct place *place, const char *words)
{
	AUTO(target_status_done) struct target_status status = {0};

	query(place, &status, 0);
	assert_int_equal(status.state, RUN_QUEUED);
	if (!status.text || !strstr(status.text, words))
		fail_msg("\"%s\" is not in \"%s\"", words, status.text ? status.text : "");
}

static void test_queue(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place, JOB_OF("true"), LIST(""));
	cluster.workloads = WORKLOAD;
	says(&place, "6 more");
	assert_int_equal(atomic_load(&cluster.n_workloads), 1);
	assert_int_equal(atomic_load(&cluster.n_nodes), 0);
}

/* Who may not see Workloads is not told that Kueue is missing. */
static void test_queue_unseen(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place, JOB_OF("true"), LIST(""));
	cluster.workloads = FORBIDDEN;
	says(&place, "it waits for queue \"gpu\"");
	cluster.workloads = NULL;
	says(&place, "does Kueue run here?");
}

static void test_nodes(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place, JOB_OF("false"), POD);
	cluster.nodes = NODE;
	says(&place, "no node has 8 GPUs");
	assert_int_equal(atomic_load(&cluster.n_workloads), 0);
	/* Not each time. */
	says(&place, "no node has 8 GPUs");
	assert_int_equal(atomic_load(&cluster.n_nodes), 1);
}

static void test_nodes_unseen(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place, JOB_OF("false"), POD);
	cluster.nodes = FORBIDDEN;
	says(&place, "no node has 8 free GPUs");
	says(&place, "no node has 8 free GPUs");
	assert_int_equal(atomic_load(&cluster.n_nodes), 1);
}

#define JOB_WITH(status)                                                                           \
	"{\"metadata\":{\"name\":\"" JOB "\",\"uid\":\"j\",\"resourceVersion\":\"1\"," CREATED     \
	"},\"spec\":{\"completions\":1,\"template\":{\"spec\":" SPEC "}},\"status\":" status "}"
#define RUNS JOB_WITH("{\"active\":1,\"ready\":1}")
#define FAILED                                                                                     \
	JOB_WITH("{\"failed\":1,\"conditions\":[{\"type\":\"Failed\",\"status\":\"True\","         \
		 "\"reason\":\"FailedIndexes\",\"message\":\"Job has failed indexes\"}]}")
#define POD_FAILED                                                                                       \
	LIST("{\"metadata\":{\"name\":\"p\",\"uid\":\"q\",\"resourceVersion\":\"1\"," CREATED            \
	     ",\"labels\":{\"job-name\":\"" JOB "\"}},\"spec\":" SPEC                                    \
	     ",\"status\":{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"program\",\"state\":" \
	     "{\"terminated\":{\"exitCode\":7,\"reason\":\"Error\"}}}]}}")

/* A Job that may not be listed is got; the list is not tried each time. */
static void test_jobs_are_got(void **state)
{
	static const struct {
		const char *job;
		enum run_state is;
		int status;
	} rows[] = {{RUNS, RUN_RUNNING, 0}, {FAILED, RUN_FAILED, 0}, {FORBIDDEN, 0, -ERR_AUTH}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_PLACE struct place place;

		begin(&place, FORBIDDEN, POD_FAILED);
		cluster.job = rows[i].job;
		for (int n = 0; n < 2; n++) {
			AUTO(target_status_done) struct target_status status = {0};
			if (rows[i].is == RUN_RUNNING)
				cluster.pods = FORBIDDEN;
			query(&place, &status, rows[i].status);
			assert_int_equal(status.state, rows[i].is);
		}
		assert_int_equal(atomic_load(&cluster.n_jobs), 1);
	}
}

/* A server that begins refuses pods for a moment: no end is told from that. */
static void test_pods_are_denied(void **state)
{
	static const struct {
		const char *first, *pods;
		int code, times;
	} rows[] = {{NULL, POD_FAILED, 7, 1}, {FORBIDDEN, POD_FAILED, 7, 2},
		{FORBIDDEN, FORBIDDEN, 125, 2}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_PLACE struct place place;
		AUTO(target_status_done) struct target_status status = {0};

		begin(&place, LIST(FAILED), rows[i].pods);
		cluster.pods_first = rows[i].first;
		query(&place, &status, 0);
		assert_int_equal(status.state, RUN_FAILED);
		assert_int_equal(status.exit.code, rows[i].code);
		assert_int_equal(atomic_load(&cluster.n_pods), rows[i].times);
	}
}

/*
 * A cluster that its autoscaler makes grow
 */

/* The ConfigMap as it was written so long ago. The caller frees. */
static char *growth_map(int64_t ago_ms, const char *more)
{
	char time[CLOCK_TEXT_SIZE];
	AUTO_JSON struct json *map = json_object();
	AUTO_BUF struct buf out = buf_with(1 << 16);

	clock_format(clock_wall_ms() - ago_ms, time);
	AUTO_FREE char *text = mem_printf(
		"{\"version\":1,\"updated\":\"%s\",\"every_s\":15,\"applies\":true,\"groups\":["
		"{\"id\":\"gpu-a\",\"max\":4,\"price\":60,\"nodes\":[\"n1\"],\"template\":{"
		"\"room\":{\"cpu\":96,\"memory\":\"1Ti\",\"nvidia.com/gpu\":16}}}]%s}",
		time, more);
	json_set_str(json_sub(map, "data"), "growth", text);
	json_print(map, &out);
	return buf_take(&out);
}

static void test_a_node_is_expected(void **state UNUSED)
{
	static const struct {
		const char *more;
		int64_t ago_ms;
		const char *text, *evidence;
	} rows[] = {
		{",\"waiting\":[{\"name\":\"jobs/other\",\"group\":\"gpu-b\"},"
		 "{\"name\":\"jobs/p\",\"group\":\"gpu-a\"}]",
			0, "no node has 8 free GPUs", "a node of group gpu-a is bought for it"},
		{",\"waiting\":[{\"name\":\"jobs/" JOB "\",\"reasons\":[7,\"gpu-a: max is 4\"]}]",
			0, "no node has 8 free GPUs", "no node is bought of gpu-a: max is 4"},
		{"", 3600 * 1000, "no node has 8 GPUs", "autoscaler has been silent since"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *map = growth_map(rows[i].ago_ms, rows[i].more);
		AUTO_PLACE struct place place;
		AUTO(target_status_done) struct target_status status = {0};
		begin(&place, JOB_OF("false"), POD);
		cluster.nodes = NODE;
		cluster.growth = map;
		query(&place, &status, 0);
		assert_non_null(strstr(status.text, rows[i].text));
		const char *line = json_str(json_first(status.evidence));
		if (!line || !strstr(line, rows[i].evidence))
			fail_msg("%s", line);
		/* Not each time. */
		says(&place, rows[i].text);
		assert_int_equal(atomic_load(&cluster.n_growth), 1);
	}
}

/* Where it may not be read, or is none, all is as without. */
static void test_no_growth_is_not_reported(void **state UNUSED)
{
	static const char *const maps[] = {FORBIDDEN, NULL, "{}", "{\"data\":{\"growth\":\"{\"}}"};

	for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
		AUTO_PLACE struct place place;
		AUTO(target_status_done) struct target_status status = {0};
		begin(&place, JOB_OF("false"), POD);
		cluster.nodes = NODE;
		cluster.growth = maps[i];
		query(&place, &status, 0);
		assert_non_null(strstr(status.text, "no node has 8 GPUs"));
		for (const struct json *m = json_first(status.evidence); m; m = json_next(m))
			assert_null(strstr(json_str(m), "autoscaler"));
	}
}

#define TIMES "\"startTime\":\"2026-01-02T03:00:00Z\",\"completionTime\":\"2026-01-02T03:30:00Z\""
#define DONE                                                                                       \
	JOB_WITH("{\"succeeded\":1,\"completedIndexes\":\"0\"," TIMES                              \
		 ",\"conditions\":[{\"type\":\"Complete\",\"status\":\"True\"}]}")
#define POD_DONE                                                                                            \
	LIST("{\"metadata\":{\"name\":\"p\",\"uid\":\"q\",\"resourceVersion\":\"1\"," CREATED               \
	     ",\"labels\":{\"job-name\":\"" JOB                                                             \
	     "\"}},\"spec\":{\"nodeName\":\"n1\",\"containers\":[{"                                         \
	     "\"name\":\"program\",\"resources\":{\"limits\":{\"nvidia.com/gpu\":\"8\"}}}]}"                \
	     ",\"status\":{\"phase\":\"Succeeded\",\"containerStatuses\":[{\"name\":\"program\",\"state\":" \
	     "{\"terminated\":{\"exitCode\":0,\"reason\":\"Completed\",\"startedAt\":"                      \
	     "\"2026-01-02T03:00:00Z\",\"finishedAt\":\"2026-01-02T03:30:00Z\"}}}]}}")

static void test_cost(void **state UNUSED)
{
	AUTO_FREE char *map = growth_map(0, "");
	AUTO_PLACE struct place place;

	begin(&place, LIST(DONE), POD_DONE);
	cluster.growth = map;
	for (int i = 0; i < 2; i++) {
		AUTO(target_status_done) struct target_status status = {0};
		query(&place, &status, 0);
		assert_int_equal(status.state, RUN_SUCCEEDED);
		const struct json *cost = json_get(status.observed, "cost");
		/* 8 of 16 GPUs for half an hour. */
		assert_float_equal(json_get_num(cost, "amount", 0), 15, 1e-9);
		assert_float_equal(json_get_num(cost, "per_hour", 0), 30, 1e-9);
		assert_float_equal(json_get_num(cost, "nodes", 0), 0.5, 1e-9);
		assert_string_equal(json_get_str(cost, "group"), "gpu-a");
	}
	assert_int_equal(atomic_load(&cluster.n_growth), 1);
}

/* Of several runs the Jobs alone tell how they ended: pods are asked for where there are prices. */
static void test_cost_of_several(void **state UNUSED)
{
	AUTO_FREE char *map = growth_map(0, "");

	for (int i = 0; i < 2; i++) {
		AUTO_PLACE struct place place;
		AUTO(target_status_done) struct target_status status = {0};
		begin(&place, LIST(DONE), POD_DONE);
		cluster.growth = i == 0 ? map : FORBIDDEN;
		WAITED(other, &place);
		AUTO(target_status_done) struct target_status same = {0};
		assert_int_equal(place.target->ops->state(
					 place.target, place.handle, &same, &other.call, NULL),
			0);
		query(&place, &status, 0);
		assert_int_equal(status.state, RUN_SUCCEEDED);
		double amount = json_get_num(json_get(status.observed, "cost"), "amount", -1);
		assert_float_equal(amount, i == 0 ? 15 : -1, 1e-9);
		assert_int_equal(atomic_load(&cluster.n_pods), i == 0);
		assert_int_equal(atomic_load(&cluster.n_growth), 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_queue_unseen),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_nodes_unseen),
		cmocka_unit_test(test_jobs_are_got),
		cmocka_unit_test(test_pods_are_denied),
		cmocka_unit_test(test_a_node_is_expected),
		cmocka_unit_test(test_no_growth_is_not_reported),
		cmocka_unit_test(test_cost),
		cmocka_unit_test(test_cost_of_several),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

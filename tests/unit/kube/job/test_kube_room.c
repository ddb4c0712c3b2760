/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/room.h"

enum { QUESTIONS_MAX = 64, TEXT_MAX = 64 << 10 };

static const char *const words[] = {"python", "train.py"};
static const struct strv command = {.v = (char **)words, .n = 2};

static struct kube_run with_gpus(int gpus)
{
	return (struct kube_run){.run_id = "a-23456",
		.job = "a-23456",
		.attempt = 1,
		.kube_namespace = "me",
		.image_ref = "x@sha256:0",
		.workdir = "/dlrun/src",
		.cwd = ".",
		.command = &command,
		.nodes = 1,
		.gpus = gpus,
		.os = "linux",
		.arch = "amd64"};
}

static struct json *room_json(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), TEXT_MAX, "x", &json, NULL), 0);
	return json;
}

/* An answer, by the end of the path; what is not in the list is denied. */
struct reply_row {
	const char *path, *text;
};

struct asked {
	struct kube_questions questions;
	struct kube_reply replies[QUESTIONS_MAX];
	struct json *owned[QUESTIONS_MAX];
	struct kube_objects objects;
	struct kube_room room;
	struct err err;
	int r;
};

static void asked_done(struct asked *asked)
{
	kube_questions_done(&asked->questions);
	for (size_t i = 0; i < QUESTIONS_MAX; i++)
		json_free(asked->owned[i]);
	kube_objects_done(&asked->objects);
	free(asked->room.text);
	strv_done(&asked->room.nodes);
	err_done(&asked->err);
}
#define AUTO_ASKED AUTO(asked_done)

static void asked_reply(struct asked *asked, size_t i, const struct reply_row *rows)
{
	struct kube_question *question = &asked->questions.v[i];

	asked->replies[i] = (struct kube_reply){.status = 403};
	for (; rows->path; rows++) {
		if (!str_ends(question->path, rows->path))
			continue;
		asked->owned[i] = room_json(rows->text);
		asked->replies[i] = (struct kube_reply){200, asked->owned[i]};
	}
}

static void ask(struct asked *asked, const struct kube_run *run, const struct reply_row *rows)
{
	*asked = (struct asked){0};
	kube_preflight_query(run, &asked->questions);
	kube_room_query(run, &asked->questions);
	for (size_t i = 0; i < asked->questions.n; i++) {
		asked_reply(asked, i, rows);
		const struct kube_question question = asked->questions.v[i];
		kube_room_query_more(&question, &asked->replies[i], &asked->questions);
		assert_true(asked->questions.n <= QUESTIONS_MAX);
	}
	assert_int_equal(kube_job_make(run, &asked->objects, NULL), 0);
	asked->r = kube_room_evaluate(
		run, &asked->objects, &asked->questions, asked->replies, &asked->room, &asked->err);
}

#define NODE(name, gpus, model)                                                                     \
	"{\"metadata\":{\"name\":\"" name "\",\"labels\":{\"kubernetes.io/os\":\"linux\","          \
	"\"kubernetes.io/arch\":\"amd64\",\"nvidia.com/gpu.product\":\"" model "\"}},"              \
	"\"status\":{\"allocatable\":{\"cpu\":\"8\",\"memory\":\"32Gi\",\"nvidia.com/gpu\":\"" gpus \
	"\"},\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}"
#define POD(node, gpus)                                                                            \
	"{\"spec\":{\"nodeName\":\"" node "\",\"containers\":[{\"resources\":{\"limits\":"         \
	"{\"nvidia.com/gpu\":\"" gpus "\"}}}]},\"status\":{\"phase\":\"Running\"}}"
#define NODES                                                                                      \
	"{\"items\":[" NODE("a", "4", "NVIDIA-A100-SXM4-80GB") "," NODE(                           \
		"b", "8", "NVIDIA-H100") "]}"

static void test_nodes(void **state)
{
	static const struct {
		int gpus, nodes;
		const char *pods; /* NULL: they may not be listed */
		bool is_now;
		const char *text;
	} cases[] = {
		{2, 1, "", true, "12 GPUs free"},
		{2, 1, POD("b", "8"), true, "4 × A100-SXM4-80GB free"},
		{2, 1, POD("b", "8") "," POD("a", "3"), false, "2 nodes, 1 GPU free in all"},
		{1, 1, POD("b", "8") "," POD("a", "3"), true, "1 × A100-SXM4-80GB free"},
		{1, 1, POD("b", "8") "," POD("a", "4"), false, "2 nodes, none free"},
		/* Only one node is that large. */
		{8, 1, POD("b", "1"), false, "1 node, 7 GPUs free in all"},
		/* A gang: two pods of four fit into b, too. */
		{4, 3, "", true, "12 GPUs free"},
		{4, 4, "", false, "2 nodes, 12 GPUs free in all"},
		{2, 1, NULL, false, "what is free there is not known"},
		{0, 1, NULL, true, "it answers"},
		{0, 1, POD("b", "8"), true, "2 nodes"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *pods =
			mem_printf("{\"items\":[%s]}", cases[i].pods ? cases[i].pods : "");
		const struct reply_row rows[] = {{"/api/v1/nodes", NODES},
			{cases[i].pods ? "/api/v1/pods" : "/-", pods}, {0}};
		struct kube_run run = with_gpus(cases[i].gpus);
		AUTO_ASKED struct asked asked;

		run.nodes = cases[i].nodes;
		ask(&asked, &run, rows);
		assert_int_equal(asked.r, 0);
		assert_string_equal(asked.room.text, cases[i].text);
		assert_int_equal(asked.room.is_now, cases[i].is_now);
		assert_int_equal(asked.room.nodes.n, !cases[i].pods       ? 0
						     : cases[i].gpus == 8 ? 1
									  : 2);
		if (asked.room.nodes.n)
			assert_string_equal(asked.room.nodes.v[0], cases[i].gpus == 8 ? "b" : "a");
	}
}

/* Pods of any state but those that have ended are asked for, once. */
static void test_questions(void **state)
{
	const struct kube_run run = with_gpus(1);
	struct kube_run queued = run;
	AUTO_KUBE_QUESTIONS struct kube_questions list = {0}, none = {0};

	queued.queue = "gpu";
	kube_room_query(&run, &list);
	assert_int_equal(list.n, 1);
	assert_string_equal(list.v[0].path, "/api/v1/pods");
	assert_true(list.v[0].is_list);
	assert_string_equal(list.v[0].query[1], "status.phase!=Succeeded,status.phase!=Failed");
	kube_room_query(&queued, &none);
	assert_int_equal(none.n, 0);
}

#define LOCAL_QUEUE(status) "{\"spec\":{\"clusterQueue\":\"team\"},\"status\":{" status "}}"
#define CLUSTER_QUEUE(more, quota, total)                                                          \
	"{\"spec\":{" more "\"resourceGroups\":[{\"flavors\":[{\"name\":\"f\",\"resources\":[{"    \
	"\"name\":\"nvidia.com/gpu\",\"nominalQuota\":" quota "}]}]}]},\"status\":{"               \
	"\"flavorsReservation\":[{\"name\":\"f\",\"resources\":[{\"name\":\"nvidia.com/gpu\","     \
	"\"total\":\"" total "\"}]}]}}"

static void test_queues(void **state)
{
	static const struct {
		int gpus;
		const char *queue, *cluster_queue, *check; /* NULL: it may not be read */
		bool is_now;
		const char *text; /* NULL: an error */
	} cases[] = {
		{2, LOCAL_QUEUE("\"pendingWorkloads\":3"), NULL, NULL, false, "queue gpu: 3 ahead"},
		{2, LOCAL_QUEUE("\"pendingWorkloads\":0"), NULL, NULL, true,
			"queue gpu: nothing ahead"},
		{2, LOCAL_QUEUE(""), CLUSTER_QUEUE("", "8", "4"), NULL, true,
			"queue gpu: 4 GPUs free"},
		{2, LOCAL_QUEUE(""), CLUSTER_QUEUE("", "\"8\"", "7"), NULL, false,
			"queue gpu full"},
		{2, LOCAL_QUEUE(""), CLUSTER_QUEUE("\"cohort\":\"all\",", "8", "8"), NULL, false,
			"queue gpu full, but for what it may borrow"},
		{9, LOCAL_QUEUE(""), CLUSTER_QUEUE("", "8", "0"), NULL, false, NULL},
		{0, LOCAL_QUEUE(""), CLUSTER_QUEUE("", "8", "8"), NULL, true,
			"queue gpu: nothing ahead"},
		{2, NULL, NULL, NULL, false, "what waits in queue gpu is not known"},
		{2,
			LOCAL_QUEUE("\"conditions\":[{\"type\":\"Active\",\"status\":\"False\","
				    "\"message\":\"ClusterQueue is stopped\"}]"),
			NULL, NULL, false, "queue gpu admits nothing now: ClusterQueue is stopped"},
		/* Other clusters would get the Job without its gate. */
		{2, LOCAL_QUEUE("\"pendingWorkloads\":2"),
			CLUSTER_QUEUE("\"admissionChecks\":[\"far\"],", "8", "0"),
			"{\"spec\":{\"controllerName\":\"kueue.x-k8s.io/multikueue\"}}", false,
			NULL},
		{2, LOCAL_QUEUE(""),
			CLUSTER_QUEUE("\"admissionChecksStrategy\":{\"admissionChecks\":[{\"name\":"
				      "\"far\"}]},",
				"8", "0"),
			"{\"spec\":{\"controllerName\":\"kueue.x-k8s.io/multikueue\"}}", false,
			NULL},
		{2, LOCAL_QUEUE(""), CLUSTER_QUEUE("\"admissionChecks\":[\"far\"],", "8", "0"),
			"{\"spec\":{\"controllerName\":\"kueue.x-k8s.io/provisioning-request\"}}",
			true, "queue gpu: 8 GPUs free"},
		/* A name that is none leads nowhere. */
		{2, "{\"spec\":{\"clusterQueue\":\"../../secrets\"},\"status\":{}}", NULL, NULL,
			true, "queue gpu: nothing ahead"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct reply_row rows[] = {
			{cases[i].queue ? "/localqueues/gpu" : "/-", cases[i].queue},
			{cases[i].cluster_queue ? "/clusterqueues/team" : "/-",
				cases[i].cluster_queue},
			{cases[i].check ? "/admissionchecks/far" : "/-", cases[i].check}, {0}};
		struct kube_run run = with_gpus(cases[i].gpus);
		AUTO_ASKED struct asked asked;

		run.queue = "gpu";
		ask(&asked, &run, rows);
		if (!cases[i].text && cases[i].check) {
			assert_int_equal(asked.err.id, E_TARGET_UNSUPPORTED);
			continue;
		}
		if (!cases[i].text) {
			assert_int_equal(asked.err.id, E_SCHED_QUOTA);
			assert_string_equal(
				asked.err.message, "queue gpu never has 9 GPUs: its quota is 8");
			continue;
		}
		assert_int_equal(asked.r, 0);
		assert_string_equal(asked.room.text, cases[i].text);
		assert_int_equal(asked.room.is_now, cases[i].is_now);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_questions),
		cmocka_unit_test(test_queues),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/image_facts.h"
#include "targets/kube/kube_facts.h"
#include "tests/unit/kubewanted.h"

#define SERVER "0123456789abcdef"

struct place {
	struct kube_cluster cluster;
	struct target_kube kube;
};

static void place_init(struct place *place, const char *definition)
{
	*place = (struct place){.cluster = {.server_id = SERVER}};
	place->cluster.access.context = mem_strdup("lab");
	place->kube = (struct target_kube){.cluster = &place->cluster, .kube_namespace = "me"};
	if (definition)
		assert_int_equal(json_parse(definition, strlen(definition), 100000, "it",
					 &place->kube.definition, NULL),
			0);
}

static void place_done(struct place *place)
{
	kube_access_done(&place->cluster.access);
	json_free(place->kube.definition);
}

/*
 * Handles
 */

static void test_handles(void **state)
{
	static const struct {
		const char *text, *run_id;
		int attempt; /* 0: refused */
		const char *job;
		enum kube_kind kind;
	} cases[] = {
		{"kube:" SERVER "/me/jobset/resnet-3k2f9", "resnet-3k2f9", 1, "resnet-3k2f9-w-0",
			KUBE_KIND_JOBSET},
		{"kube:" SERVER "/me/jobset/resnet-3k2f9-2", "resnet-3k2f9", 2,
			"resnet-3k2f9-2-w-0", KUBE_KIND_JOBSET},
		{"kube:" SERVER "/me/jobset/", NULL, 0},
		{"kube:" SERVER "/me/jobset/jobset/resnet-3k2f9", NULL, 0},
		{"kube:" SERVER "/me/jobsets/resnet-3k2f9", NULL, 0},
		{"kube:" SERVER "/me/resnet-3k2f9", "resnet-3k2f9", 1},
		{"kube:" SERVER "/me/resnet-3k2f9-2", "resnet-3k2f9", 2},
		{"kube:" SERVER "/me/a-b-3k2f9-9999", "a-b-3k2f9", 9999},
		{"kube:" SERVER "/me/a-22222", "a-22222", 1},
		{"kube:" SERVER "/me/resnet-3k2f9-1", NULL, 0},
		{"kube:" SERVER "/me/resnet-3k2f9-0", NULL, 0},
		{"kube:" SERVER "/me/resnet-3k2f9-x", NULL, 0},
		{"kube:" SERVER "/me/", NULL, 0},
		{"kube:" SERVER "/me", NULL, 0},
		{"kube:" SERVER "//resnet-3k2f9", NULL, 0},
		{"kube:" SERVER "/me/resnet-3k2f9/x", NULL, 0},
		{"kube:", NULL, 0},
		{"", NULL, 0},
		{"local:x/1", NULL, 0},
	};
	struct place place;

	place_init(&place, NULL);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		struct kube_handle handle;
		int r = kube_handle_parse(&place.kube, cases[i].text, &handle, &err);

		assert_int_equal(r, cases[i].attempt ? 0 : -ERR_IO);
		if (r < 0)
			continue;
		assert_string_equal(handle.run_id, cases[i].run_id);
		assert_int_equal(handle.attempt, cases[i].attempt);
		assert_string_equal(handle.kube_namespace, "me");
		assert_int_equal(handle.kind, cases[i].kind);
		assert_string_equal(handle.job, cases[i].job ? cases[i].job : handle.name);
		AUTO_FREE char *text = kube_handle_text(
			handle.server, handle.kube_namespace, handle.kind, handle.name);
		assert_string_equal(text, cases[i].text);
		assert_int_equal(kube_handle_is_jobset(text), handle.kind == KUBE_KIND_JOBSET);
	}
	place_done(&place);
}

static void test_member_handles(void **state)
{
	static const struct {
		const char *text, *run_id; /* run_id: NULL: refused */
		int index;
	} cases[] = {
		{"kube:" SERVER "/me/tiger-3k2f9/0", "tiger-0-3k2f9", 0},
		{"kube:" SERVER "/me/tiger-3k2f9/99999", "tiger-99999-3k2f9", 99999},
		{"kube:" SERVER "/me/tiger-3k2f9/100000", NULL, 0},
		{"kube:" SERVER "/me/tiger-3k2f9/-1", NULL, 0},
		{"kube:" SERVER "/me/tiger-3k2f9/", NULL, 0},
		{"kube:" SERVER "/me/tiger-3k2f9/1/2", NULL, 0},
		{"kube:" SERVER "/me/tiger-3k2f9-2/1", NULL, 0},
		{"kube:" SERVER "/me/jobset/tiger-3k2f9/1", NULL, 0},
	};
	struct place place;

	place_init(&place, NULL);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		struct kube_handle handle;
		int r = kube_handle_parse(&place.kube, cases[i].text, &handle, &err);

		assert_int_equal(r, cases[i].run_id ? 0 : -ERR_IO);
		if (r < 0)
			continue;
		assert_true(handle.is_member);
		assert_string_equal(handle.run_id, cases[i].run_id);
		assert_string_equal(handle.owner, "tiger-3k2f9");
		assert_string_equal(handle.job, "tiger-3k2f9");
		assert_int_equal(handle.index, cases[i].index);
		assert_int_equal(handle.attempt, 1);
		AUTO_FREE char *text =
			kube_handle_member_text(SERVER, "me", handle.name, handle.index);
		assert_string_equal(text, cases[i].text);
		assert_false(kube_handle_is_jobset(text));
		AUTO_FREE char *pods = kube_handle_pods(&handle);
		AUTO_FREE char *want = mem_printf("dlrun.io/run-id=tiger-3k2f9,batch.kubernetes.io/"
						  "job-completion-index=%d",
			cases[i].index);
		assert_string_equal(pods, want);
	}
	place_done(&place);
}

/* The first attempt of a member with one node; others are Jobs of their own. */
static void test_members_are_prepared(void **state)
{
	static const struct {
		int attempt, nodes;
		const char *name;
	} cases[] = {{1, 1, "tiger-3k2f9/7"}, {2, 1, "tiger-7-3k2f9-2"}, {1, 2, "tiger-7-3k2f9"}};
	struct place place;

	place_init(&place, NULL);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct spec spec = {.resources.nodes = cases[i].nodes,
			.study = {.id = (char[]){"tiger-3k2f9"}, .index = 7, .size = 9}};
		char handle[TARGET_HANDLE_SIZE];
		AUTO_FREE char *want = mem_printf("kube:" SERVER "/me/%s", cases[i].name);

		assert_int_equal(target_kube_ops.prepare(&place.kube.target, "tiger-7-3k2f9",
					 cases[i].attempt, &spec, handle, NULL),
			0);
		assert_string_equal(handle, want);
	}
	place_done(&place);
}

static void test_jobsets_are_notified_by_their_handles(void **state)
{
	assert_true(kube_handle_is_jobset("kube:" SERVER "/jobset/jobset/a-22222"));
	assert_false(kube_handle_is_jobset("kube:" SERVER "/jobset/a-22222"));
	assert_false(kube_handle_is_jobset("local:a/jobset/1"));
	assert_false(kube_handle_is_jobset("kube:"));
}

static void test_other_clusters_are_notified_apart(void **state)
{
	AUTO_ERR struct err err = {0};
	struct kube_handle handle;
	struct place place;

	place_init(&place, NULL);
	assert_int_equal(
		kube_handle_parse(&place.kube, "kube:fedcba9876543210/me/a-22222", &handle, &err),
		-ERR_CONFIG);
	assert_int_equal(err.id, E_TARGET_OTHER);
	assert_non_null(strstr(err.message, "lab"));
	place_done(&place);
}

/*
 * Lists
 */

static struct json *parse(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 100000, "it", &json, NULL), 0);
	return json;
}

static void test_facts_of_one_run(void **state)
{
	static const char jobs[] =
		"{\"items\":[{\"metadata\":{\"name\":\"a-22222-2\"}},"
		"{\"metadata\":{\"name\":\"a-22222\"},\"status\":{\"ready\":1}}]}";
	static const char pods[] =
		"{\"items\":[{\"metadata\":{\"name\":\"p\",\"labels\":{\"job-name\":\"a-22222\"}}},"
		"{\"metadata\":{\"labels\":{\"batch.kubernetes.io/job-name\":\"a-22222-2\"}}},{}]}";
	static const char events[] =
		"{\"items\":[{\"involvedObject\":{\"name\":\"a-22222\"}},"
		"{\"involvedObject\":{\"name\":\"a-22222-0-xyz\"}},"
		"{\"regarding\":{\"name\":\"a-222223\"}},{\"involvedObject\":{\"name\":5}}]}";
	struct json *lists[KUBE_FACTS_KINDS] = {parse(jobs), parse(pods), parse(events)};
	struct kube_handle handle = {
		.name = "a-22222", .job = "a-22222", .run_id = "a-22222", .attempt = 1};
	struct kube_handle absent = {
		.name = "b-22222", .job = "b-22222", .run_id = "b-22222", .attempt = 1};
	struct kube_facts_store store;
	struct kube_pod_index index;

	kube_pod_index_make(lists[KUBE_FACTS_PODS], &index);
	kube_facts_of(lists, &index, &handle, &store);
	assert_non_null(store.facts.job);
	assert_int_equal(store.facts.pods.n, 1);
	assert_int_equal(store.facts.events.n, 2);
	assert_false(kube_facts_job_needs_pods(lists[KUBE_FACTS_JOB], &handle));
	kube_facts_store_done(&store);
	kube_facts_of(lists, &index, &absent, &store);
	assert_null(store.facts.job);
	assert_int_equal(store.facts.pods.n, 0);
	assert_true(store.facts.pods.known);
	kube_facts_store_done(&store);
	kube_pod_index_done(&index);
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		json_free(lists[i]);
}

static void test_facts_of_a_jobset(void **state)
{
	static const char jobs[] = "{\"items\":[{\"metadata\":{\"name\":\"a-22222-w-0\"}}]}";
	static const char pods[] =
		"{\"items\":[{\"metadata\":{\"labels\":{\"job-name\":\"a-22222-w-0\"}}},"
		"{\"metadata\":{\"labels\":{\"job-name\":\"a-22222\"}}}]}";
	static const char events[] = "{\"items\":[{\"involvedObject\":{\"name\":\"a-22222\"}},"
				     "{\"involvedObject\":{\"name\":\"a-22222-w-0-1-xyz\"}}]}";
	static const char jobsets[] =
		"{\"items\":[{\"metadata\":{\"name\":\"a-22222\",\"uid\":\"s\"}}]}";
	/* Kueue takes in the JobSet, not its Job. */
	static const char workloads[] =
		"{\"items\":[{\"metadata\":{\"ownerReferences\":[{\"uid\":\"s\"}]}}]}";
	struct json *lists[KUBE_FACTS_KINDS] = {[KUBE_FACTS_JOB] = parse(jobs),
		[KUBE_FACTS_PODS] = parse(pods),
		[KUBE_FACTS_EVENTS] = parse(events),
		[KUBE_FACTS_WORKLOADS] = parse(workloads),
		[KUBE_FACTS_JOBSETS] = parse(jobsets)};
	const struct kube_handle handle = {.kind = KUBE_KIND_JOBSET,
		.name = "a-22222",
		.job = "a-22222-w-0",
		.run_id = "a-22222",
		.attempt = 1};
	struct kube_facts_store store;
	struct kube_pod_index index;

	kube_pod_index_make(lists[KUBE_FACTS_PODS], &index);
	kube_facts_of(lists, &index, &handle, &store);
	assert_true(store.facts.is_jobset);
	assert_non_null(store.facts.job);
	assert_ptr_equal(store.facts.jobset, kube_facts_made(lists, &handle));
	assert_non_null(store.facts.workload);
	assert_int_equal(store.facts.pods.n, 1);
	assert_int_equal(store.facts.events.n, 2);
	kube_facts_store_done(&store);
	kube_pod_index_done(&index);
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		json_free(lists[i]);
}

static void test_when_jobsets_are_requested_for(void **state)
{
	static const struct {
		const char *rest;
		bool needs;
	} cases[] = {
		{"\"status\":{\"ready\":1}", false},
		{"\"spec\":{\"suspend\":true}", true},
		{"\"status\":{\"conditions\":[{\"type\":\"Complete\",\"status\":\"True\"}]}",
			false},
		{"\"status\":{\"conditions\":[{\"type\":\"Failed\",\"status\":\"True\"}]}", true},
		{"\"status\":{\"conditions\":[{\"type\":\"FailureTarget\",\"status\":\"True\"}]}",
			true},
	};
	struct kube_handle handle = {
		.kind = KUBE_KIND_JOBSET, .name = "a-22222", .job = "a-22222-w-0"};

	assert_true(kube_facts_needs_jobset(NULL, &handle));
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *text =
			mem_printf("{\"items\":[{\"metadata\":{\"name\":\"a-22222-w-0\"},%s}]}",
				cases[i].rest);
		AUTO_JSON struct json *jobs = parse(text);

		handle.kind = KUBE_KIND_JOBSET;
		assert_int_equal(kube_facts_needs_jobset(jobs, &handle), cases[i].needs);
		handle.kind = KUBE_KIND_JOB;
		assert_false(kube_facts_needs_jobset(jobs, &handle));
	}
}

static void test_jobs_that_notify_too_little(void **state)
{
	static const struct {
		const char *status;
		bool needs;
	} cases[] = {
		{"{\"ready\":1}", false},
		{"{\"ready\":0,\"active\":1}", true},
		{"{}", true},
		{"{\"ready\":1,\"failed\":1}", true},
		{"{\"conditions\":[{\"type\":\"Complete\",\"status\":\"True\"}]}", false},
		{"{\"conditions\":[{\"type\":\"Failed\",\"status\":\"True\"}],\"failed\":1}", true},
	};
	struct kube_handle handle = {.job = "a-22222"};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *text = mem_printf(
			"{\"items\":[{\"metadata\":{\"name\":\"a-22222\"},\"status\":%s}]}",
			cases[i].status);
		AUTO_JSON struct json *jobs = parse(text);

		assert_int_equal(kube_facts_job_needs_pods(jobs, &handle), cases[i].needs);
	}
}

/*
 * Plans
 */

static int plan_of(
	struct place *place, struct wanted *wanted, struct kube_plan *plan, struct err *err)
{
	const struct target_job *job = wanted_job(wanted, "kube:" SERVER "/me/a-22222");

	return kube_plan_make(&place->kube, job, plan, err);
}

static void test_plan(void **state)
{
	static const char definition[] =
		"{\"queue\":\"gpu\",\"priority\":\"low\",\"results\":{\"claim\":\"20Gi\"},"
		"\"volumes\":[{\"nfs\":\"fs:/exports/x\",\"path\":\"/x\",\"read_only\":true}],"
		"\"gpu_types\":{\"h100\":{\"resource\":\"amd.com/gpu\",\"node_selector\":{\"g\":\"h\"}}},"
		"\"security\":\"restricted\",\"ttl\":\"2h\",\"image_pull_secret\":\"reg\"}";
	AUTO_KUBE_PLAN struct kube_plan plan = {0};
	AUTO_ERR struct err err = {0};
	struct wanted wanted;
	struct place place;

	place_init(&place, definition);
	wanted_init(&wanted);
	wanted.spec.resources.gpu_type = mem_strdup("h100");
	*vec_push(&wanted.spec.runtime.data) = (struct runtime_data){
		mem_strdup("data/x"), mem_strdup("{\"pvc\":\"d\",\"sub_path\":\"x\"}")};
	strv_add(&wanted.spec.runtime.outputs, "out");
	strv_add(&wanted.spec.runtime.filled, "out");
	wanted.spec.ports = (struct ports){.v = {6006}, .n = 1};
	assert_int_equal(plan_of(&place, &wanted, &plan, &err), 0);
	assert_string_equal(plan.run.job, "a-22222");
	assert_string_equal(plan.run.queue, "gpu");
	assert_string_equal(plan.run.queue_priority, "low");
	assert_null(plan.run.priority_class);
	assert_int_equal(plan.run.results.kind, KUBE_PLACE_CLAIM);
	assert_int_equal(plan.run.results.size_bytes, UINT64_C(20) << 30);
	assert_int_equal(plan.run.n_volumes, 1);
	assert_string_equal(plan.run.volumes[0].place.name, "fs");
	assert_string_equal(plan.run.volumes[0].place.path, "/exports/x");
	assert_true(plan.run.volumes[0].place.read_only);
	assert_int_equal(plan.run.gpus, 1);
	assert_string_equal(plan.run.gpu_resource, "amd.com/gpu");
	assert_int_equal(plan.run.security, KUBE_SECURITY_RESTRICTED);
	assert_int_equal(plan.run.ttl_ms, 2 * 3600 * 1000);
	assert_string_equal(plan.run.pull_secret, "reg");
	assert_string_equal(plan.run.arch, "arm64");
	assert_string_equal(plan.run.image_user, "1000");
	assert_string_equal(plan.run.image_entrypoint.v[0], "/entry");
	assert_int_equal(plan.run.data[0].place.kind, KUBE_PLACE_PVC);
	assert_string_equal(plan.run.data[0].place.sub_path, "x");
	assert_true(plan.run.outputs[0].has_files);
	assert_int_equal(plan.run.n_ports, 1);
	assert_int_equal(plan.run.ports[0], 6006);
	assert_non_null(strstr(plan.run.record, "\"id\":\"a-22222\""));
	wanted_done(&wanted);
	place_done(&place);
}

#define TYPE(name, resource, more) "\"" name "\":{\"resource\":\"" resource "\"" more "}"

/* Several GPU types: nodes of any of them, the first rather; those of another resource do not
 * count. */
static void test_several_types(void **state)
{
	static const char definition[] = "{\"gpu_types\":{" TYPE("h100", "nvidia.com/gpu",
		",\"node_selector\":{\"g\":\"h\"},\"tolerations\":[{\"key\":\"h\"}]") "," TYPE("a100",
		"nvidia.com/gpu", ",\"node_selector\":{\"g\":\"a\"}") "," TYPE("any",
		"nvidia.com/gpu", "") "," TYPE("mi300", "amd.com/gpu", "") "}}";
	static const struct {
		const char *types, *required, *preferred;
	} cases[] = {
		{"h100,mi300,a100,v100",
			"{\"nodeSelectorTerms\":["
			"{\"matchExpressions\":[{\"key\":\"g\",\"operator\":\"In\",\"values\":[\"h\"]}]},"
			"{\"matchExpressions\":[{\"key\":\"g\",\"operator\":\"In\",\"values\":[\"a\"]}]}]}",
			"\"weight\":100,\"preference\":{\"matchExpressions\":[{\"key\":\"g\","
			"\"operator\":\"In\",\"values\":[\"h\"]}]}},{\"weight\":50"},
		/* One without a selector is on any node. */
		{"a100,any", NULL, "\"values\":[\"a\"]"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_KUBE_PLAN struct kube_plan plan = {0};
		AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
		AUTO_BUF struct buf text;
		struct wanted wanted;
		struct place place;

		place_init(&place, definition);
		wanted_init(&wanted);
		wanted.spec.resources.gpu_type = mem_strdup(cases[i].types);
		assert_int_equal(plan_of(&place, &wanted, &plan, NULL), 0);
		assert_int_equal(plan.run.gpus, 1);
		assert_string_equal(plan.run.gpu_resource, "nvidia.com/gpu");
		assert_null(plan.run.node_selector);
		assert_int_equal(kube_job_make(&plan.run, &objects, NULL), 0);
		buf_init(&text, 1 << 20);
		json_print(objects.job, &text);
		if (cases[i].required)
			assert_non_null(strstr(text.data, cases[i].required));
		else
			assert_null(strstr(text.data, "nodeSelectorTerms"));
		assert_non_null(strstr(text.data, cases[i].preferred));
		assert_true(!cases[i].required == !strstr(text.data, "{\"key\":\"h\"}"));
		wanted_done(&wanted);
		place_done(&place);
	}
}

static void test_bad_plans(void **state)
{
	static const struct {
		const char *definition, *gpu_type, *message, *hint;
	} cases[] = {
		{"{\"volumes\":[{\"nfs\":\"fs\",\"path\":\"/x\"}]}", NULL,
			"nfs: 'fs' is not of the form SERVER:/PATH", NULL},
		{"{\"gpu_types\":{\"h100\":{}}}", "h10", "the target has no GPU type 'h10'",
			"did you mean h100?"},
		{"{}", "h100", "the target has no GPU type 'h100'", NULL},
		{"{\"gpu_types\":{\"h100\":{}}}", "a100,v100",
			"the target has no GPU type 'a100,v100'", NULL},
		{"{\"overlay\":\"/proc/nonexistent/pod.yaml\"}", NULL, "/proc/nonexistent/pod.yaml",
			NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_KUBE_PLAN struct kube_plan plan = {0};
		AUTO_ERR struct err err = {0};
		struct wanted wanted;
		struct place place;

		place_init(&place, cases[i].definition);
		wanted_init(&wanted);
		if (cases[i].gpu_type)
			wanted.spec.resources.gpu_type = mem_strdup(cases[i].gpu_type);
		assert_true(plan_of(&place, &wanted, &plan, &err) < 0);
		assert_non_null(strstr(err.message, cases[i].message));
		if (cases[i].hint)
			assert_string_equal(err.hint, cases[i].hint);
		wanted_done(&wanted);
		place_done(&place);
	}
}

/*
 * Images
 */

static void test_image_facts(void **state)
{
	static const char config[] =
		"{\"os\":\"linux\",\"architecture\":\"amd64\",\"config\":{\"User\":\"app\","
		"\"Env\":[\"PATH=/bin\",\"X=1\",5],\"Entrypoint\":[\"/e\",\"-x\"]}}";
	AUTO_JSON struct json *json = parse(config), *written = NULL;
	AUTO_IMAGE_FACTS struct image_facts facts = {0}, again = {0}, scratch = {0};

	image_facts_of_config(json, "linux/arm64", "/w", &facts);
	written = image_facts_to_json(&facts);
	image_facts_from_json(written, &again);
	assert_string_equal(again.user, "app");
	assert_string_equal(again.arch, "amd64");
	assert_string_equal(again.workdir, "/w");
	assert_int_equal(again.entrypoint.n, 2);
	assert_int_equal(again.env_names.n, 2);
	assert_string_equal(again.env_names.v[1], "X");
	assert_false(again.is_scratch);
	image_facts_of_config(NULL, "linux/arm64/v8", "/w", &scratch);
	assert_true(scratch.is_scratch);
	assert_string_equal(scratch.os, "linux");
	assert_string_equal(scratch.arch, "arm64");
	assert_null(scratch.user);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handles),
		cmocka_unit_test(test_member_handles),
		cmocka_unit_test(test_members_are_prepared),
		cmocka_unit_test(test_jobsets_are_notified_by_their_handles),
		cmocka_unit_test(test_facts_of_a_jobset),
		cmocka_unit_test(test_when_jobsets_are_requested_for),
		cmocka_unit_test(test_other_clusters_are_notified_apart),
		cmocka_unit_test(test_facts_of_one_run),
		cmocka_unit_test(test_jobs_that_notify_too_little),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_several_types),
		cmocka_unit_test(test_bad_plans),
		cmocka_unit_test(test_image_facts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

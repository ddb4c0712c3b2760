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
#include "kube/status/usage.h"
#include "tests/unit/effort.h"

static struct json *read_json(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "it", &json, NULL), 0);
	return json;
}

static void test_pods(void **state)
{
	AUTO_JSON struct json *list = read_json(
		"{\"items\":[1,{},{\"metadata\":{\"name\":\"a\"},\"containers\":["
		"{\"name\":\"side\",\"usage\":{\"cpu\":\"9\"}},"
		"{\"name\":\"program\",\"usage\":{\"cpu\":\"1500000000n\",\"memory\":\"1024Ki\"}}"
		"]},{\"metadata\":{\"name\":\"b\"},\"containers\":{}}]}");
	struct kube_usage usage;

	kube_usage_of_pod(list, "a", "program", &usage);
	assert_true(usage.cpus > 1.499 && usage.cpus < 1.501);
	assert_int_equal(usage.memory_bytes, 1 << 20);
	kube_usage_of_pod(list, "b", "program", &usage);
	assert_true(usage.cpus < 0 && usage.memory_bytes < 0);
	kube_usage_of_pod(NULL, "a", "program", &usage);
	assert_true(usage.cpus < 0 && usage.memory_bytes < 0);
}

#define NODE(name, spec, ready)                                                                    \
	"{\"metadata\":{\"name\":\"" name "\",\"labels\":{\"nvidia.com/gpu.product\":\"A100\"}},"  \
	"\"spec\":{" spec "},\"status\":{\"allocatable\":{\"cpu\":\"64\",\"memory\":\"2Gi\","      \
	"\"nvidia.com/gpu\":\"8\"},\"conditions\":[{\"type\":\"Ready\",\"status\":\"" ready        \
	"\"}]}}"

static void test_nodes(void **state)
{
	AUTO_JSON struct json *nodes = read_json("{\"items\":[" NODE("b", "", "True") "," NODE(
		"a", "\"unschedulable\":true", "True") "," NODE("c", "", "False") ",{},null]}");
	AUTO_JSON struct json *pods = read_json(
		"{\"items\":[{\"spec\":{\"nodeName\":\"b\",\"containers\":[{\"resources\":"
		"{\"requests\":{\"nvidia.com/gpu\":\"3\"}}}]}}]}");
	AUTO_JSON struct json *metrics = read_json("{\"items\":[{\"metadata\":{\"name\":\"b\"},"
						   "\"usage\":{\"cpu\":\"250m\",\"memory\":\"1Gi\"}"
						   "},7]}");
	struct kube_node_list list = {0};

	kube_nodes_of(nodes, pods, metrics, &list);
	assert_int_equal(list.n, 2);
	assert_string_equal(list.v[0].name, "a");
	assert_false(list.v[0].takes_pods);
	assert_true(list.v[0].usage.cpus < 0);
	assert_string_equal(list.v[1].name, "b");
	assert_string_equal(list.v[1].model, "A100");
	assert_true(list.v[1].takes_pods);
	assert_true(list.v[1].cpus == 64);
	assert_int_equal(list.v[1].memory_bytes, 2LL << 30);
	assert_int_equal(list.v[1].gpus, 8);
	assert_int_equal(list.v[1].gpus_taken, 3);
	assert_true(list.v[1].usage.cpus == 0.25);
	assert_int_equal(list.v[1].usage.memory_bytes, 1LL << 30);
	vec_done(&list);
	kube_nodes_of(nodes, NULL, NULL, &list);
	assert_int_equal(list.v[1].gpus_taken, -1);
	vec_done(&list);
	kube_nodes_of(NULL, pods, metrics, &list);
	assert_int_equal(list.n, 0);
	vec_done(&list);
}

static void test_running(void **state)
{
	AUTO_JSON struct json *pods = read_json(
		"{\"items\":[{\"metadata\":{\"name\":\"a\"},\"status\":{\"phase\":\"Running\"}},"
		"{\"metadata\":{\"name\":\"b\"},\"status\":{\"phase\":\"Pending\"}},"
		"{\"metadata\":{\"name\":\"c\",\"deletionTimestamp\":\"2026-01-01T00:00:00Z\"},"
		"\"status\":{\"phase\":\"Running\"}},{\"status\":{\"phase\":\"Running\"}},3]}");
	struct kube_names names = {0};

	kube_running_pods(pods, &names);
	assert_int_equal(names.n, 1);
	assert_string_equal(names.v[0], "a");
	kube_running_pods(NULL, &names);
	assert_int_equal(names.n, 1);
	vec_done(&names);
}

/*
 * Capacity
 */

static struct json *list_of(const char *items)
{
	AUTO_FREE char *text = mem_printf("{\"items\": [%s]}", items);
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "a list", &json, NULL), 0);
	return json;
}

static char *node_text(const char *name, const char *spec, const char *ready, const char *amounts)
{
	return mem_printf("{\"metadata\": {\"name\": \"%s\"}, \"spec\": {%s}, \"status\": "
			  "{\"allocatable\": {%s}, \"conditions\": [{\"type\": \"Ready\", "
			  "\"status\": \"%s\"}]}}",
		name, spec, amounts, ready);
}

static char *pod_text(const char *on, int gpus)
{
	return mem_printf("{\"spec\": {\"nodeName\": \"%s\", \"containers\": [{\"resources\": "
			  "{\"requests\": {\"nvidia.com/gpu\": \"%d\"}}}]}}",
		on, gpus);
}

static void test_capacity_sums(void **state)
{
	AUTO_FREE char *a =
		node_text("a", "", "True", "\"nvidia.com/gpu\": \"8\", \"cpu\": \"64\"");
	AUTO_FREE char *b = node_text("b", "", "True", "\"amd.com/gpu\": 4");
	AUTO_FREE char *cordoned =
		node_text("c", "\"unschedulable\": true", "True", "\"nvidia.com/gpu\": \"8\"");
	AUTO_FREE char *down = node_text("d", "", "False", "\"nvidia.com/gpu\": \"8\"");
	AUTO_FREE char *text = mem_printf("%s,%s,%s,%s,{},1", a, b, cordoned, down);
	AUTO_FREE char *p = pod_text("a", 3), *q = pod_text("a", 1), *r = pod_text("c", 5),
		       *s = pod_text("", 7);
	AUTO_FREE char *pods = mem_printf("%s,%s,%s,%s,{},null", p, q, r, s);
	AUTO_JSON struct json *nodes = list_of(text), *all = list_of(pods), *none = list_of("");
	struct kube_capacity has;

	kube_capacity_of(nodes, all, &has);
	assert_int_equal(has.nodes, 2);
	assert_int_equal(has.gpus, 12);
	assert_int_equal(has.gpus_free, 8);
	kube_capacity_of(nodes, NULL, &has);
	assert_int_equal(has.gpus, 12);
	assert_int_equal(has.gpus_free, -1);
	kube_capacity_of(nodes, none, &has);
	assert_int_equal(has.gpus_free, 12);
}

/* A node may be given more than it has, for a moment. */
static void test_capacity_never_below_zero(void **state)
{
	AUTO_FREE char *a = node_text("a", "", "True", "\"nvidia.com/gpu\": \"2\"");
	AUTO_FREE char *b = node_text("b", "", "True", "\"nvidia.com/gpu\": \"2\"");
	AUTO_FREE char *text = mem_printf("%s,%s", a, b), *pods = pod_text("a", 4);
	AUTO_JSON struct json *nodes = list_of(text), *all = list_of(pods);
	struct kube_capacity has;

	kube_capacity_of(nodes, all, &has);
	assert_int_equal(has.gpus_free, 2);
}

static void test_capacity_nothing(void **state)
{
	struct kube_capacity has;

	kube_capacity_of(NULL, NULL, &has);
	assert_int_equal(has.nodes, 0);
	assert_int_equal(has.gpus, 0);
	assert_int_equal(has.gpus_free, -1);
}

/* Each node must not look at each pod: that takes ten times as long, and more. */
static void test_capacity_many(void **state)
{
	enum { NODES = 4000, PODS = 4000 };
	AUTO_JSON struct json *nodes = list_of(""), *pods = list_of("");
	struct kube_capacity has;

	for (int i = 0; i < NODES; i++) {
		AUTO_FREE char *name = mem_printf("n%d", i);
		AUTO_FREE char *a = node_text(name, "", "True", "\"nvidia.com/gpu\": \"8\"");
		AUTO_FREE char *p = pod_text(name, 3);
		struct json *one = NULL;
		assert_int_equal(json_parse(a, strlen(a), JSON_SIZE_MAX, "it", &one, NULL), 0);
		json_add((struct json *)(uintptr_t)json_get(nodes, "items"), one);
		assert_int_equal(json_parse(p, strlen(p), JSON_SIZE_MAX, "it", &one, NULL), 0);
		json_add((struct json *)(uintptr_t)json_get(pods, "items"), one);
	}
	int64_t start_ms = effort_ms();
	kube_capacity_of(nodes, pods, &has);
	assert_in_range(effort_ms() - start_ms, 0, 5000);
	assert_int_equal(has.gpus_free, 5 * NODES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pods),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_running),
		cmocka_unit_test(test_capacity_sums),
		cmocka_unit_test(test_capacity_never_below_zero),
		cmocka_unit_test(test_capacity_nothing),
		cmocka_unit_test(test_capacity_many),
	};

	return cmocka_run_group_tests_name("kube_usage", tests, NULL, NULL);
}

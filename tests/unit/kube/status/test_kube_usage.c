/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "kube/status/usage.h"

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

	(void)state;
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

	(void)state;
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

	(void)state;
	kube_running_pods(pods, &names);
	assert_int_equal(names.n, 1);
	assert_string_equal(names.v[0], "a");
	kube_running_pods(NULL, &names);
	assert_int_equal(names.n, 1);
	vec_done(&names);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pods),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_running),
	};

	return cmocka_run_group_tests_name("kube_usage", tests, NULL, NULL);
}

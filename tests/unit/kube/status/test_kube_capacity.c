/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "kube/status/usage.h"
#include "tests/unit/effort.h"

static struct json *list(const char *items)
{
	AUTO_FREE char *text = mem_printf("{\"items\": [%s]}", items);
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "a list", &json, NULL), 0);
	return json;
}

static char *node(const char *name, const char *spec, const char *ready, const char *amounts)
{
	return mem_printf("{\"metadata\": {\"name\": \"%s\"}, \"spec\": {%s}, \"status\": "
			  "{\"allocatable\": {%s}, \"conditions\": [{\"type\": \"Ready\", "
			  "\"status\": \"%s\"}]}}",
		name, spec, amounts, ready);
}

static char *pod(const char *on, int gpus)
{
	return mem_printf("{\"spec\": {\"nodeName\": \"%s\", \"containers\": [{\"resources\": "
			  "{\"requests\": {\"nvidia.com/gpu\": \"%d\"}}}]}}",
		on, gpus);
}

static void test_sums(void **state)
{
	AUTO_FREE char *a = node("a", "", "True", "\"nvidia.com/gpu\": \"8\", \"cpu\": \"64\"");
	AUTO_FREE char *b = node("b", "", "True", "\"amd.com/gpu\": 4");
	AUTO_FREE char *cordoned =
		node("c", "\"unschedulable\": true", "True", "\"nvidia.com/gpu\": \"8\"");
	AUTO_FREE char *down = node("d", "", "False", "\"nvidia.com/gpu\": \"8\"");
	AUTO_FREE char *text = mem_printf("%s,%s,%s,%s,{},1", a, b, cordoned, down);
	AUTO_FREE char *p = pod("a", 3), *q = pod("a", 1), *r = pod("c", 5), *s = pod("", 7);
	AUTO_FREE char *pods = mem_printf("%s,%s,%s,%s,{},null", p, q, r, s);
	AUTO_JSON struct json *nodes = list(text), *all = list(pods), *none = list("");
	struct kube_capacity has;

	(void)state;
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
static void test_never_below_zero(void **state)
{
	AUTO_FREE char *a = node("a", "", "True", "\"nvidia.com/gpu\": \"2\"");
	AUTO_FREE char *b = node("b", "", "True", "\"nvidia.com/gpu\": \"2\"");
	AUTO_FREE char *text = mem_printf("%s,%s", a, b), *pods = pod("a", 4);
	AUTO_JSON struct json *nodes = list(text), *all = list(pods);
	struct kube_capacity has;

	(void)state;
	kube_capacity_of(nodes, all, &has);
	assert_int_equal(has.gpus_free, 2);
}

static void test_nothing(void **state)
{
	struct kube_capacity has;

	(void)state;
	kube_capacity_of(NULL, NULL, &has);
	assert_int_equal(has.nodes, 0);
	assert_int_equal(has.gpus, 0);
	assert_int_equal(has.gpus_free, -1);
}

/* Each node must not look at each pod: that takes ten times as long, and more. */
static void test_many(void **state)
{
	enum { NODES = 4000, PODS = 4000 };
	AUTO_JSON struct json *nodes = list(""), *pods = list("");
	struct kube_capacity has;

	(void)state;
	for (int i = 0; i < NODES; i++) {
		AUTO_FREE char *name = mem_printf("n%d", i);
		AUTO_FREE char *a = node(name, "", "True", "\"nvidia.com/gpu\": \"8\"");
		AUTO_FREE char *p = pod(name, 3);
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
		cmocka_unit_test(test_sums),
		cmocka_unit_test(test_never_below_zero),
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "core/record/machine.h"
#include "node/wire.h"

static int print(const char *text, struct node_machine *machine)
{
	AUTO_FREE char *line = mem_strdup(text);
	struct node_words words = {0};
	int r = node_words_split(line, &words, NULL);

	if (r == 0)
		r = node_machine_line(&words, machine, NULL);
	vec_done(&words);
	return r;
}

static void expect(const struct machine *machine, const char *want)
{
	AUTO_JSON struct json *json = machine_json(machine);
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 16);
	json_print(json, &text);
	assert_string_equal(text.data, want);
}

static void test_node(void **state)
{
	static const char *const lines[] = {"load 3.25", "cpus 64", "memory 1000 400",
		"gpu nvidia 0 GPU-0 85520809984 1 resnet-3k2f9 A100\\0040SXM",
		"gpu nvidia 1 GPU-1 0 0 - A100", "meter nvidia 0 97 1048576 312500",
		"meter nvidia 1 - - -", "meter amd 0 1 1 1", "other 1"};
	struct node_machine node;
	struct machine machine;

	node_machine_init(&node);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		assert_int_equal(print(lines[i], &node), 0);
	machine_init(&machine, "pool", "gpu1");
	machine_from_node(&node, &machine);
	expect(&machine,
		"{\"target\":\"pool\",\"host\":\"gpu1\",\"reachable\":true,\"error\":null,"
		"\"cpus\":64,\"load\":3.25,\"memory_bytes\":1000,\"memory_used_bytes\":600,"
		"\"gpus_all\":2,\"gpus_free\":1,\"gpu_model\":\"A100 SXM\",\"gpus\":["
		"{\"index\":0,\"vendor\":\"nvidia\",\"model\":\"A100 SXM\",\"busy\":0.97,"
		"\"memory_bytes\":85520809984,\"memory_used_bytes\":1048576,\"power_w\":312.5,"
		"\"used\":true,\"holder\":\"resnet-3k2f9\"},"
		"{\"index\":1,\"vendor\":\"nvidia\",\"model\":\"A100\",\"busy\":null,"
		"\"memory_bytes\":null,\"memory_used_bytes\":null,\"power_w\":null,"
		"\"used\":false,\"holder\":null}]}");
	machine_done(&machine);
	node_machine_done(&node);
}

static void test_hostile_node(void **state)
{
	static const char *const lines[] = {"load nan", "load 1e9", "load -1", "cpus 0",
		"cpus 99999999999", "memory 5", "memory x y", "memory 18446744073709551615 1",
		"gpu nvidia 0 GPU-0 1 0 - A", "meter nvidia 0 101 -5 18446744073709551615",
		"meter nvidia", "fault nvidia-smi\\0040is\\0040broken", "fault again"};
	struct node_machine node;
	struct machine machine;

	node_machine_init(&node);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		assert_int_equal(print(lines[i], &node), 0);
	assert_true(node.load < 0 && node.cpus == 0);
	assert_true(node.memory_bytes < 0);
	assert_true(node.gpus.v[0].busy < 0 && node.gpus.v[0].power_w < 0);
	assert_true(node.gpus.v[0].memory_used_bytes < 0);
	assert_string_equal(node.error, "nvidia-smi is broken");
	machine_init(&machine, "pool", "gpu1");
	machine_from_node(&node, &machine);
	assert_string_equal(machine.error, "nvidia-smi is broken");
	assert_true(machine.memory_used_bytes < 0 && machine.n_gpus < 0);
	machine_done(&machine);
	assert_int_not_equal(print("gpu nvidia x", &node), 0);
	for (int i = 0; i < 1023; i++)
		assert_int_equal(print("gpu nvidia 0 GPU-0 1 0 - A", &node), 0);
	assert_int_not_equal(print("gpu nvidia 0 GPU-0 1 0 - A", &node), 0);
	node_machine_done(&node);
}

static void test_cluster(void **state)
{
	struct kube_node node = {.name = "n",
		.model = "A100",
		.takes_pods = true,
		.cpus = 32,
		.memory_bytes = 100,
		.gpus = 8,
		.gpus_taken = 9,
		.usage = {1.5, 50}};
	struct machine machine;

	machine_init(&machine, "c", "n");
	machine_from_kube(&node, &machine);
	assert_int_equal(machine.gpus_free, 0);
	machine_done(&machine);
	node.gpus_taken = -1;
	node.usage = (struct kube_usage){-1, -1};
	machine_init(&machine, "c", "n");
	machine_from_kube(&node, &machine);
	expect(&machine,
		"{\"target\":\"c\",\"host\":\"n\",\"reachable\":true,\"error\":null,\"cpus\":32,"
		"\"load\":null,\"memory_bytes\":100,\"memory_used_bytes\":null,\"gpus_all\":8,"
		"\"gpus_free\":null,\"gpu_model\":\"A100\",\"gpus\":[]}");
	machine_done(&machine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_node),
		cmocka_unit_test(test_hostile_node),
		cmocka_unit_test(test_cluster),
	};

	return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}

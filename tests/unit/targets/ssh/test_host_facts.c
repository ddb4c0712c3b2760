/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/util/str.h"
#include "targets/ssh/host_facts.h"

enum { HOSTS = 4 };

static struct node_facts facts[HOSTS];
static struct node_probe probes[HOSTS];
static struct host_facts compared;

static int make_hosts(void **state)
{
	static const char *const names[HOSTS] = {"gpu1", "gpu2", "gpu3", "gpu4"};

	for (size_t i = 0; i < HOSTS; i++) {
		facts[i] = (struct node_facts){.machine = "x86_64", .launch = "systemd"};
		probes[i] =
			(struct node_probe){.host = names[i], .facts = &facts[i], .has_gpus = true};
	}
	return 0;
}

static int remove_hosts(void **state)
{
	host_facts_done(&compared);
	for (size_t i = 0; i < HOSTS; i++)
		node_probe_done(&probes[i]);
	return 0;
}

static void tell(size_t i, const char *key, const char *value)
{
	*vec_push(&probes[i].fields) =
		(struct node_field){.key = mem_strdup(key), .value = mem_strdup(value)};
}

static void add_gpu(size_t i, const char *model)
{
	struct node_gpu *gpu = vec_push(&probes[i].gpus);

	snprintf(gpu->model, sizeof(gpu->model), "%s", model);
}

/* "3.11.2: gpu1 gpu2; none: gpu3", or NULL: the fact is not there. */
static char *text_of(const char *name)
{
	AUTO_STRV struct strv parts = {0};

	vec_foreach (const struct host_fact, fact, &compared) {
		if (!str_eq(fact->name, name))
			continue;
		vec_foreach (const struct host_fact_value, value, &fact->values) {
			AUTO_FREE char *hosts = strv_join(&value->hosts, " ");
			strv_addf(&parts, "%s: %s", value->value, hosts);
		}
		return strv_join(&parts, "; ");
	}
	return NULL;
}

static void check(const char *name, const char *expected)
{
	AUTO_FREE char *text = text_of(name);

	if (expected)
		assert_string_equal(text, expected);
	else
		assert_null(text);
}

static void test_the_most_frequent_value_comes_first(void **state)
{
	tell(0, "python3", "3.12.3");
	tell(1, "python3", "3.11.2");
	tell(3, "python3", "3.11.2");
	host_facts_compare(probes, HOSTS, &compared);
	check("python3", "3.11.2: gpu2 gpu4; 3.12.3: gpu1; none: gpu3");
	check("machine", "x86_64: gpu1 gpu2 gpu3 gpu4");
	/* No host has it. */
	check("uv", NULL);
}

static void test_hosts_without_answer_are_left_out(void **state)
{
	probes[1].facts = NULL;
	err_set(&probes[2].error, E_TARGET_SILENT, "gpu3 did not answer in time");
	host_facts_compare(probes, HOSTS, &compared);
	check("machine", "x86_64: gpu1 gpu4");
	host_facts_done(&compared);
	host_facts_compare(probes, 0, &compared);
	assert_int_equal(compared.n, 0);
}

static void test_gpus_are_counted_by_model(void **state)
{
	add_gpu(0, "A100");
	add_gpu(0, "V100");
	add_gpu(0, "A100");
	add_gpu(1, "A100");
	probes[3].has_gpus = false;
	host_facts_compare(probes, HOSTS, &compared);
	check("GPUs", "2 × A100, 1 × V100: gpu1; 1 × A100: gpu2; none: gpu3; not known: gpu4");
}

static void test_sizes_and_clocks(void **state)
{
	tell(0, "disk", "1099511627776");
	tell(1, "disk", "-1");
	tell(2, "disk", "99999999999999999999999");
	tell(3, "unheard", "of");
	facts[1].ahead_ms = 1900;
	facts[2].ahead_ms = -61500;
	facts[3].ahead_ms = 3000;
	host_facts_compare(probes, HOSTS, &compared);
	check("disk", "not known: gpu2 gpu3 gpu4; 1.0 TiB: gpu1");
	check("clock", "right: gpu1 gpu2; 61 s behind: gpu3; 3 s ahead: gpu4");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_hosts, remove_hosts)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_the_most_frequent_value_comes_first),
		TEST(test_hosts_without_answer_are_left_out),
		TEST(test_gpus_are_counted_by_model),
		TEST(test_sizes_and_clocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

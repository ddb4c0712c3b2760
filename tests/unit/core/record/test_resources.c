/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/record/resources.h"

static void test_cpus(void **state)
{
	static const struct {
		const char *text;
		int64_t milli; /* 0: refused */
	} cases[] = {{"4", 4000}, {"0.5", 500}, {"500m", 500}, {"1.25", 1250}, {"2.125", 2125},
		{"", 0}, {"0", 0}, {"0m", 0}, {"1.", 0}, {".5", 0}, {"1.2345", 0}, {"-1", 0},
		{"4 ", 0}, {"1e3", 0}, {"1.5m", 0}, {"100001", 0}, {"99999999999999999999", 0}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		AUTO_ERR struct err err = {0};
		int64_t milli = 0;
		int r = resources_parse_cpus(cases[i].text, "cpus", &milli, &err);

		if (cases[i].milli)
			assert_int_equal(milli, cases[i].milli);
		else
			assert_int_equal(r, -ERR_CONFIG);
	}
}

static void test_json(void **state)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_RESOURCES struct resources read = {0};
	struct resources resources = {.nodes = 2,
		.cpus_milli = 500,
		.memory_bytes = 1u << 30,
		.gpu_type = "h100",
		.region = "us-east-1",
		.instance_type = "p5.48xlarge",
		.same = "zone",
		.spot = RESOURCES_SPOT_NOT,
		.queue = "gpu"};

	resources_to_json(&resources, json);
	resources_from_json(json, &read);
	assert_int_equal(read.nodes, 2);
	assert_int_equal(read.cpus_milli, 500);
	assert_int_equal(read.memory_bytes, 1u << 30);
	assert_int_equal(read.shm_bytes, 0);
	assert_string_equal(read.gpu_type, "h100");
	assert_string_equal(read.queue, "gpu");
	assert_string_equal(read.region, "us-east-1");
	assert_string_equal(read.instance_type, "p5.48xlarge");
	assert_string_equal(read.same, "zone");
	assert_int_equal(read.spot, RESOURCES_SPOT_NOT);
	assert_null(read.priority);
}

static void test_hostile_json(void **state)
{
	static const char text[] = "{\"nodes\":-3,\"memory_bytes\":\"x\",\"queue\":5}";
	AUTO_JSON struct json *json = NULL;
	AUTO_RESOURCES struct resources read = {0};

	assert_int_equal(json_parse(text, sizeof(text) - 1, 1000, "it", &json, NULL), 0);
	resources_from_json(json, &read);
	assert_int_equal(read.nodes, 1);
	assert_int_equal(read.memory_bytes, 0);
	assert_null(read.queue);
	resources_done(&read);
	resources_from_json(NULL, &read);
	assert_int_equal(read.nodes, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cpus),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_hostile_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

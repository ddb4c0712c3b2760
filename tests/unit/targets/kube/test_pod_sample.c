/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/columns.h"
#include "host/usage.h"
#include "targets/kube/pod_sample.h"

static struct pod_sample parse(const char *text)
{
	struct pod_sample sample;

	pod_sample_parse(text, strlen(text), &sample);
	return sample;
}

static void near(double got, double want)
{
	if (got < want - 0.001 || got > want + 0.001)
		fail_msg("%f is not %f", got, want);
}

static void test_cgroup2(void **state)
{
	struct pod_sample s = parse("dlrun:hz\n100\ndlrun:page\n4096\n"
				    "dlrun:uptime\n2000000.50 1.0\n\n"
				    "dlrun:cpu2\nusage_usec 5000000\nuser_usec 1\n\n"
				    "dlrun:memory\n1000000\n\n"
				    "dlrun:stat\nanon 7\ninactive_file 400000\nactive_file 9\n\n"
				    "dlrun:memory\n\ndlrun:stat\n\n"
				    "dlrun:uptime\n2000002.50 1.0\n\n"
				    "dlrun:cpu2\nusage_usec 8000000\n\n"
				    "dlrun:end\n");

	near(s.cpu_s, 8);
	near(s.cpu, 1.5);
	assert_int_equal(s.memory_bytes, 600000);
	assert_true(s.gpu_busy < 0 && s.gpu_memory_bytes < 0 && s.power_w < 0);
}

static void test_cgroup1(void **state)
{
	struct pod_sample s = parse("dlrun:uptime\n10.0 1.0\ndlrun:cpu1\n1000000000\n"
				    "dlrun:memory\n\ndlrun:stat\n\ndlrun:memory\n5000\n"
				    "dlrun:stat\ninactive_file 1\ntotal_inactive_file 2000\n"
				    "dlrun:uptime\n11.0 1.0\ndlrun:cpu1\n3000000000\ndlrun:end\n");

	near(s.cpu_s, 3);
	near(s.cpu, 2);
	assert_int_equal(s.memory_bytes, 3000);
}

/* Field 24 is the resident size in pages; a name may hold anything. */
#define STAT(name, utime, cutime, rss)                                                             \
	"12 (" name ") S 1 1 1 0 -1 0 1 2 3 4 " utime " 50 " cutime " 0 20 0 1 0 777 99999 " rss   \
	" 18446744073709551615 1 1\n"

static void test_processes(void **state)
{
	struct pod_sample s = parse(
		"dlrun:hz\n100\ndlrun:page\n4096\ndlrun:uptime\n10.00 1\ndlrun:processes\n" STAT(
			"a) S (b", "100", "50",
			"10") "garbage\n) \n"
			      "dlrun:memory\n\ndlrun:uptime\n12.00 1\ndlrun:processes\n" STAT(
				      "a) S (b", "200", "150", "10")
				      STAT("c", "0", "0", "-5") "dlrun:end\n");

	near(s.cpu_s, 2 + 0.5 + 1.5 + 0.5);
	near(s.cpu, (4.5 - 2) / 2);
	assert_int_equal(s.memory_bytes, 40960);
}

static void test_gpus(void **state)
{
	struct pod_sample s = parse("dlrun:nvidia\n50, 1024, 100.50\n70, 2048, [N/A]\n"
				    "[N/A], [N/A], [N/A]\nNVIDIA-SMI has failed\n"
				    "dlrun:amd\n30\n1048576\n25000000\n"
				    "dlrun:amd\n101\n\ndlrun:end\n");

	near(s.gpu_busy, 0.5);
	assert_int_equal(s.gpu_memory_bytes, (3072LL << 20) + 1048576);
	near(s.power_w, 125.5);
	assert_true(s.cpu_s < 0 && s.cpu < 0 && s.memory_bytes < 0);
}

/* A part that nothing follows may be cut. */
static void test_cut(void **state)
{
	struct pod_sample s = parse("dlrun:uptime\n10.0 1.0\ndlrun:memory\n5000\ndlrun:memory\n70");

	assert_int_equal(s.memory_bytes, 5000);
}

static void test_nonsense(void **state)
{
	static const char *const texts[] = {"", "\n\n", "dlrun:", "dlrun:\ndlrun:\n",
		"sh: not found\n", "dlrun:memory\n-1\ndlrun:end\n",
		"dlrun:memory\n99999999999999999999\ndlrun:end\n",
		"dlrun:uptime\nnan\ndlrun:cpu2\nusage_usec inf\ndlrun:end\n",
		"dlrun:nvidia\n,,,,\n 1e3, 0x10, nan\ndlrun:end\n"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct pod_sample s = parse(texts[i]);
		assert_true(s.cpu_s < 0 && s.cpu < 0);
		assert_true(s.memory_bytes < 0 && s.power_w < 2);
	}
}

static void test_json(void **state)
{
	struct pod_sample s = {1.5, -1, 4096, 0.5, -1, 10};
	AUTO_JSON struct json *json = pod_sample_json(&s, 1000);
	AUTO_BUF struct buf text;

	buf_init(&text, 4096);
	json_print(json, &text);
	assert_string_equal(text.data,
		"{\"time\":\"1970-01-01T00:00:01.000Z\",\"usage\":{\"cpu_s\":1.5},\"now\":{\"cpu\":null,"
		"\"memory_bytes\":4096,\"gpu_busy\":0.5,\"gpu_memory_bytes\":null,"
		"\"power_w\":10}}");
}

/*
 * Files of /proc
 */

static void test_load(void **state)
{
	struct host_load load = {0};

	near(host_load_parse("3.25 1.00 0.50 2/300 4\n", 23), 3.25);
	near(host_load_parse("12", 2), 12);
	near(host_load_parse("", 0), -1);
	near(host_load_parse("-1", 2), -1);
	near(host_load_parse("99999999999999999999.0", 22), -1);
	static const char memory[] =
		"MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n";
	host_memory_parse(memory, strlen(memory), &load);
	assert_int_equal(load.memory_bytes, 1 << 20);
	assert_int_equal(load.memory_free_bytes, 512 << 10);
	host_memory_parse("MemTotal:", 9, &load);
	assert_int_equal(load.memory_bytes, -1);
	assert_int_equal(load.memory_free_bytes, -1);
	assert_int_equal(host_line_number("ab 1\na 2", 8, "a"), 2);
	assert_int_equal(host_line_number("ab 1\na", 6, "a"), -1);
}

/*
 * Which metric
 */

static void expect_metric(const char *metrics, const char *want)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text;

	assert_int_equal(json_parse(metrics, strlen(metrics), 4096, "it", &json, NULL), 0);
	buf_init(&text, 4096);
	if (metric_main(json))
		metric_text(metric_main(json), 12, &text);
	assert_string_equal(text.data, want);
}

static void test_metric(void **state)
{
	expect_metric("{}", "");
	expect_metric("[1]", "");
	expect_metric("{\"a\":3}", "");
	expect_metric("{\"acc\":{\"value\":0.5},\"b\":{\"value\":1}}", "acc 0.5");
	expect_metric("{\"val/loss\":{\"value\":1},\"Loss\":{\"value\":2.345678}}", "Loss 2.346");
	expect_metric("{\"val/loss\":{\"value\":1},\"x_loss\":{\"value\":2}}", "x_loss 2");
	expect_metric("{\"x_loss\":{\"value\":1},\"train/loss\":{\"value\":null,"
		      "\"not_finite\":\"nan\"}}",
		"train/loss nan");
	expect_metric("{\"the/longest/name/of/a/loss\":{}}", "…e/of/a/loss null");
	expect_metric("{\"éééééééééééééé\":{\"value\":1}}", "…ééééééééééé 1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cgroup2),
		cmocka_unit_test(test_cgroup1),
		cmocka_unit_test(test_processes),
		cmocka_unit_test(test_gpus),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_nonsense),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_metric),
	};

	return cmocka_run_group_tests_name("pod_sample", tests, NULL, NULL);
}

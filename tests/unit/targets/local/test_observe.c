/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "targets/local/observe.h"
#include "tests/unit/tfeventsfix.h"
#include "tests/unit/tmpfix.h"

static void put_file(const char *name, const char *data, size_t len)
{
	AUTO_FREE char *path = fs_join(tmp, name);

	assert_int_equal(fs_replace(path, data, len, 0600, FS_SYNC_NONE, NULL), 0);
}

static char *printed(const struct json *json)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	json_print(json, &text);
	return buf_take(&text);
}

static void test_operation(void **state)
{
	static const char log[] = "start\nwandb: https://wandb.ai/a/b/runs/c\nhalf";
	AUTO_FREE char *log_path = fs_join(tmp, "log");
	AUTO_BUF struct buf events;

	buf_init(&events, FIX_MAX);
	put_simple(&events, 100, 3, "loss", 0.5f);
	put_file("tfevents", events.data, events.len);
	put_file("params.json", "{\"lr\":1}", 8);
	put_file("log", log, sizeof(log) - 1);
	const struct observer_spec spec = {
		.outputs = tmp, .log = log_path, .family = &(struct os_family){{0}}};
	AUTO_OBSERVER struct observer *observer = observer_new(&spec);
	AUTO_JSON struct json *empty = observer_json(observer);
	assert_string_equal(json_get_str(empty, "schema"), OBSERVED_SCHEMA);
	assert_int_equal(json_kind(json_get(json_get(empty, "usage"), "cpu_s")), JSON_NULL);
	/* Soon again at first, then every two seconds, or later where a look costs more. */
	int64_t rest_ms = observer_sample(observer);
	assert_in_range(rest_ms, 250, 300000);
	for (int i = 0; i < 3; i++)
		rest_ms = observer_sample(observer);
	assert_in_range(rest_ms, 2000, 300000);
	AUTO_JSON struct json *json = observer_json(observer);
	AUTO_FREE char *metrics = printed(json_get(json, "metrics"));
	AUTO_FREE char *params = printed(json_get(json, "params"));
	AUTO_FREE char *links = printed(json_get(json, "links"));
	assert_string_equal(metrics,
		"{\"loss\":{\"value\":0.5,\"step\":3,\"min\":0.5,\"min_step\":3,"
		"\"max\":0.5,\"max_step\":3}}");
	assert_string_equal(params, "{\"lr\":1}");
	assert_string_equal(links, "[\"https://wandb.ai/a/b/runs/c\"]");
	assert_non_null(json_get_str(json, "time"));
	/* What came after the last look is seen at the end. */
	put_simple(&events, 101, 4, "loss", 0.25f);
	put_file("tfevents", events.data, events.len);
	observer_finish(observer, 1.5, 1 << 20);
	AUTO_JSON struct json *end = observer_json(observer);
	assert_int_equal(json_get_int(json_get(json_get(end, "metrics"), "loss"), "step", 0), 4);
	assert_true(json_get_num(json_get(end, "usage"), "cpu_s", 0) >= 1.5);
	assert_int_equal(json_kind(json_get(json_get(end, "now"), "cpu")), JSON_NULL);
}

static void test_nothing(void **state)
{
	AUTO_OBSERVER struct observer *observer = observer_new(&(struct observer_spec){0});
	observer_sample(observer);
	observer_finish(observer, 0, 0);
	AUTO_JSON struct json *json = observer_json(observer);
	assert_int_equal(json_count(json_get(json, "metrics")), 0);
	assert_int_equal(json_count(json_get(json, "links")), 0);
	observer_free(NULL);
}

/* A program that writes faster than a look reads. */
static void test_fast_log(void **state)
{
	static const char link[] = "\nwandb: https://wandb.ai/a/b/runs/last\n";
	AUTO_FREE char *log_path = fs_join(tmp, "log");

	put_file("log", "x\n", 2);
	assert_int_equal(truncate(log_path, 200 << 20), 0);
	AUTO_FD int fd = open(log_path, O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_int_equal(write(fd, link, sizeof(link) - 1), sizeof(link) - 1);
	AUTO_OBSERVER struct observer *observer =
		observer_new(&(struct observer_spec){.log = log_path});
	observer_sample(observer);
	observer_sample(observer);
	AUTO_JSON struct json *json = observer_json(observer);
	assert_int_equal(json_count(json_get(json, "links")), 1);
}

static void test_read(void **state)
{
	assert_null(observed_read(tmp));
	assert_null(observed_read("/proc/nonexistent"));
	put_file(OBSERVED_FILE, "{\"a\":", 5);
	assert_null(observed_read(tmp));
	put_file(OBSERVED_FILE, "[1]", 3);
	assert_null(observed_read(tmp));
	put_file(OBSERVED_FILE, "{\"now\":{\"cpu\":1.5}}", 19);
	AUTO_JSON struct json *json = observed_read(tmp);
	assert_true(json_get_num(json_get(json, "now"), "cpu", 0) == 1.5);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)
	const struct CMUnitTest tests[] = {
		CASE(test_operation),
		CASE(test_nothing),
		CASE(test_fast_log),
		CASE(test_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

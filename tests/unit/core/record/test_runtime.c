/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/record/runtime.h"

static void test_paths(void **state)
{
	static const struct {
		const char *text, *path;
	} cases[] = {
		{"data", "data"},
		{"./data/", "data"},
		{"data//sub/./x/", "data/sub/x"},
		{"..data/a..", "..data/a.."},
		{" a b", " a b"},
		{"/srv/data", NULL},
		{"~/data", NULL},
		{"../data", NULL},
		{"a/../../b", NULL},
		{"", NULL},
		{".", NULL},
		{"./", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *path = NULL;
		AUTO_ERR struct err err = {0};
		int r = runtime_path(cases[i].text, "data", &path, &err);
		if (cases[i].path) {
			assert_int_equal(r, 0);
			assert_string_equal(path, cases[i].path);
		} else {
			assert_int_equal(err.id, E_CONFIG);
			assert_non_null(strstr(err.message, "data: '"));
		}
	}
}

static void test_long_path(void **state)
{
	AUTO_FREE char *text = mem_grow(NULL, 5001, 1), *path = NULL;
	AUTO_ERR struct err err = {0};

	memset(text, 'a', 5000);
	text[5000] = '\0';
	assert_true(runtime_path(text, "data", &path, &err) < 0);
	assert_null(path);
}

static void test_signal(void **state)
{
	static const struct {
		const char *text;
		int signal;
		int64_t before_ms;
	} cases[] = {
		{"USR1@90", SIGUSR1, 90000},
		{"SIGUSR1@1", SIGUSR1, 1000},
		{"10@5", 10, 5000},
		{"TERM@86400", SIGTERM, 86400000},
		{"KILL@9", 0, 0},
		{"STOP@9", 0, 0},
		{"USR1", 0, 0},
		{"USR1@", 0, 0},
		{"USR1@0", 0, 0},
		{"USR1@-4", 0, 0},
		{"USR1@9x", 0, 0},
		{"@9", 0, 0},
		{"NOPE@9", 0, 0},
		{"", 0, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		int sig = 0;
		int64_t before_ms = 0;
		int r = runtime_parse_signal(cases[i].text, &sig, &before_ms, &err);
		assert_int_equal(r == 0, cases[i].signal != 0);
		assert_int_equal(sig, cases[i].signal);
		assert_int_equal(before_ms, cases[i].before_ms);
		if (r < 0)
			assert_int_equal(err.id, E_USAGE);
	}
}

static void test_stop_signal(void **state)
{
	static const struct {
		const char *text;
		int signal; /* -1: refused */
	} cases[] = {{"INT", SIGINT}, {"sigint", SIGINT}, {"2", SIGINT}, {"TERM", 0}, {"15", 0},
		{"KILL", -1}, {"SIGSTOP", -1}, {"9", -1}, {"INT@9", -1}, {"", -1}, {"NOPE", -1}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		int sig = -1;
		int r = runtime_parse_stop_signal(cases[i].text, &sig, &err);
		assert_int_equal(sig, cases[i].signal);
		assert_int_equal(r == 0, sig >= 0);
		if (r < 0)
			assert_int_equal(err.id, E_USAGE);
	}
}

static void fill(struct runtime *runtime)
{
	*vec_push(&runtime->data) =
		(struct runtime_data){mem_strdup("data/a"), mem_strdup("/srv/\xff b")};
	strv_add(&runtime->outputs, "out");
	strv_add(&runtime->outputs, "run\xfes");
	runtime->setup.run = mem_strdup("uv sync");
	runtime->setup.cwd = mem_strdup("exp/a");
	strv_add(&runtime->setup.key, "uv.lock");
	runtime->before = mem_strdup("a\nb");
	strv_add(&runtime->python_paths, "src");
	strv_add(&runtime->gpus_only, "1");
	runtime->gpus = RUNTIME_GPUS_AUTO;
	runtime->retries = 3;
	runtime->signal = SIGUSR1;
	runtime->signal_before_ms = 9000;
	runtime->stop_signal = SIGINT;
	runtime->launcher = (struct launcher){LAUNCHER_TORCHRUN, 4};
	runtime->collect.mode = COLLECT_NONE;
	strv_add(&runtime->collect.exclude, "*.t\xffp");
	runtime->collect.size_bytes = 5ULL << 40;
	runtime->linger_ms = 7000;
}

static void assert_filled(const struct runtime *runtime)
{
	assert_int_equal(runtime->data.n, 1);
	assert_string_equal(runtime->data.v[0].path, "data/a");
	assert_string_equal(runtime->data.v[0].from, "/srv/\xff b");
	assert_int_equal(runtime->outputs.n, 2);
	assert_string_equal(runtime->outputs.v[1], "run\xfes");
	assert_string_equal(runtime->setup.run, "uv sync");
	assert_string_equal(runtime->setup.cwd, "exp/a");
	assert_string_equal(runtime->setup.key.v[0], "uv.lock");
	assert_string_equal(runtime->before, "a\nb");
	assert_string_equal(runtime->python_paths.v[0], "src");
	assert_string_equal(runtime->gpus_only.v[0], "1");
	assert_int_equal(runtime->gpus, RUNTIME_GPUS_AUTO);
	assert_int_equal(runtime->retries, 3);
	assert_int_equal(runtime->signal, SIGUSR1);
	assert_int_equal(runtime->signal_before_ms, 9000);
	assert_int_equal(runtime->stop_signal, SIGINT);
	assert_int_equal(runtime->launcher.kind, LAUNCHER_TORCHRUN);
	assert_int_equal(runtime->launcher.processes, 4);
	assert_int_equal(runtime->collect.mode, COLLECT_NONE);
	assert_int_equal(runtime->collect.exclude.n, 1);
	assert_string_equal(runtime->collect.exclude.v[0], "*.t\xffp");
	assert_int_equal(runtime->collect.size_bytes, 5ULL << 40);
	assert_int_equal(runtime->linger_ms, 7000);
}

static void test_json(void **state)
{
	AUTO_RUNTIME struct runtime runtime = {0}, again = {0};
	AUTO_JSON struct json *json = json_object();
	AUTO_ERR struct err err = {0};

	fill(&runtime);
	runtime_to_json(&runtime, json);
	assert_int_equal(runtime_from_json(json, &again, &err), 0);
	assert_filled(&again);
}

/* Records of versions that knew nothing of it, and ones that somebody has edited. */
static void test_missing_and_hostile(void **state)
{
	static const struct {
		const char *text;
		bool valid;
	} cases[] = {
		{"{}", true},
		{"{\"data\":null,\"setup\":null,\"before\":null}", true},
		{"{\"gpus\":-7,\"retries\":99999999,\"signal\":4000,\"signal_before_ms\":-1,"
		 "\"stop_signal\":-2}",
			true},
		{"{\"data\":[{}]}", false},
		{"{\"data\":[3]}", false},
		{"{\"outputs\":[{}]}", false},
		{"{\"setup\":{\"run\":\"x\"}}", false},
		{"{\"collect\":null,\"linger_ms\":-5}", true},
		{"{\"collect\":{\"mode\":\"later\",\"size\":-1}}", true},
		{"{\"collect\":{\"exclude\":[{}]}}", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_RUNTIME struct runtime runtime = {0};
		AUTO_JSON struct json *json = NULL;
		AUTO_ERR struct err err = {0};
		assert_int_equal(
			json_parse(cases[i].text, strlen(cases[i].text), 1 << 16, "x", &json, &err),
			0);
		assert_int_equal(runtime_from_json(json, &runtime, &err) == 0, cases[i].valid);
		assert_true(runtime.gpus >= RUNTIME_GPUS_AUTO && runtime.gpus <= 1024);
		assert_true(runtime.retries >= 0 && runtime.retries <= RUNTIME_RETRIES_MAX);
		assert_true(runtime.signal >= 0 && runtime.signal < NSIG);
		assert_true(runtime.signal_before_ms >= 0);
		assert_true(runtime.stop_signal >= 0 && runtime.stop_signal < NSIG);
		assert_true(runtime.linger_ms >= 0);
	}
}

/* What a record says nothing of is collected as from a run of today. */
static void test_collect_unsaid(void **state)
{
	AUTO_RUNTIME struct runtime runtime = {0};
	AUTO_JSON struct json *json = json_object();

	assert_int_equal(runtime_from_json(json, &runtime, NULL), 0);
	assert_int_equal(runtime.collect.mode, COLLECT_AUTO);
	assert_int_equal(runtime.collect.size_bytes, RUNTIME_COLLECT_BYTES);
	assert_int_equal(runtime.linger_ms, RUNTIME_LINGER_MS);
}

static void test_reported_data(void **state)
{
	AUTO_JSON struct json *doc = json_object();
	const struct json *data;

	runtime_reported_data("dlrun: data d-0123456789abcdef data/a b\n"
			      "dlrun: data d-0123456789abcde data/short\n"
			      "dlrun: data d-0123456789abcdef \n"
			      "dlrun: data current data/none\nnoise\n"
			      "dlrun: data d-0123456789abcdefg data/long\n"
			      "dlrun: data d-fedcba9876543210 last",
		doc);
	data = json_get(doc, RUNTIME_DATA);
	assert_int_equal(json_count(data), 2);
	assert_string_equal(json_get_str(data, "data/a b"), "d-0123456789abcdef");
	assert_string_equal(json_get_str(data, "last"), "d-fedcba9876543210");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_long_path),
		cmocka_unit_test(test_signal),
		cmocka_unit_test(test_stop_signal),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_missing_and_hostile),
		cmocka_unit_test(test_collect_unsaid),
		cmocka_unit_test(test_reported_data),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

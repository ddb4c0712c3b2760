/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/results_query.h"
#include "base/util/str.h"
#include "core/record/results.h"
#include "kube/job/job.h"
#include "tests/unit/runfix.h"

static void add_file(struct outputs_files *files, const char *path, uint64_t size)
{
	*vec_push(files) = (struct outputs_file){mem_strdup(path), size, 1};
}

static void check_words(const struct json *results, const char *want)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	results_words(results, &words);
	for (size_t i = 0; i < words.n; i++)
		buf_addf(&text, "%s%s", i ? " | " : "", words.v[i]);
	assert_string_equal(text.data, want);
}

static void check_files(struct outputs_files *files, bool is_cut, const char *want)
{
	AUTO_JSON struct json *results = results_json(files, is_cut);

	assert_true(results_is_valid(results));
	check_words(results, want);
	outputs_files_done(files);
	*files = (struct outputs_files){0};
}

static void test_top_level(void **state)
{
	struct outputs_files files = {0};

	check_files(&files, false, "");
	add_file(&files, "lightning_logs/version_0/events.out.tfevents.1", 1 << 20);
	add_file(&files, "lightning_logs/version_0/hparams.yaml", 10);
	add_file(&files, "lightning_logs2/x", 1);
	add_file(&files, "model.pt", 41 << 20);
	check_files(&files, false,
		"lightning_logs/ 2 files 1.0 MiB | lightning_logs2/ 1 file 1 B | model.pt 41 MiB");
}

static void test_hostile_names(void **state)
{
	struct outputs_files files = {0};

	add_file(&files, "a\nb", 1);
	add_file(&files, "c\033[2J/d", 1);
	add_file(&files, "e\xff", UINT64_MAX / 2);
	AUTO_JSON struct json *results = results_json(&files, false);
	AUTO_STRV struct strv words = {0};
	results_words(results, &words);
	assert_int_equal(words.n, 3);
	for (size_t i = 0; i < words.n; i++)
		assert_true(str_is_plain(words.v[i]));
	outputs_files_done(&files);
}

/* What pods say; params: as JSON. */
static void check_notified(char *const *texts, size_t n, const char *want, const char *want_params)
{
	struct json *params = NULL;
	AUTO_JSON struct json *results = results_reported(texts, n, &params);
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	if (!want) {
		assert_null(results);
		return;
	}
	assert_true(results_is_valid(results));
	check_words(results, want);
	json_print(params, &text);
	assert_string_equal(text.data, want_params);
	json_free(params);
}

#define NOTIFIED KUBE_JOB_RESULTS " "

static void test_notified(void **state)
{
	static char *const one[] = {"dlrun: time limit\n" NOTIFIED
				    "13 1058576 0\n12 1048576 logs/\n1 10000 a\\nb\\\\c\n"
				    "params 9 logs/hparams.yaml\nlr: 1\nb: \nparams 8 params.json\n"
				    "{\"lr\":2}\n"};
	static char *const gang[] = {NOTIFIED "2 30 0\n2 30 x/\n",
		NOTIFIED "1 20 0\n1 20 y\nparams 4 "
			 "args.json\n{\"a\n",
		NOTIFIED "0 0 0\n", NOTIFIED "3 5 1\n"};
	static char *const silent[] = {NULL, NOTIFIED "1 1 0\n1 1 y\n"};
	static char *const half[] = {NOTIFIED "1 1 7\n1 1 y\n", NULL};
	static char *const others[] = {"", "dlrun: results", "dlrun: results -1 2 3\n",
		NOTIFIED "1 2", NOTIFIED "1 2 99999999999999999999999999\n"};
	static char *const broken[] = {NOTIFIED "3 3 0\n1 1 x\n1 y\n1 1 z\n",
		NOTIFIED "3 3 0\n1 1 x", NOTIFIED "3 3 0\n1 1 x\nparams 5 params.json\n{\"a\"",
		NOTIFIED "3 3 0\n1 1 x\nparams 1", NOTIFIED "3 3 0\n1 1 x\n1 1 \n",
		NOTIFIED "3 3 0\n1 1 x\nparams 9 none\n123456789\n"};

	check_notified(
		one, 1, "a\\nb\\\\c 9.8 KiB | logs/ 12 files 1.0 MiB", "{\"lr\":2,\"b\":null}");
	check_notified(
		gang, 4, "rank-1/ 1 file 20 B | rank-3/ 3 files 5 B | x/ 2 files 30 B", "{}");
	check_notified(silent, 2, NULL, NULL);
	check_notified(half, 2, "y 1 B | and more", "{}");
	check_notified(half, 1, "y 1 B | and 7 more", "{}");
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		check_notified(&others[i], 1, NULL, NULL);
	check_notified(&broken[0], 1, "x 1 B", "{}");
	check_notified(&broken[1], 1, "", "{}");
	for (size_t i = 2; i < ARRAY_LEN(broken); i++)
		check_notified(&broken[i], 1, "x 1 B", "{}");
}

static void test_many(void **state)
{
	struct outputs_files files = {0};

	for (int i = 0; i < 100; i++) {
		char name[16];
		snprintf(name, sizeof(name), "f%02d", i);
		add_file(&files, name, i == 50 || i == 7 ? 2000 : 10);
	}
	AUTO_JSON struct json *results = results_json(&files, false);
	assert_int_equal(json_count(json_get(results, "entries")), RESULTS_KEPT);
	assert_int_equal(json_get_int(results, "files", 0), 100);
	assert_int_equal(json_get_int(results, "bytes", 0), 4980);
	check_files(&files, false, "f00 10 B | f01 10 B | f07 2.0 KiB | f50 2.0 KiB | and 96 more");
	add_file(&files, "a", 1);
	check_files(&files, true, "a 1 B | and more");
}

/* A record from elsewhere may say anything. */
static void test_invalid(void **state)
{
	static const char *const texts[] = {"null", "[]", "{}", "{\"files\": 1, \"entries\": {}}",
		"{\"files\": 1, \"entries\": [1]}",
		"{\"files\": 1, \"entries\": [{\"path\": \"a\", \"files\": -1, \"bytes\": 1}]}"};

	check_words(NULL, "");
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		AUTO_JSON struct json *json = NULL;
		ok(json_parse(texts[i], strlen(texts[i]), 1000, "text", &json, error));
		assert_false(results_is_valid(json));
		check_words(json, "");
	}
}

static char *printed(const struct json *json)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	json_print(json, &text);
	return buf_take(&text);
}

/* Of a run that has ended once, then it is in the record; of a running one each time. */
static void test_requested(void **state)
{
	AUTO_RUN struct run *run = new_run("a-22222");
	const struct run_list one = {.v = &run, .n = 1};

	json_set_str(json_sub(run->doc, "params"), "lr", "1");
	put("state/dlrun/runs/a-22222/outputs/a.txt", "1");
	put("state/dlrun/runs/a-22222/outputs/x/args.json", "{\"lr\": 2, \"seed\": 3}");
	put("state/dlrun/runs/a-22222/outputs/x/y/hparams.yaml", "seed: 4\nmodel: {width: 8}\n");
	runs_results(&session, &one, false, 10000);
	check_words(json_get(run->doc, RESULTS_MEMBER), "a.txt 1 B | x/ 2 files 46 B");
	AUTO_FREE char *params = printed(json_get(run->doc, "params"));
	assert_string_equal(params, "{\"lr\":\"1\",\"seed\":3,\"model.width\":8}");
	put("state/dlrun/runs/a-22222/outputs/b.txt", "1");
	runs_results(&session, &one, true, 10000);
	check_words(json_get(run->doc, RESULTS_MEMBER), "a.txt 1 B | x/ 2 files 46 B");
	run_set_state(run, RUN_RUNNING);
	runs_results(&session, &one, false, 10000);
	check_words(json_get(run->doc, RESULTS_MEMBER), "a.txt 1 B | x/ 2 files 46 B");
	runs_results(&session, &one, true, 10000);
	check_words(json_get(run->doc, RESULTS_MEMBER), "a.txt 1 B | b.txt 1 B | x/ 2 files 46 B");
	AUTO_FREE char *handle = mem_strdup(run_handle(run));
	run_add_attempt(run, handle);
	assert_false(results_is_valid(json_get(run->doc, RESULTS_MEMBER)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_top_level),
		cmocka_unit_test(test_notified),
		cmocka_unit_test(test_hostile_names),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_invalid),
		cmocka_unit_test_setup_teardown(test_requested, make_session, remove_session),
	};

	return cmocka_run_group_tests_name("results", tests, NULL, NULL);
}

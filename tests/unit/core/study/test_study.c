/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/stat.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"
#include "core/study/study.h"
#include "tmpfix.h"

static struct dirs dirs;

static int setup(void **state)
{
	int r = make_tmp(state);

	dirs = (struct dirs){.state = tmp};
	return r;
}

static void fill(struct study *study)
{
	AUTO_AXES struct axes *axes = axes_new();

	study->doc = json_object();
	study->parallel = 2;
	study->fail_fast = true;
	assert_int_equal(axes_add(axes, "lr=0.1,0.03", NULL), 0);
	assert_int_equal(axes_add(axes, "seed=1..3", NULL), 0);
	assert_int_equal(cases_make(axes, &(struct cases_options){0}, &study->cases, NULL), 0);
	study->spec.cwd = mem_strdup(".");
	strv_add(&study->spec.command, "train");
	strv_add(&study->spec.command, "--lr={lr}");
	strv_add(&study->spec.command, "{args}");
	strv_add(&study->spec.env, "NAME={study}/{index}");
}

static void test_written_and_read(void **state)
{
	AUTO_STUDY struct study study = {0}, got = {0};
	AUTO_SPEC struct spec spec = {0};
	char id[RUN_ID_SIZE];

	fill(&study);
	assert_int_equal(study_claim(&dirs, "tiger", &study, NULL), 0);
	assert_true(run_id_is_valid(study.id));
	assert_int_equal(strncmp(study.id, "tiger-", 6), 0);
	assert_int_equal(study_write(&dirs, &study, NULL), 0);
	assert_int_equal(study_read(&dirs, study.id, &got, NULL), 0);
	assert_string_equal(got.name, "tiger");
	assert_int_equal(got.parallel, 2);
	assert_true(got.fail_fast);
	assert_int_equal(got.cases.n, 6);
	assert_string_equal(cases_get(&got.cases, 4, 0), "0.03");
	assert_string_equal(cases_get(&got.cases, 4, 1), "2");

	assert_int_equal(study_member_spec(&got, 4, &spec, NULL), 0);
	assert_int_equal(spec.command.n, 3);
	assert_string_equal(spec.command.v[1], "--lr=0.03");
	assert_string_equal(spec.command.v[2], "--seed=2");
	AUTO_FREE char *name = mem_printf("NAME=%s/4", study.id);
	assert_string_equal(spec.env.v[0], name);
	assert_string_equal(spec.study.id, study.id);
	assert_int_equal(spec.study.index, 4);
	assert_int_equal(spec.study.size, 6);
	assert_int_equal(spec.study.parallel, 2);

	run_member_id(study.id, 4, id);
	AUTO_RUN struct run *run = run_new(id, "tiger-4");
	study_describe_member(&got, 4, run->doc);
	assert_string_equal(json_get_str(run->doc, "group"), study.id);
	assert_string_equal(json_get_str(json_get(run->doc, "params"), "lr"), "0.03");
	assert_int_equal(json_get_int(json_get(run->doc, "study"), "index", -1), 4);
}

static void test_words_of_all_members(void **state)
{
	AUTO_STUDY struct study study = {0};
	AUTO_STUDY_WORDS struct study_words words = {0}, plain = {0};

	fill(&study);
	strv_add(&study.spec.env, "MODE=fast");
	assert_int_equal(study_claim(&dirs, "tiger", &study, NULL), 0);
	assert_int_equal(study_all_words(&study, &words, NULL), 0);
	assert_int_equal(words.n, 6);
	assert_string_equal(words.commands[4].v[1], "--lr=0.03");
	assert_string_equal(words.commands[5].v[2], "--seed=3");
	assert_string_equal(json_get_str(words.params[5], "seed"), "3");
	/* Those that are the same for all are not among them. */
	AUTO_FREE char *name = mem_printf("NAME=%s/5", study.id);
	assert_int_equal(words.env[5].n, 1);
	assert_string_equal(words.env[5].v[0], name);

	strv_done(&study.spec.env);
	strv_add(&study.spec.env, "MODE=fast");
	assert_int_equal(study_all_words(&study, &plain, NULL), 0);
	assert_null(plain.env);
}

static void test_names_of_members(void **state)
{
	AUTO_STUDY struct study study = {0};
	AUTO_RUN struct run *run = run_new("tiger-0-4k2x9", "tiger-0");

	fill(&study);
	json_set_str(study.doc, "name_template", "lr={lr}/{seed}");
	assert_int_equal(study_claim(&dirs, "tiger", &study, NULL), 0);
	study_describe_member(&study, 0, run->doc);
	assert_string_equal(run_name(run), "lr-0-1-1");
}

static void test_long_names_have_room_for_an_index(void **state)
{
	AUTO_STUDY struct study study = {0};
	char id[RUN_ID_SIZE];

	assert_int_equal(
		study_claim(&dirs, "a234567890123456789012345678901234567890", &study, NULL), 0);
	run_member_id(study.id, CASES_MAX - 1, id);
	assert_true(run_id_is_valid(id));
	assert_int_equal(strlen(study.name), RUN_NAME_MAX - RUN_INDEX_MAX);
	AUTO_STUDY struct study dashes = {0};
	assert_int_equal(
		study_claim(&dirs, "a23456789012345678901234567890---x", &dashes, NULL), 0);
	assert_string_equal(dashes.name, "a23456789012345678901234567890---x");
	AUTO_STUDY struct study cut = {0};
	assert_int_equal(
		study_claim(&dirs, "a2345678901234567890123456789012-----x", &cut, NULL), 0);
	assert_string_equal(cut.name, "a2345678901234567890123456789012");
}

static void write_study(const char *id, const char *text)
{
	AUTO_FREE char *dir = dirs_study(&dirs, id), *path = mem_printf("%s/study.json", dir);

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void test_damaged(void **state)
{
#define HEAD "{\"schema\":\"dlrun/study/v1\",\"id\":\"tiger-4k2x9\",\"name\":\"tiger\","
#define SPEC "\"spec\":{\"schema\":\"dlrun/spec/v1\",\"command\":[\"a\"],\"cwd\":\".\"}"
	static const char *const bad[] = {"", "{", "[]", "{\"schema\":\"dlrun/study/v2\"}",
		HEAD SPEC "}", HEAD SPEC ",\"keys\":[\"a\"],\"cases\":[]}",
		HEAD SPEC ",\"keys\":[\"a\"],\"cases\":[[\"1\",\"2\"]]}",
		HEAD SPEC ",\"keys\":[\"a\"],\"cases\":[[1]]}",
		HEAD SPEC ",\"keys\":[\"a\"],\"cases\":[null]}",
		HEAD "\"keys\":[\"a\"],\"cases\":[[\"1\"]]}"};
	static const char good[] = HEAD SPEC ",\"keys\":[\"a\"],\"cases\":[[\"1\"]]}";
	AUTO_STUDY struct study study = {0};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_ERR struct err err = {0};
		write_study("tiger-4k2x9", bad[i]);
		assert_true(study_read(&dirs, "tiger-4k2x9", &study, &err) < 0);
		assert_int_equal(err.id, E_DATA);
		assert_int_equal(strncmp(err.message, "study tiger-4k2x9: ", 19), 0);
	}
	write_study("tiger-4k2x9", good);
	assert_int_equal(study_read(&dirs, "tiger-4k2x9", &study, NULL), 0);
}

static void test_not_there(void **state)
{
	static const char *const ids[] = {"tiger-4k2x9", "tiger", "../x", ""};
	AUTO_STUDY struct study study = {0};

	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		AUTO_ERR struct err err = {0};
		assert_true(study_read(&dirs, ids[i], &study, &err) < 0);
		assert_int_equal(err.id, E_RUN_NOT_FOUND);
	}
}

static void test_cancelled_and_removed(void **state)
{
	AUTO_STUDY struct study study = {0};

	fill(&study);
	assert_int_equal(study_claim(&dirs, "tiger", &study, NULL), 0);
	assert_true(study_is_held(&dirs, study.id));
	assert_int_equal(study_write(&dirs, &study, NULL), 0);
	assert_false(study_is_cancelled(&dirs, study.id));
	assert_int_equal(study_set_cancelled(&dirs, study.id, true, NULL), 0);
	assert_true(study_is_cancelled(&dirs, study.id));
	assert_int_equal(study_set_cancelled(&dirs, study.id, false, NULL), 0);
	assert_false(study_is_cancelled(&dirs, study.id));
	assert_int_equal(study_set_cancelled(&dirs, "my-group", true, NULL), 0);
	assert_int_equal(study_set_cancelled(&dirs, "other-22222", true, NULL), 0);
	AUTO_FREE char *dir = dirs_study(&dirs, study.id);
	assert_int_equal(study_remove(&dirs, study.id, NULL), 0);
	assert_int_equal(study_remove(&dirs, study.id, NULL), 0);
	assert_int_not_equal(access(dir, F_OK), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_written_and_read),
		TEST(test_words_of_all_members),
		TEST(test_names_of_members),
		TEST(test_long_names_have_room_for_an_index),
		TEST(test_damaged),
		TEST(test_not_there),
		TEST(test_cancelled_and_removed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

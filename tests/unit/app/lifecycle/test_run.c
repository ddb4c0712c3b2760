/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "app/lifecycle/why.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/run.h"

#define ID "resnet-3k2f9"

/*
 * States
 */

static void test_states_have_names(void **state)
{
	static const char *const names[RUN_STATES] = {"preparing", "queued", "starting", "running",
		"succeeded", "failed", "cancelled", "lost", "unknown"};

	for (unsigned i = 0; i < RUN_STATES; i++) {
		assert_string_equal(run_state_name((enum run_state)i), names[i]);
		assert_int_equal(run_state_find(names[i]), i);
	}
	assert_int_equal(run_state_find("Failed"), RUN_UNKNOWN);
	assert_int_equal(run_state_find(""), RUN_UNKNOWN);
	assert_int_equal(run_state_find(NULL), RUN_UNKNOWN);
}

static void test_state_machine(void **state)
{
	/* Rows: from; columns: preparing queued starting running succeeded failed cancelled lost
	 * unknown. */
	static const char *const allowed[RUN_STATES] = {
		[RUN_PREPARING] = ".xxxxxxxx",
		[RUN_QUEUED] = "..xxxxxxx",
		[RUN_STARTING] = ".x.xxxxxx",
		[RUN_RUNNING] = ".x..xxxxx",
		[RUN_SUCCEEDED] = ".........",
		[RUN_FAILED] = ".x.......",
		[RUN_CANCELLED] = ".x.......",
		[RUN_LOST] = ".x.......",
		[RUN_UNKNOWN] = "xxxxxxxx.",
	};

	for (unsigned from = 0; from < RUN_STATES; from++)
		for (unsigned to = 0; to < RUN_STATES; to++)
			if (run_state_may_follow((enum run_state)from, (enum run_state)to) !=
				(allowed[from][to] == 'x'))
				fail_msg("%s to %s", run_state_name((enum run_state)from),
					run_state_name((enum run_state)to));
}

static void test_final_states(void **state)
{
	for (unsigned i = 0; i < RUN_STATES; i++)
		assert_int_equal(
			run_state_is_final((enum run_state)i), i >= RUN_SUCCEEDED && i <= RUN_LOST);
}

/*
 * Records
 */

static void test_a_new_record_has_every_member(void **state)
{
	AUTO_RUN struct run *run = run_new(ID, "resnet");
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 16);
	json_print(run->doc, &text);
	assert_string_equal(text.data,
		"{\"schema\":\"dlrun/run/v1\",\"id\":\"resnet-3k2f9\",\"name\":\"resnet\","
		"\"state\":\"preparing\",\"cancelling\":false,\"text\":null,\"command\":[],"
		"\"params\":{},\"tags\":{},\"group\":null,\"parent\":null,\"user\":null,"
		"\"note\":\"\",\"target\":{\"kind\":null,\"name\":null,\"context\":null,"
		"\"namespace\":null,\"hosts\":[]},\"ranks\":[],\"origin\":{\"machine\":null,"
		"\"root\":null,\"cwd\":null},\"snapshot\":{\"id\":null,\"commit\":null,"
		"\"dirty\":null,\"ref\":null,\"record\":null,\"files\":null,\"bytes\":null,"
		"\"left_out\":null},\"image\":{\"ref\":null,\"base\":null,\"layers\":[],"
		"\"layers_pushed\":null,\"bytes_pushed\":null},\"resources\":{\"nodes\":null,"
		"\"gpus\":null,\"gpu_model\":null,\"cpus\":null,\"memory\":null},\"attempts\":[],"
		"\"exit\":null,\"usage\":{\"cpu_s\":null,\"memory_peak_bytes\":null,"
		"\"gpu_busy\":null,\"gpu_memory_peak_bytes\":null,\"energy_j\":null},"
		"\"metrics\":{},\"links\":[],\"results\":null,\"times\":{\"submitted\":null,\"started\":null,"
		"\"ended\":null},\"phases_ms\":{\"snapshot\":null,\"pack\":null,\"push\":null,"
		"\"submit\":null,\"total\":null},\"warnings\":[]}");
	assert_string_equal(run_id(run), ID);
	assert_string_equal(run_name(run), "resnet");
	assert_int_equal(run_state(run), RUN_PREPARING);
	assert_int_equal(run_submitted_ms(run), 0);
	assert_null(run_target(run));
	assert_null(run_handle(run));
	assert_null(run_image_digest(run));
	assert_int_equal(run_attempts(run), 0);
	assert_false(run_cancelling(run));
}

static struct json *parse(const char *text)
{
	struct json *json;

	assert_int_equal(json_parse(text, strlen(text), 1 << 16, "test", &json, NULL), 0);
	return json;
}

static void test_records_are_checked(void **state)
{
	static const char *const bad[] = {
		"{}",
		"[]",
		"{\"schema\":\"dlrun/run/v2\",\"id\":\"" ID "\",\"state\":\"failed\"}",
		"{\"schema\":\"dlrun/run/v1\",\"id\":\"../../etc\",\"state\":\"failed\"}",
		"{\"schema\":\"dlrun/run/v1\",\"id\":7,\"state\":\"failed\"}",
		"{\"schema\":\"dlrun/run/v1\",\"id\":\"" ID "\"}",
	};
	struct run *run;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		AUTO_ERR struct err err = {0};
		assert_int_equal(run_from_json(parse(bad[i]), NULL, &run, &err), -ERR_IO);
		assert_int_equal(err.id, E_DATA);
	}
	assert_int_equal(run_from_json(parse("{\"schema\":\"dlrun/run/v1\",\"id\":\"" ID
					     "\",\"state\":\"of a later dlrun\",\"exit\":[]}"),
				 parse("{}"), &run, NULL),
		0);
	assert_int_equal(run_state(run), RUN_UNKNOWN);
	assert_int_equal(run_exit_status(run), 125);
	run_free(run);
	run_free(NULL);
}

static void test_attempts(void **state)
{
	AUTO_RUN struct run *run = run_new(ID, "resnet");
	struct run_exit exit = {
		.known = true, .code = 143, .signal = 15, .origin = "job", .reason = "Signal"};
	struct run_exit got;

	run_add_attempt(run, "first");
	run_set_attempt_exit(run, &exit, 1000, 2500);
	run_add_attempt(run, "second");
	assert_int_equal(run_attempts(run), 2);
	assert_string_equal(run_handle(run), "second");
	exit.known = false;
	run_set_attempt_exit(run, &exit, 5000, 0);
	AUTO_BUF struct buf text;
	buf_init(&text, 1 << 16);
	json_print(json_get(run->doc, "attempts"), &text);
	assert_string_equal(text.data,
		"[{\"number\":1,\"handle\":\"first\",\"exit\":{\"code\":143,\"signal\":15,"
		"\"origin\":\"job\",\"reason\":\"Signal\"},\"started\":\"1970-01-01T00:00:01.000Z\","
		"\"ended\":\"1970-01-01T00:00:02.500Z\"},"
		"{\"number\":2,\"handle\":\"second\",\"exit\":null,"
		"\"started\":\"1970-01-01T00:00:05.000Z\",\"ended\":null}]");
	assert_int_equal(run_started_ms(run), 1000);
	assert_int_equal(run_ended_ms(run), 0);
	run_get_exit(run, &got);
	assert_false(got.known);
}

static void test_exit_status(void **state)
{
	static const struct {
		enum run_state state;
		struct run_exit exit;
		int status;
	} cases[] = {
		{RUN_SUCCEEDED, {true, 0, 0, "job", "Completed"}, 0},
		{RUN_FAILED, {true, 3, 0, "job", "Error"}, 3},
		{RUN_FAILED, {true, 137, 9, "job", "Signal"}, 137},
		{RUN_FAILED, {true, 124, 15, "dlrun", "Timeout"}, 124},
		{RUN_FAILED, {true, 127, 0, "dlrun", "NotFound"}, 127},
		{RUN_FAILED, {true, 125, 0, "dlrun", "Interrupted"}, 125},
		{RUN_FAILED, {true, 0, 0, "job", "Completed"}, 125},
		{RUN_FAILED, {.known = false}, 125},
		{RUN_CANCELLED, {true, 0, 0, "job", "Completed"}, 143},
		{RUN_LOST, {true, 0, 0, "job", "Completed"}, 125},
		{RUN_UNKNOWN, {.known = false}, 125},
		{RUN_RUNNING, {.known = false}, 125},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		AUTO_RUN struct run *run = run_new(ID, "resnet");
		struct run_exit got;
		run_set_state(run, cases[i].state);
		run_set_exit(run, &cases[i].exit);
		assert_int_equal(run_exit_status(run), cases[i].status);
		run_get_exit(run, &got);
		assert_int_equal(got.known, cases[i].exit.known);
		if (got.known)
			assert_string_equal(got.reason, cases[i].exit.reason);
	}
}

static void test_image_digest(void **state)
{
	AUTO_RUN struct run *run = run_new(ID, "resnet");

	json_set_str(json_sub(run->doc, "image"), "ref", "oci:/a@b/c@sha256:00");
	assert_string_equal(run_image_digest(run), "sha256:00");
}

/* --from needs an image. */
static void test_why_says_how_to_go_again(void **state)
{
	static const struct run_exit stopped = {true, 125, 0, "dlrun", "Interrupted"};
	AUTO_RUN struct run *run = run_new(ID, "resnet");
	AUTO_BUF struct buf sentence, hint;
	struct json *command = json_array();

	buf_init(&sentence, 4096);
	buf_init(&hint, 4096);
	json_add_str(command, "echo");
	json_add_str(command, "a b");
	json_set(run->doc, "command", command);
	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &stopped);
	run_why(run, &sentence, &hint);
	assert_string_equal(hint.data, "dlrun submit -- echo 'a b'");
	buf_reset(&hint);
	json_set_bool(run->doc, "shell", true);
	run_why(run, &sentence, &hint);
	assert_string_equal(hint.data, "dlrun submit");
	buf_reset(&hint);
	json_set_str(json_sub(run->doc, "image"), "ref", "oci:/a@sha256:00");
	run_why(run, &sentence, &hint);
	/* A run that was never sent is refused by restart. */
	assert_string_equal(hint.data, "dlrun submit --from " ID);
	buf_reset(&hint);
	run_add_attempt(run, "handle");
	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &stopped);
	run_why(run, &sentence, &hint);
	assert_string_equal(hint.data, "dlrun restart " ID);
}

/*
 * Names and ids
 */

static void test_names(void **state)
{
	static const struct {
		const char *wanted, *name;
		bool mapped;
	} cases[] = {
		{"train", "train", false},
		{"a", "a", false},
		{"a--b-", "a--b-", false},
		{"Train_V2", "train-v2", true},
		{"3d-unet", "r3d-unet", true},
		{"  my  run!!", "my-run", true},
		{"-x-", "x", true},
		{"caf\xc3\xa9 noir", "caf-noir", true},
		{"a23456789012345678901234567890123456789",
			"a23456789012345678901234567890123456789", false},
		{"a234567890123456789012345678901234567890",
			"a234567890123456789012345678901234567890", false},
		{"a2345678901234567890123456789012345678901",
			"a234567890123456789012345678901234567890", true},
		{"3456789012345678901234567890123456789012",
			"r345678901234567890123456789012345678901", true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char name[RUN_NAME_MAX + 1], id[RUN_ID_SIZE];
		bool mapped;
		assert_int_equal(run_name_map(cases[i].wanted, name, &mapped, NULL), 0);
		assert_string_equal(name, cases[i].name);
		assert_int_equal(mapped, cases[i].mapped);
		run_make_id(name, id);
		assert_true(run_id_is_valid(id));
	}
}

static void test_names_of_nothing(void **state)
{
	static const char *const bad[] = {"", "-", "...", "\xe6\x97\xa5\xe6\x9c\xac", "\x1b[31m"};
	char name[RUN_NAME_MAX + 1];
	bool mapped;

	for (size_t i = 0; i + 1 < sizeof(bad) / sizeof(*bad); i++) {
		AUTO_ERR struct err err = {0};
		assert_int_equal(run_name_map(bad[i], name, &mapped, &err), -ERR_USAGE);
		assert_int_equal(err.id, E_RUN_NAME);
	}
	assert_int_equal(run_name_map("\x1b[31m", name, &mapped, NULL), 0);
	assert_string_equal(name, "r31m");
}

static void test_ids(void **state)
{
	static const char *const good[] = {ID, "a-22222", "a-b-zzzzz", "a--22222",
		"a234567890123456789012345678901234567890-22222"};
	static const char *const bad[] = {"", "a", "22222", "-22222", "a22222", "a-2222",
		"a-222222", "a-22221", "a-2222l", "a-2222i", "a-2222o", "A-22222", "2-22222",
		"a_-22222", "a/b-22222", "a-22222\n",
		"a2345678901234567890123456789012345678901-22222", NULL};
	char id[RUN_ID_SIZE], other[RUN_ID_SIZE];

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(run_id_is_valid(good[i]));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(run_id_is_valid(bad[i]));
	run_make_id("resnet", id);
	assert_int_equal(strlen(id), strlen(ID));
	assert_int_equal(strncmp(id, "resnet-", 7), 0);
	run_make_id("resnet", other);
	assert_string_not_equal(id, other);
	run_member_id("tiger-4k2x9", 12345, id);
	assert_string_equal(id, "tiger-12345-4k2x9");
	assert_true(run_id_is_valid(id));
}

/*
 * Parameters
 */

static void expect_params(const char *const *words, const char *want)
{
	AUTO_STRV struct strv command = {0};
	AUTO_BUF struct buf text;

	for (; *words; words++)
		strv_add(&command, *words);
	AUTO_JSON struct json *params = run_params(&command, NULL);
	buf_init(&text, 1 << 20);
	json_print(params, &text);
	assert_string_equal(text.data, want);
}
#define EXPECT_PARAMS(want, ...) expect_params((const char *const[]){__VA_ARGS__, NULL}, want)

static void test_params(void **state)
{
	EXPECT_PARAMS("{\"lr\":\"0.1\",\"epochs\":\"3\",\"model.width\":\"64\"}", "python",
		"train.py", "--lr", "0.1", "--epochs=3", "model.width=64");
	EXPECT_PARAMS(
		"{\"lr\":\"-3e-4\",\"name\":\"\"}", "x", "--fp16", "--lr", "-3e-4", "--name=");
	EXPECT_PARAMS("{\"lr\":\"2\"}", "x", "--lr", "1", "--lr", "2");
	EXPECT_PARAMS("{\"db\":\"a=b\",\"new\":\"1\",\"force\":\"2\"}", "x", "db=a=b", "+new=1",
		"++force=2");
	EXPECT_PARAMS("{}", "a=b", "--last");
	EXPECT_PARAMS("{}", "x", "--", "-k", "v", "--a", "--b", "--=v", "1=2", "a b=c");
	expect_params((const char *const[]){NULL}, "{}");
}

static void test_params_of_any_bytes(void **state)
{
	EXPECT_PARAMS("{\"tag\":\"\xef\xbf\xbd\",\"tag_b64\":\"/w==\"}", "x", "--tag=\xff");
}

static void test_params_have_a_limit(void **state)
{
	AUTO_STRV struct strv command = {0};

	for (int i = 0; i < 3000; i++)
		strv_addf(&command, "k%d=%d", i, i);
	AUTO_JSON struct json *params = run_params(&command, NULL);
	assert_int_equal(json_count(params), 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_states_have_names),
		cmocka_unit_test(test_state_machine),
		cmocka_unit_test(test_final_states),
		cmocka_unit_test(test_a_new_record_has_every_member),
		cmocka_unit_test(test_records_are_checked),
		cmocka_unit_test(test_attempts),
		cmocka_unit_test(test_exit_status),
		cmocka_unit_test(test_image_digest),
		cmocka_unit_test(test_why_says_how_to_go_again),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_names_of_nothing),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_params),
		cmocka_unit_test(test_params_of_any_bytes),
		cmocka_unit_test(test_params_have_a_limit),
	};

	return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}

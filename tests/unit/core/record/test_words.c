/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/reply.h"

static void expect_json(const struct json *json, const char *want)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 16);
	json_print(json, &text);
	assert_string_equal(text.data, want);
}

static struct json *parse(const char *text)
{
	struct json *json;

	assert_int_equal(json_parse(text, strlen(text), 1 << 16, "test", &json, NULL), 0);
	return json;
}

/*
 * Words
 */

static void test_text_stays_text(void **state)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_STRV struct strv words = {0}, got = {0};

	words_set(json, "w", &words);
	expect_json(json, "{\"w\":[]}");
	strv_add(&words, "a b");
	strv_add(&words, "");
	strv_add(&words, "\xc3\xa9\n");
	words_set(json, "w", &words);
	expect_json(json, "{\"w\":[\"a b\",\"\",\"\xc3\xa9\\n\"]}");
	assert_int_equal(words_get(json, "w", &got, NULL), 0);
	assert_int_equal(got.n, 3);
	assert_string_equal(got.v[2], "\xc3\xa9\n");
	assert_int_equal(words_get(json, "missing", &got, NULL), 0);
	assert_int_equal(got.n, 3);
}

static void test_bytes_are_kept(void **state)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_STRV struct strv words = {0}, got = {0};

	strv_add(&words, "a");
	strv_add(&words, "\xff");
	words_set(json, "w", &words);
	expect_json(json, "{\"w\":[\"a\",\"\xef\xbf\xbd\"],\"w_b64\":[\"YQ==\",\"/w==\"]}");
	assert_int_equal(words_get(json, "w", &got, NULL), 0);
	assert_string_equal(got.v[0], "a");
	assert_string_equal(got.v[1], "\xff");
}

static void test_lists_that_are_none(void **state)
{
	static const char *const bad[] = {"{\"w\":7}", "{\"w\":\"a\"}", "{\"w\":[1]}",
		"{\"w\":[null]}", "{\"w\":{}}", "{\"w\":[],\"w_b64\":[\"a\"]}",
		"{\"w\":[],\"w_b64\":[\"YQA=\"]}", "{\"w\":[],\"w_b64\":\"YQ==\"}"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		AUTO_JSON struct json *json = parse(bad[i]);
		AUTO_STRV struct strv got = {0};
		AUTO_ERR struct err err = {0};
		assert_int_equal(words_get(json, "w", &got, &err), -ERR_IO);
		assert_int_equal(err.id, E_DATA);
	}
	AUTO_JSON struct json *json = parse("{\"w\":null}");
	AUTO_STRV struct strv got = {0};
	assert_int_equal(words_get(json, "w", &got, NULL), 0);
}

static void test_one(void **state)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_FREE char *text = NULL, *bytes = NULL, *nothing = NULL, *damaged = NULL;

	json_set_bytes(json, "text", "abc", 3);
	json_set_bytes(json, "bytes", "a\xfe", 2);
	json_set_str(json, "bad", "x");
	json_set_str(json, "bad_b64", "?");
	text = words_get_one(json, "text");
	bytes = words_get_one(json, "bytes");
	nothing = words_get_one(json, "nothing");
	damaged = words_get_one(json, "bad");
	assert_string_equal(text, "abc");
	assert_string_equal(bytes, "a\xfe");
	assert_null(nothing);
	assert_null(damaged);
}

static void check_reason(const char *text, const char *want)
{
	AUTO_FREE char *said = words_reason_now(text);

	assert_string_equal(said, want);
}

static void test_reason(void **state)
{
	char at[CLOCK_TEXT_SIZE], later[CLOCK_TEXT_SIZE];

	clock_format(clock_wall_ms() - 4 * 60 * 60 * 1000 - 1000, at);
	clock_format(clock_wall_ms() + 600 * 1000, later);
	AUTO_FREE char *one =
		mem_printf("GPU 0 is in use by q1 since %.19sZ; 1 run is before it", at);
	AUTO_FREE char *two = mem_printf("A by a since %.19sZ; B by b since %.19sZ", at, at);
	AUTO_FREE char *ahead = mem_printf("A by a since %.19sZ", later);
	check_reason(one, "GPU 0 is in use by q1, running for 4 h; 1 run is before it");
	check_reason(two, "A by a, running for 4 h; B by b, running for 4 h");
	/* A clock that is ahead, and what is no time. */
	check_reason(ahead, ahead);
	check_reason("", "");
	check_reason("busy since yesterday; it is cold since ",
		"busy since yesterday; it is cold since ");
}

/*
 * Environments
 */

static void test_env(void **state)
{
	AUTO_STRV struct strv env = {0};
	static const char *const list[] = {"A=1", "AB=2", "EMPTY=", NULL};

	env_set(&env, "A=1", false);
	env_set(&env, "AB=2", false);
	env_set(&env, "A=3", true);
	assert_string_equal(env.v[0], "A=1");
	env_set(&env, "A=3=4", false);
	assert_string_equal(env.v[0], "A=3=4");
	assert_int_equal(env.n, 2);
	env_unset(&env, "A");
	env_unset(&env, "B");
	assert_int_equal(env.n, 1);
	assert_string_equal(env.v[0], "AB=2");
	assert_null(env.v[1]);
	assert_string_equal(env_get(list, "A"), "1");
	assert_string_equal(env_get(list, "AB"), "2");
	assert_string_equal(env_get(list, "EMPTY"), "");
	assert_null(env_get(list, "B"));
	assert_null(env_get(NULL, "A"));
}

/*
 * Replies
 */

/* What went through a pipe. */
static int round_trip(
	int r, const struct err *sent, struct json *result, struct json **ret, struct err *err)
{
	AUTO_BUF struct buf line = {0};
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	reply_write(fds[1], r, sent, result);
	close(fds[1]);
	assert_int_equal(fs_read_fd(fds[0], "pipe", REPLY_MAX, &line, NULL), 0);
	close(fds[0]);
	assert_int_equal(line.data[line.len - 1], '\n');
	return reply_parse(line.data, line.len, "the worker", ret, err);
}

static void test_reply(void **state)
{
	AUTO_ERR struct err sent = {0}, got = {0};
	AUTO_JSON struct json *result = NULL;
	struct json *members = json_object();

	json_set_int(members, "ms", 5);
	assert_int_equal(round_trip(0, NULL, members, &result, &got), 0);
	assert_int_equal(json_get_int(result, "ms", 0), 5);
	err_set(&sent, E_IO_FULL, "no \"space\"\xff");
	err_evidence(&sent, "first");
	err_evidence(&sent, "second");
	err_hint(&sent, "dlrun gc");
	assert_int_equal(round_trip(-ERR_IO, &sent, NULL, NULL, &got), -ERR_IO);
	assert_int_equal(got.id, E_IO_FULL);
	assert_string_equal(got.message, "no \"space\"\xef\xbf\xbd");
	assert_int_equal(got.n_evidence, 2);
	assert_string_equal(got.evidence[1], "second");
	assert_string_equal(got.hint, "dlrun gc");
}

static void test_replies_that_are_none(void **state)
{
	static const char *const bad[] = {"", "{\"ok\":true}", "\n", "nonsense\n", "{}\n",
		"{\"ok\":false}\n",
		"{\"ok\":false,\"error\":{\"id\":\"no.such\",\"message\":\"x\"}}\n",
		"{\"ok\":false,\"error\":{\"id\":\"io\"}}\n"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		AUTO_ERR struct err err = {0};
		assert_int_equal(
			reply_parse(bad[i], strlen(bad[i]), "the worker", NULL, &err), -ERR_IO);
		assert_int_equal(err.id, E_RUN_START);
		assert_non_null(strstr(err.message, "the worker"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_stays_text),
		cmocka_unit_test(test_bytes_are_kept),
		cmocka_unit_test(test_lists_that_are_none),
		cmocka_unit_test(test_one),
		cmocka_unit_test(test_reason),
		cmocka_unit_test(test_env),
		cmocka_unit_test(test_reply),
		cmocka_unit_test(test_replies_that_are_none),
	};

	return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}

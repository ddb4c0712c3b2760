/* SPDX-License-Identifier: Apache-2.0 */
/* Notices, with a shell as the program that gets them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>

#include "app/autoscale/notice.h"
#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "tests/unit/tmpfix.h"
#include "tests/unit/until.h"

enum { FILE_MAX = 1 << 20 };

struct fix {
	struct loop *loop;
	struct notices *notices;
	struct strv problems;
};

static void on_problem(void *ctx, const char *text)
{
	strv_add(&((struct fix *)ctx)->problems, text);
}

/* script: run by a shell in which $1 is the directory. */
static void open_fix(struct fix *fix, const char *script, int64_t program_ms)
{
	AUTO_STRV struct strv argv = {0};

	*fix = (struct fix){.loop = loop_new()};
	strv_add(&argv, "/bin/sh");
	strv_add(&argv, "-c");
	strv_add(&argv, script);
	strv_add(&argv, "sh");
	strv_add(&argv, tmp);
	const struct notices_options options = {.loop = fix->loop,
		.argv = &argv,
		.cluster = "lab",
		.program_ms = program_ms,
		.problem = on_problem,
		.ctx = fix};
	fix->notices = notices_new(&options);
}

static void close_fix(struct fix *fix)
{
	notices_free(fix->notices);
	strv_done(&fix->problems);
	loop_free(fix->loop);
}

#define RUN_UNTIL(fix, condition)                                                                  \
	UNTIL_BY(assert_int_equal(loop_pause((fix)->loop, TURN_MS, NULL, NULL), 0), condition)

/* The lines that the program was given. */
static void read_lines(struct strv *ret)
{
	AUTO_FREE char *path = fs_join(tmp, "got");
	AUTO_BUF struct buf text = buf_with(FILE_MAX);

	strv_done(ret);
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0)
		return;
	for (char *line = text.data, *end; (end = strchr(line, '\n')); line = end + 1)
		strv_add_take(ret, mem_strndup(line, (size_t)(end - line)));
}

static size_t count_lines(void)
{
	AUTO_STRV struct strv lines = {0};

	read_lines(&lines);
	return lines.n;
}

static struct json *parse(const char *line)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(line, strlen(line), FILE_MAX, "a line", &json, NULL), 0);
	return json;
}

#define KEEPS "cat >> \"$1/got\""

static void test_line(void **state)
{
	AUTO_STRV struct strv lines = {0};
	struct fix fix;
	int64_t at_ms;

	open_fix(&fix, KEEPS, 0);
	notices_add(fix.notices, &(struct notice){.kind = "grow",
					 .group = "gpu-a",
					 .owner = "ml/train",
					 .text = "it said \"no\"\nand\x01 left"});
	notices_add(fix.notices, &(struct notice){.kind = "note", .text = "another"});
	RUN_UNTIL(&fix, count_lines() == 2);
	read_lines(&lines);
	AUTO_JSON struct json *first = parse(lines.v[0]), *second = parse(lines.v[1]);
	assert_int_equal(json_count(first), 7);
	assert_int_equal(clock_parse(json_get_str(first, "time"), &at_ms, NULL), 0);
	assert_string_equal(json_get_str(first, "cluster"), "lab");
	assert_string_equal(json_get_str(first, "kind"), "grow");
	assert_string_equal(json_get_str(first, "group"), "gpu-a");
	assert_string_equal(json_get_str(first, "owner"), "ml/train");
	assert_string_equal(json_get_str(first, "text"), "it said \"no\"\nand\x01 left");
	assert_int_equal(json_get_int(first, "lost", -1), 0);
	assert_int_equal(json_count(second), 5);
	assert_string_equal(json_get_str(second, "text"), "another");
	close_fix(&fix);
}

/* Of equal ones the first is told; another group makes another one. */
static void test_equal(void **state)
{
	struct fix fix;

	open_fix(&fix, KEEPS, 0);
	for (int i = 0; i < 5; i++) {
		notices_add(fix.notices,
			&(struct notice){.kind = "grow", .group = "a", .text = "no capacity"});
		notices_add(fix.notices,
			&(struct notice){.kind = "grow", .group = "b", .text = "no capacity"});
	}
	notices_add(fix.notices, &(struct notice){.kind = "end", .text = "the last one"});
	RUN_UNTIL(&fix, count_lines() == 3);
	assert_int_equal(notices_lost(fix.notices), 0);
	close_fix(&fix);
}

/* A reason in which seconds are counted down is told once, purchases each. */
static void test_lasting(void **state)
{
	struct fix fix;

	open_fix(&fix, KEEPS, 0);
	for (int i = 8; i < 12; i++) {
		AUTO_FREE char *text = mem_printf("it is not asked for %d s more", i);
		notices_add(fix.notices, &(struct notice){.kind = "not_helped",
						 .group = "a",
						 .text = text,
						 .is_lasting = true});
		notices_add(
			fix.notices, &(struct notice){.kind = "grow", .group = "a", .text = text});
	}
	notices_add(fix.notices, &(struct notice){.kind = "not_helped",
					 .group = "a",
					 .text = "its maximum is 8",
					 .is_lasting = true});
	RUN_UNTIL(&fix, count_lines() == 6);
	close_fix(&fix);
}

/* While the program runs they wait, and more than may wait are counted in the next one. */
static void test_queue(void **state)
{
	AUTO_STRV struct strv lines = {0};
	struct fix fix;

	open_fix(&fix, "while [ ! -e \"$1/go\" ]; do sleep 0.01; done; " KEEPS, 0);
	for (int i = 0; i < NOTICE_QUEUE_MAX + 8; i++) {
		AUTO_FREE char *text = mem_printf("text %d", i);
		notices_add(fix.notices, &(struct notice){.kind = "note", .text = text});
	}
	assert_int_equal(notices_lost(fix.notices), 7);
	AUTO_FREE char *go = fs_join(tmp, "go");
	assert_int_equal(fs_replace(go, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	RUN_UNTIL(&fix, count_lines() == NOTICE_QUEUE_MAX + 1);
	read_lines(&lines);
	AUTO_JSON struct json *first = parse(lines.v[0]), *second = parse(lines.v[1]);
	assert_int_equal(json_get_int(first, "lost", -1), 0);
	assert_int_equal(json_get_int(second, "lost", -1), 7);
	assert_string_equal(json_get_str(second, "text"), "text 1");
	close_fix(&fix);
}

/* Too long a text is cut between characters, whatever its escapes take. */
static void test_long(void **state)
{
	static const char *const parts[] = {"x", "\x01", "\xe2\x82\xac", "\""};

	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		AUTO_STRV struct strv lines = {0};
		AUTO_BUF struct buf text = buf_with(FILE_MAX);
		struct fix fix;
		open_fix(&fix, "cat > \"$1/new\" && mv \"$1/new\" \"$1/got\"", 0);
		for (int k = 0; k < 20000; k++)
			buf_adds(&text, parts[i]);
		notices_add(fix.notices, &(struct notice){.kind = text.data,
						 .group = text.data,
						 .owner = text.data,
						 .text = text.data});
		RUN_UNTIL(&fix, count_lines() == 1);
		read_lines(&lines);
		assert_true(strlen(lines.v[0]) < NOTICE_LINE_MAX);
		AUTO_JSON struct json *json = parse(lines.v[0]);
		const char *got = json_get_str(json, "text");
		assert_true(strlen(got) > 100 && str_starts(text.data, got));
		AUTO_FREE char *path = fs_join(tmp, "got");
		unlink(path);
		close_fix(&fix);
	}
}

static const struct {
	const char *script, *problem;
	int64_t program_ms;
} failing[] = {
	{"exit 3", "the program of notify: exit status 3", 0},
	{"kill -9 $$", "the program of notify: killed by SIGKILL", 0},
	{"exec sleep 600", "the program of notify: it did not end in time", 100},
};

/* A program that fails is told once, and the next notice is sent for all that. */
static void test_failures(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(failing); i++) {
		struct fix fix;
		open_fix(&fix, failing[i].script, failing[i].program_ms);
		notices_add(fix.notices, &(struct notice){.kind = "note", .text = "one"});
		notices_add(fix.notices, &(struct notice){.kind = "note", .text = "two"});
		RUN_UNTIL(&fix, notices_lost(fix.notices) == 2);
		assert_int_equal(fix.problems.n, 1);
		assert_string_equal(fix.problems.v[0], failing[i].problem);
		close_fix(&fix);
	}
}

static void test_no_program(void **state)
{
	AUTO_STRV struct strv argv = {0};
	struct fix fix = {.loop = loop_new()};

	strv_add(&argv, "/nonexistent/program");
	const struct notices_options options = {.loop = fix.loop,
		.argv = &argv,
		.cluster = "lab",
		.problem = on_problem,
		.ctx = &fix};
	fix.notices = notices_new(&options);
	notices_add(fix.notices, &(struct notice){.kind = "note", .text = "one"});
	assert_int_equal(notices_lost(fix.notices), 1);
	assert_int_equal(fix.problems.n, 1);
	assert_non_null(strstr(fix.problems.v[0], "/nonexistent/program"));
	close_fix(&fix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_line, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_equal, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_lasting, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_queue, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_long, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_failures, make_tmp, remove_tmp),
		cmocka_unit_test(test_no_program),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

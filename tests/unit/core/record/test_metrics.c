/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/record/params.h"
#include "events/event_files.h"
#include "events/metrics.h"
#include "tests/unit/tfeventsfix.h"

#define EVENTS "events.out.tfevents.1700000000.host.1.0"

static char *tmp;
static struct metrics *metrics;

static int make_tmp(void **state)
{
	const char *base = getenv("TMPDIR");

	tmp = mem_printf("%s/dlrun-metrics-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(tmp))
		return -1;
	metrics = metrics_new(tmp);
	return 0;
}

static int remove_tmp(void **state)
{
	metrics_free(metrics);
	int r = fs_remove_tree(AT_FDCWD, tmp, NULL);
	free(tmp);
	return r;
}

/* Adds to a file below tmp, made with its directories. */
static void add(const char *path, const struct buf *data, int flags)
{
	AUTO_FREE char *full = fs_join(tmp, path);
	AUTO_FREE char *dir = mem_strdup(full);

	*strrchr(dir, '/') = '\0';
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	AUTO_FD int fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
	assert_true(fd >= 0);
	assert_int_equal(fs_write_fd(fd, path, data->data, data->len, NULL), 0);
}

static void add_point(const char *path, double wall, int64_t step, const char *tag, float value)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	put_simple(&data, wall, step, tag, value);
	add(path, &data, O_APPEND);
}

/* The last values; test_extremes has the others. */
static void check(const char *wanted)
{
	static const char *const extremes[] = {"min", "min_step", "max", "max_step"};
	AUTO_JSON struct json *last = json_object();
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	while (metrics_poll(metrics))
		;
	AUTO_JSON struct json *json = metrics_json(metrics);
	for (const struct json *item = json_first(json); item; item = json_next(item)) {
		struct json *copy = json_clone(item);

		for (size_t i = 0; i < ARRAY_LEN(extremes); i++)
			json_remove(copy, extremes[i]);
		json_set(last, json_key(item), copy);
	}
	json_print(last, &text);
	assert_string_equal(text.data, wanted);
}

static void test_newest(void **state)
{
	check("{}");
	add_point("runs/a/" EVENTS, 100, 1, "loss", 3);
	add_point("runs/a/" EVENTS, 101, 1, "acc", 0.5f);
	check("{\"loss\":{\"value\":3,\"step\":1},\"acc\":{\"value\":0.5,\"step\":1}}");
	check("{\"loss\":{\"value\":3,\"step\":1},\"acc\":{\"value\":0.5,\"step\":1}}");
	add_point("runs/a/" EVENTS, 102, 2, "loss", 2);
	check("{\"loss\":{\"value\":2,\"step\":2},\"acc\":{\"value\":0.5,\"step\":1}}");
	/* It went on from an earlier step, in the same file and in one of its own. */
	add_point("runs/a/" EVENTS, 103, 1, "loss", 2.5f);
	check("{\"loss\":{\"value\":2.5,\"step\":1},\"acc\":{\"value\":0.5,\"step\":1}}");
	add_point("runs/a/" EVENTS ".2", 104, 0, "loss", 9);
	check("{\"loss\":{\"value\":9,\"step\":0},\"acc\":{\"value\":0.5,\"step\":1}}");
	/* An older file that is found later. */
	add_point("runs/a/" EVENTS ".0", 50, 7, "loss", 8);
	check("{\"loss\":{\"value\":9,\"step\":0},\"acc\":{\"value\":0.5,\"step\":1}}");
	/* A new directory for each start. */
	add_point("runs/b/" EVENTS, 105, 3, "loss", 1);
	check("{\"loss\":{\"value\":1,\"step\":3},\"acc\":{\"value\":0.5,\"step\":1}}");
}

static void extremes_are(const char *tag, const char *wanted)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	while (metrics_poll(metrics))
		;
	AUTO_JSON struct json *json = metrics_json(metrics);
	json_print(json_get(json, tag), &text);
	assert_string_equal(text.data, wanted);
}

static void test_extremes(void **state)
{
	add_point("a/" EVENTS, 100, 1, "loss", 3);
	extremes_are("loss",
		"{\"value\":3,\"step\":1,\"min\":3,\"min_step\":1,\"max\":3,\"max_step\":1}");
	add_point("a/" EVENTS, 101, 2, "loss", 0.5f);
	add_point("a/" EVENTS, 102, 3, "loss", NAN);
	add_point("a/" EVENTS, 103, 4, "loss", -INFINITY);
	/* The first of equal ones. */
	add_point("a/" EVENTS, 104, 5, "loss", 0.5f);
	add_point("a/" EVENTS, 105, 6, "loss", 1);
	extremes_are("loss",
		"{\"value\":1,\"step\":6,\"min\":0.5,\"min_step\":2,\"max\":3,\"max_step\":1}");
	add_point("a/" EVENTS, 100, 1, "nothing", INFINITY);
	extremes_are("nothing", "{\"value\":null,\"step\":1,\"not_finite\":\"inf\"}");
}

static void test_names(void **state)
{
	add_point("logs/train/" EVENTS, 100, 1, "loss", 1);
	add_point("logs/validation/" EVENTS, 101, 1, "loss", 2);
	add_point("top/" EVENTS, 100, 1, "acc", 3);
	add_point("top/acc_teacher/" EVENTS, 100, 1, "acc", 4);
	add_point("top/acc/student/" EVENTS, 100, 1, "acc", 6);
	add_point("top/1700000000.5/" EVENTS, 100, 1, "hp", 5);
	while (metrics_poll(metrics))
		;
	AUTO_JSON struct json *json = metrics_json(metrics);
	static const struct {
		const char *name;
		int value;
	} wanted[] = {{"loss", 1}, {"validation/loss", 2}, {"acc", 3}, {"acc_teacher/acc", 4},
		{"acc/student/acc", 6}, {"hp", 5}};
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		assert_int_equal(
			json_get_int(json_get(json, wanted[i].name), "value", -1), wanted[i].value);
	assert_int_equal(json_count(json), ARRAY_LEN(wanted));
}

static void test_not_finite(void **state)
{
	add_point(EVENTS, 100, 1, "c", 0.1f);
	check("{\"c\":{\"value\":0.1,\"step\":1}}");
	add_point(EVENTS, 100, 1, "c", 16777217.0f / 3);
	check("{\"c\":{\"value\":5592405.5,\"step\":1}}");
	add_point(EVENTS, 100, 1, "a", NAN);
	add_point(EVENTS, 100, 1, "b", -INFINITY);
	check("{\"c\":{\"value\":5592405.5,\"step\":1},"
	      "\"a\":{\"value\":null,\"step\":1,\"not_finite\":\"nan\"},"
	      "\"b\":{\"value\":null,\"step\":1,\"not_finite\":\"-inf\"}}");
}

/* Files that are written anew, replaced, cut short, torn, unfilled. */
static void test_changes(void **state)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	add_point(EVENTS, 100, 1, "a", 1);
	add_point(EVENTS, 100, 2, "a", 2);
	check("{\"a\":{\"value\":2,\"step\":2}}");
	put_simple(&data, 100, 1, "a", 5);
	add(EVENTS, &data, O_TRUNC);
	check("{\"a\":{\"value\":5,\"step\":1}}");
	AUTO_FREE char *path = fs_join(tmp, EVENTS);
	unlink(path);
	check("{\"a\":{\"value\":5,\"step\":1}}");
	put_simple(&data, 100, 2, "a", 6);
	put_simple(&data, 100, 3, "a", 7);
	size_t whole = data.len;
	data.len -= 5;
	add(EVENTS, &data, O_TRUNC);
	check("{\"a\":{\"value\":6,\"step\":2}}");
	struct buf tail = {.data = data.data + data.len, .len = 5};
	add(EVENTS, &tail, O_APPEND);
	check("{\"a\":{\"value\":7,\"step\":3}}");
	/* Room that is not filled yet. */
	assert_int_equal(truncate(path, (off_t)whole + 4096), 0);
	check("{\"a\":{\"value\":7,\"step\":3}}");
	buf_reset(&data);
	put_simple(&data, 100, 4, "a", 8);
	AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, data.data, data.len, (off_t)whole), (ssize_t)data.len);
	check("{\"a\":{\"value\":8,\"step\":4}}");
}

/* What is no event file, and what leads elsewhere. */
static void test_hostile(void **state)
{
	AUTO_FREE char *outside = mem_printf("%s-outside", tmp);
	AUTO_FREE char *fifo = fs_join(tmp, "fifo.tfevents");
	AUTO_FREE char *link = fs_join(tmp, "link.tfevents");
	AUTO_FREE char *dir_link = fs_join(tmp, "dir");
	AUTO_FREE char *loop = fs_join(tmp, "loop");
	AUTO_FREE char *locked = fs_join(tmp, "locked.tfevents");
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	assert_int_equal(mkdir(outside, 0700), 0);
	add_point("../fix.tfevents", 1, 1, "outside", 1);
	AUTO_FREE char *moved = fs_join(outside, "x.tfevents");
	AUTO_FREE char *fix = fs_join(tmp, "../fix.tfevents");
	assert_int_equal(rename(fix, moved), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_int_equal(symlink(moved, link), 0);
	assert_int_equal(symlink(outside, dir_link), 0);
	assert_int_equal(symlink(".", loop), 0);
	buf_adds(&data, "this is no event file at all");
	add("text.tfevents", &data, 0);
	buf_reset(&data);
	add("empty.tfevents", &data, 0);
	add_point("locked.tfevents", 1, 1, "b", 1);
	chmod(locked, 0);
	add_point("events", 1, 1, "name", 1);
	add_point("sub.tfevents/x.tfevents", 1, 1, "a", 1);
	while (metrics_poll(metrics))
		;
	AUTO_JSON struct json *json = metrics_json(metrics);
	assert_non_null(json_get(json, "sub.tfevents/a"));
	assert_null(json_get(json, "outside"));
	assert_null(json_get(json, "name"));
	chmod(locked, 0600);
	assert_int_equal(fs_remove_tree(AT_FDCWD, outside, NULL), 0);
}

static void test_bad_tags(void **state)
{
	char longest[METRICS_NAME_MAX + 2];

	memset(longest, 'x', sizeof(longest));
	longest[METRICS_NAME_MAX + 1] = '\0';
	add_point(EVENTS, 1, 1, longest, 1);
	add_point(EVENTS, 1, 1, "a\033[31m", 1);
	add_point(EVENTS, 1, 1, "a\xe2\x80\xae", 1);
	check("{}");
	longest[METRICS_NAME_MAX] = '\0';
	add_point(EVENTS, 1, 1, longest, 1);
	while (metrics_poll(metrics))
		;
	AUTO_JSON struct json *json = metrics_json(metrics);
	assert_non_null(json_get(json, longest));
}

static void test_limits(void **state)
{
	AUTO_BUF struct buf data, deep;
	char tag[16];

	buf_init(&data, FIX_MAX);
	buf_init(&deep, 4096);
	for (int i = 0; i < METRICS_SCALARS + 10; i++) {
		snprintf(tag, sizeof(tag), "t%d", i);
		put_simple(&data, 100, 1, tag, 1);
	}
	/* The first ones stay up to date. */
	put_simple(&data, 100, 2, "t0", 2);
	add(EVENTS, &data, 0);
	for (int i = 0; i <= METRICS_DEPTH; i++)
		buf_adds(&deep, "d/");
	buf_adds(&deep, EVENTS);
	add_point(deep.data, 200, 9, "t0", 9);
	while (metrics_poll(metrics))
		;
	AUTO_JSON struct json *json = metrics_json(metrics);
	assert_int_equal(json_count(json), METRICS_MAX);
	assert_int_equal(json_get_int(json_get(json, "t0"), "value", 0), 2);
	assert_null(json_get(json, "t200"));
}

/* More than one look reads: it says so, and goes on. */
static void test_budget(void **state)
{
	AUTO_BUF struct buf data;
	int polls = 1;

	buf_init(&data, FIX_MAX);
	while (data.len < METRICS_POLL_BYTES + (1 << 20))
		put_simple(&data, 100, (int64_t)data.len, "loss", 1);
	put_simple(&data, 100, 7, "loss", 2);
	add("a/" EVENTS, &data, 0);
	add_point("b/" EVENTS, 100, 3, "acc", 4);
	while (metrics_poll(metrics))
		polls++;
	assert_int_equal(polls, 2);
	AUTO_JSON struct json *json = metrics_json(metrics);
	assert_int_equal(json_get_int(json_get(json, "loss"), "value", 0), 2);
	assert_int_equal(json_get_int(json_get(json, "acc"), "value", 0), 4);
}

static void test_missing_dir(void **state)
{
	AUTO_FREE char *dir = fs_join(tmp, "later");

	metrics_free(metrics);
	metrics = metrics_new(dir);
	check("{}");
	add_point("later/" EVENTS, 100, 3, "acc", 4);
	check("{\"acc\":{\"value\":4,\"step\":3}}");
	metrics_free(NULL);
	event_files_free(NULL);
}

/*
 * params.json
 */

static void write_params(const char *text)
{
	AUTO_FREE char *path = fs_join(tmp, "params.json");

	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void check_params(struct params *params, const char *wanted)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	params_poll(params, true);
	AUTO_JSON struct json *json = params_json(params);
	json_print(json, &text);
	assert_string_equal(text.data, wanted);
}

static void test_params(void **state)
{
	AUTO(params_free_auto) struct params *params = params_new(tmp);
	check_params(params, "{}");
	write_params("{\"lr\":0.1,\"name\":\"a\",\"x\":null,\"on\":true,"
		     "\"opt\":{\"name\":\"adam\",\"betas\":[0.9,0.999]},\"a\\nb\":1}");
	check_params(params, "{\"lr\":0.1,\"name\":\"a\",\"x\":null,\"on\":true,"
			     "\"opt.name\":\"adam\",\"opt.betas\":\"[0.9,0.999]\"}");
	/* Half of one changes nothing. */
	write_params("{\"lr\":");
	check_params(params, "{\"lr\":0.1,\"name\":\"a\",\"x\":null,\"on\":true,"
			     "\"opt.name\":\"adam\",\"opt.betas\":\"[0.9,0.999]\"}");
	write_params("{\"lr\":1}");
	check_params(params, "{\"lr\":1}");
	write_params("[1]");
	check_params(params, "{\"lr\":1}");
}

static void test_params_limits(void **state)
{
	AUTO(params_free_auto) struct params *params = params_new(tmp);
	AUTO_FREE char *path = fs_join(tmp, "params.json");
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	buf_adds(&text, "{\"long\":\"");
	for (int i = 0; i <= PARAMS_TEXT_MAX; i++)
		buf_addc(&text, 'x');
	buf_adds(&text, "\"");
	for (int i = 0; i <= PARAMS_MAX; i++)
		buf_addf(&text, ",\"k%d\":%d", i, i);
	buf_adds(&text, "}");
	write_params(text.data);
	params_poll(params, true);
	AUTO_JSON struct json *json = params_json(params);
	assert_int_equal(json_count(json), PARAMS_MAX);
	assert_null(json_get(json, "long"));
	/* Too large, a link, a pipe: nothing is read and nothing waits. */
	buf_reset(&text);
	buf_adds(&text, "{\"a\":1}");
	while (text.len <= PARAMS_FILE_MAX)
		buf_addc(&text, ' ');
	write_params(text.data);
	params_poll(params, true);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/etc/passwd", path), 0);
	params_poll(params, true);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	params_poll(params, true);
	AUTO_JSON struct json *same = params_json(params);
	assert_int_equal(json_count(same), PARAMS_MAX);
}

static void put_params(const char *path, const char *text)
{
	AUTO_FREE char *whole = fs_join(tmp, path);
	AUTO_FREE char *dir = mem_strndup(whole, (size_t)(strrchr(whole, '/') - whole));

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(whole, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

/* As Lightning and Hydra leave them; what is nearer to the top goes before what is deeper. */
static void test_params_anywhere(void **state)
{
	AUTO(params_free_auto) struct params *params = params_new(tmp);

	put_params("lightning_logs/version_0/hparams.yaml",
		"lr: 0.001\nopt: !!python/name:torch.optim.Adam ''\nbetas: !!python/tuple\n"
		"- 0.9\n- &a 0.999\nagain: *a\ncfg: !!python/object:argparse.Namespace\n"
		"  width: 8\n  lr: 3\n");
	check_params(
		params, "{\"lr\":0.001,\"betas\":\"[0.9,0.999]\",\"cfg.width\":8,\"cfg.lr\":3}");
	put_params("outputs/2026-01-01/12-00-00/.hydra/overrides.yaml",
		"- lr=0.5\n- +db.user=me\n- ~x\n");
	put_params("outputs/2026-01-01/12-00-00/.hydra/config.yaml",
		"lr: 0.5\ndb: {user: me, port: 1}\n");
	put_params("args.json", "{\"seed\": 1}");
	check_params(params, "{\"seed\":1,\"lr\":0.001,\"betas\":\"[0.9,0.999]\",\"cfg.width\":8,"
			     "\"cfg.lr\":3,\"db.user\":\"me\",\"db.port\":1}");
	/* Nothing of what cannot be read, is too deep, or only looks like one. */
	put_params("a/params.json", "{\"a\":");
	put_params("1/2/3/4/5/6/7/params.json", "{\"b\": 1}");
	put_params("xhparams.yaml", "b: 1");
	put_params("config.yaml", "b: 1");
	check_params(params, "{\"seed\":1,\"lr\":0.001,\"betas\":\"[0.9,0.999]\",\"cfg.width\":8,"
			     "\"cfg.lr\":3,\"db.user\":\"me\",\"db.port\":1}");
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)
	const struct CMUnitTest tests[] = {
		CASE(test_newest),
		CASE(test_extremes),
		CASE(test_names),
		CASE(test_not_finite),
		CASE(test_changes),
		CASE(test_hostile),
		CASE(test_bad_tags),
		CASE(test_limits),
		CASE(test_budget),
		CASE(test_missing_dir),
		CASE(test_params),
		CASE(test_params_limits),
		CASE(test_params_anywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

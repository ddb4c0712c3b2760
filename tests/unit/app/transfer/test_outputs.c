/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/transfer/outputs.h"
#include "targets/targets.h"
#include "tests/unit/runfix.h"

#define RUN_ID  "a-22222"
#define OUTPUTS "state/dlrun/runs/" RUN_ID "/outputs/"

static struct target *target;
static char *handle;

static int make_target(void **state)
{
	if (make_session(state))
		return -1;
	AUTO_RUN struct run *run = new_run(RUN_ID);
	handle = mem_strdup(run_handle(run));
	return target_open_run(&session, run, &target, NULL);
}

static int remove_target(void **state)
{
	target_free(target);
	free(handle);
	return remove_session(state);
}

/*
 * Calls that are waited for
 */

struct waited {
	bool is_done;
	int status;
	struct err error;
	struct buf text;
	size_t pieces_max;
};

static void on_done(void *ctx, int status, struct err *error_)
{
	struct waited *waited = ctx;

	assert_false(waited->is_done);
	waited->is_done = true;
	waited->status = status;
	if (status < 0)
		err_move(&waited->error, error_);
	loop_stop(target->loop);
}

static enum err_id wait_for(struct waited *waited)
{
	assert_false(waited->is_done);
	while (!waited->is_done)
		ok(loop_run(target->loop, error));
	enum err_id id = waited->error.id;
	assert_int_equal(waited->status < 0, id != E_NONE);
	err_clear(&waited->error);
	return id;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct waited *waited = ctx;

	if (waited->pieces_max && waited->text.len + len > waited->pieces_max)
		return err_set(err, E_CANCELED, "enough");
	buf_add(&waited->text, data, len);
	return 0;
}

static enum err_id reads(const char *path, uint64_t offset, uint64_t max, const char *want)
{
	struct waited waited = {0};

	buf_init(&waited.text, 1 << 20);
	outputs_read(target, handle, path, offset, max, on_data, on_done, &waited);
	enum err_id id = wait_for(&waited);
	assert_string_equal(waited.text.data, want);
	buf_done(&waited.text);
	return id;
}

static enum err_id lists(const char *path, size_t max, const char *want)
{
	struct outputs_files files = {0};
	struct waited waited = {0};
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	outputs_list(target, handle, path, OUTPUTS_THOROUGH, max, &files, on_done, &waited);
	enum err_id id = wait_for(&waited);
	vec_foreach (struct outputs_file, file, &files) {
		assert_true(file->mtime_ns > 0);
		buf_addf(&text, "%s %llu\n", file->path, (unsigned long long)file->size);
	}
	assert_string_equal(text.data, want);
	outputs_files_done(&files);
	return id;
}

static void test_list(void **state)
{
	assert_int_equal(lists(NULL, 10, ""), E_NONE);
	put(OUTPUTS "b/x.tfevents", "12345");
	put(OUTPUTS "a.txt", "1");
	put(OUTPUTS "b/tfevents/y", "");
	assert_int_equal(symlink("a.txt", in_root(OUTPUTS "link")), 0);
	assert_int_equal(mkfifo(in_root(OUTPUTS "pipe"), 0600), 0);
	assert_int_equal(lists(NULL, 10, "a.txt 1\nb/tfevents/y 0\nb/x.tfevents 5\n"), E_NONE);
	assert_int_equal(lists("b/x.tfevents", 1, "b/x.tfevents 5\n"), E_NONE);
	assert_int_equal(lists("b/tfevents/y", 1, "b/tfevents/y 0\n"), E_NONE);
	static const char *const none[] = {"tfevents", "y", "b", "link", "pipe", "c/a.txt"};
	for (size_t i = 0; i < ARRAY_LEN(none); i++)
		assert_int_equal(lists(none[i], 1, ""), E_NONE);
	assert_int_equal(lists("b/../a.txt", 1, ""), E_FETCH_PATH);
	assert_int_equal(lists(NULL, 0, ""), E_DATA_LIMIT);
}

static void test_limit(void **state)
{
	struct outputs_files files = {0};
	struct waited waited = {0};

	put(OUTPUTS "a", "1");
	put(OUTPUTS "b", "1");
	put(OUTPUTS "c", "1");
	outputs_list(target, handle, NULL, OUTPUTS_THOROUGH, 2, &files, on_done, &waited);
	assert_int_equal(wait_for(&waited), E_DATA_LIMIT);
	assert_int_equal(waited.status, -ERR_LIMIT);
	assert_int_equal(files.n, 2);
	outputs_files_done(&files);
}

static void test_read(void **state)
{
	put(OUTPUTS "d/f", "0123456789");
	put(OUTPUTS "d/*", "star");
	put(OUTPUTS "empty", "");
	assert_int_equal(reads("d/f", 0, 100, "0123456789"), E_NONE);
	assert_int_equal(reads("d/f", 3, 4, "3456"), E_NONE);
	assert_int_equal(reads("d/f", 9, UINT64_MAX, "9"), E_NONE);
	assert_int_equal(reads("d/f", 10, 1, ""), E_NONE);
	assert_int_equal(reads("d/f", UINT64_MAX, 1, ""), E_NONE);
	assert_int_equal(reads("d/f", 0, 0, ""), E_NONE);
	assert_int_equal(reads("empty", 0, 10, ""), E_NONE);
	/* Nothing is a pattern. */
	assert_int_equal(reads("d/*", 0, 10, "star"), E_NONE);
	assert_int_equal(reads("d/?", 0, 10, ""), E_FETCH_PATH);
}

static void test_refused(void **state)
{
	AUTO_FREE char *outside = mem_strdup(in_root("outside"));

	put("outside/precious", "secret");
	put(OUTPUTS "d/f", "x");
	assert_int_equal(symlink(outside, in_root(OUTPUTS "out")), 0);
	assert_int_equal(symlink("../outside/precious", in_root(OUTPUTS "file")), 0);
	static const char *const paths[] = {"absent", "d", "d/absent", "", "/etc/passwd",
		"../outputs/d/f", "d/../d/f", "d//f", "d/f/", "./d/f", "out/precious", "file",
		"d/f/g"};
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		assert_int_equal(reads(paths[i], 0, 100, ""), E_FETCH_PATH);
}

static void test_reader_has_enough(void **state)
{
	struct waited waited = {.pieces_max = 1};

	put(OUTPUTS "f", "0123456789");
	buf_init(&waited.text, 100);
	outputs_read(target, handle, "f", 0, 100, on_data, on_done, &waited);
	assert_int_equal(wait_for(&waited), E_CANCELED);
	buf_done(&waited.text);
}

static void test_cancel(void **state)
{
	struct outputs_files files = {0};
	struct waited waited = {0};

	put(OUTPUTS "f", "0123456789");
	outputs_cancel(NULL);
	outputs_cancel(
		outputs_list(target, handle, NULL, OUTPUTS_THOROUGH, 2, &files, on_done, &waited));
	outputs_cancel(outputs_read(target, handle, "../x", 0, 1, on_data, on_done, &waited));
	ok(loop_run(target->loop, error));
	assert_false(waited.is_done);
	outputs_files_done(&files);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make_target, remove_target)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_list),
		TEST(test_limit),
		TEST(test_read),
		TEST(test_refused),
		TEST(test_reader_has_enough),
		TEST(test_cancel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

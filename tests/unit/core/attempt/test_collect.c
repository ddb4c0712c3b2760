/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "tests/unit/tree.h"

/* A run with two attempts: attempts/1 and 2, outputs, collected. */
struct place {
	struct tree tree;
	char *dirs[2]; /* of the attempts */
	struct attempt_job job;
	struct err err;
};

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));
	static const char *const dirs[] = {"outputs", "attempts", "attempts/1", "attempts/1/tree",
		"attempts/2", "attempts/2/tree"};

	place->tree = tree_new();
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		tree_dir(&place->tree, dirs[i]);
	place->dirs[0] = fs_join(place->tree.root, "attempts/1");
	place->dirs[1] = fs_join(place->tree.root, "attempts/2");
	place->job.run_id = mem_strdup("demo-23456");
	place->job.spec.cwd = mem_strdup(".");
	strv_add(&place->job.spec.command, "true");
	place->job.attempt = 1;
	place->job.outputs = fs_join(place->tree.root, "outputs");
	place->job.setups = mem_strdup("/cache/setups");
	place->job.spec.runtime.collect.size_bytes = RUNTIME_COLLECT_BYTES;
	*state = place;
	return 0;
}

static int teardown(void **state)
{
	struct place *place = *state;

	tree_free(&place->tree);
	free(place->dirs[0]);
	free(place->dirs[1]);
	attempt_job_done(&place->job);
	err_done(&place->err);
	free(place);
	return 0;
}

static void write_in(struct place *place, const char *path, const char *text)
{
	AUTO_FREE char *full = fs_join("attempts/1/tree", path);

	for (char *slash = full + strlen("attempts/1/tree/"); (slash = strchr(slash, '/'));
		slash++) {
		*slash = '\0';
		mkdirat(place->tree.fd, full, 0755);
		*slash = '/';
	}
	tree_write(&place->tree, full, text);
}

static void begin(struct place *place)
{
	assert_int_equal(collect_mark(place->dirs[0], &place->err), 0);
	collect_pass_mark(place->dirs[0]);
}

static void collect_as(struct place *place, enum collect_when when)
{
	if (collect_results(place->dirs[0], &place->job, when, &place->err) < 0)
		fail_msg("%s", place->err.message);
}

static void expect_text(struct place *place, const char *path, const char *text)
{
	AUTO_FREE char *full = fs_join(place->tree.root, path);
	AUTO_BUF struct buf content = {0};
	AUTO_ERR struct err err = {0};

	if (fs_read(full, 4096, &content, NULL, &err) < 0)
		fail_msg("%s", err.message);
	assert_string_equal(content.data, text);
}

static bool exists(struct place *place, const char *path)
{
	return faccessat(place->tree.fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool is_one_file(struct place *place, const char *a, const char *b)
{
	struct stat x, y;

	return fstatat(place->tree.fd, a, &x, AT_SYMLINK_NOFOLLOW) == 0 &&
	       fstatat(place->tree.fd, b, &y, AT_SYMLINK_NOFOLLOW) == 0 && x.st_ino == y.st_ino;
}

static void expect_warning(struct place *place, const char *part)
{
	AUTO_JSON struct json *report = collect_read_report(place->dirs[0]);
	const struct json *list = json_get(report, "warnings");

	assert_non_null(report);
	if (!part) {
		assert_int_equal(json_count(list), 0);
		return;
	}
	assert_int_equal(json_count(list), 1);
	if (!strstr(json_str(json_first(list)), part))
		fail_msg("no '%s' in '%s'", part, json_str(json_first(list)));
}

static void test_changed_and_new(void **state)
{
	struct place *place = *state;

	write_in(place, "train.py", "old");
	write_in(place, "conf/a.yaml", "old");
	begin(place);
	write_in(place, "conf/a.yaml", "new");
	write_in(place, "model.pt", "m");
	write_in(place, "a\nb/c d/x", "deep");
	assert_int_equal(symlinkat("/etc/passwd", place->tree.fd, "attempts/1/tree/link"), 0);
	assert_int_equal(mkfifoat(place->tree.fd, "attempts/1/tree/pipe", 0600), 0);
	tree_dir(&place->tree, "attempts/1/tree/empty");
	for (int i = 0; i < 2; i++) {
		collect_as(place, COLLECT_ENDED);
		expect_warning(place, NULL);
		assert_false(exists(place, "outputs/train.py"));
		assert_false(exists(place, "outputs/pipe"));
		assert_false(exists(place, "outputs/empty"));
		expect_text(place, "outputs/conf/a.yaml", "new");
		expect_text(place, "outputs/a\nb/c d/x", "deep");
		assert_true(is_one_file(place, "outputs/model.pt", "attempts/1/tree/model.pt"));
		assert_true(is_one_file(place, "outputs/model.pt", "collected/model.pt"));
		assert_true(is_one_file(place, "outputs/link", "attempts/1/tree/link"));
		assert_false(exists(place, "collect.tmp"));
	}
}

static void test_nothing_without_a_mark(void **state)
{
	struct place *place = *state;

	write_in(place, "model.pt", "m");
	collect_as(place, COLLECT_ENDED);
	assert_false(exists(place, "outputs/model.pt"));
	assert_null(collect_read_report(place->dirs[0]));
}

static void test_old_times_count(void **state)
{
	struct place *place = *state;
	const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

	begin(place);
	write_in(place, "copied", "x");
	assert_int_equal(utimensat(place->tree.fd, "attempts/1/tree/copied", old, 0), 0);
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "outputs/copied", "x");
}

static void test_never_collected(void **state)
{
	struct place *place = *state;
	static const char *const paths[] = {".git/config", "a/__pycache__/x", ".mypy_cache/x",
		"m.pyc", "data/train/x", "x.tmp", "deep/cache/y/z", "out/big/a.bin"};

	*vec_push(&place->job.spec.runtime.data) =
		(struct runtime_data){mem_strdup("data/train"), mem_strdup("/srv/train")};
	strv_add(&place->job.spec.runtime.collect.exclude, "*.tmp");
	strv_add(&place->job.spec.runtime.collect.exclude, "cache");
	strv_add(&place->job.spec.runtime.collect.exclude, "out/*.bin");
	begin(place);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		write_in(place, paths[i], "x");
	write_in(place, "data/other", "x");
	write_in(place, "a.bin", "x");
	assert_int_equal(
		symlinkat("/cache/setups/k/tree/.venv", place->tree.fd, "attempts/1/tree/.venv"),
		0);
	collect_as(place, COLLECT_ENDED);
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		AUTO_FREE char *path = fs_join("outputs", paths[i]);
		assert_false(exists(place, path));
	}
	assert_false(exists(place, "outputs/.venv"));
	expect_text(place, "outputs/data/other", "x");
	expect_text(place, "outputs/a.bin", "x");
}

/* What the program itself has put into the outputs stays, and the tree's is kept beside it. */
static void test_both_have_it(void **state)
{
	struct place *place = *state;

	begin(place);
	tree_write(&place->tree, "outputs/model.pt", "own");
	tree_write(&place->tree, "outputs/dir", "own");
	tree_dir(&place->tree, "outputs/file");
	write_in(place, "model.pt", "tree");
	write_in(place, "dir/x", "tree");
	write_in(place, "file", "tree");
	for (int i = 0; i < 2; i++) {
		collect_as(place, COLLECT_ENDED);
		expect_text(place, "outputs/model.pt", "own");
		expect_text(place, "outputs/model.pt.tree", "tree");
		expect_text(place, "outputs/dir", "own");
		expect_text(place, "outputs/dir.tree/x", "tree");
		expect_text(place, "outputs/file.tree", "tree");
		expect_warning(place, "dir/x");
	}
	assert_int_equal(unlinkat(place->tree.fd, "attempts/1/tree/model.pt", 0), 0);
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "outputs/model.pt", "own");
	assert_false(exists(place, "outputs/model.pt.tree"));
}

/* rm -r out; mkdir out: the link to the output is gone. */
static void test_output_made_anew(void **state)
{
	struct place *place = *state;

	strv_add(&place->job.spec.runtime.outputs, "out");
	place->job.spec.runtime.collect.mode = COLLECT_NONE;
	tree_dir(&place->tree, "outputs/out");
	tree_write(&place->tree, "outputs/out/both", "old");
	tree_write(&place->tree, "outputs/out/deep", "old");
	tree_write(&place->tree, "outputs/out/old", "old");
	begin(place);
	write_in(place, "elsewhere", "x");
	write_in(place, "out/both", "new");
	write_in(place, "out/deep/new", "new");
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "outputs/out/both", "new");
	expect_text(place, "outputs/out/deep/new", "new");
	expect_text(place, "outputs/out/old", "old");
	assert_false(exists(place, "outputs/elsewhere"));
	/* The next attempt has its link again: what lies behind it is not removed. */
	assert_int_equal(attempt_job_write(place->dirs[0], &place->job, &place->err), 0);
	place->job.attempt = 2;
	assert_int_equal(symlinkat(place->job.outputs, place->tree.fd, "attempts/2/tree/out"), 0);
	assert_int_equal(collect_restore(place->dirs[1], &place->job, &place->err), 0);
	assert_int_equal(collect_mark(place->dirs[1], &place->err), 0);
	assert_int_equal(
		collect_results(place->dirs[1], &place->job, COLLECT_ENDED, &place->err), 0);
	expect_text(place, "outputs/out/both", "new");
	assert_false(exists(place, "collected/out"));
}

static void test_removed_by_the_program(void **state)
{
	struct place *place = *state;

	begin(place);
	write_in(place, "ckpt/1", "1");
	write_in(place, "ckpt/2", "2");
	write_in(place, "was_dir/x", "x");
	collect_as(place, COLLECT_RUNNING);
	expect_text(place, "outputs/ckpt/1", "1");
	assert_null(collect_read_report(place->dirs[0]));
	assert_int_equal(unlinkat(place->tree.fd, "attempts/1/tree/ckpt/1", 0), 0);
	assert_int_equal(unlinkat(place->tree.fd, "attempts/1/tree/was_dir/x", 0), 0);
	assert_int_equal(unlinkat(place->tree.fd, "attempts/1/tree/was_dir", AT_REMOVEDIR), 0);
	write_in(place, "was_dir", "file");
	collect_as(place, COLLECT_ENDED);
	assert_false(exists(place, "outputs/ckpt/1"));
	assert_false(exists(place, "collected/ckpt/1"));
	expect_text(place, "outputs/ckpt/2", "2");
	expect_text(place, "outputs/was_dir", "file");
}

static void replace_in(struct place *place, const char *path, const char *text)
{
	AUTO_FREE char *from = fs_join(place->tree.root, "attempts/1/tree/temp");
	AUTO_FREE char *to = fs_join(place->dirs[0], "tree");
	AUTO_FREE char *full = fs_join(to, path);

	write_in(place, "temp", text);
	assert_int_equal(rename(from, full), 0);
}

static void test_replaced_by_rename(void **state)
{
	struct place *place = *state;

	begin(place);
	write_in(place, "last.ckpt", "1");
	collect_as(place, COLLECT_RUNNING);
	replace_in(place, "last.ckpt", "2");
	collect_as(place, COLLECT_RUNNING);
	expect_text(place, "outputs/last.ckpt", "2");
	/* Killed between the two links: the outputs have the new one already. */
	replace_in(place, "last.ckpt", "3");
	assert_int_equal(unlinkat(place->tree.fd, "outputs/last.ckpt", 0), 0);
	assert_int_equal(linkat(place->tree.fd, "attempts/1/tree/last.ckpt", place->tree.fd,
				 "outputs/last.ckpt", 0),
		0);
	assert_int_equal(linkat(place->tree.fd, "attempts/1/tree/last.ckpt", place->tree.fd,
				 "collect.tmp", 0),
		0);
	collect_as(place, COLLECT_ENDED);
	assert_true(is_one_file(place, "collected/last.ckpt", "attempts/1/tree/last.ckpt"));
	assert_false(exists(place, "outputs/last.ckpt.tree"));
	assert_false(exists(place, "collect.tmp"));
}

static void move(struct place *place, const char *from, const char *to)
{
	AUTO_FREE char *tree = fs_join(place->dirs[0], "tree");
	AUTO_FREE char *a = fs_join(tree, from), *b = fs_join(tree, to);

	assert_int_equal(rename(a, b), 0);
}

/* The files below keep their times. */
static void test_moved_directories(void **state)
{
	struct place *place = *state;

	write_in(place, "conf/a.yaml", "a");
	write_in(place, "conf/sub/deep/b.yaml", "b");
	write_in(place, "one/x", "one");
	write_in(place, "two/x", "two");
	write_in(place, "two/sub/y", "y");
	write_in(place, "back/z", "z");
	write_in(place, "still/s", "s");
	write_in(place, "old/o", "o");
	write_in(place, "deep/est/c", "c");
	begin(place);
	write_in(place, "conf/sub/b2.yaml", "new");
	write_in(place, "conf/a.yaml", "edited");
	move(place, "conf", "renamed");
	move(place, "one", "temp");
	move(place, "two", "one");
	move(place, "temp", "two");
	move(place, "back", "elsewhere");
	move(place, "elsewhere", "back");
	write_in(place, "still/new", "n");
	write_in(place, "made/first", "1");
	move(place, "old", "made/old");
	move(place, "deep/est", "still/est");
	collect_as(place, COLLECT_RUNNING);
	expect_text(place, "outputs/renamed/a.yaml", "edited");
	expect_text(place, "outputs/renamed/sub/deep/b.yaml", "b");
	expect_text(place, "outputs/renamed/sub/b2.yaml", "new");
	expect_text(place, "outputs/one/x", "two");
	expect_text(place, "outputs/one/sub/y", "y");
	expect_text(place, "outputs/two/x", "one");
	expect_text(place, "outputs/made/old/o", "o");
	expect_text(place, "outputs/made/first", "1");
	expect_text(place, "outputs/still/est/c", "c");
	expect_text(place, "outputs/still/new", "n");
	assert_false(exists(place, "outputs/still/s"));
	assert_false(exists(place, "outputs/back"));
	assert_false(exists(place, "outputs/conf"));
	move(place, "renamed", "again");
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "outputs/again/sub/deep/b.yaml", "b");
	assert_false(exists(place, "outputs/renamed"));
	expect_warning(place, NULL);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What the list says, as lines "INODE PATH" in order. */
static char *listed(const struct place *place)
{
	AUTO_FREE char *path = fs_join(place->dirs[0], COLLECT_DIRS);
	AUTO_BUF struct buf text = {0};
	AUTO_STRV struct strv lines = {0};

	assert_int_equal(fs_read(path, 1 << 20, &text, NULL, NULL), 0);
	for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1) {
		unsigned long long inode, ctime;
		int len;
		assert_int_equal(sscanf(text.data + at, "%llu %llu %n", &inode, &ctime, &len), 2);
		strv_addf(&lines, "%llu %s\n", inode, text.data + at + len);
	}
	vec_sort(&lines, by_text);
	return strv_join(&lines, "");
}

/* What is read again is what has changed since, at once or later. */
static void test_a_list_made_ahead(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *list = fs_join(place->dirs[0], COLLECT_DIRS);
	AUTO_FREE char *tree = fs_join(place->dirs[0], "tree");
	AUTO_FREE char *gone = fs_join(tree, "gone"), *back = fs_join(tree, "back");
	AUTO_FREE char *link = fs_join(tree, "link");
	static const char *const dirs[] = {"a/b/c/x", "gone/x", "back/sub/x", "link/sub/x",
		"moved/1/2/x", "same/1/x", "same/2/x", ".git/x", "a/b/__pycache__/x"};

	for (int wait = 0; wait < 2; wait++) {
		for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
			write_in(place, dirs[i], "x");
		collect_list_dirs(place->dirs[0]);
		for (int i = 0; i < wait; i++)
			assert_int_equal(usleep(20 * 1000), 0);
		write_in(place, "a/b/new/deep/x", "x");
		write_in(place, "a/file", "x");
		assert_int_equal(fs_remove_tree(AT_FDCWD, gone, NULL), 0);
		assert_int_equal(fs_remove_tree(AT_FDCWD, back, NULL), 0);
		assert_int_equal(fs_remove_tree(AT_FDCWD, link, NULL), 0);
		write_in(place, "back/sub/other/x", "x");
		assert_int_equal(symlink("same", link), 0);
		move(place, "moved", "a/b/c/moved");
		collect_list_dirs(place->dirs[0]);
		AUTO_FREE char *again = listed(place);
		assert_non_null(strstr(again, " a/b/c/moved/1/2\n"));
		assert_non_null(strstr(again, " back/sub/other\n"));
		assert_int_equal(unlink(list), 0);
		collect_list_dirs(place->dirs[0]);
		AUTO_FREE char *anew = listed(place);
		assert_string_equal(again, anew);
		assert_int_equal(fs_remove_tree(AT_FDCWD, tree, NULL), 0);
		tree_dir(&place->tree, "attempts/1/tree");
	}
}

/* Of an attempt that another version has begun it is not known. */
static void test_moved_without_a_list(void **state)
{
	struct place *place = *state;

	write_in(place, "a/x", "x");
	begin(place);
	assert_int_equal(unlinkat(place->tree.fd, "attempts/1/" COLLECT_DIRS, 0), 0);
	move(place, "a", "b");
	write_in(place, "b/new", "n");
	collect_as(place, COLLECT_ENDED);
	assert_false(exists(place, "outputs/b/x"));
	expect_text(place, "outputs/b/new", "n");
}

static void test_newest_fit(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *text = mem_grow(NULL, 8193, 1);

	memset(text, 'x', 8192);
	text[8192] = '\0';
	begin(place);
	for (int i = 0; i < 3; i++) {
		const struct timespec times[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
		AUTO_FREE char *name = mem_printf("f%d", i), *path = NULL;
		write_in(place, name, text);
		path = fs_join("attempts/1/tree", name);
		assert_int_equal(utimensat(place->tree.fd, path, times, 0), 0);
	}
	place->job.spec.runtime.collect.size_bytes = 20000;
	collect_as(place, COLLECT_ENDED);
	assert_true(exists(place, "outputs/f2"));
	assert_true(exists(place, "outputs/f1"));
	assert_false(exists(place, "outputs/f0"));
	expect_warning(place, "f0");
}

static void test_events_only(void **state)
{
	struct place *place = *state;

	begin(place);
	write_in(place, "lightning_logs/v0/events.out.tfevents.1.h", "e");
	write_in(place, "lightning_logs/v0/hparams.yaml", "h");
	write_in(place, "job/.hydra/config.yaml", "c");
	write_in(place, "config.yaml", "no");
	write_in(place, "big.ckpt", "no");
	collect_as(place, COLLECT_EVENTS);
	expect_text(place, "outputs/lightning_logs/v0/events.out.tfevents.1.h", "e");
	expect_text(place, "outputs/lightning_logs/v0/hparams.yaml", "h");
	expect_text(place, "outputs/job/.hydra/config.yaml", "c");
	assert_false(exists(place, "outputs/config.yaml"));
	assert_false(exists(place, "outputs/big.ckpt"));
}

/* Nothing outside is touched, whatever links the program has made on either side. */
static void test_links_lead_nowhere(void **state)
{
	struct place *place = *state;

	tree_dir(&place->tree, "elsewhere");
	tree_write(&place->tree, "elsewhere/x", "mine");
	begin(place);
	assert_int_equal(symlinkat("../elsewhere", place->tree.fd, "outputs/a"), 0);
	assert_int_equal(symlinkat("../../../elsewhere", place->tree.fd, "attempts/1/tree/b"), 0);
	write_in(place, "a/x", "new");
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "elsewhere/x", "mine");
	expect_text(place, "outputs/a.tree/x", "new");
	assert_true(is_one_file(place, "outputs/b", "attempts/1/tree/b"));
}

static void test_the_next_attempt(void **state)
{
	struct place *place = *state;
	AUTO_JSON struct json *report = NULL;

	begin(place);
	write_in(place, "ckpt/last", "1");
	write_in(place, "code.py", "changed");
	write_in(place, "dir", "file now");
	assert_int_equal(attempt_job_write(place->dirs[0], &place->job, &place->err), 0);
	tree_write(&place->tree, "attempts/2/tree/code.py", "snapshot");
	tree_dir(&place->tree, "attempts/2/tree/dir");
	tree_write(&place->tree, "attempts/2/tree/dir/x", "snapshot");
	tree_write(&place->tree, "attempts/2/tree/ckpt", "snapshot");
	place->job.attempt = 2;
	/* Nobody has collected them: the supervisor was killed. */
	assert_int_equal(collect_restore(place->dirs[1], &place->job, &place->err), 0);
	expect_text(place, "attempts/2/tree/ckpt/last", "1");
	expect_text(place, "attempts/2/tree/code.py", "changed");
	expect_text(place, "attempts/2/tree/dir", "file now");
	report = collect_read_report(place->dirs[0]);
	assert_true(json_get_bool(report, "complete", false));
	/* What it does not touch is nothing new, and stays. */
	assert_int_equal(collect_mark(place->dirs[1], &place->err), 0);
	collect_pass_mark(place->dirs[1]);
	assert_int_equal(
		collect_results(place->dirs[1], &place->job, COLLECT_ENDED, &place->err), 0);
	expect_text(place, "outputs/ckpt/last", "1");
	AUTO_JSON struct json *second = collect_read_report(place->dirs[1]);
	assert_int_equal(json_get_int(second, "files", -1), 0);
}

static void test_no_permission(void **state)
{
	struct place *place = *state;

	begin(place);
	write_in(place, "private/x", "x");
	write_in(place, "public/y", "y");
	write_in(place, "secret", "s");
	assert_int_equal(fchmodat(place->tree.fd, "attempts/1/tree/secret", 0, 0), 0);
	assert_int_equal(fchmodat(place->tree.fd, "attempts/1/tree/private", 0, 0), 0);
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "outputs/public/y", "y");
	assert_true(exists(place, "outputs/secret"));
	if (geteuid() == 0)
		assert_true(exists(place, "outputs/private/x"));
	else
		expect_warning(place, "private");
	assert_int_equal(fchmodat(place->tree.fd, "attempts/1/tree/private", 0700, 0), 0);
}

static void test_hidden_later(void **state)
{
	struct place *place = *state;

	begin(place);
	write_in(place, "private/x", "x");
	collect_as(place, COLLECT_RUNNING);
	assert_int_equal(fchmodat(place->tree.fd, "attempts/1/tree/private", 0, 0), 0);
	collect_as(place, COLLECT_ENDED);
	expect_text(place, "outputs/private/x", "x");
	assert_int_equal(fchmodat(place->tree.fd, "attempts/1/tree/private", 0700, 0), 0);
}

static void test_telling(void **state)
{
	assert_true(collect_is_telling("args.json"));
	assert_true(collect_is_telling("a/params.json"));
	assert_true(collect_is_telling("x/.hydra/overrides.yaml"));
	assert_false(collect_is_telling("myargs.json"));
	assert_false(collect_is_telling("hydra/overrides.yaml"));
	assert_false(collect_is_telling("tfevents/x"));
	assert_true(collect_is_telling("events.out.tfevents.17"));
	assert_true(collect_is_telling("tb/plugins/profile/1/host.xplane.pb"));
	assert_true(collect_is_telling("tb/projector_config.pbtxt"));
	assert_true(collect_is_telling("log/h_1.2.pt.trace.json.gz"));
	assert_true(collect_is_telling("tb/00000/default/tensors.tsv"));
	assert_false(collect_is_telling("plugins/profiles/x"));
	assert_false(collect_is_telling("data/x.tsv"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_changed_and_new, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nothing_without_a_mark, setup, teardown),
		cmocka_unit_test_setup_teardown(test_old_times_count, setup, teardown),
		cmocka_unit_test_setup_teardown(test_never_collected, setup, teardown),
		cmocka_unit_test_setup_teardown(test_both_have_it, setup, teardown),
		cmocka_unit_test_setup_teardown(test_output_made_anew, setup, teardown),
		cmocka_unit_test_setup_teardown(test_removed_by_the_program, setup, teardown),
		cmocka_unit_test_setup_teardown(test_replaced_by_rename, setup, teardown),
		cmocka_unit_test_setup_teardown(test_moved_directories, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_list_made_ahead, setup, teardown),
		cmocka_unit_test_setup_teardown(test_moved_without_a_list, setup, teardown),
		cmocka_unit_test_setup_teardown(test_newest_fit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_events_only, setup, teardown),
		cmocka_unit_test_setup_teardown(test_links_lead_nowhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_next_attempt, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_permission, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hidden_later, setup, teardown),
		cmocka_unit_test(test_telling),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

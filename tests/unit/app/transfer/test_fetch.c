/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/transfer/fetch_dir.h"
#include "tests/unit/runfix.h"

#define RUN_ID  "a-22222"
#define OUTPUTS "state/dlrun/runs/" RUN_ID "/outputs/"

/*
 * Paths
 */

static bool wants(const char *pattern, const char *path)
{
	AUTO(fetch_paths_free_auto) struct fetch_paths *paths = NULL;
	AUTO_STRV struct strv words = {0};

	strv_add(&words, pattern);
	ok(fetch_paths_new(&words, &paths, error));
	return fetch_paths_want(paths, path);
}

static void test_paths(void **state)
{
	assert_true(wants("a", "a"));
	assert_true(wants("a", "a/b/c"));
	assert_true(wants("a/", "a/b"));
	assert_true(wants("./a//b/.", "a/b"));
	assert_true(wants(".", "x/y"));
	assert_true(wants("", "x"));
	assert_false(wants("a", "ab"));
	assert_false(wants("a/b", "a"));
	assert_false(wants("a/b", "a/bc"));
	assert_true(wants("*.pt", "m.pt"));
	assert_false(wants("*.pt", "ckpt/m.pt"));
	assert_true(wants("**/*.pt", "m.pt"));
	assert_true(wants("**/*.pt", "a/b/m.pt"));
	assert_true(wants("ckpt/?.pt", "ckpt/1.pt"));
	assert_false(wants("ckpt/?.pt", "ckpt/12.pt"));
	assert_true(wants("ckpt*", "ckpt-1/m/x"));
	assert_true(wants("a/**", "a/b/c"));
	assert_true(wants("a[1].txt", "a1.txt"));
	/* A file that is called like a pattern is found by its name. */
	assert_true(wants("a[1].txt", "a[1].txt"));
	assert_true(wants("a[", "a["));
}

static bool leads(const char *pattern, const char *dir)
{
	AUTO(fetch_paths_free_auto) struct fetch_paths *paths = NULL;
	AUTO_STRV struct strv words = {0};

	strv_add(&words, pattern);
	ok(fetch_paths_new(&words, &paths, error));
	return fetch_paths_lead_into(paths, dir);
}

static void test_directories_to_poll_into(void **state)
{
	assert_true(leads("a/b/c", "a"));
	assert_true(leads("a/b/c", "a/b"));
	assert_false(leads("a/b/c", "a/x"));
	assert_false(leads("a/b/c", "ab"));
	assert_false(leads("ab/c", "a"));
	assert_true(leads("a/*/c", "a/x/y"));
	assert_false(leads("a/*/c", "b"));
	assert_true(leads("**/c", "b/c/d"));
	assert_true(leads("", "a"));
}

static void refuse(const char *word, enum err_id id)
{
	struct fetch_paths *paths = NULL;
	AUTO_STRV struct strv words = {0};
	AUTO_ERR struct err err = {0};

	strv_add(&words, word);
	assert_true(fetch_paths_new(&words, &paths, &err) < 0);
	assert_int_equal(err.id, id);
	assert_null(paths);
}

static void test_refused_paths(void **state)
{
	AUTO_STRV struct strv many = {0};
	AUTO_ERR struct err err = {0};
	struct fetch_paths *paths = NULL;
	char long_path[5000];

	refuse("/etc/passwd", E_USAGE);
	refuse("..", E_USAGE);
	refuse("a/../../b", E_USAGE);
	refuse("a/..", E_USAGE);
	memset(long_path, 'a', sizeof(long_path));
	long_path[sizeof(long_path) - 1] = '\0';
	refuse(long_path, E_DATA_LIMIT);
	for (int i = 0; i <= FETCH_PATHS_MAX; i++)
		strv_add(&many, "a");
	assert_int_equal(fetch_paths_new(&many, &paths, &err), -ERR_LIMIT);
	assert_true(wants("a..b", "a..b"));
}

/*
 * Fetching
 */

struct outcome {
	struct fetch_report report;
	struct err err;
	int r;
};

static bool from_tree;

static struct outcome fetch_with(const char *path, bool force)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_STRV struct strv paths = {0};
	AUTO_FREE char *dir = NULL;
	struct outcome outcome = {0};
	const struct fetch_options options = {
		.paths = &paths, .dir = "out", .force = force, .from_tree = from_tree};

	if (path)
		strv_add(&paths, path);
	outcome.r = run_fetch(&session, run, &options, &dir, &outcome.report, &outcome.err);
	return outcome;
}

static void fetch(size_t files, size_t skipped)
{
	struct outcome outcome = fetch_with(NULL, false);

	if (outcome.r < 0)
		fail_msg("%s", outcome.err.message);
	assert_int_equal(outcome.report.files, files);
	assert_int_equal(outcome.report.skipped, skipped);
}

static void fetch_fails(enum err_id id, size_t files, bool force, const char *evidence)
{
	struct outcome outcome = fetch_with(NULL, force);

	assert_true(outcome.r < 0);
	assert_int_equal(outcome.err.id, id);
	assert_int_equal(outcome.report.files, files);
	if (evidence)
		assert_string_equal(outcome.err.evidence[0], evidence);
	err_done(&outcome.err);
}

static void content_is(const char *name, const char *want)
{
	AUTO_BUF struct buf text = {0};

	ok(fs_read(in_root(name), 1 << 20, &text, NULL, error));
	assert_string_equal(text.data, want);
}

static mode_t mode_of(const char *name)
{
	struct stat st;

	assert_int_equal(lstat(in_root(name), &st), 0);
	return st.st_mode;
}

/* What is written twice within a moment has the same time otherwise. */
static void put_later(const char *name, const char *text)
{
	static int64_t offset_s = 10;
	struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = 1000000 + offset_s++}};

	put(name, text);
	assert_int_equal(utimensat(AT_FDCWD, in_root(name), times, 0), 0);
}

static void test_again_and_again(void **state)
{
	put_later(OUTPUTS "a/b.txt", "one");
	put_later(OUTPUTS "c.txt", "two");
	fetch(2, 0);
	content_is("tree/out/a/b.txt", "one");
	fetch(0, 2);
	put_later(OUTPUTS "c.txt", "three");
	fetch(1, 1);
	content_is("tree/out/c.txt", "three");
	unlink(in_root(OUTPUTS "c.txt"));
	fetch(0, 1);
	assert_true(exists("tree/out/c.txt"));
}

static void test_nothing_there(void **state)
{
	fetch(0, 0);
	struct outcome outcome = fetch_with("a.txt", false);
	assert_int_equal(outcome.err.id, E_FETCH_PATH);
	err_done(&outcome.err);
}

static void test_one_path(void **state)
{
	put_later(OUTPUTS "a/b.txt", "one");
	put_later(OUTPUTS "c.txt", "two");
	struct outcome outcome = fetch_with("a/*.txt", false);
	assert_int_equal(outcome.r, 0);
	assert_int_equal(outcome.report.files, 1);
	assert_int_equal(outcome.report.bytes, 3);
	assert_false(exists("tree/out/c.txt"));
	outcome = fetch_with("d", false);
	assert_int_equal(outcome.err.id, E_FETCH_PATH);
	err_done(&outcome.err);
}

static void test_files_of_others_stay(void **state)
{
	put_later(OUTPUTS "a.txt", "new");
	put_later(OUTPUTS "b.txt", "b");
	put_later("tree/out/a.txt", "mine");
	fetch_fails(E_FETCH_KEPT, 1, false, "a.txt");
	content_is("tree/out/a.txt", "mine");
	content_is("tree/out/b.txt", "b");
	struct outcome outcome = fetch_with(NULL, true);
	assert_int_equal(outcome.r, 0);
	content_is("tree/out/a.txt", "new");
	/* Now it came from a fetch, until somebody changes it. */
	put_later(OUTPUTS "a.txt", "newer");
	fetch(1, 1);
	put_later("tree/out/a.txt", "changed");
	put_later(OUTPUTS "a.txt", "newest");
	fetch_fails(E_FETCH_KEPT, 0, false, "a.txt");
	content_is("tree/out/a.txt", "changed");
}

static void test_directory_in_the_way(void **state)
{
	put_later(OUTPUTS "a", "file");
	put_later(OUTPUTS "b/c", "in a directory");
	put_later("tree/out/a/x", "mine");
	put_later("tree/out/b", "a file of mine");
	fetch_fails(E_FETCH_KEPT, 0, false, NULL);
	/* A directory is not removed by force either. */
	fetch_fails(E_FETCH_KEPT, 1, true, "a");
	content_is("tree/out/a/x", "mine");
	content_is("tree/out/b/c", "in a directory");
}

static void test_modes(void **state)
{
	put_later(OUTPUTS "run.sh", "x");
	put_later(OUTPUTS "d/secret", "x");
	assert_int_equal(chmod(in_root(OUTPUTS "run.sh"), 06755), 0);
	assert_int_equal(chmod(in_root(OUTPUTS "d/secret"), 0600), 0);
	assert_int_equal(chmod(in_root(OUTPUTS "d"), 0500), 0);
	fetch(2, 0);
	assert_int_equal(mode_of("tree/out/run.sh"), S_IFREG | 0755);
	assert_int_equal(mode_of("tree/out/d/secret"), S_IFREG | 0600);
	assert_int_equal(mode_of("tree/out/d"), S_IFDIR | 0700);
	chmod(in_root(OUTPUTS "d"), 0700);
}

static void test_links_and_specials(void **state)
{
	char target[100];

	put_later("outside/precious", "keep");
	put_later(OUTPUTS "real/x", "x");
	assert_int_equal(symlink("real", in_root(OUTPUTS "latest")), 0);
	assert_int_equal(symlink("../../../../../outside", in_root(OUTPUTS "up")), 0);
	assert_int_equal(symlink("nowhere", in_root(OUTPUTS "dangling")), 0);
	assert_int_equal(mkfifo(in_root(OUTPUTS "pipe"), 0600), 0);
	fetch(4, 0);
	fetch(0, 4);
	assert_int_equal(readlink(in_root("tree/out/up"), target, sizeof(target)), 22);
	assert_memory_equal(target, "../../../../../outside", 22);
	assert_false(exists("tree/out/up/precious") && !S_ISLNK(mode_of("tree/out/up")));
	assert_false(exists("tree/out/pipe"));
}

/* What was a link to a place outside becomes a directory in the next fetch. */
static void test_never_through_a_link(void **state)
{
	AUTO_FREE char *outside = mem_strdup(in_root("outside"));

	put_later("outside/precious", "keep");
	put_later(OUTPUTS "x", "x");
	assert_int_equal(symlink(outside, in_root(OUTPUTS "d")), 0);
	fetch(2, 0);
	unlink(in_root(OUTPUTS "d"));
	put_later(OUTPUTS "d/precious", "evil");
	fetch(1, 1);
	content_is("outside/precious", "keep");
	content_is("tree/out/d/precious", "evil");
	assert_true(S_ISDIR(mode_of("tree/out/d")));
}

static void test_link_of_others_stays(void **state)
{
	AUTO_FREE char *outside = mem_strdup(in_root("outside"));

	put_later("outside/precious", "keep");
	put_later(OUTPUTS "d/precious", "evil");
	put_later(OUTPUTS "f", "evil");
	put_later("tree/out/y", "y");
	assert_int_equal(symlink(outside, in_root("tree/out/d")), 0);
	assert_int_equal(symlink("../../outside/precious", in_root("tree/out/f")), 0);
	fetch_fails(E_FETCH_KEPT, 0, false, NULL);
	content_is("outside/precious", "keep");
	struct outcome outcome = fetch_with(NULL, true);
	assert_int_equal(outcome.r, 0);
	content_is("outside/precious", "keep");
	assert_true(S_ISREG(mode_of("tree/out/f")));
}

static void test_own_name_is_not_taken(void **state)
{
	put_later(OUTPUTS FETCH_OWN "/seen", "evil");
	put_later(OUTPUTS "a", "a");
	fetch_fails(E_IO_READ, 1, false, NULL);
	put_later(OUTPUTS "b", "b");
	fetch_fails(E_IO_READ, 1, false, NULL);
}

static void test_unreadable(void **state)
{
	put_later(OUTPUTS "a", "a");
	put_later(OUTPUTS "b", "b");
	assert_int_equal(chmod(in_root(OUTPUTS "a"), 0), 0);
	if (geteuid() == 0)
		skip();
	fetch_fails(E_IO_READ, 1, false, "a");
}

/* Records that another program has written over. */
static void test_damaged_memory(void **state)
{
	put_later(OUTPUTS "a", "a");
	fetch(1, 0);
	put_later("tree/out/" FETCH_OWN "/seen", "-1 x y z\n\n999999999999999999999 1 1 a");
	fetch(0, 1);
	put_later(OUTPUTS "a", "b");
	fetch_fails(E_FETCH_KEPT, 0, false, "a");
}

/* A fetch that was killed has left the file that it was at. */
static void test_after_a_kill(void **state)
{
	put_later(OUTPUTS "a", "whole");
	put_later("tree/out/" FETCH_OWN "/new", "half");
	fetch(1, 0);
	content_is("tree/out/a", "whole");
	assert_false(exists("tree/out/" FETCH_OWN "/new"));
}

/* Into the results themselves: not once more and once more, level by level. */
static void test_into_the_results(void **state)
{
	AUTO_FREE char *outputs = mem_strdup(in_root("state/dlrun/runs/" RUN_ID "/outputs"));

	put_later(OUTPUTS "a/b", "b");
	put_later("tree/x", "x");
	assert_int_equal(symlink(outputs, in_root("tree/out")), 0);
	fetch_fails(E_USAGE, 0, false, NULL);
	assert_false(exists(OUTPUTS FETCH_OWN));
	unlink(in_root("tree/out"));
	AUTO_FREE char *below = mem_printf("%s/a", outputs);
	assert_int_equal(symlink(below, in_root("tree/out")), 0);
	fetch(0, 0);
	assert_false(exists(OUTPUTS "a/a"));
}

/* A writer at work: never an error, and each copy is a beginning of what was written. */
static void test_growing_file(void **state)
{
	AUTO_FREE char *log = mem_strdup(in_root(OUTPUTS "log"));
	struct stat st;
	off_t last = 0;

	put(OUTPUTS "log", "");
	pid_t pid = fork();
	if (pid == 0) {
		int fd = open(log, O_WRONLY | O_APPEND);
		for (;;)
			if (write(fd, "0123456789", 10) != 10 || lseek(fd, 0, SEEK_END) > 50000000)
				_exit(0);
	}
	for (int i = 0; i < 20; i++) {
		struct outcome outcome = fetch_with(NULL, false);
		if (outcome.r < 0)
			fail_msg("%s", outcome.err.message);
		assert_int_equal(lstat(in_root("tree/out/log"), &st), 0);
		assert_true(st.st_size >= last);
		last = st.st_size;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	fetch_with(NULL, false);
	assert_int_equal(stat(log, &st), 0);
	last = st.st_size;
	assert_int_equal(lstat(in_root("tree/out/log"), &st), 0);
	assert_int_equal(st.st_size, last);
}

/* What was written beside the results. */
static void test_from_the_tree(void **state)
{
	from_tree = true;
	struct outcome outcome = fetch_with("logs", false);
	assert_int_equal(outcome.err.id, E_FETCH_PATH);
	err_done(&outcome.err);
	assert_false(exists("tree/out"));
	put_later(OUTPUTS "logs/b.txt", "results");
	put_later("state/dlrun/runs/" RUN_ID "/attempts/1/tree/logs/a.txt", "one");
	put_later("state/dlrun/runs/" RUN_ID "/attempts/1/tree/code.py", "two");
	outcome = fetch_with("logs", false);
	assert_int_equal(outcome.r, 0);
	assert_int_equal(outcome.report.files, 1);
	content_is("tree/out/logs/a.txt", "one");
	outcome = fetch_with("absent", false);
	assert_int_equal(outcome.err.id, E_FETCH_PATH);
	assert_string_equal(outcome.err.message, "no 'absent' in the tree of " RUN_ID);
	err_done(&outcome.err);
	outcome = fetch_with("../log", false);
	assert_int_equal(outcome.err.id, E_USAGE);
	err_done(&outcome.err);
	from_tree = false;
}

/*
 * Large files whose fetch is cut
 */

static char large[3 << 20];

static struct fetch_sink *open_sink(void)
{
	static struct fetch_paths *paths;
	struct fetch_sink *sink = NULL;

	fetch_paths_free(paths);
	ok(fetch_paths_new(NULL, &paths, error));
	ok(fetch_dir_open(in_root("tree/out"), paths, false, &sink, error));
	return sink;
}

static const struct fetch_item *large_item(int64_t mtime_ns, bool changing)
{
	static struct fetch_item item;

	for (size_t i = 0; i < sizeof(large); i++)
		large[i] = (char)((i * 2654435761U) >> 13);
	item = (struct fetch_item){.path = "d/large",
		.mode = S_IFREG | 0644,
		.size = sizeof(large),
		.mtime_ns = mtime_ns,
		.changing = changing};
	return &item;
}

/* Up to that byte, and then it is cut; where it began. */
static uint64_t cut_at(uint64_t end, const struct fetch_item *item)
{
	struct fetch_sink *sink = open_sink();
	struct fetch_range range = {0};

	assert_int_equal(fetch_sink_wants(sink, item, &range, NULL), 1);
	assert_int_equal(range.offset + range.len, item->size);
	assert_int_equal(fetch_sink_begin(sink, item, &range, NULL), 1);
	ok(fetch_sink_write(sink, large + range.offset, (size_t)(end - range.offset), error));
	if (end == item->size)
		ok(fetch_sink_end(sink, item, error));
	fetch_sink_free(sink);
	return range.offset;
}

static void test_goes_on_in_a_file(void **state)
{
	AUTO_BUF struct buf text = {0};

	assert_int_equal(cut_at(1000000, large_item(5, false)), 0);
	assert_int_equal(cut_at(2000000, large_item(5, false)), 1000000);
	/* In another state it is another file. */
	assert_int_equal(cut_at(500000, large_item(6, false)), 0);
	/* One byte is left to come where all had come. */
	assert_int_equal(cut_at(sizeof(large) - 1, large_item(5, false)), 2000000);
	assert_int_equal(cut_at(sizeof(large), large_item(5, false)), sizeof(large) - 1);
	ok(fs_read(in_root("tree/out/d/large"), sizeof(large), &text, NULL, error));
	assert_int_equal(text.len, sizeof(large));
	assert_memory_equal(text.data, large, sizeof(large));
	struct fetch_sink *sink = open_sink();
	ok(fetch_dir_finish(sink, RUN_ID, error));
	fetch_sink_free(sink);
	assert_int_equal(cut_at(1, large_item(6, false)), 0);
}

/* What may change unseen is never put together of two moments. */
static void test_begins_anew(void **state)
{
	assert_int_equal(cut_at(1000000, large_item(5, true)), 0);
	assert_int_equal(cut_at(1000000, large_item(5, true)), 0);
	assert_int_equal(cut_at(1000000, large_item(5, false)), 0);
	assert_int_equal(cut_at(1000001, large_item(5, false)), 1000000);
	/* Beginnings of many files that nobody goes on with are forgotten. */
	for (int i = 10; i < 20; i++)
		assert_int_equal(cut_at(1000, large_item(i, false)), 0);
	assert_int_equal(cut_at(1000001, large_item(5, false)), 0);
}

/* As often as it takes; where the first range began. What is here is `large` then. */
static uint64_t brought_from(const struct fetch_item *item)
{
	struct fetch_sink *sink = open_sink();
	struct fetch_range range = {0};
	uint64_t first = UINT64_MAX;
	AUTO_FREE char *path = mem_printf("tree/out/%s", item->path);
	AUTO_BUF struct buf text;

	do {
		assert_int_equal(fetch_sink_wants(sink, item, &range, NULL), 1);
		first = first == UINT64_MAX ? range.offset : first;
		assert_int_equal(fetch_sink_begin(sink, item, &range, NULL), 1);
		ok(fetch_sink_write(sink, large + range.offset, (size_t)range.len, error));
		ok(fetch_sink_end(sink, item, error));
	} while (fetch_dir_again(sink));
	fetch_sink_free(sink);
	buf_init(&text, sizeof(large));
	ok(fs_read(in_root(path), sizeof(large), &text, NULL, error));
	assert_int_equal(text.len, item->size);
	assert_memory_equal(text.data, large, (size_t)item->size);
	return first;
}

enum { MIB = 1 << 20 };

static void test_end_of_a_log(void **state)
{
	struct fetch_item item = *large_item(5000, true);

	item.path = "d/model.pt";
	assert_int_equal(brought_from(&item), 0);
	assert_int_equal(brought_from(&item), 0);
	item.path = "d/train.log";
	item.size = 2 * MIB;
	assert_int_equal(brought_from(&item), 0);
	item.size = sizeof(large);
	assert_int_equal(brought_from(&item), 2 * MIB - FETCH_GROW_OVERLAP);
	/* It may have changed within its time, while it is fresh and once more when it is not. */
	assert_int_equal(brought_from(&item), sizeof(large) - FETCH_GROW_OVERLAP);
	item.changing = false;
	assert_int_equal(brought_from(&item), sizeof(large) - FETCH_GROW_OVERLAP);
	/* Changed in its place, with the same end. */
	memset(large, 'x', MIB);
	item.mtime_ns = 6000;
	assert_int_equal(brought_from(&item), 0);
}

/* It is the same at its end while it is written to. */
static void test_log_with_space_ahead(void **state)
{
	struct fetch_item item = *large_item(5000, true);

	item.path = "d/train.log";
	item.size = 2 * MIB;
	memset(large + MIB, 0, sizeof(large) - MIB);
	large[MIB - 1] = 'x';
	assert_int_equal(brought_from(&item), 0);
	memset(large + MIB, 'x', MIB / 2);
	assert_int_equal(brought_from(&item), MIB - FETCH_GROW_OVERLAP);
	memset(large + MIB / 2 * 3, 'y', MIB / 2);
	item.size = sizeof(large);
	item.mtime_ns = 6000;
	assert_int_equal(brought_from(&item), MIB / 2 * 3 - FETCH_GROW_OVERLAP);
}

/* What was cut off at its beginning while a program had it open. */
static void test_end_of_a_sparse_log(void **state)
{
	struct fetch_item item = *large_item(5000, false);
	struct stat st;

	item.path = "d/train.log";
	item.size = sizeof(large) - MIB / 2;
	memset(large, 0, 2 * MIB);
	assert_int_equal(brought_from(&item), 0);
	item.size = sizeof(large);
	item.mtime_ns = 6000;
	assert_int_equal(brought_from(&item), sizeof(large) - MIB / 2 - FETCH_GROW_OVERLAP);
	assert_int_equal(stat(in_root("tree/out/d/train.log"), &st), 0);
	assert_true(st.st_blocks * 512 <= 2 * MIB);
}

/* A directory or a link that has got the name of a beginning. */
static void test_beginning_of_others(void **state)
{
	assert_int_equal(cut_at(1000000, large_item(5, false)), 0);
	AUTO_DIR DIR *dir = opendir(in_root("tree/out/" FETCH_OWN));
	struct dirent *entry;
	while ((entry = readdir(dir)) && strncmp(entry->d_name, "part-", 5) != 0)
		;
	assert_non_null(entry);
	AUTO_FREE char *name = mem_printf("tree/out/" FETCH_OWN "/%s", entry->d_name);
	AUTO_FREE char *path = mem_strdup(in_root(name));
	put("outside/precious", "keep");
	unlink(path);
	assert_int_equal(symlink("../../../outside/precious", path), 0);
	assert_int_equal(cut_at(sizeof(large), large_item(5, false)), 0);
	content_is("outside/precious", "keep");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make_session, remove_session)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_directories_to_poll_into),
		cmocka_unit_test(test_refused_paths),
		TEST(test_again_and_again),
		TEST(test_nothing_there),
		TEST(test_one_path),
		TEST(test_files_of_others_stay),
		TEST(test_directory_in_the_way),
		TEST(test_modes),
		TEST(test_links_and_specials),
		TEST(test_never_through_a_link),
		TEST(test_link_of_others_stays),
		TEST(test_own_name_is_not_taken),
		TEST(test_unreadable),
		TEST(test_damaged_memory),
		TEST(test_after_a_kill),
		TEST(test_into_the_results),
		TEST(test_growing_file),
		TEST(test_from_the_tree),
		TEST(test_goes_on_in_a_file),
		TEST(test_begins_anew),
		TEST(test_beginning_of_others),
		TEST(test_end_of_a_log),
		TEST(test_log_with_space_ahead),
		TEST(test_end_of_a_sparse_log),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

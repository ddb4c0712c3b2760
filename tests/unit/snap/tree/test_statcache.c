/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/tree/statcache.h"

static char root[256], *path;

static int make_root(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(root, sizeof(root), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	if (!mkdtemp(root))
		return -1;
	path = statcache_path(root, "/some/tree");
	return 0;
}

static int remove_root(void **state)
{
	free(path);
	return fs_remove_tree(AT_FDCWD, root, NULL);
}

#define test(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

/* The entry number i: each field differs. */
static struct statcache_entry entry_of(size_t i)
{
	struct statcache_entry entry = {
		.dev = 7,
		.ino = 1000 + i,
		.size = i * i,
		.mtime_ns = (int64_t)i * 1000000007 - 5,
		.ctime_ns = (int64_t)i * 1000000009,
		.mode = 0100644,
		.flags = STATCACHE_GIT_SHA1,
	};

	memset(entry.sha256, (int)i, sizeof(entry.sha256));
	memset(entry.git_id, (int)i + 1, sizeof(entry.git_id));
	return entry;
}

static void write_entries(size_t n)
{
	struct cachefile_writer *writer = statcache_write(path);

	assert_non_null(writer);
	for (size_t i = 0; i < n; i++) {
		char name[64];
		struct statcache_entry entry = entry_of(i);
		/* Lengths of all kinds modulo eight. */
		snprintf(name, sizeof(name), "dir/%06zu%.*s", i, (int)(i % 9), "xxxxxxxxx");
		statcache_add(writer, &entry, name);
	}
	cachefile_write_end(writer);
}

static size_t count(void)
{
	struct statcache cache;
	struct statcache_cursor cursor = {0};
	size_t n = 0;

	statcache_open(&cache, path);
	while (statcache_next(&cache, &cursor))
		n++;
	assert_int_equal(n, cache.file.n);
	statcache_done(&cache);
	return n;
}

static void test_path(void **state)
{
	AUTO_FREE char *other = statcache_path("/c", "/some/other");
	AUTO_FREE char *same = statcache_path("/c", "/some/tree");

	assert_string_not_equal(other, same);
	assert_true(str_starts(same, "/c/") && str_ends(same, "/stat.v1"));
	assert_int_equal(strlen(same), strlen("/c//stat.v1") + 16);
	assert_string_equal(same + 3, path + strlen(root) + 1);
}

static void test_round_trip(void **state)
{
	struct statcache cache;
	struct statcache_cursor cursor = {0};

	write_entries(5000);
	statcache_open(&cache, path);
	assert_int_equal(cache.file.n, 5000);
	for (size_t i = 0; i < 5000; i++) {
		char name[64];
		struct statcache_entry expected = entry_of(i);

		assert_true(statcache_next(&cache, &cursor));
		snprintf(name, sizeof(name), "dir/%06zu%.*s", i, (int)(i % 9), "xxxxxxxxx");
		assert_string_equal(cursor.path, name);
		expected.path_len = (uint16_t)strlen(name);
		assert_memory_equal(&cursor.entry, &expected, sizeof(expected));
	}
	assert_false(statcache_next(&cache, &cursor));
	assert_false(statcache_next(&cache, &cursor));
	statcache_done(&cache);
}

/* Each entry is found, and from between two of them the next one. */
static void test_seek(void **state)
{
	struct statcache cache;
	struct statcache_cursor all = {0}, cursor;
	char path_after[80];

	write_entries(1000);
	statcache_open(&cache, path);
	statcache_seek(&cache, &cursor, "");
	assert_int_equal(cursor.at, 0);
	while (statcache_next(&cache, &all)) {
		statcache_seek(&cache, &cursor, all.path);
		assert_true(statcache_next(&cache, &cursor));
		assert_ptr_equal(cursor.path, all.path);
		snprintf(path_after, sizeof(path_after), "%s ", all.path);
		statcache_seek(&cache, &cursor, path_after);
		assert_int_equal(cursor.at, all.at);
	}
	statcache_seek(&cache, &cursor, "e");
	assert_false(statcache_next(&cache, &cursor));
	statcache_done(&cache);
	statcache_seek(&cache, &cursor, "a");
	assert_false(statcache_next(&cache, &cursor));
}

static void test_empty_and_missing(void **state)
{
	assert_int_equal(count(), 0);
	write_entries(0);
	assert_int_equal(access(path, R_OK), 0);
	assert_int_equal(count(), 0);
	write_entries(3);
	assert_int_equal(count(), 3);
	struct statcache zero = {0};
	struct statcache_cursor cursor = {0};
	assert_false(statcache_next(&zero, &cursor));
	statcache_done(&zero);
	statcache_done(NULL);
}

static void test_modes(void **state)
{
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	struct stat st;

	write_entries(1);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
}

/* No bit can flip and no byte be lost without it being seen. */
static void test_damage_is_seen(void **state)
{
	AUTO_BUF struct buf data = {0};
	struct statcache cache;

	write_entries(12);
	assert_int_equal(fs_read(path, 1 << 20, &data, NULL, NULL), 0);
	assert_true(statcache_parse(&cache, data.data, data.len));
	statcache_done(&cache);
	for (size_t bit = 0; bit < 8 * data.len; bit++) {
		data.data[bit / 8] ^= (char)(1 << bit % 8);
		assert_false(statcache_parse(&cache, data.data, data.len));
		assert_int_equal(cache.file.n, 0);
		data.data[bit / 8] ^= (char)(1 << bit % 8);
	}
	for (size_t len = 0; len < data.len; len++)
		assert_false(statcache_parse(&cache, data.data, len));
	AUTO_FREE char *longer = mem_alloc(data.len + 8, 1);
	memcpy(longer, data.data, data.len);
	assert_false(statcache_parse(&cache, longer, data.len + 8));
	assert_true(statcache_parse(&cache, data.data, data.len));
	statcache_done(&cache);
}

static char noted[512];

static void note(void *ctx, const char *line)
{
	snprintf(noted, sizeof(noted), "%s", line);
}

static void test_damaged_file_is_noted(void **state)
{
	write_entries(100);
	assert_int_equal(truncate(path, 1000), 0);
	log_set_sink(note, NULL);
	noted[0] = '\0';
	assert_int_equal(count(), 0);
	log_set_sink(NULL, NULL);
	assert_non_null(strstr(noted, path));
	write_entries(2);
	assert_int_equal(count(), 2);
}

static void test_odd_files(void **state)
{
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(count(), 0);
	unlink(path);
	assert_int_equal(symlink("/dev/zero", path), 0);
	assert_int_equal(count(), 0);
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(count(), 0);
	/* It cannot be replaced either, and nothing is left behind. */
	write_entries(1);
	AUTO_FREE char *temp = mem_printf("%s.tmp", path);
	assert_int_equal(access(temp, F_OK), -1);
}

static void test_directory_cannot_be_made(void **state)
{
	AUTO_FREE char *file = mem_printf("%s/file", root);
	AUTO_FREE char *below = statcache_path(file, "/tree");
	int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	struct statcache cache;

	assert_int_equal(close(fd), 0);
	assert_null(statcache_write(below));
	cachefile_write_end(NULL);
	statcache_open(&cache, below);
	assert_int_equal(cache.file.n, 0);
}

/* Of two at the same time one writes; the other gives up at once. */
static void test_lock(void **state)
{
	struct cachefile_writer *first = statcache_write(path);
	struct statcache_entry entry = entry_of(1);

	assert_non_null(first);
	assert_null(statcache_write(path));
	statcache_add(first, &entry, "a");
	cachefile_write_end(first);
	assert_int_equal(count(), 1);
}

/* What a killed process left in the temporary file does not come back. */
static void test_leftover_is_overwritten(void **state)
{
	write_entries(50);
	AUTO_FREE char *temp = mem_printf("%s.tmp", path);
	assert_int_equal(rename(path, temp), 0);
	write_entries(1);
	assert_int_equal(count(), 1);
	assert_int_equal(access(temp, F_OK), -1);
}

/* A write that fails in the middle leaves the old file and nothing else. */
static void test_full_disk(void **state)
{
	AUTO_FREE char *temp = mem_printf("%s.tmp", path);
	int status;

	write_entries(4);
	pid_t pid = fork();
	if (pid == 0) {
		struct rlimit limit = {.rlim_cur = 300000, .rlim_max = 300000};
		signal(SIGXFSZ, SIG_IGN);
		if (setrlimit(RLIMIT_FSIZE, &limit))
			_exit(9);
		struct cachefile_writer *writer = statcache_write(path);
		struct statcache_entry entry = entry_of(1);
		for (int i = 0; writer && i < 10000; i++)
			statcache_add(writer, &entry, "a/path/of/some/length");
		cachefile_write_end(writer);
		_exit(!writer);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(count(), 4);
	assert_int_equal(access(temp, F_OK), -1);
}

static void test_temporary_name_that_is_a_link(void **state)
{
	AUTO_FREE char *temp = mem_printf("%s.tmp", path);
	AUTO_FREE char *other = mem_printf("%s/other", root);

	write_entries(4);
	assert_int_equal(symlink(other, temp), 0);
	assert_null(statcache_write(path));
	assert_int_equal(access(other, F_OK), -1);
	assert_int_equal(count(), 4);
}

static void test_long_paths_stay_out(void **state)
{
	AUTO_FREE char *name = mem_alloc(70001, 1);
	struct cachefile_writer *writer = statcache_write(path);
	struct statcache_entry entry = entry_of(1);

	memset(name, 'a', 70000);
	statcache_add(writer, &entry, name);
	statcache_add(writer, &entry, name + 70000 - 4095);
	cachefile_write_end(writer);
	assert_int_equal(count(), 1);
}

static void test_matches(void **state)
{
	struct statcache_entry entry = entry_of(9);
	const struct statcache_stat same = {
		.dev = entry.dev,
		.ino = entry.ino,
		.size = entry.size,
		.mtime_ns = entry.mtime_ns,
		.ctime_ns = entry.ctime_ns,
		.mode = entry.mode,
	};
	struct statcache_stat stat = same;

	assert_true(statcache_matches(&entry, &same, false));
	stat.size++;
	assert_false(statcache_matches(&entry, &stat, true));
	stat = same;
	stat.mtime_ns++;
	assert_false(statcache_matches(&entry, &stat, true));
	stat = same;
	stat.ctime_ns--;
	assert_false(statcache_matches(&entry, &stat, true));
	stat = same;
	stat.mode ^= 0100;
	assert_false(statcache_matches(&entry, &stat, true));
	stat = same;
	stat.ino++;
	assert_false(statcache_matches(&entry, &stat, false));
	assert_true(statcache_matches(&entry, &stat, true));
	stat = same;
	stat.dev++;
	assert_false(statcache_matches(&entry, &stat, false));
	assert_true(statcache_matches(&entry, &stat, true));
}

static void test_settled(void **state)
{
	const int64_t second = 1000000000, now = 1800000000 * second;
	struct statcache_stat stat = {.mtime_ns = now - 3 * second};

	/* A coarse clock. */
	stat.ctime_ns = stat.mtime_ns;
	assert_true(statcache_is_settled(&stat, now, false));
	assert_false(statcache_is_settled(&stat, now, true));
	stat.ctime_ns += second;
	assert_false(statcache_is_settled(&stat, now, false));
	assert_true(statcache_is_settled(&stat, now + 1, false));
	/* A fine one. */
	stat.mtime_ns = stat.ctime_ns = now - second / 10 + 1;
	assert_false(statcache_is_settled(&stat, now, false));
	stat.mtime_ns = stat.ctime_ns = now - second / 10 - 1;
	assert_true(statcache_is_settled(&stat, now, false));
	assert_false(statcache_is_settled(&stat, now, true));
	/* A time that was set back does not help, nor one that is younger. */
	stat.ctime_ns = now - 1;
	stat.mtime_ns = 0;
	assert_false(statcache_is_settled(&stat, now, false));
	stat.ctime_ns = now - second + 1;
	stat.mtime_ns = now - 1;
	assert_false(statcache_is_settled(&stat, now, false));
	/* The clock went back a day. */
	stat.ctime_ns = stat.mtime_ns = now + 86400 * second + 1;
	assert_false(statcache_is_settled(&stat, now, false));
	stat.ctime_ns = stat.mtime_ns = now - 5 * second - 1;
	assert_true(statcache_is_settled(&stat, now, true));
	stat.ctime_ns = stat.mtime_ns = -second;
	assert_true(statcache_is_settled(&stat, now, false));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_path),
		test(test_round_trip),
		test(test_seek),
		test(test_empty_and_missing),
		test(test_modes),
		test(test_damage_is_seen),
		test(test_damaged_file_is_noted),
		test(test_odd_files),
		test(test_directory_cannot_be_made),
		test(test_lock),
		test(test_leftover_is_overwritten),
		test(test_full_disk),
		test(test_temporary_name_that_is_a_link),
		test(test_long_paths_stay_out),
		test(test_matches),
		test(test_settled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <time.h>

#include "base/os/os.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "snap/tree/paths.h"
#include "snap/tree/statcache.h"
#include "tests/unit/tree.h"

enum { DIRS = 60, FILES = 20, ROUNDS = 150 };

static struct tree tree, cache_tree;
static char *file;

static int setup(void **state)
{
	tree = tree_new();
	cache_tree = tree_new();
	AUTO_FREE char *stat = fs_join(cache_tree.root, "x/stat.v1");
	file = dircache_path(stat);
	return 0;
}

static int teardown(void **state)
{
	free(file);
	tree_free(&tree);
	tree_free(&cache_tree);
	return 0;
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/*
 * The file
 */

struct sample {
	const char *path, *text;
	size_t text_len;
	uint32_t n_names, flags;
};

#define TEXT(text) text, sizeof(text)

static const struct sample good[] = {
	{"", TEXT("\4a\0\10b"), 2, DIRCACHE_GIT},
	{"a", TEXT("\10x"), 1, DIRCACHE_FOLD_GIT},
	{"a/b", "", 0, 0, 0},
	{"ab", TEXT("\10.gitignore\0\10seven77"), 2, DIRCACHE_GITIGNORE},
};

static struct dircache_stat stat_of(size_t i)
{
	return (struct dircache_stat){i, i * 3, (int64_t)i * 1000000007, -(int64_t)i};
}

static void write_samples(const struct sample *samples, size_t n)
{
	struct cachefile_writer *writer = dircache_write(file);
	struct arena arena = {0};

	assert_non_null(writer);
	for (size_t i = 0; i < n; i++) {
		struct dircache_stat stat = stat_of(i);
		char *text;
		struct dircache_row *row = dircache_row_new(
			&arena, &stat, samples[i].path, samples[i].text_len, &text);
		if (samples[i].text_len)
			memcpy(text, samples[i].text, samples[i].text_len);
		row->n_names = samples[i].n_names;
		row->flags = samples[i].flags;
		dircache_add(writer, row);
	}
	cachefile_write_end(writer);
	arena_done(&arena);
}

static size_t count_rows(void)
{
	struct dircache cache;

	dircache_open(&cache, file);
	size_t n = cache.n;
	dircache_done(&cache);
	return n;
}

static void test_round_trip(void **state)
{
	struct dircache cache;

	assert_int_equal(count_rows(), 0);
	write_samples(good, ARRAY_LEN(good));
	dircache_open(&cache, file);
	assert_int_equal(cache.n, ARRAY_LEN(good));
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		const struct dircache_row *row = dircache_find(&cache, good[i].path);
		struct dircache_stat stat = stat_of(i);
		bool fold = good[i].flags & DIRCACHE_FOLD_GIT;

		assert_ptr_equal(row, cache.rows[i]);
		assert_string_equal(dircache_row_path(row), good[i].path);
		assert_int_equal(row->text_len, good[i].text_len);
		assert_memory_equal(dircache_row_text(row), good[i].text, row->text_len);
		assert_int_equal(row->n_names, good[i].n_names);
		assert_int_equal(row->flags, good[i].flags);
		assert_true(dircache_matches(row, &stat, fold));
		assert_false(dircache_matches(row, &stat, !fold));
		for (size_t byte = 0; byte < sizeof(stat); byte++) {
			((uint8_t *)&stat)[byte] ^= 1;
			assert_false(dircache_matches(row, &stat, fold));
			((uint8_t *)&stat)[byte] ^= 1;
		}
	}
	assert_null(dircache_find(&cache, "a/"));
	assert_null(dircache_find(&cache, "b"));
	dircache_done(&cache);
	dircache_done(NULL);
	assert_null(dircache_find(&(struct dircache){0}, ""));
}

static void test_damage(void **state)
{
	AUTO_BUF struct buf data = {0};
	struct dircache cache;

	write_samples(good, ARRAY_LEN(good));
	assert_int_equal(fs_read(file, 1 << 20, &data, NULL, NULL), 0);
	for (size_t bit = 0; bit < 8 * data.len; bit++) {
		data.data[bit / 8] ^= (char)(1 << bit % 8);
		assert_false(dircache_parse(&cache, data.data, data.len));
		assert_int_equal(cache.n, 0);
		data.data[bit / 8] ^= (char)(1 << bit % 8);
	}
	for (size_t len = 0; len < data.len; len++)
		assert_false(dircache_parse(&cache, data.data, len));
	assert_true(dircache_parse(&cache, data.data, data.len));
	dircache_done(&cache);
	assert_int_equal(truncate(file, (off_t)data.len - 8), 0);
	assert_int_equal(count_rows(), 0);
}

/* With a checksum that fits. */
static void test_rows_that_are_none(void **state)
{
	static const struct sample bad[][2] = {
		{{"b", "", 0, 0, 0}, {"a", "", 0, 0, 0}},
		{{"a", "", 0, 0, 0}, {"a", "", 0, 0, 0}},
		{{"a", "", 0, 1, 0}, {"b", "", 0, 0, 0}},
		{{"a", TEXT("\10x"), 2, 0}, {"b", "", 0, 0, 0}},
		{{"a", "\10xy", 3, 1, 0}, {"b", "", 0, 0, 0}},
	};
	AUTO_FREE char *path_long = mem_alloc(ENTRY_PATH_MAX + 2, 1);
	struct sample one = {path_long, "", 0, 0, 0};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		write_samples(bad[i], 2);
		assert_int_equal(count_rows(), 0);
	}
	memset(path_long, 'a', ENTRY_PATH_MAX);
	write_samples(&one, 1);
	assert_int_equal(count_rows(), 1);
	path_long[ENTRY_PATH_MAX] = 'a';
	write_samples(&one, 1);
	assert_int_equal(count_rows(), 0);
}

/*
 * Listings
 */

static bool take(struct listing *listing, const char *text, size_t len, size_t n)
{
	AUTO_FREE char *copy = len ? mem_dup(text, len) : NULL;

	return listing_take(listing, copy, len, n);
}

static void test_take(void **state)
{
	static const char text[] = "\4dir\0\10f";
	static const struct {
		const char *text;
		size_t len, n;
	} bad[] = {
		{TEXT("\10a/b"), 1},
		{TEXT("\10."), 1},
		{TEXT("\10.."), 1},
		{TEXT("\4.git"), 1},
		{TEXT("\10"), 1},
		{TEXT("\10a"), 0},
		{TEXT("\10a"), 2},
		{"\10a", 2, 1},
		{"\10", 1, 1},
		{"", 0, 1},
	};
	struct listing listing;

	listing_init(&listing);
	assert_true(listing_take(&listing, text, sizeof(text), 2));
	assert_string_equal(listing.items.v[0].name, "dir");
	assert_int_equal(listing.items.v[0].type, DT_DIR);
	assert_int_equal(listing.items.v[0].len, 3);
	assert_string_equal(listing.items.v[1].name, "f");
	assert_int_equal(listing.items.v[1].type, DT_REG);
	assert_true(take(&listing, "", 0, 0));
	assert_int_equal(listing.items.n, 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(take(&listing, bad[i].text, bad[i].len, bad[i].n));
	listing_done(&listing);
}

/*
 * Walks
 */

static struct strv limits;

/* All that a walk finds as text. remember: with the cache. */
static char *walk(bool remember)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	struct dircache cache = {0};
	struct path_list list;
	struct paths_options options = {.root = tree.root, .paths = &limits};

	if (remember) {
		dircache_open(&cache, file);
		options.dirs = &cache;
		options.dirs_path = file;
	}
	assert_int_equal(paths_list(&options, &list, &err), 0);
	buf_init(&out, 1 << 22);
	vec_foreach (const struct path, path, &list)
		buf_addf(&out, "%s %o %ju\n", path->path, path->mode, (uintmax_t)path->ino);
	vec_foreach (const struct excluded, row, &list.excluded)
		buf_addf(&out, "- %s %d\n", row->path, row->why);
	path_list_done(&list);
	dircache_done(&cache);
	return mem_strdup(out.data);
}

static void make_tree(void)
{
	char path[64];

	for (int d = 0; d < DIRS; d++)
		for (int f = 0; f < FILES; f++) {
			snprintf(path, sizeof(path), "d%d/e/f%d", d, f);
			tree_write(&tree, path, "");
		}
}

static struct dircache_stat stat_at(const char *path)
{
	struct stat st;

	assert_int_equal(fstatat(tree.fd, path, &st, 0), 0);
	return (struct dircache_stat){
		.dev = st.st_dev,
		.ino = st.st_ino,
		.mtime_ns = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec,
		.ctime_ns = st.st_ctim.tv_sec * INT64_C(1000000000) + st.st_ctim.tv_nsec,
	};
}

/* Until what was written before is old enough to be remembered: ctime cannot be set. */
static void settle(void)
{
	tree_write(&cache_tree, "probe", "");
	AUTO_FREE char *probe = fs_join(cache_tree.root, "probe");
	struct dircache_stat at = stat_at(probe);
	struct statcache_stat times = {.mtime_ns = at.mtime_ns, .ctime_ns = at.ctime_ns};

	while (!statcache_is_settled(&times, clock_wall_ms() * 1000000, false))
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* false: this file system is not known well enough. */
static bool remember_tree(void)
{
	if (!os_dir_times_hold(tree.fd))
		return false;
	settle();
	free(walk(true));
	return true;
}

static bool finds(const char *path)
{
	AUTO_FREE char *text = walk(true);
	AUTO_FREE char *line = mem_printf("%s ", path);

	return str_starts(text, line) || strstr(text, line);
}

/* A name that the cache does not have is not found, so it was asked. */
static void hide_name(const char *dir, const char *name)
{
	struct cachefile_writer *writer = dircache_write(file);
	struct dircache_stat at = stat_at(dir);
	struct arena arena = {0};
	char *text;

	struct dircache_row *row = dircache_row_new(&arena, &at, dir, strlen(name) + 2, &text);
	row->n_names = 1;
	*text = DT_REG;
	memcpy(text + 1, name, strlen(name) + 1);
	dircache_add(writer, row);
	cachefile_write_end(writer);
	arena_done(&arena);
}

static void test_is_requested(void **state)
{
	tree_write(&tree, "d/a", "");
	tree_write(&tree, "d/b", "");
	if (!os_dir_times_hold(tree.fd))
		skip();
	hide_name("d", "a");
	assert_true(finds("d/a"));
	assert_false(finds("d/b"));
	tree_write(&tree, "d/c", "");
	assert_true(finds("d/b"));
	assert_true(finds("d/c"));
}

static bool is_remembered(const char *dir)
{
	struct dircache_stat at = stat_at(dir);
	struct dircache cache;

	dircache_open(&cache, file);
	const struct dircache_row *row = dircache_find(&cache, dir);
	bool is = row && dircache_matches(row, &at, false);
	dircache_done(&cache);
	return is;
}

/* One that could change again without a change of its times. */
static void test_young_directories(void **state)
{
	make_tree();
	if (!remember_tree())
		skip();
	assert_true(is_remembered("d9/e"));
	for (int d = 0; d < DIRS; d++) {
		char path[64];
		snprintf(path, sizeof(path), "d%d/e/new", d);
		tree_write(&tree, path, "");
	}
	free(walk(true));
	struct dircache_stat at = stat_at("d0/e");
	bool slow = clock_wall_ms() * 1000000 - at.mtime_ns > STATCACHE_WINDOW_FINE_NS;
	assert_true(slow || !is_remembered("d9/e"));
}

/* A few names are not worth a file. */
static void test_when_it_is_written(void **state)
{
	tree_write(&tree, "d/a", "");
	free(walk(true));
	assert_int_equal(access(file, F_OK), -1);
	make_tree();
	if (!remember_tree())
		skip();
	assert_int_equal(count_rows(), 2 * DIRS + 2);
	tree_write(&tree, "d0/e/new", "");
	assert_true(finds("d0/e/new"));
	assert_int_equal(count_rows(), 2 * DIRS + 2);
	assert_int_equal(fs_remove_tree(tree.fd, "d1", NULL), 0);
	assert_false(finds("d1/e/f1"));
}

static void test_part_forgets_nothing(void **state)
{
	struct stat before, after;

	make_tree();
	if (!remember_tree())
		skip();
	assert_int_equal(count_rows(), 2 * DIRS + 1);
	for (int f = FILES; f < 60 * FILES; f++) {
		char path[64];
		snprintf(path, sizeof(path), "d7/e/f%d", f);
		tree_write(&tree, path, "");
	}
	assert_int_equal(stat(file, &before), 0);
	settle();
	strv_add(&limits, "d7");
	free(walk(true));
	assert_int_equal(stat(file, &after), 0);
	assert_int_not_equal(before.st_ino, after.st_ino);
	strv_done(&limits);
	assert_int_equal(count_rows(), 2 * DIRS + 1);
	AUTO_FREE char *with = walk(true), *without = walk(false);
	assert_string_equal(with, without);
}

static uint32_t below(uint32_t n)
{
	static uint32_t seed = 1;

	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

static void name_some(char path[static 64])
{
	snprintf(path, 64, "d%u/e/f%u", below(DIRS), below(FILES + 3));
}

static void put_back_times(const char *path, const struct stat *st)
{
	struct timespec times[] = {st->st_atim, st->st_mtim};

	utimensat(tree.fd, path, times, AT_SYMLINK_NOFOLLOW);
}

static void change_something(void)
{
	char a[64], b[64], dir[64];
	struct stat st;
	uint32_t d = below(DIRS);

	name_some(a);
	name_some(b);
	snprintf(dir, sizeof(dir), "d%u/e", d);
	switch (below(8)) {
	case 0:
		unlinkat(tree.fd, a, 0);
		break;
	case 1:
		renameat(tree.fd, a, tree.fd, b);
		break;
	case 2: /* another kind of file under the same name */
		if (unlinkat(tree.fd, a, 0) == 0)
			assert_int_equal(symlinkat("x", tree.fd, a), 0);
		break;
	case 3:
		if (unlinkat(tree.fd, a, 0) == 0 && mkdirat(tree.fd, a, 0755) == 0) {
			AUTO_FREE char *inner = fs_join(a, "inner");
			tree_write(&tree, inner, "");
		}
		break;
	case 4: /* two directories change places */
		snprintf(b, sizeof(b), "d%u/e", below(DIRS));
		renameat(tree.fd, dir, tree.fd, "swap");
		renameat(tree.fd, b, tree.fd, dir);
		renameat(tree.fd, "swap", tree.fd, b);
		break;
	case 5: /* a change that hides its time */
		if (fstatat(tree.fd, dir, &st, 0) == 0) {
			snprintf(a, sizeof(a), "d%u/e/hidden%u", d, below(9));
			tree_write(&tree, a, "");
			put_back_times(dir, &st);
		}
		break;
	case 6: /* rules do not change a directory the second time */
		snprintf(a, sizeof(a), "d%u/.gitignore", d);
		snprintf(b, sizeof(b), "f%u*\n", below(FILES));
		tree_write(&tree, a, b);
		break;
	default:
		snprintf(a, sizeof(a), "d%u/.dlrunignore", d);
		snprintf(b, sizeof(b), "e/f%u\n", below(FILES));
		tree_write(&tree, a, b);
		break;
	}
}

static void test_same_as_without(void **state)
{
	make_tree();
	if (!remember_tree())
		skip();
	assert_int_equal(count_rows(), 2 * DIRS + 1);
	for (int i = 0; i < ROUNDS; i++) {
		for (uint32_t k = below(4); k-- > 0;)
			change_something();
		AUTO_FREE char *with = walk(true), *without = walk(false);
		assert_string_equal(with, without);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_round_trip),
		test(test_damage),
		test(test_rows_that_are_none),
		test(test_take),
		test(test_is_requested),
		test(test_young_directories),
		test(test_when_it_is_written),
		test(test_part_forgets_nothing),
		test(test_same_as_without),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

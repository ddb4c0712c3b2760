/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/os/os.h"
#include "snap/tree/statcache.h"
#include "snap/tree/walk.h"

#define NS_PER_S INT64_C(1000000000)

enum {
	SAVE_MIN = 1024, /* a tree with fewer names is listed in no time */
	SAVE_PART = 32,  /* new names that make 1/32 of all are worth writing the cache */
	ROWS_SIZE_MAX = 256 << 20,
};

static int64_t to_ns(struct timespec time)
{
	return time.tv_sec * NS_PER_S + time.tv_nsec;
}

void walk_names_begin(struct walk *walk)
{
	struct timespec now;
	struct stat st;

	if (!walk->options->dirs || !os_dir_times_hold(walk->root_fd) ||
		fstat(walk->root_fd, &st) < 0)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	walk->names = (struct walk_names){
		.cache = walk->options->dirs, .dev = st.st_dev, .begun_ns = to_ns(now)};
}

/* Times of another file system that is mounted here are not trusted. */
static bool is_trusted(const struct walk *walk, const struct dircache_stat *stat)
{
	return walk->names.cache && stat->dev == walk->names.dev;
}

static bool is_settled(const struct walk *walk, const struct dircache_stat *stat)
{
	struct statcache_stat times = {.mtime_ns = stat->mtime_ns, .ctime_ns = stat->ctime_ns};

	return statcache_is_settled(&times, walk->names.begun_ns, false);
}

static bool take_known(struct listing *listing, const struct dircache_row *row)
{
	if (!listing_take(listing, dircache_row_text(row), row->text_len, row->n_names))
		return false;
	listing->has_git = row->flags & DIRCACHE_GIT;
	listing->has_gitignore = row->flags & DIRCACHE_GITIGNORE;
	listing->has_dlrunignore = row->flags & DIRCACHE_DLRUNIGNORE;
	return true;
}

static struct dircache_row *new_row(
	struct walk_worker *worker, const struct walk_dir *dir, const struct dircache_stat *stat)
{
	const struct listing *listing = &worker->listing;
	char *text;
	struct dircache_row *row =
		dircache_row_new(&worker->scratch, stat, dir->path, listing->text.len, &text);

	row->n_names = (uint32_t)listing->items.n;
	row->flags = (dir->scope->ignore_case ? DIRCACHE_FOLD_GIT : 0) |
		     (listing->has_git ? DIRCACHE_GIT : 0) |
		     (listing->has_gitignore ? DIRCACHE_GITIGNORE : 0) |
		     (listing->has_dlrunignore ? DIRCACHE_DLRUNIGNORE : 0);
	vec_foreach (const struct listing_item, item, &listing->items) {
		*text++ = (char)item->type;
		memcpy(text, item->name, item->len + 1U);
		text += item->len + 1U;
	}
	return row;
}

int walk_names_read(struct walk *walk, struct walk_worker *worker, struct walk_dir *dir, int fd,
	const struct stat *st)
{
	struct dircache_stat stat = {
		.dev = st->st_dev,
		.ino = st->st_ino,
		.mtime_ns = to_ns(st->st_mtim),
		.ctime_ns = to_ns(st->st_ctim),
	};
	bool trusted = is_trusted(walk, &stat), fold_git = dir->scope->ignore_case;

	const struct dircache_row *row =
		trusted ? dircache_find(walk->names.cache, dir->path) : NULL;
	dir->row = NULL;
	if (row && dircache_matches(row, &stat, fold_git) && take_known(&worker->listing, row)) {
		dir->row = row;
		worker->n_known += row->n_names;
		return 0;
	}
	int r = listing_read(&worker->listing, fd, fold_git);
	if (r < 0 || !trusted || !is_settled(walk, &stat))
		return r;
	dir->row = new_row(worker, dir, &stat);
	worker->n_new += dir->row->n_names;
	return 0;
}

/*
 * Writing
 */

struct rows VEC_OF(const struct dircache_row *);

static int by_path(const void *a, const void *b)
{
	const struct dircache_row *const *x = a, *const *y = b;

	return strcmp(dircache_row_path(*x), dircache_row_path(*y));
}

static void add_rows(const struct walk_dir *root, struct rows *rows)
{
	struct VEC_OF(const struct walk_dir *) dirs = {0};

	*vec_push(&dirs) = root;
	for (size_t at = 0; at < dirs.n; at++) {
		const struct walk_dir *dir = dirs.v[at];
		for (size_t i = 0; i < dir->n_dirs; i++)
			*vec_push(&dirs) = dir->dirs[i];
		if (dir->row)
			*vec_push(rows) = dir->row;
	}
	vec_done(&dirs);
}

/* A walk of a part of the tree must not forget the other parts. */
static void add_others(const struct dircache *cache, struct rows *rows)
{
	size_t n = rows->n, at = 0;

	vec_sort(rows, by_path);
	for (size_t i = 0; i < cache->n; i++) {
		int order = -1;
		while (at < n && (order = by_path(&rows->v[at], &cache->rows[i])) < 0)
			at++;
		if (at == n || order != 0)
			*vec_push(rows) = cache->rows[i];
	}
}

static void save(void *ctx)
{
	const struct walk *walk = ctx;
	struct cachefile_writer *writer = dircache_write(walk->options->dirs_path);
	struct rows rows = {0};
	size_t size = 0;

	if (!writer)
		return;
	add_rows(walk->root, &rows);
	if (walk->paths.paths.n)
		add_others(walk->names.cache, &rows);
	vec_sort(&rows, by_path);
	for (size_t i = 0; i < rows.n && size < ROWS_SIZE_MAX; i++) {
		size += sizeof(*rows.v[i]) + rows.v[i]->text_len;
		dircache_add(writer, rows.v[i]);
	}
	cachefile_write_end(writer);
	vec_done(&rows);
}

struct par_task *walk_names_save(struct walk *walk)
{
	size_t n_known = 0, n_new = 0;

	if (!walk->names.cache || !walk->options->dirs_path || walk->over)
		return NULL;
	for (unsigned i = 0; i < walk->n_workers; i++) {
		n_known += walk->workers[i].n_known;
		n_new += walk->workers[i].n_new;
	}
	if (n_known + n_new < SAVE_MIN || n_new <= (n_known + n_new) / SAVE_PART)
		return NULL;
	return par_start(save, walk);
}

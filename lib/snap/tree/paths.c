/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/tree/paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitindex.h"
#include "snap/tree/content.h"
#include "snap/tree/refuse.h"
#include "snap/tree/secret.h"
#include "snap/tree/statcache.h"
#include "snap/tree/walk.h"

static int paths_excluded_by_path(const void *a, const void *b)
{
	const struct excluded *x = a, *y = b;

	return strcmp(x->path, y->path);
}

static void excluded_rows_done(struct excluded_rows *rows)
{
	vec_done(&rows->rows);
	arena_done(&rows->arena);
	*rows = (struct excluded_rows){0};
}

/* Sort, and drop what is over the maximum. */
static void excluded_cut(struct excluded_rows *rows)
{
	struct arena kept = {0};

	vec_sort(&rows->rows, paths_excluded_by_path);
	if (rows->rows.n <= EXCLUDED_MAX)
		return;
	rows->rows.n = EXCLUDED_MAX;
	vec_foreach (struct excluded, row, &rows->rows)
		row->path = arena_strdup(&kept, row->path);
	rows->last = rows->rows.v[EXCLUDED_MAX - 1].path;
	arena_done(&rows->arena);
	rows->arena = kept;
}

/* Counts a path; false: it is too far behind to be kept, so its size is not needed. */
static bool excluded_count(struct excluded_rows *rows, const char *path)
{
	rows->n_all++;
	return !rows->last || strcmp(path, rows->last) < 0;
}

/* Keeps a path that was counted. is_dir: a slash is added. */
static void excluded_keep(struct excluded_rows *rows, const char *path, bool is_dir,
	enum excluded_why why, uint64_t size)
{
	size_t len = strlen(path);
	char *copy = arena_alloc(&rows->arena, len + 2);

	memcpy(copy, path, len);
	memcpy(copy + len, is_dir ? "/" : "", is_dir ? 2 : 1);
	*vec_push(&rows->rows) = (struct excluded){.path = copy, .why = why, .size = size};
	if (rows->rows.n >= 2 * EXCLUDED_MAX)
		excluded_cut(rows);
}

/* The rows of *from become part of *to. */
static void excluded_merge(struct excluded_rows *to, struct excluded_rows *from)
{
	vec_foreach (struct excluded, row, &from->rows)
		*vec_push(&to->rows) = *row;
	to->n_all += from->n_all;
	to->last = NULL;
	arena_merge(&to->arena, &from->arena);
	excluded_rows_done(from);
}

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

static void walk_names_begin(struct walk *walk)
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
static bool paths_is_trusted(const struct walk *walk, const struct dircache_stat *stat)
{
	return walk->names.cache && stat->dev == walk->names.dev;
}

static bool paths_is_settled(const struct walk *walk, const struct dircache_stat *stat)
{
	struct statcache_stat times = {.mtime_ns = stat->mtime_ns, .ctime_ns = stat->ctime_ns};

	return statcache_is_settled(&times, walk->names.begun_ns, false);
}

static bool paths_take_known(struct listing *listing, const struct dircache_row *row)
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

/* Read the names into the worker's listing, as listing_read does; st: of fd, from just now. */
static int walk_names_read(struct walk *walk, struct walk_worker *worker, struct walk_dir *dir,
	int fd, const struct stat *st)
{
	struct dircache_stat stat = {
		.dev = st->st_dev,
		.ino = st->st_ino,
		.mtime_ns = to_ns(st->st_mtim),
		.ctime_ns = to_ns(st->st_ctim),
	};
	bool trusted = paths_is_trusted(walk, &stat), fold_git = dir->scope->ignore_case;

	const struct dircache_row *row =
		trusted ? dircache_find(walk->names.cache, dir->path) : NULL;
	dir->row = NULL;
	if (row && dircache_matches(row, &stat, fold_git) &&
		paths_take_known(&worker->listing, row)) {
		dir->row = row;
		worker->n_known += row->n_names;
		return 0;
	}
	int r = listing_read(&worker->listing, fd, fold_git);
	if (r < 0 || !trusted || !paths_is_settled(walk, &stat))
		return r;
	dir->row = new_row(worker, dir, &stat);
	worker->n_new += dir->row->n_names;
	return 0;
}

/*
 * Writing
 */

struct rows VEC_OF(const struct dircache_row *);

static int walk_names_by_path(const void *a, const void *b)
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

	vec_sort(rows, walk_names_by_path);
	for (size_t i = 0; i < cache->n; i++) {
		int order = -1;
		while (at < n && (order = walk_names_by_path(&rows->v[at], &cache->rows[i])) < 0)
			at++;
		if (at == n || order != 0)
			*vec_push(rows) = cache->rows[i];
	}
}

static void paths_save(void *ctx)
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
	vec_sort(&rows, walk_names_by_path);
	for (size_t i = 0; i < rows.n && size < ROWS_SIZE_MAX; i++) {
		size += sizeof(*rows.v[i]) + rows.v[i]->text_len;
		dircache_add(writer, rows.v[i]);
	}
	cachefile_write_end(writer);
	vec_done(&rows);
}

/* Replace the cache if it is worth it, beside the caller, who keeps the walk until par_wait. */
static struct par_task *walk_names_save(struct walk *walk)
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
	return par_start(paths_save, walk);
}

/* Keep *failure (taken over) if no other is known for an earlier path. */
static void walk_fail(struct walk_worker *worker, const char *path, struct err *failure)
{
	if (worker->failure_path && strcmp(path, worker->failure_path) >= 0) {
		err_clear(failure);
		return;
	}
	REPLACE(worker->failure_path, mem_strdup(path));
	err_move(&worker->failure, failure);
}

static void walk_set_over(struct walk *walk, enum walk_over over)
{
	int_fast64_t none = 0;

	atomic_fetch_or(&walk->over, over);
	atomic_compare_exchange_strong(&walk->deadline_ms, &none, clock_ms() + WALK_GRACE_MS);
}

/* Whether the walk is over a limit and has shown enough of it. */
static bool walk_is_over(struct walk *walk)
{
	int_fast64_t deadline_ms = atomic_load_explicit(&walk->deadline_ms, memory_order_relaxed);

	if (!deadline_ms || clock_ms() < deadline_ms)
		return false;
	atomic_store(&walk->is_cut, true);
	return true;
}

/* Add what the worker counted to the sums and compare with the limits. */
static void walk_count(struct walk *walk, struct walk_worker *worker)
{
	const struct paths_limits *limits = &walk->options->limits;
	uint64_t bytes =
		atomic_fetch_add(&walk->bytes, worker->pending_bytes) + worker->pending_bytes;
	uint64_t files =
		atomic_fetch_add(&walk->files, worker->pending_files) + worker->pending_files;

	worker->pending_bytes = worker->pending_files = 0;
	if (limits->total_bytes && bytes > limits->total_bytes)
		walk_set_over(walk, WALK_OVER_TOTAL);
	if (limits->files && files > limits->files)
		walk_set_over(walk, WALK_OVER_FILES);
}

/* A missing file, or one that is not regular, has no rules. */
static int open_rules(int fd, const char *name, int flags)
{
	AUTO_FD int file = openat(fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
	struct stat st;

	if (file < 0)
		return -errno;
	if (fstat(file, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? TAKE_FD(file) : -ENOENT;
}

/* The rules of a file (next first, where the file has nothing to say), or next if there is no such
 * file. fd and name as for openat(2); path: for messages. */
static const struct ignore *walk_read_rules(struct walk_worker *worker, int fd, const char *name,
	const char *path, const char *dir, bool ignore_case, const struct ignore *next)
{
	/* Like git, follow no links inside the tree: their targets may lie anywhere. */
	AUTO_FD int file = open_rules(fd, name, O_NOFOLLOW);
	AUTO_BUF struct buf text = buf_with(IGNORE_TEXT_MAX);
	AUTO_ERR struct err err = {0};

	if (file == -ENOENT || file == -ELOOP || file == -ENOTDIR)
		return next;
	AUTO_FREE char *shown = str_shown(path);
	if (file < 0)
		err_set_errno(&err, E_IO_READ, -file, "cannot read the rules of %s", shown);
	else
		fs_read_fd(file, shown, IGNORE_TEXT_MAX, &text, &err);
	if (err_is_set(&err)) {
		walk_fail(worker, path, &err);
		return next;
	}
	if (text.len == 0)
		return next;
	*vec_push(&worker->rules) = ignore_parse(text.data, text.len, dir, ignore_case, next);
	return worker->rules.v[worker->rules.n - 1];
}

/* A directory while it is visited. */
struct visit {
	struct walk *walk;
	struct walk_worker *worker;
	struct walk_dir *dir;
	struct par_queue *queue;
	int fd;
	struct tracked_cursor cursor;
	size_t base;     /* length of the directory in worker->path, with its slash */
	size_t path_len; /* of worker->path */
};

/* The sums are checked after so many files. */
enum { COUNT_STEP = 512 };

/* Add the hint to leave the path out, unless it is too long to be pasted. */
static void add_way_out(const struct visit *v, const char *path, struct err *err)
{
	enum { PASTE_MAX = 200 };
	AUTO_FREE char *line = mem_printf("%s%s", path, path == v->dir->path ? "/" : "");

	if (*path && strlen(path) <= PASTE_MAX)
		hint_ignore(err, v->walk->options->root, v->walk->options->shell_dir,
			(const char *const[]){line}, 1);
}

static void paths_fail(
	struct visit *v, enum err_id id, const char *path, int errnum, const char *text)
{
	AUTO_FREE char *shown = str_shown(*path ? path : ".");
	AUTO_ERR struct err err = {0};

	if (errnum)
		err_set_errno(&err, id, errnum, "%s %s", text, shown);
	else
		err_set(&err, id, "%s %s", shown, text);
	add_way_out(v, path, &err);
	walk_fail(v->worker, path, &err);
}

/* An entry that vanished a moment ago does not belong to the tree. */
static bool paths_is_gone(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP;
}

/* Excluded entries */

static void exclude(struct visit *v, const struct listing_item *item, enum excluded_why why)
{
	struct walk_worker *worker = v->worker;
	struct stat st;

	if (v->dir->zone) {
		atomic_store_explicit(&v->dir->zone->excluded, true, memory_order_relaxed);
		return;
	}
	if (!excluded_count(&worker->excluded, worker->path))
		return;
	bool has_size = (item->type == DT_REG || item->type == DT_LNK) &&
			fstatat(v->fd, item->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	excluded_keep(&worker->excluded, worker->path, item->type == DT_DIR, why,
		has_size ? (uint64_t)st.st_size : 0);
}

static void exclude_ignored(struct visit *v, const struct listing_item *item)
{
	char inner[WALK_NAME_MAX + sizeof("/.git")];
	struct stat st;

	memcpy(inner, item->name, item->len);
	memcpy(inner + item->len, "/.git", sizeof("/.git"));
	bool is_repo = item->type == DT_DIR && !v->dir->zone &&
		       fstatat(v->fd, inner, &st, AT_SYMLINK_NOFOLLOW) == 0;
	exclude(v, item, is_repo ? EXCLUDED_REPOSITORY : EXCLUDED_IGNORED);
}

static bool paths_is_dropped(const struct visit *v, bool is_dir)
{
	return ignore_check(v->dir->own_rules, v->worker->path, is_dir) == IGNORE_MATCH;
}

static bool is_ignored(const struct visit *v, bool is_dir)
{
	const char *path = v->worker->path + v->dir->scope->prefix_len;

	return v->dir->zone || ignore_check(v->dir->git_rules, path, is_dir) == IGNORE_MATCH;
}

/* Directories */

static bool is_nameless(const struct listing_item *item)
{
	return item->len > ENTRY_NAME_MAX || strncmp(item->name, ".wh.", 4) == 0 ||
	       entry_path_has_git(item->name);
}

static struct walk_zone *new_zone(struct visit *v, const struct walk_dir *dir)
{
	struct walk_zone *zone = arena_alloc(&v->worker->scratch, sizeof(*zone));

	zone->path = dir->path;
	atomic_init(&zone->excluded, false);
	*vec_push(&v->worker->zones) = zone;
	return zone;
}

static void paths_add_dir(struct visit *v, const struct walk_dir *found, bool begins_zone)
{
	struct walk_dir *dir = arena_alloc(&v->worker->scratch, sizeof(*dir));

	*dir = *found;
	dir->len = v->path_len;
	dir->path = arena_strndup(&v->worker->scratch, v->worker->path, dir->len);
	if (begins_zone)
		dir->zone = new_zone(v, dir);
	if (atomic_fetch_add(&v->walk->dirs, 1) >= WALK_DIRS_MAX)
		walk_set_over(v->walk, WALK_OVER_DIRS);
	*vec_push(&v->worker->dirs) = dir;
	if (dir->is_gitlink)
		*vec_push(&v->worker->borders) = dir;
	else
		par_queue_add(v->queue, dir);
}

static void decide_dir(struct visit *v, const struct listing_item *item)
{
	struct walk_dir *parent = v->dir;
	const char *path = v->worker->path;
	struct walk_dir dir = {
		.parent = parent,
		.scope = parent->scope,
		.zone = parent->zone,
		.git_rules = parent->git_rules,
		.own_rules = parent->own_rules,
		.is_nameless = parent->is_nameless || is_nameless(item),
		.include = pathset_enter(&v->walk->include, parent->include, path),
		.paths = pathset_enter(&v->walk->paths, parent->paths, path),
		.allow = pathset_enter(&v->walk->allow, parent->allow, path),
	};
	bool begins_zone = false;

	dir.first = tracked_cursor_dir(&v->cursor, item->name, &dir.n_tracked);
	dir.is_gitlink = parent->scope->has_gitlinks && !dir.n_tracked &&
			 tracked_cursor_is_gitlink(&v->cursor, item->name);
	if (!dir.paths.covered && !dir.paths.below)
		return;
	if (paths_is_dropped(v, true)) {
		exclude(v, item, EXCLUDED_DLRUNIGNORE);
		return;
	}
	if (dir.is_gitlink || dir.include.covered)
		dir.zone = NULL;
	else if (is_ignored(v, true)) {
		if (!dir.n_tracked && !dir.include.below) {
			exclude_ignored(v, item);
			return;
		}
		begins_zone = !dir.zone;
	}
	if (v->path_len > ENTRY_PATH_MAX)
		paths_fail(v, E_SNAPSHOT_NAME, path, 0, "is a path of over 4,095 bytes");
	else
		paths_add_dir(v, &dir, begins_zone);
}

/* Files and links */

static bool paths_has_name(struct visit *v, const struct listing_item *item)
{
	const char *path = v->worker->path;

	if (v->path_len > ENTRY_PATH_MAX)
		paths_fail(v, E_SNAPSHOT_NAME, path, 0, "is a path of over 4,095 bytes");
	else if (item->len > ENTRY_NAME_MAX)
		paths_fail(v, E_SNAPSHOT_NAME, path, 0, "has a name of over 255 bytes");
	else if (entry_path_has_git(path))
		paths_fail(v, E_SNAPSHOT_NAME, path, 0,
			"has a name that git refuses: some file systems take it for .git");
	else if (v->dir->is_nameless || is_nameless(item))
		paths_fail(v, E_SNAPSHOT_NAME, path, 0,
			"has a name that means a deletion in an image (.wh.)");
	else
		return true;
	return false;
}

static size_t read_head(int fd, char *out, size_t size)
{
	size_t len = 0;

	while (len < size) {
		ssize_t n = read(fd, out + len, size - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	return len;
}

/* The secret that the file seems to be; NULL: none. */
static const char *what_secret(const struct visit *v, const struct listing_item *item)
{
	char head[SECRET_HEAD_SIZE];
	const char *what = NULL;

	switch (secret_by_name(v->worker->path, &what)) {
	case SECRET_NO:
		return NULL;
	case SECRET_YES:
		return what;
	case SECRET_READ:
		break;
	}
	AUTO_FD int fd = openat(
		v->fd, item->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	/* A file that cannot be read now cannot be sent later either. */
	if (fd < 0)
		return NULL;
	size_t len = read_head(fd, head, sizeof(head));
	return secret_by_content(v->worker->path, head, len, &what) ? what : NULL;
}

static struct path *paths_add_file(
	struct visit *v, const struct stat *st, const struct tracked_path *tracked)
{
	struct path file = {.tracked = tracked};

	/* Another kind of file has taken its place a moment ago. */
	if (!content_set_stat(&file, st))
		return NULL;
	file.path = arena_strndup(&v->worker->paths, v->worker->path, v->path_len);
	struct path *added = vec_push(&v->worker->files);
	*added = file;
	return added;
}

/* Limits and secrets do not concern what was allowed by name. */
static void examine(struct visit *v, const struct listing_item *item, const struct path *file)
{
	const struct paths_limits *limits = &v->walk->options->limits;
	struct walk_worker *worker = v->worker;

	if (pathset_enter(&v->walk->allow, v->dir->allow, file->path).covered)
		return;
	worker->pending_files++;
	worker->pending_bytes += file->size;
	if (limits->file_bytes && file->size > limits->file_bytes && file->kind == ENTRY_FILE)
		walk_set_over(v->walk, WALK_OVER_FILE);
	if (worker->pending_files >= COUNT_STEP)
		walk_count(v->walk, worker);
	if (file->tracked || file->kind != ENTRY_FILE)
		return;
	const char *what = what_secret(v, item);
	if (what)
		*vec_push(&worker->secrets) = (struct walk_secret){file->path, what};
}

static void paths_take_file(
	struct visit *v, const struct listing_item *item, const struct tracked_path *tracked)
{
	struct stat st;

	if (item->type != DT_REG && item->type != DT_LNK) {
		exclude(v, item, EXCLUDED_SPECIAL);
		return;
	}
	if (!paths_has_name(v, item))
		return;
	if (fstatat(v->fd, item->name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (!paths_is_gone(errno))
			paths_fail(v, E_IO_READ, v->worker->path, errno, "cannot read");
		return;
	}
	const struct path *file = paths_add_file(v, &st, tracked);
	if (file)
		examine(v, item, file);
}

static void decide_file(struct visit *v, const struct listing_item *item)
{
	const char *path = v->worker->path;

	if (!pathset_enter(&v->walk->paths, v->dir->paths, path).covered)
		return;
	if (paths_is_dropped(v, false)) {
		exclude(v, item, EXCLUDED_DLRUNIGNORE);
		return;
	}
	const struct tracked_path *tracked = tracked_cursor_file(&v->cursor, item->name);
	bool included = pathset_enter(&v->walk->include, v->dir->include, path).covered;
	if (!tracked && !included && is_ignored(v, false))
		exclude(v, item, EXCLUDED_IGNORED);
	else
		paths_take_file(v, item, tracked);
}

/* The directory as a whole */

/* The path of the directory as its repository has it. */
static const char *paths_own_path(const struct walk_dir *dir)
{
	size_t prefix_len = dir->scope->prefix_len;

	return dir->len > prefix_len ? dir->path + prefix_len : "";
}

static const struct ignore *read_rules(struct visit *v, const char *name, const char *dir,
	bool ignore_case, const struct ignore *next)
{
	AUTO_FREE char *path = fs_join(v->dir->path, name);

	return walk_read_rules(v->worker, v->fd, name, path, dir, ignore_case, next);
}

static void read_all_rules(struct visit *v)
{
	struct walk_dir *dir = v->dir;

	/* Ignore rules do not matter where all files are taken, or tracked ones only. */
	bool wanted = !dir->zone && !dir->include.covered;
	if (v->worker->listing.has_gitignore && wanted)
		dir->git_rules = read_rules(v, ".gitignore", paths_own_path(dir),
			dir->scope->ignore_case, dir->git_rules);
	if (v->worker->listing.has_dlrunignore)
		dir->own_rules = read_rules(v, ".dlrunignore", dir->path, false, dir->own_rules);
}

/* A mount can show a directory inside itself. */
static bool is_own_ancestor(struct walk_dir *dir)
{
	for (const struct walk_dir *above = dir->parent; above; above = above->parent)
		if (above->ino == dir->ino && above->dev == dir->dev)
			return true;
	return false;
}

/* -1: not to be visited. */
static int paths_open_dir(struct visit *v, struct stat *ret_st)
{
	struct walk_dir *dir = v->dir;
	const char *path = *dir->path ? dir->path : ".";
	AUTO_FD int fd = fs_open_beneath(v->walk->root_fd, path, O_RDONLY | O_DIRECTORY, 0);
	struct stat st;

	if (fd < 0) {
		if (!paths_is_gone(-fd))
			paths_fail(v, E_IO_READ, dir->path, -fd, "cannot list");
		return -1;
	}
	if (fstat(fd, &st) < 0) {
		paths_fail(v, E_IO_READ, dir->path, errno, "cannot list");
		return -1;
	}
	dir->dev = st.st_dev;
	dir->ino = st.st_ino;
	*ret_st = st;
	return TAKE_FD(fd);
}

static void visit_items(struct visit *v)
{
	struct walk_worker *worker = v->worker;

	worker->files.n = worker->dirs.n = 0;
	memcpy(worker->path, v->dir->path, v->dir->len);
	if (v->base)
		worker->path[v->base - 1] = '/';
	for (size_t i = 0; i < worker->listing.items.n; i++) {
		const struct listing_item *item = &worker->listing.items.v[i];
		if (i % COUNT_STEP == COUNT_STEP - 1 && walk_is_over(v->walk))
			break;
		if (item->len > WALK_NAME_MAX) {
			paths_fail(v, E_SNAPSHOT_NAME, v->dir->path, 0,
				"holds a name of over 255 bytes");
			continue;
		}
		v->path_len = v->base + item->len;
		memcpy(worker->path + v->base, item->name, item->len + 1U);
		if (item->type == DT_DIR)
			decide_dir(v, item);
		else
			decide_file(v, item);
	}
	walk_count(v->walk, worker);
}

static void keep_found(struct visit *v)
{
	struct walk_worker *worker = v->worker;
	struct walk_dir *dir = v->dir;

	dir->files = arena_alloc(&worker->scratch, worker->files.n * sizeof(*dir->files));
	if (worker->files.n)
		memcpy(dir->files, worker->files.v, worker->files.n * sizeof(*dir->files));
	dir->n_files = worker->files.n;
	dir->dirs = arena_alloc(&worker->scratch, worker->dirs.n * sizeof(*dir->dirs));
	if (worker->dirs.n)
		memcpy(dir->dirs, worker->dirs.v, worker->dirs.n * sizeof(*dir->dirs));
	dir->n_dirs = worker->dirs.n;
}

static bool paths_read_names(struct visit *v, const struct stat *st)
{
	const char *path = v->dir->path;
	int r = walk_names_read(v->walk, v->worker, v->dir, v->fd, st);

	if (r == -EFBIG)
		paths_fail(v, E_SNAPSHOT_LIMIT, path, 0, "holds too many names");
	else if (r < 0 && !paths_is_gone(-r))
		paths_fail(v, E_IO_READ, path, -r, "cannot list");
	return r == 0;
}

/* Where the outer index has files below, git does not see the inner repository. */
static bool paths_is_border(const struct visit *v)
{
	const struct walk_dir *dir = v->dir;

	return v->worker->listing.has_git && !dir->is_settled && !dir->n_tracked && !dir->zone;
}

/* Read the directory and decide on each name; found directories are added to queue. */
static void walk_visit(struct walk *walk, struct walk_worker *worker, struct walk_dir *dir,
	struct par_queue *queue)
{
	struct visit v = {.walk = walk, .worker = worker, .dir = dir, .queue = queue};
	struct stat st;

	if (walk_is_over(walk))
		return;
	AUTO_FD int fd = paths_open_dir(&v, &st);
	if (fd < 0)
		return;
	v.fd = fd;
	if (is_own_ancestor(dir)) {
		paths_fail(&v, E_SNAPSHOT_LOOP, dir->path, 0, "is mounted inside itself");
		return;
	}
	if (!paths_read_names(&v, &st))
		return;
	if (paths_is_border(&v)) {
		*vec_push(&worker->borders) = dir;
		return;
	}
	read_all_rules(&v);
	tracked_cursor_init(
		&v.cursor, dir->scope->tracked, paths_own_path(dir), dir->first, dir->n_tracked);
	v.base = dir->len ? dir->len + 1 : 0;
	visit_items(&v);
	keep_found(&v);
}

/* Read rules from outside the tree, where links are followed. As in git, a file that cannot be
 * opened counts as missing. */
static const struct ignore *read_outer_rules(
	struct walk_worker *worker, const char *path, bool ignore_case, const struct ignore *next)
{
	AUTO_FD int file = path ? open_rules(AT_FDCWD, path, 0) : -1;
	AUTO_BUF struct buf text = buf_with(IGNORE_TEXT_MAX);
	AUTO_ERR struct err err = {0};

	if (file < 0)
		return next;
	if (fs_read_fd(file, path, IGNORE_TEXT_MAX, &text, &err) < 0) {
		walk_fail(worker, "", &err);
		return next;
	}
	*vec_push(&worker->rules) = ignore_parse(text.data, text.len, "", ignore_case, next);
	return worker->rules.v[worker->rules.n - 1];
}

static bool has_gitlinks(const struct tracked *tracked)
{
	vec_foreach (const struct tracked_path, entry, tracked)
		if (entry->mode == TRACKED_MODE_GITLINK)
			return true;
	return false;
}

/* From this directory on repo (NULL: none) decides what is tracked and ignored. */
static void enter_repo(struct walk *walk, struct walk_dir *dir, const struct paths_repo *repo)
{
	struct walk_worker *worker = &walk->workers[0];
	struct walk_scope *scope = arena_alloc(&worker->scratch, sizeof(*scope));

	*scope = (struct walk_scope){.prefix_len = dir->len ? dir->len + 1 : 0};
	if (repo) {
		scope->tracked = &repo->tracked;
		scope->ignore_case = repo->ignore_case;
		scope->has_gitlinks = has_gitlinks(&repo->tracked);
		scope->rules =
			read_outer_rules(worker, repo->excludes_file, repo->ignore_case, NULL);
		scope->rules = read_outer_rules(
			worker, repo->info_exclude, repo->ignore_case, scope->rules);
		dir->n_tracked = repo->tracked.n;
	}
	dir->first = 0;
	dir->scope = scope;
	dir->git_rules = scope->rules;
}

static int walk_find_repo(const struct walk *walk, const struct walk_dir *dir,
	const struct paths_repo **ret, struct err *err)
{
	*ret = NULL;
	if (!walk->options->repo)
		return 0;
	return walk->options->repo(walk->options->repo_ctx, dir->path, ret, err);
}

static int walk_dir_by_path(const void *a, const void *b)
{
	const struct walk_dir *const *x = a, *const *y = b;

	return strcmp((*x)->path, (*y)->path);
}

/* Directories that may be repositories wait until all threads are done: reading a repository is not
 * work for several threads. They make up the next round. */
static void settle_borders(struct walk *walk)
{
	for (unsigned i = 0; i < walk->n_workers; i++) {
		vec_foreach (struct walk_dir *, dir, &walk->workers[i].borders)
			*vec_push(&walk->pending) = *dir;
		walk->workers[i].borders.n = 0;
	}
	vec_sort(&walk->pending, walk_dir_by_path);
	vec_foreach (struct walk_dir *, at, &walk->pending) {
		struct walk_dir *dir = *at;
		const struct paths_repo *repo;
		AUTO_ERR struct err err = {0};
		if (walk_find_repo(walk, dir, &repo, &err) < 0)
			walk_fail(&walk->workers[0], dir->path, &err);
		else if (repo)
			enter_repo(walk, dir, repo);
		dir->is_settled = true;
	}
}

/* item: a directory, or the walk itself, which stands for all that are pending. */
static void paths_work(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct walk *walk = ctx;

	if (item != walk) {
		walk_visit(walk, &walk->workers[worker], item, queue);
		return;
	}
	vec_foreach (struct walk_dir *, dir, &walk->pending)
		par_queue_add(queue, *dir);
}

static void paths_start(struct walk *walk, const struct paths_options *options)
{
	walk->options = options;
	walk->n_workers = par_width();
	walk->workers = mem_alloc(walk->n_workers, sizeof(*walk->workers));
	for (unsigned i = 0; i < walk->n_workers; i++)
		listing_init(&walk->workers[i].listing);

	struct walk_dir *root = arena_alloc(&walk->workers[0].scratch, sizeof(*root));
	*root = (struct walk_dir){.path = "", .is_settled = true};
	root->include = pathset_at_root(&walk->include);
	root->allow = pathset_at_root(&walk->allow);
	root->paths = pathset_at_root(&walk->paths);
	if (!root->paths.below)
		root->paths.covered = true;
	walk->root = root;
}

static int paths_read_options(
	struct walk *walk, const struct paths_options *options, struct err *err)
{
	int r;

	if ((r = pathset_init(&walk->include, options->include, "include", err)) < 0)
		return r;
	if ((r = pathset_init(&walk->paths, options->paths, "paths", err)) < 0)
		return r;
	return pathset_init(&walk->allow, options->allow, "allow", err);
}

/* Zero is an empty walk. Walks to the end; failures are in the workers and in over. err is for what
 * makes walking impossible. */
static int walk_run(struct walk *walk, const struct paths_options *options, struct err *err)
{
	const struct paths_repo *repo;
	int r;

	*walk = (struct walk){.root_fd = -1};
	if ((r = paths_read_options(walk, options, err)) < 0)
		return r;
	walk->root_fd = open(options->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (walk->root_fd < 0)
		return err_set_errno(err, E_IO_READ, errno, "cannot list %s", options->root);
	paths_start(walk, options);
	walk_names_begin(walk);
	if ((r = walk_find_repo(walk, walk->root, &repo, err)) < 0)
		return r;
	enter_repo(walk, walk->root, repo);
	*vec_push(&walk->pending) = walk->root;
	while (walk->pending.n) {
		par_queue_run_apart(paths_work, walk, walk, walk->root_fd);
		walk->pending.n = 0;
		settle_borders(walk);
	}
	return 0;
}

static void worker_done(struct walk_worker *worker)
{
	vec_foreach (struct ignore *, rules, &worker->rules)
		ignore_free(*rules);
	vec_done(&worker->rules);
	vec_done(&worker->files);
	vec_done(&worker->dirs);
	vec_done(&worker->zones);
	vec_done(&worker->borders);
	vec_done(&worker->secrets);
	listing_done(&worker->listing);
	excluded_rows_done(&worker->excluded);
	err_done(&worker->failure);
	free(worker->failure_path);
	arena_done(&worker->paths);
	arena_done(&worker->scratch);
}

static void walk_done(struct walk *walk)
{
	if (!walk)
		return;
	vec_done(&walk->pending);
	for (unsigned i = 0; i < walk->n_workers; i++)
		worker_done(&walk->workers[i]);
	free(walk->workers);
	pathset_done(&walk->include);
	pathset_done(&walk->paths);
	pathset_done(&walk->allow);
	if (walk->workers)
		close(walk->root_fd);
	*walk = (struct walk){0};
}

void path_list_done(struct path_list *list)
{
	if (!list)
		return;
	vec_done(list);
	vec_done(&list->excluded);
	strv_done(&list->notes);
	arena_done(&list->arena);
	*list = (struct path_list){0};
}

/* A directory whose files and subdirectories are being put into the list. */
struct level {
	const struct walk_dir *dir;
	size_t next_file, next_dir;
};

/* In the order of paths a directory stands where its name with a slash would. */
static bool file_is_next(const struct level *level)
{
	const struct walk_dir *dir = level->dir;

	if (level->next_file == dir->n_files)
		return false;
	if (level->next_dir == dir->n_dirs)
		return true;
	const char *file = dir->files[level->next_file].path;
	const struct walk_dir *child = dir->dirs[level->next_dir];
	int d = strncmp(file, child->path, child->len);
	return d < 0 || (d == 0 && (unsigned char)file[child->len] < '/');
}

/* Files of one directory that stand beside each other in the list, from position at on. */
struct run {
	const struct path *files;
	size_t n, at;
};

struct runs {
	struct VEC_OF(struct run) list;
	struct path *to;
};

static size_t files_before_next_dir(const struct level *level)
{
	struct level next = *level;

	if (level->next_dir == level->dir->n_dirs)
		return level->dir->n_files - level->next_file;
	while (file_is_next(&next))
		next.next_file++;
	return next.next_file - level->next_file;
}

/* Find the runs of files of all directories, in the order of paths. Returns the number of files. */
static size_t find_runs(const struct walk *walk, struct runs *runs)
{
	struct VEC_OF(struct level) levels = {0};
	size_t at = 0;

	vec_push(&levels)->dir = walk->root;
	while (levels.n) {
		struct level *level = &levels.v[levels.n - 1];
		size_t n = files_before_next_dir(level);
		if (n) {
			*vec_push(&runs->list) =
				(struct run){level->dir->files + level->next_file, n, at};
			level->next_file += n;
			at += n;
		}
		if (level->next_dir < level->dir->n_dirs) {
			struct walk_dir *child = level->dir->dirs[level->next_dir++];
			vec_push(&levels)->dir = child;
		} else {
			levels.n--;
		}
	}
	vec_done(&levels);
	return at;
}

static void put_run(void *ctx, size_t i, unsigned worker UNUSED)
{
	const struct runs *runs = ctx;
	const struct run *run = &runs->list.v[i];

	memcpy(runs->to + run->at, run->files, run->n * sizeof(*run->files));
}

static void put_files(struct walk *walk, struct path_list *list)
{
	struct runs runs = {0};

	list->n = find_runs(walk, &runs);
	list->v = runs.to = mem_alloc(list->n + 1, sizeof(*list->v));
	list->cap = list->n + 1;
	par_for(runs.list.n, put_run, &runs);
	vec_done(&runs.list);
	vec_foreach (const struct path, path, list)
		list->bytes += path->size;
	for (unsigned i = 0; i < walk->n_workers; i++)
		arena_merge(&list->arena, &walk->workers[i].paths);
}

static void put_excluded(struct walk *walk, struct path_list *list)
{
	struct excluded_rows all = {0};

	for (unsigned i = 0; i < walk->n_workers; i++) {
		struct walk_worker *worker = &walk->workers[i];
		vec_foreach (struct walk_zone *, zone, &worker->zones)
			if ((*zone)->excluded && excluded_count(&worker->excluded, (*zone)->path))
				excluded_keep(&worker->excluded, (*zone)->path, true,
					EXCLUDED_IGNORED, 0);
		excluded_merge(&all, &worker->excluded);
	}
	excluded_cut(&all);
	list->n_excluded = all.n_all;
	list->excluded = all.rows;
	arena_merge(&list->arena, &all.arena);
}

static int first_failure(struct walk *walk, struct err *err)
{
	struct walk_worker *first = NULL;

	for (unsigned i = 0; i < walk->n_workers; i++) {
		struct walk_worker *worker = &walk->workers[i];
		if (!worker->failure_path)
			continue;
		if (!first || strcmp(worker->failure_path, first->failure_path) < 0)
			first = worker;
	}
	return first ? err_move(err, &first->failure) : 0;
}

static int paths_by_path(const void *a, const void *b)
{
	const struct walk_secret *x = a, *y = b;

	return strcmp(x->path, y->path);
}

static int refuse_secrets(const struct walk *walk, const struct path_list *list, struct err *err)
{
	struct VEC_OF(struct walk_secret) all = {0};
	const char *named[ERR_EVIDENCE_MAX];
	size_t n_named = 0, max = list->notes.n ? ERR_EVIDENCE_MAX - 1 : ERR_EVIDENCE_MAX;

	for (unsigned i = 0; i < walk->n_workers; i++)
		vec_foreach (const struct walk_secret, secret, &walk->workers[i].secrets)
			*vec_push(&all) = *secret;
	if (all.n == 0)
		return 0;
	vec_sort(&all, paths_by_path);
	int r;
	if (all.n == 1)
		r = err_set(err, E_SNAPSHOT_SECRET, "an untracked file looks like a secret");
	else
		r = err_set(err, E_SNAPSHOT_SECRET, "%zu untracked files look like secrets", all.n);
	for (; n_named < all.n && n_named < max; n_named++) {
		AUTO_FREE char *shown = str_shown(all.v[n_named].path);
		err_evidence(err, "%s: %s", shown, all.v[n_named].what);
		named[n_named] = all.v[n_named].path;
	}
	/* The user may have meant one of these entries. */
	if (list->notes.n)
		err_evidence(err, "%s", list->notes.v[0]);
	vec_done(&all);
	hint_ignore(err, walk->options->root, walk->options->shell_dir, named, n_named);
	return r;
}

static int refuse_empty(const struct walk *walk, const struct path_list *list, struct err *err)
{
	static const char *const why[] = {
		[EXCLUDED_IGNORED] = "ignored by git",
		[EXCLUDED_DLRUNIGNORE] = "dropped by .dlrunignore",
		[EXCLUDED_SPECIAL] = "a socket, pipe or device",
		[EXCLUDED_REPOSITORY] = "a repository that the outer one ignores",
	};

	int r = err_set(
		err, E_SNAPSHOT_EMPTY, "there is no file to run in %s", walk->options->root);
	vec_foreach (const struct excluded, row, &list->excluded) {
		AUTO_FREE char *shown = str_shown(row->path);
		if (row >= list->excluded.v + ERR_EVIDENCE_MAX)
			break;
		err_evidence(err, "%s: %s", shown, why[row->why]);
	}
	return r;
}

static int make_list(struct walk *walk, struct path_list *list, struct err *err)
{
	int r;

	if (walk->over)
		return oversize_refuse(walk, err);
	if ((r = first_failure(walk, err)) < 0)
		return r;
	put_files(walk, list);
	put_excluded(walk, list);
	if ((r = unmatched_refuse(walk, list, err)) < 0)
		return r;
	unmatched_note(walk, list, &list->notes);
	if ((r = refuse_secrets(walk, list, err)) < 0)
		return r;
	return list->n ? 0 : refuse_empty(walk, list, err);
}

int paths_list(const struct paths_options *options, struct path_list *ret, struct err *err)
{
	struct walk walk = {0};
	struct path_list list = {0};

	int r = walk_run(&walk, options, err);
	if (r == 0) {
		struct par_task *saving = walk_names_save(&walk);
		r = make_list(&walk, &list, err);
		par_wait(saving);
	}
	walk_done(&walk);
	if (r < 0)
		path_list_done(&list);
	else
		*ret = list;
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/map.h"
#include "core/record/runtime.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/attempt/collect.h"
#include "events/event_files.h"

enum { DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, WORKERS_MAX = 16 };

/*
 * Paths of a tree that are never results
 */

/* Version control, byte code and caches of tools: with this name, at any depth. */
static bool collect_is_cache(const char *name)
{
	static const char *const names[] = {".git", "__pycache__", ".pytest_cache", ".mypy_cache",
		".ruff_cache", ".ipynb_checkpoints"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return true;
	return str_ends(name, ".pyc") || str_ends(name, ".pyo");
}

/* Whether path, whose last component is name, is data or matches a pattern of collect.exclude;
 * of a directory: with all below it. The directories above it are known not to. */
static bool collect_is_excluded(const struct runtime *runtime, const char *path, const char *name)
{
	const struct strv *patterns = &runtime->collect.exclude;

	for (size_t i = 0; i < runtime->data.n; i++)
		if (fs_below(path, runtime->data.v[i].path))
			return true;
	for (size_t i = 0; i < patterns->n; i++)
		if (fnmatch(patterns->v[i], strchr(patterns->v[i], '/') ? path : name, 0) == 0)
			return true;
	return false;
}

/* Whether path is one of the outputs, or lies below one. */
static bool collect_is_output(const struct runtime *runtime, const char *path)
{
	for (size_t i = 0; i < runtime->outputs.n; i++)
		if (fs_below(path, runtime->outputs.v[i]))
			return true;
	return false;
}

bool collect_is_telling(const char *path)
{
	static const char *const names[] = {"params.json", "hparams.yaml", "args.json",
		".hydra/config.yaml", ".hydra/overrides.yaml", "tensors.tsv", "metadata.tsv",
		"sprite.png"};
	size_t len = strlen(path);

	if (strstr(fs_basename(path), "tfevents") || plugin_files_is_one(path))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i]);
		if (str_ends(path, names[i]) && (len == n || path[len - n - 1] == '/'))
			return true;
	}
	return false;
}

/*
 * The directories of a run and its attempt, held under the run's lock
 */

struct collect_place {
	int lock_fd, run_fd, tree_fd, outputs_fd, collected_fd;
};

static bool collect_is_same(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

#define LOCK_NAME "collect.lock"
#define TEMP_NAME "collect.tmp"

static void collect_place_done(struct collect_place *place)
{
	auto_fd(&place->collected_fd);
	auto_fd(&place->outputs_fd);
	auto_fd(&place->tree_fd);
	auto_fd(&place->run_fd);
	auto_fd(&place->lock_fd);
}

/* A directory without following a link; make: if nothing has that name. Returns -errno. */
static int collect_open_dir(int fd, const char *name, bool make)
{
	int child = openat(fd, name, DIR_FLAGS);

	if (child < 0 && errno == ENOENT && make) {
		if (mkdirat(fd, name, 0777) < 0 && errno != EEXIST)
			return -errno;
		child = openat(fd, name, DIR_FLAGS);
	}
	return child < 0 ? -errno : child;
}

/* Whether the error affects all files, so that going on makes no sense and retrying later does. */
static bool collect_is_fatal(int errnum)
{
	return errnum == ENOSPC || errnum == EDQUOT || errnum == EROFS || errnum == EIO ||
	       errnum == EMFILE || errnum == ENFILE;
}

/* Link from_fd/from to to_fd/to, too, whatever file is there. Returns 0 or an errno. */
static int collect_link(
	const struct collect_place *place, int from_fd, const char *from, int to_fd, const char *to)
{
	if (linkat(from_fd, from, to_fd, to, 0) == 0)
		return 0;
	if (errno != EEXIST)
		return errno;
	unlinkat(place->run_fd, TEMP_NAME, 0);
	if (linkat(from_fd, from, place->run_fd, TEMP_NAME, 0) < 0)
		return errno;
	int errnum = renameat(place->run_fd, TEMP_NAME, to_fd, to) < 0 ? errno : 0;
	/* rename(2) leaves the temporary name if both are links to the same file. */
	unlinkat(place->run_fd, TEMP_NAME, 0);
	return errnum;
}

static int open_run_dir(const struct collect_place *place, const char *name, bool make, int *ret_fd,
	struct err *err)
{
	int fd = collect_open_dir(place->run_fd, name, make);

	if (fd < 0 && (make || fd != -ENOENT))
		return fs_error(err, -fd, "opening '%s' of the run", name);
	*ret_fd = fd < 0 ? -1 : fd;
	return 0;
}

static int collect_open_all(struct collect_place *place, const char *dir,
	const struct attempt_job *job, bool make, struct err *err)
{
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);
	const char *name = strrchr(job->outputs, '/');

	place->tree_fd = open(tree, DIR_FLAGS);
	if (place->tree_fd < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", tree);
	unlinkat(place->run_fd, TEMP_NAME, 0);
	int r = open_run_dir(place, name + 1, make, &place->outputs_fd, err);
	if (r == 0)
		r = open_run_dir(place, COLLECT_DIR, make, &place->collected_fd, err);
	return r < 0 ? r : 1;
}

/* 1: held; 0: there is no tree, or another process holds the lock and wait_ms has passed. make:
 * make the directories of the run. */
static int collect_place_open(const char *dir, const struct attempt_job *job, int64_t wait_ms,
	bool make, struct collect_place *ret, struct err *err)
{
	AUTO(collect_place_done) struct collect_place place = {-1, -1, -1, -1, -1};
	const char *slash = job->outputs ? strrchr(job->outputs, '/') : NULL;
	AUTO_ERR struct err held = {0};

	if (!slash || slash == job->outputs)
		return 0;
	AUTO_FREE char *run = mem_strndup(job->outputs, (size_t)(slash - job->outputs));
	AUTO_FREE char *lock = fs_join(run, LOCK_NAME);
	place.run_fd = open(run, DIR_FLAGS);
	if (place.run_fd < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", run);
	int r = fs_lock(lock, true, wait_ms, &place.lock_fd, &held);
	if (r < 0)
		return held.id == E_IO_LOCK && wait_ms == 0 ? 0 : err_move(err, &held);
	r = collect_open_all(&place, dir, job, make, err);
	if (r <= 0)
		return r;
	*ret = place;
	place = (struct collect_place){-1, -1, -1, -1, -1};
	return 1;
}

/* Whether an entry that the kernel lists with this type is a directory. */
static bool collect_is_dir(int fd, const char *name, unsigned char type)
{
	struct stat st;

	if (type != DT_UNKNOWN)
		return type == DT_DIR;
	return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/*
 * The directories of the tree as the program gets it: attempts/N/started.dirs. Files in a directory
 * that the program has moved keep their times.
 */

enum { DIRS_BYTES_MAX = 64 << 20, NS_PER_S = 1000 * 1000 * 1000 };

/*
 * Records "INODE CTIME PATH\0", in any order. CTIME in ns; 0: it may change without a new one.
 */

struct record {
	uint64_t inode, ctime_ns;
	const char *path;
};

/* *at: where the record begins, and then the next one. */
static bool collect_read_record(const struct buf *text, size_t *at, struct record *ret)
{
	char *rest;

	while (*at < text->len) {
		const char *begin = text->data + *at;
		*at += strlen(begin) + 1;
		ret->inode = strtoull(begin, &rest, 10);
		if (!ret->inode || *rest != ' ')
			continue;
		ret->ctime_ns = strtoull(rest + 1, &rest, 10);
		ret->path = rest + 1;
		if (*rest == ' ')
			return true;
	}
	return false;
}

static uint64_t ns_of(const struct timespec *time)
{
	return (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

struct lister {
	void *names;
	struct buf text;
};

struct listing_dirs {
	int tree_fd;
	dev_t dev;
	uint64_t now_ns;
	struct map known;    /* paths with records of their own: none is looked for below others */
	struct strv changed; /* those of them whose names have to be read again */
	struct lister listers[WORKERS_MAX];
};

struct listed {
	struct listing_dirs *all;
	struct par_queue *queue;
	const char *path;
	int fd;
};

static void collect_add_record(
	struct listing_dirs *all, unsigned worker, const char *path, const struct stat *st)
{
	struct lister *lister = &all->listers[worker];
	uint64_t ctime_ns = ns_of(&st->st_ctim);

	if (!lister->names) {
		lister->names = mem_alloc(1, OS_NAMES_SIZE);
		buf_init(&lister->text, DIRS_BYTES_MAX);
	}
	buf_addf(&lister->text, "%llu %llu %s", (unsigned long long)st->st_ino,
		(unsigned long long)(ctime_ns < all->now_ns ? ctime_ns : 0), path);
	buf_addc(&lister->text, '\0');
}

static void list_entry(void *ctx, const char *name, unsigned char type)
{
	const struct listed *listed = ctx;

	if (str_eq(name, ".") || str_eq(name, "..") || collect_is_cache(name) ||
		!collect_is_dir(listed->fd, name, type))
		return;
	AUTO_FREE char *path = *listed->path ? fs_join(listed->path, name) : mem_strdup(name);
	if (!map_get(&listed->all->known, path))
		par_queue_add(listed->queue, TAKE(path));
}

static void collect_list_dir(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct listing_dirs *all = ctx;
	AUTO_FREE char *path = item;
	AUTO_FD int fd =
		fs_open_beneath(all->tree_fd, *path ? path : ".", O_RDONLY | O_DIRECTORY, 0);
	struct listed listed = {all, queue, path, fd};
	struct stat st;

	for (size_t i = 0; !*path && i < all->changed.n; i++)
		par_queue_add(queue, TAKE(all->changed.v[i]));
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != all->dev)
		return;
	collect_add_record(all, worker, path, &st);
	os_list_names(fd, all->listers[worker].names, list_entry, &listed);
}

/* Check the directories of an earlier list: keep the unchanged ones, queue the changed ones. */
static void collect_check_known(struct listing_dirs *all, const struct buf *before)
{
	struct record record;
	struct stat st;

	for (size_t at = 0; collect_read_record(before, &at, &record);) {
		if (!*record.path ||
			fstatat(all->tree_fd, record.path, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (st.st_ino != record.inode || ns_of(&st.st_ctim) != record.ctime_ns)
			strv_add(&all->changed, record.path);
		else
			collect_add_record(all, 0, record.path, &st);
		map_put(&all->known, record.path, all);
	}
}

static void list_tree(int fd, const struct buf *before, struct buf *ret)
{
	struct listing_dirs *all = mem_alloc(1, sizeof(*all));
	struct timespec now;
	struct stat st;

	BUG_ON(par_width() > WORKERS_MAX);
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	all->tree_fd = fd;
	all->now_ns = ns_of(&now);
	if (fstat(fd, &st) == 0) {
		all->dev = st.st_dev;
		collect_check_known(all, before);
		par_queue_run_apart(collect_list_dir, all, mem_strdup(""), fd);
	}
	for (size_t i = 0; i < WORKERS_MAX; i++) {
		struct lister *lister = &all->listers[i];

		if (lister->names)
			buf_add(ret, lister->text.data, lister->text.len);
		buf_done(&lister->text);
		free(lister->names);
	}
	map_done(&all->known);
	strv_done(&all->changed);
	free(all);
}

void collect_list_dirs(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_DIRS);
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);
	AUTO_FD int fd = open(tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	AUTO_BUF struct buf before = {0}, text;

	buf_init(&text, DIRS_BYTES_MAX);
	fs_read(path, DIRS_BYTES_MAX, &before, NULL, NULL);
	if (fd >= 0)
		list_tree(fd, &before, &text);
	if (buf_check(&text, path, NULL) < 0 ||
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL) < 0)
		unlink(path);
}

/*
 * Reading the list
 */

/* Read the list into an empty map, which the caller frees. Without the file nothing has been
 * moved. */
static void collect_dirs_read(const char *dir, struct map *ret)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_DIRS);
	AUTO_BUF struct buf text = {0};
	struct record record;

	if (fs_read(path, DIRS_BYTES_MAX, &text, NULL, NULL) < 0)
		return;
	for (size_t at = 0; collect_read_record(&text, &at, &record);)
		map_put(ret, record.path, (void *)(uintptr_t)record.inode);
}

#define MARK_NAME "started"
#define TICK_NAME "started.tick"

enum {
	LOCK_WAIT_MS = 10 * 60 * 1000, /* another collector's work is ours, too */
	REPORT_MAX = 1 << 20,
	TICK_WAIT_MS = 2100, /* the coarsest clocks of file systems count two seconds */
	BLOCK_BYTES = 512,
};

/* A changed file. */
struct found {
	char *path;     /* in the tree */
	size_t dir_len; /* of path: the directory's part, without its slash */
	uint64_t bytes; /* on the disk */
	struct timespec mtime;
	bool is_output; /* below an entry of `outputs:` */
	bool is_taken;
};

struct found_list VEC_OF(struct found);

/* Paths that the report speaks of: how many there are, and the first of them. */
struct named {
	size_t n;
	uint64_t bytes;
	struct strv paths;
};

/* The directory of the last file. */
struct parent {
	const char *path; /* NULL: none yet */
	size_t len;
	int tree_fd, outputs_fd, collected_fd;
	int errnum;    /* it cannot be opened, or made */
	bool is_moved; /* to a name with COLLECT_SUFFIX */
};

struct collector {
	const struct attempt_job *job;
	enum collect_when when;
	struct collect_place place;
	struct timespec mark;
	struct map dirs;
	struct found_list found;
	size_t n_files;
	uint64_t bytes;
	struct named unread, over, moved;
	struct parent parent;
	int fatal; /* errno */
};

static void collector_done(struct collector *c)
{
	vec_foreach (struct found, found, &c->found)
		free(found->path);
	vec_done(&c->found);
	map_done(&c->dirs);
	strv_done(&c->unread.paths);
	strv_done(&c->over.paths);
	strv_done(&c->moved.paths);
	auto_fd(&c->parent.tree_fd);
	auto_fd(&c->parent.outputs_fd);
	auto_fd(&c->parent.collected_fd);
	collect_place_done(&c->place);
}

static void name_path(struct named *named, const char *path, uint64_t bytes)
{
	named->n++;
	named->bytes += bytes;
	if (named->paths.n < COLLECT_NAMED_MAX)
		strv_add(&named->paths, path);
}

/*
 * The mark
 */

static int collect_make_file(const char *dir, const char *name, struct timespec *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct stat st;

	if (fd < 0 || pwrite(fd, "\n", 1, 0) != 1 || fstat(fd, &st) < 0)
		return errno ? errno : EIO;
	*ret = st.st_ctim;
	return 0;
}

int collect_mark(const char *dir, struct err *err)
{
	struct timespec time;

	collect_list_dirs(dir);
	int errnum = collect_make_file(dir, MARK_NAME, &time);

	return errnum ? fs_error(err, errnum, "making '%s' of the run", MARK_NAME) : 0;
}

static bool collect_read_mark(const char *dir, struct timespec *ret)
{
	AUTO_FREE char *path = fs_join(dir, MARK_NAME);
	struct stat st;

	if (lstat(path, &st) < 0)
		return false;
	*ret = st.st_ctim;
	return true;
}

static bool is_later(const struct timespec *time, const struct timespec *than)
{
	return time->tv_sec != than->tv_sec ? time->tv_sec > than->tv_sec
					    : time->tv_nsec > than->tv_nsec;
}

void collect_pass_mark(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, TICK_NAME);
	struct timespec mark, now = {0};

	if (!collect_read_mark(dir, &mark))
		return;
	for (int ms = 0; ms < TICK_WAIT_MS; ms++) {
		if (collect_make_file(dir, TICK_NAME, &now) != 0 || is_later(&now, &mark))
			break;
		poll(NULL, 0, 1);
	}
	unlink(path);
}

/*
 * Finding what has changed
 */

/* The findings of a thread. */
struct finder {
	void *names; /* of a directory, as the kernel lists them */
	struct found_list found;
	struct strv unread;
	size_t n_more;
	int fatal; /* errno */
};

struct search {
	const struct collector *c;
	dev_t dev;
	struct finder finders[WORKERS_MAX];
};

/* A directory to search. */
struct searched_dir {
	char *path; /* in the tree; "": its root */
	bool is_output;
	bool is_moved; /* or below one that is */
	int depth;
};

static void collect_push_dir(struct par_queue *queue, const char *path, bool is_output,
	const struct searched_dir *parent)
{
	struct searched_dir *dir = mem_alloc(1, sizeof(*dir));

	*dir = (struct searched_dir){
		mem_strdup(path), is_output, parent->is_moved, parent->depth + 1};
	par_queue_add(queue, dir);
}

static bool is_wanted_file(const struct collector *c, const struct searched_dir *dir, int fd,
	const char *name, struct stat *ret)
{
	if (fstatat(fd, name, ret, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	return (S_ISREG(ret->st_mode) || S_ISLNK(ret->st_mode)) &&
	       (dir->is_moved || is_later(&ret->st_ctim, &c->mark));
}

/* The links that setup.c has put there. */
static bool is_setup_link(const struct collector *c, int fd, const char *name)
{
	size_t len = c->job->setups ? strlen(c->job->setups) : 0;
	AUTO_FREE char *target = mem_alloc(len + 2, 1);

	return len && readlinkat(fd, name, target, len + 1) == (ssize_t)len + 1 &&
	       memcmp(target, c->job->setups, len) == 0 && target[len] == '/';
}

static void find_file(const struct collector *c, struct finder *finder, int fd, const char *name,
	const char *path, bool is_output, const struct stat *st)
{
	size_t len = strlen(path), name_len = strlen(name);

	/* Links of dlrun's own: to an output, to what the setup has made. */
	if (S_ISLNK(st->st_mode) &&
		(strv_find(&c->job->spec.runtime.outputs, path) >= 0 || is_setup_link(c, fd, name)))
		return;
	if (finder->found.n >= COLLECT_FILES_MAX) {
		finder->n_more++;
		return;
	}
	*vec_push(&finder->found) = (struct found){
		.path = mem_strdup(path),
		.dir_len = len > name_len ? len - name_len - 1 : 0,
		.bytes = (uint64_t)st->st_blocks * BLOCK_BYTES,
		.mtime = st->st_mtim,
		.is_output = is_output,
	};
}

/* Without automatic collection only what the program wrote in an output's place. */
static bool may_hold(const struct collector *c, const char *path, bool is_output)
{
	size_t len = strlen(path);

	if (is_output || c->job->spec.runtime.collect.mode == COLLECT_AUTO)
		return true;
	for (size_t i = 0; i < c->job->spec.runtime.outputs.n; i++)
		if (strncmp(c->job->spec.runtime.outputs.v[i], path, len) == 0 &&
			c->job->spec.runtime.outputs.v[i][len] == '/')
			return true;
	return false;
}

/* The search of one directory, and its finder. */
struct dir_search {
	struct search *search;
	struct par_queue *queue;
	struct finder *finder;
	const struct searched_dir *dir;
	int fd;
};

static void collect_find_entry(void *ctx, const char *name, unsigned char type)
{
	const struct dir_search *in = ctx;
	const struct collector *c = in->search->c;
	const struct searched_dir *dir = in->dir;
	bool events = c->when == COLLECT_EVENTS;
	int fd = in->fd;
	struct stat st;

	if (str_eq(name, ".") || str_eq(name, ".."))
		return;
	bool is_dir = collect_is_dir(fd, name, type);
	/* Nearly all files end here. */
	if (!is_dir && !events && !is_wanted_file(c, dir, fd, name, &st))
		return;
	if (collect_is_cache(name))
		return;
	AUTO_FREE char *path = *dir->path ? fs_join(dir->path, name) : mem_strdup(name);
	bool is_output = dir->is_output || collect_is_output(&c->job->spec.runtime, path);
	if (!may_hold(c, path, is_output) || collect_is_excluded(&c->job->spec.runtime, path, name))
		return;
	if (is_dir)
		collect_push_dir(in->queue, path, is_output, dir);
	else if (!events || (collect_is_telling(path) && is_wanted_file(c, dir, fd, name, &st)))
		find_file(c, in->finder, fd, name, path, is_output, &st);
}

static void collect_note_unread(struct finder *finder, const struct searched_dir *dir, int errnum)
{
	if (errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP)
		return;
	if (collect_is_fatal(errnum))
		finder->fatal = errnum;
	else
		strv_add(&finder->unread, *dir->path ? dir->path : ".");
}

/* Skip mount points: their content is not the tree's. */
static int collect_open_searched(
	const struct search *search, struct finder *finder, struct searched_dir *dir)
{
	const struct collector *c = search->c;
	AUTO_FD int fd = fs_open_beneath(
		c->place.tree_fd, *dir->path ? dir->path : ".", O_RDONLY | O_DIRECTORY, 0);
	struct stat st;

	if (fd < 0)
		collect_note_unread(finder, dir, -fd);
	else if (dir->depth >= COLLECT_DEPTH_MAX)
		collect_note_unread(finder, dir, E2BIG);
	if (fd < 0 || dir->depth >= COLLECT_DEPTH_MAX || fstat(fd, &st) < 0 ||
		st.st_dev != search->dev)
		return -1;
	/* The status has changed, and this is not the original directory of that path. */
	if (dir->depth > 0 && is_later(&st.st_ctim, &c->mark) && c->dirs.n &&
		map_get(&c->dirs, dir->path) != (void *)(uintptr_t)st.st_ino)
		dir->is_moved = true;
	return TAKE_FD(fd);
}

static void find_in(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct search *search = ctx;
	struct finder *finder = &search->finders[worker];
	struct searched_dir *dir = item;
	AUTO_FD int fd = collect_open_searched(search, finder, dir);
	struct dir_search in = {search, queue, finder, dir, fd};

	if (!finder->names)
		finder->names = mem_alloc(1, OS_NAMES_SIZE);
	int r = fd < 0 ? 0 : os_list_names(fd, finder->names, collect_find_entry, &in);
	if (r < 0)
		collect_note_unread(finder, dir, -r);
	free(dir->path);
	free(dir);
}

static void take_finder(struct collector *c, struct finder *finder)
{
	free(finder->names);
	vec_foreach (struct found, found, &finder->found)
		*vec_push(&c->found) = *found;
	vec_done(&finder->found);
	for (size_t i = 0; i < finder->unread.n; i++)
		name_path(&c->unread, finder->unread.v[i], 0);
	strv_done(&finder->unread);
	c->over.n += finder->n_more;
	if (finder->fatal)
		c->fatal = finder->fatal;
}

/* Several threads, with descriptors of their own: nothing but calls of the kernel is done here. */
static int find_changed(struct collector *c, struct err *err)
{
	struct search *search = mem_alloc(1, sizeof(*search));
	struct stat st;
	int r = 0;

	BUG_ON(par_width() > WORKERS_MAX);
	search->c = c;
	if (fstat(c->place.tree_fd, &st) < 0) {
		r = fs_error(err, errno, "the tree of the run");
	} else {
		struct searched_dir *root = mem_alloc(1, sizeof(*root));
		root->path = mem_strdup("");
		search->dev = st.st_dev;
		par_queue_run_apart(find_in, search, root, c->place.tree_fd);
	}
	for (size_t i = 0; i < WORKERS_MAX; i++)
		take_finder(c, &search->finders[i]);
	free(search);
	return r;
}

/*
 * Size limit
 */

static int collect_newest_first(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (is_later(&x->mtime, &y->mtime))
		return -1;
	return is_later(&y->mtime, &x->mtime) ? 1 : strcmp(x->path, y->path);
}

/* Files of one directory stand together. */
static int by_dir(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	size_t len = x->dir_len < y->dir_len ? x->dir_len : y->dir_len;
	int order = memcmp(x->path, y->path, len);

	if (order == 0 && x->dir_len != y->dir_len)
		order = x->dir_len < y->dir_len ? -1 : 1;
	return order ? order : strcmp(x->path, y->path);
}

/*
 * Putting it in its places
 */

static void leave_parent(struct parent *parent)
{
	auto_fd(&parent->tree_fd);
	auto_fd(&parent->outputs_fd);
	auto_fd(&parent->collected_fd);
	*parent = (struct parent){NULL, 0, -1, -1, -1, 0, false};
}

/* *fd is replaced by the directory name below it. Returns 0 or an errno. */
static int step_into(int *fd, const char *name, bool make)
{
	int child = collect_open_dir(*fd, name, make);

	if (child < 0)
		return -child;
	close(*fd);
	*fd = child;
	return 0;
}

/* The program's own file may be in the way of the directory. */
static int step_into_outputs(struct parent *parent, const char *name, bool is_output)
{
	AUTO_FREE char *beside = NULL;
	int errnum = step_into(&parent->outputs_fd, name, true);

	if (errnum != ENOTDIR && errnum != ELOOP)
		return errnum;
	if (is_output) {
		unlinkat(parent->outputs_fd, name, 0);
		return step_into(&parent->outputs_fd, name, true);
	}
	beside = mem_printf("%s" COLLECT_SUFFIX, name);
	parent->is_moved = true;
	return step_into(&parent->outputs_fd, beside, true);
}

static int enter_parent(struct collector *c, struct parent *parent)
{
	AUTO_FREE char *dir = mem_strndup(parent->path, parent->len);
	int errnum = 0;

	parent->tree_fd = openat(c->place.tree_fd, ".", DIR_FLAGS);
	parent->outputs_fd = openat(c->place.outputs_fd, ".", DIR_FLAGS);
	parent->collected_fd = openat(c->place.collected_fd, ".", DIR_FLAGS);
	if (parent->tree_fd < 0 || parent->outputs_fd < 0 || parent->collected_fd < 0)
		return errno;
	for (char *name = dir, *next; name && *name && errnum == 0; name = next) {
		next = strchr(name, '/');
		if (next)
			*next = '\0';
		bool is_output = collect_is_output(&c->job->spec.runtime, dir);
		errnum = step_into(&parent->tree_fd, name, false);
		if (errnum == 0)
			errnum = step_into_outputs(parent, name, is_output);
		if (errnum == 0)
			errnum = step_into(&parent->collected_fd, name, true);
		if (next)
			*next++ = '/';
	}
	return errnum;
}

static struct parent *parent_of(struct collector *c, const struct found *found)
{
	struct parent *parent = &c->parent;

	if (parent->path && parent->len == found->dir_len &&
		memcmp(parent->path, found->path, found->dir_len) == 0)
		return parent;
	leave_parent(parent);
	parent->path = found->path;
	parent->len = found->dir_len;
	parent->errnum = enter_parent(c, parent);
	return parent;
}

/* Whether what the outputs have there is the tree's, or may be replaced by it. */
static int put_as(struct collector *c, const struct parent *parent, const struct found *found,
	const char *name, const char *as, const struct stat *file)
{
	struct stat there, earlier;

	if (fstatat(parent->outputs_fd, as, &there, AT_SYMLINK_NOFOLLOW) == 0) {
		bool is_ours =
			fstatat(parent->collected_fd, name, &earlier, AT_SYMLINK_NOFOLLOW) == 0 &&
			collect_is_same(&there, &earlier);
		if (collect_is_same(&there, file))
			return 0;
		if (!is_ours && (!found->is_output || S_ISDIR(there.st_mode)))
			return EEXIST;
	}
	return collect_link(&c->place, parent->tree_fd, name, parent->outputs_fd, as);
}

/* The outputs come first: a file that is there and in the tree is known to be collected, whatever
 * the other place has of it yet. */
static int collect_put_file(
	struct collector *c, const struct parent *parent, const struct found *found)
{
	const char *name = found->path + found->dir_len + (found->dir_len > 0);
	AUTO_FREE char *beside = mem_printf("%s" COLLECT_SUFFIX, name);
	struct stat file, there;

	if (fstatat(parent->tree_fd, name, &file, AT_SYMLINK_NOFOLLOW) < 0)
		return errno;
	int errnum = put_as(c, parent, found, name, name, &file);
	if (errnum == EEXIST) {
		name_path(&c->moved, found->path, 0);
		errnum = put_as(c, parent, found, name, beside, &file);
	}
	if (errnum)
		return errnum;
	if (fstatat(parent->collected_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
		collect_is_same(&there, &file))
		return 0;
	return collect_link(&c->place, parent->tree_fd, name, parent->collected_fd, name);
}

static void put_found(struct collector *c, const struct found *found)
{
	struct parent *parent = parent_of(c, found);
	bool is_moved = parent->is_moved;
	int errnum = parent->errnum ? parent->errnum : collect_put_file(c, parent, found);

	/* A file that has gone meanwhile is not an error. */
	if (errnum && errnum != ENOENT) {
		if (collect_is_fatal(errnum)) {
			if (!c->fatal)
				c->fatal = errnum;
		} else {
			name_path(&c->unread, found->path, 0);
		}
	}
	if (errnum)
		return;
	if (is_moved)
		name_path(&c->moved, found->path, 0);
	c->n_files++;
	c->bytes += found->bytes;
}

/*
 * Files that the program has removed
 */

static void drop_file(int outputs_fd, int collected_fd, const char *name)
{
	AUTO_FREE char *beside = mem_printf("%s" COLLECT_SUFFIX, name);
	const char *names[] = {name, beside};
	struct stat ours, there;

	if (fstatat(collected_fd, name, &ours, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	for (size_t i = 0; i < ARRAY_LEN(names) && outputs_fd >= 0; i++)
		if (fstatat(outputs_fd, names[i], &there, AT_SYMLINK_NOFOLLOW) == 0 &&
			collect_is_same(&ours, &there))
			unlinkat(outputs_fd, names[i], 0);
	unlinkat(collected_fd, name, 0);
}

static int open_output_dir(int fd, const char *name)
{
	AUTO_FREE char *beside = mem_printf("%s" COLLECT_SUFFIX, name);
	int child = fd < 0 ? -1 : openat(fd, name, DIR_FLAGS);

	return fd < 0 || child >= 0 ? child : openat(fd, beside, DIR_FLAGS);
}

/* A link in the place of a directory (the one to an output in a new tree, or the program's own)
 * removes nothing, nor does an entry that cannot be read. is_dir: of the collected entry. */
static bool is_removed(int tree_fd, const char *name, bool is_dir)
{
	struct stat st;

	if (tree_fd < 0)
		return true;
	if (fstatat(tree_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT;
	return is_dir ? !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode) : S_ISDIR(st.st_mode);
}

/* tree_fd: -1: the tree has no such directory any more. Takes collected_fd. */
static void drop_removed(int tree_fd, int outputs_fd, int collected_fd, int depth);

static void drop_entry(
	int tree_fd, int outputs_fd, int collected_fd, const struct dirent *entry, int depth)
{
	const char *name = entry->d_name;
	struct stat ours;

	if (fstatat(collected_fd, name, &ours, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	bool is_dir = S_ISDIR(ours.st_mode), is_gone = is_removed(tree_fd, name, is_dir);
	if (!is_dir) {
		if (is_gone)
			drop_file(outputs_fd, collected_fd, name);
		return;
	}
	AUTO_FD int child = is_gone ? -1 : openat(tree_fd, name, DIR_FLAGS);
	if ((!is_gone && child < 0) || depth >= COLLECT_DEPTH_MAX)
		return;
	AUTO_FD int outputs_child = open_output_dir(outputs_fd, name);
	int collected_child = openat(collected_fd, name, DIR_FLAGS);
	if (collected_child < 0)
		return;
	drop_removed(child, outputs_child, collected_child, depth + 1);
	if (unlinkat(collected_fd, name, AT_REMOVEDIR) == 0 && outputs_fd >= 0)
		unlinkat(outputs_fd, name, AT_REMOVEDIR);
}

static void drop_removed(int tree_fd, int outputs_fd, int collected_fd, int depth)
{
	AUTO_DIR DIR *dir = fdopendir(collected_fd);
	struct dirent *entry;

	if (!dir)
		close(collected_fd);
	while (dir && (entry = readdir(dir)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			drop_entry(tree_fd, outputs_fd, dirfd(dir), entry, depth);
}

/*
 * The report
 */

static char *shown_paths(const struct named *named)
{
	AUTO_BUF struct buf text = buf_with(REPORT_MAX);

	for (size_t i = 0; i < named->paths.n; i++) {
		AUTO_FREE char *shown = str_shown(named->paths.v[i]);
		buf_addf(&text, "%s%s", i ? ", " : "", shown);
	}
	if (named->n > named->paths.n)
		buf_addf(&text, " and %zu more", named->n - named->paths.n);
	return buf_take(&text);
}

static void add_sentence(struct json *list, const struct named *named, const char *fmt)
{
	AUTO_FREE char *paths = named->n ? shown_paths(named) : NULL, *text = NULL;

	if (!paths)
		return;
	text = mem_printf("%s: %s", fmt, paths);
	json_add_str(list, text);
}

static void collect_write_report(const char *dir, const struct collector *c)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_REPORT), *over = NULL, *failed = NULL;
	AUTO_JSON struct json *report = json_object();
	struct json *list = json_array();
	AUTO_BUF struct buf text = buf_with(REPORT_MAX);
	char limit[16], size[16];

	json_set_str(report, "schema", COLLECT_SCHEMA);
	json_set_bool(report, "complete", !c->fatal);
	json_set_int(report, "files", (int64_t)c->n_files);
	json_set_int(report, "bytes", (int64_t)c->bytes);
	json_set_int(report, "unread", (int64_t)c->unread.n);
	over = mem_printf("%zu %s (%s) %s collect.size of %s, only in the tree until gc removes it",
		c->over.n, c->over.n == 1 ? "file" : "files", str_size(c->over.bytes, size),
		c->over.n == 1 ? "exceeds" : "exceed",
		str_size(c->job->spec.runtime.collect.size_bytes, limit));
	add_sentence(list, &c->over, over);
	add_sentence(list, &c->moved,
		"the results have other files of the same name, so the tree's are called "
		"*" COLLECT_SUFFIX);
	add_sentence(list, &c->unread, "not collected, and kept in the tree");
	if (c->fatal) {
		failed = mem_printf(
			"not all results could be collected: %s; dlrun fetch tries again",
			strerror(c->fatal));
		json_add_str(list, failed);
	}
	json_set(report, "warnings", list);
	json_print(report, &text);
	buf_addc(&text, '\n');
	if (buf_check(&text, path, NULL) == 0)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

struct json *collect_read_report(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_REPORT);
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, REPORT_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, REPORT_MAX, path, &json, NULL) < 0 ||
		json_kind(json) != JSON_OBJECT)
		return NULL;
	return TAKE(json);
}

/*
 * All of it
 */

int collect_results(
	const char *dir, const struct attempt_job *job, enum collect_when when, struct err *err)
{
	AUTO(collector_done)
	struct collector c = {.job = job,
		.when = when,
		.place = {-1, -1, -1, -1, -1},
		.parent = {NULL, 0, -1, -1, -1, 0, false}};

	if (!collect_read_mark(dir, &c.mark))
		return 0;
	int r = collect_place_open(
		dir, job, when == COLLECT_EVENTS ? 0 : LOCK_WAIT_MS, true, &c.place, err);
	if (r <= 0)
		return r;
	collect_dirs_read(dir, &c.dirs);
	r = find_changed(&c, err);
	if (r < 0)
		return r;
	if (when != COLLECT_EVENTS) {
		int fd = openat(c.place.collected_fd, ".", DIR_FLAGS);

		if (fd >= 0)
			drop_removed(c.place.tree_fd, c.place.outputs_fd, fd, 0);
	}
	uint64_t left = c.job->spec.runtime.collect.size_bytes;

	vec_sort(&c.found, collect_newest_first);
	vec_foreach (struct found, found, &c.found) {
		found->is_taken = found->bytes <= left;
		if (found->is_taken)
			left -= found->bytes;
		else
			name_path(&c.over, found->path, found->bytes);
	}
	vec_sort(&c.found, by_dir);
	vec_foreach (const struct found, found, &c.found)
		if (found->is_taken && !c.fatal)
			put_found(&c, found);
	if (when == COLLECT_ENDED)
		collect_write_report(dir, &c);
	return c.fatal ? fs_error(err, c.fatal, "collecting results of %s", job->run_id) : 0;
}

int collect_finish(const char *dir, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_JSON struct json *report = collect_read_report(dir);
	struct timespec mark;

	if (json_get_bool(report, "complete", false) || !collect_read_mark(dir, &mark))
		return 0;
	int r = attempt_job_read(dir, &job, err);
	return r < 0 ? r : collect_results(dir, &job, COLLECT_ENDED, err);
}

/*
 * The next attempt begins with what is in collected/.
 */

struct restore {
	const struct collect_place *place;
	const struct runtime *runtime;
	struct buf path;
	int fatal; /* errno; what concerns one file only is passed over */
};

static void collect_note_failure(struct restore *restore, int errnum)
{
	if (!restore->fatal && collect_is_fatal(errnum))
		restore->fatal = errnum;
}

/* The program before has had a directory where the snapshot has a file, or the other way round. */
static int open_tree_dir(int fd, const char *name)
{
	int child = collect_open_dir(fd, name, true);

	if (child != -ENOTDIR && child != -ELOOP)
		return child;
	if (unlinkat(fd, name, 0) < 0)
		return -errno;
	return collect_open_dir(fd, name, true);
}

/* Takes from_fd. */
static void restore_dir(struct restore *restore, int from_fd, int to_fd, int depth);

static void restore_entry(
	struct restore *restore, int from_fd, int to_fd, const char *name, int depth)
{
	struct stat st;

	if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (!S_ISDIR(st.st_mode)) {
		int errnum = collect_link(restore->place, from_fd, name, to_fd, name);

		if (errnum == EISDIR && fs_remove_tree(to_fd, name, NULL) == 0)
			errnum = collect_link(restore->place, from_fd, name, to_fd, name);
		if (errnum)
			collect_note_failure(restore, errnum);
		return;
	}
	AUTO_FD int to = open_tree_dir(to_fd, name);
	int from = openat(from_fd, name, DIR_FLAGS);
	if (to >= 0 && from >= 0 && depth < COLLECT_DEPTH_MAX) {
		restore_dir(restore, from, to, depth + 1);
		return;
	}
	collect_note_failure(restore, to < 0 ? -to : errno);
	auto_fd(&from);
}

static void restore_dir(struct restore *restore, int from_fd, int to_fd, int depth)
{
	AUTO_DIR DIR *dir = fdopendir(from_fd);
	size_t len = restore->path.len;
	struct dirent *entry;

	if (!dir) {
		collect_note_failure(restore, errno);
		close(from_fd);
	}
	while (dir && !restore->fatal && (entry = readdir(dir))) {
		const char *name = entry->d_name;
		if (str_eq(name, ".") || str_eq(name, ".."))
			continue;
		buf_addf(&restore->path, "%s%s", len ? "/" : "", name);
		/* A directory that replaced an output's link has its content in that output now:
		 * remove it, so that the output is linked anew. */
		if (collect_is_output(restore->runtime, restore->path.data))
			fs_remove_tree(dirfd(dir), name, NULL);
		else if (!collect_is_excluded(restore->runtime, restore->path.data, name))
			restore_entry(restore, dirfd(dir), to_fd, name, depth);
		buf_truncate(&restore->path, len);
	}
}

int collect_restore(const char *dir, const struct attempt_job *job, struct err *err)
{
	AUTO(collect_place_done) struct collect_place place = {-1, -1, -1, -1, -1};
	AUTO_FREE char *before = NULL;
	int r = 0;

	if (job->attempt < 2)
		return 0;
	before = attempt_sibling(dir, job->attempt - 1);
	r = collect_finish(before, err);
	if (r == 0)
		r = collect_place_open(dir, job, LOCK_WAIT_MS, false, &place, err);
	if (r <= 0 || place.collected_fd < 0)
		return r;
	struct restore restore = {.place = &place, .runtime = &job->spec.runtime};
	AUTO_FD int to_fd = openat(place.tree_fd, ".", DIR_FLAGS);
	int from_fd = openat(place.collected_fd, ".", DIR_FLAGS);
	buf_init(&restore.path, 64 << 10);
	if (to_fd >= 0 && from_fd >= 0)
		restore_dir(&restore, from_fd, to_fd, 0);
	else
		auto_fd(&from_fd);
	buf_done(&restore.path);
	return restore.fatal ? fs_error(err, restore.fatal,
				       "putting results of the attempt before into the tree")
			     : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/tree/content.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitdir.h"
#include "snap/tree/private.h"
#include "snap/tree/refuse.h"

enum {
	BUF_SIZE = 256 * 1024,
	TRIES = 4,
	DELAY_CHANGED_MS = 20,
	/* Between the two steps of a program that replaces a file the old way. */
	DELAY_GONE_MS = 2,
	LINK_MAX_BYTES = 1 << 20,
	LFS_POINTER_MAX = 1024,
};

#define NS_PER_S INT64_C(1000000000)

static void content_reader_done(struct content_reader *reader)
{
	if (!reader)
		return;
	digest_done(&reader->sha256);
	digest_done(&reader->id);
	free(reader->buf);
	*reader = (struct content_reader){0};
}

bool content_set_stat(struct path *path, const struct stat *st)
{
	if (!S_ISREG(st->st_mode) && !S_ISLNK(st->st_mode))
		return false;
	path->kind = S_ISLNK(st->st_mode) ? ENTRY_LINK : ENTRY_FILE;
	path->mode = st->st_mode;
	path->dev = st->st_dev;
	path->ino = st->st_ino;
	path->size = (uint64_t)st->st_size;
	path->mtime_ns = st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec;
	path->ctime_ns = st->st_ctim.tv_sec * NS_PER_S + st->st_ctim.tv_nsec;
	return true;
}

/* The stat data for the cache. */
static struct statcache_stat content_stat(const struct path *path)
{
	return (struct statcache_stat){
		.dev = path->dev,
		.ino = path->ino,
		.size = path->size,
		.mtime_ns = path->mtime_ns,
		.ctime_ns = path->ctime_ns,
		.mode = path->mode,
	};
}

/* Whether a and b have the same stat data. */
static bool content_same_stat(const struct path *a, const struct path *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->mode == b->mode && a->size == b->size &&
	       a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static bool same_stat(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_mode == b->st_mode &&
	       a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Descriptor of the directory that path is in, ret_name its last part; or -errno. */
static int content_open_parent(int root_fd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');

	*ret_name = slash ? slash + 1 : path;
	if (!slash) {
		int fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);
		return fd < 0 ? -errno : fd;
	}
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(slash - path));
	return fs_open_beneath(root_fd, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
}

int content_lstat(int root_fd, const char *path, struct stat *ret)
{
	const char *name;
	AUTO_FD int fd = content_open_parent(root_fd, path, &name);

	if (fd < 0)
		return fd;
	return fstatat(fd, name, ret, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

/*
 * A single attempt. Functions return 1: read; 0: try again; or -errno.
 */

static void content_begin(struct content_reader *reader, uint64_t size)
{
	char head[32];
	int n = snprintf(head, sizeof(head), "blob %ju", (uintmax_t)size);

	digest_begin(&reader->sha256, DIGEST_SHA256);
	if (reader->git == CONTENT_GIT_NONE)
		return;
	digest_begin(&reader->id, reader->git == CONTENT_GIT_SHA1 ? DIGEST_SHA1 : DIGEST_SHA256);
	digest_add(&reader->id, head, (size_t)n + 1);
}

static void content_add(struct content_reader *reader, const void *data, size_t len)
{
	digest_add(&reader->sha256, data, len);
	if (reader->git != CONTENT_GIT_NONE)
		digest_add(&reader->id, data, len);
}

static void content_end(struct content_reader *reader, struct content *ret)
{
	uint8_t id[SHA256_SIZE];

	digest_end(&reader->sha256, ret->sha256);
	if (reader->git == CONTENT_GIT_NONE)
		return;
	digest_end(&reader->id, id);
	memcpy(ret->git_id, id, SHA1_SIZE);
	ret->flags |= reader->git == CONTENT_GIT_SHA1 ? STATCACHE_GIT_SHA1 : STATCACHE_GIT_SHA256;
}

static unsigned check_head(const uint8_t *head, size_t len, uint64_t size)
{
	static const char lfs[] = "version https://git-lfs";
	unsigned flags = 0;

	if (size < LFS_POINTER_MAX && len >= sizeof(lfs) - 1 && !memcmp(head, lfs, sizeof(lfs) - 1))
		flags |= STATCACHE_LFS_POINTER;
	if (len > 3 && head[0] == '#' && head[1] == '!') {
		const uint8_t *line_end = memchr(head, '\n', len);
		if (line_end && line_end[-1] == '\r')
			flags |= STATCACHE_CR_SCRIPT;
	}
	return flags;
}

static int content_read_all(
	struct content_reader *reader, int fd, uint64_t size, struct content *ret)
{
	uint64_t done = 0;

	if (!reader->buf)
		reader->buf = mem_grow(NULL, BUF_SIZE, 1);
	content_begin(reader, size);
	while (done < size) {
		ssize_t n = read(fd, reader->buf, BUF_SIZE);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0 || (uint64_t)n > size - done)
			return 0;
		if (done == 0)
			ret->flags = check_head(reader->buf, (size_t)n, size);
		content_add(reader, reader->buf, (size_t)n);
		done += (uint64_t)n;
	}
	content_end(reader, ret);
	return 1;
}

static int content_read_file(struct content_reader *reader, struct path *path, struct content *ret)
{
	AUTO_FD int fd = fs_open_beneath(
		reader->root_fd, path->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
	struct stat before, after;

	if (fd < 0)
		return fd;
	if (fstat(fd, &before))
		return -errno;
	if (!S_ISREG(before.st_mode))
		return 0;
	int64_t started_ns = now_ns();
	int rc = content_read_all(reader, fd, (uint64_t)before.st_size, ret);
	if (rc <= 0)
		return rc;
	if (fstat(fd, &after))
		return -errno;
	if (!same_stat(&before, &after))
		return 0;
	content_set_stat(path, &after);
	struct statcache_stat stat = content_stat(path);
	ret->settled = statcache_is_settled(&stat, started_ns, reader->network);
	return 1;
}

/* All of the target, malloc'd; or NULL with errno. */
static char *content_read_target(int dir_fd, const char *name)
{
	for (size_t size = 256; size <= LINK_MAX_BYTES; size *= 4) {
		char *target = mem_grow(NULL, size, 1);
		ssize_t n = readlinkat(dir_fd, name, target, size);
		if (n >= 0 && (size_t)n < size) {
			target[n] = '\0';
			return target;
		}
		free(target);
		if (n < 0)
			return NULL;
	}
	errno = ENAMETOOLONG;
	return NULL;
}

static int read_link(struct content_reader *reader, struct path *path, struct content *ret)
{
	const char *name;
	AUTO_FD int fd = content_open_parent(reader->root_fd, path->path, &name);
	struct stat before, after;

	if (fd < 0)
		return fd;
	if (fstatat(fd, name, &before, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!S_ISLNK(before.st_mode))
		return 0;
	AUTO_FREE char *target = content_read_target(fd, name);
	if (!target)
		return errno == EINVAL ? 0 : -errno;
	if (fstatat(fd, name, &after, AT_SYMLINK_NOFOLLOW) || !same_stat(&before, &after))
		return 0;
	content_set_stat(path, &after);
	path->size = strlen(target);
	content_begin(reader, path->size);
	content_add(reader, target, path->size);
	content_end(reader, ret);
	ret->target = TAKE(target);
	return 1;
}

static bool content_is_gone(int error)
{
	return error == -ENOENT || error == -ENOTDIR;
}

/* Errors that another kind of file in place of this one gives: ELOOP is a link, ENXIO a socket. */
static bool is_other_kind(int error)
{
	return content_is_gone(error) || error == -ELOOP || error == -EXDEV || error == -ENXIO ||
	       error == -EISDIR;
}

/* After a failed attempt: 1 there is something to read, 0 it is gone, -EAGAIN neither file nor
 * link. */
static int content_check_again(struct content_reader *reader, struct path *path, int result)
{
	struct stat st;

	long ms = content_is_gone(result) ? DELAY_GONE_MS : DELAY_CHANGED_MS;
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
	int rc = content_lstat(reader->root_fd, path->path, &st);
	if (content_is_gone(rc) || rc == -ELOOP || rc == -EXDEV)
		return 0;
	if (rc < 0)
		return rc;
	return content_set_stat(path, &st) ? 1 : -EAGAIN;
}

static int content_fail_read(const char *path, int errnum, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(path);

	return err_set_errno(err, E_IO_READ, errnum, "'%s' cannot be read", shown);
}

/* Read path. 1: done; kind, mode, size and the rest of path are now those of what was read. 0: it
 * is gone. Errors: E_IO_CHANGED when it keeps changing, E_IO_READ when it cannot be read. */
static int content_read(
	struct content_reader *reader, struct path *path, struct content *ret, struct err *err)
{
	int rc = 0;

	for (int try = 0; try < TRIES; try++) {
		int again = try > 0 ? content_check_again(reader, path, rc) : 1;
		if (again == 0)
			return 0;
		if (again == -EAGAIN)
			continue;
		if (again < 0)
			return content_fail_read(path->path, -again, err);
		*ret = (struct content){0};
		rc = path->kind == ENTRY_LINK ? read_link(reader, path, ret)
					      : content_read_file(reader, path, ret);
		if (rc == 1)
			return 1;
		if (rc < 0 && !is_other_kind(rc))
			return content_fail_read(path->path, -rc, err);
	}
	AUTO_FREE char *shown = str_escaped(path->path);
	return err_set(err, E_IO_CHANGED, "'%s' kept changing while it was read", shown);
}

enum {
	SAVE_PART = 32,       /* new files that make 1/32 of all are worth writing the cache */
	SAVE_BYTES = 1 << 20, /* and so is this much that was read */
	SAVE_STALE_PART = 4,  /* and so are entries of files that are gone, 1/4 of all */
};

/*
 * Reading
 */

struct worker {
	struct content_reader reader;
	struct arena arena; /* targets of links */
	struct err err;     /* of the first failure in the order of paths */
	size_t err_at, n_failed;
	uint64_t bytes;
	size_t n_read;
};

struct reading {
	struct snapshot *snapshot;
	const size_t *todo;
	struct worker *workers;
};

static void keep_first_error(struct worker *worker, size_t at, struct err *err)
{
	if (worker->n_failed++ == 0 || at < worker->err_at) {
		err_move(&worker->err, err);
		worker->err_at = at;
	}
	err_clear(err);
}

static void set_entry(
	struct snapshot *s, size_t i, const struct content *content, struct arena *arena)
{
	struct path *path = &s->paths.v[i];
	struct entry *entry = &s->entries.v[i];

	entry->kind = path->kind;
	entry->exec = path->kind == ENTRY_FILE && path->mode & S_IXUSR;
	entry->size = path->size;
	entry->target = content->target ? arena_strdup(arena, content->target) : NULL;
	memcpy(entry->sha256, content->sha256, SHA256_SIZE);
	memcpy(s->private->git_ids[i], content->git_id, SHA1_SIZE);
	s->private->marks[i] =
		(uint8_t)(content->flags | MARK_READ | (content->settled ? MARK_SETTLED : 0));
}

static void content_read_one(void *ctx, size_t k, unsigned worker_at)
{
	struct reading *reading = ctx;
	struct snapshot *s = reading->snapshot;
	struct worker *worker = &reading->workers[worker_at];
	size_t i = reading->todo[k];
	AUTO_ERR struct err err = {0};
	struct content content;

	int rc = content_read(&worker->reader, &s->paths.v[i], &content, &err);
	if (rc < 0) {
		keep_first_error(worker, i, &err);
		return;
	}
	if (rc == 0) {
		s->private->marks[i] = MARK_GONE;
		return;
	}
	set_entry(s, i, &content, &worker->arena);
	free(content.target);
	worker->n_read++;
	worker->bytes += s->entries.v[i].size;
}

static int give_hint(const struct snapshot *s, size_t at, struct err *err)
{
	const char *path = s->paths.v[at].path;
	AUTO_FREE char *whole = fs_join(s->root, path);

	if (err->id == E_IO_CHANGED)
		hint_ignore(err, s->root, s->private->shell_dir, &path, 1);
	else
		hint_path(err, "chmod u+r ", whole, "");
	return -(int)err->code;
}

/* Report the error of the first path; the number of further failures is evidence. */
static int collect_errors(
	const struct snapshot *s, struct worker *workers, unsigned n, struct err *err)
{
	struct worker *first = NULL;
	size_t n_failed = 0;

	for (unsigned w = 0; w < n; w++) {
		n_failed += workers[w].n_failed;
		if (workers[w].n_failed && (!first || workers[w].err_at < first->err_at))
			first = &workers[w];
	}
	if (!first)
		return 0;
	err_move(err, &first->err);
	if (n_failed > 1)
		err_evidence(err, "%zu files in all", n_failed);
	return give_hint(s, first->err_at, err);
}

static int read_todo(struct snapshot *s, const size_t *todo, size_t n_todo, struct err *err)
{
	unsigned width = par_width();
	AUTO_FREE struct worker *workers = mem_alloc(width, sizeof(*workers));
	struct reading reading = {.snapshot = s, .todo = todo, .workers = workers};

	for (unsigned w = 0; w < width; w++)
		workers[w].reader = (struct content_reader){.root_fd = s->private->root_fd,
			.git = s->private->git,
			.network = s->private->network};
	par_for(n_todo, content_read_one, &reading);
	int rc = collect_errors(s, workers, width, err);
	for (unsigned w = 0; w < width; w++) {
		s->stats.n_hashed += workers[w].n_read;
		s->stats.hashed_bytes += workers[w].bytes;
		arena_merge(&s->entries.arena, &workers[w].arena);
		content_reader_done(&workers[w].reader);
		err_done(&workers[w].err);
	}
	return rc;
}

/* Drop files that have vanished since the walk. */
static void drop_gone(struct snapshot *s)
{
	struct snapshot_private *private = s->private;
	size_t kept = 0;

	for (size_t i = 0; i < s->entries.n; i++) {
		if (private->marks[i] & MARK_GONE)
			continue;
		if (kept != i) {
			s->paths.v[kept] = s->paths.v[i];
			s->entries.v[kept] = s->entries.v[i];
			private->marks[kept] = private->marks[i];
			memcpy(private->git_ids[kept], private->git_ids[i], SHA1_SIZE);
		}
		kept++;
	}
	s->paths.n = s->entries.n = kept;
}

static int content_finish(struct snapshot *s, struct err *err)
{
	drop_gone(s);
	s->bytes = 0;
	for (size_t i = 0; i < s->entries.n; i++)
		s->bytes += s->entries.v[i].size;
	if (s->entries.n == 0)
		return err_set(err, E_SNAPSHOT_EMPTY, "all files went away while they were read");
	return 0;
}

/*
 * The stat cache
 */

static bool knows_git_id(const struct snapshot_private *private, unsigned flags)
{
	switch (private->git) {
	case CONTENT_GIT_SHA1:
		return flags & STATCACHE_GIT_SHA1;
	case CONTENT_GIT_SHA256:
		return flags & STATCACHE_GIT_SHA256;
	case CONTENT_GIT_NONE:
		break;
	}
	return true;
}

static bool use_cached(struct snapshot *s, size_t i, const struct statcache_entry *cached)
{
	struct path *path = &s->paths.v[i];
	struct statcache_stat stat = content_stat(path);
	struct entry *entry = &s->entries.v[i];

	if (path->kind != ENTRY_FILE || !knows_git_id(s->private, cached->flags) ||
		!statcache_matches(cached, &stat, s->private->network))
		return false;
	entry->kind = ENTRY_FILE;
	entry->exec = path->mode & S_IXUSR;
	entry->size = path->size;
	memcpy(entry->sha256, cached->sha256, SHA256_SIZE);
	memcpy(s->private->git_ids[i], cached->git_id, SHA1_SIZE);
	s->private->marks[i] = (uint8_t)((cached->flags & 0x0f) | MARK_SETTLED);
	return true;
}

struct joining {
	struct snapshot *snapshot;
	const struct statcache *cache;
	size_t *todo; /* of each part from its first path on */
	size_t *n_todo;
};

enum { JOIN_PART = 2048 }; /* paths */

/* The cache and the paths are sorted, so one pass joins them. */
static void join_part(void *ctx, size_t part, unsigned worker UNUSED)
{
	struct joining *joining = ctx;
	struct snapshot *s = joining->snapshot;
	size_t first = part * JOIN_PART, left = s->paths.n - first, n_todo = 0;
	size_t end = first + (left < JOIN_PART ? left : JOIN_PART);
	struct statcache_cursor cursor;

	statcache_seek(joining->cache, &cursor, s->paths.v[first].path);
	bool more = statcache_next(joining->cache, &cursor);
	for (size_t i = first; i < end; i++) {
		int order = -1;

		s->entries.v[i].path = s->paths.v[i].path;
		while (more && (order = strcmp(s->paths.v[i].path, cursor.path)) > 0)
			more = statcache_next(joining->cache, &cursor);
		if (!more || order != 0 || !use_cached(s, i, &cursor.entry))
			joining->todo[first + n_todo++] = i;
	}
	joining->n_todo[part] = n_todo;
}

/* Returns how many paths are left to be read, in todo. */
static size_t content_join(struct snapshot *s, const struct statcache *cache, size_t *todo)
{
	size_t n_parts = (s->paths.n + JOIN_PART - 1) / JOIN_PART, n_todo = 0;
	AUTO_FREE size_t *counts = mem_alloc(n_parts + 1, sizeof(*counts));
	struct joining joining = {.snapshot = s, .cache = cache, .todo = todo, .n_todo = counts};

	par_for(n_parts, join_part, &joining);
	for (size_t part = 0; part < n_parts; part++) {
		memmove(todo + n_todo, todo + part * JOIN_PART, counts[part] * sizeof(*todo));
		n_todo += counts[part];
	}
	return n_todo;
}

static void add_to_cache(struct cachefile_writer *writer, const struct snapshot *s, size_t i)
{
	struct statcache_stat stat = content_stat(&s->paths.v[i]);
	struct statcache_entry entry = {
		.dev = stat.dev,
		.ino = stat.ino,
		.size = stat.size,
		.mtime_ns = stat.mtime_ns,
		.ctime_ns = stat.ctime_ns,
		.mode = stat.mode,
		.flags = s->private->marks[i] & 0x0f,
	};

	memcpy(entry.sha256, s->entries.v[i].sha256, SHA256_SIZE);
	memcpy(entry.git_id, s->private->git_ids[i], SHA1_SIZE);
	statcache_add(writer, &entry, s->paths.v[i].path);
}

struct contents_saving {
	const struct snapshot *snapshot;
	const struct statcache *cache;
	const char *path;
	struct par_task *task;
};

static void content_save(void *ctx)
{
	const struct contents_saving *saving = ctx;
	const struct snapshot *s = saving->snapshot;
	/* A snapshot of a part of the tree must not forget the other parts. */
	bool keep = s->private->limits.n > 0;
	struct statcache_cursor cursor = {0};
	bool more = keep && statcache_next(saving->cache, &cursor);
	struct cachefile_writer *writer = statcache_write(saving->path);

	for (size_t i = 0; writer && i < s->entries.n; i++) {
		int order;
		while (more && (order = strcmp(cursor.path, s->paths.v[i].path)) <= 0) {
			if (order < 0)
				statcache_add(writer, &cursor.entry, cursor.path);
			more = statcache_next(saving->cache, &cursor);
		}
		if (s->entries.v[i].kind == ENTRY_FILE && s->private->marks[i] & MARK_SETTLED)
			add_to_cache(writer, s, i);
	}
	for (; writer && more; more = statcache_next(saving->cache, &cursor))
		statcache_add(writer, &cursor.entry, cursor.path);
	cachefile_write_end(writer);
}

/* Whether reading those files once more would cost more than writing the cache does. */
static bool is_worth_saving(const struct snapshot *s, const struct statcache *cache)
{
	size_t n_new = 0, n_used = 0;
	uint64_t bytes = 0;

	for (size_t i = 0; i < s->entries.n; i++) {
		unsigned marks = s->private->marks[i];
		if (s->entries.v[i].kind != ENTRY_FILE || !(marks & MARK_SETTLED))
			continue;
		if (marks & MARK_READ) {
			n_new++;
			bytes += s->entries.v[i].size;
		} else {
			n_used++;
		}
	}
	bool stale = s->private->limits.n == 0 &&
		     (cache->file.n - n_used) > cache->file.n / SAVE_STALE_PART;
	return bytes > SAVE_BYTES || n_new > s->entries.n / SAVE_PART || stale;
}

struct contents_saving *contents_save(
	const struct snapshot *snapshot, const struct statcache *cache, const char *path)
{
	if (!path || !is_worth_saving(snapshot, cache))
		return NULL;
	struct contents_saving *saving = mem_alloc(1, sizeof(*saving));
	*saving = (struct contents_saving){.snapshot = snapshot, .cache = cache, .path = path};
	saving->task = par_start(content_save, saving);
	return saving;
}

void contents_save_wait(struct contents_saving *saving)
{
	if (!saving)
		return;
	par_wait(saving->task);
	free(saving);
}

/*
 * All of it
 */

/* Links are always read. */
static void report_what_is_read(const struct snapshot *s, const struct snapshot_options *options,
	const size_t *todo, size_t n_todo)
{
	AUTO_FREE const struct path **files = mem_alloc(n_todo + 1, sizeof(*files));
	size_t n = 0;

	for (size_t k = 0; k < n_todo; k++)
		if (s->paths.v[todo[k]].kind == ENTRY_FILE)
			files[n++] = &s->paths.v[todo[k]];
	options->will_read(options->will_ctx, files, n);
}

int contents_take(struct snapshot *s, const struct snapshot_options *options,
	const struct statcache *cache, struct err *err)
{
	size_t n = s->paths.n;
	AUTO_FREE size_t *todo = mem_alloc(n + 1, sizeof(*todo));

	s->entries.v = mem_alloc(n + 1, sizeof(*s->entries.v));
	s->entries.cap = n + 1;
	s->entries.n = n;
	s->private->git_ids = mem_alloc(n + 1, sizeof(*s->private->git_ids));
	s->private->marks = mem_alloc(n + 1, 1);
	size_t n_todo = content_join(s, cache, todo);
	if (options->will_read)
		report_what_is_read(s, options, todo, n_todo);
	int rc = read_todo(s, todo, n_todo, err);
	return rc < 0 ? rc : content_finish(s, err);
}

struct checking {
	const struct snapshot *snapshot;
	bool *changed;
};

static void check_one(void *ctx, size_t i, unsigned worker UNUSED)
{
	struct checking *checking = ctx;
	const struct path *path = &checking->snapshot->paths.v[i];
	struct path now = *path;
	struct stat st;

	int rc = content_lstat(checking->snapshot->private->root_fd, path->path, &st);
	bool known = rc == 0 && content_set_stat(&now, &st);
	/* Of a link the size is that of its target, whatever stat says. */
	if (known && now.kind == ENTRY_LINK)
		now.size = path->size;
	checking->changed[i] = !known || !content_same_stat(path, &now);
}

int contents_refresh(struct snapshot *s, struct err *err)
{
	size_t n = s->paths.n, n_todo = 0;
	AUTO_FREE bool *changed = mem_alloc(n + 1, sizeof(*changed));
	AUTO_FREE size_t *todo = mem_alloc(n + 1, sizeof(*todo));
	struct checking checking = {.snapshot = s, .changed = changed};

	par_for(n, check_one, &checking);
	for (size_t i = 0; i < n; i++)
		if (changed[i])
			todo[n_todo++] = i;
	int rc = read_todo(s, todo, n_todo, err);
	return rc < 0 ? rc : content_finish(s, err);
}

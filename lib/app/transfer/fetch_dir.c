/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "app/transfer/fetch_dir.h"
#include "app/transfer/sink_dir.h"
#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/map.h"
#include "base/util/str.h"

/*
 * DIR/.dlrun-fetch holds the lock, the file that is being written (renamed to its place when it is
 * whole; a large one is called after its path, size and time, and stays when the fetch is cut) and
 * `seen`: for each file that was written "SIZE MTIME OUR_MTIME PATH" and NUL, appended
 * before the file gets its name, so that one that is killed never leaves a file behind that looks
 * like somebody else's. Times are in nanoseconds; the last record of a path counts.
 */
#define SEEN    "seen"
#define TEMP    "new"
#define PARTIAL "part-"

enum {
	LOCK_MS = 5000,
	SEEN_MAX = 256 << 20,
	SEEN_SPARE = 64 << 10, /* so much may be outdated before it is written anew */
	LIST_MAX = ERR_EVIDENCE_MAX,
	NEVER = -1, /* a time that no file has */
	TEMP_SIZE = 40,
	PARTIALS_MAX = 8, /* more are all forgotten */
	PARTIALS_READ = 1000,
	PROGRESS_MS = 100,
};
#define NS_PER_S INT64_C(1000000000)

struct seen {
	uint64_t size;
	int64_t mtime_ns, our_mtime_ns;
};

/* Files that share a problem, the first of them by name. */
struct problem {
	size_t n;
	struct strv names;
	int errnum; /* of the first */
};

struct fetch_dir {
	struct fetch_sink sink;
	struct sink_dir dir;
	bool force;
	mode_t modes; /* that files may have: no setuid, setgid, sticky, nor what umask takes */
	int seen_fd;
	struct map seen; /* path → struct seen */
	struct arena arena;
	size_t seen_bytes, live_bytes; /* of `seen`: all, and what counts */
	char *parent;                  /* open as parent_fd; NULL: none */
	int parent_fd, temp_fd;
	char temp[TEMP_SIZE]; /* the name of what is written, */
	char rest[TEMP_SIZE]; /* and of what stays of it when it is cut */
	uint64_t temp_bytes;  /* that came of it now */
	struct fetch_report report;
	struct fetch_progress progress;
	fetch_progress_fn *on_progress; /* or NULL */
	void *progress_ctx;
	int64_t shown_ms;
	struct problem kept, unread;
	struct sink_overlap grow; /* of what is written */
	struct strv anew;         /* what was taken to have only grown, and had not */
	size_t n_anew;            /* of these: not come since */
};

/*
 * A file of a fetch that has, or may have, grown since the fetch before: its end is brought, behind
 * a copy of what is here. Only of logs and event files, which by their names are appended to, and
 * only while the last FETCH_GROW_OVERLAP bytes that are here are there, too, and the zeros behind
 * them, which may be space that a program has allocated ahead; of others what was written before
 * may change when they grow (an index, a header, a column), which no look at their end tells.
 */

enum { CHUNK = 256 << 10, HOLE_MIN = 4096 };

static int open_here(int dir_fd, const char *name)
{
	return openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

static bool is_appended_to(const char *name)
{
	static const char *const ends[] = {".log", "log.txt", ".out", ".err", ".jsonl", ".ndjson"};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (str_ends(name, ends[i]))
			return true;
	return str_eq(name, "log") || strstr(name, "tfevents");
}

/* Behind the last byte that is not zero, of the first `size`. */
static uint64_t end_of_content(int fd, uint64_t size)
{
	AUTO_FREE char *data = mem_alloc(CHUNK, 1);

	while (size > 0) {
		size_t n = size < CHUNK ? (size_t)size : CHUNK;
		if (pread(fd, data, n, (off_t)(size - n)) != (ssize_t)n)
			return 0;
		for (; n > 0 && !data[n - 1]; n--)
			size--;
		if (n > 0)
			break;
	}
	return size;
}

/* Where what is wanted of one that is not smaller there begins; 0: the whole. */
static uint64_t fetch_grow_offset(int dir_fd, const char *name)
{
	AUTO_FD int fd = is_appended_to(name) ? open_here(dir_fd, name) : -1;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	uint64_t end = end_of_content(fd, (uint64_t)st.st_size);
	return end > FETCH_GROW_OVERLAP ? end - FETCH_GROW_OVERLAP : 0;
}

/* Zeros become a hole, so that a sparse file stays one. Nothing lies behind the end that it has. */
static int fetch_grow_write(int fd, const char *what, const char *data, size_t len, struct err *err)
{
	if (len < HOLE_MIN || data[0] || memcmp(data, data + 1, len - 1) != 0)
		return fs_write_fd(fd, what, data, len, err);
	off_t end = lseek(fd, (off_t)len, SEEK_CUR);
	if (end < 0 || ftruncate(fd, end) < 0)
		return fs_error(err, errno, "%s", what);
	return 0;
}

static void fetch_grow_end(struct sink_overlap *grow)
{
	auto_fd(&grow->fd);
	*grow = (struct sink_overlap){.fd = -1};
}

/* offset: that of fetch_grow_offset or further on. temp_fd gets what is in front of it. */
static int fetch_grow_begin(struct sink_overlap *grow, int dir_fd, const char *name,
	uint64_t offset, int temp_fd, const char *what, struct err *err)
{
	AUTO_FREE char *data = mem_alloc(CHUNK, 1);
	struct stat st;
	int r = 0;

	fetch_grow_end(grow);
	grow->fd = open_here(dir_fd, name);
	if (grow->fd < 0 || fstat(grow->fd, &st) < 0)
		st.st_size = 0;
	grow->at = offset;
	grow->end = (uint64_t)st.st_size;
	grow->differs = grow->end < offset;
	for (uint64_t at = 0; r == 0 && at < offset && !grow->differs;) {
		uint64_t left = offset - at;
		ssize_t n = pread(grow->fd, data, left < CHUNK ? left : CHUNK, (off_t)at);
		grow->differs = n <= 0;
		r = n > 0 ? fetch_grow_write(temp_fd, what, data, (size_t)n, err) : 0;
		at += n > 0 ? (uint64_t)n : 0;
	}
	return r;
}

/*
 * The sink
 */

static struct fetch_dir *dir_of(struct fetch_sink *sink)
{
	return (struct fetch_dir *)sink;
}

static bool is_partial(const char *name)
{
	return str_starts(name, PARTIAL);
}

/* Remove the unfinished file, unless the next fetch can resume it. */
static void drop_temp(struct fetch_dir *into)
{
	bool is_whole =
		into->grow.fd < 0 || (!into->grow.differs && into->grow.at == into->grow.end);
	bool is_kept = is_partial(into->rest) && is_whole;

	if (into->temp_fd < 0)
		return;
	if (is_kept && !str_eq(into->temp, into->rest))
		is_kept = fsync(into->temp_fd) == 0 &&
			  renameat(into->dir.own_fd, into->temp, into->dir.own_fd, into->rest) == 0;
	auto_fd(&into->temp_fd);
	into->temp_fd = -1;
	if (!is_kept)
		unlinkat(into->dir.own_fd, into->temp, 0);
}

static void dir_free(struct fetch_sink *sink)
{
	struct fetch_dir *into = dir_of(sink);

	drop_temp(into);
	fetch_grow_end(&into->grow);
	strv_done(&into->anew);
	auto_fd(&into->parent_fd);
	auto_fd(&into->seen_fd);
	sink_dir_done(&into->dir);
	map_done(&into->seen);
	arena_done(&into->arena);
	strv_done(&into->kept.names);
	strv_done(&into->unread.names);
	free(into->parent);
	free(into);
}

static void fetch_dir_note(struct problem *problem, const char *path, int errnum)
{
	if (problem->n++ == 0)
		problem->errnum = errnum;
	if (problem->names.n < LIST_MAX)
		strv_add(&problem->names, path);
}

static void dir_unread(struct fetch_sink *sink, const char *path, int errnum)
{
	struct fetch_dir *into = dir_of(sink);

	fetch_dir_note(&into->unread, path, errnum);
}

/*
 * Files written before
 */

static void fetch_dir_remember(
	struct fetch_dir *into, const char *path, const struct seen *seen, size_t len)
{
	struct seen *own = map_get(&into->seen, path);

	into->seen_bytes += len;
	if (!own) {
		own = arena_alloc(&into->arena, sizeof(*own));
		map_put(&into->seen, path, own);
		into->live_bytes += len;
	}
	*own = *seen;
}

/* Read one record; an invalid one is ignored. */
static void fetch_dir_read_record(struct fetch_dir *into, const char *text, size_t len)
{
	long long size, mtime_ns, our_mtime_ns;
	int path_at = 0;

	if (sscanf(text, "%lld %lld %lld %n", &size, &mtime_ns, &our_mtime_ns, &path_at) < 3 ||
		!path_at || !text[path_at] || size < 0)
		return;
	const struct seen seen = {(uint64_t)size, mtime_ns, our_mtime_ns};
	fetch_dir_remember(into, text + path_at, &seen, len);
}

static size_t format_seen(const char *path, const struct seen *seen, struct buf *out)
{
	size_t before = out->len;

	buf_addf(out, "%lld %lld %lld %s", (long long)seen->size, (long long)seen->mtime_ns,
		(long long)seen->our_mtime_ns, path);
	buf_addc(out, '\0');
	return out->len - before;
}

static int append_seen(
	struct fetch_dir *into, const char *path, const struct seen *seen, struct err *err)
{
	AUTO_BUF struct buf record = buf_with(ENTRY_PATH_MAX + 100);

	size_t len = format_seen(path, seen, &record);
	int r = fs_write_fd(into->seen_fd, into->dir.path, record.data, len, err);
	if (r == 0)
		fetch_dir_remember(into, path, seen, len);
	return r;
}

/* Without the records that do not count any more. */
static void shorten_seen(struct fetch_dir *into)
{
	AUTO_FREE char *path = mem_printf("%s/" FETCH_OWN "/" SEEN, into->dir.path);
	AUTO_BUF struct buf text = buf_with(SEEN_MAX);
	size_t pos = 0;
	const char *name;
	void *seen;

	if (into->seen_bytes <= 2 * into->live_bytes + SEEN_SPARE)
		return;
	while (map_each(&into->seen, &pos, &name, &seen))
		format_seen(name, seen, &text);
	if (!text.full)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

static int open_seen(struct fetch_dir *into, struct err *err)
{
	enum { FLAGS = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	into->seen_fd = openat(into->dir.own_fd, SEEN, FLAGS, 0600);
	if (into->seen_fd < 0)
		return fs_error(err, errno, "%s/" FETCH_OWN "/" SEEN, into->dir.path);
	AUTO_FREE char *path = mem_printf("%s/" FETCH_OWN "/" SEEN, into->dir.path);
	AUTO_BUF struct buf text = {0};
	int r = fs_read_fd(into->seen_fd, path, SEEN_MAX, &text, err);

	if (r < 0)
		return r;
	for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1)
		fetch_dir_read_record(into, text.data + at, strlen(text.data + at) + 1);
	return 0;
}

/*
 * Opening
 */

/* Beginnings of files that nobody has gone on with. */
static void drop_partials(struct fetch_dir *into, size_t spared)
{
	AUTO_STRV struct strv names = {0};
	int copy = fcntl(into->dir.own_fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!dir) {
		auto_fd(&copy);
		return;
	}
	rewinddir(dir);
	while ((entry = readdir(dir)) && names.n < PARTIALS_READ)
		if (is_partial(entry->d_name))
			strv_add(&names, entry->d_name);
	for (size_t i = 0; names.n > spared && i < names.n; i++)
		unlinkat(into->dir.own_fd, names.v[i], 0);
}

static bool dir_is_in(const struct fetch_sink *sink, const struct stat *dir)
{
	const struct fetch_dir *into = (const struct fetch_dir *)sink;
	struct stat st;

	return fstat(into->dir.fd, &st) == 0 && st.st_dev == dir->st_dev &&
	       st.st_ino == dir->st_ino;
}

void fetch_dir_report(const struct fetch_sink *sink, struct fetch_report *ret)
{
	const struct fetch_dir *into = (const struct fetch_dir *)sink;

	*ret = into->report;
	ret->begun = into->temp_fd >= 0 && is_partial(into->rest) ? into->temp_bytes : 0;
}

void fetch_dir_on_progress(struct fetch_sink *sink, fetch_progress_fn *progress, void *ctx)
{
	dir_of(sink)->on_progress = progress;
	dir_of(sink)->progress_ctx = ctx;
}

/*
 * Existing files
 */

static int64_t fetch_dir_mtime_of(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec;
}

/* Written by a fetch, and nobody has changed it since. */
static bool fetch_dir_is_ours(const struct fetch_dir *into, const char *path, const struct stat *st)
{
	const struct seen *seen = map_get(&into->seen, path);

	return seen && (S_ISREG(st->st_mode) || S_ISLNK(st->st_mode)) &&
	       seen->size == (uint64_t)st->st_size && seen->our_mtime_ns == fetch_dir_mtime_of(st);
}

static bool dir_may_replace(void *ctx, const char *path, const struct stat *st)
{
	const struct fetch_dir *into = ctx;

	return !S_ISDIR(st->st_mode) && (into->force || fetch_dir_is_ours(into, path, st));
}

/* The file system may keep times less exactly than the one that they come from. */
static bool fetch_dir_is_same(
	const struct fetch_dir *into, const struct fetch_item *item, const struct stat *st)
{
	const struct seen *seen = map_get(&into->seen, item->path);

	if (!S_ISREG(st->st_mode) || item->changing || (uint64_t)st->st_size != item->size)
		return false;
	if (fetch_dir_mtime_of(st) == item->mtime_ns)
		return true;
	return seen && fetch_dir_is_ours(into, item->path, st) && seen->mtime_ns == item->mtime_ns;
}

static bool is_same_link(int dir_fd, const char *name, const char *target)
{
	AUTO_FREE char *now = mem_alloc(ENTRY_PATH_MAX + 2, 1);
	ssize_t n = readlinkat(dir_fd, name, now, ENTRY_PATH_MAX + 1);

	return n >= 0 && (size_t)n == strlen(target) && memcmp(now, target, (size_t)n) == 0;
}

/*
 * Directories
 */

/* 1: *ret_fd (kept by the into) is the directory of path, *ret_name its last name there; 0: not
 * possible, noted. */
static int find_parent(struct fetch_dir *into, const char *path, int *ret_fd, const char **ret_name,
	struct err *err)
{
	const char *slash = strrchr(path, '/');
	AUTO_FREE char *parent = mem_strndup(path, slash ? (size_t)(slash - path) : 0);

	if (entry_path_has_git(path))
		return 0;
	if (!sink_dir_admits(&into->dir, path)) {
		fetch_dir_note(&into->unread, path, EINVAL);
		return 0;
	}
	if (!str_eq(into->parent, parent)) {
		int fd = sink_dir_enter(&into->dir, parent);
		if (fd == -EEXIST) {
			fetch_dir_note(&into->kept, path, EEXIST);
			return 0;
		}
		if (fd < 0)
			return sink_dir_fail(&into->dir, -fd, parent, err);
		auto_fd(&into->parent_fd);
		into->parent_fd = fd;
		REPLACE(into->parent, TAKE(parent));
	}
	*ret_fd = into->parent_fd;
	*ret_name = slash ? slash + 1 : path;
	return 1;
}

static int dir_dir(struct fetch_sink *sink, const char *path, mode_t mode, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);
	const char *name;
	struct stat st;
	int parent_fd;

	int r = find_parent(into, path, &parent_fd, &name, err);
	if (r <= 0)
		return r;
	if (fstatat(parent_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return 0;
	AUTO_FD int fd = sink_dir_step(&into->dir, parent_fd, name, path);
	if (fd == -EEXIST) {
		fetch_dir_note(&into->kept, path, EEXIST);
		return 0;
	}
	if (fd < 0)
		return sink_dir_fail(&into->dir, -fd, path, err);
	return fchmod(fd, (mode & into->modes) | S_IRWXU) < 0
		       ? sink_dir_fail(&into->dir, errno, path, err)
		       : 0;
}

/*
 * Files
 */

/* The beginning of one file in one state, which a fetch that was cut has left. A power cut may have
 * damaged it: with the next boot it has another name. Where boots cannot be told apart, it gets its
 * name when it is on disk. */
static void name_rest(
	const struct fetch_dir *into, const struct fetch_item *item, char ret[static TEMP_SIZE])
{
	AUTO_FREE char *key = mem_printf("%s %llu %lld %s", into->dir.boot,
		(unsigned long long)item->size, (long long)item->mtime_ns, item->path);
	uint8_t hash[SHA256_SIZE];
	char text[DIGEST_TEXT_SIZE];

	if (item->changing || item->size < FETCH_RESUME_MIN) {
		snprintf(ret, TEMP_SIZE, TEMP);
		return;
	}
	digest_sha256(key, strlen(key), hash);
	digest_text(hash, text);
	snprintf(ret, TEMP_SIZE, PARTIAL "%.32s", text + strlen("sha256:"));
}

/* At least one byte is left to come. */
static uint64_t bytes_kept(const struct fetch_dir *into, const struct fetch_item *item)
{
	char name[TEMP_SIZE];
	struct stat st;

	name_rest(into, item, name);
	if (!is_partial(name) || fstatat(into->dir.own_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		!S_ISREG(st.st_mode))
		return 0;
	return (uint64_t)st.st_size < item->size ? (uint64_t)st.st_size : item->size - 1;
}

static int wants_item(struct fetch_dir *into, const struct fetch_item *item, struct err *err)
{
	const char *name;
	struct stat st;
	bool same;
	int fd;

	int r = find_parent(into, item->path, &fd, &name, err);
	into->report.in_git += entry_path_has_git(item->path);
	if (r <= 0)
		return r;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 1 : sink_dir_fail(&into->dir, errno, item->path, err);
	same = item->target ? S_ISLNK(st.st_mode) && is_same_link(fd, name, item->target)
			    : fetch_dir_is_same(into, item, &st);
	if (same) {
		into->report.skipped++;
		return 0;
	}
	if (dir_may_replace(into, item->path, &st))
		return 1;
	fetch_dir_note(&into->kept, item->path, EEXIST);
	return 0;
}

/* The time that its copy gets: of one that may change unseen such that the next fetch takes it
 * again. */
static int64_t copy_mtime_ns(const struct fetch_item *item, bool is_changing)
{
	return item->mtime_ns - is_changing;
}

/* As large as the copy it has grown unseen, or not at all: with another time it was written in
 * place. */
static bool may_have_grown(const struct fetch_item *item, const struct stat *here)
{
	uint64_t size = (uint64_t)here->st_size;

	return size < item->size ||
	       (size == item->size && fetch_dir_mtime_of(here) == copy_mtime_ns(item, true));
}

/* 0: the whole of it. The user's own changes are not built upon. */
static uint64_t grown_from(struct fetch_dir *into, const struct fetch_item *item, struct err *err)
{
	const char *name;
	struct stat st;
	int fd;

	if (strv_find(&into->anew, item->path) >= 0 ||
		find_parent(into, item->path, &fd, &name, err) <= 0 ||
		fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
		!fetch_dir_is_ours(into, item->path, &st) || !may_have_grown(item, &st))
		return 0;
	return fetch_grow_offset(fd, name);
}

static int dir_wants(struct fetch_sink *sink, const struct fetch_item *item,
	struct fetch_range *ret, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);

	int r = wants_item(into, item, err);
	if (r <= 0)
		return r;
	ret->offset = bytes_kept(into, item);
	if (ret->offset == 0)
		ret->offset = grown_from(into, item, err);
	ret->len = item->size - ret->offset;
	into->progress.files++;
	into->progress.bytes += ret->len;
	return 1;
}

static int fetch_dir_open_temp(struct fetch_dir *into, uint64_t offset)
{
	enum { FLAGS = O_WRONLY | O_NOFOLLOW | O_CLOEXEC };
	struct stat st;

	if (offset == 0) {
		into->temp_fd = sink_dir_new(&into->dir, into->temp);
		return into->temp_fd < 0 ? into->temp_fd : 0;
	}
	if (!str_eq(into->temp, into->rest) &&
		renameat(into->dir.own_fd, into->rest, into->dir.own_fd, into->temp) < 0)
		return -errno;
	into->temp_fd = openat(into->dir.own_fd, into->temp, FLAGS);
	if (into->temp_fd < 0 || fstat(into->temp_fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size < offset)
		return -ESTALE;
	if (ftruncate(into->temp_fd, (off_t)offset) < 0 ||
		lseek(into->temp_fd, (off_t)offset, SEEK_SET) < 0)
		return -errno;
	return 0;
}

/* The temporary file with what is in front of range. */
static int begin_temp(struct fetch_dir *into, const struct fetch_item *item,
	const struct fetch_range *range, struct err *err)
{
	bool is_grown = range->offset > bytes_kept(into, item);
	const char *name;
	int fd;

	/* Until that is known to fit, it is nothing to go on with. */
	if (is_grown)
		snprintf(into->temp, sizeof(into->temp), TEMP);
	int r = fetch_dir_open_temp(into, is_grown ? 0 : range->offset);
	if (r < 0)
		return sink_dir_fail(&into->dir, -r, item->path, err);
	if (!is_grown)
		return 1;
	r = find_parent(into, item->path, &fd, &name, err);
	if (r <= 0)
		return r;
	r = fetch_grow_begin(
		&into->grow, fd, name, range->offset, into->temp_fd, into->dir.path, err);
	return r < 0 ? r : 1;
}

static int dir_begin(struct fetch_sink *sink, const struct fetch_item *item,
	const struct fetch_range *range, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);

	drop_temp(into);
	fetch_grow_end(&into->grow);
	int r = wants_item(into, item, err);
	if (r <= 0)
		return r;
	name_rest(into, item, into->rest);
	snprintf(into->temp, sizeof(into->temp), "%s", into->dir.boot[0] ? into->rest : TEMP);
	into->temp_bytes = 0;
	return begin_temp(into, item, range, err);
}

static void fetch_dir_show_progress(struct fetch_dir *into)
{
	if (!into->on_progress || clock_ms() - into->shown_ms < PROGRESS_MS)
		return;
	into->shown_ms = clock_ms();
	into->progress.files_done = into->report.files;
	into->on_progress(into->progress_ctx, &into->progress);
}

static int dir_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);

	if (into->grow.fd >= 0)
		sink_overlap_check(&into->grow, data, len);
	if (into->grow.differs)
		return 0;
	int r = fetch_grow_write(into->temp_fd, into->dir.path, data, len, err);
	if (r < 0)
		return r;
	into->temp_bytes += len;
	into->progress.bytes_done += len;
	fetch_dir_show_progress(into);
	return 0;
}

static void fetch_dir_set_times(const struct fetch_item *item, struct timespec times[2])
{
	int64_t ns = copy_mtime_ns(item, item->changing);

	times[0] = (struct timespec){.tv_nsec = UTIME_NOW};
	times[1] = (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
	if (times[1].tv_nsec < 0) {
		times[1].tv_sec--;
		times[1].tv_nsec += NS_PER_S;
	}
}

/* The new file, closed and named. */
static int place(struct fetch_dir *into, const struct fetch_item *item, const struct stat *st,
	struct err *err)
{
	const struct seen seen = {(uint64_t)st->st_size, item->changing ? NEVER : item->mtime_ns,
		fetch_dir_mtime_of(st)};
	const char *name;
	int parent_fd;

	int r = find_parent(into, item->path, &parent_fd, &name, err);
	if (r <= 0)
		return r;
	r = append_seen(into, item->path, &seen, err);
	if (r < 0)
		return r;
	if (renameat(into->dir.own_fd, into->temp, parent_fd, name) < 0)
		return sink_dir_fail(&into->dir, errno, item->path, err);
	into->report.files++;
	into->report.bytes += S_ISREG(st->st_mode) ? into->temp_bytes : 0;
	return 0;
}

static int dir_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);
	int fd = take_fd(&into->temp_fd), errnum = 0;
	bool is_anew = into->grow.differs;
	struct timespec times[2];
	struct stat st;

	fetch_grow_end(&into->grow);
	if (is_anew) {
		close(fd);
		unlinkat(into->dir.own_fd, into->temp, 0);
		strv_add(&into->anew, item->path);
		into->n_anew++;
		return 0;
	}
	fetch_dir_set_times(item, times);
	if (fchmod(fd, item->mode & into->modes) < 0 || futimens(fd, times) < 0 ||
		fstat(fd, &st) < 0)
		errnum = errno;
	if (close(fd) < 0 && errno != EINTR && !errnum)
		errnum = errno;
	int r = errnum ? sink_dir_fail(&into->dir, errnum, item->path, err)
		       : place(into, item, &st, err);
	if (r <= 0)
		unlinkat(into->dir.own_fd, into->temp, 0);
	return r < 0 ? r : 0;
}

static int dir_link(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);
	struct timespec times[2];
	struct stat st;

	drop_temp(into);
	int r = wants_item(into, item, err);
	if (r <= 0)
		return r;
	snprintf(into->temp, sizeof(into->temp), TEMP);
	r = sink_dir_new_link(&into->dir, TEMP, item->target);
	if (r < 0)
		return sink_dir_fail(&into->dir, -r, item->path, err);
	fetch_dir_set_times(item, times);
	/* Some file systems keep no time for links; what they keep is read back. */
	utimensat(into->dir.own_fd, TEMP, times, AT_SYMLINK_NOFOLLOW);
	if (fstatat(into->dir.own_fd, TEMP, &st, AT_SYMLINK_NOFOLLOW) < 0)
		r = sink_dir_fail(&into->dir, errno, item->path, err);
	else
		r = place(into, item, &st, err);
	if (r <= 0)
		unlinkat(into->dir.own_fd, TEMP, 0);
	return r < 0 ? r : 0;
}

int fetch_dir_hide(struct fetch_sink *sink, struct err *err)
{
	static const char text[] = "*\n";
	static const struct fetch_range all = {0, sizeof(text) - 1};
	struct fetch_dir *into = dir_of(sink);
	struct timespec now;
	struct fetch_report report = into->report;

	clock_gettime(CLOCK_REALTIME, &now);
	const struct fetch_item item = {.path = ".gitignore",
		.mode = 0644,
		.size = sizeof(text) - 1,
		.mtime_ns = (int64_t)now.tv_sec * NS_PER_S};
	int r = dir_begin(sink, &item, &all, err);
	if (r > 0)
		r = dir_write(sink, text, sizeof(text) - 1, err);
	if (r == 0 && into->temp_fd >= 0)
		r = dir_end(sink, &item, err);
	into->report = report;
	into->progress = (struct fetch_progress){0};
	return r < 0 ? r : 0;
}

/*
 * The end
 */

static void fetch_dir_add_names(const struct problem *problem, struct err *err)
{
	for (size_t i = 0; i < problem->names.n; i++) {
		AUTO_FREE char *shown = str_escaped(problem->names.v[i]);

		err_evidence(err, "%s", shown);
	}
}

bool fetch_dir_again(struct fetch_sink *sink)
{
	struct fetch_dir *into = dir_of(sink);
	bool again = into->n_anew > 0;

	into->n_anew = 0;
	if (again)
		into->report.skipped = 0;
	return again;
}

int fetch_dir_finish(struct fetch_sink *sink, const char *run_id, struct err *err)
{
	struct fetch_dir *into = dir_of(sink);

	shorten_seen(into);
	drop_partials(into, 0);
	int r = fetch_paths_check(sink->paths, run_id, sink->from_tree, err);
	if (r < 0)
		return r;
	if (into->kept.n) {
		size_t n = into->kept.n;
		AUTO_BUF struct buf dir = buf_with(2 * ENTRY_PATH_MAX);

		str_shell_quote(&dir, into->dir.path);
		err_set(err, E_FETCH_KEPT,
			"%zu %s in %s %s not as a fetch left %s, and %s left alone", n,
			n == 1 ? "file" : "files", into->dir.path, n == 1 ? "is" : "are",
			n == 1 ? "it" : "them", n == 1 ? "was" : "were");
		fetch_dir_add_names(&into->kept, err);
		return err_hint(err, "dlrun fetch --force -o %s %s", dir.data, run_id);
	}
	size_t n = into->unread.n;
	if (n == 0)
		return 0;
	err_set_errno(err, E_IO_READ, into->unread.errnum,
		"%zu %s of the results of %s cannot be read", n, n == 1 ? "file" : "files", run_id);
	fetch_dir_add_names(&into->unread, err);
	return -ERR_IO;
}

static const struct fetch_sink_ops dir_ops = {
	.dir = dir_dir,
	.link = dir_link,
	.wants = dir_wants,
	.begin = dir_begin,
	.write = dir_write,
	.end = dir_end,
	.unread = dir_unread,
	.is_in = dir_is_in,
	.free = dir_free,
};

static int fail_inside_git(const char *dir, struct err *err)
{
	err_set(err, E_USAGE, "%s is in a .git directory, where results would run as hooks", dir);
	return err_hint(err, "dlrun fetch -o results");
}

int fetch_dir_open(const char *dir, struct fetch_paths *paths, bool force, struct fetch_sink **ret,
	struct err *err)
{
	struct fetch_dir *into = mem_alloc(1, sizeof(*into));
	AUTO(fetch_sink_free_auto) struct fetch_sink *sink = &into->sink;

	*into = (struct fetch_dir){
		.sink = {.ops = &dir_ops, .paths = paths},
		.force = force,
		.modes = 0777 & ~fs_umask(),
		.seen_fd = -1,
		.parent_fd = -1,
		.temp_fd = -1,
		.grow = {.fd = -1},
	};
	sink_dir_init(&into->dir, dir, FETCH_OWN, 0777);
	into->dir.may_replace = dir_may_replace;
	into->dir.ctx = into;
	int r = entry_path_has_git(dir) ? fail_inside_git(dir, err) : fs_mkdirs(dir, 0777, err);
	AUTO_FREE char *real = r == 0 ? realpath(dir, NULL) : NULL;
	if (real && entry_path_has_git(real))
		r = fail_inside_git(dir, err);
	if (r == 0)
		r = sink_dir_open(&into->dir, LOCK_MS, err);
	if (r == 0)
		r = open_seen(into, err);
	if (r < 0)
		return r;
	drop_partials(into, PARTIALS_MAX);
	*ret = TAKE(sink);
	return 0;
}

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/auto.h"
#include "base/entry.h"
#include "base/fs.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "run/fetch.h"

/*
 * DIR/.dlrun-fetch holds the lock, the file that is being written (renamed to its place when it is
 * whole) and `seen`: for each file that was written "SIZE MTIME OUR_MTIME PATH" and NUL, appended
 * before the file gets its name, so that one that is killed never leaves a file behind that looks
 * like somebody else's. Times are in nanoseconds; the last record of a path counts.
 */
#define SEEN "seen"
#define TEMP "new"

enum {
	LOCK_MS = 5000,
	SEEN_MAX = 256 << 20,
	SEEN_SPARE = 64 << 10, /* so much may be outdated before it is written anew */
	LIST_MAX = ERR_EVIDENCE_MAX,
	MODES = S_IRWXU | S_IRWXG | S_IRWXO, /* no setuid, setgid, sticky */
	NEVER = -1,                          /* a time that no file has */
};
#define NS_PER_S INT64_C(1000000000)

struct seen {
	uint64_t size;
	int64_t mtime_ns, our_mtime_ns;
};

/* What went wrong with some files, the first of them by name. */
struct problem {
	size_t n;
	struct strv names;
	int errnum; /* of the first */
};

struct fetch_sink {
	char *dir;
	struct fetch_paths *paths;
	bool force;
	int dir_fd, own_fd, lock_fd, seen_fd;
	struct map seen; /* path → struct seen */
	struct arena arena;
	size_t seen_bytes, live_bytes; /* of `seen`: all, and what counts */
	char *parent;                  /* open as parent_fd; NULL: none */
	int parent_fd, temp_fd;
	struct fetch_report report;
	struct problem kept, unread;
};

void fetch_sink_free(struct fetch_sink *sink)
{
	if (!sink)
		return;
	if (sink->temp_fd >= 0)
		unlinkat(sink->own_fd, TEMP, 0);
	auto_fd(&sink->temp_fd);
	auto_fd(&sink->parent_fd);
	auto_fd(&sink->seen_fd);
	auto_fd(&sink->own_fd);
	auto_fd(&sink->dir_fd);
	auto_fd(&sink->lock_fd);
	map_done(&sink->seen);
	arena_done(&sink->arena);
	strv_done(&sink->kept.names);
	strv_done(&sink->unread.names);
	free(sink->parent);
	free(sink->dir);
	free(sink);
}

static void note(struct problem *problem, const char *path, int errnum)
{
	if (problem->n++ == 0)
		problem->errnum = errnum;
	if (problem->names.n < LIST_MAX)
		strv_add(&problem->names, path);
}

void fetch_sink_unread(struct fetch_sink *sink, const char *path, int errnum)
{
	note(&sink->unread, path, errnum);
}

static int fail(const struct fetch_sink *sink, int errnum, const char *path, struct err *err)
{
	AUTO_FREE char *shown = str_shown(path);

	return fs_error(err, errnum, "writing %s/%s", sink->dir, shown);
}

/*
 * What was written before
 */

static void remember(struct fetch_sink *sink, const char *path, const struct seen *seen, size_t len)
{
	struct seen *own = map_get(&sink->seen, path);

	sink->seen_bytes += len;
	if (!own) {
		own = arena_alloc(&sink->arena, sizeof(*own));
		map_put(&sink->seen, path, own);
		sink->live_bytes += len;
	}
	*own = *seen;
}

/* One record; what is no record is passed over. */
static void read_record(struct fetch_sink *sink, const char *text, size_t len)
{
	long long size, mtime_ns, our_mtime_ns;
	int path_at = 0;

	if (sscanf(text, "%lld %lld %lld %n", &size, &mtime_ns, &our_mtime_ns, &path_at) < 3 ||
		!path_at || !text[path_at] || size < 0)
		return;
	const struct seen seen = {(uint64_t)size, mtime_ns, our_mtime_ns};
	remember(sink, text + path_at, &seen, len);
}

static int read_seen(struct fetch_sink *sink, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/" FETCH_OWN "/" SEEN, sink->dir);
	AUTO_BUF struct buf text = {0};
	int r = fs_read_fd(sink->seen_fd, path, SEEN_MAX, &text, err);

	if (r < 0)
		return r;
	for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1)
		read_record(sink, text.data + at, strlen(text.data + at) + 1);
	return 0;
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
	struct fetch_sink *sink, const char *path, const struct seen *seen, struct err *err)
{
	AUTO_BUF struct buf record;

	buf_init(&record, ENTRY_PATH_MAX + 100);
	size_t len = format_seen(path, seen, &record);
	int r = fs_write_fd(sink->seen_fd, sink->dir, record.data, len, err);
	if (r == 0)
		remember(sink, path, seen, len);
	return r;
}

/* Without the records that do not count any more. */
static void shorten_seen(struct fetch_sink *sink)
{
	AUTO_FREE char *path = mem_printf("%s/" FETCH_OWN "/" SEEN, sink->dir);
	AUTO_BUF struct buf text = {0};
	size_t pos = 0;
	const char *name;
	void *seen;

	if (sink->seen_bytes <= 2 * sink->live_bytes + SEEN_SPARE)
		return;
	buf_init(&text, SEEN_MAX);
	while (map_each(&sink->seen, &pos, &name, &seen))
		format_seen(name, seen, &text);
	if (!text.full)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

/*
 * Opening
 */

static int open_own(struct fetch_sink *sink, struct err *err)
{
	enum { FLAGS = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };
	AUTO_FREE char *own = mem_printf("%s/" FETCH_OWN, sink->dir);
	AUTO_FREE char *lock = mem_printf("%s/lock", own);

	sink->dir_fd = open(sink->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (sink->dir_fd < 0)
		return fs_error(err, errno, "%s", sink->dir);
	if (mkdirat(sink->dir_fd, FETCH_OWN, 0700) < 0 && errno != EEXIST)
		return fs_error(err, errno, "making directory %s", own);
	sink->own_fd =
		openat(sink->dir_fd, FETCH_OWN, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (sink->own_fd < 0)
		return fs_error(err, errno, "%s", own);
	int r = fs_lock(lock, true, LOCK_MS, &sink->lock_fd, err);
	if (r < 0)
		return r;
	sink->seen_fd = openat(sink->own_fd, SEEN, FLAGS, 0600);
	if (sink->seen_fd < 0)
		return fs_error(err, errno, "%s/" SEEN, own);
	return read_seen(sink, err);
}

int fetch_sink_open(const char *dir, struct fetch_paths *paths, bool force, struct fetch_sink **ret,
	struct err *err)
{
	AUTO(fetch_sink_free_auto) struct fetch_sink *sink = mem_alloc(1, sizeof(*sink));

	*sink = (struct fetch_sink){
		.dir = mem_strdup(dir),
		.paths = paths,
		.force = force,
		.dir_fd = -1,
		.own_fd = -1,
		.lock_fd = -1,
		.seen_fd = -1,
		.parent_fd = -1,
		.temp_fd = -1,
	};
	int r = fs_mkdirs(dir, 0777, err);
	if (r == 0)
		r = open_own(sink, err);
	if (r == 0)
		*ret = TAKE(sink);
	return r;
}

struct fetch_paths *fetch_sink_paths(struct fetch_sink *sink)
{
	return sink->paths;
}

bool fetch_sink_is_in(const struct fetch_sink *sink, const struct stat *dir)
{
	struct stat st;

	return fstat(sink->dir_fd, &st) == 0 && st.st_dev == dir->st_dev &&
	       st.st_ino == dir->st_ino;
}

void fetch_sink_report(const struct fetch_sink *sink, struct fetch_report *ret)
{
	*ret = sink->report;
}

/*
 * What is there
 */

static int64_t mtime_of(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * NS_PER_S + st->st_mtim.tv_nsec;
}

/* Written by a fetch, and nobody has changed it since. */
static bool is_ours(const struct fetch_sink *sink, const char *path, const struct stat *st)
{
	const struct seen *seen = map_get(&sink->seen, path);

	return seen && (S_ISREG(st->st_mode) || S_ISLNK(st->st_mode)) &&
	       seen->size == (uint64_t)st->st_size && seen->our_mtime_ns == mtime_of(st);
}

static bool may_replace(const struct fetch_sink *sink, const char *path, const struct stat *st)
{
	return !S_ISDIR(st->st_mode) && (sink->force || is_ours(sink, path, st));
}

/* The file system may keep times less exactly than the one that they come from. */
static bool is_same(
	const struct fetch_sink *sink, const struct fetch_item *item, const struct stat *st)
{
	const struct seen *seen = map_get(&sink->seen, item->path);

	if (!S_ISREG(st->st_mode) || item->changing || (uint64_t)st->st_size != item->size)
		return false;
	if (mtime_of(st) == item->mtime_ns)
		return true;
	return seen && is_ours(sink, item->path, st) && seen->mtime_ns == item->mtime_ns;
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

/* One level down, made if it is missing. The descriptor, -errno, or -EEXIST when something is in
 * the way that must stay. path: up to name. */
static int step_into(struct fetch_sink *sink, int fd, const char *name, const char *path)
{
	enum { FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
	struct stat st;
	int next = openat(fd, name, FLAGS);

	if (next >= 0)
		return next;
	if (errno != ENOENT) {
		if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode))
			return -errno;
		if (!may_replace(sink, path, &st))
			return -EEXIST;
		if (unlinkat(fd, name, 0) < 0)
			return -errno;
	}
	if (mkdirat(fd, name, 0777) < 0 && errno != EEXIST)
		return -errno;
	next = openat(fd, name, FLAGS);
	return next < 0 ? -errno : next;
}

/* path: "" for the top. As step_into. */
static int open_dir(struct fetch_sink *sink, const char *path)
{
	AUTO_FREE char *so_far = mem_strdup(path);
	int next;

	if (*path) {
		next = fs_open_beneath(sink->dir_fd, path, O_RDONLY | O_DIRECTORY, 0);
		if (next >= 0)
			return next;
	}
	AUTO_FD int fd = openat(sink->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (char *at = so_far; *at;) {
		size_t len = strcspn(at, "/");
		char end = at[len];
		at[len] = '\0';
		next = step_into(sink, fd, at, so_far);
		if (next < 0)
			return next;
		close(fd);
		fd = next;
		at[len] = end;
		at += len + (end != '\0');
	}
	return TAKE_FD(fd);
}

/* Relative, no empty part, no "." or "..", and nothing of our own. */
static bool is_proper(const char *path)
{
	size_t first = strcspn(path, "/");

	if (strlen(path) > ENTRY_PATH_MAX ||
		(first == strlen(FETCH_OWN) && str_starts(path, FETCH_OWN)))
		return false;
	for (const char *at = path;; at++) {
		size_t len = strcspn(at, "/");
		bool dots = (len == 1 && at[0] == '.') || (len == 2 && memcmp(at, "..", 2) == 0);
		if (len == 0 || len > ENTRY_NAME_MAX || dots)
			return false;
		at += len;
		if (!*at)
			return true;
	}
}

/* 1: *ret_fd (kept by the sink) is the directory of path, *ret_name its last name there; 0: not
 * possible, noted. */
static int find_parent(struct fetch_sink *sink, const char *path, int *ret_fd,
	const char **ret_name, struct err *err)
{
	const char *slash = strrchr(path, '/');
	AUTO_FREE char *parent = mem_strndup(path, slash ? (size_t)(slash - path) : 0);

	if (!is_proper(path)) {
		fetch_sink_unread(sink, path, EINVAL);
		return 0;
	}
	if (!str_eq(sink->parent, parent)) {
		int fd = open_dir(sink, parent);
		if (fd == -EEXIST) {
			note(&sink->kept, path, EEXIST);
			return 0;
		}
		if (fd < 0)
			return fail(sink, -fd, parent, err);
		auto_fd(&sink->parent_fd);
		sink->parent_fd = fd;
		free(sink->parent);
		sink->parent = TAKE(parent);
	}
	*ret_fd = sink->parent_fd;
	*ret_name = slash ? slash + 1 : path;
	return 1;
}

int fetch_sink_dir(struct fetch_sink *sink, const char *path, mode_t mode, struct err *err)
{
	const char *name;
	struct stat st;
	int parent_fd;

	int r = find_parent(sink, path, &parent_fd, &name, err);
	if (r <= 0)
		return r;
	if (fstatat(parent_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return 0;
	AUTO_FD int fd = step_into(sink, parent_fd, name, path);
	if (fd == -EEXIST) {
		note(&sink->kept, path, EEXIST);
		return 0;
	}
	if (fd < 0)
		return fail(sink, -fd, path, err);
	return fchmod(fd, (mode & MODES) | S_IRWXU) < 0 ? fail(sink, errno, path, err) : 0;
}

/*
 * Files
 */

/* Forget what was not ended. */
static void drop_temp(struct fetch_sink *sink)
{
	auto_fd(&sink->temp_fd);
	sink->temp_fd = -1;
	unlinkat(sink->own_fd, TEMP, 0);
}

int fetch_sink_wants(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	const char *name;
	struct stat st;
	bool same;
	int fd;

	int r = find_parent(sink, item->path, &fd, &name, err);
	if (r <= 0)
		return r;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 1 : fail(sink, errno, item->path, err);
	same = item->target ? S_ISLNK(st.st_mode) && is_same_link(fd, name, item->target)
			    : is_same(sink, item, &st);
	if (same) {
		sink->report.skipped++;
		return 0;
	}
	if (may_replace(sink, item->path, &st))
		return 1;
	note(&sink->kept, item->path, EEXIST);
	return 0;
}

int fetch_sink_begin(
	struct fetch_sink *sink, const struct fetch_item *item, int *ret_fd, struct err *err)
{
	drop_temp(sink);
	int r = fetch_sink_wants(sink, item, err);
	if (r <= 0)
		return r;
	sink->temp_fd = openat(
		sink->own_fd, TEMP, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (sink->temp_fd < 0)
		return fail(sink, errno, item->path, err);
	*ret_fd = sink->temp_fd;
	return 1;
}

/* The time of one that may change unseen is set such that the next fetch takes it again. */
static void set_times(const struct fetch_item *item, struct timespec times[2])
{
	int64_t ns = item->mtime_ns - (item->changing ? 1 : 0);

	times[0] = (struct timespec){.tv_nsec = UTIME_NOW};
	times[1] = (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
	if (times[1].tv_nsec < 0) {
		times[1].tv_sec--;
		times[1].tv_nsec += NS_PER_S;
	}
}

/* The new file, closed and named. */
static int place(struct fetch_sink *sink, const struct fetch_item *item, const struct stat *st,
	struct err *err)
{
	const struct seen seen = {
		(uint64_t)st->st_size, item->changing ? NEVER : item->mtime_ns, mtime_of(st)};
	const char *name;
	int parent_fd;

	int r = find_parent(sink, item->path, &parent_fd, &name, err);
	if (r <= 0)
		return r;
	r = append_seen(sink, item->path, &seen, err);
	if (r < 0)
		return r;
	if (renameat(sink->own_fd, TEMP, parent_fd, name) < 0)
		return fail(sink, errno, item->path, err);
	sink->report.files++;
	sink->report.bytes += S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
	return 0;
}

int fetch_sink_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	int fd = take_fd(&sink->temp_fd), errnum = 0;
	struct timespec times[2];
	struct stat st;

	set_times(item, times);
	if (fchmod(fd, item->mode & MODES) < 0 || futimens(fd, times) < 0 || fstat(fd, &st) < 0)
		errnum = errno;
	if (close(fd) < 0 && errno != EINTR && !errnum)
		errnum = errno;
	int r = errnum ? fail(sink, errnum, item->path, err) : place(sink, item, &st, err);
	drop_temp(sink);
	return r;
}

int fetch_sink_link(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	struct timespec times[2];
	struct stat st;

	drop_temp(sink);
	int r = fetch_sink_wants(sink, item, err);
	if (r <= 0)
		return r;
	if (symlinkat(item->target, sink->own_fd, TEMP) < 0)
		return fail(sink, errno, item->path, err);
	set_times(item, times);
	/* Some file systems keep no time for links; what they keep is read back. */
	utimensat(sink->own_fd, TEMP, times, AT_SYMLINK_NOFOLLOW);
	if (fstatat(sink->own_fd, TEMP, &st, AT_SYMLINK_NOFOLLOW) < 0)
		r = fail(sink, errno, item->path, err);
	else
		r = place(sink, item, &st, err);
	drop_temp(sink);
	return r;
}

int fetch_sink_hide(struct fetch_sink *sink, struct err *err)
{
	static const char text[] = "*\n";
	struct timespec now;
	struct fetch_report report = sink->report;
	int fd;

	clock_gettime(CLOCK_REALTIME, &now);
	const struct fetch_item item = {.path = ".gitignore",
		.mode = 0644,
		.size = sizeof(text) - 1,
		.mtime_ns = (int64_t)now.tv_sec * NS_PER_S};
	int r = fetch_sink_begin(sink, &item, &fd, err);
	if (r > 0)
		r = fs_write_fd(fd, sink->dir, text, sizeof(text) - 1, err);
	if (r == 0 && sink->temp_fd >= 0)
		r = fetch_sink_end(sink, &item, err);
	sink->report = report;
	return r < 0 ? r : 0;
}

/*
 * The end
 */

static int fail_unused(const char *unused, const char *run_id, struct err *err)
{
	AUTO_FREE char *shown = str_shown(unused);

	err_set(err, E_FETCH_PATH, "nothing in the results of %s is called '%s'", run_id, shown);
	return err_hint(err, "dlrun fetch %s", run_id);
}

static void add_names(const struct problem *problem, struct err *err)
{
	for (size_t i = 0; i < problem->names.n; i++) {
		AUTO_FREE char *shown = str_escaped(problem->names.v[i]);

		err_evidence(err, "%s", shown);
	}
}

static int fail_kept(const struct fetch_sink *sink, const char *run_id, struct err *err)
{
	size_t n = sink->kept.n;
	AUTO_BUF struct buf dir;

	buf_init(&dir, 2 * ENTRY_PATH_MAX);
	str_shell_quote(&dir, sink->dir);
	err_set(err, E_FETCH_KEPT, "%zu %s in %s %s not as a fetch left %s, and %s left alone", n,
		n == 1 ? "file" : "files", sink->dir, n == 1 ? "is" : "are", n == 1 ? "it" : "them",
		n == 1 ? "was" : "were");
	add_names(&sink->kept, err);
	return err_hint(err, "dlrun fetch --force -o %s %s", dir.data, run_id);
}

static int fail_unread(const struct fetch_sink *sink, const char *run_id, struct err *err)
{
	size_t n = sink->unread.n;

	err_set_errno(err, E_IO_READ, sink->unread.errnum,
		"%zu %s of the results of %s cannot be read", n, n == 1 ? "file" : "files", run_id);
	add_names(&sink->unread, err);
	return -ERR_IO;
}

int fetch_sink_finish(struct fetch_sink *sink, const char *run_id, struct err *err)
{
	const char *unused = fetch_paths_unused(sink->paths);

	shorten_seen(sink);
	if (unused)
		return fail_unused(unused, run_id, err);
	if (sink->kept.n)
		return fail_kept(sink, run_id, err);
	return sink->unread.n ? fail_unread(sink, run_id, err) : 0;
}

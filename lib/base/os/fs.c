/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "base/util/vec.h"

static enum err_id fs_id_of(int errnum)
{
	switch (errnum) {
	case ENOSPC:
	case EDQUOT:
		return E_IO_FULL;
	case EACCES:
	case EPERM:
		return E_IO_PERMISSION;
	default:
		return E_IO;
	}
}

int fs_error(struct err *err, int errnum, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	return err_set_errno(err, fs_id_of(errnum), errnum, "%s", text);
}

char *fs_join(const char *dir, const char *name)
{
	while (name[0] == '.' && name[1] == '/')
		for (name += 2; *name == '/';)
			name++;
	if (*name == '/' || !*dir)
		return mem_strdup(name);
	if (!*name || str_eq(name, "."))
		return mem_strdup(dir);
	return mem_printf("%s%s%s", dir, str_ends(dir, "/") ? "" : "/", name);
}

char *fs_join_normal(const char *dir, const char *name)
{
	AUTO_FREE char *joined = fs_join(dir, name);
	char *out = mem_alloc(strlen(joined) + 2, 1);
	size_t n = 0;

	for (const char *s = joined; *s; s += strspn(s, "/")) {
		size_t len = strcspn(s, "/");
		bool up = len == 2 && s[0] == '.' && s[1] == '.';
		if (up && n == 0) {
			free(out);
			return NULL;
		}
		if (up) {
			while (n > 0 && out[--n] != '/')
				;
		} else if (len && (len != 1 || s[0] != '.')) {
			if (n > 0)
				out[n++] = '/';
			memcpy(out + n, s, len);
			n += len;
		}
		s += len;
	}
	out[n] = '\0';
	return out;
}

const char *fs_basename(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

char *fs_dirname(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return mem_strdup(".");
	return mem_strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

const char *fs_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	if (strncmp(path, dir, len) != 0 || (path[len] && path[len] != '/'))
		return NULL;
	return path + len + (path[len] == '/');
}

int fs_realpath(const char *path, char **ret, struct err *err)
{
	char *real = realpath(path, NULL);

	if (!real)
		return fs_error(err, errno, "%s", path);
	*ret = real;
	return 0;
}

/* Whether to retry: a descriptor that was passed to us may be non-blocking. */
static bool wait_ready(int fd, short events)
{
	struct pollfd poll_fd = {.fd = fd, .events = events};

	if (errno == EINTR)
		return true;
	if (errno != EAGAIN && errno != EWOULDBLOCK)
		return false;
	return poll(&poll_fd, 1, -1) >= 0 || errno == EINTR;
}

static ssize_t fs_read_some(int fd, void *out, size_t size)
{
	ssize_t n;

	do
		n = read(fd, out, size);
	while (n < 0 && wait_ready(fd, POLLIN));
	return n;
}

/* The present size of the file plus one byte, so that the end is seen without growing the
 * buffer. */
static size_t expected_size(int fd)
{
	enum { UNKNOWN = 16 * 1024, MOST = 16 * 1024 * 1024 };
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size <= 0)
		return UNKNOWN;
	return st.st_size < MOST ? (size_t)st.st_size + 1 : MOST;
}

static int fs_too_large(const char *name, size_t max, struct err *err)
{
	char size[16];

	return err_set(err, E_DATA_LIMIT, "%s is larger than %s", name, str_size(max, size));
}

int fs_read_fd(int fd, const char *name, size_t max, struct buf *ret, struct err *err)
{
	AUTO_BUF struct buf buf;
	size_t step = expected_size(fd), allocated;
	char beyond;

	enum { CHUNK = 64 * 1024 };

	buf_init(&buf, max);
	for (ssize_t n;; buf_added(&buf, (size_t)n)) {
		size_t left = buf.max - buf.len;
		size_t size = left < step ? left : step;
		n = left ? fs_read_some(fd, buf_reserve(&buf, size), size)
			 : fs_read_some(fd, &beyond, 1);
		if (n < 0)
			return fs_error(err, errno, "reading %s", name);
		if (n == 0)
			break;
		if (left == 0)
			return fs_too_large(name, max, err);
		allocated = buf.cap - buf.len - 1 - (size_t)n;
		step = allocated ? allocated : CHUNK;
	}
	buf_done(ret);
	*ret = buf;
	buf = (struct buf){0};
	return 0;
}

/* Without blocking, so that a pipe without a writer reads as empty. */
static int open_to_read(const char *path, int *ret_fd, bool *ret_missing, struct err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (ret_missing)
		*ret_missing = fd < 0 && errno == ENOENT;
	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	*ret_fd = fd;
	return 0;
}

int fs_read(const char *path, size_t max, struct buf *ret, bool *ret_missing, struct err *err)
{
	AUTO_FD int fd = -1;
	int r = open_to_read(path, &fd, ret_missing, err);

	return r < 0 ? r : fs_read_fd(fd, path, max, ret, err);
}

int fs_read_regular(const char *path, size_t max, struct buf *ret, struct stat *ret_st,
	bool *ret_missing, struct err *err)
{
	AUTO_FD int fd = -1;
	struct stat st;
	int r = open_to_read(path, &fd, ret_missing, err);

	if (r < 0)
		return r;
	if (fstat(fd, &st))
		return fs_error(err, errno, "%s", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, E_IO, "%s is not a regular file", path);
	if (ret_st)
		*ret_st = st;
	return fs_read_fd(fd, path, max, ret, err);
}

bool fs_is_ours(uid_t uid, uid_t also)
{
	return uid == geteuid() || uid == 0 || (also != (uid_t)-1 && uid == also);
}

int fs_write_fd(int fd, const char *name, const void *data, size_t len, struct err *err)
{
	for (const char *at = data; len;) {
		ssize_t n = write(fd, at, len);
		if (n < 0 && !wait_ready(fd, POLLOUT))
			return fs_error(err, errno, "writing %s", name);
		if (n > 0) {
			at += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

/* 0 or an errno. */
int fs_pipe(int fds[static 2], int flags, struct err *err)
{
	int r = os_pipe(fds, flags);

	return r < 0 ? err_set_errno(err, E_IO, -r, "cannot make a pipe") : 0;
}

static int sync_fd(int fd)
{
#ifdef F_FULLFSYNC
	/* fsync leaves the data in the drive's cache on such systems. */
	if (fcntl(fd, F_FULLFSYNC) == 0)
		return 0;
#endif
	return fsync(fd) ? errno : 0;
}

/* Some file systems cannot sync directories and fail with EINVAL; nothing more can be done. */
static int sync_dir_fd(int fd)
{
	int errnum = sync_fd(fd);

	return errnum == EINVAL || errnum == ENOTSUP ? 0 : errnum;
}

int fs_sync_fd(int fd, const char *name, struct err *err)
{
	int errnum = sync_dir_fd(fd);

	return errnum ? fs_error(err, errnum, "%s", name) : 0;
}

int fs_sync_dir(const char *path, struct err *err)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int errnum = fd < 0 ? errno : sync_dir_fd(fd);

	return errnum ? fs_error(err, errnum, "%s", path) : 0;
}

void fs_temp_name(char out[static FS_TEMP_NAME_SIZE])
{
	uint8_t noise[8];
	char hex[2 * sizeof(noise) + 1];

	random_bytes(noise, sizeof(noise));
	hex_encode(noise, sizeof(noise), hex);
	snprintf(out, FS_TEMP_NAME_SIZE, FS_TEMP_PREFIX "%s", hex);
}

static int fs_open_temp(int dir_fd, char name[static FS_TEMP_NAME_SIZE])
{
	fs_temp_name(name);
	return openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* Includes the close, at which network file systems first report a full disk. */
static int fill_temp(int fd, const char *path, const void *data, size_t len, mode_t mode,
	enum fs_sync sync, struct err *err)
{
	int rc = fs_write_fd(fd, path, data, len, err);

	if (rc == 0 && fchmod(fd, mode))
		rc = fs_error(err, errno, "%s", path);
	int errnum = rc == 0 && sync != FS_SYNC_NONE ? sync_fd(fd) : 0;
	if (close(fd) && errno != EINTR && !errnum)
		errnum = errno;
	if (rc == 0 && errnum)
		rc = fs_error(err, errnum, "writing %s", path);
	return rc;
}

int fs_replace(const char *path, const void *data, size_t len, mode_t mode, enum fs_sync sync,
	struct err *err)
{
	AUTO_FREE char *dir = fs_dirname(path);
	AUTO_FD int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char temp[FS_TEMP_NAME_SIZE];

	if (dir_fd < 0)
		return fs_error(err, errno, "%s", dir);
	int fd = fs_open_temp(dir_fd, temp);
	if (fd < 0)
		return fs_error(err, errno, "making a file in %s", dir);
	int rc = fill_temp(fd, path, data, len, mode, sync, err);
	if (rc == 0 && renameat(dir_fd, temp, dir_fd, fs_basename(path)))
		rc = fs_error(err, errno, "replacing %s", path);
	if (rc) {
		unlinkat(dir_fd, temp, 0);
		return rc;
	}
	trace_note(TRACE_STORE, "%s: replaced, %zu bytes", path, len);
	int errnum = sync == FS_SYNC_FULL ? sync_dir_fd(dir_fd) : 0;
	return errnum ? fs_error(err, errnum, "%s", dir) : 0;
}

/* 0 if path is a directory then, else an errno. */
static int fs_make_dir(const char *path, mode_t mode)
{
	struct stat st;

	if (mkdir(path, mode) == 0)
		return 0;
	int errnum = errno;
	/* Not only for EEXIST: a read-only or automounted parent gives other errors. */
	if (errnum != ENOENT && stat(path, &st) == 0)
		return S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
	return errnum;
}

/* Cut path before its last component; false if nothing is left. */
static bool cut_component(char *path, size_t *len)
{
	while (*len && path[*len - 1] != '/')
		--*len;
	while (*len && path[*len - 1] == '/')
		--*len;
	path[*len] = '\0';
	return *len > 0;
}

int fs_mkdirs(const char *path, mode_t mode, struct err *err)
{
	AUTO_FREE char *part = mem_strdup(path);
	size_t full = strlen(part);

	while (full > 1 && part[full - 1] == '/')
		part[--full] = '\0';
	size_t len = full;
	int errnum = fs_make_dir(part, mode);
	while (errnum == ENOENT && cut_component(part, &len))
		errnum = fs_make_dir(part, mode);
	while (errnum == 0 && len < full) {
		memcpy(part + len, path + len, full - len);
		for (len++; part[len] == '/';)
			len++;
		len += strcspn(part + len, "/");
		if (len > full)
			len = full;
		part[len] = '\0';
		errnum = fs_make_dir(part, mode);
	}
	return errnum ? fs_error(err, errnum, "making directory %s", part[0] ? part : path) : 0;
}

int fs_private_dir(const char *path, struct err *err)
{
	struct stat st;
	int rc = fs_mkdirs(path, 0700, err);

	if (rc)
		return rc;
	/* Another user's link may lead to a directory of ours that serves another purpose. */
	if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && !fs_is_ours(st.st_uid, (uid_t)-1))
		return err_set(err, E_IO_PERMISSION, "%s is a link of another user (uid %lu)", path,
			(unsigned long)st.st_uid);
	if (stat(path, &st))
		return fs_error(err, errno, "%s", path);
	if (st.st_uid != geteuid())
		return err_set(err, E_IO_PERMISSION, "%s belongs to another user (uid %lu)", path,
			(unsigned long)st.st_uid);
	if (!(st.st_mode & (S_IWGRP | S_IWOTH)))
		return 0;
	AUTO_BUF struct buf quoted = buf_with(64 * 1024);
	str_shell_quote(&quoted, path);
	err_set(err, E_IO_PERMISSION, "others may write to %s", path);
	return err_hint(err, "chmod go-w %s", quoted.data);
}

void *fs_map(int fd, size_t size)
{
#ifdef MAP_POPULATE
	/* Page faults one by one cost more than the work on the pages. */
	enum { FLAGS = MAP_PRIVATE | MAP_POPULATE };
#else
	enum { FLAGS = MAP_PRIVATE };
#endif
	void *map = mmap(NULL, size, PROT_READ, FLAGS, fd, 0);

	return map == MAP_FAILED ? NULL : map;
}

int fs_open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	return os_open_beneath(dirfd, path, flags | O_CLOEXEC, mode);
}

mode_t fs_umask(void)
{
	mode_t mask = umask(0);

	umask(mask);
	return mask;
}

int fs_free_bytes(const char *path, uint64_t *ret, struct err *err)
{
	struct statvfs st;

	if (statvfs(path, &st))
		return fs_error(err, errno, "%s", path);
	*ret = (uint64_t)st.f_bavail * st.f_frsize;
	return 0;
}

bool fs_is_network(const char *path)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	return fd >= 0 && os_network_fs(fd);
}

enum { FIRST_WAIT_MS = 5, LONGEST_WAIT_MS = 50 };

/* 0 when the lock is ours, EWOULDBLOCK if it is held elsewhere until the deadline, else an
 * errno. */
static int fs_take_lock(int fd, int how, int64_t deadline_ms)
{
	if (deadline_ms != INT64_MAX)
		how |= LOCK_NB;
	for (int wait_ms = FIRST_WAIT_MS; flock(fd, how);) {
		if (errno == EINTR)
			continue;
		int64_t left_ms = deadline_ms - clock_ms();
		if (errno != EWOULDBLOCK || left_ms <= 0)
			return errno;
		poll(NULL, 0, left_ms < wait_ms ? (int)left_ms : wait_ms);
		wait_ms = 2 * wait_ms < LONGEST_WAIT_MS ? 2 * wait_ms : LONGEST_WAIT_MS;
	}
	return 0;
}

/* Whether path still names the file of fd, 0 or an errno. */
static int check_current(int fd, const char *path, bool *ret)
{
	struct stat ours, named;

	*ret = false;
	if (fstat(fd, &ours))
		return errno;
	if (stat(path, &named))
		return errno == ENOENT ? 0 : errno;
	*ret = ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
	return 0;
}

int fs_lock(const char *path, bool exclusive, int64_t timeout_ms, int *ret_fd, struct err *err)
{
	int64_t deadline_ms = clock_deadline(timeout_ms);
	int64_t start_ms = clock_ms();
	bool current;

	/* The previous holder may have removed the file: a lock on an unlinked file excludes
	 * nobody. */
	do {
		AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return fs_error(err, errno, "%s", path);
		int errnum = fs_take_lock(fd, exclusive ? LOCK_EX : LOCK_SH, deadline_ms);
		if (errnum == EWOULDBLOCK) {
			trace_note(TRACE_STORE, "lock %s: another process holds it", path);
			return err_set(err, E_IO_LOCK, "another process holds %s", path);
		}
		if (errnum == 0)
			errnum = check_current(fd, path, &current);
		if (errnum)
			return fs_error(err, errnum, "locking %s", path);
		if (current)
			*ret_fd = TAKE_FD(fd);
	} while (!current);
	trace_note(TRACE_STORE, "lock %s: taken after %lld ms", path,
		(long long)(clock_ms() - start_ms));
	return 0;
}

/* Open for writing if permitted: NFS gives no exclusive lock otherwise. */
static int fs_open_for_lock(const char *path)
{
	const int flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	int fd = open(path, O_RDWR | flags);

	if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
		fd = open(path, O_RDONLY | flags);
	return fd;
}

int fs_is_locked(const char *path)
{
	enum { TRIES = 3 };
	AUTO_FD int fd = fs_open_for_lock(path);

	if (fd < 0)
		return errno != ENOENT && errno != ENOTDIR;
	if (flock(fd, LOCK_SH | LOCK_NB))
		return 1;
	/* Other processes may hold shared locks. If they only check, as we do, that is over in a
	 * moment. */
	for (int i = 0; i < TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return 0;
		flock(fd, LOCK_UN);
		poll(NULL, 0, 1 + i);
	}
	return 1;
}

/* How often directories may get new entries while they are emptied, in the whole walk. */
enum { MAX_REFILLS = 64 };

/* A directory that is being emptied. */
struct level {
	dev_t dev;
	ino_t ino;
	size_t base; /* its subdirectories stand in removal.names from here on */
};

/* The walk keeps one descriptor open, whatever the depth: it goes down by name and up by "..",
 * checked against what was there on the way down, in case directories are moved meanwhile. */
struct removal {
	int top_fd;        /* of the caller */
	int fd;            /* the directory that is being emptied; -1: none */
	struct strv names; /* directories to remove: the stack of the walk */
	struct VEC_OF(struct level) levels;
	unsigned n_refills;
	const char *top; /* for messages */
};

static void fs_removal_done(struct removal *removal)
{
	if (removal->fd >= 0)
		close(removal->fd);
	strv_done(&removal->names);
	vec_done(&removal->levels);
}

static int here(const struct removal *removal)
{
	return removal->levels.n ? removal->fd : removal->top_fd;
}

static int fs_failed(const struct removal *removal, const char *name, struct err *err)
{
	int errnum = errno;

	if (removal->levels.n == 0)
		return fs_error(err, errnum, "removing %s", removal->top);
	return fs_error(err, errnum, "removing %s in %s", name, removal->top);
}

static char *pop_name(struct removal *removal)
{
	return removal->names.v[--removal->names.n];
}

static bool fs_is_dir(int fd, const char *name)
{
	struct stat st;

	return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Remove a file that is no directory. Returns 1 if it is one, or -1 with errno. */
static int unlink_file(int fd, const char *name)
{
	if (unlinkat(fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	/* Linux fails with EISDIR, POSIX with EPERM, which has other reasons as well. */
	int errnum = errno;
	if ((errnum == EISDIR || errnum == EPERM) && fs_is_dir(fd, name))
		return 1;
	errno = errnum;
	return -1;
}

/* Remove the files in the current directory and note its subdirectories. */
static int scan(struct removal *removal, struct err *err)
{
	int copy = fcntl(removal->fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!dir) {
		int rc = fs_failed(removal, ".", err);
		if (copy >= 0)
			close(copy);
		return rc;
	}
	while (errno = 0, (entry = readdir(dir))) {
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
			continue;
		int kind = entry->d_type == DT_DIR ? 1 : unlink_file(removal->fd, entry->d_name);
		if (kind < 0)
			return fs_failed(removal, entry->d_name, err);
		if (kind == 1)
			strv_add(&removal->names, entry->d_name);
	}
	return errno ? fs_failed(removal, ".", err) : 0;
}

static int fs_open_dir(int fd, const char *name)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int dir = openat(fd, name, flags);

	if (dir < 0 && errno == EACCES && fchmodat(fd, name, 0700, AT_SYMLINK_NOFOLLOW) == 0)
		dir = openat(fd, name, flags);
	return dir;
}

/* Go down into the directory that is last in names, or remove what it has become. */
static int fs_enter(struct removal *removal, struct err *err)
{
	const char *name = removal->names.v[removal->names.n - 1];
	AUTO_FD int fd = fs_open_dir(here(removal), name);
	struct stat st;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EMLINK)) {
		if (unlink_file(here(removal), name))
			return fs_failed(removal, name, err);
		free(pop_name(removal));
		return 0;
	}
	if (fd < 0 || fstat(fd, &st))
		return fs_failed(removal, name, err);
	/* A file system mounted here is not part of the tree. */
	if (removal->levels.n && st.st_dev != removal->levels.v[0].dev) {
		errno = EBUSY;
		return fs_failed(removal, name, err);
	}
	if ((st.st_mode & S_IRWXU) != S_IRWXU && fchmod(fd, S_IRWXU))
		return fs_failed(removal, name, err);
	if (removal->levels.n)
		close(removal->fd);
	removal->fd = TAKE_FD(fd);
	struct level *level = vec_push(&removal->levels);
	*level = (struct level){.dev = st.st_dev, .ino = st.st_ino, .base = removal->names.n};
	return scan(removal, err);
}

/* Go up from the current directory. */
static int fs_leave(struct removal *removal, struct err *err)
{
	struct stat st;
	AUTO_FD int up = -1;

	if (removal->levels.n > 1) {
		const struct level *parent = &removal->levels.v[removal->levels.n - 2];
		up = openat(removal->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (up < 0 || fstat(up, &st))
			return fs_failed(removal, "..", err);
		if (st.st_dev != parent->dev || st.st_ino != parent->ino)
			return err_set(err, E_IO_CHANGED, "%s changed while it was being removed",
				removal->top);
	}
	close(removal->fd);
	removal->fd = TAKE_FD(up);
	removal->levels.n--;
	return 0;
}

/* The current directory was emptied: go up and remove it. */
static int fs_finish(struct removal *removal, struct err *err)
{
	int rc = fs_leave(removal, err);
	const char *name = removal->names.v[removal->names.n - 1];

	if (rc)
		return rc;
	if (unlinkat(here(removal), name, AT_REMOVEDIR) && errno != ENOENT) {
		/* Another process added to the directory, or the file system lost its place in it:
		 * retry. */
		bool refilled = errno == ENOTEMPTY || errno == EEXIST;
		if (refilled && removal->n_refills++ < MAX_REFILLS)
			return 0;
		return fs_failed(removal, name, err);
	}
	free(pop_name(removal));
	return 0;
}

static bool is_emptied(const struct removal *removal)
{
	size_t n = removal->levels.n;

	return n && removal->names.n == removal->levels.v[n - 1].base;
}

int fs_remove_tree(int dirfd, const char *name, struct err *err)
{
	AUTO(fs_removal_done) struct removal removal = {.top_fd = dirfd, .fd = -1, .top = name};
	const char *last = fs_basename(name);

	if (!*last || str_eq(last, ".") || str_eq(last, ".."))
		return err_set(err, E_IO, "removing %s: not a name", name);
	int kind = unlink_file(dirfd, name);
	if (kind < 0)
		return fs_failed(&removal, name, err);
	if (kind == 0)
		return 0;
	strv_add(&removal.names, name);
	while (removal.names.n) {
		int rc = is_emptied(&removal) ? fs_finish(&removal, err) : fs_enter(&removal, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/tree/content.h"

enum {
	BUF_SIZE = 256 * 1024,
	TRIES = 4,
	PAUSE_CHANGED_MS = 20,
	PAUSE_GONE_MS = 2, /* between the two steps of a program that replaces a file the old way */
	LINK_MAX_BYTES = 1 << 20,
	LFS_POINTER_MAX = 1024,
};

#define NS_PER_S INT64_C(1000000000)

void content_reader_init(
	struct content_reader *reader, int root_fd, enum content_git git, bool network)
{
	*reader = (struct content_reader){.root_fd = root_fd, .git = git, .network = network};
}

void content_reader_done(struct content_reader *reader)
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

struct statcache_stat content_stat(const struct path *path)
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

bool content_same_stat(const struct path *a, const struct path *b)
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

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static bool same_stat(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_mode == b->st_mode &&
	       a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Descriptor of the directory that path is in, ret_name its last part; or -errno. */
static int open_parent(int root_fd, const char *path, const char **ret_name)
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
	AUTO_FD int fd = open_parent(root_fd, path, &name);

	if (fd < 0)
		return fd;
	return fstatat(fd, name, ret, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

/*
 * A single attempt. Functions return 1: read; 0: try again; or -errno.
 */

static void begin(struct content_reader *reader, uint64_t size)
{
	char head[32];
	int n = snprintf(head, sizeof(head), "blob %ju", (uintmax_t)size);

	digest_begin(&reader->sha256, DIGEST_SHA256);
	if (reader->git == CONTENT_GIT_NONE)
		return;
	digest_begin(&reader->id, reader->git == CONTENT_GIT_SHA1 ? DIGEST_SHA1 : DIGEST_SHA256);
	digest_add(&reader->id, head, (size_t)n + 1);
}

static void add(struct content_reader *reader, const void *data, size_t len)
{
	digest_add(&reader->sha256, data, len);
	if (reader->git != CONTENT_GIT_NONE)
		digest_add(&reader->id, data, len);
}

static void end(struct content_reader *reader, struct content *ret)
{
	uint8_t id[SHA256_SIZE];

	digest_end(&reader->sha256, ret->sha256);
	if (reader->git == CONTENT_GIT_NONE)
		return;
	digest_end(&reader->id, id);
	memcpy(ret->git_id, id, SHA1_SIZE);
	ret->flags |= reader->git == CONTENT_GIT_SHA1 ? STATCACHE_GIT_SHA1 : STATCACHE_GIT_SHA256;
}

static unsigned look_at_head(const uint8_t *head, size_t len, uint64_t size)
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

static int read_all(struct content_reader *reader, int fd, uint64_t size, struct content *ret)
{
	uint64_t done = 0;

	if (!reader->buf)
		reader->buf = mem_grow(NULL, BUF_SIZE, 1);
	begin(reader, size);
	while (done < size) {
		ssize_t n = read(fd, reader->buf, BUF_SIZE);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0 || (uint64_t)n > size - done)
			return 0;
		if (done == 0)
			ret->flags = look_at_head(reader->buf, (size_t)n, size);
		add(reader, reader->buf, (size_t)n);
		done += (uint64_t)n;
	}
	end(reader, ret);
	return 1;
}

static int read_file(struct content_reader *reader, struct path *path, struct content *ret)
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
	int rc = read_all(reader, fd, (uint64_t)before.st_size, ret);
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
static char *read_target(int dir_fd, const char *name)
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
	AUTO_FD int fd = open_parent(reader->root_fd, path->path, &name);
	struct stat before, after;

	if (fd < 0)
		return fd;
	if (fstatat(fd, name, &before, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!S_ISLNK(before.st_mode))
		return 0;
	AUTO_FREE char *target = read_target(fd, name);
	if (!target)
		return errno == EINVAL ? 0 : -errno;
	if (fstatat(fd, name, &after, AT_SYMLINK_NOFOLLOW) || !same_stat(&before, &after))
		return 0;
	content_set_stat(path, &after);
	path->size = strlen(target);
	begin(reader, path->size);
	add(reader, target, path->size);
	end(reader, ret);
	ret->target = TAKE(target);
	return 1;
}

static bool is_gone(int error)
{
	return error == -ENOENT || error == -ENOTDIR;
}

/* Errors that another kind of file in place of this one gives: ELOOP is a link, ENXIO a socket. */
static bool is_other_kind(int error)
{
	return is_gone(error) || error == -ELOOP || error == -EXDEV || error == -ENXIO ||
	       error == -EISDIR;
}

/* After a failed attempt: 1 there is something to read, 0 it is gone, -EAGAIN neither file nor
 * link. */
static int look_again(struct content_reader *reader, struct path *path, int result)
{
	struct stat st;

	pause_ms(is_gone(result) ? PAUSE_GONE_MS : PAUSE_CHANGED_MS);
	int rc = content_lstat(reader->root_fd, path->path, &st);
	if (is_gone(rc) || rc == -ELOOP || rc == -EXDEV)
		return 0;
	if (rc < 0)
		return rc;
	return content_set_stat(path, &st) ? 1 : -EAGAIN;
}

static int fail_read(const char *path, int errnum, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(path);

	return err_set_errno(err, E_IO_READ, errnum, "'%s' cannot be read", shown);
}

static int fail_changed(const char *path, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(path);

	return err_set(err, E_IO_CHANGED, "'%s' kept changing while it was read", shown);
}

int content_read(
	struct content_reader *reader, struct path *path, struct content *ret, struct err *err)
{
	int rc = 0;

	for (int try = 0; try < TRIES; try++) {
		int again = try > 0 ? look_again(reader, path, rc) : 1;
		if (again == 0)
			return 0;
		if (again == -EAGAIN)
			continue;
		if (again < 0)
			return fail_read(path->path, -again, err);
		*ret = (struct content){0};
		rc = path->kind == ENTRY_LINK ? read_link(reader, path, ret)
					      : read_file(reader, path, ret);
		if (rc == 1)
			return 1;
		if (rc < 0 && !is_other_kind(rc))
			return fail_read(path->path, -rc, err);
	}
	return fail_changed(path->path, err);
}

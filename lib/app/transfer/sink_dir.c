/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/sink_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/fetch_sink.h"

enum { DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

void sink_dir_init(struct sink_dir *dir, const char *path, const char *own, mode_t mode)
{
	*dir = (struct sink_dir){.path = mem_strdup(path),
		.own = own,
		.mode = mode,
		.fd = -1,
		.own_fd = -1,
		.lock_fd = -1};
	if (!os_boot_id(dir->boot))
		dir->boot[0] = '\0';
}

void sink_dir_close(struct sink_dir *dir)
{
	int *const fds[] = {&dir->own_fd, &dir->fd, &dir->lock_fd};

	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		auto_fd(fds[i]);
		*fds[i] = -1;
	}
}

void sink_dir_done(struct sink_dir *dir)
{
	sink_dir_close(dir);
	free(TAKE(dir->path));
}

int sink_dir_open(struct sink_dir *dir, int wait_ms, struct err *err)
{
	AUTO_FREE char *own = mem_printf("%s/%s", dir->path, dir->own);
	AUTO_FREE char *lock = mem_printf("%s/lock", own);

	int r = fs_mkdirs(dir->path, dir->mode, err);
	if (r < 0)
		return r;
	dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir->fd < 0)
		return fs_error(err, errno, "%s", dir->path);
	if (mkdirat(dir->fd, dir->own, 0700) < 0 && errno != EEXIST)
		return fs_error(err, errno, "making directory %s", own);
	dir->own_fd = openat(dir->fd, dir->own, DIR_FLAGS);
	if (dir->own_fd < 0)
		return fs_error(err, errno, "%s", own);
	return fs_lock(lock, true, wait_ms, &dir->lock_fd, err);
}

int sink_dir_fail(const struct sink_dir *dir, int errnum, const char *path, struct err *err)
{
	AUTO_FREE char *shown = str_shown(path);

	return fs_error(err, errnum, "writing %s/%s", dir->path, shown);
}

bool sink_dir_admits(const struct sink_dir *dir, const char *path)
{
	size_t len = strlen(dir->own);

	if (str_starts(path, dir->own) && (!path[len] || path[len] == '/'))
		return false;
	return fetch_path_is_proper(path);
}

int sink_dir_step(const struct sink_dir *dir, int fd, const char *name, const char *path)
{
	struct stat st;
	int next = openat(fd, name, DIR_FLAGS);

	if (next >= 0)
		return next;
	if (errno != ENOENT) {
		if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode))
			return -errno;
		if (!dir->may_replace || !dir->may_replace(dir->ctx, path, &st))
			return -EEXIST;
		if (unlinkat(fd, name, 0) < 0)
			return -errno;
	}
	if (mkdirat(fd, name, dir->mode) < 0 && errno != EEXIST)
		return -errno;
	next = openat(fd, name, DIR_FLAGS);
	return next < 0 ? -errno : next;
}

int sink_dir_enter(const struct sink_dir *dir, const char *path)
{
	AUTO_FREE char *so_far = mem_strdup(path);
	int next;

	if (*path) {
		next = fs_open_beneath(dir->fd, path, O_RDONLY | O_DIRECTORY, 0);
		if (next >= 0)
			return next;
	}
	AUTO_FD int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (char *at = so_far; *at;) {
		size_t len = strcspn(at, "/");
		char end = at[len];
		at[len] = '\0';
		next = sink_dir_step(dir, fd, at, so_far);
		if (next < 0)
			return next;
		close(fd);
		fd = next;
		at[len] = end;
		at += len + (end != '\0');
	}
	return TAKE_FD(fd);
}

int sink_dir_parent(const struct sink_dir *dir, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	AUTO_FREE char *parent = mem_strndup(path, slash ? (size_t)(slash - path) : 0);

	*ret_name = slash ? slash + 1 : path;
	return sink_dir_enter(dir, parent);
}

int sink_dir_new(const struct sink_dir *dir, const char *name)
{
	enum { FLAGS = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };

	unlinkat(dir->own_fd, name, 0);
	int fd = openat(dir->own_fd, name, FLAGS, 0600);
	return fd < 0 ? -errno : fd;
}

int sink_dir_new_link(const struct sink_dir *dir, const char *name, const char *target)
{
	unlinkat(dir->own_fd, name, 0);
	return symlinkat(target, dir->own_fd, name) < 0 ? -errno : 0;
}

size_t sink_overlap_check(struct sink_overlap *overlap, const void *data, size_t len)
{
	uint64_t left = overlap->end - overlap->at;
	size_t n = len < left ? len : (size_t)left;
	AUTO_FREE char *here = n && !overlap->differs ? mem_alloc(n, 1) : NULL;

	if (here && (pread(overlap->fd, here, n, (off_t)overlap->at) != (ssize_t)n ||
			    memcmp(here, data, n) != 0))
		overlap->differs = true;
	overlap->at += n;
	return n;
}

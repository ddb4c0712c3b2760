/* SPDX-License-Identifier: Apache-2.0 */
#include "host/gpu_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/vec.h"

enum { OWN_MODE = 0755, ALL_BITS = 07777, MAKE_TRIES = 16 };

/* 1: ours, open. 0: not ours, or not there. */
static int open_own(const char *path, int *ret_fd)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid())
		return 0;
	if ((st.st_mode & ALL_BITS) != OWN_MODE && fchmod(fd, OWN_MODE) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 1;
}

/* List everything beside shared that is named like it, with a dot and more behind. */
static int list_beside(const char *shared, struct strv *ret, struct err *err)
{
	const char *slash = strrchr(shared, '/');
	AUTO_FREE char *parent = mem_strndup(shared, slash > shared ? (size_t)(slash - shared) : 1);
	AUTO_FREE char *prefix = mem_printf("%s.", slash + 1);
	AUTO_DIR DIR *stream = opendir(parent);
	struct dirent *entry;

	if (!stream)
		return err_set_errno(err, E_GPU_LOCK, errno, "cannot use the directory %s", parent);
	while ((entry = readdir(stream)))
		if (str_starts(entry->d_name, prefix))
			strv_add_take(ret, fs_join(parent, entry->d_name));
	return 0;
}

static int make_own(const char *shared, char **ret_path, int *ret_fd, struct err *err)
{
	char *path = mem_printf("%s.%lu", shared, (unsigned long)geteuid());
	int r = 0;

	for (int i = 0; i < MAKE_TRIES; i++) {
		uint64_t number;

		if (mkdir(path, 0700) < 0 && errno != EEXIST)
			r = -errno;
		else
			r = open_own(path, ret_fd);
		if (r > 0) {
			*ret_path = path;
			return 0;
		}
		if (r < 0)
			break;
		random_bytes(&number, sizeof(number));
		free(path);
		path = mem_printf("%s.%lu.%016llx", shared, (unsigned long)geteuid(),
			(unsigned long long)number);
	}
	err_set_errno(err, E_GPU_LOCK, r < 0 ? -r : EEXIST, "cannot use the directory %s", path);
	free(path);
	return -ERR_IO;
}

/* Find or make our own directory, also one that an earlier run had to give another name. */
static int find_own(const char *shared, char **ret_path, int *ret_fd, struct err *err)
{
	AUTO_FREE char *plain = mem_printf("%s.%lu", shared, (unsigned long)geteuid());
	AUTO_FREE char *prefix = mem_printf("%s.", plain);
	AUTO_STRV struct strv beside = {0};
	int r = open_own(plain, ret_fd);

	if (r > 0) {
		*ret_path = TAKE(plain);
		return 0;
	}
	r = list_beside(shared, &beside, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < beside.n; i++)
		if (str_starts(beside.v[i], prefix) && open_own(beside.v[i], ret_fd) > 0) {
			*ret_path = mem_strdup(beside.v[i]);
			return 0;
		}
	return make_own(shared, ret_path, ret_fd, err);
}

int gpu_guard_open(const char *shared, struct gpu_guard *ret, struct err *err)
{
	char *dir = gpu_dir_place(shared), *path = NULL;
	int fd = -1, r = find_own(dir, &path, &fd, err);

	if (r < 0) {
		free(dir);
		return r;
	}
	*ret = (struct gpu_guard){.shared = dir, .own = {.path = path, .fd = fd}};
	return 0;
}

void gpu_guard_done(struct gpu_guard *guard)
{
	free(guard->shared);
	guard->shared = NULL;
	gpu_dir_done(&guard->own);
}

/* Take a shared lock, so that two concurrent checks do not take each other for the holder. */
static bool is_locked(const char *path, const char *name)
{
	AUTO_FREE char *file = fs_join(path, name);
	AUTO_FD int fd = open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static int see_others(const struct gpu_guard *guard, const char *name, int queue_fd,
	char **ret_holder, struct err *err)
{
	AUTO_STRV struct strv beside = {0};
	int r = list_beside(guard->shared, &beside, err);

	for (size_t i = 0; r == 0 && i < beside.n; i++) {
		AUTO_FD int fd = -1;

		if (str_eq(beside.v[i], guard->own.path) || !is_locked(beside.v[i], name))
			continue;
		fd = open(beside.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		/* Links to a directory do not count. */
		if (fd < 0)
			continue;
		const struct gpu_dir other = {.path = beside.v[i], .fd = fd};
		*ret_holder = gpu_dir_holder(&other, name, queue_fd);
		return 0;
	}
	return r < 0 ? r : 1;
}

int gpu_guard_lock(const struct gpu_guard *guard, const char *name, int queue_fd, int *ret_fd,
	char **ret_holder, struct err *err)
{
	AUTO_FD int fd = -1;
	int r = gpu_dir_lock(&guard->own, name, 0, &fd, err);

	if (r == 0)
		*ret_holder = gpu_dir_holder(&guard->own, name, queue_fd);
	/* Lock ours first, then check theirs: of two who do so at once, at least one sees the
	 * other. */
	if (r > 0)
		r = see_others(guard, name, queue_fd, ret_holder, err);
	if (r > 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

int gpu_guard_queue(const struct gpu_guard *guard, struct gpu_dir *ret, struct err *err)
{
	AUTO_FREE char *path = fs_join(guard->own.path, "alone");

	return gpu_dir_open(path, ret, err);
}

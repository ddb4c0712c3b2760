/* SPDX-License-Identifier: Apache-2.0 */
#include "host/gpu_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"

#define NAME "dlrun-gpus"

enum {
	OPEN_MODE = 01777,
	OPEN_WAIT_MS = 1000, /* until another user's new directory is open to all */
	MAKE_TRIES = 16,
	FIRST_PAUSE_US = 100,
	LONGEST_PAUSE_US = 2000,
	/* The sticky bit of a file only keeps systemd-tmpfiles(8) from ageing it out. */
	FILE_MODE = 01666,
	FILE_MODE_PLAIN = 0666,
};

static void pause_us(long us)
{
	nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/*
 * The directory
 */

static int fail_dir(const char *path, int errnum, struct err *err)
{
	return err_set_errno(err, E_GPU_LOCK, errnum, "cannot use the directory %s", path);
}

/* Depends on the machine, never on the caller, because all must choose the same. */
static bool is_shared(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
	       (st.st_mode & OPEN_MODE) == OPEN_MODE && !fs_is_network(path);
}

/* /dev/shm comes last: logind removes the files of a user from it when he logs out
 * (logind.conf(5), RemoveIPC), those of a run that goes on included. */
static char *machine_dir(void)
{
	static const char *const places[] = {"/tmp", "/run/lock", "/dev/shm"};

	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		if (is_shared(places[i]))
			return fs_join(places[i], NAME);
	return fs_join(places[0], NAME);
}

char *gpu_dir_place(const char *path)
{
	return path ? mem_strdup(path) : machine_dir();
}

/* -EAGAIN: another user has made the directory and not opened it to all yet. */
static int try_open_dir(const char *path, int *ret_fd)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return errno == EACCES ? -EAGAIN : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if ((st.st_mode & OPEN_MODE) != OPEN_MODE) {
		if (st.st_uid != geteuid())
			return -EAGAIN;
		if (fchmod(fd, OPEN_MODE) < 0)
			return -errno;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int gpu_dir_open(const char *path, struct gpu_dir *ret, struct err *err)
{
	AUTO_FREE char *dir = gpu_dir_place(path);
	int64_t deadline_ms = clock_deadline(OPEN_WAIT_MS);
	int fd = -1, r;

	while ((r = try_open_dir(dir, &fd)) == -EAGAIN && clock_ms() < deadline_ms)
		pause_us(LONGEST_PAUSE_US);
	if (r == -EAGAIN) {
		r = err_set(err, E_GPU_LOCK, "the directory %s is not open to all users", dir);
		err_hint(err, "sudo chmod 1777 %s", dir);
		return r;
	}
	if (r < 0)
		return fail_dir(dir, -r, err);
	*ret = (struct gpu_dir){.path = TAKE(dir), .fd = fd};
	return 0;
}

void gpu_dir_done(struct gpu_dir *dir)
{
	free(dir->path);
	if (dir->fd >= 0)
		close(dir->fd);
	*dir = (struct gpu_dir){.fd = -1};
}

int gpu_dir_error(const struct gpu_dir *dir, const char *name, int errnum, struct err *err)
{
	return err_set_errno(err, E_GPU_LOCK, errnum, "cannot use %s/%s", dir->path, name);
}

/*
 * Files
 */

static void random_name(const char *prefix, char out[static 32])
{
	uint64_t number;

	random_bytes(&number, sizeof(number));
	snprintf(out, 32, "%s.%016llx", prefix, (unsigned long long)number);
}

static int fill(int fd, const void *text, size_t len)
{
	AUTO_ERR struct err err = {0};

	if (fchmod(fd, FILE_MODE) < 0 && fchmod(fd, FILE_MODE_PLAIN) < 0)
		return -errno;
	errno = 0;
	if (len && fs_write_fd(fd, "ticket", text, len, &err) < 0)
		return errno ? -errno : -EIO;
	return flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
}

int gpu_dir_make(
	const struct gpu_dir *dir, const char *name, const void *text, size_t len, int *ret_fd)
{
	char temporary[32];

	random_name("new", temporary);
	AUTO_FD int fd = openat(
		dir->fd, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int r = fill(fd, text, len);
	if (r == 0 && linkat(dir->fd, temporary, dir->fd, name, 0) < 0)
		r = -errno;
	unlinkat(dir->fd, temporary, 0);
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

/* Open a file, made if missing: 0 or -errno. Retry when a sweeper removes the temporary name, or
 * another process makes the file first. fs.protected_regular refuses O_CREAT on a file that may be
 * another user's. */
static int open_file(const struct gpu_dir *dir, const char *name, int *ret_fd)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

	for (int i = 0; i < MAKE_TRIES; i++) {
		AUTO_FD int fd = openat(dir->fd, name, flags);
		AUTO_FD int made = -1;
		struct stat st;

		if (fd >= 0) {
			if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
				return -ENOTSUP;
			*ret_fd = TAKE_FD(fd);
			return 0;
		}
		if (errno != ENOENT)
			return -errno;
		int r = gpu_dir_make(dir, name, NULL, 0, &made);
		if (r < 0 && r != -EEXIST && r != -ENOENT)
			return r;
	}
	return -ENOENT;
}

/* 1, 0 or -errno. */
static int take(int fd, int64_t deadline_ms)
{
	for (long us = FIRST_PAUSE_US; flock(fd, LOCK_EX | LOCK_NB) < 0;) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return -errno;
		if (clock_ms() >= deadline_ms)
			return 0;
		pause_us(us);
		us = us < LONGEST_PAUSE_US ? 2 * us : us;
	}
	return 1;
}

static bool is_current(const struct gpu_dir *dir, const char *name, int fd)
{
	struct stat ours, named;

	return fstat(fd, &ours) == 0 && fstatat(dir->fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

int gpu_dir_lock(const struct gpu_dir *dir, const char *name, int64_t timeout_ms, int *ret_fd,
	struct err *err)
{
	int64_t deadline_ms = clock_deadline(timeout_ms);

	/* The file may have been removed meanwhile: a lock on an unlinked file excludes nobody. */
	for (int i = 0; i < MAKE_TRIES; i++) {
		AUTO_FD int fd = -1;
		int r = open_file(dir, name, &fd);

		if (r == 0)
			r = take(fd, deadline_ms);
		if (r < 0)
			return gpu_dir_error(dir, name, -r, err);
		if (r == 0)
			return 0;
		if (!is_current(dir, name, fd))
			continue;
		*ret_fd = TAKE_FD(fd);
		return 1;
	}
	return gpu_dir_error(dir, name, ESTALE, err);
}

void gpu_dir_wake(const struct gpu_dir *dir)
{
	char name[32];

	random_name("wake", name);
	int fd = openat(dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	close(fd);
	unlinkat(dir->fd, name, 0);
}

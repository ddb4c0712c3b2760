/* SPDX-License-Identifier: Apache-2.0 */
#include "core/target/copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"

enum { CHUNK = 128 << 10 };

#define TEMP_NAME ".dlrun-copy" /* of a file until it is complete */

struct copy {
	int from_fd, to_fd;
	char *what;
	bool (*skip)(const void *ctx, const char *path);
	const void *ctx;
	struct strv dirs; /* still to do: a stack of paths */
	/* The directory at work; NULL: none. */
	DIR *dir;
	int dir_to_fd;
	char *path;
	char *chunk;
};

static void end_dir(struct copy *copy)
{
	if (copy->dir)
		closedir(copy->dir);
	copy->dir = NULL;
	auto_fd(&copy->dir_to_fd);
	copy->dir_to_fd = -1;
	free(TAKE(copy->path));
}

struct copy *copy_new(int from_fd, int to_fd, const char *what,
	bool (*skip)(const void *ctx, const char *path), const void *ctx)
{
	struct copy *copy = mem_alloc(1, sizeof(*copy));

	*copy = (struct copy){.from_fd = from_fd,
		.to_fd = to_fd,
		.what = mem_strdup(what),
		.skip = skip,
		.ctx = ctx,
		.dir_to_fd = -1,
		.chunk = mem_alloc(1, CHUNK)};
	strv_add(&copy->dirs, ".");
	return copy;
}

void copy_free(struct copy *copy)
{
	if (!copy)
		return;
	end_dir(copy);
	strv_done(&copy->dirs);
	free(copy->what);
	free(copy->chunk);
	free(copy);
}

static int copy_failed(struct copy *copy, const char *name, int errnum, struct err *err)
{
	AUTO_FREE char *path = fs_join(copy->path, name);
	AUTO_FREE char *shown = str_shown(path);

	return fs_error(err, errnum, "copying %s to %s", shown, copy->what);
}

/*
 * A single entry
 */

/* 0 or an errno. */
static int copy_bytes(struct copy *copy, int from, int to)
{
	ssize_t n;

	while ((n = read(from, copy->chunk, CHUNK)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		for (ssize_t done = 0, m; done < n; done += m) {
			m = write(to, copy->chunk + done, (size_t)(n - done));
			if (m < 0 && errno != EINTR)
				return errno;
			if (m < 0)
				m = 0;
		}
	}
	return 0;
}

static int fill_file(struct copy *copy, int from, int to)
{
	struct stat st;

	if (fstat(from, &st) < 0)
		return errno;
	int errnum = copy_bytes(copy, from, to);
	if (errnum)
		return errnum;
	if (fchmod(to, st.st_mode & 07777) < 0 ||
		futimens(to, (struct timespec[]){st.st_atim, st.st_mtim}) < 0)
		return errno;
	return 0;
}

static int copy_file(struct copy *copy, const char *name, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
	AUTO_FD int from = openat(
		dirfd(copy->dir), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (from < 0)
		return copy_failed(copy, name, errno, err);
	int r = fs_remove_tree(copy->dir_to_fd, TEMP_NAME, err);
	if (r < 0)
		return r;
	int to = openat(copy->dir_to_fd, TEMP_NAME, FLAGS, 0600);
	if (to < 0)
		return copy_failed(copy, name, errno, err);
	int errnum = fill_file(copy, from, to);
	if (close(to) < 0 && errno != EINTR && !errnum)
		errnum = errno;
	if (!errnum && renameat(copy->dir_to_fd, TEMP_NAME, copy->dir_to_fd, name) < 0)
		errnum = errno;
	if (!errnum)
		return 0;
	unlinkat(copy->dir_to_fd, TEMP_NAME, 0);
	return copy_failed(copy, name, errnum, err);
}

/* If the destination has something other than a directory, keep it and skip everything below. */
static int copy_dir(
	struct copy *copy, const char *name, const char *path, mode_t mode, struct err *err)
{
	struct stat st;

	if (mkdirat(copy->dir_to_fd, name, (mode & 0777) | S_IRWXU) < 0 && errno != EEXIST)
		return copy_failed(copy, name, errno, err);
	if (fstatat(copy->dir_to_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		strv_add(&copy->dirs, path);
	return 0;
}

static int copy_entry(struct copy *copy, const char *name, struct err *err)
{
	AUTO_FREE char *path =
		str_eq(copy->path, ".") ? mem_strdup(name) : fs_join(copy->path, name);
	struct stat st, there;

	if (copy->skip && copy->skip(copy->ctx, path))
		return 0;
	if (fstatat(dirfd(copy->dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : copy_failed(copy, name, errno, err);
	if (S_ISDIR(st.st_mode))
		return copy_dir(copy, name, path, st.st_mode, err);
	if (fstatat(copy->dir_to_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	if (S_ISLNK(st.st_mode)) {
		char target[PATH_MAX];
		ssize_t n = readlinkat(dirfd(copy->dir), name, target, sizeof(target) - 1);

		if (n < 0)
			return copy_failed(copy, name, errno, err);
		target[n] = '\0';
		if (symlinkat(target, copy->dir_to_fd, name) < 0 && errno != EEXIST)
			return copy_failed(copy, name, errno, err);
		return 0;
	}
	return S_ISREG(st.st_mode) ? copy_file(copy, name, err) : 0;
}

/*
 * Directories
 */

static int begin_dir(struct copy *copy, struct err *err)
{
	AUTO_FREE char *path = copy->dirs.v[--copy->dirs.n];
	const int flags = O_RDONLY | O_DIRECTORY;
	int from = fs_open_beneath(copy->from_fd, path, flags, 0);

	copy->dirs.v[copy->dirs.n] = NULL;
	copy->path = TAKE(path);
	if (from < 0)
		return copy_failed(copy, "", -from, err);
	copy->dir = fdopendir(from);
	if (!copy->dir) {
		int errnum = errno;
		close(from);
		return copy_failed(copy, "", errnum, err);
	}
	int to = fs_open_beneath(copy->to_fd, copy->path, flags, 0);
	if (to < 0)
		return copy_failed(copy, "", -to, err);
	copy->dir_to_fd = to;
	return 0;
}

/* 1 for an entry that was copied, 0 at the end of the directory. */
static int next_entry(struct copy *copy, struct err *err)
{
	struct dirent *entry;

	errno = 0;
	entry = readdir(copy->dir);
	if (!entry)
		return errno ? copy_failed(copy, "", errno, err) : 0;
	if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
		return 1;
	int r = copy_entry(copy, entry->d_name, err);
	return r < 0 ? r : 1;
}

int copy_step(struct copy *copy, int64_t budget_ms, struct err *err)
{
	int64_t deadline_ms = clock_deadline(budget_ms);

	do {
		int r = 0;
		if (!copy->dir && copy->dirs.n == 0)
			return 0;
		if (!copy->dir)
			r = begin_dir(copy, err);
		if (r == 0)
			r = next_entry(copy, err);
		if (r == 0)
			end_dir(copy);
		if (r < 0)
			return r;
	} while (clock_ms() < deadline_ms);
	return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "base/util/vec.h"

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

static void removal_done(struct removal *removal)
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

static int failed(const struct removal *removal, const char *name, struct err *err)
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

static bool is_dir(int fd, const char *name)
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
	if ((errnum == EISDIR || errnum == EPERM) && is_dir(fd, name))
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
		int rc = failed(removal, ".", err);
		if (copy >= 0)
			close(copy);
		return rc;
	}
	while (errno = 0, (entry = readdir(dir))) {
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
			continue;
		int kind = entry->d_type == DT_DIR ? 1 : unlink_file(removal->fd, entry->d_name);
		if (kind < 0)
			return failed(removal, entry->d_name, err);
		if (kind == 1)
			strv_add(&removal->names, entry->d_name);
	}
	return errno ? failed(removal, ".", err) : 0;
}

static int open_dir(int fd, const char *name)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int dir = openat(fd, name, flags);

	if (dir < 0 && errno == EACCES && fchmodat(fd, name, 0700, AT_SYMLINK_NOFOLLOW) == 0)
		dir = openat(fd, name, flags);
	return dir;
}

/* Go down into the directory that is last in names, or remove what it has become. */
static int enter(struct removal *removal, struct err *err)
{
	const char *name = removal->names.v[removal->names.n - 1];
	AUTO_FD int fd = open_dir(here(removal), name);
	struct stat st;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EMLINK)) {
		if (unlink_file(here(removal), name))
			return failed(removal, name, err);
		free(pop_name(removal));
		return 0;
	}
	if (fd < 0 || fstat(fd, &st))
		return failed(removal, name, err);
	/* A file system mounted here is not part of the tree. */
	if (removal->levels.n && st.st_dev != removal->levels.v[0].dev) {
		errno = EBUSY;
		return failed(removal, name, err);
	}
	if ((st.st_mode & S_IRWXU) != S_IRWXU && fchmod(fd, S_IRWXU))
		return failed(removal, name, err);
	if (removal->levels.n)
		close(removal->fd);
	removal->fd = TAKE_FD(fd);
	struct level *level = vec_push(&removal->levels);
	*level = (struct level){.dev = st.st_dev, .ino = st.st_ino, .base = removal->names.n};
	return scan(removal, err);
}

/* Go up from the current directory. */
static int leave(struct removal *removal, struct err *err)
{
	struct stat st;
	AUTO_FD int up = -1;

	if (removal->levels.n > 1) {
		const struct level *parent = &removal->levels.v[removal->levels.n - 2];
		up = openat(removal->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (up < 0 || fstat(up, &st))
			return failed(removal, "..", err);
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
static int finish(struct removal *removal, struct err *err)
{
	int rc = leave(removal, err);
	const char *name = removal->names.v[removal->names.n - 1];

	if (rc)
		return rc;
	if (unlinkat(here(removal), name, AT_REMOVEDIR) && errno != ENOENT) {
		/* Another process added to the directory, or the file system lost its place in it:
		 * retry. */
		bool refilled = errno == ENOTEMPTY || errno == EEXIST;
		if (refilled && removal->n_refills++ < MAX_REFILLS)
			return 0;
		return failed(removal, name, err);
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
	AUTO(removal_done) struct removal removal = {.top_fd = dirfd, .fd = -1, .top = name};
	const char *last = fs_basename(name);

	if (!*last || str_eq(last, ".") || str_eq(last, ".."))
		return err_set(err, E_IO, "removing %s: not a name", name);
	int kind = unlink_file(dirfd, name);
	if (kind < 0)
		return failed(&removal, name, err);
	if (kind == 0)
		return 0;
	strv_add(&removal.names, name);
	while (removal.names.n) {
		int rc = is_emptied(&removal) ? finish(&removal, err) : enter(&removal, err);
		if (rc)
			return rc;
	}
	return 0;
}

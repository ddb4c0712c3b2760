/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/transfer/mirror_files.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "events/plugin_files.h"

enum { LOCK_MS = 2000 };
#define PREFIX "tensorboard-"
#define LOCK   ".lock"

/* Remove directories whose lock is no longer held; collect all names before removing any. */
static void sweep(const char *runtime)
{
	AUTO_DIR DIR *dir = opendir(runtime);
	AUTO_STRV struct strv names = {0};
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (str_starts(entry->d_name, PREFIX) && str_ends(entry->d_name, LOCK))
			strv_add(&names, entry->d_name);
	for (size_t i = 0; i < names.n; i++) {
		AUTO_FREE char *lock = fs_join(runtime, names.v[i]);
		AUTO_FREE char *name = mem_strndup(names.v[i], strlen(names.v[i]) - strlen(LOCK));

		if (fs_is_locked(lock) == 0 && fs_remove_tree(dirfd(dir), name, NULL) == 0)
			unlink(lock);
	}
}

static int make(const char *runtime, struct tensorboard_dir *ret, struct err *err)
{
	char name[FS_TEMP_NAME_SIZE];
	struct tensorboard_dir dir = {0};

	fs_temp_name(name);
	dir.path = mem_printf("%s/" PREFIX "%s", runtime, name + strlen(FS_TEMP_PREFIX));
	dir.lock = mem_printf("%s" LOCK, dir.path);
	dir.runs = mem_printf("%s/runs", dir.path);
	dir.scratch = mem_printf("%s/scratch", dir.path);
	int r = fs_lock(dir.lock, true, LOCK_MS, &dir.lock_fd, err);
	if (r < 0) {
		free(TAKE(dir.path));
		tensorboard_dir_done(&dir);
		return r;
	}
	r = fs_mkdirs(dir.runs, 0700, err);
	if (r == 0)
		r = fs_mkdirs(dir.scratch, 0700, err);
	if (r < 0)
		tensorboard_dir_done(&dir);
	else
		*ret = dir;
	return r;
}

int tensorboard_dir_make(const char *runtime, struct tensorboard_dir *ret, struct err *err)
{
	AUTO_FREE char *all = mem_printf("%s/tensorboard" LOCK, runtime);
	int lock_fd = -1;

	int r = fs_private_dir(runtime, err);
	if (r == 0)
		r = fs_lock(all, true, LOCK_MS, &lock_fd, err);
	if (r < 0)
		return r;
	AUTO_FD int held = lock_fd;
	sweep(runtime);
	r = make(runtime, ret, err);
	(void)held;
	return r;
}

void tensorboard_dir_done(struct tensorboard_dir *dir)
{
	if (dir->path) {
		fs_remove_tree(AT_FDCWD, dir->path, NULL);
		unlink(dir->lock);
		close(dir->lock_fd);
	}
	free(dir->path);
	free(dir->lock);
	free(dir->runs);
	free(dir->scratch);
	*dir = (struct tensorboard_dir){0};
}

/* Link the whole directory: files named by a projector configuration have to lie where the
 * configuration itself lies. The tree that is replaced holds links only. */
static int link_dir(const char *to, const char *at, struct err *err)
{
	struct stat st;

	if (lstat(at, &st) == 0 && S_ISLNK(st.st_mode))
		return 0;
	int r = fs_remove_tree(AT_FDCWD, at, err);
	if (r == 0 && symlink(to, at) < 0)
		r = fs_error(err, errno, "cannot make %s", at);
	return r;
}

/* dirs: the directories in it, for later. */
static int link_files(
	const char *from, const char *at, const char *sub, struct strv *dirs, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(from);
	const struct dirent *entry;
	struct stat st;

	int r = fs_mkdirs(at, 0700, err);
	while (r == 0 && stream && (entry = readdir(stream))) {
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, "..") ||
			str_eq(entry->d_name, MIRROR_OWN) ||
			fstatat(dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		AUTO_FREE char *path = mem_printf("%s/%s", at, entry->d_name);
		AUTO_FREE char *file = mem_printf("%s/%s", from, entry->d_name);

		if (S_ISDIR(st.st_mode))
			strv_addf(dirs, "%s/%s", sub, entry->d_name);
		else if (symlink(file, path) < 0 && errno != EEXIST)
			r = fs_error(err, errno, "cannot make %s", path);
	}
	return r;
}

static bool has_projector(const char *dir)
{
	AUTO_FREE char *path = mem_printf("%s/" PLUGIN_FILES_PROJECTOR, dir);

	return access(path, F_OK) == 0;
}

int tensorboard_dir_link(const struct tensorboard_dir *dir, const char *name, const char *from,
	const char *source, struct err *err)
{
	AUTO_STRV struct strv subs = {0};
	int r = 0;

	strv_add(&subs, "");
	while (r == 0 && subs.n) {
		AUTO_FREE char *sub = subs.v[--subs.n];

		subs.v[subs.n] = NULL;
		AUTO_FREE char *here = mem_printf("%s%s", from, sub);
		AUTO_FREE char *there = mem_printf("%s%s", source, sub);
		AUTO_FREE char *at = mem_printf("%s/%s%s", dir->runs, name, sub);
		r = has_projector(here) ? link_dir(there, at, err)
					: link_files(here, at, sub, &subs, err);
	}
	return r;
}

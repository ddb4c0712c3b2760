/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect_impl.h"
#include "core/attempt/collect_rules.h"

/*
 * The next attempt begins with what is in collected/.
 */

enum { DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, LOCK_WAIT_MS = 600 * 1000 };

struct restore {
	const struct collect_place *place;
	const struct world *world;
	struct buf path;
	int fatal; /* errno; what concerns one file only is passed over */
};

static void note_failure(struct restore *restore, int errnum)
{
	if (!restore->fatal && collect_is_fatal(errnum))
		restore->fatal = errnum;
}

/* The program before has had a directory where the snapshot has a file, or the other way round. */
static int open_tree_dir(int fd, const char *name)
{
	int child = collect_open_dir(fd, name, true);

	if (child != -ENOTDIR && child != -ELOOP)
		return child;
	if (unlinkat(fd, name, 0) < 0)
		return -errno;
	return collect_open_dir(fd, name, true);
}

static void restore_file(struct restore *restore, int from_fd, int to_fd, const char *name)
{
	int errnum = collect_link(restore->place, from_fd, name, to_fd, name);

	if (errnum == EISDIR && fs_remove_tree(to_fd, name, NULL) == 0)
		errnum = collect_link(restore->place, from_fd, name, to_fd, name);
	if (errnum)
		note_failure(restore, errnum);
}

/* Takes from_fd. */
static void restore_dir(struct restore *restore, int from_fd, int to_fd, int depth);

static void restore_entry(
	struct restore *restore, int from_fd, int to_fd, const char *name, int depth)
{
	struct stat st;

	if (fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (!S_ISDIR(st.st_mode)) {
		restore_file(restore, from_fd, to_fd, name);
		return;
	}
	AUTO_FD int to = open_tree_dir(to_fd, name);
	int from = openat(from_fd, name, DIR_FLAGS);
	if (to >= 0 && from >= 0 && depth < COLLECT_DEPTH_MAX) {
		restore_dir(restore, from, to, depth + 1);
		return;
	}
	note_failure(restore, to < 0 ? -to : errno);
	auto_fd(&from);
}

static void restore_dir(struct restore *restore, int from_fd, int to_fd, int depth)
{
	AUTO_DIR DIR *dir = fdopendir(from_fd);
	size_t len = restore->path.len;
	struct dirent *entry;

	if (!dir) {
		note_failure(restore, errno);
		close(from_fd);
	}
	while (dir && !restore->fatal && (entry = readdir(dir))) {
		const char *name = entry->d_name;
		if (str_eq(name, ".") || str_eq(name, ".."))
			continue;
		buf_addf(&restore->path, "%s%s", len ? "/" : "", name);
		/* A directory that replaced an output's link has its content in that output now:
		 * remove it, so that the output is linked anew. */
		if (collect_is_output(restore->world, restore->path.data))
			fs_remove_tree(dirfd(dir), name, NULL);
		else if (!collect_is_excluded(restore->world, restore->path.data, name))
			restore_entry(restore, dirfd(dir), to_fd, name, depth);
		buf_truncate(&restore->path, len);
	}
}

int collect_restore(const char *dir, const struct attempt_job *job, struct err *err)
{
	AUTO(collect_place_done) struct collect_place place = {-1, -1, -1, -1, -1};
	AUTO_FREE char *before = NULL;
	int r = 0;

	if (job->attempt < 2)
		return 0;
	before = attempt_sibling(dir, job->attempt - 1);
	r = collect_finish(before, err);
	if (r == 0)
		r = collect_place_open(dir, job, LOCK_WAIT_MS, false, &place, err);
	if (r <= 0 || place.collected_fd < 0)
		return r;
	struct restore restore = {.place = &place, .world = &job->world};
	AUTO_FD int to_fd = openat(place.tree_fd, ".", DIR_FLAGS);
	int from_fd = openat(place.collected_fd, ".", DIR_FLAGS);
	buf_init(&restore.path, 64 << 10);
	if (to_fd >= 0 && from_fd >= 0)
		restore_dir(&restore, from_fd, to_fd, 0);
	else
		auto_fd(&from_fd);
	buf_done(&restore.path);
	return restore.fatal ? fs_error(err, restore.fatal,
				       "putting results of the attempt before into the tree")
			     : 0;
}

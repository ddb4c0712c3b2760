/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/attempt/collect_impl.h"

#define LOCK_NAME "collect.lock"
#define TEMP_NAME "collect.tmp"

enum { DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

void collect_place_done(struct collect_place *place)
{
	auto_fd(&place->collected_fd);
	auto_fd(&place->outputs_fd);
	auto_fd(&place->tree_fd);
	auto_fd(&place->run_fd);
	auto_fd(&place->lock_fd);
}

int collect_open_dir(int fd, const char *name, bool make)
{
	int child = openat(fd, name, DIR_FLAGS);

	if (child < 0 && errno == ENOENT && make) {
		if (mkdirat(fd, name, 0777) < 0 && errno != EEXIST)
			return -errno;
		child = openat(fd, name, DIR_FLAGS);
	}
	return child < 0 ? -errno : child;
}

bool collect_is_fatal(int errnum)
{
	return errnum == ENOSPC || errnum == EDQUOT || errnum == EROFS || errnum == EIO ||
	       errnum == EMFILE || errnum == ENFILE;
}

int collect_link(
	const struct collect_place *place, int from_fd, const char *from, int to_fd, const char *to)
{
	if (linkat(from_fd, from, to_fd, to, 0) == 0)
		return 0;
	if (errno != EEXIST)
		return errno;
	unlinkat(place->run_fd, TEMP_NAME, 0);
	if (linkat(from_fd, from, place->run_fd, TEMP_NAME, 0) < 0)
		return errno;
	int errnum = renameat(place->run_fd, TEMP_NAME, to_fd, to) < 0 ? errno : 0;
	/* rename(2) leaves the temporary name if both are links to the same file. */
	unlinkat(place->run_fd, TEMP_NAME, 0);
	return errnum;
}

static int open_run_dir(const struct collect_place *place, const char *name, bool make, int *ret_fd,
	struct err *err)
{
	int fd = collect_open_dir(place->run_fd, name, make);

	if (fd < 0 && (make || fd != -ENOENT))
		return fs_error(err, -fd, "opening '%s' of the run", name);
	*ret_fd = fd < 0 ? -1 : fd;
	return 0;
}

static int open_all(struct collect_place *place, const char *dir, const struct attempt_job *job,
	bool make, struct err *err)
{
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);
	const char *name = strrchr(job->outputs, '/');

	place->tree_fd = open(tree, DIR_FLAGS);
	if (place->tree_fd < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", tree);
	unlinkat(place->run_fd, TEMP_NAME, 0);
	int r = open_run_dir(place, name + 1, make, &place->outputs_fd, err);
	if (r == 0)
		r = open_run_dir(place, COLLECT_DIR, make, &place->collected_fd, err);
	return r < 0 ? r : 1;
}

int collect_place_open(const char *dir, const struct attempt_job *job, int64_t wait_ms, bool make,
	struct collect_place *ret, struct err *err)
{
	AUTO(collect_place_done) struct collect_place place = {-1, -1, -1, -1, -1};
	const char *slash = job->outputs ? strrchr(job->outputs, '/') : NULL;
	AUTO_ERR struct err held = {0};

	if (!slash || slash == job->outputs)
		return 0;
	AUTO_FREE char *run = mem_strndup(job->outputs, (size_t)(slash - job->outputs));
	AUTO_FREE char *lock = fs_join(run, LOCK_NAME);
	place.run_fd = open(run, DIR_FLAGS);
	if (place.run_fd < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", run);
	int r = fs_lock(lock, true, wait_ms, &place.lock_fd, &held);
	if (r < 0)
		return held.id == E_IO_LOCK && wait_ms == 0 ? 0 : err_move(err, &held);
	r = open_all(&place, dir, job, make, err);
	if (r <= 0)
		return r;
	*ret = place;
	place = (struct collect_place){-1, -1, -1, -1, -1};
	return 1;
}

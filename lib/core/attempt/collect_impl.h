/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of collect.c: the directories of a run and its attempt, held under the run's lock.
 */
#ifndef DLRUN_CORE_ATTEMPT_COLLECT_IMPL_H
#define DLRUN_CORE_ATTEMPT_COLLECT_IMPL_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/util/map.h"
#include "core/attempt/collect.h"

struct collect_place {
	int lock_fd, run_fd, tree_fd, outputs_fd, collected_fd;
};
void collect_place_done(struct collect_place *place);
/* 1: held; 0: there is no tree, or another process holds the lock and wait_ms has passed. make:
 * make the directories of the run. */
int collect_place_open(const char *dir, const struct attempt_job *job, int64_t wait_ms, bool make,
	struct collect_place *ret, struct err *err);

static inline bool collect_is_same(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* A directory without following a link; make: if nothing has that name. Returns -errno. */
int collect_open_dir(int fd, const char *name, bool make);
/* from_fd/from becomes to_fd/to, too, whatever file is there. Returns 0 or an errno. */
int collect_link(const struct collect_place *place, int from_fd, const char *from, int to_fd,
	const char *to);
/* Whether an entry that the kernel lists with this type is a directory. */
bool collect_is_dir(int fd, const char *name, unsigned char type);

/*
 * The directories of the tree as the program gets it: attempts/N/started.dirs. Files in a directory
 * that the program has moved keep their times.
 */

/* Without the file nothing has been moved. Into an empty map, which the caller frees. */
void collect_dirs_read(const char *dir, struct map *ret);
/* Whether the directory at path, whose status has changed, is not the original one. */
bool collect_dirs_moved(const struct map *dirs, const char *path, const struct stat *st);

/* Whether the error affects all files, so that going on makes no sense and retrying later does. */
bool collect_is_fatal(int errnum);

#endif

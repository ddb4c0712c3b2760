/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guard that keeps a GPU to one run whatever is done to the directory that all users share
 * (gpu_dir.h). Its owner, and in it the maker of each file, can replace a lock file: a lock there
 * says who is next, not who has a GPU. So each user also locks the GPUs that he holds in a
 * directory of his own, DIR.UID beside the shared DIR (DIR.UID.* where another user has taken that
 * name), and takes none that is locked in the directory of any user.
 */
#ifndef DLRUN_HOST_GPU_GUARD_H
#define DLRUN_HOST_GPU_GUARD_H

#include "host/gpu_dir.h"

struct gpu_guard {
	char *shared; /* path of the shared directory */
	struct gpu_dir own;
};
/* Open our directory, which is made if missing. E_GPU_LOCK. Accepts NULL for shared: the
 * machine's. */
int gpu_guard_open(const char *shared, struct gpu_guard *ret, struct err *err);
void gpu_guard_done(struct gpu_guard *guard);

/* Lock name in our directory. 1: the lock is ours, and no other user's directory has it locked. 0:
 * it is held elsewhere, *ret_holder is as of gpu_dir_holder. queue_fd: as there. E_GPU_LOCK. */
int gpu_guard_lock(const struct gpu_guard *guard, const char *name, int queue_fd, int *ret_fd,
	char **ret_holder, struct err *err);
/* A queue for a user who cannot use the shared one: in our own directory, where no other user
 * is. */
int gpu_guard_queue(const struct gpu_guard *guard, struct gpu_dir *ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps a GPU to one run whatever is done to the directory that all users share
 * (gpu_dir.h). Its owner, and in it the maker of each file, can put another file in a lock's
 * place: what is locked there says who is next, not who has a GPU. So each user locks what he holds
 * in a directory of his own, too, DIR.UID beside the shared DIR (DIR.UID.* where somebody else has
 * taken that name), and takes nothing that is locked in anybody's.
 */
#ifndef DLRUN_HOST_GPU_GUARD_H
#define DLRUN_HOST_GPU_GUARD_H

#include "host/gpu_dir.h"

struct gpu_guard {
	char *shared; /* path of the shared directory */
	struct gpu_dir own;
};
/* Made if missing. E_GPU_LOCK. Accepts NULL for shared: the machine's. */
int gpu_guard_open(const char *shared, struct gpu_guard *ret, struct err *err);
void gpu_guard_done(struct gpu_guard *guard);

/* 1: the lock of that name is ours, and in nobody's directory somebody else's. 0: another has it,
 * *ret_holder is as of gpu_dir_holder. queue_fd: as there. E_GPU_LOCK. */
int gpu_guard_lock(const struct gpu_guard *guard, const char *name, int queue_fd, int *ret_fd,
	char **ret_holder, struct err *err);
/* A queue for who cannot use the shared one: in our own directory, where nobody else is. */
int gpu_guard_queue(const struct gpu_guard *guard, struct gpu_dir *ret, struct err *err);

#endif

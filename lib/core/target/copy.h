/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying what is below a directory, in steps, so that a process with other duties can do it.
 * Symbolic links are copied as links and never followed, on neither side; sockets, pipes and
 * devices are left out. What is at the destination already stays, as files do whose copy was
 * complete when an earlier try was killed; a directory there is filled up.
 */
#ifndef DLRUN_CORE_TARGET_COPY_H
#define DLRUN_CORE_TARGET_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"

struct copy;

/* Copies between two directories, given by descriptors that stay open and the caller's. skip (may
 * be NULL): whether path, relative to from_fd, is left out, a directory with all below it. what:
 * the destination, for messages. Modes and times of files are kept; the owner may always enter a
 * directory. */
struct copy *copy_new(int from_fd, int to_fd, const char *what,
	bool (*skip)(const void *ctx, const char *path), const void *ctx);
/* 1: there is more to do; 0: done. Returns after about budget_ms, or later in the midst of a file
 * (-1: when done). */
int copy_step(struct copy *copy, int64_t budget_ms, struct err *err);
void copy_free(struct copy *copy);
AUTO_POINTER(struct copy, copy_free)
#define AUTO_COPY AUTO(copy_free_auto)

#endif

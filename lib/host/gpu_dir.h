/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory in which GPUs are queued for: locks, tickets, and a way to wake who waits. All
 * users of the machine share it; gpu.h says what that means.
 *
 *	queue                locked for the moments of a look at tickets and GPUs
 *	gpu.ID               locked as long as somebody holds the GPU
 *	ticket.NNNNNNNNNNNN  locked as long as its owner lives and waits; the lowest is next
 *	                     (numbers that 9e11 submits would not reach are no place in the queue)
 *	new.*, wake.*        gone in a moment; what a killed process leaves is swept
 *
 * A file gets its name when it is complete, so no instant is a bad one to die in, and no link is
 * followed. Who has a GPU is not decided here: see gpu_guard.h. Files are only written by
 * their makers, but for the line that the holder of a GPU leaves in its lock: RUN UID PID START
 * TIME, with field 22 of proc(5)'s stat of the process that took it. That is what one user tells
 * another: bounded, checked, and good for a sentence only.
 */
#ifndef DLRUN_HOST_GPU_DIR_H
#define DLRUN_HOST_GPU_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

#define GPU_DIR_QUEUE "queue"

enum { GPU_TICKET_TEXT_MAX = 8 << 10, GPU_DIR_ENTRIES_MAX = 100000 };

struct gpu_dir {
	char *path;
	int fd;
};

/* path, or the machine's for NULL. The caller frees. */
char *gpu_dir_place(const char *path);
/* path NULL: the machine's. Made if missing. E_GPU_LOCK. */
int gpu_dir_open(const char *path, struct gpu_dir *ret, struct err *err);
/* Accepts {NULL, -1}. */
void gpu_dir_done(struct gpu_dir *dir);

/* A lock on the file name, which is made if missing. 1 when it is ours, 0 when somebody holds it
 * for timeout_ms; E_GPU_LOCK. */
int gpu_dir_lock(const struct gpu_dir *dir, const char *name, int64_t timeout_ms, int *ret_fd,
	struct err *err);
/* Write into a lock that is ours who has it. Nothing depends on whether that works. */
void gpu_dir_sign(const struct gpu_dir *dir, const char *name, int lock_fd, const char *owner);
/* Who has the lock that could not be had: "q1-hc62r since 2026-11-23T05:04:25Z", "… of another user
 * since …", or "another run" where he has not said, is not the one who holds it, or does not live.
 * queue_fd: a lock of the directory that is ours. The caller frees. */
char *gpu_dir_holder(const struct gpu_dir *dir, const char *name, int queue_fd);
/* A new name, gone again. */
void gpu_dir_wake(const struct gpu_dir *dir);
/* A locked file that is complete when it gets its name. 0 or -errno, -EEXIST when it is taken. */
int gpu_dir_make(
	const struct gpu_dir *dir, const char *name, const void *text, size_t len, int *ret_fd);
/* E_GPU_LOCK about a file of the directory. */
int gpu_dir_error(const struct gpu_dir *dir, const char *name, int errnum, struct err *err);

/*
 * Tickets. The caller has locked the queue.
 */

/* With the next number. text: what the others read. The descriptor keeps it alive. */
int gpu_ticket_new(const struct gpu_dir *dir, const struct buf *text, uint64_t *ret_number,
	int *ret_fd, struct err *err);
/* Each living ticket with a lower number, in no order; dead ones are removed. text: NULL if it
 * cannot be read or is too long. */
typedef void gpu_ticket_fn(void *ctx, uint64_t number, const char *text);
int gpu_ticket_each(
	const struct gpu_dir *dir, uint64_t below, gpu_ticket_fn *fn, void *ctx, struct err *err);
bool gpu_ticket_lives(const struct gpu_dir *dir, uint64_t number);
/* Its path; the caller frees. */
char *gpu_ticket_path(const struct gpu_dir *dir, uint64_t number);
/* Wakes who waits, as gpu_dir_wake does. Only by its owner, who need not lock the queue. */
void gpu_ticket_remove(const struct gpu_dir *dir, uint64_t number);

#endif

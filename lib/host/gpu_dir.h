/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of the queue for GPUs: locks, tickets, and a way to wake waiting processes. All
 * users of the machine share it; gpu.h says what that means.
 *
 *	queue                locked for the moments of a check of tickets and GPUs
 *	gpu.ID               locked as long as a run holds the GPU
 *	ticket.NNNNNNNNNNNN  locked as long as its owner lives and waits; the lowest is next
 *	                     (numbers that 9e11 submits would not reach are no place in the queue)
 *	new.*, wake.*        gone in a moment; what a killed process leaves is swept
 *
 * A file gets its name when it is complete, so a process may die at any instant, and no link is
 * followed. The holder of a GPU is not decided here: see gpu_guard.h. Files are only written by
 * their makers, but for the line that the holder of a GPU leaves in its lock: RUN UID PID START
 * TIME, with field 22 of proc(5)'s stat of the process that took it. This line is input from other
 * users: bounded, checked, and used for a sentence only.
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

/* Lock the file name, which is made if missing. 1 when the lock is ours, 0 when another process
 * holds it for timeout_ms; E_GPU_LOCK. */
int gpu_dir_lock(const struct gpu_dir *dir, const char *name, int64_t timeout_ms, int *ret_fd,
	struct err *err);
/* Write the holder into a lock that is ours. Best effort: nothing depends on it. */
void gpu_dir_sign(const struct gpu_dir *dir, const char *name, int lock_fd, const char *owner);
/* The holder of a lock that could not be taken: "q1-hc62r since 2026-11-23T05:04:25Z", "… of
 * another user since …", or "another run" where the lock is not signed, or its signer does not hold
 * it or is dead. queue_fd: a lock of the directory that is ours. The caller frees. */
char *gpu_dir_holder(const struct gpu_dir *dir, const char *name, int queue_fd);
/* Wake waiting processes by a new name, which is removed at once. */
void gpu_dir_wake(const struct gpu_dir *dir);
/* Make a locked file that is complete when it gets its name. 0 or -errno, -EEXIST when the name is
 * taken. */
int gpu_dir_make(
	const struct gpu_dir *dir, const char *name, const void *text, size_t len, int *ret_fd);
/* E_GPU_LOCK about a file of the directory. */
int gpu_dir_error(const struct gpu_dir *dir, const char *name, int errnum, struct err *err);

/*
 * Tickets. The caller has locked the queue.
 */

/* Make a ticket with the next number. text: what the others read. The descriptor keeps the ticket
 * alive. */
int gpu_ticket_new(const struct gpu_dir *dir, const struct buf *text, uint64_t *ret_number,
	int *ret_fd, struct err *err);
/* Call fn for each living ticket with a lower number, in no order; dead ones are removed. text:
 * NULL if it cannot be read or is too long. */
typedef void gpu_ticket_fn(void *ctx, uint64_t number, const char *text);
int gpu_ticket_each(
	const struct gpu_dir *dir, uint64_t below, gpu_ticket_fn *fn, void *ctx, struct err *err);
bool gpu_ticket_lives(const struct gpu_dir *dir, uint64_t number);
/* The path of a ticket; the caller frees. */
char *gpu_ticket_path(const struct gpu_dir *dir, uint64_t number);
/* Remove a ticket and wake waiting processes, as gpu_dir_wake does. Only by its owner, who need not
 * lock the queue. */
void gpu_ticket_remove(const struct gpu_dir *dir, uint64_t number);

#endif

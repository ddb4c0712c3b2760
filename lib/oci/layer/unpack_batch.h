/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making files and links: one at a time, or small ones several at a time beside the reader of the
 * layer. The caller sees to it that nothing in flight depends on something else in flight.
 */
#ifndef DLRUN_OCI_LAYER_UNPACK_BATCH_H
#define DLRUN_OCI_LAYER_UNPACK_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/err.h"

enum { UNPACK_SMALL_MAX = 128 * 1024 }; /* bytes of a file that may go through a batch */

/* A file or link to make. */
struct unpack_job {
	int dir_fd;         /* not owned */
	const char *path;   /* for messages; its last part is the name in dir_fd */
	const char *target; /* of a link; NULL: a file */
	uint8_t *data;      /* of a file */
	size_t len;
	bool exec;
	struct timespec mtime;
	struct err err;
};

/* A new file (0666 or 0777 & ~umask) instead of whatever has its name; *ret_fd for writing. */
int unpack_create(int dir_fd, const char *path, bool exec, int *ret_fd, struct err *err);
/* The last thing to do with it. A time that the file system cannot hold is left out. */
int unpack_close(int fd, const char *path, const struct timespec *mtime, struct err *err);

struct unpack_pool;
struct unpack_pool *unpack_pool_new(void);
/* A place for a job that is made in a later call; the caller fills in dir_fd, exec, mtime and len
 * (UNPACK_SMALL_MAX at most) bytes of data. path and target (may be NULL) are copied. A failure of
 * an earlier job shows here or in unpack_pool_wait. */
int unpack_pool_add(struct unpack_pool *pool, const char *path, const char *target, size_t len,
	struct unpack_job **ret, struct err *err);
/* Take over a descriptor that jobs up to now may use as dir_fd: it is closed when they are done. */
int unpack_pool_retire(struct unpack_pool *pool, int fd, struct err *err);
/* Blocks until all is made, or returns the first failure. */
int unpack_pool_wait(struct unpack_pool *pool, struct err *err);
void unpack_pool_free(struct unpack_pool *pool);
AUTO_POINTER(struct unpack_pool, unpack_pool_free)

#endif

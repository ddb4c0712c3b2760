/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of others that a conversation reads and writes, in the mode that they are in: when
 * poll(2) says so. On the loop; a descriptor is waited for only behind a try that was too early.
 */
#ifndef DLRUN_NODE_FDIO_H
#define DLRUN_NODE_FDIO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/err.h"

struct node_fd {
	struct loop *loop;
	int fd; /* -1: none */
	short events;
	bool waits, is_file;
	struct loop_fd *source;
	void (*woken)(void *ctx); /* it is worth another try */
	void *ctx;
};

/* The descriptor stays the caller's. events: POLLIN or POLLOUT. */
void node_fd_init(struct node_fd *io, struct loop *loop, int fd, short events,
	void (*woken)(void *ctx), void *ctx);
void node_fd_done(struct node_fd *io);
/* Bytes, 0 at the end (and without a descriptor), CHANNEL_AGAIN, or E_IO. */
ssize_t node_fd_read(struct node_fd *io, void *out, size_t len, struct err *err);
/* Bytes that were written, 0: none now; all without a descriptor. E_IO: nobody reads any more. */
ssize_t node_fd_write(struct node_fd *io, const char *data, size_t len, struct err *err);

#endif

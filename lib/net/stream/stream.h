/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A two-way stream of bytes on the loop: a connection that HTTP has upgraded, a socket. Nothing
 * blocks; whoever has the stream registers its descriptor with the loop.
 */
#ifndef DLRUN_NET_STREAM_STREAM_H
#define DLRUN_NET_STREAM_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/util/err.h"

/* "not now": wait for stream_events on fd. */
enum { STREAM_AGAIN = -100000 };

struct stream;

struct stream_ops {
	/* Bytes (more than 0), 0 at the other side's end, STREAM_AGAIN, or a negative code. */
	ssize_t (*read)(struct stream *stream, void *out, size_t len, struct err *err);
	/* Bytes taken (more than 0), STREAM_AGAIN, or a negative code. Behind STREAM_AGAIN the
	 * next write begins with the same bytes, wherever they lie then. len is more than 0. */
	ssize_t (*write)(struct stream *stream, const void *data, size_t len, struct err *err);
	/* Nothing more will be written; the other side sees the end if the transport can say it. */
	int (*shutdown)(struct stream *stream, struct err *err);
	/* The poll events to wait for on fd before the operation that was last AGAIN can go on. */
	short (*events)(struct stream *stream, bool want_read, bool want_write);
	/* Bytes may have been read from fd already that poll(2) does not report: read until
	 * STREAM_AGAIN, or do not wait for fd before the next read. */
	bool (*pending)(const struct stream *stream);
	void (*free)(struct stream *stream);
	/* Frees it so that the other side sees no orderly end; NULL: as free. */
	void (*reset)(struct stream *stream);
};

struct stream {
	const struct stream_ops *ops;
	int fd; /* for poll(2) only; -1: whoever made the stream tells when it can go on */
};

/* NULL is accepted by both. */
void stream_free(struct stream *stream);
void stream_reset(struct stream *stream);

/* A connected socket or a pipe's end, made non-blocking; takes fd. */
struct stream *stream_from_fd(int fd);

#endif

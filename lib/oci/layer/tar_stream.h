/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a tar that comes in pieces (POSIX.1-2001 ustar and pax, GNU's long names and base-256
 * numbers; what GNU tar, busybox and Python's tarfile write). An engine: bytes are put in, members
 * come out; no I/O. Archives may follow each other, as xargs makes them.
 *
 * Nothing of it is trusted: checksums, sizes and the lengths of names are checked, sparse files and
 * volumes are refused. Paths come as they are written: whoever uses them checks where they lead.
 *
 * Layers are read by libarchive (layer_read.h); it pulls its bytes and blocks, and so cannot take
 * what a connection of the loop brings.
 */
#ifndef DLRUN_OCI_LAYER_TAR_STREAM_H
#define DLRUN_OCI_LAYER_TAR_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"

enum tar_kind {
	TAR_FILE,
	TAR_DIR,
	TAR_LINK,
	TAR_HARDLINK,
	TAR_OTHER, /* a device or pipe */
};

struct tar_member {
	enum tar_kind kind;
	const char *path, *target; /* during the call; target: of links, else "" */
	unsigned mode;             /* permission bits, with those of set-id */
	bool is_root;              /* the owner is user 0 */
	uint64_t size;             /* of a file */
	int64_t mtime_ns;
};

/* A negative return ends the reading with err. */
struct tar_events {
	int (*member)(void *ctx, const struct tar_member *member, struct err *err);
	/* The content of the newest member, a file, in order: parts of the bytes that were put in,
	 * where they lie. */
	int (*data)(void *ctx, const void *data, size_t len, struct err *err);
	/* All of a file has come. */
	int (*end)(void *ctx, struct err *err);
	void *ctx;
};

struct tar_stream;
struct tar_stream *tar_stream_new(const struct tar_events *events);
void tar_stream_free(struct tar_stream *stream);
AUTO_POINTER(struct tar_stream, tar_stream_free)
/* E_DATA: no tar, or something that is not taken; after a failure the stream is worthless. */
int tar_stream_add(struct tar_stream *stream, const void *data, size_t len, struct err *err);
/* Nothing more comes: E_DATA if that is too early. Nothing at all is no archive, and is fine. */
int tar_stream_finish(const struct tar_stream *stream, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs: bytes known by their digest (OCI image-spec, descriptor.md), and the sink that takes them:
 * an OCI image layout on disk, or a registry.
 */
#ifndef DLRUN_OCI_MODEL_BLOB_H
#define DLRUN_OCI_MODEL_BLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/err.h"

enum { MEDIA_TYPE_SIZE = 80 };

/* A descriptor: media type, digest, size in bytes. */
struct descriptor {
	char media_type[MEDIA_TYPE_SIZE];
	char digest[DIGEST_TEXT_SIZE];
	uint64_t size;
};

/* A blob that is being made: a file without a name in the directory of its destination (or a
 * temporary one), hashed while it is written. */
struct blob_stage {
	int dir_fd;                   /* where it will live; not owned */
	int fd;                       /* owned */
	char name[FS_TEMP_NAME_SIZE]; /* temporary name below dir_fd; empty: nameless (O_TMPFILE) */
	struct digest digest;
	uint64_t size;
	uint64_t max_size; /* may be set after blob_stage_begin; 0: no limit */
	bool full;         /* a write went over it and failed with E_DATA_LIMIT */
};

int blob_stage_begin(struct blob_stage *stage, int dir_fd, struct err *err);
int blob_stage_write(struct blob_stage *stage, const void *data, size_t len, struct err *err);
/* Digest and size of what was written; no more writes. */
void blob_stage_end(struct blob_stage *stage, struct descriptor *ret);
/* Removes what was not taken by a sink. */
void blob_stage_done(struct blob_stage *stage);
#define AUTO_STAGE AUTO(blob_stage_done)

/* Where an image goes. Calls may leave work in flight (a registry's uploads); sink_commit waits for
 * all of it. Each takes effect once however often it is repeated. */
struct sink;

struct sink_ops {
	/* Whether the destination has each of the blobs. A hint may be wrong; commit finds out and
	 * fails with E_IMAGE naming the digest. */
	int (*has)(struct sink *sink, const struct descriptor *blobs, size_t n, bool *ret_has,
		struct err *err);
	/* The directory in which stages for this sink begin, so that put is a rename if it can. */
	int (*stage_dir)(struct sink *sink);
	/* Take a finished stage over. */
	int (*put)(struct sink *sink, struct blob_stage *stage, const struct descriptor *blob,
		struct err *err);
	/* Take a small blob from memory (configurations). */
	int (*put_bytes)(struct sink *sink, const void *data, const struct descriptor *blob,
		struct err *err);
	/* Have a blob of another image of the same kind of store appear here without reading it
	 * through this process where that can be (link, mount); else copy. from: an open descriptor
	 * of its content, or -1. */
	int (*link)(struct sink *sink, int from, const struct descriptor *blob, struct err *err);
	/* All blobs are durable; now the manifest, and name (may be NULL) points to it. */
	int (*commit)(struct sink *sink, const void *manifest, const struct descriptor *blob,
		const char *name, struct err *err);
	/* Forget that the destination has the blob (a hint that proved wrong). */
	void (*forget)(struct sink *sink, const struct descriptor *blob);
	void (*free)(struct sink *sink);
};

struct sink {
	const struct sink_ops *ops;
	const char *name;       /* of the destination, for messages; the implementation's */
	uint64_t bytes_written; /* by put, put_bytes and commit */
	size_t blobs_written;
	int64_t commit_ms; /* clock_ms() when commit was last called, by those who count it */
};

/* 1, 0, negative on failure. */
int sink_has(struct sink *sink, const struct descriptor *blob, struct err *err);
void sink_free(struct sink *sink);

#endif

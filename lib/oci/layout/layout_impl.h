/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the parts of layout.c, and private to them.
 */
#ifndef DLRUN_OCI_LAYOUT_LAYOUT_IMPL_H
#define DLRUN_OCI_LAYOUT_LAYOUT_IMPL_H

#include <sys/types.h>

#include "oci/layout/layout.h"
#include "oci/layout/layout_index.h"

struct layout {
	char *dir;
	char *index_path;
	int blobs_fd; /* blobs/sha256; -1: a layout that has none yet */
	mode_t file_mode;
};

enum {
	LAYOUT_INDEX_WAIT_MS = 60 * 1000, /* for others that change index.json */
	LAYOUT_SINK_WAIT_MS = 60 * 1000,  /* for layout_gc */
	LAYOUT_GC_WAIT_MS = 2 * 1000,     /* for sinks */
};

/* The name of a blob's file. */
const char *layout_blob_name(const char *digest);
/* Whether the blob is there with the right size: 1, 0, or an error. */
int layout_has(const struct layout *layout, const struct descriptor *blob, struct err *err);

/* Shared or exclusive lock on the blobs. */
int layout_lock_blobs(const struct layout *layout, bool exclusive, int64_t timeout_ms, int *ret_fd,
	struct err *err);
int layout_lock_index(const struct layout *layout, int *ret_fd, struct err *err);

/* index.json as it is now. */
int layout_read_index(const struct layout *layout, struct layout_index *ret, struct err *err);
/* Replace index.json, under its lock. add and name as for layout_index_write. */
int layout_write_index(const struct layout *layout, const struct layout_index *index,
	const struct descriptor *add, const char *name, bool sync, struct err *err);

#endif

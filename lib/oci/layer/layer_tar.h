/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The headers of a tar archive in GNU's format (GNU tar manual, "Basic Tar Format" and "GNU
 * Extensions"): names and targets of any length, byte for byte, and files of any size. Owner and
 * group are 0 and have no names. No I/O.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_TAR_H
#define DLRUN_OCI_LAYER_LAYER_TAR_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"

enum {
	LAYER_TAR_BLOCK = 512,
	LAYER_TAR_END = 2 * LAYER_TAR_BLOCK, /* zero bytes, behind the last member */
};

enum layer_tar_type {
	LAYER_TAR_FILE = '0',
	LAYER_TAR_LINK = '2', /* symbolic */
	LAYER_TAR_DIR = '5',
};

struct layer_tar_member {
	enum layer_tar_type type;
	const char *name;   /* of a directory: with a slash at its end */
	unsigned mode;      /* permissions */
	uint64_t size;      /* of the content that follows, before its padding; files only */
	int64_t mtime_s;    /* 0 to LAYER_MTIME_MAX */
	const char *target; /* of a link; else NULL */
};

/* Adds whole blocks to out. */
void layer_tar_header(const struct layer_tar_member *member, struct buf *out);
/* How many zero bytes follow a content of that size. */
size_t layer_tar_padding(uint64_t size);

#endif

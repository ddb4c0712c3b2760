/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of an entry, checked while it is read: its size and its SHA-256 are those of the
 * entry, or the read fails with E_IO_CHANGED naming it.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_CONTENT_H
#define DLRUN_OCI_LAYER_LAYER_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/digest.h"
#include "base/util/err.h"

/* Buffers that serve one file after the other. Zero: not used yet. */
struct layer_content {
	uint8_t *buffers[2]; /* one is hashed while the other is read into */
	struct digest digest;
};

void layer_content_done(struct layer_content *content);

/* Takes the bytes in order. */
typedef int layer_content_fn(void *ctx, const void *data, size_t len, struct err *err);

/* Reads all of fd, from its start. What was handed out before a failure is worthless. */
int layer_content_copy(struct layer_content *content, const struct entry *entry, int fd,
	layer_content_fn *fn, void *ctx, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload of a submit (protocol.h): its parts in their order, as one stream of bytes that can be
 * begun anywhere, and the words about it.
 */
#ifndef DLRUN_NODE_TRANSFER_H
#define DLRUN_NODE_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "node/node.h"

enum { NODE_KEY_SIZE = 41 }; /* 40 hex digits and NUL */

struct node_part {
	const char *kind;
	const char *data;               /* or NULL: of layer */
	const struct node_layer *layer; /* or NULL */
	uint64_t size;
};

struct node_transfer {
	const struct node_submit *request;
	char name[NODE_KEY_SIZE];
	struct VEC_OF(struct node_part) parts;
	size_t n_layers;
	uint64_t total, at; /* at: of the next byte */
	int fd;             /* of the part that is being read; -1: none */
};

/* The layers in `kept` are left out; NULL: none. Zero or any transfer; keeps request, which lives
 * longer. */
void node_transfer_init(
	struct node_transfer *transfer, const struct node_submit *request, const struct strv *kept);
void node_transfer_done(struct node_transfer *transfer);
/* `transfer` and `part` lines, for a payload from byte `from` on. */
void node_transfer_lines(const struct node_transfer *transfer, uint64_t from, struct buf *out);
void node_transfer_seek(struct node_transfer *transfer, uint64_t from);
/* The next bytes, 0 at the end. E_IO_CHANGED: a layer is shorter than it says. */
ssize_t node_transfer_read(struct node_transfer *transfer, void *out, size_t len, struct err *err);

/* The name of a tree made ahead of the first n_spare layers; "" without any. */
void node_spare_key(const struct node_submit *request, char out[static NODE_KEY_SIZE]);

#endif

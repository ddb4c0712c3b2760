/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A piece of a compressed stream, packed independently of the others: pure work for a thread. gzip:
 * one member (RFC 1952 §2.2; several in a row are one stream), by ISA-L, which takes a sixth of
 * zlib's time. zstd: one frame without checksum; stored pieces are raw blocks (RFC 8878 §3.1.1.2).
 */
#ifndef DLRUN_OCI_CODEC_ENCODER_CHUNK_H
#define DLRUN_OCI_CODEC_ENCODER_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "oci/codec/codec.h"

struct chunk {
	enum codec codec;
	bool store;  /* by the caller: it does not compress */
	uint8_t *in; /* owned; room for chunk_room(codec) bytes */
	size_t in_len;
	const uint8_t *out; /* by chunk_pack: in `in` or `packed` */
	size_t out_len;
	uint8_t *packed;
	void *state; /* of the library, used again for the next piece */
};

/* The bytes of input in a full piece. */
size_t chunk_room(enum codec codec);

void chunk_init(struct chunk *chunk, enum codec codec);
void chunk_done(struct chunk *chunk);
/* An empty piece is an empty member or frame. */
void chunk_pack(struct chunk *chunk);

#endif

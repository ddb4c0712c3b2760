/*
 * One piece of a compressed stream, packed without knowing the others: pure work for a thread.
 * gzip: raw deflate blocks that end on a byte border (RFC 1951, "sync flush"), so that pieces in a
 * row between one header and one trailer are one member; stored pieces are stored blocks (RFC 1951
 * §3.2.4). zstd: one frame without checksum; stored pieces are raw blocks (RFC 8878 §3.1.1.2).
 */
#ifndef DLRUN_OCI_ENCODER_CHUNK_H
#define DLRUN_OCI_ENCODER_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "oci/codec.h"

enum { CHUNK_EDGE_MAX = 10 };

struct chunk {
	enum codec codec;
	bool store;  /* by the caller: it does not compress */
	uint8_t *in; /* owned; room for chunk_room(codec) bytes */
	size_t in_len;
	const uint8_t *out; /* by chunk_pack: in `in` or `packed` */
	size_t out_len;
	uint32_t crc; /* by chunk_pack, gzip: of the input */
	uint8_t *packed;
	void *state; /* of the library, used again for the next piece */
};

/* The bytes of input in a full piece. */
size_t chunk_room(enum codec codec);

void chunk_init(struct chunk *chunk, enum codec codec);
void chunk_done(struct chunk *chunk);
/* An empty piece is nothing in gzip, an empty frame in zstd. */
void chunk_pack(struct chunk *chunk);

/* What stands before the first piece and behind the last one; returns its length. */
size_t chunk_head(enum codec codec, uint8_t out[static CHUNK_EDGE_MAX]);
size_t chunk_tail(
	enum codec codec, uint32_t crc, uint64_t size_in, uint8_t out[static CHUNK_EDGE_MAX]);
/* The checksum of a stream with checksum crc and one more piece behind it. */
uint32_t chunk_crc(uint32_t crc, const struct chunk *next);

#endif

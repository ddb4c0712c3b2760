/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content-defined chunks of a file: where one ends depends on the bytes in front of it, so that a
 * change of a few bytes changes one chunk or two, wherever it is. FastCDC (Xia and others, USENIX
 * ATC 2016: gear hash, normalised sizes, no cut below the least size). An engine: bytes in, sizes
 * out.
 */
#ifndef DLRUN_APP_DATA_CHUNKER_H
#define DLRUN_APP_DATA_CHUNKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHUNK_MIN = 128 << 10, CHUNK_AVERAGE = 512 << 10, CHUNK_MAX = 2 << 20 };

/* Constant once initialised; may be used by several threads. */
struct chunker {
	uint64_t gear[256];
};
void chunker_init(struct chunker *chunker);

/* The size of the first chunk of data, which has CHUNK_MAX bytes, or all that there are. */
size_t chunk_cut(const struct chunker *chunker, const uint8_t *data, size_t len);

/* XXH64 with seed 0: tells chunks of one file from each other, not from what an attacker makes. The
 * digest of the whole file is compared as well. */
uint64_t chunk_hash(const uint8_t *data, size_t len);

#endif

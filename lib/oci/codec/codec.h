/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compression of layers. Writing: gzip (RFC 1952, no time in the header) or zstd (RFC 8878), one
 * stream of independently compressed pieces (gzip members, zstd frames), made by several
 * CPUs when the input is large; the bytes are the same for the same input, whatever the
 * number of CPUs. Input that does not compress is stored. Reading: gzip, zstd or none by
 * their magic numbers, several members or frames, bounded in window (27 bits) and in output.
 */
#ifndef DLRUN_OCI_CODEC_CODEC_H
#define DLRUN_OCI_CODEC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"

enum codec { CODEC_GZIP, CODEC_ZSTD, CODEC_NONE };

/* "gzip", "zstd", "none"; -1 for another word. */
int codec_find(const char *name);
const char *codec_name(enum codec codec);

/* Takes compressed bytes in order. */
typedef int codec_out_fn(void *ctx, const void *data, size_t len, struct err *err);

/* Sees every byte that goes in, in order, for a digest. It may be called on another thread, never
 * on two at once, and for the last time before encoder_end or the decoder_read that says end
 * returns. */
typedef void codec_tap_fn(void *ctx, const void *data, size_t len);

struct encoder;
/* Memory: about 2 MiB for each CPU that is used, whatever the length of the input. */
struct encoder *encoder_new(enum codec codec, codec_out_fn *out, void *ctx);
/* The same with at most width pieces in work at once (1: no thread) instead of par_width(). */
struct encoder *encoder_new_width(enum codec codec, unsigned width, codec_out_fn *out, void *ctx);
/* Before the first write: let tap see the input. */
void encoder_set_tap(struct encoder *encoder, codec_tap_fn *tap, void *ctx);
/* Blocks while all CPUs are busy. After a failure (of out) only encoder_free is of use. */
int encoder_write(struct encoder *encoder, const void *data, size_t len, struct err *err);
/* Whether to store the input that follows, because it does not compress (judged by the caller, who
 * knows the files). Each change ends a piece, so use it for files of 64 KiB and more. */
void encoder_set_incompressible(struct encoder *encoder, bool incompressible);
int encoder_end(struct encoder *encoder, struct err *err);
void encoder_free(struct encoder *encoder);
AUTO_POINTER(struct encoder, encoder_free)
#define AUTO_ENCODER AUTO(encoder_free_auto)

struct decoder;
/* Reads fd from its current position; fd is not owned. max_out: the most bytes that may come out
 * (E_DATA_LIMIT). */
struct decoder *decoder_new(int fd, uint64_t max_out);
/* Before the first read: let tap see the compressed bytes, all of them up to the end of fd. */
void decoder_set_tap(struct decoder *decoder, codec_tap_fn *tap, void *ctx);
/* Up to len bytes; 0 at the end of the stream, which is the end of fd: a stream that ends early or
 * has something else behind it is E_IMAGE. */
int decoder_read(struct decoder *decoder, void *out, size_t len, size_t *ret_len, struct err *err);
void decoder_free(struct decoder *decoder);
AUTO_POINTER(struct decoder, decoder_free)
#define AUTO_DECODER AUTO(decoder_free_auto)

/*
 * A piece of a compressed stream, packed independently of the others: pure work for a thread. gzip:
 * one member (RFC 1952 §2.2; several in a row are one stream), by ISA-L, which takes a sixth of
 * zlib's time. zstd: one frame without checksum; stored pieces are raw blocks (RFC 8878 §3.1.1.2).
 */

struct chunk {
	enum codec codec;
	bool store;  /* by the caller: it does not compress */
	uint8_t *in; /* owned; room for chunk_capacity(codec) bytes */
	size_t in_len;
	const uint8_t *out; /* by chunk_pack: in `in` or `packed` */
	size_t out_len;
	uint8_t *packed;
	void *state; /* of the library, used again for the next piece */
};

/* The bytes of input in a full piece. */
size_t chunk_capacity(enum codec codec);

#endif

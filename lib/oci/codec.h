/*
 * Compression of layers. Writing: gzip (RFC 1952, no time in the header) or zstd (RFC 8878), one
 * stream of several independently compressed members or frames, made by several processors when
 * the input is large; the bytes are the same for the same input, whatever the number of processors.
 * Input that does not compress is stored. Reading: gzip, zstd or none by their magic numbers,
 * bounded in window (27 bits), in output and in ratio.
 */
#ifndef DLRUN_OCI_CODEC_H
#define DLRUN_OCI_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum codec { CODEC_GZIP, CODEC_ZSTD, CODEC_NONE };

/* "gzip", "zstd", "none"; -1 for another word. */
int codec_find(const char *name);
const char *codec_name(enum codec codec);

/* Takes compressed bytes in order. */
typedef int codec_out_fn(void *ctx, const void *data, size_t len, struct err *err);

struct encoder;
struct encoder *encoder_new(enum codec codec, codec_out_fn *out, void *ctx);
int encoder_write(struct encoder *encoder, const void *data, size_t len, struct err *err);
/* What follows does not compress (judged by the caller, who knows files): it is stored. */
void encoder_set_incompressible(struct encoder *encoder, bool incompressible);
int encoder_end(struct encoder *encoder, struct err *err);
void encoder_free(struct encoder *encoder);

struct decoder;
/* Reads fd from its current position. max_out: the most bytes that may come out (E_DATA_LIMIT). */
struct decoder *decoder_new(int fd, uint64_t max_out);
/* Up to len bytes; 0 at the end of the stream. */
int decoder_read(struct decoder *decoder, void *out, size_t len, size_t *ret_len, struct err *err);
void decoder_free(struct decoder *decoder);

#endif

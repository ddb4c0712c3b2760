#include "oci/encoder_chunk.h"

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/enc.h"
#include "base/err.h"
#include "base/mem.h"

enum {
	GZIP_LEVEL = 1,
	GZIP_STORE = 0,
	GZIP_ROOM = 512 * 1024,

	ZSTD_LEVEL = 1,
	ZSTD_ROOM = 512 * 1024,
	ZSTD_RAW_MAX = 128 * 1024, /* Block_Maximum_Size */
	ZSTD_RAW_HEAD = 3,
};

/*
 * gzip
 */

/* The library's compressors: one that compresses, one that stores. Made when first needed. */
struct gzip_state {
	struct libdeflate_compressor *levels[GZIP_LEVEL + 1];
};

static struct libdeflate_compressor *gzip_compressor(struct chunk *chunk, int level)
{
	struct gzip_state *state = chunk->state;

	if (!state)
		chunk->state = state = mem_alloc(1, sizeof(*state));
	if (!state->levels[level])
		state->levels[level] = libdeflate_alloc_compressor(level);
	if (!state->levels[level])
		mem_out(GZIP_ROOM);
	return state->levels[level];
}

static void gzip_done(struct gzip_state *state)
{
	for (size_t i = 0; state && i < ARRAY_LEN(state->levels); i++)
		if (state->levels[i])
			libdeflate_free_compressor(state->levels[i]);
	free(state);
}

/* Base 2, times 256; straight lines between the powers of two. */
static uint32_t log2_256(uint32_t x)
{
	unsigned whole = 31U - (unsigned)__builtin_clz(x);

	return whole << 8 | ((x << (31 - whole)) >> 23 & 0xff);
}

/* Whether samples of the piece use all byte values about equally often (over 7.5 bits of entropy a
 * byte), as compressed and encrypted data do: compressing them takes several times as long as
 * text, for nothing. */
static bool looks_random(const uint8_t *data, size_t len)
{
	enum { SAMPLES = 16, SAMPLE_LOG2 = 10, SAMPLE = 1 << SAMPLE_LOG2, N = SAMPLES * SAMPLE };
	const uint64_t n_log2 = SAMPLE_LOG2 + 4;
	uint32_t count[256] = {0};
	uint64_t used = 0;

	if (len < N)
		return false;
	for (size_t i = 0; i < SAMPLES; i++) {
		const uint8_t *sample = data + (len - SAMPLE) / (SAMPLES - 1) * i;
		for (size_t k = 0; k < SAMPLE; k++)
			count[sample[k]]++;
	}
	for (size_t i = 0; i < ARRAY_LEN(count); i++)
		if (count[i])
			used += (uint64_t)count[i] * log2_256(count[i]);
	/* The entropy is log2(N) - used / (256 N). */
	return (n_log2 * 256 * N - used) / (N / 2) > 2 * 256 * 15 / 2;
}

static size_t gzip_bound(void)
{
	return libdeflate_gzip_compress_bound(NULL, GZIP_ROOM);
}

/* The library writes no time and "unknown" for the system. */
static void gzip_pack(struct chunk *chunk)
{
	bool store = chunk->store || looks_random(chunk->in, chunk->in_len);

	if (!chunk->packed)
		chunk->packed = mem_grow(NULL, gzip_bound(), 1);
	chunk->out = chunk->packed;
	chunk->out_len =
		libdeflate_gzip_compress(gzip_compressor(chunk, store ? GZIP_STORE : GZIP_LEVEL),
			chunk->in, chunk->in_len, chunk->packed, gzip_bound());
	BUG_ON(chunk->out_len == 0);
}

/*
 * zstd
 */

static void zstd_store(struct chunk *chunk)
{
	enum { SINGLE_SEGMENT_SIZE_32 = 0xa0 };
	uint8_t *out = chunk->packed;

	put_le32(out, ZSTD_MAGICNUMBER);
	out[4] = SINGLE_SEGMENT_SIZE_32;
	put_le32(out + 5, (uint32_t)chunk->in_len);
	out += 9;
	for (size_t at = 0, len; at < chunk->in_len; at += len) {
		len = chunk->in_len - at;
		if (len > ZSTD_RAW_MAX)
			len = ZSTD_RAW_MAX;
		bool last = at + len == chunk->in_len;
		*out++ = (uint8_t)(last | len << 3);
		*out++ = (uint8_t)(len >> 5);
		*out++ = (uint8_t)(len >> 13);
		memcpy(out, chunk->in + at, len);
		out += len;
	}
	chunk->out_len = (size_t)(out - chunk->packed);
}

static void zstd_pack(struct chunk *chunk)
{
	size_t room = ZSTD_compressBound(ZSTD_ROOM);

	if (!chunk->packed)
		chunk->packed = mem_grow(NULL, room, 1);
	chunk->out = chunk->packed;
	if (chunk->store && chunk->in_len) {
		zstd_store(chunk);
		return;
	}
	if (!chunk->state)
		chunk->state = ZSTD_createCCtx();
	if (!chunk->state)
		mem_out(room);
	chunk->out_len = ZSTD_compressCCtx(
		chunk->state, chunk->packed, room, chunk->in, chunk->in_len, ZSTD_LEVEL);
	if (ZSTD_isError(chunk->out_len))
		mem_out(room); /* the only failure with enough room */
}

/*
 * All
 */

size_t chunk_room(enum codec codec)
{
	return codec == CODEC_ZSTD ? ZSTD_ROOM : GZIP_ROOM;
}

void chunk_init(struct chunk *chunk, enum codec codec)
{
	*chunk = (struct chunk){.codec = codec, .in = mem_grow(NULL, chunk_room(codec), 1)};
}

void chunk_done(struct chunk *chunk)
{
	if (!chunk)
		return;
	if (chunk->codec == CODEC_ZSTD)
		ZSTD_freeCCtx(chunk->state);
	else
		gzip_done(chunk->state);
	free(chunk->in);
	free(chunk->packed);
	*chunk = (struct chunk){0};
}

void chunk_pack(struct chunk *chunk)
{
	switch (chunk->codec) {
	case CODEC_GZIP:
		gzip_pack(chunk);
		break;
	case CODEC_ZSTD:
		zstd_pack(chunk);
		break;
	case CODEC_NONE:
		chunk->out = chunk->in;
		chunk->out_len = chunk->in_len;
		break;
	}
}

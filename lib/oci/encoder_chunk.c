#include "oci/encoder_chunk.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/enc.h"
#include "base/err.h"
#include "base/mem.h"
#include "oci/codec_zlib.h"

enum {
	GZIP_LEVEL = 1,
	GZIP_ROOM = 256 * 1024,
	DEFLATE_STORED_MAX = 65535,
	DEFLATE_STORED_HEAD = 5,
	GZIP_STORED_MAX = GZIP_ROOM + DEFLATE_STORED_HEAD * (GZIP_ROOM / DEFLATE_STORED_MAX + 1),

	ZSTD_LEVEL = 1,
	ZSTD_ROOM = 512 * 1024,
	ZSTD_RAW_MAX = 128 * 1024, /* Block_Maximum_Size */
	ZSTD_RAW_HEAD = 3,
};

/*
 * gzip
 */

static z_stream *deflate_state(struct chunk *chunk)
{
	enum { RAW = -MAX_WBITS, MEM_LEVEL = 8 };

	if (chunk->state) {
		BUG_ON(deflateReset(chunk->state) != Z_OK);
		return chunk->state;
	}
	z_stream *z = mem_alloc(1, sizeof(*z));
	codec_zlib_hooks(z);
	BUG_ON(deflateInit2(z, GZIP_LEVEL, Z_DEFLATED, RAW, MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK);
	chunk->state = z;
	return z;
}

/* Base 2, times 256; straight lines between the powers of two. */
static uint32_t log2_256(uint32_t x)
{
	unsigned whole = 31U - (unsigned)__builtin_clz(x);

	return whole << 8 | ((x << (31 - whole)) >> 23 & 0xff);
}

/* Whether samples of the piece use all byte values about equally often (over 7.5 bits of entropy a
 * byte), as compressed and encrypted data do: deflate takes six times as long over such data as
 * over text, for nothing. */
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

/* false if that saves less than 5 %. */
static bool deflate_chunk(struct chunk *chunk)
{
	z_stream *z = deflate_state(chunk);
	size_t most = chunk->in_len - chunk->in_len / 20;

	z->next_in = chunk->in;
	z->avail_in = (unsigned)chunk->in_len;
	z->next_out = chunk->packed;
	z->avail_out = (unsigned)most;
	if (deflate(z, Z_SYNC_FLUSH) != Z_OK || z->avail_in || !z->avail_out)
		return false;
	chunk->out_len = most - z->avail_out;
	return true;
}

static void deflate_store(struct chunk *chunk)
{
	uint8_t *out = chunk->packed;

	for (size_t at = 0, len; at < chunk->in_len; at += len) {
		len = chunk->in_len - at;
		if (len > DEFLATE_STORED_MAX)
			len = DEFLATE_STORED_MAX;
		*out++ = 0; /* not the last block, stored */
		*out++ = (uint8_t)len;
		*out++ = (uint8_t)(len >> 8);
		*out++ = (uint8_t)~len;
		*out++ = (uint8_t)(~len >> 8);
		memcpy(out, chunk->in + at, len);
		out += len;
	}
	chunk->out_len = (size_t)(out - chunk->packed);
}

static void gzip_pack(struct chunk *chunk)
{
	if (!chunk->packed)
		chunk->packed = mem_grow(NULL, GZIP_STORED_MAX, 1);
	chunk->out = chunk->packed;
	chunk->crc = (uint32_t)crc32(0, chunk->in, (unsigned)chunk->in_len);
	if (chunk->store || looks_random(chunk->in, chunk->in_len) || !deflate_chunk(chunk))
		deflate_store(chunk);
}

static size_t gzip_head(uint8_t out[static CHUNK_EDGE_MAX])
{
	/* deflate, no flags, no time, fastest, unknown system */
	static const uint8_t head[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255};

	memcpy(out, head, sizeof(head));
	return sizeof(head);
}

static size_t gzip_tail(uint32_t crc, uint64_t size_in, uint8_t out[static CHUNK_EDGE_MAX])
{
	/* A last block without content. */
	out[0] = 3;
	out[1] = 0;
	put_le32(out + 2, crc);
	put_le32(out + 6, (uint32_t)size_in);
	return 10;
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
	else if (chunk->state) {
		deflateEnd(chunk->state);
		free(chunk->state);
	}
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

size_t chunk_head(enum codec codec, uint8_t out[static CHUNK_EDGE_MAX])
{
	return codec == CODEC_GZIP ? gzip_head(out) : 0;
}

size_t chunk_tail(
	enum codec codec, uint32_t crc, uint64_t size_in, uint8_t out[static CHUNK_EDGE_MAX])
{
	return codec == CODEC_GZIP ? gzip_tail(crc, size_in, out) : 0;
}

uint32_t chunk_crc(uint32_t crc, const struct chunk *next)
{
	return (uint32_t)crc32_combine(crc, next->crc, (z_off_t)next->in_len);
}

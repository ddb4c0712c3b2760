/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/codec/encoder_chunk.h"

#include <isa-l/crc.h>
#include <isa-l/igzip_lib.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"

enum {
	GZIP_LEVEL = 2,
	GZIP_LEVEL_BUF = ISAL_DEF_LVL2_DEFAULT,
	GZIP_ROOM = 1024 * 1024,
	GZIP_HEAD = 10,
	GZIP_TAIL = 8,
	GZIP_STORED_MAX = 0xffff, /* RFC 1951 §3.2.4 */
	GZIP_STORED_HEAD = 5,

	ZSTD_LEVEL = 1,
	ZSTD_ROOM = 512 * 1024,
	ZSTD_RAW_MAX = 128 * 1024, /* Block_Maximum_Size */
	ZSTD_RAW_HEAD = 3,
};

/*
 * gzip
 */

/* The library's own bounds (isal_deflate_stateless): what does not compress is stored. */
static size_t gzip_bound(void)
{
	return GZIP_HEAD + GZIP_TAIL + GZIP_ROOM +
	       (GZIP_ROOM / GZIP_STORED_MAX + 1) * GZIP_STORED_HEAD;
}

static void gzip_store(struct chunk *chunk)
{
	/* Magic, deflate, no flags, no time, the fastest way, unknown system. */
	static const uint8_t head[GZIP_HEAD] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff};
	uint8_t *out = chunk->packed;
	size_t at = 0;

	memcpy(out, head, sizeof(head));
	out += sizeof(head);
	do {
		size_t len =
			chunk->in_len - at < GZIP_STORED_MAX ? chunk->in_len - at : GZIP_STORED_MAX;
		*out = at + len == chunk->in_len; /* BFINAL, and BTYPE 0 */
		put_le32(out + 1, (uint32_t)(len | (~len & 0xffff) << 16)); /* LEN, NLEN */
		memcpy(out + GZIP_STORED_HEAD, chunk->in + at, len);
		out += GZIP_STORED_HEAD + len;
		at += len;
	} while (at < chunk->in_len);
	put_le32(out, crc32_gzip_refl(0, chunk->in, chunk->in_len));
	put_le32(out + 4, (uint32_t)chunk->in_len);
	chunk->out_len = (size_t)(out + GZIP_TAIL - chunk->packed);
}

/* The library writes no time and "unknown" for the system. */
static void gzip_compress(struct chunk *chunk)
{
	struct isal_zstream stream;

	if (!chunk->state)
		chunk->state = mem_grow(NULL, GZIP_LEVEL_BUF, 1);
	isal_deflate_stateless_init(&stream);
	stream.gzip_flag = IGZIP_GZIP;
	stream.level = GZIP_LEVEL;
	stream.level_buf = chunk->state;
	stream.level_buf_size = GZIP_LEVEL_BUF;
	stream.end_of_stream = 1;
	stream.next_in = chunk->in;
	stream.avail_in = (uint32_t)chunk->in_len;
	stream.next_out = chunk->packed;
	stream.avail_out = (uint32_t)gzip_bound();
	int r = isal_deflate_stateless(&stream);
	BUG_ON(r != COMP_OK || stream.avail_in);
	chunk->out_len = stream.total_out;
}

static void gzip_pack(struct chunk *chunk)
{
	if (!chunk->packed)
		chunk->packed = mem_grow(NULL, gzip_bound(), 1);
	chunk->out = chunk->packed;
	if (chunk->store)
		gzip_store(chunk);
	else
		gzip_compress(chunk);
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
		free(chunk->state);
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

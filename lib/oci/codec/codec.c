/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/codec/codec.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <isa-l/igzip_lib.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static const char *const names[] = {
	[CODEC_GZIP] = "gzip",
	[CODEC_ZSTD] = "zstd",
	[CODEC_NONE] = "none",
};

int codec_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return (int)i;
	return -1;
}

const char *codec_name(enum codec codec)
{
	return names[codec];
}

static void *codec_zlib_alloc(void *ctx UNUSED, unsigned n, unsigned size)
{
	return mem_grow(NULL, n, size);
}

static void codec_zlib_free(void *ctx UNUSED, void *p)
{
	free(p);
}

/* Before deflateInit or inflateInit of a zeroed stream. */
static void codec_zlib_hooks(z_stream *z)
{
	z->zalloc = codec_zlib_alloc;
	z->zfree = codec_zlib_free;
}

enum {
	GZIP_LEVEL = 2,
	GZIP_LEVEL_BUF = ISAL_DEF_LVL2_DEFAULT,
	GZIP_CAPACITY = 1024 * 1024,
	GZIP_HEAD = 10,
	GZIP_TAIL = 8,
	GZIP_STORED_MAX = 0xffff, /* RFC 1951 §3.2.4 */
	GZIP_STORED_HEAD = 5,

	ZSTD_LEVEL = 1,
	ZSTD_CAPACITY = 512 * 1024,
	ZSTD_RAW_MAX = 128 * 1024, /* Block_Maximum_Size */
};

/*
 * gzip
 */

/* The library's own bounds (isal_deflate_stateless): what does not compress is stored. */
static size_t gzip_bound(void)
{
	return GZIP_HEAD + GZIP_TAIL + GZIP_CAPACITY +
	       (GZIP_CAPACITY / GZIP_STORED_MAX + 1) * GZIP_STORED_HEAD;
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
	size_t capacity = ZSTD_compressBound(ZSTD_CAPACITY);

	if (!chunk->packed)
		chunk->packed = mem_grow(NULL, capacity, 1);
	chunk->out = chunk->packed;
	if (chunk->store && chunk->in_len) {
		zstd_store(chunk);
		return;
	}
	if (!chunk->state)
		chunk->state = ZSTD_createCCtx();
	if (!chunk->state)
		mem_out(capacity);
	chunk->out_len = ZSTD_compressCCtx(
		chunk->state, chunk->packed, capacity, chunk->in, chunk->in_len, ZSTD_LEVEL);
	if (ZSTD_isError(chunk->out_len))
		mem_out(capacity); /* the only failure with enough room */
}

/*
 * All
 */

size_t chunk_capacity(enum codec codec)
{
	return codec == CODEC_ZSTD ? ZSTD_CAPACITY : GZIP_CAPACITY;
}

static void chunk_init(struct chunk *chunk, enum codec codec)
{
	*chunk = (struct chunk){.codec = codec, .in = mem_grow(NULL, chunk_capacity(codec), 1)};
}

static void chunk_done(struct chunk *chunk)
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

/* An empty piece is an empty member or frame. */
static void chunk_pack(struct chunk *chunk)
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

/* A ring of pieces: one is being filled, those behind it are being packed, and the oldest is
 * written out when its place is needed. Where pieces end depends on the input alone. */
enum { SLOTS_MAX = 9 };

struct slot {
	struct chunk chunk;
	struct par_task *task; /* packs it; NULL: it is packed */
	bool full;             /* in work or packed, not written out */
};

struct encoder {
	enum codec codec;
	codec_out_fn *out;
	void *out_ctx;
	codec_tap_fn *tap;
	void *tap_ctx;
	struct par_task *tap_task;
	const struct chunk *tap_chunk;
	struct slot slots[SLOTS_MAX];
	size_t n_slots;
	size_t fill; /* the slot that takes input */
	bool incompressible;
	uint64_t size_in;
};

struct encoder *encoder_new_width(enum codec codec, unsigned width, codec_out_fn *out, void *ctx)
{
	struct encoder *encoder = mem_alloc(1, sizeof(*encoder));

	encoder->codec = codec;
	encoder->out = out;
	encoder->out_ctx = ctx;
	encoder->n_slots = width <= 1 ? 1 : width + 1U;
	if (encoder->n_slots > SLOTS_MAX)
		encoder->n_slots = SLOTS_MAX;
	return encoder;
}

struct encoder *encoder_new(enum codec codec, codec_out_fn *out, void *ctx)
{
	return encoder_new_width(codec, par_width(), out, ctx);
}

void encoder_set_tap(struct encoder *encoder, codec_tap_fn *tap, void *ctx)
{
	encoder->tap = tap;
	encoder->tap_ctx = ctx;
}

void encoder_set_incompressible(struct encoder *encoder, bool incompressible)
{
	encoder->incompressible = incompressible;
}

static void finish_task(struct par_task **task)
{
	par_wait(*task);
	*task = NULL;
}

/* Write a packed piece out; its slot is free then. */
static int codec_drain(struct encoder *encoder, struct slot *slot, struct err *err)
{
	int r = 0;

	if (!slot->full)
		return 0;
	finish_task(&slot->task);
	if (encoder->tap_chunk == &slot->chunk)
		finish_task(&encoder->tap_task);
	slot->full = false;
	if (slot->chunk.out_len)
		r = encoder->out(encoder->out_ctx, slot->chunk.out, slot->chunk.out_len, err);
	slot->chunk.in_len = 0;
	return r;
}

static void run_pack(void *ctx)
{
	chunk_pack(ctx);
}

static void run_tap(void *ctx)
{
	struct encoder *encoder = ctx;

	encoder->tap(encoder->tap_ctx, encoder->tap_chunk->in, encoder->tap_chunk->in_len);
}

/* The piece has all its input: pack it, beside the caller unless alone, and go to the next slot. */
static void codec_dispatch(struct encoder *encoder, bool alone)
{
	struct slot *slot = &encoder->slots[encoder->fill];

	/* The piece before was seen, so slots cannot be filled again too early. */
	finish_task(&encoder->tap_task);
	encoder->tap_chunk = &slot->chunk;
	slot->full = true;
	if (encoder->tap && alone)
		run_tap(encoder);
	else if (encoder->tap)
		encoder->tap_task = par_start(run_tap, encoder);
	if (alone || encoder->codec == CODEC_NONE)
		run_pack(&slot->chunk);
	else
		slot->task = par_start(run_pack, &slot->chunk);
	encoder->fill = (encoder->fill + 1) % encoder->n_slots;
}

/* The slot to fill, empty or with room. */
static int slot_for(struct encoder *encoder, struct slot **ret, struct err *err)
{
	struct slot *slot = &encoder->slots[encoder->fill];
	bool alone = encoder->n_slots == 1;

	if (!slot->full && slot->chunk.in_len &&
		(slot->chunk.in_len == chunk_capacity(encoder->codec) ||
			slot->chunk.store != encoder->incompressible)) {
		codec_dispatch(encoder, alone);
		slot = &encoder->slots[encoder->fill];
	}
	int r = codec_drain(encoder, slot, err);
	if (r)
		return r;
	if (!slot->chunk.in)
		chunk_init(&slot->chunk, encoder->codec);
	if (slot->chunk.in_len == 0)
		slot->chunk.store = encoder->incompressible;
	*ret = slot;
	return 0;
}

int encoder_write(struct encoder *encoder, const void *data, size_t len, struct err *err)
{
	const uint8_t *at = data;
	size_t capacity = chunk_capacity(encoder->codec);

	while (len) {
		struct slot *slot;
		int r = slot_for(encoder, &slot, err);
		if (r)
			return r;
		size_t n = capacity - slot->chunk.in_len;
		if (n > len)
			n = len;
		memcpy(slot->chunk.in + slot->chunk.in_len, at, n);
		slot->chunk.in_len += n;
		encoder->size_in += n;
		at += n;
		len -= n;
	}
	return 0;
}

int encoder_end(struct encoder *encoder, struct err *err)
{
	struct slot *slot;

	if (encoder->size_in == 0) {
		int r = slot_for(encoder, &slot, err);
		if (r)
			return r;
	}
	/* A short stream is not worth a thread. */
	codec_dispatch(encoder, encoder->size_in <= chunk_capacity(encoder->codec));
	for (size_t i = 0; i < encoder->n_slots; i++) {
		int r = codec_drain(
			encoder, &encoder->slots[(encoder->fill + i) % encoder->n_slots], err);
		if (r)
			return r;
	}
	finish_task(&encoder->tap_task);
	return 0;
}

void encoder_free(struct encoder *encoder)
{
	if (!encoder)
		return;
	finish_task(&encoder->tap_task);
	for (size_t i = 0; i < encoder->n_slots; i++) {
		finish_task(&encoder->slots[i].task);
		chunk_done(&encoder->slots[i].chunk);
	}
	free(encoder);
}

enum { IN_SIZE = 128 * 1024, MAGIC_SIZE = 4, WINDOW_LOG_MAX = 27 };

/* Some input becomes some output. */
typedef int step_fn(
	struct decoder *decoder, uint8_t *out, size_t len, size_t *ret_len, struct err *err);

struct decoder {
	int fd;
	uint64_t left; /* of what may come out */
	codec_tap_fn *tap;
	void *tap_ctx;
	step_fn *step; /* of the format; NULL: the beginning was not looked at */
	bool at_eof;
	bool in_frame; /* a member or frame has begun and not ended */
	size_t pos, len;
	z_stream z;
	ZSTD_DCtx *zstd;
	uint8_t in[IN_SIZE];
};

struct decoder *decoder_new(int fd, uint64_t max_out)
{
	struct decoder *decoder = mem_grow(NULL, 1, sizeof(*decoder));

	/* All but the buffer. */
	memset(decoder, 0, offsetof(struct decoder, in));
	decoder->fd = fd;
	decoder->left = max_out;
	return decoder;
}

void decoder_set_tap(struct decoder *decoder, codec_tap_fn *tap, void *ctx)
{
	decoder->tap = tap;
	decoder->tap_ctx = ctx;
}

void decoder_free(struct decoder *decoder)
{
	if (!decoder)
		return;
	inflateEnd(&decoder->z); /* one that was never begun is an error that does nothing */
	ZSTD_freeDCtx(decoder->zstd);
	free(decoder);
}

/* More input behind what is there, or at_eof. */
static int codec_fill(struct decoder *decoder, struct err *err)
{
	ssize_t n;

	memmove(decoder->in, decoder->in + decoder->pos, decoder->len - decoder->pos);
	decoder->len -= decoder->pos;
	decoder->pos = 0;
	do
		n = read(decoder->fd, decoder->in + decoder->len, IN_SIZE - decoder->len);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return fs_error(err, errno, "reading a layer");
	if (n == 0)
		decoder->at_eof = true;
	else if (decoder->tap)
		decoder->tap(decoder->tap_ctx, decoder->in + decoder->len, (size_t)n);
	decoder->len += (size_t)n;
	return 0;
}

static int corrupt(struct err *err, const char *what)
{
	return err_set(err, E_IMAGE, "a layer is damaged: %s", what);
}

/*
 * gzip
 */

static void gzip_begin(struct decoder *decoder)
{
	enum { GZIP_ONLY = 16 + MAX_WBITS };
	z_stream *z = &decoder->z;

	if (z->state) {
		BUG_ON(inflateReset(z) != Z_OK);
		return;
	}
	codec_zlib_hooks(z);
	BUG_ON(inflateInit2(z, GZIP_ONLY) != Z_OK);
}

static int gzip_step(
	struct decoder *decoder, uint8_t *out, size_t len, size_t *ret_len, struct err *err)
{
	z_stream *z = &decoder->z;

	/* Another member, or what is behind the last one and then fails as a header. */
	if (!decoder->in_frame)
		gzip_begin(decoder);
	decoder->in_frame = true;
	z->next_in = decoder->in + decoder->pos;
	z->avail_in = (unsigned)(decoder->len - decoder->pos);
	z->next_out = out;
	z->avail_out = len < UINT32_MAX ? (unsigned)len : UINT32_MAX;
	int r = inflate(z, Z_NO_FLUSH);
	if (r == Z_STREAM_END)
		decoder->in_frame = false;
	else if (r != Z_OK && r != Z_BUF_ERROR)
		return corrupt(err, z->msg ? z->msg : "not gzip");
	decoder->pos = decoder->len - z->avail_in;
	*ret_len = (size_t)(z->next_out - out);
	return 0;
}

/*
 * zstd
 */

static bool codec_is_zstd(uint32_t magic)
{
	return magic == ZSTD_MAGICNUMBER ||
	       (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

static int zstd_step(
	struct decoder *decoder, uint8_t *out, size_t len, size_t *ret_len, struct err *err)
{
	ZSTD_inBuffer in = {decoder->in, decoder->len, decoder->pos};
	ZSTD_outBuffer to = {out, len, 0};

	if (!decoder->zstd) {
		decoder->zstd = ZSTD_createDCtx();
		if (!decoder->zstd)
			mem_out(IN_SIZE);
		ZSTD_DCtx_setParameter(decoder->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
	}
	size_t r = ZSTD_decompressStream(decoder->zstd, &to, &in);
	if (ZSTD_isError(r))
		return corrupt(err, ZSTD_getErrorName(r));
	decoder->in_frame = r != 0;
	decoder->pos = in.pos;
	*ret_len = to.pos;
	return 0;
}

/*
 * none
 */

static int plain_step(
	struct decoder *decoder, uint8_t *out, size_t len, size_t *ret_len, struct err *err UNUSED)
{
	size_t n = decoder->len - decoder->pos;

	if (n > len)
		n = len;
	memcpy(out, decoder->in + decoder->pos, n);
	decoder->pos += n;
	*ret_len = n;
	return 0;
}

/* Leaves the beginning where it is. */
static int find_format(struct decoder *decoder, struct err *err)
{
	const uint8_t *in = decoder->in;

	while (decoder->len < MAGIC_SIZE && !decoder->at_eof) {
		int r = codec_fill(decoder, err);
		if (r)
			return r;
	}
	decoder->step = plain_step;
	if (decoder->len >= 2 && in[0] == 0x1f && in[1] == 0x8b)
		decoder->step = gzip_step;
	if (decoder->len >= MAGIC_SIZE && codec_is_zstd(get_le32(in)))
		decoder->step = zstd_step;
	return 0;
}

/* 1: some output; 0: the end; negative: failed. */
static int produce(
	struct decoder *decoder, uint8_t *out, size_t len, size_t *ret_len, struct err *err)
{
	int r = decoder->step ? 0 : find_format(decoder, err);

	while (r == 0) {
		if (decoder->pos == decoder->len && !decoder->at_eof) {
			r = codec_fill(decoder, err);
			continue;
		}
		bool no_input = decoder->pos == decoder->len;
		if (no_input && !decoder->in_frame)
			return 0;
		r = decoder->step(decoder, out, len, ret_len, err);
		if (r == 0 && *ret_len)
			return 1;
		if (r == 0 && no_input)
			return corrupt(err, "it ends early");
	}
	return r;
}

int decoder_read(struct decoder *decoder, void *out, size_t len, size_t *ret_len, struct err *err)
{
	/* Read one byte beyond the limit, to tell a stream that ends there from a longer one. */
	size_t most = decoder->left < len ? (size_t)decoder->left + 1 : len;
	size_t done = 0, n;
	int r = 1;

	while (done < most && r > 0) {
		r = produce(decoder, (uint8_t *)out + done, most - done, &n, err);
		if (r > 0)
			done += n;
	}
	if (r < 0)
		return r;
	if (done > decoder->left)
		return err_set(err, E_DATA_LIMIT, "a layer is larger than it may be when unpacked");
	decoder->left -= done;
	*ret_len = done;
	return 0;
}

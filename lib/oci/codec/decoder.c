/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/codec/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/os/fs.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "oci/codec/codec_zlib.h"

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
static int fill(struct decoder *decoder, struct err *err)
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

static bool is_zstd(uint32_t magic)
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
	struct decoder *decoder, uint8_t *out, size_t len, size_t *ret_len, struct err *err)
{
	size_t n = decoder->len - decoder->pos;

	(void)err;
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
		int r = fill(decoder, err);
		if (r)
			return r;
	}
	decoder->step = plain_step;
	if (decoder->len >= 2 && in[0] == 0x1f && in[1] == 0x8b)
		decoder->step = gzip_step;
	if (decoder->len >= MAGIC_SIZE && is_zstd(get_le32(in)))
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
			r = fill(decoder, err);
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

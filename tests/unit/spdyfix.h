/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's side of SPDY/3.1 for tests: frames made and read with packers of its own.
 */
#ifndef DLRUN_TESTS_SPDYFIX_H
#define DLRUN_TESTS_SPDYFIX_H

#include <string.h>

#include "base/util/buf.h"
#include "base/util/enc.h"
#include "net/websocket/spdy.h"

enum { FIX_SYN = 1, FIX_REPLY = 2, FIX_RST = 3, FIX_SETTINGS = 4, FIX_PING = 6, FIX_GOAWAY = 7 };

/* Frames of a server. */
static inline void fix_control(
	struct buf *out, unsigned type, unsigned flags, const void *payload, size_t len)
{
	uint8_t head[8] = {0x80, 3, 0, (uint8_t)type};

	put_be32(head + 4, (uint32_t)len);
	head[4] = (uint8_t)flags;
	buf_add(out, head, sizeof(head));
	buf_add(out, payload, len);
}

static inline void fix_words(struct buf *out, unsigned type, uint32_t a, uint32_t b, size_t n)
{
	uint8_t words[8];

	put_be32(words, a);
	put_be32(words + 4, b);
	fix_control(out, type, 0, words, 4 * n);
}

static inline void fix_reply(struct buf *out, struct spdy_packer *packer, uint32_t id,
	const struct spdy_field *fields, size_t n)
{
	struct buf payload;
	uint8_t head[4];

	buf_init(&payload, 1 << 24);
	put_be32(head, id);
	buf_add(&payload, head, 4);
	spdy_pack(packer, fields, n, &payload);
	fix_control(out, FIX_REPLY, 0, payload.data, payload.len);
	buf_done(&payload);
}

static inline void fix_data(struct buf *out, uint32_t id, const void *data, size_t len, bool is_end)
{
	uint8_t head[SPDY_HEAD_SIZE];

	spdy_data_head(head, id, len, is_end);
	buf_add(out, head, sizeof(head));
	buf_add(out, data, len);
}

/* What a client has sent. */
struct fix_frame {
	bool control, end;
	unsigned type;
	uint32_t id;
	const char *payload; /* in the buffer */
	size_t len;          /* of the payload */
	size_t size;         /* of the frame */
};

/* The frame at the front of bytes; false: there is no whole one yet. */
static inline bool fix_frame(const char *bytes, size_t len, struct fix_frame *ret)
{
	const uint8_t *p = (const uint8_t *)bytes;

	if (len < 8)
		return false;
	*ret = (struct fix_frame){.control = p[0] & 0x80,
		.end = p[4] & 1,
		.type = (unsigned)p[2] << 8 | p[3],
		.len = get_be32(p + 4) & 0xffffff,
		.payload = bytes + 8};
	ret->size = ret->len + 8;
	if (len < ret->size)
		return false;
	if (!ret->control)
		ret->id = get_be32(p);
	else if (ret->len >= 4)
		ret->id = get_be32(p + 8);
	return true;
}

#endif

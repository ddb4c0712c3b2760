/* SPDX-License-Identifier: Apache-2.0 */
/* The server's side of WebSocket, for tests of the client's. */
#ifndef DLRUN_TESTS_UNIT_WSPEER_H
#define DLRUN_TESTS_UNIT_WSPEER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/err.h"

/* The head of a frame as servers send it; first: FIN, reserved bits and opcode. */
static inline void peer_head(struct buf *out, unsigned first, uint64_t len)
{
	buf_addc(out, (char)first);
	if (len < 126) {
		buf_addc(out, (char)len);
		return;
	}
	int size = len <= UINT16_MAX ? 2 : 8;
	buf_addc(out, size == 2 ? 126 : 127);
	while (size-- > 0)
		buf_addc(out, (char)(len >> 8 * size));
}

static inline void peer_frame(struct buf *out, unsigned first, const void *data, size_t len)
{
	peer_head(out, first, len);
	buf_add(out, data, len);
}

struct peer_got {
	unsigned first;
	uint8_t mask[4];
	char *data; /* unmasked, in place */
	size_t len;
};

/* One whole frame at *at of what the client sends, which must be as the client's have to be; false
 * at its end. */
static inline bool peer_next(const struct buf *in, size_t *at, struct peer_got *ret)
{
	uint8_t *head = (uint8_t *)in->data + *at;
	size_t left = in->len - *at, n = 2;

	if (left == 0)
		return false;
	BUG_ON(left < 6 || !(head[1] & 0x80));
	uint64_t len = head[1] & 0x7f;
	size_t size = len == 126 ? 2 : len == 127 ? 8 : 0;
	if (size > 0) {
		len = 0;
		for (size_t i = 0; i < size; i++)
			len = len << 8 | head[n++];
		BUG_ON(len < 126 || (size == 8 && len <= UINT16_MAX));
	}
	memcpy(ret->mask, head + n, 4);
	n += 4;
	BUG_ON(left - n < len);
	ret->first = head[0];
	ret->data = (char *)head + n;
	ret->len = (size_t)len;
	for (size_t i = 0; i < ret->len; i++)
		ret->data[i] ^= (char)ret->mask[i % 4];
	*at += n + ret->len;
	return true;
}

#endif

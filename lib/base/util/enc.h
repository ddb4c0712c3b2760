/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hex and base64 (RFC 4648), numbers of either order of bytes.
 */
#ifndef DLRUN_BASE_UTIL_ENC_H
#define DLRUN_BASE_UTIL_ENC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"

/* The value of a lower- or upper-case hex digit, -1 for anything else. */
int hex_digit(int c);
/* out has room for 2 * len + 1. */
void hex_encode(const void *data, size_t len, char *out);
/* Whether 2 * len lower- or upper-case digits stand at s; what follows them is ignored. */
bool hex_decode(const char *s, size_t len, uint8_t *out);
void base64_encode(const void *data, size_t len, struct buf *out);
/* Standard alphabet, padding required, unused bits zero; false on anything else, with out as
 * before. A full out does not give false: use buf_check. */
bool base64_decode(const char *s, size_t len, struct buf *out);

static inline uint32_t get_le32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t get_le64(const uint8_t *p)
{
	return get_le32(p) | (uint64_t)get_le32(p + 4) << 32;
}

static inline void put_le32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static inline void put_le64(uint8_t *p, uint64_t v)
{
	put_le32(p, (uint32_t)v);
	put_le32(p + 4, (uint32_t)(v >> 32));
}

/* The order of the network. */
static inline uint32_t get_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void put_be32(uint8_t *out, uint32_t value)
{
	out[0] = (uint8_t)(value >> 24);
	out[1] = (uint8_t)(value >> 16);
	out[2] = (uint8_t)(value >> 8);
	out[3] = (uint8_t)value;
}

#endif

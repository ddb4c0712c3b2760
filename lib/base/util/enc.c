/* SPDX-License-Identifier: Apache-2.0 */

#include "base/util/enc.h"

int hex_digit(int c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

void hex_encode(const void *data, size_t len, char *out)
{
	const uint8_t *in = data;

	/* Without a table or a branch, so that a compiler does many at once. */
	for (size_t i = 0; i < len; i++) {
		unsigned high = in[i] >> 4, low = in[i] & 15U;
		out[2 * i] = (char)(high + (high > 9 ? 'a' - 10 : '0'));
		out[2 * i + 1] = (char)(low + (low > 9 ? 'a' - 10 : '0'));
	}
	out[2 * len] = '\0';
}

bool hex_decode(const char *s, size_t len, uint8_t *out)
{
	for (size_t i = 0; i < len; i++) {
		int high = hex_digit(s[2 * i]);
		int low = high < 0 ? -1 : hex_digit(s[2 * i + 1]);
		if (low < 0)
			return false;
		out[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *data, size_t len, struct buf *out)
{
	const uint8_t *in = data;
	char four[4];

	for (size_t i = 0; i < len && !out->full; i += 3) {
		size_t n = len - i < 3 ? len - i : 3;
		uint32_t bits = (uint32_t)in[i] << 16;
		if (n > 1)
			bits |= (uint32_t)in[i + 1] << 8;
		if (n > 2)
			bits |= in[i + 2];
		four[0] = alphabet[bits >> 18];
		four[1] = alphabet[bits >> 12 & 63];
		four[2] = n > 1 ? alphabet[bits >> 6 & 63] : '=';
		four[3] = n > 2 ? alphabet[bits & 63] : '=';
		buf_add(out, four, sizeof(four));
	}
}

static int base64_digit(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode a group of n digits (2 to 4) and padding to n - 1 bytes. Bits that belong to no byte must
 * be zero (section 3.5), so that any content has only one encoding. */
static bool decode_group(const char *s, size_t n, char out[static 3])
{
	uint32_t bits = 0;

	for (size_t i = 0; i < 4; i++) {
		int digit = i < n ? base64_digit(s[i]) : 0;
		if (digit < 0)
			return false;
		bits = bits << 6 | (uint32_t)digit;
	}
	out[0] = (char)(bits >> 16);
	out[1] = (char)(bits >> 8);
	out[2] = (char)bits;
	return (bits & ((1u << 8 * (4 - n)) - 1)) == 0;
}

bool base64_decode(const char *s, size_t len, struct buf *out)
{
	size_t start = out->len, n = 4;
	bool full = out->full;
	char three[3];

	if (len % 4)
		return false;
	for (size_t i = 0; i < len; i += 4) {
		if (i + 4 == len && s[i + 3] == '=')
			n = s[i + 2] == '=' ? 2 : 3;
		if (!decode_group(s + i, n, three)) {
			buf_truncate(out, start);
			out->full = full;
			return false;
		}
		buf_add(out, three, n - 1);
	}
	return true;
}

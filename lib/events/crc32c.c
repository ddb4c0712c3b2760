/* SPDX-License-Identifier: Apache-2.0 */
#include "events/crc32c.h"

#include "base/util/enc.h"

#define POLYNOMIAL 0x82f63b78u /* bits in reverse */

/* table[k][b]: what byte b does to the sum when k bytes follow it. */
static uint32_t table[8][256];

void crc32c_init(void)
{
	if (table[0][1])
		return;
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t sum = b;
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? POLYNOMIAL : 0);
		table[0][b] = sum;
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++)
			table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

uint32_t crc32c(const void *data, size_t len)
{
	const uint8_t *p = data;
	uint32_t sum = ~0u;

	for (; len >= 8; p += 8, len -= 8) {
		uint32_t low = get_le32(p) ^ sum;

		sum = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^
		      table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^ table[3][p[4]] ^
		      table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
	}
	for (; len > 0; p++, len--)
		sum = sum >> 8 ^ table[0][(sum ^ *p) & 0xff];
	return ~sum;
}

uint32_t crc32c_masked(const void *data, size_t len)
{
	uint32_t sum = crc32c(data, len);

	return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Event files in memory, for the tests of run/tfevents and run/metrics. */
#ifndef DLRUN_TESTS_TFEVENTSFIX_H
#define DLRUN_TESTS_TFEVENTSFIX_H

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "events/tfevents.h"

enum { FIX_MAX = 64 << 20 };

static inline void put_varint(struct buf *out, uint64_t value)
{
	while (value > 0x7f) {
		buf_addc(out, (char)((value & 0x7f) | 0x80));
		value >>= 7;
	}
	buf_addc(out, (char)value);
}

static inline void put_number(struct buf *out, unsigned field, uint64_t value)
{
	put_varint(out, field << 3);
	put_varint(out, value);
}

static inline void put_data(struct buf *out, unsigned field, const void *data, size_t len)
{
	put_varint(out, field << 3 | 2);
	put_varint(out, len);
	buf_add(out, data, len);
}

static inline void put_string(struct buf *out, unsigned field, const char *s)
{
	put_data(out, field, s, __builtin_strlen(s));
}

static inline void put_buf(struct buf *out, unsigned field, const struct buf *data)
{
	put_data(out, field, data->data, data->len);
}

static inline void put_double(struct buf *out, unsigned field, double value)
{
	uint8_t bytes[8];
	uint64_t bits;

	__builtin_memcpy(&bits, &value, sizeof(bits));
	put_le64(bytes, bits);
	put_varint(out, field << 3 | 1);
	buf_add(out, bytes, sizeof(bytes));
}

static inline void put_float(struct buf *out, unsigned field, float value)
{
	uint8_t bytes[4];
	uint32_t bits;

	__builtin_memcpy(&bits, &value, sizeof(bits));
	put_le32(bytes, bits);
	put_varint(out, field << 3 | 5);
	buf_add(out, bytes, sizeof(bytes));
}

static inline void put_record(struct buf *out, const void *data, size_t len)
{
	uint8_t header[12], sum[4];

	crc32c_init();
	put_le64(header, len);
	put_le32(header + 8, crc32c_masked(header, 8));
	put_le32(sum, crc32c_masked(data, len));
	buf_add(out, header, sizeof(header));
	buf_add(out, data, len);
	buf_add(out, sum, sizeof(sum));
}

/* An event with one Summary.Value. */
static inline void put_value(struct buf *out, double wall, int64_t step, const struct buf *value)
{
	AUTO_BUF struct buf event, summary;

	buf_init(&event, FIX_MAX);
	buf_init(&summary, FIX_MAX);
	put_buf(&summary, 1, value);
	put_double(&event, 1, wall);
	put_number(&event, 2, (uint64_t)step);
	put_buf(&event, 5, &summary);
	put_record(out, event.data, event.len);
}

static inline void put_simple(
	struct buf *out, double wall, int64_t step, const char *tag, float value)
{
	AUTO_BUF struct buf bytes;

	buf_init(&bytes, FIX_MAX);
	put_string(&bytes, 1, tag);
	put_float(&bytes, 2, value);
	put_value(out, wall, step, &bytes);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame of a record in TFRecord files (tensorflow: core/lib/io/record_writer.h): length u64le,
 * masked CRC-32C of these 8 bytes u32le, data, masked CRC-32C of the data u32le. Over bytes in
 * memory. Call crc32c_init before.
 */
#ifndef DLRUN_EVENTS_TFRECORD_H
#define DLRUN_EVENTS_TFRECORD_H

#include <stddef.h>
#include <stdint.h>

enum { TFRECORD_HEADER = 12, TFRECORD_TRAILER = 4 };

enum tfrecord_state {
	TFRECORD_OK,
	/* The record is not written yet though the file has bytes there: some file systems show
	 * zeros until the bytes arrive. Read again when some time has passed or the file has
	 * changed. */
	TFRECORD_UNFILLED,
	/* No record is there: the file is damaged, or is not a file of records. */
	TFRECORD_BAD,
};

/* The header at p. *ret_len: of the data; only with OK, and then no overflow of what is around it
 * or of places in files. */
enum tfrecord_state tfrecord_header(const uint8_t *p, uint64_t *ret_len);
/* Whether the data, of len bytes, of the whole record at p is what its sum says. */
enum tfrecord_state tfrecord_data(const uint8_t *p, size_t len);

/* Rest of a piece of a file. */
struct tfrecord_input {
	const uint8_t *p;
	size_t len;
};

static inline void tfrecord_consume(struct tfrecord_input *input, size_t n)
{
	input->p += n;
	input->len -= n;
}

/* Of *to_skip bytes what is here, taken off it. Returns how many these are. */
static inline size_t tfrecord_skip(struct tfrecord_input *input, uint64_t *to_skip)
{
	size_t n = input->len < *to_skip ? input->len : (size_t)*to_skip;

	*to_skip -= n;
	tfrecord_consume(input, n);
	return n;
}

#endif

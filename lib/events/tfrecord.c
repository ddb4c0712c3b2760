/* SPDX-License-Identifier: Apache-2.0 */
#include "events/tfrecord.h"

#include <stdbool.h>

#include "base/util/enc.h"
#include "events/crc32c.h"

static bool is_good(const uint8_t *data, size_t len, const uint8_t *sum)
{
	return get_le32(sum) == crc32c_masked(data, len);
}

/* A sum of zeros has not been written yet: of zeros alone, too, it would be another one. */
static enum tfrecord_state state_of(const uint8_t *data, size_t len, const uint8_t *sum)
{
	if (is_good(data, len, sum))
		return TFRECORD_OK;
	return get_le32(sum) == 0 ? TFRECORD_UNFILLED : TFRECORD_BAD;
}

enum tfrecord_state tfrecord_header(const uint8_t *p, uint64_t *ret_len)
{
	enum tfrecord_state state = state_of(p, 8, p + 8);

	*ret_len = get_le64(p);
	return state == TFRECORD_OK && *ret_len > INT64_MAX / 2 ? TFRECORD_BAD : state;
}

enum tfrecord_state tfrecord_data(const uint8_t *p, size_t len)
{
	return state_of(p + TFRECORD_HEADER, len, p + TFRECORD_HEADER + len);
}

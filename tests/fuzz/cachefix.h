/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For fuzz targets of what lies in a cache file (cachefile.h).
 */
#ifndef DLRUN_FUZZ_CACHEFIX_H
#define DLRUN_FUZZ_CACHEFIX_H

#include <stdint.h>
#include <string.h>

#include "snap/git/cachefile.h"

/* A checksum that fits is put in, else nothing behind it would ever be reached. */
static inline void cachefix_reconcile_header(uint8_t *data, size_t size)
{
	enum { CHECKSUM_AT = 8, COUNT_AT = 16, LEN_AT = 24 };
	uint64_t len = size - CACHEFILE_HEADER_SIZE, sum;

	memcpy(data + LEN_AT, &len, sizeof(len));
	sum = cachefile_checksum(0, data + CACHEFILE_HEADER_SIZE, len);
	sum = cachefile_checksum(sum, data + COUNT_AT, 2 * sizeof(uint64_t));
	memcpy(data + CHECKSUM_AT, &sum, sizeof(sum));
}

#endif

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/err.h"
#include "base/mem.h"
#include "snap/statcache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A checksum that fits is put in, else nothing behind it would ever be reached. */
static void mend_header(uint8_t *data, size_t size)
{
	enum { CHECKSUM_AT = 8, COUNT_AT = 16, LEN_AT = 24 };
	uint64_t len = size - STATCACHE_HEADER_SIZE, sum;

	memcpy(data + LEN_AT, &len, sizeof(len));
	sum = statcache_checksum(0, data + STATCACHE_HEADER_SIZE, len);
	sum = statcache_checksum(sum, data + COUNT_AT, 2 * sizeof(uint64_t));
	memcpy(data + CHECKSUM_AT, &sum, sizeof(sum));
}

/* Every path that is handed out lies inside of the data and ends there. */
static void walk(const struct statcache *cache)
{
	struct statcache_cursor cursor = {0};
	size_t before = 0;

	while (statcache_next(cache, &cursor)) {
		const uint8_t *path = (const uint8_t *)cursor.path;
		BUG_ON(cursor.at <= before || cursor.at > cache->len);
		BUG_ON(path < cache->data ||
			path + cursor.entry.path_len >= cache->data + cache->len);
		BUG_ON(strlen(cursor.path) != cursor.entry.path_len);
		before = cursor.at;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct statcache cache;

	if (statcache_parse(&cache, data, size))
		walk(&cache);
	BUG_ON(cache.len > size);
	if (size < STATCACHE_HEADER_SIZE)
		return 0;
	AUTO_FREE uint8_t *mended = mem_dup(data, size);
	mend_header(mended, size);
	if (statcache_parse(&cache, mended, size))
		walk(&cache);
	return 0;
}

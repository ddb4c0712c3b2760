/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "snap/tree/statcache.h"
#include "tests/fuzz/cachefix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every path that is handed out lies inside of the data and ends there. */
static void walk(const struct statcache *cache)
{
	struct statcache_cursor cursor = {0};
	size_t before = 0;

	while (statcache_next(cache, &cursor)) {
		const uint8_t *path = (const uint8_t *)cursor.path;
		BUG_ON(cursor.at <= before || cursor.at > cache->file.len);
		BUG_ON(path < cache->file.data ||
			path + cursor.entry.path_len >= cache->file.data + cache->file.len);
		BUG_ON(strlen(cursor.path) != cursor.entry.path_len);
		before = cursor.at;
	}
}

/* Whatever the order of the paths is, it ends inside. */
static void seek(const struct statcache *cache)
{
	static const char *const paths[] = {"", "a", "dir/b", "\xff"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		struct statcache_cursor cursor;
		statcache_seek(cache, &cursor, paths[i]);
		BUG_ON(cursor.at > cache->file.len);
		statcache_next(cache, &cursor);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct statcache cache;

	if (statcache_parse(&cache, data, size))
		walk(&cache);
	BUG_ON(cache.file.len > size);
	statcache_done(&cache);
	if (size < CACHEFILE_HEADER_SIZE)
		return 0;
	AUTO_FREE uint8_t *mended = mem_dup(data, size);
	cachefix_reconcile_header(mended, size);
	if (statcache_parse(&cache, mended, size)) {
		walk(&cache);
		seek(&cache);
	}
	statcache_done(&cache);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/data/entry.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "snap/tree/statcache.h"

/* The number is written in the order of the machine, so another machine's file is not taken. */
#define MAGIC UINT64_C(0x0131746174536c64)

enum { STOP_STEP = 128 };

_Static_assert(sizeof(struct statcache_entry) == 104, "layout of the file");

/* A record: the entry, its path, NUL, zeros. */
static size_t record_size(size_t path_len)
{
	size_t mask = CACHEFILE_ALIGN - 1;

	return (sizeof(struct statcache_entry) + path_len + 1 + mask) & ~mask;
}

char *statcache_path(const char *cache_dir, const char *root)
{
	enum { ID_SIZE = 8 };
	uint8_t sha256[SHA256_SIZE];
	char hex[2 * ID_SIZE + 1];

	digest_sha256(root, strlen(root), sha256);
	hex_encode(sha256, ID_SIZE, hex);
	return mem_printf("%s/%s/stat.v1", cache_dir, hex);
}

bool statcache_next(const struct statcache *cache, struct statcache_cursor *cursor)
{
	size_t left = cache->file.len - cursor->at;

	if (left < sizeof(cursor->entry))
		return false;
	const uint8_t *record = cache->file.data + cursor->at;
	memcpy(&cursor->entry, record, sizeof(cursor->entry));
	size_t path_len = cursor->entry.path_len, size = record_size(path_len);
	const char *path = (const char *)record + sizeof(cursor->entry);
	if (size > left || path_len == 0 || path[path_len] || memchr(path, '\0', path_len))
		return false;
	cursor->path = path;
	cursor->at += size;
	return true;
}

static void find_stops(struct statcache *cache)
{
	struct statcache_cursor cursor = {0};
	size_t max = (size_t)cache->file.n / STOP_STEP + 1;

	if (cache->file.n == 0)
		return;
	cache->stops = mem_alloc(max, sizeof(*cache->stops));
	for (size_t n = 0, at = 0; statcache_next(cache, &cursor); n++, at = cursor.at)
		if (n % STOP_STEP == 0 && cache->n_stops < max)
			cache->stops[cache->n_stops++] = at;
}

bool statcache_parse(struct statcache *cache, const void *data, size_t len)
{
	*cache = (struct statcache){0};
	bool good = cachefile_parse(&cache->file, MAGIC, data, len);
	find_stops(cache);
	return good;
}

void statcache_open(struct statcache *cache, const char *path)
{
	*cache = (struct statcache){0};
	cachefile_open(&cache->file, MAGIC, path);
	find_stops(cache);
}

void statcache_done(struct statcache *cache)
{
	if (!cache)
		return;
	free(cache->stops);
	cachefile_done(&cache->file);
	*cache = (struct statcache){0};
}

/* The path of the record at a stop. */
static const char *path_at(const struct statcache *cache, size_t stop)
{
	return (const char *)cache->file.data + cache->stops[stop] + sizeof(struct statcache_entry);
}

void statcache_seek(
	const struct statcache *cache, struct statcache_cursor *cursor, const char *path)
{
	size_t from = 0, to = cache->n_stops;

	while (from < to) {
		size_t mid = from + (to - from) / 2;
		if (strcmp(path_at(cache, mid), path) < 0)
			from = mid + 1;
		else
			to = mid;
	}
	struct statcache_cursor next = {.at = from ? cache->stops[from - 1] : 0};
	do
		*cursor = (struct statcache_cursor){.at = next.at};
	while (statcache_next(cache, &next) && strcmp(next.path, path) < 0);
}

bool statcache_matches(
	const struct statcache_entry *entry, const struct statcache_stat *stat, bool network)
{
	return entry->mtime_ns == stat->mtime_ns && entry->ctime_ns == stat->ctime_ns &&
	       entry->size == stat->size && entry->mode == stat->mode &&
	       (network || (entry->ino == stat->ino && entry->dev == stat->dev));
}

/* A ctime that is no whole number of milliseconds was not made by a coarse clock. */
static int64_t window_ns(const struct statcache_stat *stat, bool network)
{
	enum { NS_PER_MS = 1000000 };

	if (network)
		return STATCACHE_WINDOW_NETWORK_NS;
	return stat->ctime_ns % NS_PER_MS ? STATCACHE_WINDOW_FINE_NS : STATCACHE_WINDOW_NS;
}

bool statcache_is_settled(const struct statcache_stat *stat, int64_t now_ns, bool network)
{
	int64_t newest = stat->mtime_ns > stat->ctime_ns ? stat->mtime_ns : stat->ctime_ns;

	return newest < now_ns - window_ns(stat, network);
}

struct cachefile_writer *statcache_write(const char *path)
{
	return cachefile_write(path, MAGIC);
}

void statcache_add(
	struct cachefile_writer *writer, const struct statcache_entry *entry, const char *path)
{
	size_t path_len = strlen(path);
	struct statcache_entry copy = *entry;

	if (path_len > ENTRY_PATH_MAX)
		return;
	copy.path_len = (uint16_t)path_len;
	memset(copy.zero, 0, sizeof(copy.zero));
	cachefile_add(writer, &copy, sizeof(copy), path, path_len + 1);
}

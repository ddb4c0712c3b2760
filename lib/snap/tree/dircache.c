/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/data/entry.h"
#include "base/util/mem.h"
#include "snap/tree/dircache.h"
#include "snap/tree/listing.h"

#define MAGIC UINT64_C(0x0131737269646c64)

_Static_assert(sizeof(struct dircache_row) == 48, "layout of the file");

char *dircache_path(const char *statcache_path)
{
	const char *slash = strrchr(statcache_path, '/');
	int dir_len = slash ? (int)(slash - statcache_path) : 0;

	return mem_printf("%.*s/dirs.v1", dir_len, statcache_path);
}

const char *dircache_row_path(const struct dircache_row *row)
{
	return (const char *)(row + 1);
}

const char *dircache_row_text(const struct dircache_row *row)
{
	return dircache_row_path(row) + row->path_len + 1;
}

/* The size of the row in the file. */
static size_t row_size(const struct dircache_row *row)
{
	size_t mask = CACHEFILE_ALIGN - 1;

	return (sizeof(*row) + row->path_len + 1 + row->text_len + mask) & ~mask;
}

/* A name has a type, a byte and NUL at least. */
static bool row_is_good(const struct dircache_row *row, size_t left)
{
	enum { NAME_SIZE_MIN = 3 };

	if (left < sizeof(*row) || row->path_len > ENTRY_PATH_MAX ||
		row->text_len > LISTING_TEXT_MAX || row->n_names > row->text_len / NAME_SIZE_MIN)
		return false;
	if (row_size(row) > left || (row->text_len && dircache_row_text(row)[row->text_len - 1]))
		return false;
	return strnlen(dircache_row_path(row), row->path_len + 1) == row->path_len;
}

static bool find_rows(struct dircache *cache)
{
	const struct cachefile *file = &cache->file;
	size_t at = 0, n = 0;

	for (; at < file->len; n++) {
		const struct dircache_row *row = (const void *)(file->data + at);
		if (n == file->n || !row_is_good(row, file->len - at))
			return false;
		if (n && strcmp(dircache_row_path(cache->rows[n - 1]), dircache_row_path(row)) >= 0)
			return false;
		cache->rows[n] = row;
		at += row_size(row);
	}
	cache->n = n;
	return n == file->n;
}

/* The number of rows in the file is not trusted. */
static bool index_rows(struct dircache *cache)
{
	if (cache->file.n > cache->file.len / sizeof(struct dircache_row))
		return false;
	cache->rows = mem_alloc((size_t)cache->file.n + 1, sizeof(*cache->rows));
	return find_rows(cache);
}

bool dircache_parse(struct dircache *cache, const void *data, size_t len)
{
	*cache = (struct dircache){0};
	if (!cachefile_parse(&cache->file, MAGIC, data, len))
		return false;
	if (index_rows(cache))
		return true;
	dircache_done(cache);
	return false;
}

void dircache_open(struct dircache *cache, const char *path)
{
	*cache = (struct dircache){0};
	cachefile_open(&cache->file, MAGIC, path);
	if (!index_rows(cache))
		dircache_done(cache);
}

void dircache_done(struct dircache *cache)
{
	if (!cache)
		return;
	free(cache->rows);
	cachefile_done(&cache->file);
	*cache = (struct dircache){0};
}

static int compare_path(const void *key, const void *item)
{
	return strcmp(key, dircache_row_path(*(const struct dircache_row *const *)item));
}

const struct dircache_row *dircache_find(const struct dircache *cache, const char *path)
{
	if (cache->n == 0)
		return NULL;
	const struct dircache_row *const *found =
		bsearch(path, cache->rows, cache->n, sizeof(*cache->rows), compare_path);
	return found ? *found : NULL;
}

bool dircache_matches(
	const struct dircache_row *row, const struct dircache_stat *stat, bool fold_git)
{
	return memcmp(&row->stat, stat, sizeof(*stat)) == 0 &&
	       !(row->flags & DIRCACHE_FOLD_GIT) == !fold_git;
}

struct dircache_row *dircache_row_new(struct arena *arena, const struct dircache_stat *stat,
	const char *path, size_t text_len, char **ret_text)
{
	size_t path_len = strlen(path);
	struct dircache_row *row = arena_alloc(arena, sizeof(*row) + path_len + 1 + text_len);

	*row = (struct dircache_row){
		.stat = *stat, .path_len = (uint32_t)path_len, .text_len = (uint32_t)text_len};
	memcpy(row + 1, path, path_len + 1);
	*ret_text = (char *)(row + 1) + path_len + 1;
	return row;
}

struct cachefile_writer *dircache_write(const char *path)
{
	return cachefile_write(path, MAGIC);
}

void dircache_add(struct cachefile_writer *writer, const struct dircache_row *row)
{
	cachefile_add(writer, row, sizeof(*row), row + 1, row->path_len + 1 + row->text_len);
}

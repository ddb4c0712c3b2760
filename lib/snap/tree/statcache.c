/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/tree/statcache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"

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

void listing_init(struct listing *listing)
{
	*listing = (struct listing){0};
	buf_init(&listing->text, LISTING_TEXT_MAX);
	listing->buffer = mem_grow(NULL, OS_NAMES_SIZE, 1);
}

void listing_done(struct listing *listing)
{
	vec_done(&listing->items);
	buf_done(&listing->text);
	free(listing->buffer);
}

static bool is_dot(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* DT_UNKNOWN: it is gone. */
static unsigned char statcache_type_of(int fd, const char *name)
{
	struct stat st;

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return DT_UNKNOWN;
	return (unsigned char)IFTODT(st.st_mode);
}

static void statcache_add_name(struct listing *listing, unsigned char type, const char *name)
{
	listing->has_gitignore |= strcmp(name, ".gitignore") == 0;
	listing->has_dlrunignore |= strcmp(name, ".dlrunignore") == 0;
	buf_addc(&listing->text, (char)type);
	buf_add(&listing->text, name, strlen(name) + 1);
}

static int statcache_by_path(const void *a, const void *b)
{
	const struct listing_item *x = a, *y = b;
	size_t len = x->len < y->len ? x->len : y->len;
	int d = memcmp(x->name, y->name, len);

	if (d)
		return d;
	int x_next = x->len > len ? (unsigned char)x->name[len] : x->type == DT_DIR ? '/' : 0;
	int y_next = y->len > len ? (unsigned char)y->name[len] : y->type == DT_DIR ? '/' : 0;
	return x_next - y_next;
}

/* The text moves while it grows, so that the names are looked up at its end. */
static void make_items(struct listing *listing)
{
	const char *at = listing->text.data, *end = at + listing->text.len;

	while (at < end) {
		struct listing_item *item = vec_push(&listing->items);
		item->type = (unsigned char)*at++;
		item->name = at;
		item->len = (uint32_t)strlen(at);
		at += item->len + 1;
	}
	vec_sort(&listing->items, statcache_by_path);
}

static bool statcache_is_name(const char *name, size_t len)
{
	return len > 0 && !is_dot(name) && strcmp(name, ".git") != 0 && !memchr(name, '/', len);
}

bool listing_take(struct listing *listing, const char *text, size_t len, size_t n)
{
	const char *at = text, *end = text + len;

	listing->items.n = 0;
	vec_reserve(&listing->items, n);
	for (; at < end && listing->items.n < n; listing->items.n++) {
		struct listing_item *item = &listing->items.v[listing->items.n];
		item->type = (unsigned char)*at++;
		item->name = at;
		item->len = (uint32_t)strnlen(at, (size_t)(end - at));
		at += item->len + 1;
		if (at > end || !statcache_is_name(item->name, item->len))
			return false;
	}
	return at == end && listing->items.n == n;
}

struct reading {
	struct listing *listing;
	int fd;
	bool fold_git;
};

static void statcache_take_name(void *ctx, const char *name, unsigned char type)
{
	const struct reading *reading = ctx;
	bool fold = reading->fold_git;

	if (is_dot(name))
		return;
	if (fold ? strcasecmp(name, ".git") == 0 : strcmp(name, ".git") == 0) {
		reading->listing->has_git = true;
		return;
	}
	if (type == DT_UNKNOWN)
		type = statcache_type_of(reading->fd, name);
	if (type != DT_UNKNOWN)
		statcache_add_name(reading->listing, type, name);
}

int listing_read(struct listing *listing, int fd, bool fold_git)
{
	struct reading reading = {.listing = listing, .fd = fd, .fold_git = fold_git};

	listing->has_git = listing->has_gitignore = listing->has_dlrunignore = false;
	listing->items.n = 0;
	buf_reset(&listing->text);
	int r = os_list_names(fd, listing->buffer, statcache_take_name, &reading);
	if (r < 0)
		return r;
	if (listing->text.full)
		return -EFBIG;
	make_items(listing);
	return 0;
}

#define DIRCACHE_MAGIC UINT64_C(0x0131737269646c64)

_Static_assert(sizeof(struct dircache_row) == 48, "layout of the file");

char *dircache_path(const char *statcache_path)
{
	AUTO_FREE char *dir = fs_dirname(statcache_path);

	return fs_join(dir, "dirs.v1");
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
	if (!cachefile_parse(&cache->file, DIRCACHE_MAGIC, data, len))
		return false;
	if (index_rows(cache))
		return true;
	dircache_done(cache);
	return false;
}

void dircache_open(struct dircache *cache, const char *path)
{
	*cache = (struct dircache){0};
	cachefile_open(&cache->file, DIRCACHE_MAGIC, path);
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

static int statcache_compare_path(const void *key, const void *item)
{
	return strcmp(key, dircache_row_path(*(const struct dircache_row *const *)item));
}

const struct dircache_row *dircache_find(const struct dircache *cache, const char *path)
{
	if (cache->n == 0)
		return NULL;
	const struct dircache_row *const *found =
		bsearch(path, cache->rows, cache->n, sizeof(*cache->rows), statcache_compare_path);
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
	return cachefile_write(path, DIRCACHE_MAGIC);
}

void dircache_add(struct cachefile_writer *writer, const struct dircache_row *row)
{
	cachefile_add(writer, row, sizeof(*row), row + 1, row->path_len + 1 + row->text_len);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/image/plan.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"

enum {
	MAGIC_SIZE = 8,
	HEAD_SIZE = MAGIC_SIZE + SHA256_SIZE,
	LAYER_SIZE = 3 * SHA256_SIZE + 8,
	ENTRY_MIN = 1 + 8 + SHA256_SIZE + 2, /* kind, size, digest, a path of one byte, NUL */
	RECENT_SIZE_MAX = 64 * 1024,
};

static const char full_magic[] = "dlplan1\n", recent_magic[] = "dlrece1\n";

/*
 * Reading
 */

struct cursor {
	const uint8_t *at, *end;
};

static size_t left(const struct cursor *cursor)
{
	return (size_t)(cursor->end - cursor->at);
}

/* The next size bytes, or NULL. */
static const uint8_t *plan_take(struct cursor *cursor, size_t size)
{
	const uint8_t *start = cursor->at;

	if (left(cursor) < size)
		return NULL;
	cursor->at += size;
	return start;
}

static const char *take_string(struct cursor *cursor, size_t *ret_len)
{
	const char *start = (const char *)cursor->at;
	const uint8_t *nul = memchr(cursor->at, 0, left(cursor));

	if (!nul)
		return NULL;
	*ret_len = (size_t)(nul - cursor->at);
	cursor->at = nul + 1;
	return start;
}

static bool plan_take_layer(struct cursor *cursor, struct plan_layer *ret)
{
	const uint8_t *data = plan_take(cursor, LAYER_SIZE);

	if (!data)
		return false;
	memcpy(ret->key, data, SHA256_SIZE);
	memcpy(ret->diff_id, data + SHA256_SIZE, SHA256_SIZE);
	memcpy(ret->digest, data + (size_t)2 * SHA256_SIZE, SHA256_SIZE);
	ret->size = get_le64(data + (size_t)3 * SHA256_SIZE);
	return ret->size <= INT64_MAX;
}

/* Relative, and no component is empty, "." or "..". */
static bool plan_is_plain(const char *path, size_t len)
{
	if (len == 0 || len > ENTRY_PATH_MAX || path[len - 1] == '/')
		return false;
	for (const char *part = path; part; part = strchr(part, '/')) {
		part += part != path;
		if (*part == '/' || *part == '\0')
			return false;
		if (part[0] == '.' && (part[1] == '/' || part[1] == '\0'))
			return false;
		if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == '\0'))
			return false;
	}
	return true;
}

static bool take_entry(struct cursor *cursor, const struct entry *before, struct entry *ret)
{
	const uint8_t *fixed = plan_take(cursor, 1 + 8 + SHA256_SIZE);
	size_t len = 0, target_len = 0;

	if (!fixed || !memchr("fxl", fixed[0], 3))
		return false;
	ret->kind = fixed[0] == 'l' ? ENTRY_LINK : ENTRY_FILE;
	ret->exec = fixed[0] == 'x';
	ret->size = get_le64(fixed + 1);
	memcpy(ret->sha256, fixed + 9, SHA256_SIZE);
	ret->path = take_string(cursor, &len);
	if (!ret->path || !plan_is_plain(ret->path, len))
		return false;
	if (ret->kind == ENTRY_LINK && !(ret->target = take_string(cursor, &target_len)))
		return false;
	return !before || strcmp(before->path, ret->path) < 0;
}

bool plan_parse_full(const uint8_t *data, size_t size, struct plan *ret)
{
	struct cursor cursor = {data, data + size};
	const uint8_t *spec = plan_take(&cursor, SHA256_SIZE);
	struct plan_layer full;

	if (!spec || !plan_take_layer(&cursor, &full))
		return false;
	const uint8_t *count = plan_take(&cursor, 8);
	if (!count || get_le64(count) > left(&cursor) / ENTRY_MIN)
		return false;
	size_t n = (size_t)get_le64(count);
	AUTO_FREE struct entry *entries = mem_alloc(n, sizeof(*entries));
	for (size_t i = 0; i < n; i++)
		if (!take_entry(&cursor, i ? &entries[i - 1] : NULL, &entries[i]))
			return false;
	if (left(&cursor) > 0)
		return false;
	memcpy(ret->spec, spec, SHA256_SIZE);
	ret->full = full;
	ret->entries = TAKE(entries);
	ret->n_entries = n;
	ret->has_full = true;
	return true;
}

bool plan_parse_recent(const uint8_t *data, size_t size, struct plan *ret)
{
	struct cursor cursor = {data, data + size};
	struct plan_layer recent[PLAN_RECENT_MAX] = {0};
	size_t n = 0;

	while (left(&cursor) > 0)
		if (n == PLAN_RECENT_MAX || !plan_take_layer(&cursor, &recent[n++]))
			return false;
	memcpy(ret->recent, recent, n * sizeof(*recent));
	ret->n_recent = n;
	return true;
}

/* The content behind the checksum of a file, or NULL. */
static const uint8_t *plan_check_file(const uint8_t *data, size_t size, const char *magic)
{
	uint8_t sha256[SHA256_SIZE];

	if (size < HEAD_SIZE || memcmp(data, magic, MAGIC_SIZE) != 0)
		return NULL;
	digest_sha256(data + HEAD_SIZE, size - HEAD_SIZE, sha256);
	return memcmp(data + MAGIC_SIZE, sha256, SHA256_SIZE) == 0 ? data + HEAD_SIZE : NULL;
}

static void *plan_map_file(const char *path, size_t *ret_size)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < HEAD_SIZE ||
		st.st_size > PLAN_SIZE_MAX)
		return NULL;
	*ret_size = (size_t)st.st_size;
	return fs_map(fd, *ret_size);
}

static char *recent_path(const char *path)
{
	return mem_printf("%s.recent", path);
}

static void load_recent(const char *path, struct plan *plan)
{
	AUTO_FREE char *name = recent_path(path);
	AUTO_BUF struct buf buf = {0};

	if (fs_read(name, RECENT_SIZE_MAX, &buf, NULL, NULL) < 0)
		return;
	const uint8_t *content = plan_check_file((const uint8_t *)buf.data, buf.len, recent_magic);
	if (!content || !plan_parse_recent(content, buf.len - HEAD_SIZE, plan))
		return;
	memcpy(plan->saved, plan->recent, sizeof(plan->saved));
	plan->n_saved = plan->n_recent;
}

void plan_load(const char *path, struct plan *ret)
{
	struct plan plan = {0};

	plan.map = plan_map_file(path, &plan.map_size);
	const uint8_t *content =
		plan.map ? plan_check_file(plan.map, plan.map_size, full_magic) : NULL;
	if (content)
		plan_parse_full(content, plan.map_size - HEAD_SIZE, &plan);
	load_recent(path, &plan);
	*ret = plan;
}

void plan_done(struct plan *plan)
{
	if (!plan)
		return;
	free(plan->entries);
	if (plan->map)
		munmap(plan->map, plan->map_size);
	*plan = (struct plan){0};
}

/*
 * Layers
 */

const struct plan_layer *plan_find(const struct plan *plan, const uint8_t key[static SHA256_SIZE])
{
	if (plan->has_full && memcmp(plan->full.key, key, SHA256_SIZE) == 0)
		return &plan->full;
	for (size_t i = 0; i < plan->n_recent; i++)
		if (memcmp(plan->recent[i].key, key, SHA256_SIZE) == 0)
			return &plan->recent[i];
	return NULL;
}

void plan_remember(struct plan *plan, const struct plan_layer *layer)
{
	struct plan_layer copy = *layer;
	size_t at = 0;

	while (at < plan->n_recent && memcmp(plan->recent[at].key, copy.key, SHA256_SIZE) != 0)
		at++;
	if (at == PLAN_RECENT_MAX)
		at--;
	else if (at == plan->n_recent)
		plan->n_recent++;
	memmove(&plan->recent[1], &plan->recent[0], at * sizeof(copy));
	plan->recent[0] = copy;
}

/*
 * Writing
 */

static void plan_add_layer(struct buf *out, const struct plan_layer *layer)
{
	uint8_t size[8];

	put_le64(size, layer->size);
	buf_add(out, layer->key, SHA256_SIZE);
	buf_add(out, layer->diff_id, SHA256_SIZE);
	buf_add(out, layer->digest, SHA256_SIZE);
	buf_add(out, size, sizeof(size));
}

static void plan_add_entry(struct buf *out, const struct entry *entry)
{
	uint8_t fixed[1 + 8 + SHA256_SIZE];

	fixed[0] = entry->kind == ENTRY_LINK ? 'l' : entry->exec ? 'x' : 'f';
	put_le64(fixed + 1, entry->size);
	memcpy(fixed + 9, entry->sha256, SHA256_SIZE);
	buf_add(out, fixed, sizeof(fixed));
	buf_add(out, entry->path, strlen(entry->path) + 1);
	if (entry->kind == ENTRY_LINK)
		buf_add(out, entry->target, strlen(entry->target) + 1);
}

static void plan_begin_file(struct buf *out, size_t max, const char *magic)
{
	static const uint8_t nothing[SHA256_SIZE];

	buf_init(out, max);
	buf_add(out, magic, MAGIC_SIZE);
	buf_add(out, nothing, SHA256_SIZE);
}

static int plan_write_file(const char *path, struct buf *out, struct err *err)
{
	uint8_t sha256[SHA256_SIZE];
	int r = buf_check(out, path, err);

	if (r < 0)
		return r;
	digest_sha256(out->data + HEAD_SIZE, out->len - HEAD_SIZE, sha256);
	memcpy(out->data + MAGIC_SIZE, sha256, SHA256_SIZE);
	return fs_replace(path, out->data, out->len, 0600, FS_SYNC_NONE, err);
}

int plan_save_full(const char *path, const uint8_t spec[static SHA256_SIZE],
	const struct plan_layer *full, const struct entry *const *entries, size_t n_entries,
	struct err *err)
{
	AUTO_BUF struct buf out;
	uint8_t count[8];

	plan_begin_file(&out, PLAN_SIZE_MAX, full_magic);
	buf_add(&out, spec, SHA256_SIZE);
	plan_add_layer(&out, full);
	put_le64(count, n_entries);
	buf_add(&out, count, sizeof(count));
	for (size_t i = 0; i < n_entries; i++)
		plan_add_entry(&out, entries[i]);
	return plan_write_file(path, &out, err);
}

int plan_save_recent(const char *path, struct plan *plan, struct err *err)
{
	AUTO_FREE char *name = recent_path(path);
	AUTO_BUF struct buf out = {0};

	if (plan->n_recent == plan->n_saved &&
		memcmp(plan->recent, plan->saved, plan->n_saved * sizeof(plan->saved[0])) == 0)
		return 0;
	plan_begin_file(&out, RECENT_SIZE_MAX, recent_magic);
	for (size_t i = 0; i < plan->n_recent; i++)
		plan_add_layer(&out, &plan->recent[i]);
	int r = plan_write_file(name, &out, err);
	if (r < 0)
		return r;
	memcpy(plan->saved, plan->recent, sizeof(plan->saved));
	plan->n_saved = plan->n_recent;
	return 0;
}

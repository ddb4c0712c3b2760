/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/git/gitindex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/loop/par.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"

void tracked_done(struct tracked *tracked)
{
	if (!tracked)
		return;
	vec_done(tracked);
	arena_done(&tracked->arena);
}

static int gitindex_compare_path(const void *key, const void *item)
{
	const struct tracked_path *entry = item;

	return strcmp(key, entry->path);
}

const struct tracked_path *tracked_find(const struct tracked *tracked, const char *path)
{
	if (tracked->n == 0)
		return NULL;
	return bsearch(path, tracked->v, tracked->n, sizeof(*tracked->v), gitindex_compare_path);
}

void tracked_cursor_init(struct tracked_cursor *cursor, const struct tracked *tracked,
	const char *dir, size_t first, size_t n)
{
	*cursor = (struct tracked_cursor){
		.tracked = tracked,
		.first = first,
		.end = first + n,
		.next = first,
		.skip = *dir ? strlen(dir) + 1 : 0,
	};
}

/* Whether the entry at this position stands before name with the byte tail behind it. */
static bool stands_before(const struct tracked_cursor *cursor, size_t at, const char *name,
	size_t len, unsigned char tail)
{
	return str_is_before(cursor->tracked->v[at].path + cursor->skip, name, len, tail);
}

/* The first position from `from` on whose entry does not. Doubling steps find near ones fast and
 * skip directories that are gone. */
static size_t seek(
	const struct tracked_cursor *cursor, size_t from, const char *name, unsigned char tail)
{
	size_t step = 1, to = from, len = strlen(name);

	while (to < cursor->end && stands_before(cursor, to, name, len, tail)) {
		from = to + 1;
		to = cursor->end - to > step ? to + step : cursor->end;
		step *= 2;
	}
	while (from < to) {
		size_t mid = from + (to - from) / 2;
		if (stands_before(cursor, mid, name, len, tail))
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

static const struct tracked_path *entry_at(
	const struct tracked_cursor *cursor, size_t at, const char *name)
{
	if (at == cursor->end)
		return NULL;
	const struct tracked_path *entry = &cursor->tracked->v[at];
	return strcmp(entry->path + cursor->skip, name) == 0 ? entry : NULL;
}

const struct tracked_path *tracked_cursor_file(struct tracked_cursor *cursor, const char *name)
{
	/* Mostly the entry after that of the previous name. */
	for (size_t i = 0; i < 2 && cursor->next + i < cursor->end; i++) {
		const struct tracked_path *entry = entry_at(cursor, cursor->next + i, name);
		if (entry) {
			cursor->next += i;
			return entry;
		}
	}
	if (cursor->next == cursor->end)
		return NULL;
	cursor->next = seek(cursor, cursor->next, name, '\0');
	return entry_at(cursor, cursor->next, name);
}

size_t tracked_cursor_dir(struct tracked_cursor *cursor, const char *name, size_t *ret_n)
{
	size_t first = seek(cursor, cursor->next, name, '/');

	cursor->next = seek(cursor, first, name, '/' + 1);
	*ret_n = cursor->next - first;
	return first;
}

bool tracked_cursor_is_gitlink(const struct tracked_cursor *cursor, const char *name)
{
	const struct tracked_path *entry =
		entry_at(cursor, seek(cursor, cursor->first, name, '\0'), name);

	return entry && entry->mode == TRACKED_MODE_GITLINK;
}

enum {
	HEADER_SIZE = 12,
	STAT_SIZE = 40, /* ten numbers of 32 bits in front of the object id */
	FLAG_ASSUME_VALID = 0x8000,
	FLAG_EXTENDED = 0x4000,
	FLAG_STAGES = 0x3000,
	FLAG_SKIP_WORKTREE = 0x4000,
	FLAG_INTENT_TO_ADD = 0x2000,
	MODE_TREE = 0040000,
	EXTENSION_HEADER = 8,
	TREE_HEADER_MAX = 64,
};

struct reader {
	const uint8_t *p, *end;
	size_t oid_size;
	uint32_t version, n_entries;
	struct gitindex *index;
	struct buf path;       /* version 4 builds a path from the one before */
	const char *last_path; /* NULL: none yet */
	unsigned last_stage;
};

static uint16_t get_be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static int gitindex_fail(struct err *err, const char *what)
{
	return err_set(err, E_SNAPSHOT_REPO, "the index of the repository %s", what);
}

static int gitindex_fail_damaged(struct err *err)
{
	return gitindex_fail(err, "is damaged");
}

static bool is_dot_git(const char *name, size_t len)
{
	return len == 4 && strncasecmp(name, ".git", 4) == 0;
}

bool gitindex_path_is_valid(const char *path)
{
	for (;;) {
		const char *slash = strchr(path, '/');
		size_t len = slash ? (size_t)(slash - path) : strlen(path);

		if (len == 0)
			return false;
		if (path[0] == '.' &&
			(len == 1 || (len == 2 && path[1] == '.') || is_dot_git(path, len)))
			return false;
		if (!slash)
			return true;
		path = slash + 1;
	}
}

/* varint as of pack offsets (gitformat-pack(5)). */
static bool get_varint(struct reader *reader, size_t *ret)
{
	size_t value = 0;

	for (int i = 0; i < 5; i++) {
		if (reader->p == reader->end)
			return false;
		uint8_t c = *reader->p++;
		value = (value << 7) + (c & 0x7f);
		if (!(c & 0x80)) {
			*ret = value;
			return true;
		}
		value++;
	}
	return false;
}

/* Version 4 gives the number of bytes of the previous path that are replaced by what follows. */
static bool unfold(struct reader *reader, size_t strip, const char *tail, size_t len)
{
	if (strip > reader->path.len)
		return false;
	buf_truncate(&reader->path, reader->path.len - strip);
	buf_add(&reader->path, tail, len);
	return !reader->path.full;
}

/* The path at p, kept in the arena; NULL if it is not terminated. */
static const char *gitindex_get_path(struct reader *reader)
{
	struct arena *arena = &reader->index->tracked.arena;
	size_t strip = 0;

	if (reader->version == 4 && !get_varint(reader, &strip))
		return NULL;
	const char *path = (const char *)reader->p;
	const uint8_t *nul = memchr(reader->p, '\0', (size_t)(reader->end - reader->p));
	if (!nul)
		return NULL;
	size_t len = (size_t)(nul - reader->p);
	reader->p = nul + 1;
	if (reader->version == 4) {
		if (!unfold(reader, strip, path, len))
			return NULL;
		path = reader->path.data;
		len = reader->path.len;
	}
	return arena_strndup(arena, path, len);
}

/* Compare path with the one before it, as strcmp. Mostly both are in the same directory, which was
 * checked then. ret_known: where the first component that differs begins. */
static int compare_to_last(const struct reader *reader, const char *path, size_t *ret_known)
{
	const char *last = reader->last_path;
	size_t at = 0, known = 0;

	*ret_known = 0;
	if (!last)
		return -1;
	for (; path[at] && path[at] == last[at]; at++)
		if (path[at] == '/')
			known = at + 1;
	*ret_known = known;
	return (unsigned char)last[at] - (unsigned char)path[at];
}

/* Record another stage of the previous path, in a conflict. */
static bool add_stage(struct reader *reader, unsigned stage)
{
	struct tracked *tracked = &reader->index->tracked;

	tracked->v[tracked->n - 1].conflict = true;
	if (stage <= reader->last_stage)
		return false;
	reader->last_stage = stage;
	return true;
}

static void gitindex_add_entry(struct reader *reader, const char *path, const uint8_t *entry,
	unsigned flags, unsigned more)
{
	struct gitindex *index = reader->index;
	struct tracked_path *added = vec_push(&index->tracked);
	struct gitindex_stat *stat = &index->stats[index->tracked.n - 1];

	added->path = path;
	added->mode = get_be32(entry + 24);
	added->conflict = flags & FLAG_STAGES;
	stat->ctime_s = get_be32(entry);
	stat->ctime_ns = get_be32(entry + 4);
	stat->mtime_s = get_be32(entry + 8);
	stat->mtime_ns = get_be32(entry + 12);
	stat->ino = get_be32(entry + 20);
	stat->size = get_be32(entry + 36);
	stat->assume_valid = flags & FLAG_ASSUME_VALID;
	stat->skip_worktree = more & FLAG_SKIP_WORKTREE;
	stat->intent_to_add = more & FLAG_INTENT_TO_ADD;
	if (!stat->intent_to_add)
		memcpy(added->oid, entry + STAT_SIZE, SHA1_SIZE);
	reader->last_path = path;
	reader->last_stage = (flags & FLAG_STAGES) >> 12;
}

/* Versions 2 and 3 fill each entry up to a multiple of eight with one to eight NULs. */
static bool skip_padding(struct reader *reader, const uint8_t *entry)
{
	if (reader->version == 4)
		return true;
	size_t len = (size_t)(reader->p - 1 - entry);
	size_t padded = (len + 8) & ~(size_t)7;
	if (padded > (size_t)(reader->end - entry))
		return false;
	reader->p = entry + padded;
	return true;
}

static int gitindex_read_entry(struct reader *reader, struct err *err)
{
	const uint8_t *entry = reader->p;
	size_t fixed = STAT_SIZE + reader->oid_size + 2;
	unsigned more = 0;

	if ((size_t)(reader->end - entry) < fixed + 2)
		return gitindex_fail_damaged(err);
	unsigned flags = get_be16(entry + fixed - 2);
	if (flags & FLAG_EXTENDED) {
		more = get_be16(entry + fixed);
		fixed += 2;
	}
	if (get_be32(entry + 24) == MODE_TREE)
		return gitindex_fail(err, "is sparse");
	reader->p = entry + fixed;
	size_t known;
	const char *path = gitindex_get_path(reader);
	/* An entry without a name replaces one of the shared index. */
	if (path && !*path)
		return gitindex_fail(err, "is split");
	if (!path || !skip_padding(reader, entry))
		return gitindex_fail_damaged(err);
	int order = compare_to_last(reader, path, &known);
	if (!gitindex_path_is_valid(path + known))
		return gitindex_fail_damaged(err);
	if (order > 0 || (order == 0 && !add_stage(reader, (flags & FLAG_STAGES) >> 12)))
		return gitindex_fail_damaged(err);
	if (order < 0)
		gitindex_add_entry(reader, path, entry, flags, more);
	return 0;
}

/* The cache of tree objects begins with the root: NUL, how many entries the tree covers (-1: not
 * valid), how many subtrees, line feed, object id. */
static void read_tree(struct reader *reader, const uint8_t *data, size_t len)
{
	char head[TREE_HEADER_MAX];
	size_t n = 0;

	if (len < 2 || data[0] != '\0' || reader->oid_size != SHA1_SIZE)
		return;
	while (n + 1 < len && n + 1 < sizeof(head) && data[n + 1] != '\n') {
		head[n] = (char)data[n + 1];
		n++;
	}
	head[n] = '\0';
	if (n + 2 > len || head[0] == '-' || len - n - 2 < SHA1_SIZE)
		return;
	memcpy(reader->index->tree, data + n + 2, SHA1_SIZE);
	reader->index->has_tree = true;
}

/* Extensions whose name begins with a small letter must be understood. */
static int read_extensions(struct reader *reader, struct err *err)
{
	while (reader->p < reader->end) {
		const uint8_t *head = reader->p;
		size_t left = (size_t)(reader->end - head);

		if (left < EXTENSION_HEADER || get_be32(head + 4) > left - EXTENSION_HEADER)
			return gitindex_fail_damaged(err);
		size_t len = get_be32(head + 4);
		if (memcmp(head, "link", 4) == 0)
			return gitindex_fail(err, "is split");
		if (memcmp(head, "sdir", 4) == 0)
			return gitindex_fail(err, "is sparse");
		if (head[0] < 'A' || head[0] > 'Z')
			return gitindex_fail(err, "has an extension that dlrun does not know");
		if (memcmp(head, "TREE", 4) == 0)
			read_tree(reader, head + EXTENSION_HEADER, len);
		reader->p = head + EXTENSION_HEADER + len;
	}
	return 0;
}

/* The checksum of the data, which end before it; computed beside the parser, which takes no less
 * long. */
struct checksum {
	const uint8_t *data;
	size_t len;
	bool holds;
	struct par_task *task;
};

static void verify(void *ctx)
{
	static const uint8_t none[SHA1_SIZE];
	AUTO_DIGEST struct digest digest = {0};
	struct checksum *checksum = ctx;
	const uint8_t *want = checksum->data + checksum->len;
	uint8_t sha1[SHA1_SIZE];

	checksum->holds = memcmp(want, none, SHA1_SIZE) == 0;
	if (checksum->holds)
		return;
	digest_begin(&digest, DIGEST_SHA1);
	digest_add(&digest, checksum->data, checksum->len);
	digest_end(&digest, sha1);
	checksum->holds = memcmp(want, sha1, SHA1_SIZE) == 0;
}

static void checksum_begin(
	struct checksum *checksum, const struct reader *reader, const uint8_t *data, size_t len)
{
	enum { BESIDE_MIN = 256 * 1024 };

	*checksum = (struct checksum){.data = data, .len = len - reader->oid_size, .holds = true};
	if (reader->oid_size != SHA1_SIZE)
		return;
	if (len >= BESIDE_MIN)
		checksum->task = par_start(verify, checksum);
	else
		verify(checksum);
}

static bool checksum_end(struct checksum *checksum)
{
	par_wait(checksum->task);
	checksum->task = NULL;
	return checksum->holds;
}

static int gitindex_read_header(
	struct reader *reader, const uint8_t *data, size_t len, struct err *err)
{
	if (len < HEADER_SIZE + reader->oid_size || memcmp(data, "DIRC", 4) != 0)
		return gitindex_fail_damaged(err);
	len -= reader->oid_size;
	reader->version = get_be32(data + 4);
	reader->n_entries = get_be32(data + 8);
	if (reader->version < 2 || reader->version > 4)
		return gitindex_fail(err, "has a version that dlrun does not know");
	if (reader->n_entries > len / (STAT_SIZE + reader->oid_size))
		return gitindex_fail_damaged(err);
	reader->p = data + HEADER_SIZE;
	reader->end = data + len;
	return 0;
}

static int gitindex_read_all(struct reader *reader, struct err *err)
{
	struct gitindex *index = reader->index;
	size_t n = reader->n_entries;

	vec_reserve(&index->tracked, n);
	index->stats = mem_alloc(n ? n : 1, sizeof(*index->stats));
	for (size_t i = 0; i < n; i++) {
		int rc = gitindex_read_entry(reader, err);
		if (rc < 0)
			return rc;
	}
	return read_extensions(reader, err);
}

int gitindex_parse(
	const void *data, size_t len, size_t oid_size, struct gitindex *ret, struct err *err)
{
	enum { PATH_MAX_BYTES = 1 << 16 };
	struct gitindex index = {0};
	struct reader reader = {.oid_size = oid_size, .index = &index};
	struct checksum checksum;

	if (len == 0) {
		*ret = index;
		return 0;
	}
	int rc = gitindex_read_header(&reader, data, len, err);
	if (rc < 0)
		return rc;
	checksum_begin(&checksum, &reader, data, len);
	buf_init(&reader.path, PATH_MAX_BYTES);
	rc = gitindex_read_all(&reader, err);
	buf_done(&reader.path);
	if (!checksum_end(&checksum)) {
		err_clear(err);
		rc = gitindex_fail_damaged(err);
	}
	if (rc < 0) {
		gitindex_done(&index);
		return rc;
	}
	*ret = index;
	return 0;
}

void gitindex_done(struct gitindex *index)
{
	if (!index)
		return;
	tracked_done(&index->tracked);
	free(index->stats);
	*index = (struct gitindex){0};
}

enum { OBJECT_MAX = 1 << 30 };

/* The length of the directory of path with its slash; 0 at the root. */
static size_t gitindex_dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) : 0;
}

static void gitindex_open_dir(struct gittree *tree, size_t parent, size_t item, size_t path_len)
{
	struct gittree_dir *dir = vec_push(tree);

	dir->first = item;
	dir->parent = parent;
	dir->path_len = path_len;
}

/* All directories that end before item, up to the one that still holds it. */
static size_t close_dirs(struct gittree *tree, size_t dir, size_t item)
{
	const char *path = item < tree->n_items ? tree->items[item].path : NULL;

	for (;;) {
		struct gittree_dir *at = &tree->v[dir];
		const char *own = at->path_len ? tree->items[at->first].path : "";

		if (path && (at->path_len == 0 || (strncmp(path, own, at->path_len) == 0 &&
							  path[at->path_len] == '/')))
			return dir;
		at->end = item;
		at->next = tree->n;
		if (dir == 0)
			return 0;
		dir = at->parent;
	}
}

static void find_dirs(struct gittree *tree)
{
	size_t dir = 0;

	gitindex_open_dir(tree, 0, 0, 0);
	for (size_t i = 0; i < tree->n_items; i++) {
		const char *path = tree->items[i].path;
		size_t len = gitindex_dir_len(path);

		dir = close_dirs(tree, dir, i);
		while (tree->v[dir].path_len < len) {
			size_t from = tree->v[dir].path_len;
			const char *slash = strchr(path + from + (from > 0), '/');
			gitindex_open_dir(tree, dir, i, (size_t)(slash - path));
			dir = tree->n - 1;
		}
	}
	close_dirs(tree, dir, tree->n_items);
}

static size_t put_mode(char *out, uint32_t mode)
{
	size_t n = mode == 0040000 ? 5 : 6;

	for (size_t i = n; i-- > 0; mode >>= 3)
		out[i] = (char)('0' + (mode & 7));
	out[n] = ' ';
	return n + 1;
}

static void gitindex_add_item(struct buf *buf, uint32_t mode, const char *name, size_t len,
	const uint8_t oid[static SHA1_SIZE])
{
	enum { MODE_MAX = 7 };
	char *out = buf_reserve(buf, MODE_MAX + len + 1 + SHA1_SIZE);

	if (!out)
		return;
	char *at = out + put_mode(out, mode);
	memcpy(at, name, len);
	at[len] = '\0';
	memcpy(at + len + 1, oid, SHA1_SIZE);
	buf_added(buf, (size_t)(at - out) + len + 1 + SHA1_SIZE);
}

int gittree_next(const struct gittree *tree, size_t i, struct gittree_walk *walk, size_t *ret_item,
	size_t *ret_sub)
{
	const struct gittree_dir *dir = &tree->v[i];

	if (!walk->started)
		*walk = (struct gittree_walk){.started = true, .item = dir->first, .sub = i + 1};
	if (walk->item >= dir->end)
		return 0;
	*ret_item = *ret_sub = SIZE_MAX;
	if (walk->sub < dir->next && tree->v[walk->sub].first == walk->item) {
		*ret_sub = walk->sub;
		walk->item = tree->v[walk->sub].end;
		walk->sub = tree->v[walk->sub].next;
	} else {
		*ret_item = walk->item++;
	}
	return 1;
}

const struct buf *gittree_object(struct gittree *tree, size_t i)
{
	const struct gittree_dir *dir = &tree->v[i];
	size_t skip = dir->path_len ? dir->path_len + 1 : 0, item_at, sub_at;
	struct gittree_walk walk = {0};

	buf_reset(&tree->buf);
	while (gittree_next(tree, i, &walk, &item_at, &sub_at)) {
		if (sub_at != SIZE_MAX) {
			const struct gittree_dir *sub = &tree->v[sub_at];
			const char *path = tree->items[sub->first].path;
			gitindex_add_item(
				&tree->buf, 0040000, path + skip, sub->path_len - skip, sub->oid);
		} else {
			const struct gittree_item *item = &tree->items[item_at];
			const char *name = item->path + skip;
			gitindex_add_item(&tree->buf, item->mode, name, strlen(name), item->oid);
		}
	}
	return &tree->buf;
}

void gittree_init(struct gittree *tree, const struct gittree_item *items, size_t n_items)
{
	*tree = (struct gittree){.items = items, .n_items = n_items};
	buf_init(&tree->buf, OBJECT_MAX);
	find_dirs(tree);
	for (size_t i = tree->n; i-- > 0;) {
		const struct buf *object = gittree_object(tree, i);
		gittree_object_id("tree", object->data, object->len, tree->v[i].oid);
	}
}

void gittree_done(struct gittree *tree)
{
	if (!tree)
		return;
	vec_done(tree);
	buf_done(&tree->buf);
}

void gittree_object_id(
	const char *type, const void *data, size_t len, uint8_t out[static SHA1_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	char head[64];
	int n = snprintf(head, sizeof(head), "%s %zu", type, len);

	digest_begin(&digest, DIGEST_SHA1);
	digest_add(&digest, head, (size_t)n + 1);
	digest_add(&digest, data, len);
	digest_end(&digest, out);
}

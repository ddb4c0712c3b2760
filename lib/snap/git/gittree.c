/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "snap/git/gittree.h"

enum { OBJECT_MAX = 1 << 30 };

/* The length of the directory of path with its slash; 0 at the root. */
static size_t dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) : 0;
}

static void open_dir(struct gittree *tree, size_t parent, size_t item, size_t path_len)
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

	open_dir(tree, 0, 0, 0);
	for (size_t i = 0; i < tree->n_items; i++) {
		const char *path = tree->items[i].path;
		size_t len = dir_len(path);

		dir = close_dirs(tree, dir, i);
		while (tree->v[dir].path_len < len) {
			size_t from = tree->v[dir].path_len;
			const char *slash = strchr(path + from + (from > 0), '/');
			open_dir(tree, dir, i, (size_t)(slash - path));
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

static void add_item(struct buf *buf, uint32_t mode, const char *name, size_t len,
	const uint8_t oid[static SHA1_SIZE])
{
	enum { MODE_MAX = 7 };
	char *out = buf_room(buf, MODE_MAX + len + 1 + SHA1_SIZE);

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
			add_item(&tree->buf, 0040000, path + skip, sub->path_len - skip, sub->oid);
		} else {
			const struct gittree_item *item = &tree->items[item_at];
			const char *name = item->path + skip;
			add_item(&tree->buf, item->mode, name, strlen(name), item->oid);
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
		git_object_id("tree", object->data, object->len, tree->v[i].oid);
	}
}

void gittree_done(struct gittree *tree)
{
	if (!tree)
		return;
	vec_done(tree);
	buf_done(&tree->buf);
}

void git_object_id(const char *type, const void *data, size_t len, uint8_t out[static SHA1_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	char head[64];
	int n = snprintf(head, sizeof(head), "%s %zu", type, len);

	digest_begin(&digest, DIGEST_SHA1);
	digest_add(&digest, head, (size_t)n + 1);
	digest_add(&digest, data, len);
	digest_end(&digest, out);
}

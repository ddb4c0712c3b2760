/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tree objects of git from a sorted list of paths (gitformat-pack(5), "tree"), without a
 * repository: an engine. Directories come before what is in them.
 */
#ifndef DLRUN_SNAP_GIT_GITTREE_H
#define DLRUN_SNAP_GIT_GITTREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/vec.h"

struct gittree_item {
	const char *path;
	const uint8_t *oid; /* SHA1_SIZE bytes */
	uint32_t mode;      /* 0100644, 0100755, 0120000 or 0160000 */
};

struct gittree_dir {
	size_t first, end; /* its items, those of its subdirectories included */
	size_t parent;     /* its position, that of the root for the root */
	size_t next;       /* the first directory that is not below it */
	size_t path_len;   /* its path is that much of its first item's path, 0 for the root */
	uint8_t oid[SHA1_SIZE];
};

struct gittree {
	/* Not owned; sorted by the bytes of path, none twice, none the directory of another. */
	const struct gittree_item *items;
	size_t n_items;
	struct gittree_dir *v; /* v[0] is the root */
	size_t n, cap;
	struct buf buf; /* of one object */
};

/* Find the directories and compute the id of each. */
void gittree_init(struct gittree *tree, const struct gittree_item *items, size_t n_items);
void gittree_done(struct gittree *tree);
/* The content of the tree object of v[i]; valid until the next call. */
const struct buf *gittree_object(struct gittree *tree, size_t i);

/* Iterate over the direct members of directory v[i], in order: 1 with either ret_item (the position
 * of an item) or ret_sub (of a directory) set and the other SIZE_MAX; 0 at the end. Start with a
 * zero walk. */
struct gittree_walk {
	bool started;
	size_t item, sub;
};
int gittree_next(const struct gittree *tree, size_t i, struct gittree_walk *walk, size_t *ret_item,
	size_t *ret_sub);

/* The id of an object: type is "blob", "tree" or "commit". */
void git_object_id(const char *type, const void *data, size_t len, uint8_t out[static SHA1_SIZE]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of a layer that is being read: which paths it made, and what of the layers below it is
 * gone. Shared by unpacking to a directory and to a list, so that both take and refuse the same.
 * An engine.
 *
 * A member is taken in two steps: layer_tree_enter its path, layer_tree_make it.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_TREE_H
#define DLRUN_OCI_LAYER_LAYER_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/arena.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/map.h"

enum { LAYER_TREE_BYTES_MAX = 256 << 20 };

enum layer_node_kind {
	LAYER_NODE_NONE,
	LAYER_NODE_DIR,
	LAYER_NODE_LEAF, /* a file or link */
};

struct layer_node {
	enum layer_node_kind kind; /* NONE: only the marks count */
	bool gone;                 /* nothing of lower layers is left at or below the path */
	bool emptied;              /* … below the path */
	uint64_t made;             /* when: 1, 2, … */
	struct entry *entry;       /* the user's */
};

/* Zero is an empty tree. Paths are relative; "" is the workdir. */
struct layer_tree {
	struct map nodes;
	struct arena arena; /* of the nodes; users may add to it */
	struct layer_node root;
	size_t bytes; /* of nodes and names */
	uint64_t clock;
	char dir[ENTRY_PATH_MAX + 1]; /* entered last */
	uint64_t dir_made;
	bool in_dir; /* nothing happened since that could have removed it */
};

void layer_tree_done(struct layer_tree *tree);
#define AUTO_LAYER_TREE AUTO(layer_tree_done)

/* Called for each directory that is new on the way to a path, the highest first. */
typedef int layer_tree_dir_fn(void *ctx, const char *dir, struct err *err);

/* Make the directories above path (at most 4,095 bytes). E_IMAGE if one of them is a file or link
 * of this layer; E_DATA_LIMIT over LAYER_TREE_BYTES_MAX. */
int layer_tree_enter(struct layer_tree *tree, const char *path, layer_tree_dir_fn *new_dir,
	void *ctx, struct err *err);
/* Kind of this layer's entry at path, which was entered last. */
enum layer_node_kind layer_tree_here(const struct layer_tree *tree, const char *path);
/* The layer makes path, which was entered last, instead of what it had there; kind DIR, where it
 * has one already, changes nothing. */
struct layer_node *layer_tree_make(
	struct layer_tree *tree, const char *path, enum layer_node_kind kind);

/* Kind of this layer's entry at any path. */
enum layer_node_kind layer_tree_at(const struct layer_tree *tree, const char *path);
/* The node of path for a whiteout's mark, made if it is missing. */
struct layer_node *layer_tree_mark(struct layer_tree *tree, const char *path);
/* Whether a file or link that lower layers have at path is still there. */
bool layer_tree_keeps(const struct layer_tree *tree, const char *path);
/* Each leaf that is there, in no order: start with *pos = 0; false at the end. */
bool layer_tree_each(
	const struct layer_tree *tree, size_t *pos, const char **ret_path, struct layer_node **ret);

#endif

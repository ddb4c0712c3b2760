/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer_tree.h"

#include <string.h>

#include "base/util/str.h"

void layer_tree_done(struct layer_tree *tree)
{
	if (!tree)
		return;
	map_done(&tree->nodes);
	arena_done(&tree->arena);
	*tree = (struct layer_tree){0};
}

/* A node is there unless what holds it was made anew after it. */
static bool is_there(const struct layer_node *node, uint64_t parent_made)
{
	return node && node->kind != LAYER_NODE_NONE && node->made > parent_made;
}

static struct layer_node *new_node(struct layer_tree *tree, const char *path)
{
	struct layer_node *node = arena_alloc(&tree->arena, sizeof(*node));

	*node = (struct layer_node){0};
	tree->bytes += sizeof(*node) + strlen(path) + 1;
	map_put(&tree->nodes, path, node);
	return node;
}

static struct layer_node *node_at(struct layer_tree *tree, const char *path)
{
	struct layer_node *node = map_get(&tree->nodes, path);

	return node ? node : new_node(tree, path);
}

static size_t dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) : 0;
}

/* Enter a directory on the way; *made: when its parent was made, then when it was. */
static int enter_dir(struct layer_tree *tree, const char *dir, uint64_t *made,
	layer_tree_dir_fn *new_dir, void *ctx, struct err *err)
{
	struct layer_node *node = map_get(&tree->nodes, dir);

	if (is_there(node, *made)) {
		*made = node->made;
		if (node->kind == LAYER_NODE_DIR)
			return 0;
		AUTO_FREE char *shown = str_shown(dir);
		return err_set(err, E_IMAGE,
			"a layer has something below \"%s\", which is not a directory", shown);
	}
	int r = new_dir(ctx, dir, err);
	if (r)
		return r;
	if (!node)
		node = new_node(tree, dir);
	node->kind = LAYER_NODE_DIR;
	node->made = *made = ++tree->clock;
	return 0;
}

int layer_tree_enter(struct layer_tree *tree, const char *path, layer_tree_dir_fn *new_dir,
	void *ctx, struct err *err)
{
	size_t len = dir_len(path);
	uint64_t made = 0;

	if (tree->in_dir && strncmp(tree->dir, path, len) == 0 && !tree->dir[len])
		return 0;
	if (tree->bytes > LAYER_TREE_BYTES_MAX)
		return err_set(err, E_DATA_LIMIT, "a layer has more than %d MiB of names",
			LAYER_TREE_BYTES_MAX >> 20);
	tree->in_dir = false;
	memcpy(tree->dir, path, len);
	tree->dir[len] = '\0';
	for (size_t at = 0; at < len; at++) {
		at += strcspn(tree->dir + at, "/");
		char slash = tree->dir[at];
		tree->dir[at] = '\0';
		int r = enter_dir(tree, tree->dir, &made, new_dir, ctx, err);
		if (r)
			return r;
		tree->dir[at] = slash;
	}
	tree->dir_made = made;
	tree->in_dir = true;
	return 0;
}

enum layer_node_kind layer_tree_here(const struct layer_tree *tree, const char *path)
{
	const struct layer_node *node = map_get(&tree->nodes, path);

	return is_there(node, tree->dir_made) ? node->kind : LAYER_NODE_NONE;
}

struct layer_node *layer_tree_make(
	struct layer_tree *tree, const char *path, enum layer_node_kind kind)
{
	struct layer_node *node = map_get(&tree->nodes, path);

	if (!node)
		node = new_node(tree, path);
	else if (kind == LAYER_NODE_DIR && is_there(node, tree->dir_made) && node->kind == kind)
		return node;
	else
		tree->in_dir = false;
	node->kind = kind;
	node->made = ++tree->clock;
	if (kind == LAYER_NODE_LEAF)
		node->gone = true;
	return node;
}

enum layer_node_kind layer_tree_at(const struct layer_tree *tree, const char *path)
{
	const struct layer_node *node = NULL;
	char part[ENTRY_PATH_MAX + 1];
	size_t len = strlen(path);
	uint64_t made = 0;

	if (len == 0)
		return LAYER_NODE_DIR;
	memcpy(part, path, len + 1);
	for (size_t at = 0; at < len; at++) {
		if (node && node->kind != LAYER_NODE_DIR)
			return LAYER_NODE_NONE;
		at += strcspn(part + at, "/");
		part[at] = '\0';
		node = map_get(&tree->nodes, part);
		if (!is_there(node, made))
			return LAYER_NODE_NONE;
		made = node->made;
		part[at] = path[at];
	}
	return node ? node->kind : LAYER_NODE_NONE;
}

struct layer_node *layer_tree_mark(struct layer_tree *tree, const char *path)
{
	return *path ? node_at(tree, path) : &tree->root;
}

bool layer_tree_keeps(const struct layer_tree *tree, const char *path)
{
	char part[ENTRY_PATH_MAX + 1];
	size_t len = strlen(path);

	if (tree->root.gone || tree->root.emptied)
		return false;
	memcpy(part, path, len + 1);
	for (size_t at = 0; at < len; at++) {
		at += strcspn(part + at, "/");
		part[at] = '\0';
		const struct layer_node *node = map_get(&tree->nodes, part);
		if (node && (node->gone || (at < len && node->emptied)))
			return false;
		if (node && at == len)
			return node->kind == LAYER_NODE_NONE;
		part[at] = path[at];
	}
	return true;
}

bool layer_tree_each(
	const struct layer_tree *tree, size_t *pos, const char **ret_path, struct layer_node **ret)
{
	void *value;

	while (map_each(&tree->nodes, pos, ret_path, &value)) {
		*ret = value;
		if (layer_tree_at(tree, *ret_path) == LAYER_NODE_LEAF)
			return true;
	}
	return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/unpack.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "oci/layer/layer_read.h"
#include "oci/layer/layer_tree.h"

/* A layer on its way onto a list. What a directory would need is asked of both: the tree knows what
 * this layer made, the list what lower layers left. */
struct listing {
	const struct entry_list *lower;
	struct layer_tree tree;
	bool names_only;
};

static void listing_done(struct listing *listing)
{
	layer_tree_done(&listing->tree);
}

static const struct entry *lower_at(const struct listing *listing, const char *path)
{
	const struct entry *entry = entry_find(listing->lower, path);

	return entry && layer_tree_keeps(&listing->tree, path) ? entry : NULL;
}

static int check_parent(void *ctx, const char *dir, struct err *err)
{
	if (!lower_at(ctx, dir))
		return 0;
	AUTO_FREE char *shown = str_shown(dir);
	return err_set(err, E_IMAGE, "a layer has something below \"%s\", which is not a directory",
		shown);
}

static int hash_data(
	struct layer_reader *reader, uint8_t sha256[static SHA256_SIZE], struct err *err)
{
	AUTO_DIGEST struct digest digest = {0};
	const void *data;
	size_t len;
	int r;

	digest_begin(&digest, DIGEST_SHA256);
	while ((r = layer_reader_data(reader, &data, &len, err)) > 0)
		digest_add(&digest, data, len);
	if (r == 0)
		digest_end(&digest, sha256);
	return r;
}

static int describe_hardlink(const struct listing *listing, const struct layer_member *member,
	struct entry *ret, struct err *err)
{
	const struct entry *target = NULL;
	const struct layer_node *node = map_get(&listing->tree.nodes, member->target);
	enum layer_node_kind kind = layer_tree_at(&listing->tree, member->target);

	if (kind == LAYER_NODE_LEAF)
		target = node->entry;
	else if (kind == LAYER_NODE_NONE)
		target = lower_at(listing, member->target);
	if (!target || target->kind != ENTRY_FILE) {
		AUTO_FREE char *shown = str_shown(member->path);
		return err_set(err, E_IMAGE, "\"%s\" in a layer is a hard link to no file", shown);
	}
	*ret = *target;
	return 0;
}

static int describe(struct listing *listing, struct layer_reader *reader,
	const struct layer_member *member, struct entry *ret, struct err *err)
{
	if (member->kind == LAYER_HARDLINK)
		return describe_hardlink(listing, member, ret, err);
	if (member->kind == LAYER_LINK) {
		ret->kind = ENTRY_LINK;
		ret->target = arena_strdup(&listing->tree.arena, member->target);
		ret->size = strlen(ret->target);
		digest_sha256(ret->target, ret->size, ret->sha256);
		return 0;
	}
	ret->kind = ENTRY_FILE;
	ret->exec = member->exec;
	ret->size = member->size;
	return listing->names_only ? 0 : hash_data(reader, ret->sha256, err);
}

static int list_member(struct listing *listing, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	struct layer_tree *tree = &listing->tree;
	struct entry entry = {0};

	if (member->kind == LAYER_WHITEOUT)
		layer_tree_mark(tree, member->path)->gone = true;
	if (member->kind == LAYER_OPAQUE)
		layer_tree_mark(tree, member->path)->emptied = true;
	if (member->kind == LAYER_WHITEOUT || member->kind == LAYER_OPAQUE)
		return 0;
	int r = layer_tree_enter(tree, member->path, check_parent, listing, err);
	if (r == 0 && member->kind == LAYER_DIR)
		layer_tree_make(tree, member->path, LAYER_NODE_DIR);
	if (r || member->kind == LAYER_DIR)
		return r;
	r = describe(listing, reader, member, &entry, err);
	if (r)
		return r;
	struct layer_node *node = layer_tree_make(tree, member->path, LAYER_NODE_LEAF);
	if (!node->entry)
		node->entry = arena_alloc(&tree->arena, sizeof(entry));
	*node->entry = entry;
	return 0;
}

/* Merge the rest of the lower list with the layer's entries, in order. */
static void merge(struct listing *listing, struct entry_list *list)
{
	struct entry_list merged = {0};
	struct layer_node *node;
	const char *path;
	size_t pos = 0;

	vec_foreach (struct entry, e, list)
		if (layer_tree_keeps(&listing->tree, e->path))
			*vec_push(&merged) = *e;
	while (layer_tree_each(&listing->tree, &pos, &path, &node)) {
		struct entry *e = vec_push(&merged);
		*e = *node->entry;
		e->path = arena_strdup(&listing->tree.arena, path);
	}
	vec_sort(&merged, entry_compare);
	arena_merge(&list->arena, &listing->tree.arena);
	vec_done(list);
	list->v = merged.v;
	list->n = merged.n;
	list->cap = merged.cap;
}

int unpack_list(const struct unpack_spec *spec, struct entry_list *list, struct err *err)
{
	AUTO_LAYER_READER struct layer_reader *reader = layer_reader_new(spec);
	AUTO(listing_done) struct listing listing = {.lower = list, .names_only = spec->names_only};
	struct layer_member member;
	int r;

	while ((r = layer_reader_next(reader, &member, err)) > 0) {
		r = list_member(&listing, reader, &member, err);
		if (r)
			return r;
	}
	if (r == 0)
		merge(&listing, list);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "snap/tree/hint_ignore.h"
#include "snap/tree/oversize.h"

enum { COUNT_TEXT_SIZE = 32 };

/* A directory with the sums of all below it. */
struct node {
	const struct walk_dir *dir;
	size_t parent;
	size_t children; /* position of the first; the others follow */
	uint64_t bytes, files;
};

struct heap {
	const struct walk *walk;
	bool by_count;                    /* what is too much are files, not bytes */
	struct VEC_OF(struct node) nodes; /* parents first */
	/* Files that were named already. */
	const struct path *files[ERR_EVIDENCE_MAX];
	size_t n_files;
};

/* A large item: a directory, or a file in it. */
struct pick {
	size_t node;
	const struct path *file; /* NULL: the directory itself */
};

/* "250,000" */
static const char *count_text(uint64_t n, char out[static COUNT_TEXT_SIZE])
{
	char digits[COUNT_TEXT_SIZE];
	size_t len = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, n);
	char *end = out;

	for (size_t i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*end++ = ',';
		*end++ = digits[i];
	}
	*end = '\0';
	return out;
}

static bool is_allowed(const struct walk *walk, const struct walk_dir *dir, const struct path *file)
{
	return pathset_enter(&walk->allow, dir->allow, file->path).covered;
}

static uint64_t weight_of(const struct heap *heap, const struct node *node)
{
	return heap->by_count ? node->files : node->bytes;
}

static void add_own(struct heap *heap, size_t at)
{
	const struct walk_dir *dir = heap->nodes.v[at].dir;

	for (size_t i = 0; i < dir->n_files; i++) {
		if (is_allowed(heap->walk, dir, &dir->files[i]))
			continue;
		heap->nodes.v[at].bytes += dir->files[i].size;
		heap->nodes.v[at].files++;
	}
}

static void heap_init(struct heap *heap, const struct walk *walk, bool by_count)
{
	*heap = (struct heap){.walk = walk, .by_count = by_count};
	vec_push(&heap->nodes)->dir = walk->root;
	for (size_t at = 0; at < heap->nodes.n; at++) {
		const struct walk_dir *dir = heap->nodes.v[at].dir;
		heap->nodes.v[at].children = heap->nodes.n;
		for (size_t i = 0; i < dir->n_dirs; i++) {
			struct node *child = vec_push(&heap->nodes);
			child->dir = dir->dirs[i];
			child->parent = at;
		}
		add_own(heap, at);
	}
	for (size_t at = heap->nodes.n; at-- > 1;) {
		const struct node *node = &heap->nodes.v[at];
		heap->nodes.v[node->parent].bytes += node->bytes;
		heap->nodes.v[node->parent].files += node->files;
	}
}

static bool is_named(const struct heap *heap, const struct path *file)
{
	for (size_t i = 0; i < heap->n_files; i++)
		if (heap->files[i] == file)
			return true;
	return false;
}

static const struct path *largest_file(const struct heap *heap, const struct node *node)
{
	const struct walk_dir *dir = node->dir;
	const struct path *best = NULL;

	for (size_t i = 0; i < dir->n_files; i++) {
		const struct path *file = &dir->files[i];
		if (best && file->size <= best->size)
			continue;
		if (!is_named(heap, file) && !is_allowed(heap->walk, dir, file))
			best = file;
	}
	return best;
}

/* Position of the largest child, 0 if there is none. */
static size_t largest_child(const struct heap *heap, const struct node *node)
{
	size_t best = 0;
	uint64_t most = 0;

	for (size_t i = 0; i < node->dir->n_dirs; i++) {
		size_t child = node->children + i;
		uint64_t weight = weight_of(heap, &heap->nodes.v[child]);
		if (weight > most) {
			most = weight;
			best = child;
		}
	}
	return best;
}

/* Pick the item that says most in one line: the deepest directory, or the file, that still holds
 * most of what its surroundings hold. */
static struct pick pick_largest(const struct heap *heap)
{
	struct pick pick = {0};

	for (;;) {
		const struct node *node = &heap->nodes.v[pick.node];
		const struct path *file = heap->by_count ? NULL : largest_file(heap, node);
		size_t child = largest_child(heap, node);
		uint64_t size = file ? file->size : 0;
		uint64_t weight = child ? weight_of(heap, &heap->nodes.v[child]) : 0;
		uint64_t most = size > weight ? size : weight;
		bool stays_here = pick.node ? most < weight_of(heap, node) / 5 * 4
					    : heap->by_count && most < node->files / 5;
		if (stays_here || most == 0)
			return pick;
		if (size > weight) {
			pick.file = file;
			return pick;
		}
		pick.node = child;
	}
}

static void take_away(struct heap *heap, struct pick pick)
{
	struct node *node = &heap->nodes.v[pick.node];
	uint64_t bytes = pick.file ? pick.file->size : node->bytes;
	uint64_t files = pick.file ? 1 : node->files;

	if (pick.file)
		heap->files[heap->n_files++] = pick.file;
	for (size_t at = pick.node;; at = heap->nodes.v[at].parent) {
		heap->nodes.v[at].bytes -= bytes;
		heap->nodes.v[at].files -= files;
		if (at == 0)
			return;
	}
}

static char *name_of(const struct heap *heap, struct pick pick)
{
	const struct walk_dir *dir = heap->nodes.v[pick.node].dir;

	if (pick.file)
		return mem_strdup(pick.file->path);
	return mem_printf("%s/", dir->len ? dir->path : ".");
}

static void add_line(const struct heap *heap, struct pick pick, struct err *err)
{
	const struct node *node = &heap->nodes.v[pick.node];
	AUTO_FREE char *name = name_of(heap, pick);
	AUTO_FREE char *shown = str_shown(name);
	char size[16], count[COUNT_TEXT_SIZE];

	if (pick.file)
		err_evidence(err, "%s: %s", shown, str_size(pick.file->size, size));
	else
		err_evidence(err, "%s: %s in %s file%s", shown, str_size(node->bytes, size),
			count_text(node->files, count), node->files == 1 ? "" : "s");
}

static void add_hint(const struct heap *heap, struct pick pick, struct err *err)
{
	AUTO_FREE char *name = name_of(heap, pick);

	if (pick.node == 0 && !pick.file)
		err_hint(err, "limit the snapshot to parts of the tree by paths: in dlrun.yaml");
	else
		hint_ignore(err, heap->walk->options->root, heap->walk->options->shell_dir,
			(const char *const[]){name}, 1);
}

static void add_evidence(const struct walk *walk, bool by_count, struct err *err)
{
	struct heap heap;
	uint64_t enough = 0;

	heap_init(&heap, walk, by_count);
	for (int i = 0; i < ERR_EVIDENCE_MAX; i++) {
		struct pick pick = pick_largest(&heap);
		const struct node *node = &heap.nodes.v[pick.node];
		uint64_t weight = pick.file ? pick.file->size : weight_of(&heap, node);
		if (weight <= enough)
			break;
		/* Ignore items that account for less than 1 % of the first line. */
		if (i == 0) {
			enough = weight / 100;
			add_hint(&heap, pick, err);
		}
		add_line(&heap, pick, err);
		/* The whole tree: what lies below is named with it. */
		if (pick.node == 0 && !pick.file)
			break;
		take_away(&heap, pick);
	}
	vec_done(&heap.nodes);
}

static int refuse_total(const struct walk *walk, struct err *err)
{
	char size[16], limit[16];

	int r = err_set(err, E_SNAPSHOT_LIMIT, "the working tree has %s%s, over the limit of %s",
		walk->is_cut ? "more than " : "", str_size(walk->bytes, size),
		str_size(walk->options->limits.total_bytes, limit));
	add_evidence(walk, false, err);
	return r;
}

static int refuse_files(const struct walk *walk, struct err *err)
{
	char count[COUNT_TEXT_SIZE], limit[COUNT_TEXT_SIZE];

	int r = err_set(err, E_SNAPSHOT_LIMIT,
		"the working tree has %s%s files, over the limit of %s",
		walk->is_cut ? "more than " : "", count_text(walk->files, count),
		count_text(walk->options->limits.files, limit));
	add_evidence(walk, true, err);
	return r;
}

static int refuse_dirs(const struct walk *walk, struct err *err)
{
	char limit[COUNT_TEXT_SIZE];

	int r = err_set(err, E_SNAPSHOT_LIMIT, "the working tree has more than %s directories",
		count_text(WALK_DIRS_MAX, limit));
	add_evidence(walk, true, err);
	return r;
}

static int by_size(const void *a, const void *b)
{
	const struct path *const *x = a, *const *y = b;

	if ((*x)->size != (*y)->size)
		return (*x)->size > (*y)->size ? -1 : 1;
	return strcmp((*x)->path, (*y)->path);
}

struct large_files VEC_OF(const struct path *);

static void find_large(const struct walk *walk, struct large_files *ret)
{
	uint64_t limit = walk->options->limits.file_bytes;
	struct heap heap;

	heap_init(&heap, walk, false);
	vec_foreach (struct node, node, &heap.nodes)
		for (size_t i = 0; i < node->dir->n_files; i++) {
			const struct path *file = &node->dir->files[i];
			if (file->kind == ENTRY_FILE && file->size > limit &&
				!is_allowed(walk, node->dir, file))
				*vec_push(ret) = file;
		}
	vec_done(&heap.nodes);
	vec_sort(ret, by_size);
}

static int refuse_file(const struct walk *walk, struct err *err)
{
	struct large_files large = {0};
	const char *shown[ERR_EVIDENCE_MAX];
	char size[16], limit[16];
	size_t n = 0;
	int r;

	find_large(walk, &large);
	str_size(walk->options->limits.file_bytes, limit);
	if (large.n == 1) {
		AUTO_FREE char *name = str_shown(large.v[0]->path);
		r = err_set(err, E_SNAPSHOT_LIMIT, "%s has %s, over the limit of %s for a file",
			name, str_size(large.v[0]->size, size), limit);
	} else {
		r = err_set(err, E_SNAPSHOT_LIMIT, "%zu files are over the limit of %s for a file",
			large.n, limit);
	}
	for (; n < large.n && n < ERR_EVIDENCE_MAX; n++) {
		AUTO_FREE char *name = str_shown(large.v[n]->path);
		shown[n] = large.v[n]->path;
		if (large.n > 1)
			err_evidence(err, "%s: %s", name, str_size(large.v[n]->size, size));
	}
	vec_done(&large);
	hint_ignore(err, walk->options->root, walk->options->shell_dir, shown, n);
	return r;
}

int oversize_refuse(const struct walk *walk, struct err *err)
{
	if (walk->over & WALK_OVER_TOTAL)
		return refuse_total(walk, err);
	if (walk->over & WALK_OVER_FILES)
		return refuse_files(walk, err);
	if (walk->over & WALK_OVER_DIRS)
		return refuse_dirs(walk, err);
	return refuse_file(walk, err);
}

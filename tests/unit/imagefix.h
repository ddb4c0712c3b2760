/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of images share: a tree in memory, which is an entry iterator with contents, and
 * short ways to write and read images of it.
 */
#ifndef DLRUN_TESTS_UNIT_IMAGEFIX_H
#define DLRUN_TESTS_UNIT_IMAGEFIX_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/image.h"
#include "oci/layer/layer.h"
#include "oci/layout/layout.h"

static char root[256];

static inline int make_root(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(root, sizeof(root), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	return mkdtemp(root) ? 0 : -1;
}

static inline int remove_root(void **state)
{
	return fs_remove_tree(AT_FDCWD, root, NULL);
}

/* Valid until the eighth call from now. */
static inline const char *in_root(const char *name)
{
	static char paths[8][1000];
	static int next;
	char *path = paths[next++ % 8];

	snprintf(path, sizeof(paths[0]), "%s/%s", root, name);
	return path;
}

#define ok(call)                                                                                   \
	do {                                                                                       \
		AUTO_ERR struct err err_ = {0};                                                    \
		struct err *error = &err_;                                                         \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, err_.message);                                   \
	} while (0)

/* A file's content is made from a number and its size. */
struct fake_file {
	char path[80];
	char kind; /* f, x, l */
	unsigned seed;
	size_t size; /* of links: at most 60 */
};

struct fake_tree {
	struct fake_file v[4100];
	size_t n;
	struct entry_list entries; /* of tree_entries */
	bool lies;                 /* contents differ from the entries */
	size_t n_opened;
};

static inline void fake_content(unsigned seed, size_t size, char *out)
{
	for (size_t i = 0; i < size; i++) {
		seed = seed * 1664525 + 1013904223;
		out[i] = (char)('a' + (seed >> 24) % 26);
	}
}

static inline bool fake_within(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* Also what is below it. */
static inline void tree_remove(struct fake_tree *tree, const char *path)
{
	size_t kept = 0;

	for (size_t i = 0; i < tree->n; i++)
		if (!fake_within(tree->v[i].path, path))
			tree->v[kept++] = tree->v[i];
	tree->n = kept;
}

/* Whatever stands in its way goes. */
static inline void tree_put(
	struct fake_tree *tree, const char *path, char kind, unsigned seed, size_t size)
{
	size_t kept = 0;

	for (size_t i = 0; i < tree->n; i++)
		if (!fake_within(tree->v[i].path, path) && !fake_within(path, tree->v[i].path))
			tree->v[kept++] = tree->v[i];
	tree->n = kept;
	if (tree->n == ARRAY_LEN(tree->v))
		abort();
	struct fake_file *file = &tree->v[tree->n++];
	*file = (struct fake_file){.kind = kind, .seed = seed, .size = size};
	snprintf(file->path, sizeof(file->path), "%s", path);
}

static inline const struct entry_list *tree_entries(struct fake_tree *tree)
{
	entry_list_done(&tree->entries);
	tree->entries = (struct entry_list){0};
	for (size_t i = 0; i < tree->n; i++) {
		const struct fake_file *file = &tree->v[i];
		AUTO_FREE char *content = mem_alloc(file->size + 1, 1);
		struct entry e = {
			.path = file->path, .exec = file->kind == 'x', .size = file->size};
		fake_content(file->seed, file->size, content);
		digest_sha256(content, file->size, e.sha256);
		e.kind = file->kind == 'l' ? ENTRY_LINK : ENTRY_FILE;
		e.target = file->kind == 'l' ? content : NULL;
		entry_add(&tree->entries, &e);
	}
	vec_sort(&tree->entries, entry_compare);
	return &tree->entries;
}

static inline int tree_open(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	struct fake_tree *tree = ctx;
	char name[300];

	tree->n_opened++;
	for (size_t i = 0; i < tree->n; i++) {
		const struct fake_file *file = &tree->v[i];
		if (strcmp(file->path, entry->path) != 0)
			continue;
		AUTO_FREE char *content = mem_alloc(file->size + 1, 1);
		fake_content(file->seed + tree->lies, file->size, content);
		snprintf(name, sizeof(name), "%s/.content-XXXXXX", root);
		AUTO_FD int fd = mkostemp(name, O_CLOEXEC);
		if (fd < 0)
			return fs_error(err, errno, "%s", name);
		unlink(name);
		int r = fs_write_fd(fd, name, content, file->size, err);
		if (r < 0)
			return r;
		lseek(fd, 0, SEEK_SET);
		*ret_fd = TAKE_FD(fd);
		return 0;
	}
	return err_set(err, E_IO_CHANGED, "%s is gone", entry->path);
}

static inline void tree_done(struct fake_tree *tree)
{
	entry_list_done(&tree->entries);
	free(tree);
}

static inline struct fake_tree *tree_new(void)
{
	return mem_alloc(1, sizeof(struct fake_tree));
}

static char tree_id[DIGEST_TEXT_SIZE];

/* A request for the tree; its plan is root/plan. */
static inline struct image_request request_of(struct fake_tree *tree)
{
	struct image_request request = {
		.entries = tree_entries(tree),
		.opener = {tree_open, tree},
		.workdir = "/dlrun/src",
		.platform = "linux/amd64",
		.codec = CODEC_GZIP,
		.plan_path = in_root("plan"),
		.mtime_s = LAYER_MTIME,
	};

	entry_list_id(request.entries, tree_id);
	request.snapshot_id = tree_id;
	return request;
}

/* Writes an image into the layout root/name. */
static inline int write_to(
	const char *name, const struct image_request *request, struct image *ret, struct err *err)
{
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_FREE char *dir = mem_printf("%s/%s", root, name);

	int r = layout_open(dir, true, &layout, err);
	if (r < 0)
		return r;
	struct sink *sink = layout_sink(layout);
	r = image_write(request, sink, ret, err);
	sink_free(sink);
	return r;
}

static inline struct image write_image(const char *name, const struct image_request *request)
{
	struct image image = {0};

	ok(write_to(name, request, &image, error));
	return image;
}

static inline void just_write(const char *name, const struct image_request *request)
{
	struct image image = write_image(name, request);

	image_done(&image);
}

/* "full big delta" */
static inline const char *roles_of(const struct image *image)
{
	static char text[400];

	text[0] = '\0';
	for (size_t i = 0; i < image->n_layers; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "",
			image_role_name(image->layers[i].role));
	return text;
}

/* The image in the layout root/name holds exactly the tree. */
static inline void assert_holds(
	const char *name, const struct image *image, const struct entry_list *want)
{
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_ENTRIES struct entry_list got = {0};

	ok(layout_open(in_root(name), false, &layout, error));
	ok(image_entries_above(layout, image, 0, &got, error));
	assert_int_equal(got.n, want->n);
	for (size_t i = 0; i < got.n; i++) {
		assert_string_equal(got.v[i].path, want->v[i].path);
		assert_true(entry_same(&got.v[i], &want->v[i]));
		assert_true(str_eq(got.v[i].target, want->v[i].target));
	}
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of layers share: a directory of their own, trees in memory, tar by hand. */
#ifndef DLRUN_TESTS_UNIT_LAYERFIX_H
#define DLRUN_TESTS_UNIT_LAYERFIX_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layer/layer.h"
#include "oci/layer/unpack.h"

enum { TAR_MAX = 64 << 20 };

static char root[256];
static int root_fd;

static inline int make_root(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(root, sizeof(root), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	if (!mkdtemp(root))
		return -1;
	root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return root_fd < 0;
}

static inline int remove_root(void **state)
{
	AUTO_ERR struct err err = {0};

	close(root_fd);
	return fs_remove_tree(AT_FDCWD, root, &err);
}

/* A file without a name that holds data, at its start. */
static inline int file_of(const void *data, size_t len)
{
	char path[sizeof(root) + 16];
	AUTO_ERR struct err err = {0};

	snprintf(path, sizeof(path), "%s/XXXXXX", root);
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	unlink(path);
	assert_int_equal(fs_write_fd(fd, path, data, len, &err), 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

/* A new empty directory below root. */
static inline int new_dir(void)
{
	char path[sizeof(root) + 16];

	snprintf(path, sizeof(path), "%s/d-XXXXXX", root);
	assert_non_null(mkdtemp(path));
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/*
 * Trees.
 */

/* Entries whose contents are in memory. */
struct tree {
	struct entry_list list;
	struct VEC_OF(const char *) contents; /* in the order of adding */
	struct VEC_OF(const char *) paths;
};

static inline void tree_done(struct tree *tree)
{
	entry_list_done(&tree->list);
	vec_done(&tree->contents);
	vec_done(&tree->paths);
}
#define AUTO_TREE AUTO(tree_done)

static inline struct entry *tree_add(
	struct tree *tree, const char *path, const void *data, size_t len)
{
	struct entry entry = {.path = path, .size = len};

	digest_sha256(data, len, entry.sha256);
	struct entry *added = entry_add(&tree->list, &entry);
	*vec_push(&tree->contents) = arena_strndup(&tree->list.arena, data, len);
	*vec_push(&tree->paths) = added->path;
	return added;
}

static inline void tree_file(struct tree *tree, const char *path, const char *content)
{
	tree_add(tree, path, content, strlen(content));
}

static inline void tree_exec(struct tree *tree, const char *path, const char *content)
{
	tree_add(tree, path, content, strlen(content))->exec = true;
}

static inline void tree_link(struct tree *tree, const char *path, const char *target)
{
	struct entry *entry = tree_add(tree, path, target, strlen(target));

	entry->kind = ENTRY_LINK;
	entry->target = arena_strdup(&tree->list.arena, target);
}

static inline const char *tree_content(const struct tree *tree, const char *path)
{
	for (size_t i = 0; i < tree->paths.n; i++)
		if (str_eq(tree->paths.v[i], path))
			return tree->contents.v[i];
	fail_msg("no %s", path);
	return NULL;
}

static inline int tree_open(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	*ret_fd = file_of(tree_content(ctx, entry->path), entry->size);
	return 0;
}

/* All of a tree as a layer; entries are sorted first. */
static inline struct layer_spec tree_spec(struct tree *tree, const struct entry *pointers[])
{
	vec_sort(&tree->list, entry_compare);
	for (size_t i = 0; i < tree->list.n; i++)
		pointers[i] = &tree->list.v[i];
	return (struct layer_spec){
		.workdir = "/dlrun/src",
		.entries = pointers,
		.n_entries = tree->list.n,
		.full = true,
		.opener = {tree_open, tree},
		.mtime_s = LAYER_MTIME,
		.codec = CODEC_NONE,
	};
}

/* A layer in a file of its own, at its start. */
static inline int layer_file(const struct layer_spec *spec, struct layer_result *ret)
{
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};

	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	int r = layer_write(spec, &stage, ret, &err);
	if (r)
		fail_msg("layer_write: %s", err.message);
	int fd = fcntl(stage.fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

static inline void read_all(int fd, struct buf *ret)
{
	AUTO_ERR struct err err = {0};

	*ret = (struct buf){0};
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	assert_int_equal(fs_read_fd(fd, "a layer", TAR_MAX, ret, &err), 0);
}

/*
 * tar by hand (POSIX.1-1988 ustar headers; the old GNU magic).
 */

static inline void tar_header(
	struct buf *tar, char type, const char *name, const char *link, size_t size)
{
	char block[512] = "";
	unsigned sum = 0;

	snprintf(block, 100, "%s", name);
	memcpy(block + 100, "0000644", 8);
	memcpy(block + 108, "0000000", 8);
	memcpy(block + 116, "0000000", 8);
	snprintf(block + 124, 12, "%011o", (unsigned)size);
	memcpy(block + 136, "02263545600", 12);
	memset(block + 148, ' ', 8);
	block[156] = type;
	snprintf(block + 157, 100, "%s", link);
	memcpy(block + 257, "ustar  ", 8);
	for (size_t i = 0; i < sizeof(block); i++)
		sum += (uint8_t)block[i];
	snprintf(block + 148, 8, "%06o", sum);
	buf_add(tar, block, sizeof(block));
}

static inline void tar_content(struct buf *tar, const char *data, size_t len)
{
	static const char zeros[512];

	buf_add(tar, data, len);
	buf_add(tar, zeros, (512 - len % 512) % 512);
}

static inline void tar_long(struct buf *tar, char type, const char *text)
{
	tar_header(tar, type, "././@LongLink", "", strlen(text) + 1);
	tar_content(tar, text, strlen(text) + 1);
}

static inline void tar_member(
	struct buf *tar, char type, const char *name, const char *link, const char *content)
{
	if (strlen(name) > 99)
		tar_long(tar, 'L', name);
	if (strlen(link) > 99)
		tar_long(tar, 'K', link);
	tar_header(tar, type, name, link, strlen(content));
	tar_content(tar, content, strlen(content));
}

static inline void tar_end(struct buf *tar)
{
	static const char zeros[1024];

	buf_add(tar, zeros, sizeof(zeros));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of files for tests: made in a directory of their own, removed at the end. */
#ifndef DLRUN_TESTS_UNIT_TREE_H
#define DLRUN_TESTS_UNIT_TREE_H

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"

struct tree {
	char *root; /* absolute, without links */
	int fd;
};

static inline struct tree tree_new(void)
{
	const char *tmp = getenv("TMPDIR");
	AUTO_FREE char *name = mem_printf("%s/dlrun-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	struct tree tree = {0};

	assert_non_null(mkdtemp(name));
	assert_int_equal(fs_realpath(name, &tree.root, NULL), 0);
	tree.fd = open(tree.root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(tree.fd >= 0);
	return tree;
}

static inline void tree_free(struct tree *tree)
{
	close(tree->fd);
	assert_int_equal(fs_remove_tree(AT_FDCWD, tree->root, NULL), 0);
	free(tree->root);
	*tree = (struct tree){0};
}

/* A directory with its parents. */
static inline void tree_dir(const struct tree *tree, const char *path)
{
	AUTO_FREE char *full = fs_join(tree->root, path);

	assert_int_equal(fs_mkdirs(full, 0755, NULL), 0);
}

static inline void tree_parent(const struct tree *tree, const char *path)
{
	const char *slash = strrchr(path, '/');
	AUTO_FREE char *dir = slash ? mem_strndup(path, (size_t)(slash - path)) : NULL;

	if (dir)
		tree_dir(tree, dir);
}

static inline void tree_write_data(
	const struct tree *tree, const char *path, const void *data, size_t len)
{
	tree_parent(tree, path);
	AUTO_FD int fd = openat(tree->fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fs_write_fd(fd, path, data, len, NULL), 0);
}

static inline void tree_write(const struct tree *tree, const char *path, const char *text)
{
	tree_write_data(tree, path, text, strlen(text));
}

/* A file of that size that takes no space. */
static inline void tree_sparse(const struct tree *tree, const char *path, off_t size)
{
	tree_write(tree, path, "");
	AUTO_FD int fd = openat(tree->fd, path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(ftruncate(fd, size), 0);
}

static inline void tree_link(const struct tree *tree, const char *path, const char *target)
{
	tree_parent(tree, path);
	assert_int_equal(symlinkat(target, tree->fd, path), 0);
}

#endif

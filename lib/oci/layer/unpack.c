/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "oci/layer/layer_read.h"
#include "oci/layer/layer_tree.h"
#include "oci/layer/unpack_batch.h"

/* A layer on its way into a directory. Each path is taken by its directory's descriptor and its
 * last part, and that directory was reached without following a link. */
struct apply {
	int root_fd; /* not owned */
	struct layer_tree tree;
	struct unpack_pool *pool;
	int dir_fd; /* of the directory `dir`; -1: none is open */
	char dir[ENTRY_PATH_MAX + 1];
};

static void apply_done(struct apply *apply)
{
	unpack_pool_free(apply->pool);
	if (apply->dir_fd >= 0)
		close(apply->dir_fd);
	layer_tree_done(&apply->tree);
}

/*
 * Directories.
 */

/* The directory above path, if it exists: a descriptor or -errno. */
static int open_parent(const struct apply *apply, const char *path)
{
	char dir[ENTRY_PATH_MAX + 1];
	size_t len = (size_t)(fs_basename(path) - path);

	memcpy(dir, path, len);
	dir[len ? len - 1 : 0] = '\0';
	return fs_open_beneath(
		apply->root_fd, len ? dir : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
}

static int leave_dir(struct apply *apply, struct err *err)
{
	int fd = TAKE_FD(apply->dir_fd);

	return fd < 0 ? 0 : unpack_pool_retire(apply->pool, fd, err);
}

/* Make the directory above path, which exists, the current one. */
static int go_to_parent(struct apply *apply, const char *path, struct err *err)
{
	size_t name_at = (size_t)(fs_basename(path) - path), len = name_at ? name_at - 1 : 0;

	if (apply->dir_fd >= 0 && strncmp(apply->dir, path, len) == 0 && !apply->dir[len])
		return 0;
	int r = leave_dir(apply, err);
	if (r)
		return r;
	int fd = open_parent(apply, path);
	if (fd < 0)
		return fs_error(err, -fd, "opening the directory of %s", path);
	apply->dir_fd = fd;
	memcpy(apply->dir, path, len);
	apply->dir[len] = '\0';
	return 0;
}

static bool is_dir(int fd, const char *name)
{
	struct stat st;

	return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* A directory that only follows from what is below it. */
static int make_parent(void *ctx, const char *dir, struct err *err)
{
	struct apply *apply = ctx;
	const char *name = fs_basename(dir);
	int r = go_to_parent(apply, dir, err);

	if (r || mkdirat(apply->dir_fd, name, 0777) == 0)
		return r;
	if (errno != EEXIST)
		return fs_error(err, errno, "making directory %s", dir);
	if (is_dir(apply->dir_fd, name))
		return 0;
	AUTO_FREE char *shown = str_shown(dir);
	return err_set(err, E_IMAGE, "a layer has something below \"%s\", which is not a directory",
		shown);
}

/* A directory that the layer names. */
static int make_dir(struct apply *apply, const char *path, struct err *err)
{
	const char *name = fs_basename(path);

	if (mkdirat(apply->dir_fd, name, 0777) == 0)
		return 0;
	int errnum = errno;
	if (errnum == EEXIST && is_dir(apply->dir_fd, name))
		return 0;
	if (errnum == EEXIST && unlinkat(apply->dir_fd, name, 0) == 0 &&
		mkdirat(apply->dir_fd, name, 0777) == 0)
		return 0;
	return fs_error(err, errno, "making directory %s", path);
}

/*
 * Whiteouts.
 */

/* List a directory; a missing one is empty. *ret_fd: of the directory, or -1. */
static int list_dir(
	struct apply *apply, const char *path, struct strv *names, int *ret_fd, struct err *err)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
	int fd = fs_open_beneath(apply->root_fd, *path ? path : ".", flags, 0);

	*ret_fd = -1;
	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
		return 0;
	int copy = fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	if (!dir) {
		int errnum = fd < 0 ? -fd : errno;
		if (fd >= 0)
			close(fd);
		return fs_error(err, errnum, "reading directory %s", path);
	}
	for (struct dirent *e; (e = readdir(dir));)
		if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
			strv_add(names, e->d_name);
	*ret_fd = fd;
	return 0;
}

/* Remove everything below a directory that this layer has not made. It goes down by itself only
 * where this layer has a directory, so that the depth is bounded, and holds no descriptor
 * meanwhile. */
static int sweep(struct apply *apply, const char *path, struct err *err)
{
	AUTO_STRV struct strv names = {0}, inner = {0};
	AUTO_FD int fd = -1;
	struct layer_node *node = layer_tree_mark(&apply->tree, path);

	if (node->emptied)
		return 0;
	node->emptied = true;
	int r = list_dir(apply, path, &names, &fd, err);
	for (size_t i = 0; i < names.n && r == 0; i++) {
		AUTO_FREE char *child = fs_join(path, names.v[i]);
		enum layer_node_kind kind = layer_tree_at(&apply->tree, child);
		if (kind == LAYER_NODE_NONE)
			r = fs_remove_tree(fd, names.v[i], err);
		else if (kind == LAYER_NODE_DIR)
			strv_add_take(&inner, TAKE(child));
	}
	strv_done(&names);
	if (fd >= 0)
		close(TAKE_FD(fd));
	for (size_t i = 0; i < inner.n && r == 0; i++)
		r = sweep(apply, inner.v[i], err);
	return r;
}

static int remove_path(struct apply *apply, const char *path, struct err *err)
{
	enum layer_node_kind kind = layer_tree_at(&apply->tree, path);

	if (kind == LAYER_NODE_DIR)
		return sweep(apply, path, err);
	if (kind == LAYER_NODE_LEAF)
		return 0;
	int fd = open_parent(apply, path);
	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
		return 0;
	if (fd < 0)
		return fs_error(err, -fd, "removing %s", path);
	int r = fs_remove_tree(fd, fs_basename(path), err);
	close(fd);
	return r;
}

static int apply_whiteout(struct apply *apply, const struct layer_member *member, struct err *err)
{
	int r = unpack_pool_wait(apply->pool, err);

	if (r)
		return r;
	return member->kind == LAYER_OPAQUE ? sweep(apply, member->path, err)
					    : remove_path(apply, member->path, err);
}

/*
 * Files.
 */

static int copy_data(struct layer_reader *reader, const char *path, int fd, struct err *err)
{
	const void *data;
	size_t len;
	int r;

	while ((r = layer_reader_data(reader, &data, &len, err)) > 0) {
		r = fs_write_fd(fd, path, data, len, err);
		if (r)
			return r;
	}
	return r;
}

static int apply_large(struct apply *apply, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	int fd;
	int r = unpack_create(apply->dir_fd, member->path, member->exec, &fd, err);

	if (r)
		return r;
	r = copy_data(reader, member->path, fd, err);
	if (r) {
		close(fd);
		return r;
	}
	return unpack_close(fd, member->path, &member->mtime, err);
}

static int read_data(struct layer_reader *reader, struct unpack_job *job, struct err *err)
{
	const void *data;
	size_t len, at = 0;
	int r;

	while ((r = layer_reader_data(reader, &data, &len, err)) > 0) {
		memcpy(job->data + at, data, len);
		at += len;
	}
	return r;
}

static int apply_small(struct apply *apply, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	struct unpack_job *job;
	int r = unpack_pool_add(
		apply->pool, member->path, member->target, (size_t)member->size, &job, err);

	if (r)
		return r;
	job->dir_fd = apply->dir_fd;
	job->exec = member->exec;
	job->mtime = member->mtime;
	return read_data(reader, job, err);
}

/* A second name for a file that is there. */
static int apply_hardlink(struct apply *apply, const struct layer_member *member, struct err *err)
{
	const char *name = fs_basename(member->path), *target = fs_basename(member->target);
	AUTO_FD int fd = -1;
	struct stat st;
	int r = unpack_pool_wait(apply->pool, err);

	if (r)
		return r;
	fd = open_parent(apply, member->target);
	if (fd < 0 || fstatat(fd, target, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) {
		AUTO_FREE char *shown = str_shown(member->path);
		return err_set(err, E_IMAGE, "\"%s\" in a layer is a hard link to no file", shown);
	}
	r = linkat(fd, target, apply->dir_fd, name, 0);
	if (r && errno == EEXIST) {
		r = fs_remove_tree(apply->dir_fd, name, err);
		if (r)
			return r;
		r = linkat(fd, target, apply->dir_fd, name, 0);
	}
	return r ? fs_error(err, errno, "linking %s", member->path) : 0;
}

/*
 * All of it.
 */

static int apply_member(struct apply *apply, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	struct layer_tree *tree = &apply->tree;
	bool dir = member->kind == LAYER_DIR;

	if (member->kind == LAYER_WHITEOUT || member->kind == LAYER_OPAQUE)
		return apply_whiteout(apply, member, err);
	int r = layer_tree_enter(tree, member->path, make_parent, apply, err);
	if (r)
		return r;
	enum layer_node_kind before = layer_tree_here(tree, member->path);
	if (dir && before == LAYER_NODE_DIR)
		return 0;
	if (before != LAYER_NODE_NONE)
		r = unpack_pool_wait(apply->pool, err);
	if (r == 0 && before == LAYER_NODE_DIR)
		r = leave_dir(apply, err);
	if (r == 0)
		r = go_to_parent(apply, member->path, err);
	if (r)
		return r;
	layer_tree_make(tree, member->path, dir ? LAYER_NODE_DIR : LAYER_NODE_LEAF);
	if (dir)
		return make_dir(apply, member->path, err);
	if (member->kind == LAYER_HARDLINK)
		return apply_hardlink(apply, member, err);
	if (member->size > UNPACK_SMALL_MAX)
		return apply_large(apply, reader, member, err);
	return apply_small(apply, reader, member, err);
}

int unpack_apply(const struct unpack_spec *spec, int dir_fd, struct err *err)
{
	AUTO_LAYER_READER struct layer_reader *reader = layer_reader_new(spec);
	AUTO(apply_done) struct apply apply = {.root_fd = dir_fd, .dir_fd = -1};
	struct layer_member member;
	int r;

	apply.pool = unpack_pool_new();
	while ((r = layer_reader_next(reader, &member, err)) > 0) {
		r = apply_member(&apply, reader, &member, err);
		if (r)
			return r;
	}
	int made = unpack_pool_wait(apply.pool, r ? NULL : err);
	return r ? r : made;
}

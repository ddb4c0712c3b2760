/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "oci/layer/layer_read.h"

enum { UNPACK_SMALL_MAX = 128 * 1024 }; /* bytes of a file that may go through a batch */

/* A file or link to make. */
struct unpack_job {
	int dir_fd;         /* not owned */
	const char *path;   /* for messages; its last part is the name in dir_fd */
	const char *target; /* of a link; NULL: a file */
	uint8_t *data;      /* of a file */
	size_t len;
	bool exec;
	struct timespec mtime;
	struct err err;
};

struct unpack_pool;

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

/* Called for each directory that is new on the way to a path, the highest first. */
typedef int layer_tree_dir_fn(void *ctx, const char *dir, struct err *err);

static void layer_tree_done(struct layer_tree *tree)
{
	if (!tree)
		return;
	map_done(&tree->nodes);
	arena_done(&tree->arena);
	*tree = (struct layer_tree){0};
}

/* A node is there unless what holds it was made anew after it. */
static bool unpack_is_there(const struct layer_node *node, uint64_t parent_made)
{
	return node && node->kind != LAYER_NODE_NONE && node->made > parent_made;
}

static struct layer_node *unpack_new_node(struct layer_tree *tree, const char *path)
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

	return node ? node : unpack_new_node(tree, path);
}

static size_t unpack_dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) : 0;
}

/* Enter a directory on the way; *made: when its parent was made, then when it was. */
static int enter_dir(struct layer_tree *tree, const char *dir, uint64_t *made,
	layer_tree_dir_fn *new_dir, void *ctx, struct err *err)
{
	struct layer_node *node = map_get(&tree->nodes, dir);

	if (unpack_is_there(node, *made)) {
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
		node = unpack_new_node(tree, dir);
	node->kind = LAYER_NODE_DIR;
	node->made = *made = ++tree->clock;
	return 0;
}

/* Make the directories above path (at most 4,095 bytes). E_IMAGE if one of them is a file or link
 * of this layer; E_DATA_LIMIT over LAYER_TREE_BYTES_MAX. */
static int layer_tree_enter(struct layer_tree *tree, const char *path, layer_tree_dir_fn *new_dir,
	void *ctx, struct err *err)
{
	size_t len = unpack_dir_len(path);
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

/* Kind of this layer's entry at path, which was entered last. */
static enum layer_node_kind layer_tree_here(const struct layer_tree *tree, const char *path)
{
	const struct layer_node *node = map_get(&tree->nodes, path);

	return unpack_is_there(node, tree->dir_made) ? node->kind : LAYER_NODE_NONE;
}

/* The layer makes path, which was entered last, instead of what it had there; kind DIR, where it
 * has one already, changes nothing. */
static struct layer_node *layer_tree_make(
	struct layer_tree *tree, const char *path, enum layer_node_kind kind)
{
	struct layer_node *node = map_get(&tree->nodes, path);

	if (!node)
		node = unpack_new_node(tree, path);
	else if (kind == LAYER_NODE_DIR && unpack_is_there(node, tree->dir_made) &&
		 node->kind == kind)
		return node;
	else
		tree->in_dir = false;
	node->kind = kind;
	node->made = ++tree->clock;
	if (kind == LAYER_NODE_LEAF)
		node->gone = true;
	return node;
}

/* Kind of this layer's entry at any path. */
static enum layer_node_kind layer_tree_at(const struct layer_tree *tree, const char *path)
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
		if (!unpack_is_there(node, made))
			return LAYER_NODE_NONE;
		made = node->made;
		part[at] = path[at];
	}
	return node ? node->kind : LAYER_NODE_NONE;
}

/* The node of path for a whiteout's mark, made if it is missing. */
static struct layer_node *layer_tree_mark(struct layer_tree *tree, const char *path)
{
	return *path ? node_at(tree, path) : &tree->root;
}

/* Whether a file or link that lower layers have at path is still there. */
static bool layer_tree_keeps(const struct layer_tree *tree, const char *path)
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

/* Each leaf that is there, in no order: start with *pos = 0; false at the end. */
static bool layer_tree_each(
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

/*
 * Single files.
 */

/* Nothing is written through an existing name: it could be a link, or one of several names of a
 * file. */
static int unpack_create(int dir_fd, const char *path, bool exec, int *ret_fd, struct err *err)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	const char *name = fs_basename(path);
	mode_t mode = exec ? 0777 : 0666;
	int fd = openat(dir_fd, name, flags, mode);

	if (fd < 0 && errno == EEXIST) {
		int r = fs_remove_tree(dir_fd, name, err);
		if (r)
			return r;
		fd = openat(dir_fd, name, flags, mode);
	}
	if (fd < 0)
		return fs_error(err, errno, "making %s", path);
	*ret_fd = fd;
	return 0;
}

/* The last thing to do with it. A time that the file system cannot hold is left out. */
static int unpack_close(int fd, const char *path, const struct timespec *mtime, struct err *err)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *mtime};

	futimens(fd, times);
	if (close(fd) && errno != EINTR)
		return fs_error(err, errno, "writing %s", path);
	return 0;
}

static int unpack_make_file(const struct unpack_job *job, struct err *err)
{
	int fd;
	int r = unpack_create(job->dir_fd, job->path, job->exec, &fd, err);

	if (r)
		return r;
	r = job->len ? fs_write_fd(fd, job->path, job->data, job->len, err) : 0;
	if (r) {
		close(fd);
		return r;
	}
	return unpack_close(fd, job->path, &job->mtime, err);
}

static int make_link(const struct unpack_job *job, struct err *err)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, job->mtime};
	const char *name = fs_basename(job->path);
	int r = symlinkat(job->target, job->dir_fd, name);

	if (r && errno == EEXIST) {
		int rc = fs_remove_tree(job->dir_fd, name, err);
		if (rc)
			return rc;
		r = symlinkat(job->target, job->dir_fd, name);
	}
	if (r)
		return fs_error(err, errno, "making %s", job->path);
	utimensat(job->dir_fd, name, times, AT_SYMLINK_NOFOLLOW);
	return 0;
}

/*
 * Many.
 */

enum {
	JOBS_MAX = 256,
	FDS_MAX = 64,
	DATA_MAX = 1 << 20,
	ALONE_MAX = 8, /* jobs that are not worth a thread */
};

struct batch {
	struct unpack_job *jobs;
	size_t n_jobs;
	int fds[FDS_MAX];
	size_t n_fds;
	uint8_t *data; /* contents, paths, targets */
	size_t used;
};

struct unpack_pool {
	struct batch batches[2];
	unsigned turn;         /* the one that is being filled */
	struct par_task *task; /* makes the other one */
};

static struct unpack_pool *unpack_pool_new(void)
{
	return mem_alloc(1, sizeof(struct unpack_pool));
}

static void run_job(void *ctx, size_t i, unsigned worker UNUSED)
{
	struct unpack_job *job = &((struct batch *)ctx)->jobs[i];

	if (job->target)
		make_link(job, &job->err);
	else
		unpack_make_file(job, &job->err);
}

static void run_batch(void *ctx)
{
	struct batch *batch = ctx;

	par_for(batch->n_jobs, run_job, batch);
}

/* A batch was made: its first failure; it is empty then. */
static int batch_end(struct batch *batch, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < batch->n_fds; i++)
		close(batch->fds[i]);
	for (size_t i = 0; i < batch->n_jobs; i++) {
		struct err *failure = &batch->jobs[i].err;
		if (r == 0 && err_is_set(failure))
			r = err_move(err, failure);
		err_done(failure);
	}
	batch->n_fds = batch->n_jobs = batch->used = 0;
	return r;
}

/* Wait for the batch in work. */
static int unpack_finish(struct unpack_pool *pool, struct err *err)
{
	if (!pool->task)
		return 0;
	par_wait(pool->task);
	pool->task = NULL;
	return batch_end(&pool->batches[pool->turn ^ 1], err);
}

/* The batch that was filled goes into work. */
static int unpack_flush(struct unpack_pool *pool, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];
	int r = unpack_finish(pool, err);

	if (r || batch->n_jobs == 0)
		return r ? r : batch_end(batch, err);
	pool->task = par_start(run_batch, batch);
	pool->turn ^= 1;
	return 0;
}

static char *unpack_keep(struct batch *batch, const char *s)
{
	size_t size = strlen(s) + 1;
	char *copy = memcpy(batch->data + batch->used, s, size);

	batch->used += size;
	return copy;
}

/* A place for a job that is made in a later call; the caller fills in dir_fd, exec, mtime and len
 * (UNPACK_SMALL_MAX at most) bytes of data. path and target (may be NULL) are copied. A failure of
 * an earlier job shows here or in unpack_pool_wait. */
static int unpack_pool_add(struct unpack_pool *pool, const char *path, const char *target,
	size_t len, struct unpack_job **ret, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];
	size_t want = strlen(path) + 1 + (target ? strlen(target) + 1 : 0) + len;

	BUG_ON(want > DATA_MAX);
	if (batch->n_jobs == JOBS_MAX || want > DATA_MAX - batch->used) {
		int r = unpack_flush(pool, err);
		if (r)
			return r;
		batch = &pool->batches[pool->turn];
	}
	if (!batch->jobs) {
		batch->jobs = mem_alloc(JOBS_MAX, sizeof(*batch->jobs));
		batch->data = mem_grow(NULL, DATA_MAX, 1);
	}
	struct unpack_job *job = &batch->jobs[batch->n_jobs++];
	*job = (struct unpack_job){.path = unpack_keep(batch, path), .len = len};
	job->target = target ? unpack_keep(batch, target) : NULL;
	job->data = batch->data + batch->used;
	batch->used += len;
	*ret = job;
	return 0;
}

/* Take over a descriptor that jobs up to now may use as dir_fd: it is closed when they are done. */
static int unpack_pool_retire(struct unpack_pool *pool, int fd, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];

	batch->fds[batch->n_fds++] = fd;
	return batch->n_fds == FDS_MAX ? unpack_flush(pool, err) : 0;
}

/* Blocks until all is made, or returns the first failure. */
static int unpack_pool_wait(struct unpack_pool *pool, struct err *err)
{
	struct batch *batch = &pool->batches[pool->turn];
	int r = unpack_finish(pool, err);

	if (r)
		return r;
	if (batch->n_jobs > ALONE_MAX)
		run_batch(batch);
	for (size_t i = 0; i < batch->n_jobs && batch->n_jobs <= ALONE_MAX; i++)
		run_job(batch, i, 0);
	return batch_end(batch, err);
}

static void unpack_pool_free(struct unpack_pool *pool)
{
	if (!pool)
		return;
	par_wait(pool->task);
	for (int i = 0; i < 2; i++) {
		batch_end(&pool->batches[i], NULL);
		free(pool->batches[i].jobs);
		free(pool->batches[i].data);
	}
	free(pool);
}

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
static int unpack_open_parent(const struct apply *apply, const char *path)
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
	int fd = unpack_open_parent(apply, path);
	if (fd < 0)
		return fs_error(err, -fd, "opening the directory of %s", path);
	apply->dir_fd = fd;
	memcpy(apply->dir, path, len);
	apply->dir[len] = '\0';
	return 0;
}

static bool unpack_is_dir(int fd, const char *name)
{
	struct stat st;

	return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* A directory that only follows from what is below it. */
static int unpack_make_parent(void *ctx, const char *dir, struct err *err)
{
	struct apply *apply = ctx;
	const char *name = fs_basename(dir);
	int r = go_to_parent(apply, dir, err);

	if (r || mkdirat(apply->dir_fd, name, 0777) == 0)
		return r;
	if (errno != EEXIST)
		return fs_error(err, errno, "making directory %s", dir);
	if (unpack_is_dir(apply->dir_fd, name))
		return 0;
	AUTO_FREE char *shown = str_shown(dir);
	return err_set(err, E_IMAGE, "a layer has something below \"%s\", which is not a directory",
		shown);
}

/* A directory that the layer names. */
static int unpack_make_dir(struct apply *apply, const char *path, struct err *err)
{
	const char *name = fs_basename(path);

	if (mkdirat(apply->dir_fd, name, 0777) == 0)
		return 0;
	int errnum = errno;
	if (errnum == EEXIST && unpack_is_dir(apply->dir_fd, name))
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
static int unpack_list_dir(
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
static int unpack_sweep(struct apply *apply, const char *path, struct err *err)
{
	AUTO_STRV struct strv names = {0}, inner = {0};
	AUTO_FD int fd = -1;
	struct layer_node *node = layer_tree_mark(&apply->tree, path);

	if (node->emptied)
		return 0;
	node->emptied = true;
	int r = unpack_list_dir(apply, path, &names, &fd, err);
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
		r = unpack_sweep(apply, inner.v[i], err);
	return r;
}

static int unpack_remove_path(struct apply *apply, const char *path, struct err *err)
{
	enum layer_node_kind kind = layer_tree_at(&apply->tree, path);

	if (kind == LAYER_NODE_DIR)
		return unpack_sweep(apply, path, err);
	if (kind == LAYER_NODE_LEAF)
		return 0;
	int fd = unpack_open_parent(apply, path);
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
	return member->kind == LAYER_OPAQUE ? unpack_sweep(apply, member->path, err)
					    : unpack_remove_path(apply, member->path, err);
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
	fd = unpack_open_parent(apply, member->target);
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
	int r = layer_tree_enter(tree, member->path, unpack_make_parent, apply, err);
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
		return unpack_make_dir(apply, member->path, err);
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

/* A layer on its way onto a list. What a directory would need is asked of both: the tree knows what
 * this layer made, the list what lower layers left. */
struct listing {
	const struct entry_list *lower;
	struct layer_tree tree;
	bool names_only;
};

static void unpack_listing_done(struct listing *listing)
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

static int unpack_describe(struct listing *listing, struct layer_reader *reader,
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
	r = unpack_describe(listing, reader, member, &entry, err);
	if (r)
		return r;
	struct layer_node *node = layer_tree_make(tree, member->path, LAYER_NODE_LEAF);
	if (!node->entry)
		node->entry = arena_alloc(&tree->arena, sizeof(entry));
	*node->entry = entry;
	return 0;
}

/* Merge the rest of the lower list with the layer's entries, in order. */
static void unpack_merge(struct listing *listing, struct entry_list *list)
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
	AUTO(unpack_listing_done)
	struct listing listing = {.lower = list, .names_only = spec->names_only};
	struct layer_member member;
	int r;

	while ((r = layer_reader_next(reader, &member, err)) > 0) {
		r = list_member(&listing, reader, &member, err);
		if (r)
			return r;
	}
	if (r == 0)
		unpack_merge(&listing, list);
	return r;
}

/* The search for one path in a layer. */
struct search {
	const char *path;
	int out_fd;
	off_t start; /* where its content begins in out_fd; -1: it cannot go back */
	int found;
};

/* Whether path is dir or lies below it; dir "" holds everything. */
static bool is_at_or_below(const char *path, const char *dir)
{
	return !*dir || fs_below(path, dir);
}

/* Discard the content written so far: a later member of the layer replaces or removes the path. */
static int unpack_take_back(struct search *search, struct err *err)
{
	if (search->found != 1)
		return 0;
	if (search->start < 0 || ftruncate(search->out_fd, search->start) ||
		lseek(search->out_fd, search->start, SEEK_SET) < 0)
		return err_set(err, E_IMAGE, "a layer has %s twice", search->path);
	return 0;
}

static int write_out(struct search *search, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	const void *data;
	size_t len;
	int r = 0;

	if (member->kind == LAYER_HARDLINK)
		return err_set(err, E_IMAGE, "%s in a layer is a hard link to %s", search->path,
			member->target);
	if (member->kind == LAYER_LINK)
		return fs_write_fd(
			search->out_fd, search->path, member->target, strlen(member->target), err);
	while (r == 0 && (r = layer_reader_data(reader, &data, &len, err)) > 0)
		r = fs_write_fd(search->out_fd, search->path, data, len, err);
	return r;
}

/* A whiteout acts on lower layers only. */
static void search_whiteout(struct search *search, const struct layer_member *member)
{
	bool itself = str_eq(search->path, member->path);

	if (search->found || !is_at_or_below(search->path, member->path))
		return;
	if (member->kind == LAYER_WHITEOUT || !itself)
		search->found = -1;
}

static int search_member(struct search *search, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	bool itself = str_eq(search->path, member->path), dir = member->kind == LAYER_DIR;

	if (!itself && is_at_or_below(member->path, search->path) && search->found == 0)
		search->found = -1; /* it is a directory */
	/* A directory above changes nothing, a file above leaves nothing below. */
	if (!is_at_or_below(search->path, member->path) || (dir && !itself))
		return 0;
	int r = unpack_take_back(search, err);
	if (r)
		return r;
	search->found = itself && !dir ? 1 : -1;
	return search->found == 1 ? write_out(search, reader, member, err) : 0;
}

int unpack_file(const struct unpack_spec *spec, const char *path, int out_fd, int *ret_found,
	struct err *err)
{
	AUTO_LAYER_READER struct layer_reader *reader = layer_reader_new(spec);
	struct search search = {.path = path, .out_fd = out_fd};
	struct layer_member member;
	int r;

	search.start = lseek(out_fd, 0, SEEK_CUR);
	while ((r = layer_reader_next(reader, &member, err)) > 0) {
		r = 0;
		if (member.kind == LAYER_WHITEOUT || member.kind == LAYER_OPAQUE)
			search_whiteout(&search, &member);
		else
			r = search_member(&search, reader, &member, err);
		if (r)
			return r;
	}
	if (r == 0)
		*ret_found = search.found;
	return r;
}

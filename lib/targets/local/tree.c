/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "oci/image/image.h"
#include "oci/layout/layout.h"

#define SPARE_TEMP "half-"
#define SPARE_LOCK "lock"
#define SPARE_FORM "2:" /* of its directory: "tree" and COLLECT_DIRS */

enum { SPARE_NAME_SIZE = SHA256_HEX_SIZE, DEPTH_MAX = 256 };

/* An image with the layout that has its layers. */
struct source {
	struct layout *layout;
	struct image image;
	size_t n_below; /* of dlrun's layers: those that a spare holds */
};

static void tree_source_done(struct source *source)
{
	image_done(&source->image);
	layout_free(source->layout);
}

static bool tree_is_below(enum image_role role)
{
	return role == IMAGE_ROLE_FULL || role == IMAGE_ROLE_BIG;
}

static int source_open(struct source *source, const struct attempt_job *job, struct err *err)
{
	int r = layout_open(job->layout, false, &source->layout, err);

	if (r == 0)
		r = image_load(source->layout, job->image, &source->image, err);
	for (size_t i = 0; r == 0 && i < source->image.n_layers; i++)
		source->n_below += tree_is_below(source->image.layers[i].role);
	return r;
}

/* The name of the spare that the image builds on. */
static void spare_name(const struct source *source, char out[static SPARE_NAME_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t sha256[SHA256_SIZE];
	char mask[16];

	digest_begin(&digest, DIGEST_SHA256);
	/* The umask decides the modes of the files. */
	digest_add(&digest, mask,
		(size_t)snprintf(mask, sizeof(mask), SPARE_FORM "%o", (unsigned)fs_umask()));
	digest_add(&digest, source->image.workdir, strlen(source->image.workdir) + 1);
	for (size_t i = 0; i < source->image.n_layers; i++) {
		const struct image_layer *layer = &source->image.layers[i];
		if (tree_is_below(layer->role))
			digest_add(&digest, layer->diff_id, strlen(layer->diff_id) + 1);
	}
	digest_end(&digest, sha256);
	hex_encode(sha256, sizeof(sha256), out);
}

static int unpack(const struct source *source, const struct image *image, size_t skip,
	const char *path, struct err *err)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	int r = image_unpack(source->layout, image, skip, fd, err);
	if (r < 0 && image_remove_damaged(source->layout, image) > 0)
		err_prefix(err, "the next submit of this tree repairs it");
	return r;
}

/* dir is new, and gets a tree. */
static int unpack_new(
	const struct source *source, const struct image *image, const char *dir, struct err *err)
{
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);

	if (mkdir(dir, 0755) < 0 || mkdir(tree, 0755) < 0)
		return fs_error(err, errno, "making directory %s", tree);
	return unpack(source, image, 0, tree, err);
}

/*
 * The tree
 */

static bool tree_take_spare(const struct source *source, const char *spares, const char *path)
{
	char name[SPARE_NAME_SIZE];

	if (!spares || source->n_below == 0)
		return false;
	spare_name(source, name);
	AUTO_FREE char *spare = fs_join(spares, name);
	return rename(spare, path) == 0;
}

/* temp becomes a directory with the tree in it. */
static int fill_tree(
	const char *temp, const struct attempt_job *job, bool *ret_spare, struct err *err)
{
	AUTO_FREE char *tree = fs_join(temp, ATTEMPT_TREE);
	AUTO(tree_source_done) struct source source = {0};
	AUTO_ERR struct err damaged = {0};

	int r = source_open(&source, job, err);
	if (r < 0)
		return r;
	r = fs_remove_tree(AT_FDCWD, temp, err);
	if (r < 0)
		return r;
	*ret_spare = tree_take_spare(&source, job->spares, temp);
	if (*ret_spare && unpack(&source, &source.image, source.n_below, tree, &damaged) < 0) {
		/* The spare may have been changed: fall back to the layers, which are
		 * authoritative. */
		log_note("the spare tree did not fit: %s", damaged.message);
		*ret_spare = false;
		r = fs_remove_tree(AT_FDCWD, temp, err);
	}
	return r < 0 || *ret_spare ? r : unpack_new(&source, &source.image, temp, err);
}

/* The caller's place in the tree may hold no file of the snapshot. */
static int make_cwd(const char *tree, const char *cwd, struct err *err)
{
	AUTO_FREE char *path = fs_join(tree, cwd);

	return fs_mkdirs(path, 0755, err);
}

int tree_make(const char *dir, const struct attempt_job *job, bool *ret_spare, struct err *err)
{
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE), *temp = fs_join(dir, ATTEMPT_TEMP);
	AUTO_FREE char *filled = fs_join(temp, ATTEMPT_TREE);
	AUTO_FREE char *listed = fs_join(temp, COLLECT_DIRS), *list = fs_join(dir, COLLECT_DIRS);
	int r = 0;

	*ret_spare = false;
	if (access(tree, F_OK) == 0)
		return make_cwd(tree, job->spec.cwd, err);
	if (!job->layout || !job->image)
		return err_set(err, E_RUN_START, "%s has neither a tree nor an image", dir);
	r = fill_tree(temp, job, ret_spare, err);
	if (r == 0)
		r = make_cwd(filled, job->spec.cwd, err);
	if (r == 0)
		rename(listed, list);
	if (r == 0 && rename(filled, tree) < 0)
		r = fs_error(err, errno, "renaming %s", filled);
	return r < 0 ? r : fs_remove_tree(AT_FDCWD, temp, err);
}

/*
 * Spares
 */

struct spare {
	char *name;
	struct timespec mtime;
};
struct spare_list VEC_OF(struct spare);

static void spare_list_done(struct spare_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		free(list->v[i].name);
	vec_done(list);
}

static int tree_newest_first(const void *a, const void *b)
{
	const struct spare *x = a, *y = b;

	if (x->mtime.tv_sec != y->mtime.tv_sec)
		return x->mtime.tv_sec < y->mtime.tv_sec ? 1 : -1;
	return (x->mtime.tv_nsec < y->mtime.tv_nsec) - (x->mtime.tv_nsec > y->mtime.tv_nsec);
}

/* List spares of one kind: half-made ones, or whole ones, newest first. */
static void list_spares(int dir_fd, bool half, struct spare_list *ret)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_DIR DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	struct stat st;

	while (dir && (entry = readdir(dir))) {
		const char *name = entry->d_name;
		bool is_half = str_starts(name, SPARE_TEMP);
		if (is_half != half || (!half && strlen(name) != SPARE_NAME_SIZE - 1))
			continue;
		if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			*vec_push(ret) = (struct spare){mem_strdup(name), st.st_mtim};
	}
	vec_sort(ret, tree_newest_first);
}

/* Rename the spare before removing it, so that no process takes it meanwhile. */
static int remove_spare(int dir_fd, const char *name, struct err *err)
{
	AUTO_FREE char *half = mem_printf(SPARE_TEMP "gone-%s", name);

	if (str_starts(name, SPARE_TEMP))
		return fs_remove_tree(dir_fd, name, err);
	if (renameat(dir_fd, name, dir_fd, half) < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "removing %s", name);
	return fs_remove_tree(dir_fd, half, err);
}

static int remove_spares(int dir_fd, bool half, size_t keep, struct err *err)
{
	AUTO(spare_list_done) struct spare_list list = {0};
	int r = 0;

	list_spares(dir_fd, half, &list);
	for (size_t i = keep; r == 0 && i < list.n; i++)
		r = remove_spare(dir_fd, list.v[i].name, err);
	return r;
}

static bool tree_has_space(const struct attempt_job *job)
{
	uint64_t bytes;

	return fs_free_bytes(job->spares, &bytes, NULL) == 0 &&
	       bytes > 2 * job->tree_bytes + SPARES_FREE_MIN;
}

/* dlrun's layers without the delta; the array stays the source's. */
static struct image below_delta(const struct source *source)
{
	struct image image = source->image;

	while (image.n_layers > 0 && image.layers[image.n_layers - 1].role == IMAGE_ROLE_DELTA)
		image.n_layers--;
	return image;
}

static int build_spare(
	const struct source *source, const char *spares, const char *name, struct err *err)
{
	AUTO_FREE char *half = mem_printf("%s/" SPARE_TEMP "%s", spares, name);
	AUTO_FREE char *whole = mem_printf("%s/%s", spares, name);
	struct image image = below_delta(source);

	int r = unpack_new(source, &image, half, err);
	if (r == 0)
		collect_list_dirs(half);
	if (r == 0 && rename(half, whole) < 0)
		r = fs_error(err, errno, "renaming %s", half);
	if (r < 0)
		fs_remove_tree(AT_FDCWD, half, NULL);
	return r;
}

/* Under the lock. */
static int make_missing(const struct source *source, const char *spares, struct err *err)
{
	AUTO_FD int dir_fd = open(spares, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char name[SPARE_NAME_SIZE];

	if (dir_fd < 0)
		return fs_error(err, errno, "%s", spares);
	spare_name(source, name);
	if (faccessat(dir_fd, name, F_OK, 0) == 0)
		return 0;
	int r = remove_spares(dir_fd, true, 0, err);
	if (r == 0)
		r = build_spare(source, spares, name, err);
	return r < 0 ? r : remove_spares(dir_fd, false, SPARES_MAX, err);
}

/* 1: ours; 0: another process has the lock. */
static int lock_spares(const char *dir, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, SPARE_LOCK);
	AUTO_ERR struct err held = {0};
	int r = fs_lock(path, true, 0, ret_fd, &held);

	if (r < 0 && held.id == E_IO_LOCK)
		return 0;
	return r < 0 ? err_move(err, &held) : 1;
}

int spare_make(const struct attempt_job *job, struct err *err)
{
	AUTO(tree_source_done) struct source source = {0};
	AUTO_FD int lock_fd = -1;

	if (!job->layout || !job->image || !job->spares)
		return 0;
	int r = fs_private_dir(job->spares, err);
	if (r == 0)
		r = source_open(&source, job, err);
	if (r < 0 || source.n_below == 0 || !tree_has_space(job))
		return r;
	r = lock_spares(job->spares, &lock_fd, err);
	return r <= 0 ? r : make_missing(&source, job->spares, err);
}

static size_t count_spares(int dir_fd, bool half)
{
	AUTO(spare_list_done) struct spare_list list = {0};

	list_spares(dir_fd, half, &list);
	return list.n;
}

int spares_drop(const char *dir, bool dry_run, uint64_t *ret_bytes, size_t *ret_n, struct err *err)
{
	AUTO_FD int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), lock_fd = -1;

	*ret_bytes = 0;
	*ret_n = 0;
	if (dir_fd < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", dir);
	int r = lock_spares(dir, &lock_fd, err);
	if (r <= 0)
		return r;
	*ret_bytes = tree_size(dir);
	*ret_n = count_spares(dir_fd, true) + count_spares(dir_fd, false);
	if (dry_run)
		return 0;
	r = remove_spares(dir_fd, true, 0, err);
	if (r == 0)
		r = remove_spares(dir_fd, false, 0, err);
	/* The lock is ours: a process that waits for it finds that it has lost its name, and makes
	 * a new one. */
	if (r == 0)
		unlinkat(dir_fd, SPARE_LOCK, 0);
	return r;
}

/*
 * Sizes
 */

/* Count a file with several names only once. */
static bool is_seen(const struct stat *st, struct map *seen)
{
	static char mark;
	char key[48];

	if (S_ISDIR(st->st_mode) || st->st_nlink < 2)
		return false;
	snprintf(key, sizeof(key), "%llu:%llu", (unsigned long long)st->st_dev,
		(unsigned long long)st->st_ino);
	return map_put(seen, key, &mark) != NULL;
}

static uint64_t size_below(int dir_fd, unsigned depth, struct map *seen)
{
	AUTO_DIR DIR *dir = fdopendir(dir_fd);
	struct dirent *entry;
	uint64_t sum = 0;
	struct stat st;

	if (!dir)
		close(dir_fd);
	while (dir && depth < DEPTH_MAX && (entry = readdir(dir))) {
		const char *name = entry->d_name;
		if (str_eq(name, ".") || str_eq(name, ".."))
			continue;
		if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		sum += is_seen(&st, seen) ? 0 : (uint64_t)st.st_blocks * 512;
		if (!S_ISDIR(st.st_mode))
			continue;
		int fd = openat(dirfd(dir), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd >= 0)
			sum += size_below(fd, depth + 1, seen);
	}
	return sum;
}

uint64_t tree_size(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	AUTO(map_done) struct map seen = {0};

	return fd < 0 ? 0 : size_below(fd, 0, &seen);
}

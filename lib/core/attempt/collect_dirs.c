/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect_impl.h"
#include "core/attempt/collect_rules.h"

enum { WORKERS_MAX = 16, DIRS_BYTES_MAX = 64 << 20, NS_PER_S = 1000 * 1000 * 1000 };

/*
 * Records "INODE CTIME PATH\0", in any order. CTIME in ns; 0: it may change without a new one.
 */

struct record {
	uint64_t inode, ctime_ns;
	const char *path;
};

/* *at: where the record begins, and then the next one. */
static bool read_record(const struct buf *text, size_t *at, struct record *ret)
{
	char *rest;

	while (*at < text->len) {
		const char *begin = text->data + *at;
		*at += strlen(begin) + 1;
		ret->inode = strtoull(begin, &rest, 10);
		if (!ret->inode || *rest != ' ')
			continue;
		ret->ctime_ns = strtoull(rest + 1, &rest, 10);
		ret->path = rest + 1;
		if (*rest == ' ')
			return true;
	}
	return false;
}

static uint64_t ns_of(const struct timespec *time)
{
	return (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

struct lister {
	void *names;
	struct buf text;
};

struct listing_dirs {
	int tree_fd;
	dev_t dev;
	uint64_t now_ns;
	struct map known;    /* paths with records of their own: none is looked for below others */
	struct strv changed; /* those of them whose names have to be read again */
	struct lister listers[WORKERS_MAX];
};

struct listed {
	struct listing_dirs *all;
	struct par_queue *queue;
	const char *path;
	int fd;
};

static void add_record(
	struct listing_dirs *all, unsigned worker, const char *path, const struct stat *st)
{
	struct lister *lister = &all->listers[worker];
	uint64_t ctime_ns = ns_of(&st->st_ctim);

	if (!lister->names) {
		lister->names = mem_alloc(1, OS_NAMES_SIZE);
		buf_init(&lister->text, DIRS_BYTES_MAX);
	}
	buf_addf(&lister->text, "%llu %llu %s", (unsigned long long)st->st_ino,
		(unsigned long long)(ctime_ns < all->now_ns ? ctime_ns : 0), path);
	buf_addc(&lister->text, '\0');
}

static void list_entry(void *ctx, const char *name, unsigned char type)
{
	const struct listed *listed = ctx;

	if (str_eq(name, ".") || str_eq(name, "..") || collect_is_cache(name) ||
		!collect_is_dir(listed->fd, name, type))
		return;
	AUTO_FREE char *path = *listed->path ? fs_join(listed->path, name) : mem_strdup(name);
	if (!map_get(&listed->all->known, path))
		par_queue_add(listed->queue, TAKE(path));
}

static void list_dir(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct listing_dirs *all = ctx;
	AUTO_FREE char *path = item;
	AUTO_FD int fd =
		fs_open_beneath(all->tree_fd, *path ? path : ".", O_RDONLY | O_DIRECTORY, 0);
	struct listed listed = {all, queue, path, fd};
	struct stat st;

	for (size_t i = 0; !*path && i < all->changed.n; i++)
		par_queue_add(queue, TAKE(all->changed.v[i]));
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != all->dev)
		return;
	add_record(all, worker, path, &st);
	os_list_names(fd, all->listers[worker].names, list_entry, &listed);
}

/* Check the directories of an earlier list: keep the unchanged ones, queue the changed ones. */
static void look_again(struct listing_dirs *all, const struct buf *before)
{
	struct record record;
	struct stat st;

	for (size_t at = 0; read_record(before, &at, &record);) {
		if (!*record.path ||
			fstatat(all->tree_fd, record.path, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (st.st_ino != record.inode || ns_of(&st.st_ctim) != record.ctime_ns)
			strv_add(&all->changed, record.path);
		else
			add_record(all, 0, record.path, &st);
		map_put(&all->known, record.path, all);
	}
}

static void list_tree(int fd, const struct buf *before, struct buf *ret)
{
	struct listing_dirs *all = mem_alloc(1, sizeof(*all));
	struct timespec now;
	struct stat st;

	BUG_ON(par_width() > WORKERS_MAX);
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	all->tree_fd = fd;
	all->now_ns = ns_of(&now);
	if (fstat(fd, &st) == 0) {
		all->dev = st.st_dev;
		look_again(all, before);
		par_queue_run_apart(list_dir, all, mem_strdup(""), fd);
	}
	for (size_t i = 0; i < WORKERS_MAX; i++) {
		struct lister *lister = &all->listers[i];

		if (lister->names)
			buf_add(ret, lister->text.data, lister->text.len);
		buf_done(&lister->text);
		free(lister->names);
	}
	map_done(&all->known);
	strv_done(&all->changed);
	free(all);
}

void collect_list_dirs(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_DIRS);
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);
	AUTO_FD int fd = open(tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	AUTO_BUF struct buf before = {0}, text;

	buf_init(&text, DIRS_BYTES_MAX);
	fs_read(path, DIRS_BYTES_MAX, &before, NULL, NULL);
	if (fd >= 0)
		list_tree(fd, &before, &text);
	if (buf_check(&text, path, NULL) < 0 ||
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL) < 0)
		unlink(path);
}

/*
 * Reading the list
 */

void collect_dirs_read(const char *dir, struct map *ret)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_DIRS);
	AUTO_BUF struct buf text = {0};
	struct record record;

	if (fs_read(path, DIRS_BYTES_MAX, &text, NULL, NULL) < 0)
		return;
	for (size_t at = 0; read_record(&text, &at, &record);)
		map_put(ret, record.path, (void *)(uintptr_t)record.inode);
}

bool collect_dirs_moved(const struct map *dirs, const char *path, const struct stat *st)
{
	return dirs->n && map_get(dirs, path) != (void *)(uintptr_t)st->st_ino;
}

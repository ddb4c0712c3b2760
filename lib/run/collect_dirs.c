#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/par.h"
#include "base/str.h"
#include "run/collect_impl.h"
#include "run/collect_rules.h"

#define DIRS_NAME "started.dirs"

enum { WORKERS_MAX = 16, DIRS_BYTES_MAX = 64 << 20 };

/*
 * Records "INODE PATH\0", in any order
 */

struct lister {
	void *names;
	struct buf text;
};

struct listing_dirs {
	int tree_fd;
	dev_t dev;
	struct lister listers[WORKERS_MAX];
};

struct listed {
	struct par_queue *queue;
	const char *path;
	int fd;
};

static void list_entry(void *ctx, const char *name, unsigned char type)
{
	const struct listed *listed = ctx;

	if (str_eq(name, ".") || str_eq(name, "..") || collect_is_cache(name) ||
		!collect_is_dir(listed->fd, name, type))
		return;
	par_queue_add(
		listed->queue, *listed->path ? fs_join(listed->path, name) : mem_strdup(name));
}

static void list_dir(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct listing_dirs *all = ctx;
	struct lister *lister = &all->listers[worker];
	AUTO_FREE char *path = item;
	AUTO_FD int fd =
		fs_open_beneath(all->tree_fd, *path ? path : ".", O_RDONLY | O_DIRECTORY, 0);
	struct listed listed = {queue, path, fd};
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != all->dev)
		return;
	if (!lister->names) {
		lister->names = mem_alloc(1, OS_NAMES_SIZE);
		buf_init(&lister->text, DIRS_BYTES_MAX);
	}
	buf_addf(&lister->text, "%llu %s", (unsigned long long)st.st_ino, path);
	buf_addc(&lister->text, '\0');
	os_list_names(fd, lister->names, list_entry, &listed);
}

void collect_dirs_write(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, DIRS_NAME);
	AUTO_FREE char *tree = fs_join(dir, ATTEMPT_TREE);
	AUTO_FD int fd = open(tree, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct listing_dirs *all = mem_alloc(1, sizeof(*all));
	AUTO_BUF struct buf text;
	struct stat st;

	BUG_ON(par_width() > WORKERS_MAX);
	buf_init(&text, DIRS_BYTES_MAX);
	all->tree_fd = fd;
	if (fd >= 0 && fstat(fd, &st) == 0) {
		all->dev = st.st_dev;
		par_queue_run_apart(list_dir, all, mem_strdup(""), fd);
	}
	for (size_t i = 0; i < WORKERS_MAX; i++) {
		struct lister *lister = &all->listers[i];

		if (lister->names)
			buf_add(&text, lister->text.data, lister->text.len);
		buf_done(&lister->text);
		free(lister->names);
	}
	free(all);
	if (buf_check(&text, path, NULL) < 0 ||
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL) < 0)
		unlink(path);
}

/*
 * What it tells
 */

void collect_dirs_read(const char *dir, struct map *ret)
{
	AUTO_FREE char *path = fs_join(dir, DIRS_NAME);
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, DIRS_BYTES_MAX, &text, NULL, NULL) < 0)
		return;
	for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1) {
		char *rest;
		uintptr_t inode = (uintptr_t)strtoull(text.data + at, &rest, 10);

		if (inode && *rest == ' ')
			map_put(ret, rest + 1, (void *)inode);
	}
}

bool collect_dirs_moved(const struct map *dirs, const char *path, const struct stat *st)
{
	return dirs->n && map_get(dirs, path) != (void *)(uintptr_t)st->st_ino;
}

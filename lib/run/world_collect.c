#include "run/world_collect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"

enum { DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };

struct collector {
	const char *path; /* the output */
	struct err *err;  /* of the first failure */
	int r;
};

static void fail(struct collector *collector, int errnum)
{
	AUTO_FREE char *shown = str_shown(collector->path);

	if (collector->r == 0)
		collector->r = fs_error(collector->err, errnum,
			"output '%s': moving what the program put in its place", shown);
}

static void move(struct collector *collector, int from, int to, const char *name, unsigned depth);

static void move_all(struct collector *collector, int from, int to, unsigned depth)
{
	int copy = openat(from, ".", DIR_FLAGS);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!dir) {
		fail(collector, errno);
		if (copy >= 0)
			close(copy);
	}
	while (dir && (entry = readdir(dir)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			move(collector, from, to, entry->d_name, depth);
}

/* Both have a directory of that name. */
static void merge(struct collector *collector, int from, int to, const char *name, unsigned depth)
{
	AUTO_FD int below = openat(from, name, DIR_FLAGS);
	AUTO_FD int to_below = openat(to, name, DIR_FLAGS);

	if (below < 0 || to_below < 0 || depth > COLLECT_DEPTH_MAX) {
		fail(collector, below < 0 || to_below < 0 ? errno : E2BIG);
		return;
	}
	move_all(collector, below, to_below, depth + 1);
	unlinkat(from, name, AT_REMOVEDIR);
}

static void move(struct collector *collector, int from, int to, const char *name, unsigned depth)
{
	if (renameat(from, name, to, name) == 0)
		return;
	if (errno == ENOTEMPTY || errno == EEXIST)
		merge(collector, from, to, name, depth);
	else
		fail(collector, errno);
}

/* The directory above path below base, and the last component. -1: it is not there. */
static int open_parent(int base, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	AUTO_FREE char *parent = slash ? mem_strndup(path, (size_t)(slash - path)) : NULL;

	*ret_name = slash ? slash + 1 : path;
	return parent ? fs_open_beneath(base, parent, O_RDONLY | O_DIRECTORY, 0)
		      : openat(base, ".", DIR_FLAGS);
}

/* 1 when the output's link has become a directory. */
static int collect_one(struct collector *collector, int tree_fd, int outputs_fd)
{
	const char *name;
	AUTO_FD int from = open_parent(tree_fd, collector->path, &name);
	struct stat st;

	if (from < 0 || fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
		return 0;
	AUTO_FD int to = open_parent(outputs_fd, collector->path, &name);
	if (to < 0)
		fail(collector, ENOENT);
	else
		move(collector, from, to, name, 0);
	return 1;
}

int world_collect(const char *tree, const struct attempt_job *job, int *ret_n, struct err *err)
{
	AUTO_FD int tree_fd = open(tree, DIR_FLAGS);
	AUTO_FD int outputs_fd = open(job->outputs, DIR_FLAGS);
	struct collector collector = {.err = err};

	*ret_n = 0;
	if (tree_fd < 0 || outputs_fd < 0)
		return 0;
	for (size_t i = 0; i < job->world.outputs.n; i++) {
		collector.path = job->world.outputs.v[i];
		*ret_n += collect_one(&collector, tree_fd, outputs_fd);
	}
	return collector.r;
}

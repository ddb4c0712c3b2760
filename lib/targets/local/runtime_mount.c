/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/runtime_mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/target/copy.h"

enum { DEPTH_MAX = 64, DIR_MODE = 0755, DIR_FLAGS = O_RDONLY | O_DIRECTORY };

/*
 * The plan
 */

static bool is_inside(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	return strncmp(path, dir, len) == 0 && path[len] == '/';
}

static int runtime_mount_check_path(const char *path, struct err *err)
{
	AUTO_FREE char *normal = NULL;

	if (runtime_path(path, "a path of the run", &normal, NULL) == 0 && str_eq(normal, path))
		return 0;
	AUTO_FREE char *shown = str_shown(path);
	return err_set(err, E_DATA, "'%s' is not a valid path in the working tree", shown);
}

static int runtime_mount_by_path(const void *a, const void *b)
{
	const struct mount *x = a, *y = b;
	int order = strcmp(x->path, y->path);

	return order ? order : (int)x->kind - (int)y->kind;
}

static int check_pair(const struct mount *outer, const struct mount *mount, struct err *err)
{
	AUTO_FREE char *shown = str_shown(mount->path), *outer_shown = str_shown(outer->path);
	bool same = str_eq(outer->path, mount->path);

	if (same && outer->kind != mount->kind)
		return err_set(err, E_RUN_OUTPUTS, "'%s' cannot be both data and an output", shown);
	if (same && mount->kind == MOUNT_DATA && !str_eq(outer->from, mount->from))
		return err_set(err, E_RUN_DATA, "data '%s' has two places", shown);
	if (same || outer->kind == MOUNT_OUTPUT || mount->kind == MOUNT_DATA)
		return 0;
	return err_set(err, E_RUN_OUTPUTS, "the output '%s' would lie in the data '%s'", shown,
		outer_shown);
}

/* Against all before it: at most some hundreds. */
static int place_mount(const struct mount_list *before, struct mount *mount, struct err *err)
{
	vec_foreach (const struct mount, outer, before) {
		if (!str_eq(outer->path, mount->path) && !is_inside(mount->path, outer->path))
			continue;
		int r = check_pair(outer, mount, err);
		if (r < 0)
			return r;
		if (outer->kind == MOUNT_OUTPUT && !outer->below && !mount->below)
			mount->below = outer->path;
	}
	return 0;
}

static int runtime_mount_collect(
	const struct runtime *runtime, struct mount_list *all, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < runtime->outputs.n; i++)
		*vec_push(all) =
			(struct mount){.kind = MOUNT_OUTPUT, .path = runtime->outputs.v[i]};
	for (size_t i = 0; i < runtime->data.n; i++)
		*vec_push(all) = (struct mount){.kind = MOUNT_DATA,
			.path = runtime->data.v[i].path,
			.from = runtime->data.v[i].from};
	for (size_t i = 0; r == 0 && i < all->n; i++) {
		r = runtime_mount_check_path(all->v[i].path, err);
		if (r == 0 && all->v[i].from && all->v[i].from[0] != '/')
			r = err_set(err, E_DATA, "data '%s' has no absolute place", all->v[i].path);
	}
	vec_sort(all, runtime_mount_by_path);
	return r;
}

static void mount_list_done(struct mount_list *list)
{
	vec_done(list);
}

int mount_plan(const struct runtime *runtime, struct mount_list *ret, struct err *err)
{
	AUTO(mount_list_done) struct mount_list all = {0}, plan = {0};

	int r = runtime_mount_collect(runtime, &all, err);
	for (size_t i = 0; r == 0 && i < all.n; i++) {
		struct mount *mount = &all.v[i];
		r = place_mount(&plan, mount, err);
		if (r == 0 && (plan.n == 0 || !str_eq(plan.v[plan.n - 1].path, mount->path)))
			*vec_push(&plan) = *mount;
	}
	if (r < 0)
		return r;
	*ret = plan;
	plan = (struct mount_list){0};
	return 0;
}

/*
 * Directories, without following links
 */

struct mounter {
	const char *outputs;
	int tree_fd, outputs_fd;
	size_t n_links;
};

static enum err_id runtime_mount_id_of(const struct mount *mount)
{
	return mount->kind == MOUNT_OUTPUT ? E_RUN_OUTPUTS : E_RUN_DATA;
}

static const char *runtime_mount_name_of(const struct mount *mount)
{
	return mount->kind == MOUNT_OUTPUT ? "output" : "data";
}

/* "the output 'a/b' cannot be made: 'a' is a file": what stands where a directory should be. */
static int in_the_way(
	const struct mount *mount, const char *path, size_t len, int errnum, struct err *err)
{
	AUTO_FREE char *part = mem_strndup(path, len), *shown = str_shown(part);
	AUTO_FREE char *mount_shown = str_shown(mount->path);

	if (errnum == ELOOP || errnum == EMLINK)
		return err_set(err, runtime_mount_id_of(mount), "%s '%s': '%s' is a symbolic link",
			runtime_mount_name_of(mount), mount_shown, shown);
	if (errnum == ENOTDIR)
		return err_set(err, runtime_mount_id_of(mount),
			"%s '%s': '%s' is a file, no directory", runtime_mount_name_of(mount),
			mount_shown, shown);
	return fs_error(
		err, errnum, "%s '%s': %s", runtime_mount_name_of(mount), mount_shown, shown);
}

/* ELOOP for a link and ENOTDIR for a file: systems differ about O_DIRECTORY with O_NOFOLLOW. */
static int open_child(int fd, const char *name)
{
	int child = openat(fd, name, DIR_FLAGS | O_NOFOLLOW | O_CLOEXEC);
	int errnum = errno;
	struct stat st;

	if (child >= 0)
		return child;
	if (errnum == ENOTDIR && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		S_ISLNK(st.st_mode))
		errnum = ELOOP;
	return -errnum;
}

/* The directory len bytes of mount->path name below base_fd, made with its parents. */
static int make_dirs(
	const struct mount *mount, int base_fd, size_t len, int *ret_fd, struct err *err)
{
	AUTO_FD int fd = openat(base_fd, ".", DIR_FLAGS | O_CLOEXEC);
	const char *path = mount->path;

	if (fd < 0)
		return fs_error(err, errno, "opening a directory of the run");
	for (size_t at = 0; at < len;) {
		size_t part = strcspn(path + at, "/");
		AUTO_FREE char *name = mem_strndup(path + at, part);
		if (mkdirat(fd, name, DIR_MODE) < 0 && errno != EEXIST)
			return in_the_way(mount, path, at + part, errno, err);
		int child = open_child(fd, name);
		if (child < 0)
			return in_the_way(mount, path, at + part, -child, err);
		close(fd);
		fd = child;
		at += part + (path[at + part] == '/');
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* The directory above mount->path, whose last component is *ret_name. */
static int runtime_mount_make_parent(
	const struct mount *mount, int base_fd, int *ret_fd, const char **ret_name, struct err *err)
{
	const char *slash = strrchr(mount->path, '/');

	*ret_name = fs_basename(mount->path);
	return make_dirs(mount, base_fd, slash ? (size_t)(slash - mount->path) : 0, ret_fd, err);
}

static bool is_link_to(int fd, const char *name, const char *target)
{
	char text[PATH_MAX];
	ssize_t n = readlinkat(fd, name, text, sizeof(text));

	return n >= 0 && (size_t)n == strlen(target) && memcmp(text, target, (size_t)n) == 0;
}

/*
 * Outputs
 */

static int link_output(
	const struct mount *mount, int fd, const char *name, const char *target, struct err *err)
{
	if (symlinkat(target, fd, name) == 0)
		return 0;
	return in_the_way(mount, mount->path, strlen(mount->path), errno, err);
}

/* The snapshot's directory becomes the output's. */
static int move_output(const struct mount *mount, int fd, const char *name, int to_fd,
	const char *target, struct err *err)
{
	AUTO_FD int from_fd = open_child(fd, name);

	if (from_fd < 0)
		return in_the_way(mount, mount->path, strlen(mount->path), -from_fd, err);
	AUTO_COPY struct copy *copy = copy_new(from_fd, to_fd, target, NULL, NULL);
	int r = copy_step(copy, -1, err);
	if (r == 0)
		r = fs_remove_tree(fd, name, err);
	return r < 0 ? r : link_output(mount, fd, name, target, err);
}

static int mount_output(struct mounter *mounter, const struct mount *mount, struct err *err)
{
	AUTO_FREE char *target = fs_join(mounter->outputs, mount->path);
	AUTO_FD int to_fd = -1, fd = -1;
	const char *name;
	struct stat st;

	int r = make_dirs(mount, mounter->outputs_fd, strlen(mount->path), &to_fd, err);
	if (r < 0 || mount->below)
		return r;
	r = runtime_mount_make_parent(mount, mounter->tree_fd, &fd, &name, err);
	if (r < 0 || is_link_to(fd, name, target))
		return r;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return link_output(mount, fd, name, target, err);
	if (S_ISLNK(st.st_mode))
		return in_the_way(mount, mount->path, strlen(mount->path), ELOOP, err);
	return move_output(mount, fd, name, to_fd, target, err);
}

/*
 * Data
 */

static int no_place(const struct mount *mount, int errnum, struct err *err)
{
	AUTO_FREE char *path = str_shown(mount->path), *from = str_shown(mount->from);

	err_set_errno(err, E_RUN_DATA, errnum, "data '%s' is not at %s", path, from);
	return err_hint(err, "data: {%s: /srv/data}   # of the target: where it is", path);
}

static int two_kinds(const struct mount *mount, struct err *err)
{
	AUTO_FREE char *path = str_shown(mount->path), *from = str_shown(mount->from);

	return err_set(err, E_RUN_DATA,
		"data '%s': one of the snapshot and %s is a file, the other a directory", path,
		from);
}

static int runtime_mount_merge(struct mounter *mounter, const struct mount *mount, int fd,
	const char *from, unsigned depth, struct err *err);

/* Entries of the tree stay; a directory that both have is merged. */
static int merge_entry(struct mounter *mounter, const struct mount *mount, int fd, const char *name,
	const char *from, unsigned depth, struct err *err)
{
	AUTO_FREE char *place = mem_printf("%s/%s", from, name);
	struct stat ours, theirs;

	if (symlinkat(place, fd, name) == 0) {
		if (++mounter->n_links <= MOUNT_LINKS_MAX)
			return 0;
		AUTO_FREE char *shown = str_shown(mount->path);
		err_set(err, E_DATA_LIMIT,
			"data '%s' has more than %d names beside files of the snapshot", shown,
			MOUNT_LINKS_MAX);
		return err_hint(err, "put the snapshot's files below %s into .dlrunignore", shown);
	}
	if (errno != EEXIST)
		return fs_error(err, errno, "linking %s", place);
	if (fstatat(fd, name, &ours, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(ours.st_mode) ||
		stat(place, &theirs) < 0 || !S_ISDIR(theirs.st_mode))
		return 0;
	AUTO_FD int child = open_child(fd, name);
	if (child < 0)
		return fs_error(err, -child, "%s", place);
	return runtime_mount_merge(mounter, mount, child, place, depth + 1, err);
}

static int runtime_mount_merge(struct mounter *mounter, const struct mount *mount, int fd,
	const char *from, unsigned depth, struct err *err)
{
	AUTO_DIR DIR *dir = opendir(from);
	struct dirent *entry;
	int r = 0;

	if (!dir)
		return errno == ENOTDIR ? two_kinds(mount, err) : no_place(mount, errno, err);
	if (depth > DEPTH_MAX)
		return err_set(
			err, E_DATA_LIMIT, "%s has more than %d levels", mount->from, DEPTH_MAX);
	while (r == 0 && (errno = 0, entry = readdir(dir))) {
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			r = merge_entry(mounter, mount, fd, entry->d_name, from, depth, err);
	}
	return r == 0 && errno ? fs_error(err, errno, "reading %s", from) : r;
}

static int link_data(const struct mount *mount, int fd, const char *name, struct err *err)
{
	if (symlinkat(mount->from, fd, name) == 0)
		return 0;
	return in_the_way(mount, mount->path, strlen(mount->path), errno, err);
}

static int mount_data(struct mounter *mounter, const struct mount *mount, struct err *err)
{
	int base = mount->below ? mounter->outputs_fd : mounter->tree_fd;
	AUTO_FD int fd = -1;
	const char *name;
	struct stat st, place;

	int r = runtime_mount_make_parent(mount, base, &fd, &name, err);
	if (r < 0 || is_link_to(fd, name, mount->from))
		return r;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return link_data(mount, fd, name, err);
	if (S_ISLNK(st.st_mode)) {
		unlinkat(fd, name, 0);
		return link_data(mount, fd, name, err);
	}
	if (!S_ISDIR(st.st_mode))
		return stat(mount->from, &place) == 0 && S_ISREG(place.st_mode)
			       ? 0
			       : two_kinds(mount, err);
	AUTO_FD int own = open_child(fd, name);
	if (own < 0)
		return in_the_way(mount, mount->path, strlen(mount->path), -own, err);
	return runtime_mount_merge(mounter, mount, own, mount->from, 0, err);
}

/*
 * All of it
 */

static int check_places(const struct mount_list *plan, struct err *err)
{
	struct stat st;

	vec_foreach (const struct mount, mount, plan)
		if (mount->kind == MOUNT_DATA && stat(mount->from, &st) < 0)
			return no_place(mount, errno, err);
	return 0;
}

/* Outputs first: data may be inside of them. Data from within: a directory with a place of its own
 * inside is then merged. */
static int mount_all(struct mounter *mounter, const struct mount_list *plan, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < plan->n; i++)
		if (plan->v[i].kind == MOUNT_OUTPUT)
			r = mount_output(mounter, &plan->v[i], err);
	for (size_t i = plan->n; r == 0 && i > 0; i--)
		if (plan->v[i - 1].kind == MOUNT_DATA)
			r = mount_data(mounter, &plan->v[i - 1], err);
	return r;
}

static int open_base(const char *path, int *ret_fd, struct err *err)
{
	int fd = open(path, DIR_FLAGS | O_CLOEXEC);

	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	*ret_fd = fd;
	return 0;
}

int runtime_mount(const char *tree, const struct attempt_job *job, struct err *err)
{
	AUTO(mount_list_done) struct mount_list plan = {0};
	AUTO_FD int tree_fd = -1, outputs_fd = -1;

	if (job->spec.runtime.outputs.n == 0 && job->spec.runtime.data.n == 0)
		return 0;
	int r = mount_plan(&job->spec.runtime, &plan, err);
	if (r == 0)
		r = check_places(&plan, err);
	if (r == 0)
		r = open_base(tree, &tree_fd, err);
	if (r == 0 && job->spec.runtime.outputs.n)
		r = fs_mkdirs(job->outputs, 0700, err);
	if (r == 0 && job->spec.runtime.outputs.n)
		r = open_base(job->outputs, &outputs_fd, err);
	if (r < 0)
		return r;
	return mount_all(
		&(struct mounter){
			.outputs = job->outputs, .tree_fd = tree_fd, .outputs_fd = outputs_fd},
		&plan, err);
}

/*
 * Packages of Python
 */

char *runtime_packages_dir(const char *tree)
{
	AUTO_FREE char *dir = mem_strndup(tree, (size_t)(strrchr(tree, '/') - tree));

	return fs_join(dir, ATTEMPT_PACKAGES);
}

static int link_package(const char *dir, const char *tree, const char *alias, struct err *err)
{
	size_t len = strcspn(alias, "=");
	AUTO_FREE char *name = mem_strndup(alias, len);
	AUTO_FREE char *link = fs_join(dir, name), *target = fs_join(tree, alias + len + 1);

	if (!alias[len] || strchr(name, '/'))
		return err_set(err, E_DATA, "'%s' is not a package of the run", name);
	unlink(link);
	return symlink(target, link) < 0 ? fs_error(err, errno, "linking %s", link) : 0;
}

int runtime_packages_link(const char *tree, const struct runtime *runtime, struct err *err)
{
	AUTO_FREE char *dir = runtime_packages_dir(tree);
	int r = 0;

	if (runtime->python_aliases.n == 0)
		return 0;
	r = fs_mkdirs(dir, 0700, err);
	for (size_t i = 0; r == 0 && i < runtime->python_aliases.n; i++)
		r = link_package(dir, tree, runtime->python_aliases.v[i], err);
	return r;
}

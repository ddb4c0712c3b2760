/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "snap/git/tracked_cursor.h"
#include "snap/tree/content.h"
#include "snap/tree/hint_ignore.h"
#include "snap/tree/secret.h"
#include "snap/tree/walk.h"

/* A directory while it is visited. */
struct visit {
	struct walk *walk;
	struct walk_worker *worker;
	struct walk_dir *dir;
	struct par_queue *queue;
	int fd;
	struct tracked_cursor cursor;
	size_t base;     /* length of the directory in worker->path, with its slash */
	size_t path_len; /* of worker->path */
};

/* The sums are checked after so many files. */
enum { COUNT_STEP = 512 };

/* Add the hint to leave the path out, unless it is too long to be pasted. */
static void add_way_out(const struct visit *v, const char *path, struct err *err)
{
	enum { PASTE_MAX = 200 };
	AUTO_FREE char *line = mem_printf("%s%s", path, path == v->dir->path ? "/" : "");

	if (*path && strlen(path) <= PASTE_MAX)
		hint_ignore(err, v->walk->options->root, v->walk->options->shell_dir,
			(const char *const[]){line}, 1);
}

static void fail(struct visit *v, enum err_id id, const char *path, int errnum, const char *text)
{
	AUTO_FREE char *shown = str_shown(*path ? path : ".");
	AUTO_ERR struct err err = {0};

	if (errnum)
		err_set_errno(&err, id, errnum, "%s %s", text, shown);
	else
		err_set(&err, id, "%s %s", shown, text);
	add_way_out(v, path, &err);
	walk_fail(v->worker, path, &err);
}

/* An entry that vanished a moment ago does not belong to the tree. */
static bool is_gone(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP;
}

/* Entries that are left out */

static void leave_out(struct visit *v, const struct listing_item *item, enum left_out_why why)
{
	struct walk_worker *worker = v->worker;
	struct stat st;

	if (v->dir->zone) {
		atomic_store_explicit(&v->dir->zone->left_out, true, memory_order_relaxed);
		return;
	}
	if (!left_out_count(&worker->left_out, worker->path))
		return;
	bool has_size = (item->type == DT_REG || item->type == DT_LNK) &&
			fstatat(v->fd, item->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	left_out_keep(&worker->left_out, worker->path, item->type == DT_DIR, why,
		has_size ? (uint64_t)st.st_size : 0);
}

static void leave_out_ignored(struct visit *v, const struct listing_item *item)
{
	char inner[WALK_NAME_MAX + sizeof("/.git")];
	struct stat st;

	memcpy(inner, item->name, item->len);
	memcpy(inner + item->len, "/.git", sizeof("/.git"));
	bool is_repo = item->type == DT_DIR && !v->dir->zone &&
		       fstatat(v->fd, inner, &st, AT_SYMLINK_NOFOLLOW) == 0;
	leave_out(v, item, is_repo ? LEFT_OUT_REPOSITORY : LEFT_OUT_IGNORED);
}

static bool is_dropped(const struct visit *v, bool is_dir)
{
	return ignore_check(v->dir->own_rules, v->worker->path, is_dir) == IGNORE_MATCH;
}

static bool is_ignored(const struct visit *v, bool is_dir)
{
	const char *path = v->worker->path + v->dir->scope->prefix_len;

	return v->dir->zone || ignore_check(v->dir->git_rules, path, is_dir) == IGNORE_MATCH;
}

/* Directories */

static bool is_nameless(const struct listing_item *item)
{
	return item->len > ENTRY_NAME_MAX || strncmp(item->name, ".wh.", 4) == 0 ||
	       entry_path_has_git(item->name);
}

static struct walk_zone *new_zone(struct visit *v, const struct walk_dir *dir)
{
	struct walk_zone *zone = arena_alloc(&v->worker->scratch, sizeof(*zone));

	zone->path = dir->path;
	atomic_init(&zone->left_out, false);
	*vec_push(&v->worker->zones) = zone;
	return zone;
}

static void add_dir(struct visit *v, const struct walk_dir *found, bool begins_zone)
{
	struct walk_dir *dir = arena_alloc(&v->worker->scratch, sizeof(*dir));

	*dir = *found;
	dir->len = v->path_len;
	dir->path = arena_strndup(&v->worker->scratch, v->worker->path, dir->len);
	if (begins_zone)
		dir->zone = new_zone(v, dir);
	if (atomic_fetch_add(&v->walk->dirs, 1) >= WALK_DIRS_MAX)
		walk_set_over(v->walk, WALK_OVER_DIRS);
	*vec_push(&v->worker->dirs) = dir;
	if (dir->is_gitlink)
		*vec_push(&v->worker->borders) = dir;
	else
		par_queue_add(v->queue, dir);
}

static void decide_dir(struct visit *v, const struct listing_item *item)
{
	struct walk_dir *parent = v->dir;
	const char *path = v->worker->path;
	struct walk_dir dir = {
		.parent = parent,
		.scope = parent->scope,
		.zone = parent->zone,
		.git_rules = parent->git_rules,
		.own_rules = parent->own_rules,
		.is_nameless = parent->is_nameless || is_nameless(item),
		.include = pathset_enter(&v->walk->include, parent->include, path),
		.paths = pathset_enter(&v->walk->paths, parent->paths, path),
		.allow = pathset_enter(&v->walk->allow, parent->allow, path),
	};
	bool begins_zone = false;

	dir.first = tracked_cursor_dir(&v->cursor, item->name, &dir.n_tracked);
	dir.is_gitlink = parent->scope->has_gitlinks && !dir.n_tracked &&
			 tracked_cursor_is_gitlink(&v->cursor, item->name);
	if (!dir.paths.covered && !dir.paths.below)
		return;
	if (is_dropped(v, true)) {
		leave_out(v, item, LEFT_OUT_DLRUNIGNORE);
		return;
	}
	if (dir.is_gitlink || dir.include.covered)
		dir.zone = NULL;
	else if (is_ignored(v, true)) {
		if (!dir.n_tracked && !dir.include.below) {
			leave_out_ignored(v, item);
			return;
		}
		begins_zone = !dir.zone;
	}
	if (v->path_len > ENTRY_PATH_MAX)
		fail(v, E_SNAPSHOT_NAME, path, 0, "is a path of over 4,095 bytes");
	else
		add_dir(v, &dir, begins_zone);
}

/* Files and links */

static bool has_name(struct visit *v, const struct listing_item *item)
{
	const char *path = v->worker->path;

	if (v->path_len > ENTRY_PATH_MAX)
		fail(v, E_SNAPSHOT_NAME, path, 0, "is a path of over 4,095 bytes");
	else if (item->len > ENTRY_NAME_MAX)
		fail(v, E_SNAPSHOT_NAME, path, 0, "has a name of over 255 bytes");
	else if (entry_path_has_git(path))
		fail(v, E_SNAPSHOT_NAME, path, 0,
			"has a name that git refuses: some file systems take it for .git");
	else if (v->dir->is_nameless || is_nameless(item))
		fail(v, E_SNAPSHOT_NAME, path, 0,
			"has a name that means a deletion in an image (.wh.)");
	else
		return true;
	return false;
}

static size_t read_head(int fd, char *out, size_t size)
{
	size_t len = 0;

	while (len < size) {
		ssize_t n = read(fd, out + len, size - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	return len;
}

/* The secret that the file seems to be; NULL: none. */
static const char *what_secret(const struct visit *v, const struct listing_item *item)
{
	char head[SECRET_HEAD_SIZE];
	const char *what = NULL;

	switch (secret_by_name(v->worker->path, &what)) {
	case SECRET_NO:
		return NULL;
	case SECRET_YES:
		return what;
	case SECRET_READ:
		break;
	}
	AUTO_FD int fd = openat(
		v->fd, item->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	/* A file that cannot be read now cannot be sent later either. */
	if (fd < 0)
		return NULL;
	size_t len = read_head(fd, head, sizeof(head));
	return secret_by_content(v->worker->path, head, len, &what) ? what : NULL;
}

static struct path *add_file(
	struct visit *v, const struct stat *st, const struct tracked_path *tracked)
{
	struct path file = {.tracked = tracked};

	/* Another kind of file has taken its place a moment ago. */
	if (!content_set_stat(&file, st))
		return NULL;
	file.path = arena_strndup(&v->worker->paths, v->worker->path, v->path_len);
	struct path *added = vec_push(&v->worker->files);
	*added = file;
	return added;
}

/* Limits and secrets do not concern what was allowed by name. */
static void examine(struct visit *v, const struct listing_item *item, const struct path *file)
{
	const struct paths_limits *limits = &v->walk->options->limits;
	struct walk_worker *worker = v->worker;

	if (pathset_enter(&v->walk->allow, v->dir->allow, file->path).covered)
		return;
	worker->pending_files++;
	worker->pending_bytes += file->size;
	if (limits->file_bytes && file->size > limits->file_bytes && file->kind == ENTRY_FILE)
		walk_set_over(v->walk, WALK_OVER_FILE);
	if (worker->pending_files >= COUNT_STEP)
		walk_count(v->walk, worker);
	if (file->tracked || file->kind != ENTRY_FILE)
		return;
	const char *what = what_secret(v, item);
	if (what)
		*vec_push(&worker->secrets) = (struct walk_secret){file->path, what};
}

static void take_file(
	struct visit *v, const struct listing_item *item, const struct tracked_path *tracked)
{
	struct stat st;

	if (item->type != DT_REG && item->type != DT_LNK) {
		leave_out(v, item, LEFT_OUT_SPECIAL);
		return;
	}
	if (!has_name(v, item))
		return;
	if (fstatat(v->fd, item->name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (!is_gone(errno))
			fail(v, E_IO_READ, v->worker->path, errno, "cannot read");
		return;
	}
	const struct path *file = add_file(v, &st, tracked);
	if (file)
		examine(v, item, file);
}

static void decide_file(struct visit *v, const struct listing_item *item)
{
	const char *path = v->worker->path;

	if (!pathset_enter(&v->walk->paths, v->dir->paths, path).covered)
		return;
	if (is_dropped(v, false)) {
		leave_out(v, item, LEFT_OUT_DLRUNIGNORE);
		return;
	}
	const struct tracked_path *tracked = tracked_cursor_file(&v->cursor, item->name);
	bool included = pathset_enter(&v->walk->include, v->dir->include, path).covered;
	if (!tracked && !included && is_ignored(v, false))
		leave_out(v, item, LEFT_OUT_IGNORED);
	else
		take_file(v, item, tracked);
}

/* The directory as a whole */

/* The path of the directory as its repository has it. */
static const char *own_path(const struct walk_dir *dir)
{
	size_t prefix_len = dir->scope->prefix_len;

	return dir->len > prefix_len ? dir->path + prefix_len : "";
}

static const struct ignore *read_rules(struct visit *v, const char *name, const char *dir,
	bool ignore_case, const struct ignore *next)
{
	AUTO_FREE char *path = fs_join(v->dir->path, name);

	return walk_read_rules(v->worker, v->fd, name, path, dir, ignore_case, next);
}

static void read_all_rules(struct visit *v)
{
	struct walk_dir *dir = v->dir;

	/* Ignore rules do not matter where all files are taken, or tracked ones only. */
	bool asked = !dir->zone && !dir->include.covered;
	if (v->worker->listing.has_gitignore && asked)
		dir->git_rules = read_rules(
			v, ".gitignore", own_path(dir), dir->scope->ignore_case, dir->git_rules);
	if (v->worker->listing.has_dlrunignore)
		dir->own_rules = read_rules(v, ".dlrunignore", dir->path, false, dir->own_rules);
}

/* A mount can show a directory inside itself. */
static bool is_own_ancestor(struct walk_dir *dir)
{
	for (const struct walk_dir *above = dir->parent; above; above = above->parent)
		if (above->ino == dir->ino && above->dev == dir->dev)
			return true;
	return false;
}

/* -1: not to be visited. */
static int open_dir(struct visit *v, struct stat *ret_st)
{
	struct walk_dir *dir = v->dir;
	const char *path = *dir->path ? dir->path : ".";
	AUTO_FD int fd = fs_open_beneath(v->walk->root_fd, path, O_RDONLY | O_DIRECTORY, 0);
	struct stat st;

	if (fd < 0) {
		if (!is_gone(-fd))
			fail(v, E_IO_READ, dir->path, -fd, "cannot list");
		return -1;
	}
	if (fstat(fd, &st) < 0) {
		fail(v, E_IO_READ, dir->path, errno, "cannot list");
		return -1;
	}
	dir->dev = st.st_dev;
	dir->ino = st.st_ino;
	*ret_st = st;
	return TAKE_FD(fd);
}

static void visit_items(struct visit *v)
{
	struct walk_worker *worker = v->worker;

	worker->files.n = worker->dirs.n = 0;
	memcpy(worker->path, v->dir->path, v->dir->len);
	if (v->base)
		worker->path[v->base - 1] = '/';
	for (size_t i = 0; i < worker->listing.items.n; i++) {
		const struct listing_item *item = &worker->listing.items.v[i];
		if (i % COUNT_STEP == COUNT_STEP - 1 && walk_is_over(v->walk))
			break;
		if (item->len > WALK_NAME_MAX) {
			fail(v, E_SNAPSHOT_NAME, v->dir->path, 0, "holds a name of over 255 bytes");
			continue;
		}
		v->path_len = v->base + item->len;
		memcpy(worker->path + v->base, item->name, item->len + 1U);
		if (item->type == DT_DIR)
			decide_dir(v, item);
		else
			decide_file(v, item);
	}
	walk_count(v->walk, worker);
}

static void keep_found(struct visit *v)
{
	struct walk_worker *worker = v->worker;
	struct walk_dir *dir = v->dir;

	dir->files = arena_alloc(&worker->scratch, worker->files.n * sizeof(*dir->files));
	if (worker->files.n)
		memcpy(dir->files, worker->files.v, worker->files.n * sizeof(*dir->files));
	dir->n_files = worker->files.n;
	dir->dirs = arena_alloc(&worker->scratch, worker->dirs.n * sizeof(*dir->dirs));
	if (worker->dirs.n)
		memcpy(dir->dirs, worker->dirs.v, worker->dirs.n * sizeof(*dir->dirs));
	dir->n_dirs = worker->dirs.n;
}

static bool read_names(struct visit *v, const struct stat *st)
{
	const char *path = v->dir->path;
	int r = walk_names_read(v->walk, v->worker, v->dir, v->fd, st);

	if (r == -EFBIG)
		fail(v, E_SNAPSHOT_LIMIT, path, 0, "holds too many names");
	else if (r < 0 && !is_gone(-r))
		fail(v, E_IO_READ, path, -r, "cannot list");
	return r == 0;
}

/* Where the outer index has files below, git does not see the inner repository. */
static bool is_border(const struct visit *v)
{
	const struct walk_dir *dir = v->dir;

	return v->worker->listing.has_git && !dir->is_settled && !dir->n_tracked && !dir->zone;
}

void walk_visit(struct walk *walk, struct walk_worker *worker, struct walk_dir *dir,
	struct par_queue *queue)
{
	struct visit v = {.walk = walk, .worker = worker, .dir = dir, .queue = queue};
	struct stat st;

	if (walk_is_over(walk))
		return;
	AUTO_FD int fd = open_dir(&v, &st);
	if (fd < 0)
		return;
	v.fd = fd;
	if (is_own_ancestor(dir)) {
		fail(&v, E_SNAPSHOT_LOOP, dir->path, 0, "is mounted inside itself");
		return;
	}
	if (!read_names(&v, &st))
		return;
	if (is_border(&v)) {
		*vec_push(&worker->borders) = dir;
		return;
	}
	read_all_rules(&v);
	tracked_cursor_init(
		&v.cursor, dir->scope->tracked, own_path(dir), dir->first, dir->n_tracked);
	v.base = dir->len ? dir->len + 1 : 0;
	visit_items(&v);
	keep_found(&v);
}

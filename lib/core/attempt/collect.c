/* SPDX-License-Identifier: Apache-2.0 */
#include "core/attempt/collect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
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

#define MARK_NAME "started"
#define TICK_NAME "started.tick"

enum {
	DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
	LOCK_WAIT_MS = 10 * 60 * 1000, /* another collector's work is ours, too */
	WORKERS_MAX = 16,
	REPORT_MAX = 1 << 20,
	TICK_WAIT_MS = 2100, /* the coarsest clocks of file systems count two seconds */
	BLOCK_BYTES = 512,
};

/* A changed file. */
struct found {
	char *path;     /* in the tree */
	size_t dir_len; /* of path: the directory's part, without its slash */
	uint64_t bytes; /* on the disk */
	struct timespec mtime;
	bool is_output; /* below an entry of `outputs:` */
	bool is_taken;
};

struct found_list VEC_OF(struct found);

/* Paths that the report speaks of: how many there are, and the first of them. */
struct named {
	size_t n;
	uint64_t bytes;
	struct strv paths;
};

/* The directory of the last file. */
struct parent {
	const char *path; /* NULL: none yet */
	size_t len;
	int tree_fd, outputs_fd, collected_fd;
	int errnum;    /* it cannot be opened, or made */
	bool is_moved; /* to a name with COLLECT_SUFFIX */
};

struct collector {
	const struct attempt_job *job;
	enum collect_when when;
	struct collect_place place;
	struct timespec mark;
	struct map dirs;
	struct found_list found;
	size_t n_files;
	uint64_t bytes;
	struct named unread, over, moved;
	struct parent parent;
	int fatal; /* errno */
};

static void collector_done(struct collector *c)
{
	vec_foreach (struct found, found, &c->found)
		free(found->path);
	vec_done(&c->found);
	map_done(&c->dirs);
	strv_done(&c->unread.paths);
	strv_done(&c->over.paths);
	strv_done(&c->moved.paths);
	auto_fd(&c->parent.tree_fd);
	auto_fd(&c->parent.outputs_fd);
	auto_fd(&c->parent.collected_fd);
	collect_place_done(&c->place);
}

static void name_path(struct named *named, const char *path, uint64_t bytes)
{
	named->n++;
	named->bytes += bytes;
	if (named->paths.n < COLLECT_NAMED_MAX)
		strv_add(&named->paths, path);
}

static void cannot(struct collector *c, const char *path, int errnum)
{
	if (collect_is_fatal(errnum)) {
		if (!c->fatal)
			c->fatal = errnum;
	} else {
		name_path(&c->unread, path, 0);
	}
}

/*
 * The mark
 */

static int make_file(const char *dir, const char *name, struct timespec *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct stat st;

	if (fd < 0 || pwrite(fd, "\n", 1, 0) != 1 || fstat(fd, &st) < 0)
		return errno ? errno : EIO;
	*ret = st.st_ctim;
	return 0;
}

int collect_mark(const char *dir, struct err *err)
{
	struct timespec time;

	collect_list_dirs(dir);
	int errnum = make_file(dir, MARK_NAME, &time);

	return errnum ? fs_error(err, errnum, "making '%s' of the run", MARK_NAME) : 0;
}

static bool read_mark(const char *dir, struct timespec *ret)
{
	AUTO_FREE char *path = fs_join(dir, MARK_NAME);
	struct stat st;

	if (lstat(path, &st) < 0)
		return false;
	*ret = st.st_ctim;
	return true;
}

static bool is_later(const struct timespec *time, const struct timespec *than)
{
	return time->tv_sec != than->tv_sec ? time->tv_sec > than->tv_sec
					    : time->tv_nsec > than->tv_nsec;
}

void collect_pass_mark(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, TICK_NAME);
	struct timespec mark, now = {0};

	if (!read_mark(dir, &mark))
		return;
	for (int ms = 0; ms < TICK_WAIT_MS; ms++) {
		if (make_file(dir, TICK_NAME, &now) != 0 || is_later(&now, &mark))
			break;
		poll(NULL, 0, 1);
	}
	unlink(path);
}

/*
 * Finding what has changed
 */

/* The findings of a thread. */
struct finder {
	void *names; /* of a directory, as the kernel lists them */
	struct found_list found;
	struct strv unread;
	size_t n_more;
	int fatal; /* errno */
};

struct search {
	const struct collector *c;
	dev_t dev;
	struct finder finders[WORKERS_MAX];
};

/* A directory to visit. */
struct visit {
	char *path; /* in the tree; "": its root */
	bool is_output;
	bool is_moved; /* or below one that is */
	int depth;
};

static void push_visit(
	struct par_queue *queue, const char *path, bool is_output, const struct visit *parent)
{
	struct visit *visit = mem_alloc(1, sizeof(*visit));

	*visit = (struct visit){mem_strdup(path), is_output, parent->is_moved, parent->depth + 1};
	par_queue_add(queue, visit);
}

static bool is_wanted_file(const struct collector *c, const struct visit *visit, int fd,
	const char *name, struct stat *ret)
{
	if (fstatat(fd, name, ret, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	return (S_ISREG(ret->st_mode) || S_ISLNK(ret->st_mode)) &&
	       (visit->is_moved || is_later(&ret->st_ctim, &c->mark));
}

/* The links that setup.c has put there. */
static bool is_setup_link(const struct collector *c, int fd, const char *name)
{
	size_t len = c->job->setups ? strlen(c->job->setups) : 0;
	AUTO_FREE char *target = mem_alloc(len + 2, 1);

	return len && readlinkat(fd, name, target, len + 1) == (ssize_t)len + 1 &&
	       memcmp(target, c->job->setups, len) == 0 && target[len] == '/';
}

static void find_file(const struct collector *c, struct finder *finder, int fd, const char *name,
	const char *path, bool is_output, const struct stat *st)
{
	size_t len = strlen(path), name_len = strlen(name);

	/* Links of dlrun's own: to an output, to what the setup has made. */
	if (S_ISLNK(st->st_mode) &&
		(strv_find(&c->job->world.outputs, path) >= 0 || is_setup_link(c, fd, name)))
		return;
	if (finder->found.n >= COLLECT_FILES_MAX) {
		finder->n_more++;
		return;
	}
	*vec_push(&finder->found) = (struct found){
		.path = mem_strdup(path),
		.dir_len = len > name_len ? len - name_len - 1 : 0,
		.bytes = (uint64_t)st->st_blocks * BLOCK_BYTES,
		.mtime = st->st_mtim,
		.is_output = is_output,
	};
}

/* Without automatic collection only what the program wrote in an output's place. */
static bool may_hold(const struct collector *c, const char *path, bool is_output)
{
	size_t len = strlen(path);

	if (is_output || c->job->world.collect.mode == COLLECT_AUTO)
		return true;
	for (size_t i = 0; i < c->job->world.outputs.n; i++)
		if (strncmp(c->job->world.outputs.v[i], path, len) == 0 &&
			c->job->world.outputs.v[i][len] == '/')
			return true;
	return false;
}

bool collect_is_dir(int fd, const char *name, unsigned char type)
{
	struct stat st;

	if (type != DT_UNKNOWN)
		return type == DT_DIR;
	return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* A directory that is being visited, and its finder. */
struct looking {
	struct search *search;
	struct par_queue *queue;
	struct finder *finder;
	const struct visit *visit;
	int fd;
};

static void find_entry(void *ctx, const char *name, unsigned char type)
{
	const struct looking *looking = ctx;
	const struct collector *c = looking->search->c;
	const struct visit *visit = looking->visit;
	bool events = c->when == COLLECT_EVENTS;
	int fd = looking->fd;
	struct stat st;

	if (str_eq(name, ".") || str_eq(name, ".."))
		return;
	bool is_dir = collect_is_dir(fd, name, type);
	/* Nearly all files end here. */
	if (!is_dir && !events && !is_wanted_file(c, visit, fd, name, &st))
		return;
	if (collect_is_cache(name))
		return;
	AUTO_FREE char *path = *visit->path ? fs_join(visit->path, name) : mem_strdup(name);
	bool is_output = visit->is_output || collect_is_output(&c->job->world, path);
	if (!may_hold(c, path, is_output) || collect_is_excluded(&c->job->world, path, name))
		return;
	if (is_dir)
		push_visit(looking->queue, path, is_output, visit);
	else if (!events || (collect_is_telling(path) && is_wanted_file(c, visit, fd, name, &st)))
		find_file(c, looking->finder, fd, name, path, is_output, &st);
}

static void cannot_visit(struct finder *finder, const struct visit *visit, int errnum)
{
	if (errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP)
		return;
	if (collect_is_fatal(errnum))
		finder->fatal = errnum;
	else
		strv_add(&finder->unread, *visit->path ? visit->path : ".");
}

/* Skip mount points: their content is not the tree's. */
static int open_visit(const struct search *search, struct finder *finder, struct visit *visit)
{
	const struct collector *c = search->c;
	AUTO_FD int fd = fs_open_beneath(
		c->place.tree_fd, *visit->path ? visit->path : ".", O_RDONLY | O_DIRECTORY, 0);
	struct stat st;

	if (fd < 0)
		cannot_visit(finder, visit, -fd);
	else if (visit->depth >= COLLECT_DEPTH_MAX)
		cannot_visit(finder, visit, E2BIG);
	if (fd < 0 || visit->depth >= COLLECT_DEPTH_MAX || fstat(fd, &st) < 0 ||
		st.st_dev != search->dev)
		return -1;
	if (visit->depth > 0 && is_later(&st.st_ctim, &c->mark) &&
		collect_dirs_moved(&c->dirs, visit->path, &st))
		visit->is_moved = true;
	return TAKE_FD(fd);
}

static void find_in(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct search *search = ctx;
	struct finder *finder = &search->finders[worker];
	struct visit *visit = item;
	AUTO_FD int fd = open_visit(search, finder, visit);
	struct looking looking = {search, queue, finder, visit, fd};

	if (!finder->names)
		finder->names = mem_alloc(1, OS_NAMES_SIZE);
	int r = fd < 0 ? 0 : os_list_names(fd, finder->names, find_entry, &looking);
	if (r < 0)
		cannot_visit(finder, visit, -r);
	free(visit->path);
	free(visit);
}

static void take_finder(struct collector *c, struct finder *finder)
{
	free(finder->names);
	vec_foreach (struct found, found, &finder->found)
		*vec_push(&c->found) = *found;
	vec_done(&finder->found);
	for (size_t i = 0; i < finder->unread.n; i++)
		name_path(&c->unread, finder->unread.v[i], 0);
	strv_done(&finder->unread);
	c->over.n += finder->n_more;
	if (finder->fatal)
		c->fatal = finder->fatal;
}

/* Several threads, with descriptors of their own: nothing but calls of the kernel is done here. */
static int find_changed(struct collector *c, struct err *err)
{
	struct search *search = mem_alloc(1, sizeof(*search));
	struct stat st;
	int r = 0;

	BUG_ON(par_width() > WORKERS_MAX);
	search->c = c;
	if (fstat(c->place.tree_fd, &st) < 0) {
		r = fs_error(err, errno, "the tree of the run");
	} else {
		struct visit *root = mem_alloc(1, sizeof(*root));
		root->path = mem_strdup("");
		search->dev = st.st_dev;
		par_queue_run_apart(find_in, search, root, c->place.tree_fd);
	}
	for (size_t i = 0; i < WORKERS_MAX; i++)
		take_finder(c, &search->finders[i]);
	free(search);
	return r;
}

/*
 * Size limit
 */

static int newest_first(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (is_later(&x->mtime, &y->mtime))
		return -1;
	return is_later(&y->mtime, &x->mtime) ? 1 : strcmp(x->path, y->path);
}

/* Files of one directory stand together. */
static int by_dir(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	size_t len = x->dir_len < y->dir_len ? x->dir_len : y->dir_len;
	int order = memcmp(x->path, y->path, len);

	if (order == 0 && x->dir_len != y->dir_len)
		order = x->dir_len < y->dir_len ? -1 : 1;
	return order ? order : strcmp(x->path, y->path);
}

static void choose(struct collector *c)
{
	uint64_t left = c->job->world.collect.size_bytes;

	vec_sort(&c->found, newest_first);
	vec_foreach (struct found, found, &c->found) {
		found->is_taken = found->bytes <= left;
		if (found->is_taken)
			left -= found->bytes;
		else
			name_path(&c->over, found->path, found->bytes);
	}
	vec_sort(&c->found, by_dir);
}

/*
 * Putting it in its places
 */

static void leave_parent(struct parent *parent)
{
	auto_fd(&parent->tree_fd);
	auto_fd(&parent->outputs_fd);
	auto_fd(&parent->collected_fd);
	*parent = (struct parent){NULL, 0, -1, -1, -1, 0, false};
}

/* *fd is replaced by the directory name below it. Returns 0 or an errno. */
static int step_into(int *fd, const char *name, bool make)
{
	int child = collect_open_dir(*fd, name, make);

	if (child < 0)
		return -child;
	close(*fd);
	*fd = child;
	return 0;
}

/* The program's own file may be in the way of the directory. */
static int step_into_outputs(struct parent *parent, const char *name, bool is_output)
{
	AUTO_FREE char *beside = NULL;
	int errnum = step_into(&parent->outputs_fd, name, true);

	if (errnum != ENOTDIR && errnum != ELOOP)
		return errnum;
	if (is_output) {
		unlinkat(parent->outputs_fd, name, 0);
		return step_into(&parent->outputs_fd, name, true);
	}
	beside = mem_printf("%s" COLLECT_SUFFIX, name);
	parent->is_moved = true;
	return step_into(&parent->outputs_fd, beside, true);
}

static int enter_parent(struct collector *c, struct parent *parent)
{
	AUTO_FREE char *dir = mem_strndup(parent->path, parent->len);
	int errnum = 0;

	parent->tree_fd = openat(c->place.tree_fd, ".", DIR_FLAGS);
	parent->outputs_fd = openat(c->place.outputs_fd, ".", DIR_FLAGS);
	parent->collected_fd = openat(c->place.collected_fd, ".", DIR_FLAGS);
	if (parent->tree_fd < 0 || parent->outputs_fd < 0 || parent->collected_fd < 0)
		return errno;
	for (char *name = dir, *next; name && *name && errnum == 0; name = next) {
		next = strchr(name, '/');
		if (next)
			*next = '\0';
		bool is_output = collect_is_output(&c->job->world, dir);
		errnum = step_into(&parent->tree_fd, name, false);
		if (errnum == 0)
			errnum = step_into_outputs(parent, name, is_output);
		if (errnum == 0)
			errnum = step_into(&parent->collected_fd, name, true);
		if (next)
			*next++ = '/';
	}
	return errnum;
}

static struct parent *parent_of(struct collector *c, const struct found *found)
{
	struct parent *parent = &c->parent;

	if (parent->path && parent->len == found->dir_len &&
		memcmp(parent->path, found->path, found->dir_len) == 0)
		return parent;
	leave_parent(parent);
	parent->path = found->path;
	parent->len = found->dir_len;
	parent->errnum = enter_parent(c, parent);
	return parent;
}

/* Whether what the outputs have there is the tree's, or may be replaced by it. */
static int put_as(struct collector *c, const struct parent *parent, const struct found *found,
	const char *name, const char *as, const struct stat *file)
{
	struct stat there, earlier;

	if (fstatat(parent->outputs_fd, as, &there, AT_SYMLINK_NOFOLLOW) == 0) {
		bool is_ours =
			fstatat(parent->collected_fd, name, &earlier, AT_SYMLINK_NOFOLLOW) == 0 &&
			collect_is_same(&there, &earlier);
		if (collect_is_same(&there, file))
			return 0;
		if (!is_ours && (!found->is_output || S_ISDIR(there.st_mode)))
			return EEXIST;
	}
	return collect_link(&c->place, parent->tree_fd, name, parent->outputs_fd, as);
}

/* The outputs come first: a file that is there and in the tree is known to be collected, whatever
 * the other place has of it yet. */
static int put_file(struct collector *c, const struct parent *parent, const struct found *found)
{
	const char *name = found->path + found->dir_len + (found->dir_len > 0);
	AUTO_FREE char *beside = mem_printf("%s" COLLECT_SUFFIX, name);
	struct stat file, there;

	if (fstatat(parent->tree_fd, name, &file, AT_SYMLINK_NOFOLLOW) < 0)
		return errno;
	int errnum = put_as(c, parent, found, name, name, &file);
	if (errnum == EEXIST) {
		name_path(&c->moved, found->path, 0);
		errnum = put_as(c, parent, found, name, beside, &file);
	}
	if (errnum)
		return errnum;
	if (fstatat(parent->collected_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
		collect_is_same(&there, &file))
		return 0;
	return collect_link(&c->place, parent->tree_fd, name, parent->collected_fd, name);
}

static void put_found(struct collector *c, const struct found *found)
{
	struct parent *parent = parent_of(c, found);
	bool is_moved = parent->is_moved;
	int errnum = parent->errnum ? parent->errnum : put_file(c, parent, found);

	/* A file that has gone meanwhile is not an error. */
	if (errnum && errnum != ENOENT)
		cannot(c, found->path, errnum);
	if (errnum)
		return;
	if (is_moved)
		name_path(&c->moved, found->path, 0);
	c->n_files++;
	c->bytes += found->bytes;
}

/*
 * Files that the program has removed
 */

static void drop_file(int outputs_fd, int collected_fd, const char *name)
{
	AUTO_FREE char *beside = mem_printf("%s" COLLECT_SUFFIX, name);
	const char *names[] = {name, beside};
	struct stat ours, there;

	if (fstatat(collected_fd, name, &ours, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	for (size_t i = 0; i < ARRAY_LEN(names) && outputs_fd >= 0; i++)
		if (fstatat(outputs_fd, names[i], &there, AT_SYMLINK_NOFOLLOW) == 0 &&
			collect_is_same(&ours, &there))
			unlinkat(outputs_fd, names[i], 0);
	unlinkat(collected_fd, name, 0);
}

static int open_output_dir(int fd, const char *name)
{
	AUTO_FREE char *beside = mem_printf("%s" COLLECT_SUFFIX, name);
	int child = fd < 0 ? -1 : openat(fd, name, DIR_FLAGS);

	return fd < 0 || child >= 0 ? child : openat(fd, beside, DIR_FLAGS);
}

/* A link in the place of a directory (the one to an output in a new tree, or the program's own)
 * removes nothing, nor does an entry that cannot be read. is_dir: of the collected entry. */
static bool is_removed(int tree_fd, const char *name, bool is_dir)
{
	struct stat st;

	if (tree_fd < 0)
		return true;
	if (fstatat(tree_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT;
	return is_dir ? !S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode) : S_ISDIR(st.st_mode);
}

/* tree_fd: -1: the tree has no such directory any more. Takes collected_fd. */
static void drop_removed(int tree_fd, int outputs_fd, int collected_fd, int depth);

static void drop_entry(
	int tree_fd, int outputs_fd, int collected_fd, const struct dirent *entry, int depth)
{
	const char *name = entry->d_name;
	struct stat ours;

	if (fstatat(collected_fd, name, &ours, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	bool is_dir = S_ISDIR(ours.st_mode), is_gone = is_removed(tree_fd, name, is_dir);
	if (!is_dir) {
		if (is_gone)
			drop_file(outputs_fd, collected_fd, name);
		return;
	}
	AUTO_FD int child = is_gone ? -1 : openat(tree_fd, name, DIR_FLAGS);
	if ((!is_gone && child < 0) || depth >= COLLECT_DEPTH_MAX)
		return;
	AUTO_FD int outputs_child = open_output_dir(outputs_fd, name);
	int collected_child = openat(collected_fd, name, DIR_FLAGS);
	if (collected_child < 0)
		return;
	drop_removed(child, outputs_child, collected_child, depth + 1);
	if (unlinkat(collected_fd, name, AT_REMOVEDIR) == 0 && outputs_fd >= 0)
		unlinkat(outputs_fd, name, AT_REMOVEDIR);
}

static void drop_removed(int tree_fd, int outputs_fd, int collected_fd, int depth)
{
	AUTO_DIR DIR *dir = fdopendir(collected_fd);
	struct dirent *entry;

	if (!dir)
		close(collected_fd);
	while (dir && (entry = readdir(dir)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			drop_entry(tree_fd, outputs_fd, dirfd(dir), entry, depth);
}

static void drop_all_removed(const struct collect_place *place)
{
	int fd = openat(place->collected_fd, ".", DIR_FLAGS);

	if (fd >= 0)
		drop_removed(place->tree_fd, place->outputs_fd, fd, 0);
}

/*
 * The report
 */

static char *shown_paths(const struct named *named)
{
	AUTO_BUF struct buf text;

	buf_init(&text, REPORT_MAX);
	for (size_t i = 0; i < named->paths.n; i++) {
		AUTO_FREE char *shown = str_shown(named->paths.v[i]);
		buf_addf(&text, "%s%s", i ? ", " : "", shown);
	}
	if (named->n > named->paths.n)
		buf_addf(&text, " and %zu more", named->n - named->paths.n);
	return buf_take(&text);
}

static void add_sentence(struct json *list, const struct named *named, const char *fmt)
{
	AUTO_FREE char *paths = named->n ? shown_paths(named) : NULL, *text = NULL;

	if (!paths)
		return;
	text = mem_printf("%s: %s", fmt, paths);
	json_add_str(list, text);
}

static void write_report(const char *dir, const struct collector *c)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_REPORT), *over = NULL, *failed = NULL;
	AUTO_JSON struct json *report = json_object();
	struct json *list = json_array();
	AUTO_BUF struct buf text;
	char limit[16], size[16];

	json_set_str(report, "schema", COLLECT_SCHEMA);
	json_set_bool(report, "complete", !c->fatal);
	json_set_int(report, "files", (int64_t)c->n_files);
	json_set_int(report, "bytes", (int64_t)c->bytes);
	json_set_int(report, "unread", (int64_t)c->unread.n);
	over = mem_printf("%zu %s (%s) %s collect.size of %s, only in the tree until gc removes it",
		c->over.n, c->over.n == 1 ? "file" : "files", str_size(c->over.bytes, size),
		c->over.n == 1 ? "exceeds" : "exceed",
		str_size(c->job->world.collect.size_bytes, limit));
	add_sentence(list, &c->over, over);
	add_sentence(list, &c->moved,
		"the results have other files of the same name, so the tree's are called "
		"*" COLLECT_SUFFIX);
	add_sentence(list, &c->unread, "not collected, and kept in the tree");
	if (c->fatal) {
		failed = mem_printf(
			"not all results could be collected: %s; dlrun fetch tries again",
			strerror(c->fatal));
		json_add_str(list, failed);
	}
	json_set(report, "warnings", list);
	buf_init(&text, REPORT_MAX);
	json_print(report, &text);
	buf_addc(&text, '\n');
	if (buf_check(&text, path, NULL) == 0)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

struct json *collect_read_report(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, COLLECT_REPORT);
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, REPORT_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, REPORT_MAX, path, &json, NULL) < 0 ||
		json_kind(json) != JSON_OBJECT)
		return NULL;
	return TAKE(json);
}

/*
 * All of it
 */

int collect_results(
	const char *dir, const struct attempt_job *job, enum collect_when when, struct err *err)
{
	AUTO(collector_done)
	struct collector c = {.job = job,
		.when = when,
		.place = {-1, -1, -1, -1, -1},
		.parent = {NULL, 0, -1, -1, -1, 0, false}};

	if (!read_mark(dir, &c.mark))
		return 0;
	int r = collect_place_open(
		dir, job, when == COLLECT_EVENTS ? 0 : LOCK_WAIT_MS, true, &c.place, err);
	if (r <= 0)
		return r;
	collect_dirs_read(dir, &c.dirs);
	r = find_changed(&c, err);
	if (r < 0)
		return r;
	if (when != COLLECT_EVENTS)
		drop_all_removed(&c.place);
	choose(&c);
	vec_foreach (const struct found, found, &c.found)
		if (found->is_taken && !c.fatal)
			put_found(&c, found);
	if (when == COLLECT_ENDED)
		write_report(dir, &c);
	return c.fatal ? fs_error(err, c.fatal, "collecting results of %s", job->run_id) : 0;
}

int collect_finish(const char *dir, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_JSON struct json *report = collect_read_report(dir);
	struct timespec mark;

	if (json_get_bool(report, "complete", false) || !read_mark(dir, &mark))
		return 0;
	int r = attempt_job_read(dir, &job, err);
	return r < 0 ? r : collect_results(dir, &job, COLLECT_ENDED, err);
}

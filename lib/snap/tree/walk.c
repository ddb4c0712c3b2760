/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "snap/tree/walk.h"

void walk_fail(struct walk_worker *worker, const char *path, struct err *failure)
{
	if (worker->failure_path && strcmp(path, worker->failure_path) >= 0) {
		err_clear(failure);
		return;
	}
	free(worker->failure_path);
	worker->failure_path = mem_strdup(path);
	err_move(&worker->failure, failure);
}

void walk_set_over(struct walk *walk, enum walk_over over)
{
	int_fast64_t none = 0;

	atomic_fetch_or(&walk->over, over);
	atomic_compare_exchange_strong(&walk->deadline_ms, &none, clock_ms() + WALK_GRACE_MS);
}

bool walk_is_over(struct walk *walk)
{
	int_fast64_t deadline_ms = atomic_load_explicit(&walk->deadline_ms, memory_order_relaxed);

	if (!deadline_ms || clock_ms() < deadline_ms)
		return false;
	atomic_store(&walk->is_cut, true);
	return true;
}

void walk_count(struct walk *walk, struct walk_worker *worker)
{
	const struct paths_limits *limits = &walk->options->limits;
	uint64_t bytes =
		atomic_fetch_add(&walk->bytes, worker->pending_bytes) + worker->pending_bytes;
	uint64_t files =
		atomic_fetch_add(&walk->files, worker->pending_files) + worker->pending_files;

	worker->pending_bytes = worker->pending_files = 0;
	if (limits->total_bytes && bytes > limits->total_bytes)
		walk_set_over(walk, WALK_OVER_TOTAL);
	if (limits->files && files > limits->files)
		walk_set_over(walk, WALK_OVER_FILES);
}

/* A missing file, or one that is not regular, has no rules. */
static int open_rules(int fd, const char *name, int flags)
{
	AUTO_FD int file = openat(fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
	struct stat st;

	if (file < 0)
		return -errno;
	if (fstat(file, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? TAKE_FD(file) : -ENOENT;
}

const struct ignore *walk_read_rules(struct walk_worker *worker, int fd, const char *name,
	const char *path, const char *dir, bool ignore_case, const struct ignore *next)
{
	/* Like git, follow no links inside the tree: their targets may lie anywhere. */
	AUTO_FD int file = open_rules(fd, name, O_NOFOLLOW);
	AUTO_BUF struct buf text;
	AUTO_ERR struct err err = {0};

	buf_init(&text, IGNORE_TEXT_MAX);
	if (file == -ENOENT || file == -ELOOP || file == -ENOTDIR)
		return next;
	AUTO_FREE char *shown = str_shown(path);
	if (file < 0)
		err_set_errno(&err, E_IO_READ, -file, "cannot read the rules of %s", shown);
	else
		fs_read_fd(file, shown, IGNORE_TEXT_MAX, &text, &err);
	if (err_is_set(&err)) {
		walk_fail(worker, path, &err);
		return next;
	}
	if (text.len == 0)
		return next;
	*vec_push(&worker->rules) = ignore_parse(text.data, text.len, dir, ignore_case, next);
	return worker->rules.v[worker->rules.n - 1];
}

/* Read rules from outside the tree, where links are followed. As in git, a file that cannot be
 * opened counts as missing. */
static const struct ignore *read_outer_rules(
	struct walk_worker *worker, const char *path, bool ignore_case, const struct ignore *next)
{
	AUTO_FD int file = path ? open_rules(AT_FDCWD, path, 0) : -1;
	AUTO_BUF struct buf text;
	AUTO_ERR struct err err = {0};

	buf_init(&text, IGNORE_TEXT_MAX);
	if (file < 0)
		return next;
	if (fs_read_fd(file, path, IGNORE_TEXT_MAX, &text, &err) < 0) {
		walk_fail(worker, "", &err);
		return next;
	}
	*vec_push(&worker->rules) = ignore_parse(text.data, text.len, "", ignore_case, next);
	return worker->rules.v[worker->rules.n - 1];
}

static bool has_gitlinks(const struct tracked *tracked)
{
	vec_foreach (const struct tracked_path, entry, tracked)
		if (entry->mode == TRACKED_MODE_GITLINK)
			return true;
	return false;
}

/* From this directory on repo (NULL: none) decides what is tracked and ignored. */
static void enter_repo(struct walk *walk, struct walk_dir *dir, const struct paths_repo *repo)
{
	struct walk_worker *worker = &walk->workers[0];
	struct walk_scope *scope = arena_alloc(&worker->scratch, sizeof(*scope));

	*scope = (struct walk_scope){.prefix_len = dir->len ? dir->len + 1 : 0};
	if (repo) {
		scope->tracked = &repo->tracked;
		scope->ignore_case = repo->ignore_case;
		scope->has_gitlinks = has_gitlinks(&repo->tracked);
		scope->rules =
			read_outer_rules(worker, repo->excludes_file, repo->ignore_case, NULL);
		scope->rules = read_outer_rules(
			worker, repo->info_exclude, repo->ignore_case, scope->rules);
		dir->n_tracked = repo->tracked.n;
	}
	dir->first = 0;
	dir->scope = scope;
	dir->git_rules = scope->rules;
}

static int ask_for_repo(const struct walk *walk, const struct walk_dir *dir,
	const struct paths_repo **ret, struct err *err)
{
	*ret = NULL;
	if (!walk->options->repo)
		return 0;
	return walk->options->repo(walk->options->repo_ctx, dir->path, ret, err);
}

static int by_path(const void *a, const void *b)
{
	const struct walk_dir *const *x = a, *const *y = b;

	return strcmp((*x)->path, (*y)->path);
}

/* Directories that may be repositories wait until all threads are done: reading a repository is not
 * work for several threads. They make up the next round. */
static void settle_borders(struct walk *walk)
{
	for (unsigned i = 0; i < walk->n_workers; i++) {
		vec_foreach (struct walk_dir *, dir, &walk->workers[i].borders)
			*vec_push(&walk->pending) = *dir;
		walk->workers[i].borders.n = 0;
	}
	vec_sort(&walk->pending, by_path);
	vec_foreach (struct walk_dir *, at, &walk->pending) {
		struct walk_dir *dir = *at;
		const struct paths_repo *repo;
		AUTO_ERR struct err err = {0};
		if (ask_for_repo(walk, dir, &repo, &err) < 0)
			walk_fail(&walk->workers[0], dir->path, &err);
		else if (repo)
			enter_repo(walk, dir, repo);
		dir->is_settled = true;
	}
}

/* item: a directory, or the walk itself, which stands for all that are pending. */
static void work(void *ctx, struct par_queue *queue, void *item, unsigned worker)
{
	struct walk *walk = ctx;

	if (item != walk) {
		walk_visit(walk, &walk->workers[worker], item, queue);
		return;
	}
	vec_foreach (struct walk_dir *, dir, &walk->pending)
		par_queue_add(queue, *dir);
}

static void start(struct walk *walk, const struct paths_options *options)
{
	walk->options = options;
	walk->n_workers = par_width();
	walk->workers = mem_alloc(walk->n_workers, sizeof(*walk->workers));
	for (unsigned i = 0; i < walk->n_workers; i++)
		listing_init(&walk->workers[i].listing);

	struct walk_dir *root = arena_alloc(&walk->workers[0].scratch, sizeof(*root));
	*root = (struct walk_dir){.path = "", .is_settled = true};
	root->include = pathset_at_root(&walk->include);
	root->allow = pathset_at_root(&walk->allow);
	root->paths = pathset_at_root(&walk->paths);
	if (!root->paths.below)
		root->paths.covered = true;
	walk->root = root;
}

static int read_options(struct walk *walk, const struct paths_options *options, struct err *err)
{
	int r;

	if ((r = pathset_init(&walk->include, options->include, "include", err)) < 0)
		return r;
	if ((r = pathset_init(&walk->paths, options->paths, "paths", err)) < 0)
		return r;
	return pathset_init(&walk->allow, options->allow, "allow", err);
}

int walk_run(struct walk *walk, const struct paths_options *options, struct err *err)
{
	const struct paths_repo *repo;
	int r;

	*walk = (struct walk){.root_fd = -1};
	if ((r = read_options(walk, options, err)) < 0)
		return r;
	walk->root_fd = open(options->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (walk->root_fd < 0)
		return err_set_errno(err, E_IO_READ, errno, "cannot list %s", options->root);
	start(walk, options);
	walk_names_begin(walk);
	if ((r = ask_for_repo(walk, walk->root, &repo, err)) < 0)
		return r;
	enter_repo(walk, walk->root, repo);
	*vec_push(&walk->pending) = walk->root;
	while (walk->pending.n) {
		par_queue_run_apart(work, walk, walk, walk->root_fd);
		walk->pending.n = 0;
		settle_borders(walk);
	}
	return 0;
}

static void worker_done(struct walk_worker *worker)
{
	vec_foreach (struct ignore *, rules, &worker->rules)
		ignore_free(*rules);
	vec_done(&worker->rules);
	vec_done(&worker->files);
	vec_done(&worker->dirs);
	vec_done(&worker->zones);
	vec_done(&worker->borders);
	vec_done(&worker->secrets);
	listing_done(&worker->listing);
	left_out_rows_done(&worker->left_out);
	err_done(&worker->failure);
	free(worker->failure_path);
	arena_done(&worker->paths);
	arena_done(&worker->scratch);
}

void walk_done(struct walk *walk)
{
	if (!walk)
		return;
	vec_done(&walk->pending);
	for (unsigned i = 0; i < walk->n_workers; i++)
		worker_done(&walk->workers[i]);
	free(walk->workers);
	pathset_done(&walk->include);
	pathset_done(&walk->paths);
	pathset_done(&walk->allow);
	if (walk->workers)
		close(walk->root_fd);
	*walk = (struct walk){0};
}

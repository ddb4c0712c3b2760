/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "snap/tree/paths.h"
#include "snap/tree/refuse.h"
#include "snap/tree/walk.h"

void path_list_done(struct path_list *list)
{
	if (!list)
		return;
	vec_done(list);
	vec_done(&list->left_out);
	strv_done(&list->notes);
	arena_done(&list->arena);
	*list = (struct path_list){0};
}

/* A directory whose files and subdirectories are being put into the list. */
struct level {
	const struct walk_dir *dir;
	size_t next_file, next_dir;
};

/* In the order of paths a directory stands where its name with a slash would. */
static bool file_is_next(const struct level *level)
{
	const struct walk_dir *dir = level->dir;

	if (level->next_file == dir->n_files)
		return false;
	if (level->next_dir == dir->n_dirs)
		return true;
	const char *file = dir->files[level->next_file].path;
	const struct walk_dir *child = dir->dirs[level->next_dir];
	int d = strncmp(file, child->path, child->len);
	return d < 0 || (d == 0 && (unsigned char)file[child->len] < '/');
}

/* Files of one directory that stand beside each other in the list, from position at on. */
struct run {
	const struct path *files;
	size_t n, at;
};

struct runs {
	struct VEC_OF(struct run) list;
	struct path *to;
};

static size_t files_before_next_dir(const struct level *level)
{
	struct level next = *level;

	if (level->next_dir == level->dir->n_dirs)
		return level->dir->n_files - level->next_file;
	while (file_is_next(&next))
		next.next_file++;
	return next.next_file - level->next_file;
}

/* Find the runs of files of all directories, in the order of paths. Returns the number of files. */
static size_t find_runs(const struct walk *walk, struct runs *runs)
{
	struct VEC_OF(struct level) levels = {0};
	size_t at = 0;

	vec_push(&levels)->dir = walk->root;
	while (levels.n) {
		struct level *level = &levels.v[levels.n - 1];
		size_t n = files_before_next_dir(level);
		if (n) {
			*vec_push(&runs->list) =
				(struct run){level->dir->files + level->next_file, n, at};
			level->next_file += n;
			at += n;
		}
		if (level->next_dir < level->dir->n_dirs) {
			struct walk_dir *child = level->dir->dirs[level->next_dir++];
			vec_push(&levels)->dir = child;
		} else {
			levels.n--;
		}
	}
	vec_done(&levels);
	return at;
}

static void put_run(void *ctx, size_t i, unsigned worker)
{
	const struct runs *runs = ctx;
	const struct run *run = &runs->list.v[i];

	(void)worker;
	memcpy(runs->to + run->at, run->files, run->n * sizeof(*run->files));
}

static void put_files(struct walk *walk, struct path_list *list)
{
	struct runs runs = {0};

	list->n = find_runs(walk, &runs);
	list->v = runs.to = mem_alloc(list->n + 1, sizeof(*list->v));
	list->cap = list->n + 1;
	par_for(runs.list.n, put_run, &runs);
	vec_done(&runs.list);
	vec_foreach (const struct path, path, list)
		list->bytes += path->size;
	for (unsigned i = 0; i < walk->n_workers; i++)
		arena_merge(&list->arena, &walk->workers[i].paths);
}

static void put_left_out(struct walk *walk, struct path_list *list)
{
	struct left_out_rows all = {0};

	for (unsigned i = 0; i < walk->n_workers; i++) {
		struct walk_worker *worker = &walk->workers[i];
		vec_foreach (struct walk_zone *, zone, &worker->zones)
			if ((*zone)->left_out && left_out_count(&worker->left_out, (*zone)->path))
				left_out_keep(&worker->left_out, (*zone)->path, true,
					LEFT_OUT_IGNORED, 0);
		left_out_merge(&all, &worker->left_out);
	}
	left_out_cut(&all);
	list->n_left_out = all.n_all;
	list->left_out = all.rows;
	arena_merge(&list->arena, &all.arena);
}

static int first_failure(struct walk *walk, struct err *err)
{
	struct walk_worker *first = NULL;

	for (unsigned i = 0; i < walk->n_workers; i++) {
		struct walk_worker *worker = &walk->workers[i];
		if (!worker->failure_path)
			continue;
		if (!first || strcmp(worker->failure_path, first->failure_path) < 0)
			first = worker;
	}
	return first ? err_move(err, &first->failure) : 0;
}

static int by_path(const void *a, const void *b)
{
	const struct walk_secret *x = a, *y = b;

	return strcmp(x->path, y->path);
}

static int refuse_secrets(const struct walk *walk, const struct path_list *list, struct err *err)
{
	struct VEC_OF(struct walk_secret) all = {0};
	const char *named[ERR_EVIDENCE_MAX];
	size_t n_named = 0, max = list->notes.n ? ERR_EVIDENCE_MAX - 1 : ERR_EVIDENCE_MAX;

	for (unsigned i = 0; i < walk->n_workers; i++)
		vec_foreach (const struct walk_secret, secret, &walk->workers[i].secrets)
			*vec_push(&all) = *secret;
	if (all.n == 0)
		return 0;
	vec_sort(&all, by_path);
	int r;
	if (all.n == 1)
		r = err_set(err, E_SNAPSHOT_SECRET, "an untracked file looks like a secret");
	else
		r = err_set(err, E_SNAPSHOT_SECRET, "%zu untracked files look like secrets", all.n);
	for (; n_named < all.n && n_named < max; n_named++) {
		AUTO_FREE char *shown = str_shown(all.v[n_named].path);
		err_evidence(err, "%s: %s", shown, all.v[n_named].what);
		named[n_named] = all.v[n_named].path;
	}
	/* The user may have meant one of these entries. */
	if (list->notes.n)
		err_evidence(err, "%s", list->notes.v[0]);
	vec_done(&all);
	hint_ignore(err, walk->options->root, walk->options->shell_dir, named, n_named);
	return r;
}

static int refuse_empty(const struct walk *walk, const struct path_list *list, struct err *err)
{
	static const char *const why[] = {
		[LEFT_OUT_IGNORED] = "ignored by git",
		[LEFT_OUT_DLRUNIGNORE] = "dropped by .dlrunignore",
		[LEFT_OUT_SPECIAL] = "a socket, pipe or device",
		[LEFT_OUT_REPOSITORY] = "a repository that the outer one ignores",
	};

	int r = err_set(
		err, E_SNAPSHOT_EMPTY, "there is no file to run in %s", walk->options->root);
	vec_foreach (const struct left_out, row, &list->left_out) {
		AUTO_FREE char *shown = str_shown(row->path);
		if (row >= list->left_out.v + ERR_EVIDENCE_MAX)
			break;
		err_evidence(err, "%s: %s", shown, why[row->why]);
	}
	return r;
}

static int make_list(struct walk *walk, struct path_list *list, struct err *err)
{
	int r;

	if (walk->over)
		return oversize_refuse(walk, err);
	if ((r = first_failure(walk, err)) < 0)
		return r;
	put_files(walk, list);
	put_left_out(walk, list);
	if ((r = unmatched_refuse(walk, list, err)) < 0)
		return r;
	unmatched_note(walk, list, &list->notes);
	if ((r = refuse_secrets(walk, list, err)) < 0)
		return r;
	return list->n ? 0 : refuse_empty(walk, list, err);
}

int paths_list(const struct paths_options *options, struct path_list *ret, struct err *err)
{
	struct walk walk = {0};
	struct path_list list = {0};

	int r = walk_run(&walk, options, err);
	if (r == 0) {
		struct par_task *saving = walk_names_save(&walk);
		r = make_list(&walk, &list, err);
		par_wait(saving);
	}
	walk_done(&walk);
	if (r < 0)
		path_list_done(&list);
	else
		*ret = list;
	return r;
}

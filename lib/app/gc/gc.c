/* SPDX-License-Identifier: Apache-2.0 */
#include "app/gc/gc_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/attempt/collect.h"
#include "core/config/words.h"
#include "snap/tree/record.h"
#include "targets/local/tree.h"

enum { REFRESH_MS = 1000, ALONE_MS = 3000, BLOCK_BYTES = 512 };

/*
 * Removing
 */

static uint64_t size_of(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return 0;
	return S_ISDIR(st.st_mode) ? tree_size(path) : (uint64_t)st.st_blocks * BLOCK_BYTES;
}

static bool is_missing(const char *path)
{
	struct stat st;

	return lstat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR);
}

int gc_drop(struct gc *gc, const char *path, size_t *count, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	uint64_t bytes = size_of(path);

	if (is_missing(path))
		return 0;
	int r = gc->dry_run ? 0 : fs_remove_tree(AT_FDCWD, path, &fault);
	if (r < 0 && !is_missing(path))
		return err_move(err, &fault);
	gc->report->bytes += bytes;
	++*count;
	return 0;
}

bool gc_is_old(const struct gc *gc, const char *path)
{
	struct stat st;

	return lstat(path, &st) < 0 || (int64_t)st.st_mtime * 1000 + gc->keep_ms <= gc->now_ms;
}

int gc_drop_temporary(struct gc *gc, const char *dir, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;
	int r = 0;

	while (r == 0 && stream && (entry = readdir(stream))) {
		if (!str_starts(entry->d_name, FS_TEMP_PREFIX))
			continue;
		AUTO_FREE char *path = fs_join(dir, entry->d_name);
		r = gc_drop(gc, path, &gc->report->files, err);
	}
	return r;
}

/*
 * Runs that have ended: trees after keep_ms, what was being written at once. Logs, outputs and what
 * tells how they ended stay.
 */

static bool has_old_end(const struct gc *gc, const struct run *run)
{
	int64_t ended_ms = run_ended_ms(run);

	/* The end of a lost run may be unknown. */
	if (ended_ms == 0)
		ended_ms = run_submitted_ms(run);
	return ended_ms + gc->keep_ms <= gc->now_ms;
}

static int drop_attempt(struct gc *gc, const char *dir, bool old, struct err *err)
{
	static const char *const names[] = {ATTEMPT_TREE, ATTEMPT_TEMP};
	AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);
	int r = 0;

	/* The supervisor of a locked attempt is still writing the last lines. */
	if (fs_is_locked(lock))
		return 0;
	r = gc_drop_temporary(gc, dir, err);
	/* Nothing that a program has made goes with its tree: one with results that could not be
	 * collected stays until the run is removed. */
	if (r == 0 && old && !gc->dry_run)
		r = collect_finish(dir, err);
	AUTO_JSON struct json *report = collect_read_report(dir);
	old = old && json_get_int(report, "unread", 0) == 0;
	for (size_t i = 0; r == 0 && old && i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *path = fs_join(dir, names[i]);
		r = gc_drop(gc, path, &gc->report->trees, err);
	}
	return r;
}

static int drop_of_run(struct gc *gc, const struct run *run, struct err *err)
{
	const struct dirs *dirs = &gc->session->dirs;
	AUTO_FREE char *dir = dirs_run(dirs, run_id(run));
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	bool old = has_old_end(gc, run);

	if (fs_is_locked(lock))
		return 0;
	int r = gc_drop_temporary(gc, dir, err);
	for (int i = 1; r == 0 && i <= run_attempts(run); i++) {
		AUTO_FREE char *attempt = dirs_attempt(dirs, run_id(run), i);
		r = drop_attempt(gc, attempt, old, err);
	}
	return r;
}

static int gc_trees(struct gc *gc, struct err *err)
{
	int first = 0;

	/* A tree that cannot be removed must not keep the others. */
	vec_foreach (struct run *, run, &gc->runs) {
		AUTO_ERR struct err fault = {0};
		if (!run_state_is_final(run_state(*run)))
			continue;
		int r = drop_of_run(gc, *run, &fault);
		if (r < 0 && first == 0)
			first = err_move(err, &fault);
		else if (r < 0)
			log_note("%s", fault.message);
	}
	return first;
}

/*
 * Directories of submits that were killed before their row
 */

/* A damaged row is one, too: only the store's word counts. */
static bool has_row(const struct gc *gc, const char *id)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_ERR struct err err = {0};

	if (map_get(&gc->ids, id))
		return true;
	return store_get(gc->store, id, &run, &err) == 0 || err.id != E_RUN_NOT_FOUND;
}

/* A directory with attempts is of a run whose row was lost with the store: its logs and outputs
 * stay. */
static bool is_stray(const struct gc *gc, const char *dir, const char *id)
{
	AUTO_FREE char *attempts = fs_join(dir, "attempts");
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);

	return run_id_is_valid(id) && !has_row(gc, id) && !fs_is_locked(lock) &&
	       is_missing(attempts);
}

static int gc_strays(struct gc *gc, struct err *err)
{
	AUTO_FREE char *runs = fs_join(gc->session->dirs.state, "runs");
	AUTO_DIR DIR *stream = gc->alone ? opendir(runs) : NULL;
	struct dirent *entry;
	int r = 0;

	while (r == 0 && stream && (entry = readdir(stream))) {
		AUTO_FREE char *dir = fs_join(runs, entry->d_name);
		if (is_stray(gc, dir, entry->d_name))
			r = gc_drop(gc, dir, &gc->report->files, err);
	}
	return r;
}

/*
 * Spare trees
 */

static bool is_space_short(const struct gc *gc)
{
	uint64_t bytes;

	return fs_free_bytes(gc->session->dirs.state, &bytes, NULL) == 0 && bytes < SPARES_FREE_MIN;
}

static bool is_idle(const struct gc *gc)
{
	vec_foreach (struct run *, run, &gc->runs)
		if (!run_state_is_final(run_state(*run)))
			return false;
	return true;
}

static int gc_spares(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = dirs_spares(&gc->session->dirs);
	uint64_t bytes = 0;
	size_t n = 0;

	if (!is_space_short(gc) && (gc->keep_ms > 0 || !is_idle(gc)))
		return 0;
	int r = spares_drop(dir, gc->dry_run, &bytes, &n, err);
	gc->report->bytes += bytes;
	gc->report->trees += n;
	return r;
}

/*
 * Images
 */

/* Names of images of runs that are no more. Others are their users'. */
static int find_stale(const struct gc *gc, struct strv *ret, struct err *err)
{
	AUTO_STRV struct strv names = {0};

	int r = layout_names(gc->layout, &names, err);
	for (size_t i = 0; r == 0 && i < names.n; i++)
		if (run_id_is_valid(names.v[i]) && !has_row(gc, names.v[i]))
			strv_add(ret, names.v[i]);
	return r;
}

static int gc_blobs(struct gc *gc, struct err *err)
{
	AUTO_STRV struct strv stale = {0}, keep = {0};
	AUTO_ERR struct err fault = {0};
	uint64_t bytes = 0;
	size_t n = 0;

	if (!gc->layout || !gc->alone)
		return 0;
	vec_foreach (struct run *, run, &gc->runs)
		if (run_image_digest(*run))
			strv_add(&keep, run_image_digest(*run));
	int r = find_stale(gc, &stale, err);
	if (r < 0)
		return r;
	r = (gc->dry_run ? layout_gc_preview : layout_gc)(
		gc->layout, &stale, &keep, &bytes, &n, &fault);
	if (r < 0 && fault.id == E_IO_LOCK) {
		log_note("images are left alone: %s", fault.message);
		return 0;
	}
	gc->report->bytes += bytes;
	gc->report->blobs += n;
	return r < 0 ? err_move(err, &fault) : 0;
}

/*
 * Repositories
 */

static int gc_repositories(struct gc *gc, struct err *err)
{
	struct map seen = {0};

	(void)err;
	vec_foreach (struct run *, run, &gc->runs) {
		AUTO_FREE char *root = words_get_one(json_get((*run)->doc, "origin"), "root");
		if (root && !gc->dry_run && !map_put(&seen, root, gc))
			record_sweep(root);
	}
	map_done(&seen);
	return 0;
}

/*
 * All of it
 */

static int load_layout(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = dirs_layout(&gc->session->dirs);

	return is_missing(dir) ? 0 : session_layout(gc->session, &gc->layout, err);
}

/* Refresh unfinished runs: some may have ended unnoticed. */
static void refresh(struct gc *gc)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_ERR struct err err = {0};

	int r = store_list(gc->store, &(struct store_filter){.unfinished_only = true}, &runs, &err);
	if (r == 0)
		r = runs_refresh(gc->session, &runs, REFRESH_MS, &err);
	if (r < 0)
		log_note("%s", err.message);
}

static int load_runs(struct gc *gc, struct err *err)
{
	refresh(gc);
	int r = store_list(gc->store, &(struct store_filter){0}, &gc->runs, err);
	vec_foreach (struct run *, run, &gc->runs)
		map_put(&gc->ids, run_id(*run), *run);
	return r;
}

static void run_steps(struct gc *gc, struct err *err)
{
	/* Plans last of what knows blobs: one whose layer has gone just now goes with it. */
	static int (*const steps[])(struct gc *, struct err *) = {gc_trees, gc_strays, gc_spares,
		gc_blobs, gc_plans, gc_stat_caches, gc_setups, gc_mirrors, gc_registries,
		gc_repositories};

	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		AUTO_ERR struct err fault = {0};
		if (steps[i](gc, &fault) == 0)
			continue;
		if (err_is_set(err))
			log_note("%s", fault.message);
		else
			err_move(err, &fault);
	}
}

int gc_local(struct session *session, int64_t keep_ms, bool dry_run, struct gc_report *ret,
	struct err *err)
{
	struct gc gc = {.session = session,
		.keep_ms = keep_ms,
		.dry_run = dry_run,
		.report = ret,
		.now_ms = clock_wall_ms()};
	AUTO_ERR struct err busy = {0}, fault = {0};
	AUTO_FD int lock_fd = -1;

	*ret = (struct gc_report){0};
	int r = session_store(session, &gc.store, err);
	if (r == 0)
		r = load_layout(&gc, err);
	if (r < 0)
		return r;
	gc.alone = session_lock(session, true, ALONE_MS, &lock_fd, &busy) == 0;
	if (!gc.alone)
		log_note("what no run names is left alone: %s", busy.message);
	r = load_runs(&gc, err);
	if (r == 0)
		run_steps(&gc, &fault);
	map_done(&gc.ids);
	run_list_done(&gc.runs);
	return err_is_set(&fault) ? err_move(err, &fault) : r;
}

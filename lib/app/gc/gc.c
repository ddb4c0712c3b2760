/* SPDX-License-Identifier: Apache-2.0 */
#include "app/gc/gc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "app/transfer/mirror_files.h"
#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/log.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/attempt/attempt.h"
#include "core/attempt/collect.h"
#include "core/config/config.h"
#include "core/config/words.h"
#include "core/record/runtime.h"
#include "core/store/store.h"
#include "oci/image/plan.h"
#include "snap/tree/record.h"
#include "snap/tree/statcache.h"
#include "targets/local/tree.h"
#include "targets/ssh/target_node.h"
#include "targets/targets.h"

enum { REFRESH_MS = 1000, ALONE_MS = 3000, BLOCK_BYTES = 512, STAT_DIR_LEN = 16 };

#define SETUP_GONE "gone-" /* being removed: of no key any more */

/* Each step removes one kind of thing, or with dry_run only counts it. */
struct gc {
	struct session *session;
	struct store *store;
	struct layout *layout;   /* the session's; NULL: there is none yet */
	int64_t keep_ms, now_ms; /* now: wall clock */
	bool dry_run;
	bool alone;           /* no submit is under way: what no row names is nobody's */
	struct run_list runs; /* all of the store */
	struct map ids;       /* of the runs */
	struct gc_report *report;
};

/*
 * Removing
 */

static uint64_t gc_size_of(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return 0;
	return S_ISDIR(st.st_mode) ? tree_size(path) : (uint64_t)st.st_blocks * BLOCK_BYTES;
}

static bool gc_is_missing(const char *path)
{
	struct stat st;

	return lstat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR);
}

/* Remove path and all below it; *count is one of the report's. What somebody else has removed
 * meanwhile is success. */
static int gc_drop(struct gc *gc, const char *path, size_t *count, struct err *err)
{
	AUTO_ERR struct err error = {0};
	uint64_t bytes = gc_size_of(path);

	if (gc_is_missing(path))
		return 0;
	int r = gc->dry_run ? 0 : fs_remove_tree(AT_FDCWD, path, &error);
	if (r < 0 && !gc_is_missing(path))
		return err_move(err, &error);
	gc->report->bytes += bytes;
	++*count;
	return 0;
}

/* Whether path was changed more than keep_ms ago. */
static bool gc_is_old(const struct gc *gc, const char *path)
{
	struct stat st;

	return lstat(path, &st) < 0 || (int64_t)st.st_mtime * 1000 + gc->keep_ms <= gc->now_ms;
}

/* Call fn for each entry of dir, if there is one, until it fails. */
typedef int gc_entry_fn(
	struct gc *gc, const char *path, const char *name, void *ctx, struct err *err);
static int gc_each(struct gc *gc, const char *dir, gc_entry_fn *fn, void *ctx, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;
	int r = 0;

	while (r == 0 && stream && (entry = readdir(stream))) {
		AUTO_FREE char *path = fs_join(dir, entry->d_name);
		r = fn(gc, path, entry->d_name, ctx, err);
	}
	return r;
}

static int gc_drop_if_temporary(
	struct gc *gc, const char *path, const char *name, void *ctx UNUSED, struct err *err)
{
	return str_starts(name, FS_TEMP_PREFIX) ? gc_drop(gc, path, &gc->report->files, err) : 0;
}

/* Remove the files of dir (not below it) that were being written by processes that died. */
static int gc_drop_temporary(struct gc *gc, const char *dir, struct err *err)
{
	return gc_each(gc, dir, gc_drop_if_temporary, NULL, err);
}

static bool gc_is_hex(const char *name, size_t len)
{
	return strlen(name) == len && strspn(name, "0123456789abcdef") == len;
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
		AUTO_ERR struct err error = {0};
		if (!run_state_is_final(run_state(*run)))
			continue;
		int r = drop_of_run(gc, *run, &error);
		if (r < 0 && first == 0)
			first = err_move(err, &error);
		else if (r < 0)
			log_note("%s", error.message);
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
	       gc_is_missing(attempts);
}

static int drop_stray(
	struct gc *gc, const char *path, const char *name, void *ctx UNUSED, struct err *err)
{
	return is_stray(gc, path, name) ? gc_drop(gc, path, &gc->report->files, err) : 0;
}

static int gc_strays(struct gc *gc, struct err *err)
{
	AUTO_FREE char *runs = fs_join(gc->session->dirs.state, "runs");

	return gc->alone ? gc_each(gc, runs, drop_stray, NULL, err) : 0;
}

/*
 * Studies none of whose members has a row any more
 */

static int drop_study(
	struct gc *gc, const char *path, const char *name, void *groups, struct err *err)
{
	if (!run_id_is_valid(name) || map_get(groups, name) || !gc_is_old(gc, path))
		return 0;
	return gc_drop(gc, path, &gc->report->files, err);
}

static int gc_studies(struct gc *gc, struct err *err)
{
	AUTO_FREE char *studies = fs_join(gc->session->dirs.state, "studies");
	AUTO(map_done) struct map groups = {0};

	if (!gc->alone)
		return 0;
	vec_foreach (struct run *, run, &gc->runs) {
		const char *group = json_get_str((*run)->doc, "group");
		if (group)
			map_put(&groups, group, gc);
	}
	return gc_each(gc, studies, drop_study, &groups, err);
}

/*
 * Spare trees
 */

static bool is_space_short(const struct gc *gc)
{
	uint64_t bytes;

	return fs_free_bytes(gc->session->dirs.state, &bytes, NULL) == 0 && bytes < SPARES_FREE_MIN;
}

static bool gc_is_idle(const struct gc *gc)
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

	if (!is_space_short(gc) && (gc->keep_ms > 0 || !gc_is_idle(gc)))
		return 0;
	int r = spares_drop(dir, gc->dry_run, &bytes, &n, err);
	gc->report->bytes += bytes;
	gc->report->trees += n;
	return r;
}

/*
 * Images
 */

static int gc_blobs(struct gc *gc, struct err *err)
{
	AUTO_STRV struct strv stale = {0}, keep = {0};
	AUTO_ERR struct err error = {0};
	uint64_t bytes = 0;
	size_t n = 0;

	if (!gc->layout || !gc->alone)
		return 0;
	vec_foreach (struct run *, run, &gc->runs)
		if (run_image_digest(*run))
			strv_add(&keep, run_image_digest(*run));
	/* Names of images of runs that are no more. Others are their users'. */
	AUTO_STRV struct strv names = {0};

	int r = layout_names(gc->layout, &names, err);
	for (size_t i = 0; r == 0 && i < names.n; i++)
		if (run_id_is_valid(names.v[i]) && !has_row(gc, names.v[i]))
			strv_add(&stale, names.v[i]);
	if (r < 0)
		return r;
	r = (gc->dry_run ? layout_gc_preview : layout_gc)(
		gc->layout, &stale, &keep, &bytes, &n, &error);
	if (r < 0 && error.id == E_IO_LOCK) {
		log_note("images are left alone: %s", error.message);
		return 0;
	}
	gc->report->bytes += bytes;
	gc->report->blobs += n;
	return r < 0 ? err_move(err, &error) : 0;
}

/*
 * Repositories
 */

static int gc_repositories(struct gc *gc, struct err *err UNUSED)
{
	struct map seen = {0};

	vec_foreach (struct run *, run, &gc->runs) {
		AUTO_FREE char *root = words_get_one(json_get((*run)->doc, "origin"), "root");
		if (root && !gc->dry_run && !map_put(&seen, root, gc))
			record_sweep(root);
	}
	map_done(&seen);
	return 0;
}

/*
 * Plans: PATH, PATH.recent, PATH.lock (plan.h)
 */

static bool has_blob(const struct gc *gc, const struct plan_layer *layer)
{
	struct descriptor blob = {.size = layer->size};
	AUTO_FD int fd = -1;

	digest_text(layer->digest, blob.digest);
	return gc->layout && layout_open_blob(gc->layout, &blob, &fd, NULL) == 0;
}

/* Plans are kept for other layouts, too: for those only the time of the last use is known. */
static bool is_plan_needed(const struct gc *gc, const char *path)
{
	AUTO_FREE char *recent = mem_printf("%s.recent", path);
	AUTO_PLAN struct plan plan = {0};

	if (!gc_is_old(gc, path) || !gc_is_old(gc, recent))
		return true;
	plan_load(path, &plan);
	return plan.has_full && has_blob(gc, &plan.full);
}

static int drop_plan(struct gc *gc, const char *path, struct err *err)
{
	static const char *const endings[] = {"", ".recent", ".lock"};
	AUTO_FREE char *lock = mem_printf("%s.lock", path);
	int r = 0;

	/* A locked plan is being written. */
	if (is_plan_needed(gc, path) || fs_is_locked(lock))
		return 0;
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(endings); i++) {
		AUTO_FREE char *file = mem_printf("%s%s", path, endings[i]);
		r = gc_drop(gc, file, &gc->report->files, err);
	}
	return r;
}

/* The names of plans, of which any of the three files may be missing. */
static int find_plan(struct gc *gc UNUSED, const char *path UNUSED, const char *entry, void *ctx,
	struct err *err UNUSED)
{
	AUTO_FREE char *name = mem_strndup(entry, strcspn(entry, "."));

	if (gc_is_hex(name, SHA256_HEX_SIZE - 1))
		map_put(ctx, name, ctx);
	return 0;
}

static int gc_plans(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = dirs_plans(&gc->session->dirs);
	AUTO(map_done) struct map names = {0};
	const char *name;
	size_t pos = 0;
	void *value;

	int r = gc_drop_temporary(gc, dir, err);
	gc_each(gc, dir, find_plan, &names, NULL);
	while (r == 0 && map_each(&names, &pos, &name, &value)) {
		AUTO_FREE char *path = fs_join(dir, name);
		r = drop_plan(gc, path, err);
	}
	return r;
}

/*
 * Stat caches: one directory for a tree, called by a hash of its root
 */

static void gc_find_stat_cache(const struct gc *gc, const char *root, struct map *ret)
{
	AUTO_FREE char *path = statcache_path(gc->session->dirs.cache, root);

	map_put(ret, path, ret);
}

/* Find the stat caches of the trees of runs, as far as these trees still exist. */
static void find_trees(const struct gc *gc, struct map *ret)
{
	vec_foreach (struct run *, run, &gc->runs) {
		AUTO_FREE char *root = words_get_one(json_get((*run)->doc, "origin"), "root");
		struct stat st;
		if (!root || stat(root, &st) < 0)
			continue;
		gc_find_stat_cache(gc, root, ret);
		/* Of the directories below the tree whose data was sent with a run, as image_data.c
		 * knows them. */
		const struct json *item = json_first(json_get((*run)->spec, "data"));

		for (; item; item = json_next(item)) {
			AUTO_FREE char *path = words_get_one(item, "path");
			AUTO_FREE char *dir = path ? fs_join(root, path) : NULL;
			AUTO_FREE char *real = dir ? realpath(dir, NULL) : NULL;
			if (real && str_eq(json_get_str(item, "from"), RUNTIME_SYNC))
				gc_find_stat_cache(gc, real, ret);
		}
	}
}

/* trees: those of find_trees. */
static int drop_stat_cache(
	struct gc *gc, const char *dir, const char *name, void *trees, struct err *err)
{
	AUTO_FREE char *file = fs_join(dir, "stat.v1");
	AUTO_FREE char *lock = fs_join(dir, "stat.lock");

	if (!gc_is_hex(name, STAT_DIR_LEN) || map_get(trees, file) || !gc_is_old(gc, file) ||
		fs_is_locked(lock))
		return 0;
	return gc_drop(gc, dir, &gc->report->files, err);
}

static int gc_stat_caches(struct gc *gc, struct err *err)
{
	AUTO(map_done) struct map trees = {0};

	find_trees(gc, &trees);
	return gc_each(gc, gc->session->dirs.cache, drop_stat_cache, &trees, err);
}

/* `dlrun data push` remembers directories, versions and the parts of large files that a bucket has
 * there (.upload: earlier versions of dlrun): all of it can be asked for, or sent, anew. */
static int gc_drop_data_list(
	struct gc *gc, const char *path, const char *name, void *ctx UNUSED, struct err *err)
{
	static const char *const endings[] = {".list", ".stat", ".upload", ".uploads"};

	for (size_t i = 0; i < ARRAY_LEN(endings); i++)
		if (str_ends(name, endings[i]) && gc_is_old(gc, path))
			return gc_drop(gc, path, &gc->report->files, err);
	return 0;
}

static int gc_data_lists(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = fs_join(gc->session->dirs.cache, "data");

	return gc_each(gc, dir, gc_drop_data_list, NULL, err);
}

/*
 * Registries: a file for each repository, one for each tree that goes there, and small blobs, for
 * as long as somebody pushes there
 */

static int drop_old_file(
	struct gc *gc, const char *path, const char *name, void *ctx UNUSED, struct err *err)
{
	if (strcspn(name, ".") != SHA256_HEX_SIZE - 1 || !gc_is_old(gc, path))
		return 0;
	return gc_drop(gc, path, &gc->report->files, err);
}

static int drop_old_files(struct gc *gc, const char *dir, struct err *err)
{
	int r = gc_drop_temporary(gc, dir, err);

	return r < 0 ? r : gc_each(gc, dir, drop_old_file, NULL, err);
}

static int gc_registries(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = dirs_registries(&gc->session->dirs);
	AUTO_FREE char *bases = fs_join(dir, "bases/blobs/sha256");

	int r = drop_old_files(gc, dir, err);
	return r < 0 ? r : drop_old_files(gc, bases, err);
}

/*
 * Mirrors of event files (mirror.h): one directory for each run
 */

static int drop_mirror(
	struct gc *gc, const char *dir, const char *name, void *ctx UNUSED, struct err *err)
{
	AUTO_FREE char *lock = fs_join(dir, MIRROR_OWN "/lock");
	AUTO_FREE char *own = fs_join(dir, MIRROR_OWN);

	if (!run_id_is_valid(name) || map_get(&gc->ids, name) || !gc_is_old(gc, own) ||
		fs_is_locked(lock))
		return 0;
	return gc_drop(gc, dir, &gc->report->files, err);
}

static int gc_mirrors(struct gc *gc, struct err *err)
{
	int r = 0;

	for (int i = 0; r == 0 && i < 2; i++) {
		AUTO_FREE char *mirrors = dirs_mirror(&gc->session->dirs, i);
		r = gc_each(gc, mirrors, drop_mirror, NULL, err);
	}
	return r;
}

/*
 * Setups (setup.h): one directory for each key. Those go that no run uses and that nobody has used
 * for GC_SETUP_KEEP_MS (with keep_ms 0: now), failed ones after keep_ms
 */

/* When it was used last, if it was ever done; else when it was begun. */
static bool is_unused(const struct gc *gc, const char *dir)
{
	AUTO_FREE char *stamp = fs_join(dir, "stamp"), *log = fs_join(dir, "log");
	bool done = access(stamp, F_OK) == 0;
	struct stat st;
	int64_t keep_ms = gc->keep_ms;

	if (done && keep_ms > 0 && keep_ms < GC_SETUP_KEEP_MS)
		keep_ms = GC_SETUP_KEEP_MS;
	/* A setup without a log is about to begin: take the time of its directory. */
	if (stat(done ? stamp : log, &st) < 0 && stat(dir, &st) < 0)
		return false;
	return (int64_t)st.st_mtime * 1000 + keep_ms <= gc->now_ms;
}

/* Rename first, to an unused name and under the lock: a process that waits for the lock finds that
 * the directory is gone, and makes a new one. */
static int drop_setup(struct gc *gc, const char *setups, const char *name, struct err *err)
{
	AUTO_FREE char *dir = fs_join(setups, name), *lock = fs_join(dir, "lock");
	AUTO_FREE char *log = fs_join(dir, "log");
	AUTO_FREE char *gone = mem_printf("%s/" SETUP_GONE "%s", setups, name);
	AUTO_FD int lock_fd = -1;

	if (!is_unused(gc, dir) || fs_is_locked(log))
		return 0;
	if (gc->dry_run)
		return fs_is_locked(lock) ? 0 : gc_drop(gc, dir, &gc->report->trees, err);
	if (fs_lock(lock, true, 0, &lock_fd, NULL) < 0 || !is_unused(gc, dir))
		return 0;
	if (fs_remove_tree(AT_FDCWD, gone, NULL) < 0 || rename(dir, gone) < 0)
		return fs_error(err, errno, "removing %s", dir);
	return gc_drop(gc, gone, &gc->report->trees, err);
}

static int drop_setups(struct gc *gc, struct err *err)
{
	AUTO_FREE char *setups = dirs_setups(&gc->session->dirs);
	AUTO_DIR DIR *stream = opendir(setups);
	AUTO_STRV struct strv names = {0};
	struct dirent *entry;
	int r = 0;

	while (stream && (entry = readdir(stream)))
		strv_add(&names, entry->d_name);
	for (size_t i = 0; r == 0 && i < names.n; i++) {
		AUTO_FREE char *path = fs_join(setups, names.v[i]);
		if (str_starts(names.v[i], SETUP_GONE))
			r = gc_drop(gc, path, &gc->report->trees, err);
		else if (gc_is_hex(names.v[i], SHA256_HEX_SIZE - 1))
			r = drop_setup(gc, setups, names.v[i], err);
	}
	return r;
}

int gc_setups(struct session *session, int64_t keep_ms, int64_t now_ms, bool dry_run,
	struct gc_report *ret, struct err *err)
{
	struct gc gc = {.session = session,
		.keep_ms = keep_ms,
		.now_ms = now_ms,
		.dry_run = dry_run,
		.report = ret};

	return drop_setups(&gc, err);
}

/*
 * All of it
 */

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

static void run_steps(struct gc *gc, struct err *err)
{
	/* Plans last of what knows blobs: one whose layer has gone just now goes with it. */
	static int (*const steps[])(struct gc *, struct err *) = {gc_trees, gc_strays, gc_studies,
		gc_spares, gc_blobs, gc_plans, gc_stat_caches, gc_data_lists, drop_setups,
		gc_mirrors, gc_registries, gc_repositories};

	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		AUTO_ERR struct err error = {0};
		if (steps[i](gc, &error) == 0)
			continue;
		if (err_is_set(err))
			log_note("%s", error.message);
		else
			err_move(err, &error);
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
	AUTO_ERR struct err busy = {0}, error = {0};
	AUTO_FD int lock_fd = -1;

	*ret = (struct gc_report){0};
	int r = session_store(session, &gc.store, err);
	if (r == 0) {
		AUTO_FREE char *dir = dirs_layout(&gc.session->dirs);

		r = gc_is_missing(dir) ? 0 : session_layout(gc.session, &gc.layout, err);
	}
	if (r < 0)
		return r;
	gc.alone = session_lock(session, true, ALONE_MS, &lock_fd, &busy) == 0;
	if (!gc.alone)
		log_note("what no run names is left alone: %s", busy.message);
	refresh(&gc);
	r = store_list(gc.store, &(struct store_filter){0}, &gc.runs, err);
	vec_foreach (struct run *, run, &gc.runs)
		map_put(&gc.ids, run_id(*run), *run);
	if (r == 0)
		run_steps(&gc, &error);
	map_done(&gc.ids);
	run_list_done(&gc.runs);
	return err_is_set(&error) ? err_move(err, &error) : r;
}

/*
 * Hosts
 */

struct host_cleaning {
	struct loop_wait wait;
	int status;
	struct err err;
};

static int on_cleaned(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct host_cleaning *cleaning = ctx;

	cleaning->status = status;
	if (status < 0)
		err_move(&cleaning->err, error);
	loop_wait_done(&cleaning->wait);
	return 0;
}

static int clean_host(struct session *session, struct node_host *host, int64_t keep_ms,
	bool dry_run, struct node_freed *ret, struct err *err)
{
	struct host_cleaning cleaning = {.wait = {.loop = session_loop(session), .n_open = 1}};
	struct node_call *call = node_gc(
		host->node, keep_ms / 1000, GC_NODE_BYTES, dry_run, ret, on_cleaned, &cleaning);
	int r = loop_wait_run(&cleaning.wait, err);

	if (cleaning.wait.n_open > 0)
		node_cancel(call);
	else if (cleaning.status < 0)
		r = err_move(err, &cleaning.err);
	err_done(&cleaning.err);
	return r;
}

int gc_node(struct session *session, const char *name, int64_t keep_ms, bool dry_run,
	struct node_freed *ret, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;

	*ret = (struct node_freed){0};
	struct config *config;
	int r = session_config(session, &config, err);

	if (r < 0)
		return r;
	const struct json *definition = config_target(config, name);
	const struct target_ops *ops = target_ops_named(config, name);
	if (definition && !(ops && ops->has_login)) {
		AUTO_FREE char *shown = str_shown(name);
		err_set(err, E_USAGE, "target %s is not an SSH host", shown);
		return err_hint(err, "dlrun targets");
	}
	AUTO_FREE char *whole =
		definition || target_node_is(name) ? mem_strdup(name) : mem_printf("ssh:%s", name);
	r = target_open(session, whole, &target, err);
	if (r < 0)
		return r;
	const struct target_node *node = target_node_of(target);
	for (size_t i = 0; i < node->hosts.n && r == 0; i++) {
		struct node_freed freed = {0};
		struct node_host *host;
		r = node_open(session, node->hosts.v[i], node->root, &host, err);
		if (r == 0)
			r = clean_host(session, host, keep_ms, dry_run, &freed, err);
		ret->layers_bytes += freed.layers_bytes;
		ret->trees_bytes += freed.trees_bytes;
		ret->data_bytes += freed.data_bytes;
		ret->count += freed.count;
	}
	return r;
}

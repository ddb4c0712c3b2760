/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/gc/gc_impl.h"
#include "app/transfer/mirror_files.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "oci/image/plan.h"
#include "snap/tree/statcache.h"

/*
 * The cache directory: whatever goes here costs time, nothing else.
 */

enum { STAT_DIR_LEN = 16 };

static bool is_hex(const char *name, size_t len)
{
	return strlen(name) == len && strspn(name, "0123456789abcdef") == len;
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
static bool is_needed(const struct gc *gc, const char *path)
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
	if (is_needed(gc, path) || fs_is_locked(lock))
		return 0;
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(endings); i++) {
		AUTO_FREE char *file = mem_printf("%s%s", path, endings[i]);
		r = gc_drop(gc, file, &gc->report->files, err);
	}
	return r;
}

/* The names of plans, of which any of the three files may be missing. */
static void find_plans(const char *dir, struct map *ret)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	while (stream && (entry = readdir(stream))) {
		AUTO_FREE char *name = mem_strndup(entry->d_name, strcspn(entry->d_name, "."));
		if (is_hex(name, SHA256_HEX_SIZE - 1))
			map_put(ret, name, ret);
	}
}

int gc_plans(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = dirs_plans(&gc->session->dirs);
	AUTO(map_done) struct map names = {0};
	const char *name;
	size_t pos = 0;
	void *value;

	int r = gc_drop_temporary(gc, dir, err);
	find_plans(dir, &names);
	while (r == 0 && map_each(&names, &pos, &name, &value)) {
		AUTO_FREE char *path = fs_join(dir, name);
		r = drop_plan(gc, path, err);
	}
	return r;
}

/*
 * Stat caches: one directory for a tree, called by a hash of its root
 */

/* Find the stat caches of the trees of runs, as far as these trees still exist. */
static void find_trees(const struct gc *gc, struct map *ret)
{
	vec_foreach (struct run *, run, &gc->runs) {
		AUTO_FREE char *root = words_get_one(json_get((*run)->doc, "origin"), "root");
		struct stat st;
		if (!root || stat(root, &st) < 0)
			continue;
		AUTO_FREE char *path = statcache_path(gc->session->dirs.cache, root);
		map_put(ret, path, ret);
	}
}

static int drop_stat_cache(struct gc *gc, const char *dir, const struct map *trees, struct err *err)
{
	AUTO_FREE char *file = fs_join(dir, "stat.v1");
	AUTO_FREE char *lock = fs_join(dir, "stat.lock");

	if (map_get(trees, file) || !gc_is_old(gc, file) || fs_is_locked(lock))
		return 0;
	return gc_drop(gc, dir, &gc->report->files, err);
}

int gc_stat_caches(struct gc *gc, struct err *err)
{
	const char *cache = gc->session->dirs.cache;
	AUTO_DIR DIR *stream = opendir(cache);
	AUTO(map_done) struct map trees = {0};
	struct dirent *entry;
	int r = 0;

	find_trees(gc, &trees);
	while (r == 0 && stream && (entry = readdir(stream))) {
		AUTO_FREE char *dir = fs_join(cache, entry->d_name);
		if (is_hex(entry->d_name, STAT_DIR_LEN))
			r = drop_stat_cache(gc, dir, &trees, err);
	}
	return r;
}

/*
 * Registries: a file for each repository, one for each tree that goes there, and small blobs
 */

static int drop_old_files(struct gc *gc, const char *dir, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	int r = gc_drop_temporary(gc, dir, err);
	while (r == 0 && stream && (entry = readdir(stream))) {
		AUTO_FREE char *file = fs_join(dir, entry->d_name);
		if (strcspn(entry->d_name, ".") == SHA256_HEX_SIZE - 1 && gc_is_old(gc, file))
			r = gc_drop(gc, file, &gc->report->files, err);
	}
	return r;
}

int gc_registries(struct gc *gc, struct err *err)
{
	AUTO_FREE char *dir = dirs_registries(&gc->session->dirs);
	AUTO_FREE char *bases = fs_join(dir, "bases/blobs/sha256");

	int r = drop_old_files(gc, dir, err);
	return r < 0 ? r : drop_old_files(gc, bases, err);
}

/*
 * Mirrors of event files (mirror.h): one directory for each run
 */

static int drop_mirrors(struct gc *gc, const char *mirrors, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(mirrors);
	struct dirent *entry;
	int r = 0;

	while (r == 0 && stream && (entry = readdir(stream))) {
		AUTO_FREE char *dir = fs_join(mirrors, entry->d_name);
		AUTO_FREE char *lock = fs_join(dir, MIRROR_OWN "/lock");
		AUTO_FREE char *own = fs_join(dir, MIRROR_OWN);

		if (run_id_is_valid(entry->d_name) && !map_get(&gc->ids, entry->d_name) &&
			gc_is_old(gc, own) && !fs_is_locked(lock))
			r = gc_drop(gc, dir, &gc->report->files, err);
	}
	return r;
}

int gc_mirrors(struct gc *gc, struct err *err)
{
	int r = 0;

	for (int i = 0; r == 0 && i < 2; i++) {
		AUTO_FREE char *mirrors = dirs_mirror(&gc->session->dirs, i);
		r = drop_mirrors(gc, mirrors, err);
	}
	return r;
}

/*
 * Setups (setup.h): one directory for each key
 */

#define SETUP_GONE "gone-" /* being removed: of no key any more */

/* When it was used last, if it was ever done; else when it was begun. */
static bool is_unused(const struct gc *gc, const char *dir)
{
	AUTO_FREE char *stamp = fs_join(dir, "stamp"), *log = fs_join(dir, "log");
	bool done = access(stamp, F_OK) == 0;
	struct stat st;
	int64_t keep_ms = gc->keep_ms;

	if (done && keep_ms > 0 && keep_ms < SETUP_KEEP_MS)
		keep_ms = SETUP_KEEP_MS;
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

int gc_setups(struct gc *gc, struct err *err)
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
		else if (is_hex(names.v[i], SHA256_HEX_SIZE - 1))
			r = drop_setup(gc, setups, names.v[i], err);
	}
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot: the exact bytes of a working tree at one moment, as a sorted list of entries with
 * their digests. Taken without touching the tree or its .git; what changes later does not count.
 *
 * Paths come from paths.c, contents from a stat cache: a file whose stat data are those of an
 * earlier snapshot (and not racy) is not read again. A file is read with fstat before and after;
 * one that keeps changing is an error that names it (E_IO_CHANGED).
 */
#ifndef DLRUN_SNAP_TREE_SNAPSHOT_H
#define DLRUN_SNAP_TREE_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "snap/tree/paths.h"

/* Where a tree begins. */
struct tree_place {
	char *root;    /* absolute, without symbolic links */
	char *prefix;  /* start relative to root: "." or "exp/a" */
	char *git_dir; /* NULL: no repository */
};

/* Find the tree that start (an absolute directory) lies in: the working tree of its repository
 * (git_dir and work_tree override the search when not NULL, as GIT_DIR and GIT_WORK_TREE do), else
 * the nearest directory upwards with a file named marker, else start itself. home: never taken as a
 * tree, nor is / (E_SNAPSHOT_ROOT). E_SNAPSHOT_BARE in a bare repository. */
struct tree_place_options {
	const char *start, *home, *marker;
	const char *git_dir, *work_tree; /* NULL: none */
	/* Whether a marker makes its directory the root; NULL: each does. */
	bool (*marker_counts)(void *ctx, const char *path);
	void *marker_ctx;
};
int tree_place_find(
	const struct tree_place_options *options, struct tree_place *ret, struct err *err);
void tree_place_done(struct tree_place *place);

struct snapshot_options {
	const struct tree_place *place;
	const struct strv *include, *paths, *allow; /* may be NULL */
	struct paths_limits limits;
	const char *cache_dir;  /* of dlrun; NULL: no stat cache */
	const char *home;       /* for git's global configuration; NULL: none */
	const char *xdg_config; /* XDG_CONFIG_HOME or NULL */
	const char *shell_dir;  /* where hints are pasted; NULL: the current directory */
	/* Called once each, unless NULL. will_walk: when the repository has been read and the tree
	 * will be walked; will_read: before files are read that the stat cache does not know. */
	void (*will_walk)(void *ctx);
	void (*will_read)(void *ctx, const struct path *const *files, size_t n);
	void *will_ctx;
	bool id_later; /* the id is not there before snapshot_wait_id */
};

/* The tree as git sees it. A file counts as changed when its bytes or its mode differ from the
 * index. A file that differs only by a filter (line ends, LFS) does not, as long as git's own stat
 * data of it are valid; after a touch it does until the next `git status`. */
struct snapshot_git {
	bool present;
	bool library;     /* false: `git ls-files` or the walk alone gave the paths */
	char *commit;     /* HEAD, 40 or 64 hex digits; NULL: unborn */
	char *branch;     /* short name; NULL: detached */
	char *remote_url; /* of origin, user info removed; NULL: none */
	bool dirty;       /* what runs is not HEAD: one of the counts, something staged, a submodule
			   * at another commit; what .dlrunignore or paths: exclude is nothing */
	size_t n_changed, n_untracked, n_deleted;
};

struct snapshot_stats {
	size_t n_hashed; /* files that were read */
	uint64_t hashed_bytes;
	int64_t walk_us, hash_us;
};

struct snapshot {
	char *root, *prefix;
	struct entry_list entries; /* paths and targets live as long as the snapshot */
	uint64_t bytes;            /* of all contents */
	char id[DIGEST_TEXT_SIZE];
	struct path_list paths; /* one for each entry, same order; holds what was excluded, too */
	struct snapshot_git git;
	struct strv warnings; /* one sentence each */
	struct snapshot_stats stats;
	struct snapshot_private *private;
};

int snapshot_take(const struct snapshot_options *options, struct snapshot **ret, struct err *err);
void snapshot_free(struct snapshot *snapshot);
/* With id_later: blocks until the id is there, which is computed beside the caller. Entries must
 * not be changed before, and only one thread may wait at once. */
void snapshot_wait_id(const struct snapshot *snapshot);
AUTO_POINTER(struct snapshot, snapshot_free)
#define AUTO_SNAPSHOT AUTO(snapshot_free_auto)

/* Opens the files of the tree for layers; ctx is the snapshot. */
struct entry_opener snapshot_opener(struct snapshot *snapshot);

/* Read changed files again, after a reader met E_IO_CHANGED; entries, id, git and warnings are
 * brought up to date. A file that is gone leaves the list; new ones do not come in. */
int snapshot_refresh(struct snapshot *snapshot, struct err *err);

#endif

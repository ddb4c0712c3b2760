/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the parts of a snapshot; for lib/snap only. */
#ifndef DLRUN_SNAP_TREE_PRIVATE_H
#define DLRUN_SNAP_TREE_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "snap/git/repo.h"
#include "snap/tree/content.h"
#include "snap/tree/snapshot.h"

/* Of one path: the flags of enum statcache_flag and these. */
enum snapshot_mark {
	MARK_READ = 1 << 4,    /* in this run; else known from the stat cache */
	MARK_SETTLED = 1 << 5, /* may go into the stat cache */
	MARK_GONE = 1 << 6,    /* since the walk; dropped before anybody sees it */
};

struct snapshot_private {
	int root_fd;
	bool network; /* the tree is on a network file system */
	enum content_git git;
	char *git_dir, *home, *xdg_config, *shell_dir, *settings_path;
	struct repos_options repos_options;
	struct repos repos;
	struct strv limits;      /* paths: the snapshot is cut down to; empty: all */
	struct par_task *naming; /* fills the id; NULL: it is there */
	/* Arrays with an element for each entry. */
	uint8_t (*git_ids)[SHA1_SIZE];
	uint8_t *marks;
};

/*
 * content.c: fill the entries, ids and marks of snapshot->paths. cache may be empty. Of options
 * will_read is used.
 */
int contents_take(struct snapshot *snapshot, const struct snapshot_options *options,
	const struct statcache *cache, struct err *err);
/* Read again the files whose stat data are no longer those of paths. */
int contents_refresh(struct snapshot *snapshot, struct err *err);

/* Replace the stat cache at path if it is worth it, beside the caller, who must not change snapshot
 * nor cache until contents_save_wait. */
struct contents_saving;
struct contents_saving *contents_save(
	const struct snapshot *snapshot, const struct statcache *cache, const char *path);
/* Accepts NULL. */
void contents_save_wait(struct contents_saving *saving);

/* The repository whose index t is of. hint may be NULL: the result for a path nearby. */
const struct repo *gitstate_repo(
	const struct snapshot *snapshot, const struct tracked_path *t, const struct repo *hint);
/* The mode of the entry in a tree of git. */
uint32_t gitstate_mode(const struct path *path);

#endif

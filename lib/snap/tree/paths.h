/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths that belong to a snapshot: one parallel walk of the tree with lstat, the ignore engine
 * and the index. The set is (paths of the index that exist) ∪ (other files that are not ignored),
 * minus .dlrunignore (which also drops tracked files), plus include:, cut down to paths:.
 *
 * `.git` is never part of it. A submodule or another repository inside the tree gives its own
 * files by its own index and rules; the rules of the outer one end at its border (but an ignored
 * nested repository that is no submodule is excluded as a whole, and one below which the outer
 * index has files is, as for git, an ordinary directory). Symbolic links are entries, never
 * followed. Sockets, FIFOs and devices are excluded and noted. Mount points of other file systems
 * are walked; a directory that is its own ancestor (bind mount) is refused.
 *
 * The result does not depend on the order in which directories are read, nor on timing.
 */
#ifndef DLRUN_SNAP_TREE_PATHS_H
#define DLRUN_SNAP_TREE_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/mem.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "snap/git/gitindex.h"
#include "snap/tree/statcache.h"

/* Called for the root (dir "") and for every directory below that holds `.git` or is a gitlink of
 * the index; dir is relative to the root of the tree. *ret_repo = NULL: no repository there (an
 * uninitialised submodule, a stray .git): its files are walked as part of the outer tree. Called
 * from the thread that called paths_list, while no other is at work. The result belongs to the
 * callee and must live as long as the list. */
typedef int paths_repo_fn(
	void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err);

struct paths_limits {
	uint64_t total_bytes; /* 500 MiB by default; 0: none, also for the others */
	uint64_t file_bytes;  /* 100 MiB */
	uint64_t files;       /* 200,000 */
};

struct paths_options {
	const char *root;      /* absolute path of the tree */
	const char *shell_dir; /* where hints are pasted; NULL: the current directory */
	paths_repo_fn *repo;   /* NULL: no repository at all */
	void *repo_ctx;
	/* Paths relative to root, each for itself and all below it; may be NULL. */
	const struct strv *include; /* bring these back; not what .dlrunignore drops */
	const struct strv *paths;   /* limit to these; empty: all */
	const struct strv *allow;   /* may go though secret or large; do not count for the limits */
	struct paths_limits limits;
	/* Cached directories; NULL: none are known, and none are written. */
	const struct dircache *dirs;
	const char *dirs_path; /* where to write it anew; NULL: nowhere */
};

struct path {
	const char *path; /* relative to the root of the tree */
	enum entry_kind kind;
	uint32_t mode; /* st_mode */
	uint64_t dev, ino, size;
	int64_t mtime_ns, ctime_ns;
	const struct tracked_path *tracked; /* NULL: git does not track it */
};

enum excluded_why {
	EXCLUDED_IGNORED, /* by git's rules; a directory stands for all below it */
	EXCLUDED_DLRUNIGNORE,
	EXCLUDED_SPECIAL,    /* socket, FIFO, device */
	EXCLUDED_REPOSITORY, /* a nested repository that the outer one ignores */
	EXCLUDED_DATA,       /* data of a run, which the snapshot has not to do with */
};

struct excluded {
	const char *path; /* directories end in a slash */
	enum excluded_why why;
	uint64_t size; /* of a file; directories are not measured: 0 */
};

struct path_list {
	struct path *v; /* sorted by the bytes of path */
	size_t n, cap;
	struct arena arena;
	struct excluded_list VEC_OF(struct excluded) excluded; /* sorted; at most EXCLUDED_MAX */
	size_t n_excluded;                                     /* all of them */
	uint64_t bytes;
	struct strv notes; /* sentences that are worth a warning */
};

enum { EXCLUDED_MAX = 10000 };

/* Blocks for the walk. Errors, the first that holds:
 *   E_SNAPSHOT_INCLUDE  an absolute path or one with ".." in include, paths or allow
 *   E_SNAPSHOT_LIMIT    with the largest files and directories as evidence; a tree over the limits
 *                       is not walked to its end
 *   of several paths the first: E_SNAPSHOT_NAME (no image can hold it), E_SNAPSHOT_LOOP, E_IO_READ
 *                       for a directory that cannot be listed, what reading rules or repo said
 *   E_SNAPSHOT_INCLUDE  include or paths names what brings no file; a near match is the hint
 *   E_SNAPSHOT_SECRET   untracked secrets, up to four as evidence
 *   E_SNAPSHOT_EMPTY */
int paths_list(const struct paths_options *options, struct path_list *ret, struct err *err);
void path_list_done(struct path_list *list);

#endif

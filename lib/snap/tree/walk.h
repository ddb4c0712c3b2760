/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parallel walk of paths.c: one visit to each directory that can hold something of the
 * snapshot, one lstat for each file that belongs to it. Private to lib/snap.
 *
 * Threads share nothing that they write but a few counters: each fills the directories that it
 * visits and a worker of its own. So the result does not depend on the order of readdir or on
 * timing. Directories are opened by their path from the root, one at a time in each thread: the
 * number of descriptors does not grow with the depth, and nothing recurses.
 */
#ifndef DLRUN_SNAP_TREE_WALK_H
#define DLRUN_SNAP_TREE_WALK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/par.h"
#include "base/util/mem.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "snap/ignore/ignore.h"
#include "snap/tree/paths.h"
#include "snap/tree/statcache.h"

enum {
	WALK_NAME_MAX = 1024,    /* of one readdir; longer ones are refused */
	WALK_DIRS_MAX = 1 << 20, /* directories of a tree */
	WALK_GRACE_MS = 300,     /* a walk over a limit goes on so long, to say what is large */
};

/* The part of the tree in which the rules and the index of one repository apply. */
struct walk_scope {
	const struct tracked *tracked; /* NULL: no repository */
	size_t prefix_len;             /* where its own paths begin in those of the tree */
	const struct ignore *rules;    /* info/exclude and core.excludesFile */
	bool ignore_case;
	bool has_gitlinks;
};

/* A directory that git ignores and that is visited because it holds tracked or included files. */
struct walk_zone {
	const char *path;
	atomic_bool excluded; /* something in it was */
};

struct walk_dir {
	struct walk_dir *parent;
	const char *path; /* "" is the root */
	size_t len;
	uint64_t dev, ino;
	const struct walk_scope *scope;
	const struct dircache_row *row; /* to be remembered; NULL: it must be read again */
	struct walk_zone *zone;         /* NULL: not ignored */
	/* Rules that hold in it: git's chain, and the one of .dlrunignore. */
	const struct ignore *git_rules, *own_rules;
	size_t first, n_tracked; /* of the scope's index: what lies below */
	struct pathset_reach include, paths, allow;
	bool is_gitlink;
	bool is_settled;  /* it is known whether it is a repository of its own */
	bool is_nameless; /* it or a parent has a name that no image can hold */
	/* Contents found, each sorted by name; a directory counts as its name with a slash. */
	struct path *files;
	size_t n_files;
	struct walk_dir **dirs;
	size_t n_dirs;
};

struct walk_secret {
	const char *path, *what;
};

enum walk_over {
	WALK_OVER_TOTAL = 1,
	WALK_OVER_FILES = 2,
	WALK_OVER_FILE = 4,
	WALK_OVER_DIRS = 8,
};

/*
 * The rows of paths that a walk excluded. Each thread fills rows of its own; together they are cut
 * to the first EXCLUDED_MAX in the order of bytes, so the result does not depend on which thread
 * found a path.
 */

/* Zero is empty. */
struct excluded_rows {
	struct excluded_list rows;
	struct arena arena;
	size_t n_all;     /* kept or not */
	const char *last; /* no path behind this one can be among the first; NULL: unknown */
};

/* State of one thread. */
struct walk_worker {
	struct arena paths;   /* goes to the list */
	struct arena scratch; /* ends with the walk */
	struct listing listing;
	struct VEC_OF(struct path) files;
	struct VEC_OF(struct walk_dir *) dirs;
	struct VEC_OF(struct ignore *) rules;
	struct VEC_OF(struct walk_zone *) zones;
	struct VEC_OF(struct walk_dir *) borders; /* that may be repositories of their own */
	struct VEC_OF(struct walk_secret) secrets;
	struct excluded_rows excluded;
	/* The failure with the first path in the order of bytes. */
	struct err failure;
	char *failure_path;
	uint64_t pending_bytes, pending_files; /* not yet in the walk's sums */
	size_t n_known, n_new;                 /* names of rows that were there, and of new ones */
	char path[ENTRY_PATH_MAX + 1 + WALK_NAME_MAX + 1];
};

/* Names cached by earlier walks. */
struct walk_names {
	const struct dircache *cache; /* NULL: directories are always read */
	uint64_t dev;                 /* of the file system that it holds for */
	int64_t begun_ns;             /* since 1970 */
};

struct walk {
	const struct paths_options *options;
	struct pathset include, paths, allow;
	int root_fd;
	struct walk_worker *workers;
	unsigned n_workers;
	struct walk_dir *root;
	struct walk_names names;
	struct VEC_OF(struct walk_dir *) pending; /* to visit in the next round */
	atomic_uint_fast64_t bytes, files, dirs;  /* without what is allowed by name */
	atomic_int over;                          /* enum walk_over */
	atomic_int_fast64_t deadline_ms;          /* of a walk over a limit; 0: none */
	atomic_bool is_cut;                       /* not walked to its end */
};

#endif

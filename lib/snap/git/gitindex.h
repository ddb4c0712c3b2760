/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a repository, read from its bytes (gitformat-index(5), versions 2 to 4). An engine:
 * no I/O, hostile bytes are refused. Far faster than a git library, which makes an object of each
 * entry, and it keeps the stat data that say whether git itself takes a file for unchanged.
 *
 * Split and sparse indexes are not read here: `git ls-files` knows them.
 */
#ifndef DLRUN_SNAP_GIT_GITINDEX_H
#define DLRUN_SNAP_GIT_GITINDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/mem.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/err.h"
#include "base/util/vec.h"

/*
 * The paths of a git index, the files that git tracks. Filled by repo.c (libgit2) or from
 * `git ls-files`, read by the walk of paths.c.
 */

enum {
	TRACKED_MODE_GITLINK = 0160000, /* a submodule */
	TRACKED_MODE_LINK = 0120000,
	TRACKED_MODE_FILE = 0100644,
	TRACKED_MODE_EXEC = 0100755,
};

struct tracked_path {
	const char *path;       /* relative to the repository's root, bytes */
	uint32_t mode;          /* as in the index; of a conflict: any of its stages */
	uint8_t oid[SHA1_SIZE]; /* of the blob (of the commit for a gitlink); zero: not known */
	bool conflict;
};

/* Sorted by the bytes of path, each path once. */
struct tracked {
	struct tracked_path *v;
	size_t n, cap;
	struct arena arena;
};

void tracked_done(struct tracked *tracked);
/* The entry of exactly this path, or NULL. */
const struct tracked_path *tracked_find(const struct tracked *tracked, const char *path);

/* Facts about a repository that the walk needs. */
struct paths_repo {
	struct tracked tracked;
	char *info_exclude;  /* absolute path of info/exclude, may be missing on disk; or NULL */
	char *excludes_file; /* absolute path of core.excludesFile, may be missing; or NULL */
	bool ignore_case;    /* core.ignorecase */
};

/*
 * Parsing.
 */

enum {
	GITINDEX_SIZE_MAX = 1 << 30,
	GITINDEX_RAW_SHA1_SIZE = 20,
	GITINDEX_RAW_SHA256_SIZE = 32, /* tracked.oid keeps the first 20 bytes of those */
};

/* Stat data from when git last compared the file, cut to 32 bits each. */
struct gitindex_stat {
	uint32_t mtime_s, mtime_ns, ctime_s, ctime_ns, ino, size;
	bool assume_valid;  /* assume-unchanged: git does not look */
	bool skip_worktree; /* sparse checkout: need not be on disk */
	bool intent_to_add; /* not in the tree of the next commit; its object id means nothing */
};

struct gitindex {
	struct tracked tracked;
	struct gitindex_stat *stats; /* one for each of tracked */
	bool has_tree;               /* tree is what `git write-tree` would say */
	uint8_t tree[SHA1_SIZE];
};

/* oid_size: GITINDEX_RAW_*. No data at all (len 0) is the index of a new repository. The checksum
 * at the end is verified unless it is all zeros (index.skipHash); for SHA-256 it is not.
 * E_SNAPSHOT_REPO with the reason. */
int gitindex_parse(
	const void *data, size_t len, size_t oid_size, struct gitindex *ret, struct err *err);
void gitindex_done(struct gitindex *index);

/* Whether path may stand in an index: relative, no empty, "." or ".." component, no .git. */
bool gitindex_path_is_valid(const char *path);

/*
 * Looking up the names of one directory in an index, in their order: each search starts where the
 * last one ended.
 */

struct tracked_cursor {
	const struct tracked *tracked;
	size_t first, end; /* what lies below the directory */
	size_t next;
	size_t skip; /* length of the directory's path in the index, with its slash */
};

/* first, n: the position of the first entry below dir, and how many follow it. */
void tracked_cursor_init(struct tracked_cursor *cursor, const struct tracked *tracked,
	const char *dir, size_t first, size_t n);
/* The entry of a file of that name, or NULL. */
const struct tracked_path *tracked_cursor_file(struct tracked_cursor *cursor, const char *name);
/* Entries below a directory of that name: returns the position of the first, *ret_n is their
 * number. */
size_t tracked_cursor_dir(struct tracked_cursor *cursor, const char *name, size_t *ret_n);
/* Whether the index has a submodule of that name; in any order. */
bool tracked_cursor_is_gitlink(const struct tracked_cursor *cursor, const char *name);

/*
 * Tree objects of git from a sorted list of paths (gitformat-pack(5), "tree"), without a
 * repository: an engine. Directories come before what is in them.
 */

struct gittree_item {
	const char *path;
	const uint8_t *oid; /* SHA1_SIZE bytes */
	uint32_t mode;      /* 0100644, 0100755, 0120000 or 0160000 */
};

struct gittree_dir {
	size_t first, end; /* its items, those of its subdirectories included */
	size_t parent;     /* its position, that of the root for the root */
	size_t next;       /* the first directory that is not below it */
	size_t path_len;   /* its path is that much of its first item's path, 0 for the root */
	uint8_t oid[SHA1_SIZE];
};

struct gittree {
	/* Not owned; sorted by the bytes of path, none twice, none the directory of another. */
	const struct gittree_item *items;
	size_t n_items;
	struct gittree_dir *v; /* v[0] is the root */
	size_t n, cap;
	struct buf buf; /* of one object */
};

/* Find the directories and compute the id of each. */
void gittree_init(struct gittree *tree, const struct gittree_item *items, size_t n_items);
void gittree_done(struct gittree *tree);
/* The content of the tree object of v[i]; valid until the next call. */
const struct buf *gittree_object(struct gittree *tree, size_t i);

/* Iterate over the direct members of directory v[i], in order: 1 with either ret_item (the position
 * of an item) or ret_sub (of a directory) set and the other SIZE_MAX; 0 at the end. Start with a
 * zero walk. */
struct gittree_walk {
	bool started;
	size_t item, sub;
};
int gittree_next(const struct gittree *tree, size_t i, struct gittree_walk *walk, size_t *ret_item,
	size_t *ret_sub);

/* The id of an object: type is "blob", "tree" or "commit". */
void gittree_object_id(
	const char *type, const void *data, size_t len, uint8_t out[static SHA1_SIZE]);

#endif

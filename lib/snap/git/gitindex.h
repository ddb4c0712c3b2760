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

#include "base/util/err.h"
#include "snap/git/tracked.h"

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

#endif

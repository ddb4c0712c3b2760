/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of a git index, the files that git tracks. Filled by repo.c (libgit2) or from
 * `git ls-files`, read by the walk of paths.c.
 */
#ifndef DLRUN_SNAP_GIT_TRACKED_H
#define DLRUN_SNAP_GIT_TRACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/arena.h"
#include "base/util/digest.h"

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
/* The first position whose path is below directory dir ("" is the root), and how many follow it. */
size_t tracked_below(const struct tracked *tracked, const char *dir, size_t *ret_n);

/* Facts about a repository that the walk needs. */
struct paths_repo {
	struct tracked tracked;
	char *info_exclude;  /* absolute path of info/exclude, may be missing on disk; or NULL */
	char *excludes_file; /* absolute path of core.excludesFile, may be missing; or NULL */
	bool ignore_case;    /* core.ignorecase */
};

#endif

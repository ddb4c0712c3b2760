/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths that a user named (include:, paths:, allow:), each standing for itself and for all below
 * it.
 */
#ifndef DLRUN_SNAP_IGNORE_PATHSET_H
#define DLRUN_SNAP_IGNORE_PATHSET_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"

struct pathset {
	struct strv paths; /* normal form, sorted by bytes, each once */
	bool all;          /* "." was named */
};

/* Takes relative paths ("./a//b/" is "a/b", "." is the whole tree; NULL is none). what names the
 * list in errors ("include"). E_SNAPSHOT_INCLUDE for an empty or absolute path and for "..". */
int pathset_init(struct pathset *set, const struct strv *paths, const char *what, struct err *err);
void pathset_done(struct pathset *set);
/* Whether path itself or a directory above it was named. */
bool pathset_covers(const struct pathset *set, const char *path);

/* How the set applies to a directory and all below it. A walk from the root down calls
 * pathset_enter at each step, which costs nothing where nothing was named. */
struct pathset_reach {
	bool covered; /* it and all below it were named */
	bool below;   /* not it, but something below it was */
};
struct pathset_reach pathset_at_root(const struct pathset *set);
/* The same for path, a member of the directory that has reach. */
struct pathset_reach pathset_enter(
	const struct pathset *set, struct pathset_reach reach, const char *path);

#endif

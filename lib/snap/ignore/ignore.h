/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ignore engine: which names a list of patterns leaves out, exactly as in git (gitignore(5);
 * the matching rules of git's wildmatch; the last matching pattern decides). No I/O: patterns come
 * in as text, paths as strings.
 *
 * The rules of a directory form a chain: its own .gitignore first, then its parents' up to the root
 * of the repository, then info/exclude, then core.excludesFile; .dlrunignore uses the same syntax
 * in a chain of its own. Chains are immutable and shared by threads.
 */
#ifndef DLRUN_SNAP_IGNORE_IGNORE_H
#define DLRUN_SNAP_IGNORE_IGNORE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	IGNORE_TEXT_MAX = 4 << 20, /* bytes of one file; a larger one is refused by its reader */
};

enum ignore_decision {
	IGNORE_NO_MATCH = 0,
	IGNORE_MATCH,   /* excluded */
	IGNORE_NEGATED, /* a pattern with ! brings it back */
};

/* The patterns of one file. */
struct ignore;

/* dir: the directory of the file relative to the root of its repository, "" for the root (and for
 * info/exclude and core.excludesFile). next: the rules that apply when none of these matches; not
 * owned, may be NULL. ignore_case: core.ignorecase. */
struct ignore *ignore_parse(
	const char *text, size_t len, const char *dir, bool ignore_case, const struct ignore *next);
void ignore_free(struct ignore *ignore);

/* The decision of the chain on path (relative to the root of the repository). Directories above it
 * are not checked: git never descends into an ignored one, and neither does the caller. */
enum ignore_decision ignore_check(const struct ignore *chain, const char *path, bool is_dir);

/* git's wildmatch: `*` stops at a slash, `**` as whole component crosses, classes, backslash.
 * pathname: slashes are special (WM_PATHNAME). */
bool wildmatch(const char *pattern, const char *text, bool pathname, bool ignore_case);

/*
 * Paths that a user named (include:, paths:, allow:), each standing for itself and for all below
 * it.
 */

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

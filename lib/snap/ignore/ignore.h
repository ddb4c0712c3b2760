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

enum {
	IGNORE_TEXT_MAX = 4 << 20, /* bytes of one file; a larger one is refused by its reader */
};

enum ignore_verdict {
	IGNORE_NO_MATCH = 0,
	IGNORE_MATCH,   /* left out */
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

/* The verdict of the chain on path (relative to the root of the repository). Directories above it
 * are not checked: git never descends into an ignored one, and neither does the caller. */
enum ignore_verdict ignore_check(const struct ignore *chain, const char *path, bool is_dir);

/* git's wildmatch: `*` stops at a slash, `**` as whole component crosses, classes, backslash.
 * pathname: slashes are special (WM_PATHNAME). */
bool wildmatch(const char *pattern, const char *text, bool pathname, bool ignore_case);

#endif

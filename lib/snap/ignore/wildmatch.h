/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled patterns of git's wildmatch (gitignore(5), "PATTERN FORMAT"; behaviour of git 2.39):
 * `?`, `*`, `**`, brackets with ranges and POSIX classes, backslash. ASCII only, no locale.
 *
 * Matching never recurses and takes at most about len² steps of the text, whatever the pattern.
 */
#ifndef DLRUN_SNAP_IGNORE_WILDMATCH_H
#define DLRUN_SNAP_IGNORE_WILDMATCH_H

#include <stdbool.h>
#include <stddef.h>

enum { WILD_TEXT_MAX = 4095 }; /* patterns that need a longer text than this never match */

struct wild;

/* pathname: slashes are special (WM_PATHNAME): only `**` as a whole component crosses one.
 * ignore_case: as git's core.ignorecase, ASCII letters of the text count as small ones. */
struct wild *wild_compile(const char *pattern, size_t len, bool pathname, bool ignore_case);
void wild_free(struct wild *wild);
bool wild_match(const struct wild *wild, const char *text, size_t len);

/* ASCII only. */
static inline unsigned char wild_fold(unsigned char c)
{
	return c >= 'A' && c <= 'Z' ? (unsigned char)(c + 'a' - 'A') : c;
}

/* Whether c has a meaning of its own in a pattern. */
static inline bool wild_is_special(char c)
{
	return c == '*' || c == '?' || c == '[' || c == '\\';
}

#endif

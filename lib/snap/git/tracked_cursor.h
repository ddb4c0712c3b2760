/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking up the names of one directory in an index, in their order: each search starts where the
 * last one ended.
 */
#ifndef DLRUN_SNAP_GIT_TRACKED_CURSOR_H
#define DLRUN_SNAP_GIT_TRACKED_CURSOR_H

#include <stdbool.h>
#include <stddef.h>

#include "snap/git/tracked.h"

struct tracked_cursor {
	const struct tracked *tracked;
	size_t first, end; /* what lies below the directory */
	size_t next;
	size_t skip; /* length of the directory's path in the index, with its slash */
};

/* first, n: what lies below dir, as from tracked_below. */
void tracked_cursor_init(struct tracked_cursor *cursor, const struct tracked *tracked,
	const char *dir, size_t first, size_t n);
/* The entry of a file of that name, or NULL. */
const struct tracked_path *tracked_cursor_file(struct tracked_cursor *cursor, const char *name);
/* Entries below a directory of that name: returns the position of the first, *ret_n is their
 * number. */
size_t tracked_cursor_dir(struct tracked_cursor *cursor, const char *name, size_t *ret_n);
/* Whether the index has a submodule of that name; in any order. */
bool tracked_cursor_is_gitlink(const struct tracked_cursor *cursor, const char *name);

#endif

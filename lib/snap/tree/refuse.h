/* SPDX-License-Identifier: Apache-2.0 */
/* The refusal of a walk that exceeded a limit: it names what makes the tree too large. */
#ifndef DLRUN_SNAP_TREE_REFUSE_H
#define DLRUN_SNAP_TREE_REFUSE_H

#include <stddef.h>

#include "base/util/err.h"
#include "snap/tree/paths.h"
#include "snap/tree/walk.h"

/* E_SNAPSHOT_LIMIT with the files and directories that hold most of what is too much as evidence,
 * and as hint how to exclude the first of them. Returns -code. */
int oversize_refuse(const struct walk *walk, struct err *err);

/* Entries of include:, paths: and allow: that matched nothing: a misspelt one must be reported. */

/* 0 if each entry has a file in the sorted list; else E_SNAPSHOT_INCLUDE for the first that has
 * none, with the reason and, where there is one, a near match as hint. */
int unmatched_refuse(const struct walk *walk, const struct path_list *list, struct err *err);

enum { UNMATCHED_NOTES_MAX = 8 };
/* Add a sentence for each entry of allow: that has no file in the list, though it may have one
 * within paths:. Such an entry does no harm: its file may have been removed. */
void unmatched_note(const struct walk *walk, const struct path_list *list, struct strv *ret);

/* The hint that excludes paths from the snapshot. */

/* err_hint with a line for a shell that adds the paths to the .dlrunignore of root, an absolute
 * path, which is omitted where root is the directory of that shell (NULL: of this process).
 * paths: n of them, relative to root, directories end in a slash. Nothing is added if one of them
 * cannot be written on a line. */
void hint_ignore(struct err *err, const char *root, const char *shell_dir, const char *const *paths,
	size_t n);

#endif

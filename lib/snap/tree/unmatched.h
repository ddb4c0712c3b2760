/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of include:, paths: and allow: that matched nothing: a misspelt one must be reported. */
#ifndef DLRUN_SNAP_TREE_UNMATCHED_H
#define DLRUN_SNAP_TREE_UNMATCHED_H

#include "base/util/err.h"
#include "snap/tree/paths.h"
#include "snap/tree/walk.h"

/* 0 if each entry has a file in the sorted list; else E_SNAPSHOT_INCLUDE for the first that has
 * none, with the reason and, where there is one, a near match as hint. */
int unmatched_refuse(const struct walk *walk, const struct path_list *list, struct err *err);

enum { UNMATCHED_NOTES_MAX = 8 };
/* Add a sentence for each entry of allow: that has no file in the list, though it may have one
 * within paths:. Such an entry does no harm: its file may have been removed. */
void unmatched_note(const struct walk *walk, const struct path_list *list, struct strv *ret);

#endif

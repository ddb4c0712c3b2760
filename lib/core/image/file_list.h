/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of the working tree that a snapshot would hold and those that it would exclude,
 * without reading the content of files: for commands that inspect a tree and run nothing.
 */
#ifndef DLRUN_CORE_IMAGE_FILE_LIST_H
#define DLRUN_CORE_IMAGE_FILE_LIST_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "snap/git/repo.h"
#include "snap/tree/paths.h"

struct file_list {
	const struct tree_place *place; /* the session's */
	struct path_list paths;
	struct repos repos;
	struct repos_options options;
	const char *why; /* NULL: the repository was read in full; else how it was read */
};

/* include: as --include has it; no limit refuses anything, and nothing else of the configuration
 * counts. NULL: as `submit` would take the tree. Blocks for the walk. Errors as paths_list and
 * session_config have them. */
int file_list_take(struct session *session, const struct strv *include, struct file_list **ret,
	struct err *err);
void file_list_free(struct file_list *file_list);
AUTO_POINTER(struct file_list, file_list_free)
#define AUTO_FILE_LIST AUTO(file_list_free_auto)

/* Whether git tracks path (relative to the root of the tree), or something below it. */
bool file_list_tracks(const struct file_list *file_list, const char *path);
/* Whether the snapshot would hold that file; and whether it, or something below it. */
bool file_list_holds(const struct file_list *file_list, const char *path);
bool file_list_holds_below(const struct file_list *file_list, const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths that a fetch selects. An engine: a path names a file or directory below the results, or
 * is a pattern of `?`, `*`, `[…]` (not `/`) and `**` (any directories); a directory selects
 * everything below it.
 */
#ifndef DLRUN_CORE_TARGET_FETCH_PATHS_H
#define DLRUN_CORE_TARGET_FETCH_PATHS_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum { FETCH_PATHS_MAX = 1000 };

struct fetch_paths;
/* E_USAGE for a path that is absolute or leads up, and for one path too many. */
int fetch_paths_new(const struct strv *paths, struct fetch_paths **ret, struct err *err);
void fetch_paths_free(struct fetch_paths *paths);
AUTO_POINTER(struct fetch_paths, fetch_paths_free)
/* Whether the file or directory is wanted; the path that selects it counts as found. */
bool fetch_paths_want(struct fetch_paths *paths, const char *path);
/* Whether something below the directory may be wanted. */
bool fetch_paths_lead_into(const struct fetch_paths *paths, const char *dir);
/* The first path that has selected nothing, as the user wrote it, or NULL. */
const char *fetch_paths_unused(const struct fetch_paths *paths);
/* E_FETCH_PATH if a path has selected nothing. */
int fetch_paths_check(
	const struct fetch_paths *paths, const char *run_id, bool from_tree, struct err *err);

#endif

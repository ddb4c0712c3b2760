/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which paths are wanted. An engine: a path is that of a file or directory below the results, or a
 * pattern of `?`, `*`, `[…]` (not `/`) and `**` (any directories); a directory is all below it.
 */
#ifndef DLRUN_CORE_TARGET_FETCH_PATHS_H
#define DLRUN_CORE_TARGET_FETCH_PATHS_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum { FETCH_PATHS_MAX = 1000 };

struct fetch_paths;
/* E_USAGE for one that is absolute, leads up, or is one too many. */
int fetch_paths_new(const struct strv *paths, struct fetch_paths **ret, struct err *err);
void fetch_paths_free(struct fetch_paths *paths);
AUTO_POINTER(struct fetch_paths, fetch_paths_free)
/* Whether the file or directory is wanted; what wanted it counts as found. */
bool fetch_paths_want(struct fetch_paths *paths, const char *path);
/* Whether something below the directory may be. */
bool fetch_paths_lead_into(const struct fetch_paths *paths, const char *dir);
/* The first that has wanted nothing, as it was written, or NULL. */
const char *fetch_paths_unused(const struct fetch_paths *paths);
/* E_FETCH_PATH, if there is one. */
int fetch_paths_check(
	const struct fetch_paths *paths, const char *run_id, bool from_tree, struct err *err);

#endif

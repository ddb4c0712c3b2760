/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of a repository that the walk of its tree needs, as the last snapshot saw them. The walk
 * begins with them while libgit2 reads the current ones, and is repeated if those differ.
 */
#ifndef DLRUN_SNAP_GIT_SETTINGS_H
#define DLRUN_SNAP_GIT_SETTINGS_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"

struct settings {
	bool ignore_case;    /* core.ignoreCase */
	char *excludes_file; /* the path that core.excludesFile comes to; NULL: none */
};
void settings_done(struct settings *settings);
#define AUTO_SETTINGS AUTO(settings_done)
bool settings_equal(const struct settings *a, const struct settings *b);

/* The file beside the stat cache at path: the same directory, settings.v1. malloc'd. */
char *settings_path(const char *statcache_path);
/* false: the file is missing or not good, *ret is zero. */
bool settings_load(const char *path, struct settings *ret);
/* path: absolute. */
int settings_save(const char *path, const struct settings *settings, struct err *err);

#endif

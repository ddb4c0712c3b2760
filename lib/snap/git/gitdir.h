/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a repository keeps its data, found without a git library (gitrepository-layout(5)): cheap
 * enough for the start of every command. Reads a few small files below .git, writes nothing.
 */
#ifndef DLRUN_SNAP_GIT_GITDIR_H
#define DLRUN_SNAP_GIT_GITDIR_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"

enum gitdir_found {
	GITDIR_NONE, /* no .git, or a directory of that name that is no repository */
	GITDIR_FOUND,
	GITDIR_BROKEN, /* a .git file that names no repository */
};

/* The repository whose working tree dir is, by dir/.git: a directory, a link to one, or a file that
 * names one (linked working trees, submodules). ret: its real path, or for GITDIR_BROKEN what the
 * file names (NULL if that cannot be told). */
enum gitdir_found gitdir_at(const char *dir, char **ret);

/* The same for path itself, which is a directory or a .git file, as GIT_DIR may be. */
enum gitdir_found gitdir_resolve(const char *path, char **ret);

/* Whether path holds HEAD, objects and refs (the last two maybe in its common directory). */
bool gitdir_is_repository(const char *path);

/* The directory that linked working trees share; for others a copy of git_dir. */
char *gitdir_common(const char *git_dir);

/* E_SNAPSHOT_REPO: one of the files that git and libgit2 open is a FIFO, a device or a socket, for
 * which they would wait. */
int gitdir_check(const char *git_dir, const char *common_dir, struct err *err);

/* The settings of the repository itself that say what it is, read as git does before it trusts the
 * repository: no included file, no file of the user's. */
struct gitdir_config {
	bool bare;
	char *work_tree;     /* core.worktree as written; NULL: none */
	char *object_format; /* extensions.objectFormat; NULL: sha1 */
	bool per_work_tree;  /* extensions.worktreeConfig */
};
/* A file that cannot be read or is no configuration counts as empty. */
void gitdir_config_read(const char *git_dir, struct gitdir_config *ret);
void gitdir_config_done(struct gitdir_config *config);
#define AUTO_GITDIR_CONFIG AUTO(gitdir_config_done)

/* Hints that name a path: quoted so that the line can be pasted into a shell. */

/* err_hint with before, the path as a word of a shell, and after. Returns -code. */
int hint_path(struct err *err, const char *before, const char *path, const char *after);

#endif

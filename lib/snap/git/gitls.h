/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A repository as the git program sees it, for repositories that dlrun cannot read itself. git is
 * started so that it runs nothing that the repository names: no hook, no fsmonitor, no diff driver,
 * no fetch of missing objects; it writes nothing.
 */
#ifndef DLRUN_SNAP_GIT_GITLS_H
#define DLRUN_SNAP_GIT_GITLS_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "snap/git/gitindex.h"

struct repo_facts;

struct gitls {
	const char *work_dir, *git_dir;
	char *program; /* set by gitls_find */
	bool explicit; /* git does not find git_dir by itself from work_dir */
};

/* False: there is no git on PATH. */
bool gitls_find(struct gitls *git);
void gitls_done(struct gitls *git);

/* `git ls-files -s`: paths, modes, object ids, skip_worktree. Blocks until git ends.
 * E_SNAPSHOT_OWNER when git does not trust the repository, E_SNAPSHOT_REPO when it cannot read. */
int gitls_tracked(const struct gitls *git, struct gitindex *ret, struct err *err);
/* Settings and HEAD. The same errors. */
int gitls_facts(const struct gitls *git, struct repo_facts *facts, struct err *err);

/* The output of `git ls-files -s -t -z`. */
int gitls_parse(const char *text, size_t len, struct gitindex *ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run as a git commit: refs/dlrun/<run> points to a commit with the snapshot's tree (bytes as on
 * disk, no filters) whose parent is HEAD, so that git diff, checkout and push work on runs. Objects
 * are written for changed files and their directories only; nothing else of .git changes, no hook
 * or filter runs.
 */
#ifndef DLRUN_SNAP_TREE_RECORD_H
#define DLRUN_SNAP_TREE_RECORD_H

#include <stdint.h>

#include "base/util/err.h"
#include "snap/tree/snapshot.h"

enum {
	RECORD_BLOB_MAX = 8 << 20,   /* a larger changed file: no record */
	RECORD_TOTAL_MAX = 64 << 20, /* all changed files together */
	RECORD_PACK_ABOVE = 64,      /* more objects than this go into one pack */
};

struct record {
	char *ref;    /* refs/dlrun/<run> */
	char *commit; /* hex; NULL: none was made */
	char *why;    /* when none was made: one sentence for `show` */
};

struct record_request {
	struct snapshot *snapshot;
	const char *run_id;
	const char *message; /* of the commit: first line, blank, trailers */
	int64_t wall_ms;     /* author and committer date */
};

/* Sets commit or why; there is no state of .git that would need repair. Leftover temporary
 * objects of dlrun processes that died are removed. Blocks: reads the changed files again. */
void record_write(const struct record_request *request, struct record *ret);
void record_done(struct record *record);

/* Remove refs/dlrun/<run> if it still points to commit (NULL: to any; its writer may have died
 * before reporting it); a repository or ref that is gone is success. The objects are git's to
 * collect. */
int record_remove(const char *root, const char *run_id, const char *commit, struct err *err);

/* Remove the temporary objects that dead processes left in the repository of root; part of the
 * other two. */
void record_sweep(const char *root);

#endif

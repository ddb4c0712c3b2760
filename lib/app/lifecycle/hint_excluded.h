/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that fails because a file is missing that the snapshot has left out. The list of what
 * was left out is kept with the run (state/runs/ID/excluded.json), and the end of the program's
 * output is searched for one of its paths.
 */
#ifndef DLRUN_APP_LIFECYCLE_HINT_EXCLUDED_H
#define DLRUN_APP_LIFECYCLE_HINT_EXCLUDED_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/mem.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/dirs.h"
#include "core/record/run.h"
#include "snap/tree/snapshot.h"

#define RUN_EXCLUDED "left_out.json" /* of the run, seen from state/runs/ID */

/* Of the output that is searched; of the list, in paths. */
enum { EXCLUDED_TAIL = 16 << 10, EXCLUDED_BYTES_MAX = 1 << 20 };

struct excluded_paths {
	struct excluded *v; /* sorted by the bytes of path */
	size_t n, cap;
	struct arena arena;
};
void excluded_paths_done(struct excluded_paths *paths);
#define AUTO_EXCLUDED AUTO(excluded_paths_done)
/* Any order; the path is copied. excluded_sort ends it. */
void excluded_add(struct excluded_paths *paths, const char *path, enum excluded_why why);
void excluded_sort(struct excluded_paths *paths);

/* Write the run's list: what the snapshot left out, of which the first are kept, or what its parent
 * did not have (snapshot NULL). No list is success. */
int excluded_write(const struct dirs *dirs, const struct run *run, const struct snapshot *snapshot,
	struct err *err);
/* Paths that the run's data and outputs bring back are not in it. No list is an empty one. */
int excluded_read(const struct dirs *dirs, const struct run *run, struct excluded_paths *ret,
	struct err *err);

/* Add the run's data: its places may lack what the program looks for. */
int excluded_add_data(const struct run *run, struct excluded_paths *ret, struct err *err);

/* Where the program ran. */
struct excluded_place {
	const char *run_id; /* paths below …/RUN_ID/attempts/N/tree/ are of the tree; NULL: none */
	const char *tree;   /* absolute directory of the tree; NULL: none */
	const char *cwd;    /* below the tree: "." or "exp/a" */
};

/* An engine: the path of the list that the last complaint about a missing file names, or that lies
 * nearest above or below what it names; where the program rather complains about data that it could
 * not find or fetch, the first path that is called like input. NULL if there is none. Never
 * anything else than an element of paths. Only the last EXCLUDED_TAIL bytes count. */
const struct excluded *excluded_find(const struct excluded_paths *paths,
	const struct excluded_place *place, const char *output, size_t len);

/* An engine: the first path of the list that is called like input (data, datasets, corpus…), on
 * any of its levels, and that one of files (sorted) is or lies below of; NULL if there is none. */
struct outputs_files;
const struct excluded *excluded_made_anew(
	const struct excluded_paths *paths, const struct outputs_files *files);
/* Append one sentence: what a path found by excluded_made_anew means. */
void excluded_warn_anew(const struct excluded *excluded, struct buf *out);

/* Append one sentence: what to do about the path. run: the one that has failed. */
void excluded_hint(const struct excluded *excluded, const struct run *run, struct buf *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that fails because a file is missing that the snapshot has left out. The list of what
 * was left out is kept with the run (state/runs/ID/left_out.json), and the end of the program's
 * output is searched for one of its paths.
 */
#ifndef DLRUN_APP_LIFECYCLE_HINT_LEFT_OUT_H
#define DLRUN_APP_LIFECYCLE_HINT_LEFT_OUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/arena.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/dirs.h"
#include "core/record/run.h"
#include "snap/tree/snapshot.h"

#define RUN_LEFT_OUT "left_out.json" /* of the run, seen from state/runs/ID */

/* Of the output that is searched; of the list, in paths. */
enum { LEFT_OUT_TAIL = 16 << 10, LEFT_OUT_BYTES_MAX = 1 << 20 };

struct left_out_paths {
	struct left_out *v; /* sorted by the bytes of path */
	size_t n, cap;
	struct arena arena;
};
void left_out_paths_done(struct left_out_paths *paths);
#define AUTO_LEFT_OUT AUTO(left_out_paths_done)
/* Any order; the path is copied. left_out_sort ends it. */
void left_out_add(struct left_out_paths *paths, const char *path, enum left_out_why why);
void left_out_sort(struct left_out_paths *paths);

/* Write the run's list: what the snapshot left out, of which the first are kept, or what its parent
 * did not have (snapshot NULL). No list is success. */
int left_out_write(const struct dirs *dirs, const struct run *run, const struct snapshot *snapshot,
	struct err *err);
/* Paths that the run's data and outputs bring back are not in it. No list is an empty one. */
int left_out_read(const struct dirs *dirs, const struct run *run, struct left_out_paths *ret,
	struct err *err);

/* Where the program ran. */
struct left_out_place {
	const char *run_id; /* paths below …/RUN_ID/attempts/N/tree/ are of the tree; NULL: none */
	const char *tree;   /* absolute directory of the tree; NULL: none */
	const char *cwd;    /* below the tree: "." or "exp/a" */
};

/* An engine: the path of the list that the last complaint about a missing file names, or that lies
 * above or below what it names; where the program rather complains about data that it could not
 * find or fetch, the first path that is called like input. NULL if there is none. Never anything
 * else than an element of paths. Only the last LEFT_OUT_TAIL bytes count. */
const struct left_out *left_out_find(const struct left_out_paths *paths,
	const struct left_out_place *place, const char *output, size_t len);

/* An engine: the first path of the list that is called like input (data, datasets, corpus…), on
 * any of its levels, and that one of files (sorted) is or lies below of; NULL if there is none. */
struct outputs_files;
const struct left_out *left_out_made_anew(
	const struct left_out_paths *paths, const struct outputs_files *files);
/* Append one sentence: what a path found by left_out_made_anew means. */
void left_out_warn_anew(const struct left_out *left_out, struct buf *out);

/* Append one sentence: what to do about the path. */
void left_out_hint(const struct left_out *left_out, struct buf *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of paths that a walk left out. Each thread fills rows of its own; together they are cut
 * to the first LEFT_OUT_MAX in the order of bytes, so the result does not depend on which thread
 * found a path.
 */
#ifndef DLRUN_SNAP_TREE_LEFT_OUT_H
#define DLRUN_SNAP_TREE_LEFT_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/arena.h"
#include "snap/tree/paths.h"

/* Zero is empty. */
struct left_out_rows {
	struct left_out_list rows;
	struct arena arena;
	size_t n_all;     /* kept or not */
	const char *last; /* no path behind this one can be among the first; NULL: unknown */
};

/* Counts a path; false: it is too far behind to be kept, so its size is not needed. */
bool left_out_count(struct left_out_rows *rows, const char *path);
/* Keeps a path that was counted. is_dir: a slash is added. */
void left_out_keep(struct left_out_rows *rows, const char *path, bool is_dir, enum left_out_why why,
	uint64_t size);
/* Sort, and drop what is over the maximum. */
void left_out_cut(struct left_out_rows *rows);
/* The rows of *from become part of *to. */
void left_out_merge(struct left_out_rows *to, struct left_out_rows *from);
void left_out_rows_done(struct left_out_rows *rows);

#endif

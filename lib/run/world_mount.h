/*
 * Data and results in the tree of an attempt, before its program is started.
 *
 * An output is a directory of the run's own (OUTPUTS/PATH), and a symbolic link to it in the tree;
 * the snapshot's files below it are copied there first, unless an earlier attempt left something of
 * that name. A data path is a symbolic link to its place. Where the snapshot has files at or below
 * a data path (data/README, data/.gitkeep), its directory stays, and what the place has more is
 * linked beside them, level by level: the snapshot's files come first, and all others are there.
 *
 * Data below an output is linked inside the output's directory; an output below data is refused,
 * because it would lie in the data. Nothing is followed that the snapshot brought as a symbolic
 * link: such a link at an output or data path, or above it, is an error.
 */
#ifndef DLRUN_RUN_WORLD_MOUNT_H
#define DLRUN_RUN_WORLD_MOUNT_H

#include "base/err.h"
#include "base/vec.h"
#include "run/attempt.h"
#include "run/world.h"

/* What goes where, without a look at any file: paths sorted so that an output stands before what is
 * inside it; outputs inside outputs are left out, because the outer one has them. Strings are the
 * world's. */
enum mount_kind { MOUNT_OUTPUT, MOUNT_DATA };
struct mount {
	enum mount_kind kind;
	const char *path;  /* in the tree */
	const char *from;  /* of data: its place */
	const char *below; /* of data inside an output: that output; else NULL */
};
struct mount_list VEC_OF(struct mount);
/* E_RUN_OUTPUTS, E_RUN_DATA: two of them exclude each other. E_DATA: not as world_path writes. */
int mount_plan(const struct world *world, struct mount_list *ret, struct err *err);

/* tree: a directory that is nobody else's yet. Repeated after it was killed, it goes on. E_RUN_DATA
 * when a place is gone, E_RUN_OUTPUTS when an output cannot be a directory. Blocks for the copies.
 */
int world_mount(const char *tree, const struct attempt_job *job, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data and results in the tree of an attempt, before its program is started.
 *
 * An output is a directory of the run's own (OUTPUTS/PATH), and a symbolic link to it in the tree;
 * the snapshot's files below it are copied there first, unless an earlier attempt left something of
 * that name. A data path is a symbolic link to its place. Where the snapshot has files below a data
 * path (data/README, data/.gitkeep), its directory stays, and what the place has more is linked
 * beside them, level by level: the snapshot's files come first, all others are there, too. A file
 * of the snapshot stays where the place is a file as well. A symbolic link of the snapshot at a
 * data path gives way.
 *
 * Data below data has its own place. Data below an output is linked inside the output's directory;
 * an output below data is refused, because it would lie in the data. A symbolic link of the
 * snapshot is never followed: one at an output path, or above any of them, is an error.
 */
#ifndef DLRUN_TARGETS_LOCAL_RUNTIME_MOUNT_H
#define DLRUN_TARGETS_LOCAL_RUNTIME_MOUNT_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/attempt/attempt.h"
#include "core/record/runtime.h"

enum { MOUNT_LINKS_MAX = 20 * 1000 }; /* beside files of the snapshot, in all */

/* Plan the mounts, without reading any file: sorted by path, so that an output comes before mounts
 * inside it. Strings are the runtime's. */
enum mount_kind { MOUNT_OUTPUT, MOUNT_DATA };
struct mount {
	enum mount_kind kind;
	const char *path;  /* in the tree */
	const char *from;  /* of data: its place, absolute */
	const char *below; /* the output that it is inside of, whose directory has it; else NULL */
};
struct mount_list VEC_OF(struct mount);
/* E_RUN_OUTPUTS, E_RUN_DATA: two of them exclude each other. E_DATA: a path is not in the form of
 * runtime_path. */
int mount_plan(const struct runtime *runtime, struct mount_list *ret, struct err *err);

/* tree: a directory that no other process uses yet. Repeated after it was killed, it goes on.
 * E_RUN_DATA when a place is gone or of another kind than the snapshot has there, E_RUN_OUTPUTS
 * when an output cannot be a directory, E_DATA_LIMIT over MOUNT_LINKS_MAX. Blocks for the
 * copies. */
int runtime_mount(const char *tree, const struct attempt_job *job, struct err *err);

/*
 * Python packages of the tree whose directories have other names: links by the packages' names, in
 * a directory beside the tree that goes into PYTHONPATH. tree: absolute.
 */

/* The caller frees. */
char *runtime_packages_dir(const char *tree);
/* Make the links of runtime->python_aliases. Repeated after it was killed, it goes on. */
int runtime_packages_link(const char *tree, const struct runtime *runtime, struct err *err);

#endif

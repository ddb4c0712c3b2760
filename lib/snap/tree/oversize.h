/* SPDX-License-Identifier: Apache-2.0 */
/* The refusal of a walk that exceeded a limit: it names what makes the tree too large. */
#ifndef DLRUN_SNAP_TREE_OVERSIZE_H
#define DLRUN_SNAP_TREE_OVERSIZE_H

#include "base/util/err.h"
#include "snap/tree/walk.h"

/* E_SNAPSHOT_LIMIT with the files and directories that hold most of what is too much as evidence,
 * and as hint how to leave out the first of them. Returns -code. */
int oversize_refuse(const struct walk *walk, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python packages of the tree whose directories have other names: links by the packages' names, in
 * a directory beside the tree that goes into PYTHONPATH.
 */
#ifndef DLRUN_TARGETS_LOCAL_WORLD_PACKAGES_H
#define DLRUN_TARGETS_LOCAL_WORLD_PACKAGES_H

#include "base/util/err.h"
#include "core/record/world.h"

/* tree: absolute. The caller frees. */
char *world_packages_dir(const char *tree);
/* Make the links of world->python_aliases. Repeated after it was killed, it goes on. */
int world_packages_link(const char *tree, const struct world *world, struct err *err);

#endif

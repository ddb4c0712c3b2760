/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths of a tree that are never results. An engine: no I/O.
 */
#ifndef DLRUN_CORE_ATTEMPT_COLLECT_RULES_H
#define DLRUN_CORE_ATTEMPT_COLLECT_RULES_H

#include <stdbool.h>

#include "core/record/world.h"

/* Version control, byte code and caches of tools: with this name, at any depth. */
bool collect_is_cache(const char *name);
/* Whether path, whose last component is name, is data or matches a pattern of collect.exclude; of a
 * directory: with all below it. The directories above it are known not to. */
bool collect_is_excluded(const struct world *world, const char *path, const char *name);
/* Whether path is one of the outputs, or lies below one. */
bool collect_is_output(const struct world *world, const char *path);
/* Event files of TensorBoard, what its plugins read beside them, and files that programs write
 * their parameters to. */
bool collect_is_telling(const char *path);

#endif

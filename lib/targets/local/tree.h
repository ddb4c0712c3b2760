/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory that a program runs in, made from the layers of its image, and spare trees:
 * unpacked ahead from the layers below the delta, so that a submit renames one and applies its
 * delta.
 *
 * A spare is called by a hash of the layers that it holds. It is made under another name and
 * renamed when it is complete, and taken by rename, so it is never shared and never half.
 */
#ifndef DLRUN_TARGETS_LOCAL_TREE_H
#define DLRUN_TARGETS_LOCAL_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/attempt/attempt.h"

enum { SPARES_MAX = 4 };
#define SPARES_FREE_MIN (UINT64_C(1) << 30) /* bytes that stay free beside a spare */

/* Make dir/tree (ATTEMPT_TREE) as job says, with job->spec.cwd in it; an existing tree is kept.
 * *ret_spare: a spare was taken. Blocks for the unpacking. */
int tree_make(const char *dir, const struct attempt_job *job, bool *ret_spare, struct err *err);

/* Make a spare of the layers below the delta of job's image if there is none and the disk has twice
 * its size and SPARES_FREE_MIN free; at most SPARES_MAX are kept. If another process is making
 * spares: success. */
int spare_make(const struct attempt_job *job, struct err *err);

/* Remove all spares and what is left of half-made ones, unless one is being made now. */
int spares_drop(const char *dir, bool dry_run, uint64_t *ret_bytes, size_t *ret_n, struct err *err);

/* Bytes of the files below a directory, each once whatever names it has; links are not followed,
 * unreadable parts count nothing. */
uint64_t tree_size(const char *dir);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Hints that name a path: quoted so that the line can be pasted into a shell. */
#ifndef DLRUN_SNAP_GIT_HINT_H
#define DLRUN_SNAP_GIT_HINT_H

#include "base/util/err.h"

/* err_hint with before, the path as a word of a shell, and after. Returns -code. */
int hint_path(struct err *err, const char *before, const char *path, const char *after);

#endif

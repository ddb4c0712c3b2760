/* SPDX-License-Identifier: Apache-2.0 */
/* The hint that leaves paths out of the snapshot. */
#ifndef DLRUN_SNAP_TREE_HINT_IGNORE_H
#define DLRUN_SNAP_TREE_HINT_IGNORE_H

#include <stddef.h>

#include "base/util/err.h"

/* err_hint with a line for a shell that adds the paths to the .dlrunignore of root, an absolute
 * path, which is left away where root is the directory of that shell (NULL: of this process).
 * paths: n of them, relative to root, directories end in a slash. Nothing is added if one of them
 * cannot be written on a line. */
void hint_ignore(struct err *err, const char *root, const char *shell_dir, const char *const *paths,
	size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A private directory for one `dlrun tensorboard`: what its TensorBoard looks at (links to the
 * files of runs), and what it leaves behind. It is below the runtime directory and goes with the
 * command; a later one removes what a killed one has left.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_DIR_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_DIR_H

#include "base/util/err.h"

struct tensorboard_dir {
	char *path, *runs, *scratch; /* runs and scratch: in it; NULL: there is none */
	char *lock;
	int lock_fd;
};
/* runtime: made if it is missing. */
int tensorboard_dir_make(const char *runtime, struct tensorboard_dir *ret, struct err *err);
/* Removes it. */
void tensorboard_dir_done(struct tensorboard_dir *dir);
/* In runs: directory name has links to the files below the directory from, at their paths; what has
 * one already keeps it. Its directories are our own, as some plugins do not follow links to them;
 * but one with a configuration of the projector is a link to that below source, where the files are
 * themselves. */
int tensorboard_dir_link(const struct tensorboard_dir *dir, const char *name, const char *from,
	const char *source, struct err *err);

#endif

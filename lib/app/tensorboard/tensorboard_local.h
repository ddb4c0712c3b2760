/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TensorBoard on this machine, started for one command: it ends with it, however that ends.
 *
 * Others of this machine can read arguments of processes and connect to ports. So TensorBoard runs
 * in its own interpreter by a few lines (tensorboard_child.py) that get what is wanted by a socket,
 * answers below a random prefix only, and, where the system allows that to everybody (Linux), in a
 * network of its own, from which it hands out sockets. Where that is refused its data server, which
 * knows no prefix, stays off (--load_fast=false).
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_LOCAL_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_LOCAL_H

#include <stdbool.h>

#include "app/tensorboard/tensorboard_link.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

/*
 * The user's own TensorBoard on this machine. Nothing is downloaded or changed: where there is
 * none, the error says with what it would be.
 */

struct tensorboard_program {
	char *path; /* absolute */
	/* Of the Python that runs it, with its options; empty: not known (a wrapper of some kind),
	 * then it is started as it is. */
	struct strv python;
	char *install; /* what adds packages to it: "/a/bin/python -m pip install" */
};
void tensorboard_program_done(struct tensorboard_program *program);
#define AUTO_TENSORBOARD_PROGRAM AUTO(tensorboard_program_done)

struct tensorboard_search {
	const char *const *env; /* VIRTUAL_ENV, CONDA_PREFIX, PATH count */
	const char *tree;       /* for its .venv and venv; NULL: none */
	const char *home;       /* for ~/.local/bin; NULL: none */
	const char *plot;       /* for the hint: the run whose curves are wanted; NULL: any */
};
/* In that order: the active environment, the tree's, conda's, PATH, ~/.local/bin.
 * E_TENSORBOARD_MISSING. */
int tensorboard_find(
	const struct tensorboard_search *search, struct tensorboard_program *ret, struct err *err);

/*
 * A private directory for one `dlrun tensorboard`: what its TensorBoard looks at (links to the
 * files of runs), and what it leaves behind. It is below the runtime directory and goes with the
 * command; a later one removes what a killed one has left.
 */

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

struct tensorboard_local_options {
	struct loop *loop;
	const struct tensorboard_program *program; /* lives as long */
	const char *const *env;
	const char *logdir;  /* absolute; lives as long */
	const char *prefix;  /* "/RANDOM"; lives as long */
	const char *scratch; /* a private directory, where it runs and for what it leaves */
	const char *plot;    /* for hints: a run; or NULL */
};

/* Returns once it was started; it answers later. E_TENSORBOARD_…, E_RUN_EXEC. When it is freed it
 * ends with its whole group, 2 s later at the latest. */
int tensorboard_local_start(const struct tensorboard_local_options *options,
	struct tensorboard_server **ret, struct err *err);

#endif

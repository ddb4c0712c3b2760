/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's own TensorBoard on this machine. Nothing is downloaded or changed: where there is
 * none, the error says with what it would be.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_FIND_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_FIND_H

#include "base/util/err.h"
#include "base/util/vec.h"

struct tensorboard_program {
	char *path; /* absolute */
	/* Of the Python that runs it, with its options; empty: not known (a wrapper of some kind),
	 * then it is started as it is. */
	struct strv python;
	char *install; /* what adds packages to it: "/a/bin/python -m pip install" */
};
void tensorboard_program_done(struct tensorboard_program *program);
#define AUTO_TENSORBOARD_PROGRAM AUTO(tensorboard_program_done)

struct tensorboard_places {
	const char *const *env; /* VIRTUAL_ENV, CONDA_PREFIX, PATH count */
	const char *tree;       /* for its .venv and venv; NULL: none */
	const char *home;       /* for ~/.local/bin; NULL: none */
	const char *plot;       /* for the hint: the run whose curves are wanted; NULL: any */
};
/* In that order: the active environment, the tree's, conda's, PATH, ~/.local/bin.
 * E_TENSORBOARD_MISSING. */
int tensorboard_find(
	const struct tensorboard_places *places, struct tensorboard_program *ret, struct err *err);

#endif

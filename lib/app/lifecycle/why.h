/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a run is in its state.
 */
#ifndef DLRUN_APP_LIFECYCLE_WHY_H
#define DLRUN_APP_LIFECYCLE_WHY_H

#include "base/util/buf.h"
#include "core/context/session.h"
#include "core/record/dirs.h"
#include "core/record/run.h"

/* Explain in one sentence why the run is in its state, and what to do next (hint may stay
 * empty). */
void run_why(const struct run *run, struct buf *sentence, struct buf *hint);

/* As run_why, with what the end of the program's output tells of its failure; for a run
 * whose program failed on such a path the hint names it. True: something is known that way. */
bool run_why_said(const struct dirs *dirs, const struct run *run, const char *output, size_t len,
	struct buf *sentence, struct buf *hint);
/* The same. Reads the end of the log from the target; what cannot be read gives no hint. */
bool run_why_all(
	struct session *session, const struct run *run, struct buf *sentence, struct buf *hint);

#endif

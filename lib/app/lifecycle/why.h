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
#include "core/target/target.h"

/* Explain in one sentence why the run is in its state, and what to do next (hint may stay
 * empty). */
void run_why(const struct run *run, struct buf *sentence, struct buf *hint);

/* As run_why, with what the end of the program's output tells of its failure; for a run
 * whose program failed on such a path the hint names it. True: something is known that way. */
bool run_why_said(const struct dirs *dirs, const struct run *run, const char *output, size_t len,
	struct buf *sentence, struct buf *hint);
/* Whether run_why_said takes the end of the run's output, and the request for it: ret gets it, at
 * most 2 * FAILURE_TAIL bytes. */
bool run_why_reads(const struct run *run);
struct target_log_request run_why_request(struct buf *ret);
/* The cause alone, without run and times; nothing where the state says it. False: its numbers may
 * be those of this run only. */
bool run_cause(const struct dirs *dirs, const struct run *run, const char *output, size_t len,
	struct buf *cause);
/* run_why_said, which reads the end of the log from the target; what cannot be read gives no
 * hint. */
bool run_why_all(
	struct session *session, const struct run *run, struct buf *sentence, struct buf *hint);

#endif

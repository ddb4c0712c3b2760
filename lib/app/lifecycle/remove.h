/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing runs.
 */
#ifndef DLRUN_APP_LIFECYCLE_REMOVE_H
#define DLRUN_APP_LIFECYCLE_REMOVE_H

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* Forget runs, many at once: record, log, outputs here, git ref. Stopped at any moment it can be
 * repeated; the image is left to gc_local. ret: zeroed, one for each: its error, the caller's;
 * E_RUN_RUNNING unless the run has ended; E_IO_LOCK when its supervisor or submit is still at work
 * after some seconds. Blocks. */
int runs_remove(
	struct session *session, const struct run_list *runs, struct err *ret, struct err *err);

/* E_RUN_RUNNING if a run that is not among these is to begin after one of them. */
int runs_remove_check(struct session *session, const struct run_list *runs, struct err *err);

#endif

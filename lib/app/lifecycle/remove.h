/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing a run.
 */
#ifndef DLRUN_APP_LIFECYCLE_REMOVE_H
#define DLRUN_APP_LIFECYCLE_REMOVE_H

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* Forget: record, log, outputs here, git ref. E_RUN_RUNNING unless it has ended; E_IO_LOCK when
 * its supervisor or submit is still at work after some seconds. Stopped at any moment it can be
 * repeated; the image is left to gc_local. Blocks. */
int run_remove(struct session *session, struct run *run, struct err *err);
/* The same for many, many at once. ret: zeroed, one for each: its error, the caller's. */
int runs_remove(
	struct session *session, const struct run_list *runs, struct err *ret, struct err *err);

#endif

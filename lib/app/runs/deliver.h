/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that is streamed to the nodes of a run (target_ops.deliver), by a process of its own
 * (`dlrun __deliver RUN`) for as long as the attempt lives. The lock of the attempt's directory
 * says that there is one; any command that refreshes the run starts one where there is none.
 */
#ifndef DLRUN_APP_RUNS_DELIVER_H
#define DLRUN_APP_RUNS_DELIVER_H

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

/* Start the process, if run needs one that has its code here. Never blocks for a target. */
void deliver_kick(struct session *session, const struct run *run);
/* Complete the text of a run that waits for its code by what the process fails of. */
void deliver_explain(struct session *session, const struct run *run, struct target_status *status);
/* By the process: what it fails of, for deliver_explain. Not set: nothing any more. */
void deliver_report(struct session *session, const struct run *run, const struct err *error);
/* Held by the process. E_IO_LOCK: there is one already. */
int deliver_lock(struct session *session, const struct run *run, int *ret_fd, struct err *err);

#endif

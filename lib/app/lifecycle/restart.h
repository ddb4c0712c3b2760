/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next attempt of a run.
 */
#ifndef DLRUN_APP_LIFECYCLE_RESTART_H
#define DLRUN_APP_LIFECYCLE_RESTART_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* Begin the next attempt of a run that has ended otherwise than by success (E_RUN_ENDED,
 * E_RUN_RUNNING): same code, specification and outputs. Values of secrets come from this shell or
 * their files again; names without one are added to ret_missing, what should be said of the files
 * of the attempt before to ret_notes. *ret, the run as it is then, is
 * set too where the attempt was written down but could not be started: its state tells. */
int run_restart(struct session *session, const struct run *run, struct strv *ret_missing,
	struct strv *ret_notes, struct run **ret, struct err *err);

/* The same as a retry (retry.h): only while `after` is the newest attempt (E_RUN_RUNNING), and
 * with the values of all secrets (E_SECRET). 0: run_restart. */
int run_restart_after(struct session *session, const struct run *run, int after,
	struct strv *ret_missing, struct strv *ret_notes, struct run **ret, struct err *err);

#endif

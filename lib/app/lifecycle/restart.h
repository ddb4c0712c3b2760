/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next attempt of a run, by hand or as a retry.
 *
 * Retries are for gangs in clusters (runs of several nodes): without JobSet nothing there starts
 * all of their nodes anew, so that whoever watches the run does, as often as its retries say. What
 * counts is as with other runs: a failure of the program. A disruption (evicted, preempted, a pod
 * deleted, a node lost) is repeated without counting, as the cluster does with one pod; a time
 * limit, a cancel, an image that cannot be had are not repeated.
 */
#ifndef DLRUN_APP_LIFECYCLE_RESTART_H
#define DLRUN_APP_LIFECYCLE_RESTART_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* Begin the next attempt of a run that has ended otherwise than by success (E_RUN_ENDED,
 * E_RUN_RUNNING): same code, specification and outputs. Values of secrets come from this shell or
 * their files again; names without one are added to ret_missing, what should be said of the files
 * of the attempt before to ret_notes. *ret, the run as it is then, is set too where the attempt was
 * written down but could not be started: its state tells. */
int run_restart(struct session *session, const struct run *run, struct strv *ret_missing,
	struct strv *ret_notes, struct run **ret, struct err *err);

/* How that went for a run of many. */
struct restarted {
	struct run *run;            /* as it is then; NULL: it stayed as it was */
	struct strv missing, notes; /* as above */
	struct err err;             /* or not set */
};
void restarted_done(struct restarted *restarted);
/* The same for many runs, many at once, none if the state of any forbids it. ret: zeroed, one for
 * each. */
int runs_restart(struct session *session, const struct run_list *runs, struct restarted *ret,
	struct err *err);

enum { RETRY_ATTEMPTS_MAX = 200 };
/* Of a record: true; how many attempts were there when it was restarted by hand, which begins the
 * count again. */
#define RUN_RETRIES_STOPPED "retries_stopped"
#define RUN_RETRIES_FROM    "retries_from"

/* Whether the cluster does it (its newest attempt is a JobSet): nobody has to watch. */
bool run_restarts_by_itself(const struct run *run);
/* Whether it has failed and is to be started anew. */
bool run_wants_retry(const struct run *run);
/* Start the next attempt of a run that wants it, with the values of all secrets (E_SECRET), unless
 * another process has or is about to: *run is as the store has it then. *ret_text (NULL where
 * nothing was started) is one sentence for people; the caller frees. On an error the run stays as
 * it ended. */
int run_retry(struct session *session, struct run *run, char **ret_text, struct err *err);
/* Stop the automatic retries of the run. */
int run_stop_retries(struct session *session, struct run *run, struct err *err);

#endif

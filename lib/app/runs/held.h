/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that were accepted here and are not at their target yet, because nobody answered there: the
 * record has the member "held", an object
 *
 *	since      time, RFC 3339
 *	for        what it waits for: "answer"; "run": the end of runs (core/record/after.h);
 *	           "room": it was taken back from one of its places, and goes to the next
 *	           (app/submit/spill_impl.h)
 *	error      {id, message}: why it was not sent the last time; not with "run"
 *	place      of a cluster: what handles of its runs begin with, which names its server
 *	platform, workdir, remote_url, no_gpus
 *	           of the submit, for the one who sends it
 *
 * and the image is in the layout here, called by the run's id. While the run has no attempt, or the
 * newest has no handle any more, nothing of it was ever sent that may begin; one with a handle may
 * have begun, which only the target can tell. The
 * member goes when the target is known to have the run, or with the run's end. Who cancels it sets
 * "cancelling" first: a sender that is at work, or the next one, ends the run.
 *
 * A file named by the id in the queue's directory says that somebody has to send the run, so that
 * a command can tell without the database. It is made before the row is held and removed after. One
 * that waits in a place, and may go to another, is marked as well.
 *
 * Members of a study that was accepted here are held each, with one mark for all of them, which is
 * called as the study. Where their target starts them together, or is to be chosen, they are sent
 * as a whole (app/submit/send.h).
 *
 * A run that is taken back from its place has the member "moving" {to, text, left, refused, at}
 * until it is known whether it was: then it is held, or has begun there. refused: the place did not
 * take it.
 */
#ifndef DLRUN_APP_RUNS_HELD_H
#define DLRUN_APP_RUNS_HELD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/after.h"
#include "core/record/run.h"
#include "core/target/target.h"

#define RUN_HELD      "held"
#define RUN_MOVING    "moving"
#define HELD_FOR_ROOM "room"
/* Of the record's "target": the hosts that a run may be moved to while it waits for GPUs, which
 * have no home in common. */
#define TARGET_POOL "pool"
/* In the directory of the queue: held by the process that sends. */
#define HELD_LOCK "lock"

bool run_is_held(const struct run *run);
bool run_is_moving(const struct run *run);
/* Whether another of its places may be asked yet when the one where it is has refused it. */
bool run_may_go_on(const struct run *run);
/* Whether it waits in one of several places, has not begun yet, and another is left to go to. */
bool run_may_move(const struct run *run);
/* The same by its hosts: it waits on one of several, and has no other places. */
bool run_may_change_host(const struct run *run);
/* Whether it has several places, or hosts that it may be moved to, wherever it is now. */
bool run_has_choice(const struct run *run);
/* Of a run that another machine has submitted with several places, and that was never seen to
 * begin: where its attempt is gone, that machine may have sent it on, which nobody else knows. */
bool run_may_be_elsewhere(const struct run *run);
/* Whether somebody has to look after it: it is held, moving or may move. */
bool run_is_watched(const struct run *run);
/* Whether nothing was sent: no attempt of it has a handle. */
bool run_is_unsent(const struct run *run);
/* Wall clock; 0 for a run that is not held. */
int64_t held_since_ms(const struct run *run);
/* The place that a handle in a cluster leads to: "kube:SERVER". The caller frees. */
char *held_place(const char *handle);
/* The target; of several places the one that was chosen, or all that did not answer. The caller
 * frees. */
char *held_silent_names(const struct run *run);
/* Make run held, or say again why it is: state queued, and text. */
void held_set(struct run *run, const struct err *cause);
/* The same for one that was at a place, or was not taken there (why), and goes to another; to: its
 * name, as far as known, or NULL. */
void held_set_room(struct run *run, const char *why, const char *to);
/* The same for one that waits for other runs. */
void held_set_after(struct run *run, const struct after_list *list);
/* Whether it was taken back from a place, and goes to the next. */
bool held_is_for_room(const struct run *run);
/* Whether it waits for other runs, as far as is known. */
bool held_is_after(const struct run *run);
void held_clear(struct run *run);
/* Of a run that gets another attempt where it is: it does not move any more, and the time that it
 * waits there begins anew. */
void held_restart(struct run *run);
/* The end of a held run that is cancelled, and of which nothing has begun nor will. */
void held_end(struct run *run);
/* The same for one that is not to begin, since a run before it ended otherwise; text says which. */
void held_end_after(struct run *run, const char *text);

/* The lock that a run is sent under, and taken back before: RUN_SUBMIT_LOCK of its directory, of a
 * member of a study that of the first member. */
int held_lock(const struct dirs *dirs, const struct run *run, int64_t timeout_ms, int *ret_fd,
	struct err *err);

/* The directory of the queue; the caller frees. */
char *held_dir(const struct dirs *dirs);
/* Durable when it returns. id: of a run, or of a study for its members. */
int held_mark(const struct dirs *dirs, const char *id, struct err *err);
/* The same for a run that waits for others: the mark names them. */
int held_mark_after(
	const struct dirs *dirs, const char *id, const struct after_list *list, struct err *err);
void held_unmark(const struct dirs *dirs, const char *id);
/* Mark a run that is to be looked after, if it is not marked yet. */
void held_watch(const struct dirs *dirs, const struct run *run);
/* Whether any run is marked: one directory is read. ret_ids: all of them, in no order; or NULL. */
bool held_any(const struct dirs *dirs, struct strv *ret_ids);

/* Where runs are held, start a process that sends them (`dlrun queue --send`) beside this one,
 * unless one was started moments ago, up to a minute if the last could send nothing, or the
 * session is one that ends runs. Never blocks for a target. */
void held_kick(struct session *session);
/* The same without a pause where a held run waits for one of these, which have ended. */
void held_kick_ended(struct session *session, const struct run_list *runs);
/* Something was sent: the next kick need not wait. */
void held_kick_soon(const struct dirs *dirs);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run that waits in one of its places (places.h) without room for as long as it is to, or that
 * can never begin there, goes to the next. The one who sends what is held does it, under the lock
 * of the queue:
 *
 *	1. another place takes the run, as far as it can be asked
 *	2. durable row with the member "moving" (held.h): from now on the end of the attempt is
 *	   not taken for that of the run
 *	3. target_ops.withdraw: its answer, whenever it comes, is for ever
 *	4. taken: one change of the row closes the attempt, which has no handle any more, and
 *	   makes the run held for "room", as one that was never sent (send.h); else the member
 *	   goes
 *
 * A process that is killed, or an answer that is lost, leaves a row that is moving: the next one
 * asks again from 3 on. A cancel writes "cancelling" into the row before it asks the target, and
 * step 4 reads it.
 *
 * A place that refuses a run when it is sent there, although it had room, is left in the same way
 * from 2 on (spill_refused): that nothing came of the start is what 3 makes sure of.
 */
#ifndef DLRUN_APP_SUBMIT_SPILL_IMPL_H
#define DLRUN_APP_SUBMIT_SPILL_IMPL_H

#include "app/submit/send.h"
#include "core/target/target.h"

/* The place that the run would go to from the one where it waits, asked now; NULL: none takes it.
 * silent: as of place_choose. The caller frees. */
typedef int spill_find_fn(struct session *session, const struct run *run, struct strv *silent,
	char **ret_target, struct err *err);

/* The start of run at target, with the handle of its row, has failed by why, which is a refusal
 * (place_is_refusal); nobody holds its RUN_SUBMIT_LOCK. 1: the row says now that it goes on to
 * another of its places, or that it has begun there all the same; 0: there is no other. Blocks. */
int spill_refused(struct session *session, struct run *run, struct target *target,
	const struct err *why, const struct queue_events *events, struct err *err);

/* Move what is due; the lock of the queue is held. silent: as of place_choose. Blocks. */
int spill_all(struct session *session, spill_find_fn *find, struct strv *silent,
	const struct queue_events *events, const volatile int *interrupted, struct err *err);

#endif

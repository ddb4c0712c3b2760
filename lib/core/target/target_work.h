/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For implementations of targets: the work behind a call in flight.
 */
#ifndef DLRUN_CORE_TARGET_TARGET_WORK_H
#define DLRUN_CORE_TARGET_TARGET_WORK_H

#include "core/target/target.h"

/* First member of what target_call.private points to. drop frees it, and its sources of the loop,
 * without calling done. */
struct target_work {
	void (*drop)(struct target_work *work);
};

static inline void target_call_begin(struct target_call *call, struct target_work *work)
{
	call->private = work;
}

/* The work is over: it is dropped, then done is called. From within the loop only. */
void target_call_end(struct target_call *call, int status, struct err *err);
/* The same with the status of err, which the work may own; NULL or not set: 0. */
void target_call_end_as(struct target_call *call, struct err *err);
/* Why an attempt waits, as a notice, once for each reason: *reported (NULL or malloc'ed, the
 * caller's) is the last one. text may be NULL: nothing is known. */
void target_log_waits(const struct target_log_events *events, const char *text, char **reported);
struct pump_end;
/* The same for a connection that was forwarded (pump.h). */
void target_call_end_pumped(struct target_call *call, struct pump_end *end);
/* The same on the loop's next turn, for operations that are done at once. */
void target_call_end_soon(struct target_call *call, struct loop *loop);

#endif

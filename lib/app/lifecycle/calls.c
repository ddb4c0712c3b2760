/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/calls.h"

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

enum { LATE_MS = 1000 }; /* for a target that does not keep the deadline of a call */

struct calls_one {
	struct target_call call;
	struct loop_wait *wait;
	int status;
	struct err err;
};

static void calls_on_done(struct target_call *call, int status, struct err *err)
{
	struct calls_one *one = (struct calls_one *)call;

	one->status = status;
	if (status < 0)
		err_move(&one->err, err);
	loop_wait_done(one->wait);
}

/* Operations from `first` on. */
static int calls_run_some(
	struct loop *loop, const struct calls *calls, size_t first, size_t n, struct err *err)
{
	AUTO_FREE struct calls_one *ones = mem_alloc(n, sizeof(*ones));
	struct loop_wait wait = {.loop = loop, .interrupted = calls->interrupted};

	for (size_t i = 0; i < n; i++) {
		struct calls_one *one = &ones[i];
		*one = (struct calls_one){.wait = &wait};
		one->call = (struct target_call){
			.deadline_ms = clock_ms() + calls->timeout_ms, .done = calls_on_done};
		one->status = calls->start(calls->ctx, first + i, &one->call, &one->err);
		if (one->status == 0)
			wait.n_open++;
	}
	wait.deadline_ms = clock_ms() + calls->timeout_ms + LATE_MS;
	int r = loop_wait_run(&wait, err);
	for (size_t i = 0; i < n; i++) {
		if (ones[i].call.private) {
			target_call_cancel(&ones[i].call);
			ones[i].status =
				err_set(&ones[i].err, E_TARGET_SILENT, "no answer in time");
		}
		if (r == 0)
			calls->done(calls->ctx, first + i, ones[i].status, &ones[i].err);
		err_done(&ones[i].err);
	}
	return r;
}

int calls_run(struct loop *loop, const struct calls *calls, struct err *err)
{
	size_t at_once = calls->at_once ? calls->at_once : CALLS_AT_ONCE;
	int r = 0;

	for (size_t at = 0; r == 0 && at < calls->n; at += at_once) {
		size_t left = calls->n - at;
		r = calls_run_some(loop, calls, at, left < at_once ? left : at_once, err);
	}
	return r;
}

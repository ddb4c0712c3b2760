/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/wait.h"

#include "base/util/clock.h"

enum { INTERRUPT_MS = 100 };

static int wait_on_timer(void *ctx, struct err *err)
{
	struct loop_wait *wait = ctx;

	(void)err;
	loop_stop(wait->loop);
	return 0;
}

/* When the loop is to stop in order to be called again; 0: only when all is done. */
static int64_t wait_next_ms(const struct loop_wait *wait)
{
	int64_t next_ms = wait->interrupted ? clock_ms() + INTERRUPT_MS : 0;

	if (wait->deadline_ms && (!next_ms || wait->deadline_ms < next_ms))
		return wait->deadline_ms;
	return next_ms;
}

int loop_wait_run(struct loop_wait *wait, struct err *err)
{
	int r = 0;

	while (r == 0 && wait->n_open > 0) {
		int64_t next_ms = wait_next_ms(wait);

		if (wait->interrupted && *wait->interrupted)
			return err_set(err, E_CANCELED, "interrupted");
		struct loop_timer *timer =
			next_ms ? loop_add_timer(wait->loop, next_ms, wait_on_timer, wait) : NULL;

		r = loop_run(wait->loop, err);
		loop_remove_timer(wait->loop, timer);
		if (wait->deadline_ms && clock_ms() >= wait->deadline_ms)
			break;
	}
	return r;
}

void loop_wait_done(struct loop_wait *wait)
{
	wait->n_open--;
	if (wait->n_open == 0)
		loop_stop(wait->loop);
}

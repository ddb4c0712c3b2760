/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command that has nothing else to do waits for what it started: the loop runs until all of it
 * is there, until a deadline, or until the user interrupts. Blocks; never from within a dispatch of
 * that loop. Other code may stop the loop meanwhile.
 */
#ifndef DLRUN_BASE_LOOP_WAIT_H
#define DLRUN_BASE_LOOP_WAIT_H

#include "base/loop/loop.h"

struct loop_wait {
	struct loop *loop;
	size_t n_open;       /* what has been started and is not done */
	int64_t deadline_ms; /* of clock_ms(); 0: none */
	/* A flag that the handler of a signal sets, read ten times a second. NULL: none. */
	const volatile int *interrupted;
};

/* 0: all is done, or the deadline has passed and n_open is not 0; what is there by then counts,
 * even if it had passed before. E_CANCELED when interrupted; otherwise what ended the loop. */
int loop_wait_run(struct loop_wait *wait, struct err *err);
/* Counts one of n_open as done. */
void loop_wait_done(struct loop_wait *wait);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Following runs: their output, and their ends.
 */
#ifndef DLRUN_APP_LIFECYCLE_FOLLOW_H
#define DLRUN_APP_LIFECYCLE_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

/* The log of an attempt. Returns when it is at its end (follow: goes on with the attempts that
 * come after it, until the run has ended; *run is refreshed then). E_RUN_NOT_FOUND: there is no
 * such attempt. A stop asked for by events.data is ERR_CANCELED. interrupted: looked at on each
 * turn; NULL: never. */
struct follow_options {
	int64_t tail_lines, since_ms;
	int rank;
	int attempt; /* from 1; 0: the newest */
	bool follow;
	const volatile int *interrupted;
};
int run_follow(struct session *session, struct run *run, const struct follow_options *options,
	const struct target_log_events *events, struct err *err);

/* Wait until every run of the list has ended, or timeout_ms (-1: for ever; E_RUN_TIMEOUT).
 * E_RUN_NOT_FOUND: one was removed before its end was seen. */
int runs_wait(struct session *session, struct run_list *runs, int64_t timeout_ms,
	const volatile int *interrupted, struct err *err);

struct watch_options {
	int64_t timeout_ms; /* -1: for ever */
	const volatile int *interrupted;
	void (*notice)(void *ctx, const char *text); /* one sentence for people; or NULL */
	void *ctx;
};
/* runs_wait, as somebody who watches: starts gangs anew (restart.h). run_follow does, too. */
int runs_watch(struct session *session, struct run_list *runs, const struct watch_options *options,
	struct err *err);

#endif

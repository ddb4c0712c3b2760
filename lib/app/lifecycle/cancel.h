/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping runs.
 */
#ifndef DLRUN_APP_LIFECYCLE_CANCEL_H
#define DLRUN_APP_LIFECYCLE_CANCEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* A run whose end is asked for, and how that went. */
struct ending {
	struct run *run;   /* borrowed */
	bool ended_before; /* nothing had to be asked */
	bool is_sending;   /* nor could be: it is being sent now, and ends when that is over */
	struct err err;    /* it was not asked; or not set. The caller's */
};

/* Called for each run that was asked, before ends are waited for; its failure is that of all. */
typedef int run_meanwhile_fn(void *ctx, struct run *run, struct err *err);
/* Ask for their ends, many at once; wait_ms: how long to wait for all of them (0: not at all). Runs
 * whose output would go with them are waited for in portions (CALLS_AT_ONCE), while it is saved.
 * Runs that have not ended by then are told from their states. meanwhile may be NULL. */
int runs_cancel(struct session *session, struct ending *endings, size_t n, int64_t wait_ms,
	run_meanwhile_fn *meanwhile, void *ctx, struct err *err);

#endif

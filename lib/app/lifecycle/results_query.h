/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the targets of runs what the runs have written.
 */
#ifndef DLRUN_APP_LIFECYCLE_RESULTS_QUERY_H
#define DLRUN_APP_LIFECYCLE_RESULTS_QUERY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/context/session.h"
#include "core/record/run.h"

/* Into "results" (results.h) of the records of runs that have ended and lack it, and (live) of
 * running ones, there for this command only; "params" are completed (params.h). In parallel, at
 * most timeout_ms; what is not told then stays as it was. */
void runs_results(
	struct session *session, const struct run_list *runs, bool live, int64_t timeout_ms);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the targets of runs for their states, and repairing the records.
 */
#ifndef DLRUN_APP_RUNS_REFRESH_H
#define DLRUN_APP_RUNS_REFRESH_H

#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* Ask the targets of the unfinished runs of the list, in parallel, at most timeout_ms, and repair
 * rows. A run that cannot be asked keeps its state; its doc gets "as_of". */
int runs_refresh(
	struct session *session, struct run_list *runs, int64_t timeout_ms, struct err *err);
/* Find a run by what the user wrote, and refresh it. */
int runs_find(struct session *session, const char *text, struct run **ret, struct err *err);

#endif

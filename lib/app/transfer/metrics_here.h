/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of runs elsewhere from the copies of their event files that lie on this machine
 * (mirror.h), without asking anybody. A copy that has not changed is not read again: what it
 * said is kept beside it.
 */
#ifndef DLRUN_APP_TRANSFER_METRICS_HERE_H
#define DLRUN_APP_TRANSFER_METRICS_HERE_H

#include "core/context/session.h"
#include "core/record/run.h"

/* Beside the copies, like the mirror's own notes. */
#define METRICS_HERE_FILE ".dlrun-metrics"

enum { METRICS_BRING_MAX = 32 };

/* Where event files of the run are on this machine: its outputs, or the copy that is newer, of all
 * or of what curves need; the caller frees. NULL: nowhere. */
char *metrics_here_dir(const struct session *session, const struct run *run);
/* Brings the event files of runs elsewhere here, as far as curves need them: new bytes only, of
 * METRICS_BRING_MAX runs, and of those that go on not more often than every MIRROR_LOOK_MS. What
 * does not come within timeout_ms comes with the next call. */
void metrics_bring(struct session *session, const struct run_list *runs, int64_t timeout_ms);
/* Into "metrics" of the records of runs elsewhere. Reads for limit_ms at most; what is not read
 * then stays as it was. */
void metrics_here(const struct session *session, const struct run_list *runs, int64_t limit_ms);

#endif

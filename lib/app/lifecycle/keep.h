/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping here what the places of ended runs keep for a while only.
 */
#ifndef DLRUN_APP_LIFECYCLE_KEEP_H
#define DLRUN_APP_LIFECYCLE_KEEP_H

#include <stdint.h>

#include "core/context/session.h"
#include "core/record/run.h"

/* Copy here what the places of runs that have ended keep for a while only: their logs. In parallel,
 * at most timeout_ms; what is not copied then is tried again the next time. */
void runs_keep(struct session *session, const struct run_list *runs, int64_t timeout_ms);

#endif

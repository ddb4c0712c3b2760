/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a run is in its state.
 */
#ifndef DLRUN_APP_LIFECYCLE_WHY_H
#define DLRUN_APP_LIFECYCLE_WHY_H

#include "base/util/buf.h"
#include "core/record/run.h"

/* Explain in one sentence why the run is in its state, and what to do next (hint may stay
 * empty). */
void run_why(const struct run *run, struct buf *sentence, struct buf *hint);

#endif

/*
 * Why a run is in its state.
 */
#ifndef DLRUN_RUN_WHY_H
#define DLRUN_RUN_WHY_H

#include "base/buf.h"
#include "run/run.h"

/* One sentence: why is the run in its state, and what to do next (hint may stay empty). */
void run_why(const struct run *run, struct buf *sentence, struct buf *hint);

#endif

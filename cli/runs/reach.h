/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ports that a run names (ports:, --port), reachable on this machine while it is followed.
 */
#ifndef DLRUN_CLI_RUNS_REACH_H
#define DLRUN_CLI_RUNS_REACH_H

#include "app/forward/forward.h"
#include "core/record/run.h"

struct app;

/* Listens while the session's loop runs, until forward_free, and prints one line for each port. Of
 * a run on this machine the lines are all that is needed. NULL: nothing to listen for; a failure is
 * printed, not returned, because whoever follows wants the log above all. run is borrowed. */
struct forward *reach_open(struct app *app, const struct run *run, int rank);
/* How they are reached when the run is not followed. */
void reach_print(struct app *app, const struct run *run);

#endif

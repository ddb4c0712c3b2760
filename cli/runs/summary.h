/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A study in a few lines, or as dlrun/group/v1: its runs by state, its axes, its times.
 */
#ifndef DLRUN_CLI_RUNS_SUMMARY_H
#define DLRUN_CLI_RUNS_SUMMARY_H

#include "core/record/run.h"

struct app;

/* Print it; returns the exit status. runs: the members in their order, at least one. */
int summary_print(struct app *app, const char *study, const struct run_list *runs);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's log on stdout, and how a run ended: what `logs` and `submit` have in common.
 */
#ifndef DLRUN_CLI_RUNS_FOLLOW_H
#define DLRUN_CLI_RUNS_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/record/run.h"

struct app;

struct follow_request {
	int64_t tail_lines; /* -1: all */
	int64_t since_ms;   /* wall clock; 0: all */
	int rank;           /* -1: all */
	int attempt;        /* from 1; 0: the newest */
	bool follow;        /* to the end of the run */
	bool timestamps;
};

/* Print the log; with --json the run's object behind it. With follow the end of the run is said on
 * stderr too. Returns the exit status: with follow the run's own, 130 after Ctrl-C, which
 * leaves the run alone and says how to come back. */
int follow_log(struct app *app, struct run *run, const struct follow_request *request);

#endif

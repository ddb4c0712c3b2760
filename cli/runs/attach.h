/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command beside the program of a run, on this process's streams: what exec and ssh share.
 */
#ifndef DLRUN_CLI_RUNS_ATTACH_H
#define DLRUN_CLI_RUNS_ATTACH_H

#include <stdbool.h>

#include "base/util/vec.h"
#include "cli/term/app.h"
#include "core/record/run.h"

struct attach_request {
	const char *run;            /* as the user wrote it; NULL: the newest */
	const struct strv *command; /* empty: a shell */
	int rank;
	const char *role; /* that rank is one of; NULL: of the run */
	bool input;       /* stdin is the command's */
	bool tty;         /* so is the terminal: E_USAGE where stdin is none */
};
/* The terminal of ad-hoc work (terminal.h), waited for to begin; else as attach_run. The end of
 * the run, where it comes with that of the terminal, is waited for, and its exit status counts. */
int attach_terminal(struct app *app, const struct run *run, bool tty);
/* Returns the exit status: the command's, or that of app_fail. The terminal is as before then. */
int attach_run(struct app *app, const struct attach_request *request);

#endif

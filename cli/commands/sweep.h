/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of a study.
 */
#ifndef DLRUN_CLI_COMMANDS_SWEEP_H
#define DLRUN_CLI_COMMANDS_SWEEP_H

#include <stdbool.h>

struct app;

/* Print the table of the study that the word names (NULL: the newest one); with follow again and
 * again, until all of its runs have ended. Returns the exit status: with follow that of the first
 * run that did not succeed. */
int sweep_show(struct app *app, const char *word, bool follow);

#endif

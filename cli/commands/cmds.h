/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All commands, sorted, and what one does for another.
 */
#ifndef DLRUN_CLI_COMMANDS_CMDS_H
#define DLRUN_CLI_COMMANDS_CMDS_H

#include <stdbool.h>

struct app;

/* Make these the commands that cmd.h knows. */
void cmds_use(void);

/* Print the table of the study that the word names (NULL: the newest one); with follow again and
 * again, until all of its runs have ended. Returns the exit status: with follow that of the first
 * run that did not succeed. */
int sweep_show(struct app *app, const char *word, bool follow);

#endif

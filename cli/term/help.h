/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Help on the terminal: the overview and one screen for each command, made from the tables of
 * options; no library is needed for it.
 */
#ifndef DLRUN_CLI_TERM_HELP_H
#define DLRUN_CLI_TERM_HELP_H

#include "base/util/buf.h"
#include "cli/term/cmd.h"

struct app;

/* Manual pages that are not about one command. */
struct help_page {
	const char *name, *about;
};
extern const struct help_page help_pages[];
extern const size_t help_pages_n;

/* `dlrun help` and `dlrun COMMAND -h`; with --json the tables. Each returns the exit status. */
int help_overview(struct app *app);
int help_command(struct app *app, const struct cmd *cmd);
/* Text that help_overview prints, without colours, for a terminal of that width. */
void help_overview_text(size_t columns, struct buf *out);

/* The exit status of a command that fails with this error; -1: it is the run's own. */
int help_exit_status(enum err_id id);
/* The two parts of an example, each to be freed by the caller. */
void help_example(const char *example, char **ret_line, char **ret_text);

#endif

/*
 * Help on the terminal: the overview and one screen for each command, made from the tables of
 * options; no library is needed for it.
 */
#ifndef DLRUN_CLI_HELP_H
#define DLRUN_CLI_HELP_H

#include "base/buf.h"
#include "cli/cmd.h"

struct app;

/* `dlrun help` and `dlrun COMMAND -h`; with --json the tables. Each returns the exit status. */
int help_overview(struct app *app);
int help_command(struct app *app, const struct cmd *cmd);
/* What help_command prints, without colours. */
void help_command_text(const struct cmd *cmd, struct buf *out);

/* "-t, --target T"; without is_aligned nothing stands in for a missing letter. */
void help_option_name(const struct opt *opt, bool is_aligned, struct buf *out);
/* The exit status of a command that fails with this error; -1: it is the run's own. */
int help_exit_status(enum err_id id);
/* The two parts of an example, each to be freed by the caller. */
void help_example(const char *example, char **ret_line, char **ret_text);

#endif

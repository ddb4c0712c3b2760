/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `dlrun __complete WORD…`: what the shells' completions call. The words are those of the command
 * line behind `dlrun`, the last one is what the cursor stands on (it may be empty). Each candidate
 * is a line "word\tdescription"; a line ":file", ":dir" or ":command" leaves it to the shell. Only
 * local state is read, nothing is written, nothing fails.
 */
#ifndef DLRUN_CLI_COMMANDS_COMPLETE_H
#define DLRUN_CLI_COMMANDS_COMPLETE_H

#include "base/util/buf.h"
#include "base/util/vec.h"

struct app;

enum { COMPLETE_MAX = 1 << 20, COMPLETE_RUNS_MAX = 200 };

/* The candidates as lines in out. */
void complete(struct app *app, const struct strv *words, struct buf *out);

#endif

/*
 * Ad-hoc work on a node: a run whose program waits until somebody's terminal there, which the
 * command is run in, is over. So it is a run like any other, and outlives connections as far as the
 * node has something that keeps terminals.
 */
#ifndef DLRUN_RUN_TERMINAL_H
#define DLRUN_RUN_TERMINAL_H

#include <stdbool.h>

#include "base/err.h"
#include "base/vec.h"
#include "run/run.h"
#include "run/session.h"
#include "run/target.h"

bool run_is_terminal(const struct run *run);
/* The words of the program that waits; it exits as the command in the terminal did. */
void terminal_holder(struct strv *ret);
/* The words to be run in the terminal: the command of the run, whose end the program is told. */
int terminal_words(const struct run *run, struct strv *ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ad-hoc work on a node: a run whose program waits until somebody's terminal there, which the
 * command is run in, is over. So it is a run like any other, and outlives connections as far as the
 * node has something that keeps terminals.
 */
#ifndef DLRUN_TARGETS_SSH_TERMINAL_H
#define DLRUN_TARGETS_SSH_TERMINAL_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

bool run_is_terminal(const struct run *run);
/* The words of the program that waits; it exits as the command in the terminal did. */
void terminal_holder(struct strv *ret);
/* The words to be run in the terminal: the command of the run, whose end the program is told. */
int terminal_words(const struct run *run, struct strv *ret, struct err *err);

#endif

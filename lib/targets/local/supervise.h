/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The supervisor: what `dlrun __supervise DIR` is. It belongs to one attempt on this machine
 * (attempt.h): unpacks the tree, starts the program in a session, group and (where there is
 * one) cgroup of its own, keeps the marks of the log, enforces time limit and cancel (TERM, grace,
 * KILL to the whole family), and writes down how the program ended. What the program leaves behind
 * ends with it. It knows no store and no terminal.
 *
 * Started with stdin and stderr of its own and a pipe as stdout: one line (reply.h) says that the
 * attempt is taken, by this supervisor or an earlier one, or why it could not be. The environment
 * is the program's, secrets included. If an earlier supervisor died while its program lives, this
 * one watches over that program until its end, which counts as lost unless it was requested.
 */
#ifndef DLRUN_TARGETS_LOCAL_SUPERVISE_H
#define DLRUN_TARGETS_LOCAL_SUPERVISE_H

#include "base/util/err.h"

/* self: path of this program, for a child that waits for other runs. dir: the attempt's directory,
 * absolute, with its job.json. Also runs further attempts (runtime.retries). No other process may
 * read its memory, and it leaves no core. Returns twice, in a process that makes trees and in its
 * child that supervises, in each when its work is done: the caller exits. */
int supervise(const char *self, const char *dir, struct err *err);

#endif

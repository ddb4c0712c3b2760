/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers: torchrun, mpirun, accelerate, deepspeed. A run whose specification names one keeps its
 * command as the user typed it; each target starts the words of launcher_words instead, which start
 * the program as often as each node has GPUs and tell it of the others.
 *
 * Only the place of the program knows its rank, address and number of GPUs, so the words are a line
 * for /bin/sh that reads them from the variables of every target (NNODES, NODE_RANK, MASTER_ADDR,
 * MASTER_PORT, DLRUN_GPUS_PER_NODE) and becomes the launcher. A launcher of Python is the module of
 * the interpreter that the command names (torchrun is `-m torch.distributed.run`): of the same
 * virtual environment, whoever has made it, with nothing to be found on PATH.
 */
#ifndef DLRUN_CORE_RECORD_LAUNCHER_H
#define DLRUN_CORE_RECORD_LAUNCHER_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"

enum launcher_kind {
	LAUNCHER_NONE,
	LAUNCHER_TORCHRUN,
	LAUNCHER_MPIRUN,
	LAUNCHER_ACCELERATE,
	LAUNCHER_DEEPSPEED,
};

enum { LAUNCHER_PROCESSES_MAX = 1024 };

struct launcher {
	enum launcher_kind kind;
	int processes; /* on each node; 0: one for each GPU that it has, or one */
};

/* "torchrun", "torchrun:4", "none"; E_USAGE with the near match. */
int launcher_parse(const char *text, struct launcher *ret, struct err *err);
/* The same text again; "none" where there is none. The caller frees. */
char *launcher_text(const struct launcher *launcher);

/* E_USAGE unless the launcher can start the command (shell: one line for sh) on so many nodes. */
int launcher_check(const struct launcher *launcher, const struct strv *command, bool shell,
	int nodes, struct err *err);
/* Add the words that start the command, which was checked; without a launcher they are its own. */
void launcher_words(const struct launcher *launcher, const struct strv *command, struct strv *ret);
/* The line for people: with numbers where they are known. gpus: of each node, -1 if only the place
 * knows. NULL without a launcher. The caller frees. */
char *launcher_line(
	const struct launcher *launcher, const struct strv *command, int nodes, int gpus);

#endif

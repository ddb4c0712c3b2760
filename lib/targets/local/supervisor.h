/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of supervise.c: the supervisor's loop, from the tree to the end of the program's family.
 */
#ifndef DLRUN_TARGETS_LOCAL_SUPERVISOR_H
#define DLRUN_TARGETS_LOCAL_SUPERVISOR_H

#include <sys/types.h>

#include "base/util/err.h"
#include "core/attempt/attempt.h"

/* Orders to the worker process, which does what may take long, one byte each: the tree, which GPUs
 * there are (it replies to both, reply.h), at last a spare. */
enum { WORKER_TREE = 't', WORKER_GPUS = 'g', WORKER_SPARE = 's' };

struct supervisor_start {
	const char *dir; /* the attempt's, absolute; also the current one */
	const struct attempt_job *job;
	struct attempt_state state; /* written before; with a program: watch over that one */
	pid_t worker;               /* makes trees; 0 with a program */
	int worker_fd;              /* not owned */
	int log_fd, lock_fd;        /* not owned */
	const char *const *env;     /* inherited, for the program */
};

/* Runs in the attempt's directory; returns when exit.json is written. *ret_next: the attempt to
 * begin now, which no other process can begin; its dir is NULL if there is none. */
int supervisor_run(
	const struct supervisor_start *start, struct attempt_next *ret_next, struct err *err);

#endif

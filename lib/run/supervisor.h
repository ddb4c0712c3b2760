/*
 * Inside of run/supervise: the supervisor's loop, from the tree to the end of the program's family.
 */
#ifndef DLRUN_RUN_SUPERVISOR_H
#define DLRUN_RUN_SUPERVISOR_H

#include <sys/types.h>

#include "base/err.h"
#include "run/attempt.h"

/* What is asked of the process that makes trees, one byte each: the tree (it replies, run/reply.h),
 * then a spare. */
enum { WORKER_TREE = 't', WORKER_SPARE = 's' };

struct supervisor_start {
	const struct attempt_job *job;
	struct attempt_state state; /* written before; with a program: watch over that one */
	pid_t worker;               /* makes trees; 0 with a program */
	int worker_fd;              /* not owned */
	int log_fd, lock_fd;        /* not owned */
	const char *const *env;     /* inherited, for the program */
};

/* In the attempt's directory; returns when exit.json is written. */
int supervisor_run(const struct supervisor_start *start, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program on the loop from its start to its end: it gets its input, what it writes is collected
 * up to a limit, it is killed when its time is over, and how it ended is reported once. Nothing
 * blocks but for the start (proc_spawn) and for proc_run_free of a program that runs.
 *
 * It has a session of its own, and signals go to its process group. What it has started and left
 * may hold its pipes open: that is not waited for. SIGPIPE is to be ignored (app.c), because a
 * program need not read its input.
 */
#ifndef DLRUN_BASE_LOOP_PROC_RUN_H
#define DLRUN_BASE_LOOP_PROC_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

/* All of it is copied. */
struct proc_run_spec {
	const char *const *argv, *const *env; /* as in struct proc_spec */
	/* A text for its stdin. As much as a pipe holds, 4096 bytes at least, is there when it
	 * starts. NULL: it has stdin_fd. */
	const char *input;
	int stdin_fd;       /* -1: /dev/null */
	size_t out_max;     /* bytes of stdout; with more it is killed. 0: stdout is /dev/null */
	size_t errors_max;  /* bytes of stderr that are kept, of its end. 0: it has stderr_fd */
	int stderr_fd;      /* -1: /dev/null */
	int64_t timeout_ms; /* from its start; -1: none */
	int64_t grace_ms;   /* between SIGTERM and SIGKILL; 0: SIGKILL at once */
	bool has_terminal;  /* it stays in our session, and no other process is signalled */
	bool kills_rest;    /* what is left of its group when it has ended gets SIGKILL */
	bool is_secret;     /* input and output are wiped */
};

enum proc_run_end {
	PROC_RUN_ENDED,    /* by itself */
	PROC_RUN_LATE,     /* its time was over */
	PROC_RUN_TOO_MUCH, /* it wrote more than out_max */
	PROC_RUN_STOPPED,  /* proc_run_stop */
};

struct proc_run_result {
	enum proc_run_end end; /* why it was signalled, if it was */
	int status;            /* as wait(2); -1: not known (SIGCHLD is ignored, or is_stuck) */
	bool is_stuck;         /* SIGKILL has not ended it within a second: it is left alone */
	const struct buf *out, *errors;
};

struct proc_run;
/* From the loop, once; the run may be freed in it, and result is the run's. */
typedef int proc_run_fn(void *ctx, const struct proc_run_result *result, struct err *err);

/* Errors of proc_spawn, E_IO; fn is not called then. */
int proc_run_start(struct loop *loop, const struct proc_run_spec *spec, proc_run_fn *fn, void *ctx,
	struct proc_run **ret, struct err *err);
/* Ask it to end: SIGTERM, and after grace_ms SIGKILL. What it still writes is not read; fn is
 * called at its end. */
void proc_run_stop(struct proc_run *run);
/* Killed and waited for if it runs; fn is not called any more. NULL is accepted. */
void proc_run_free(struct proc_run *run);
/* The same, but the program goes on. */
void proc_run_leave(struct proc_run *run);
AUTO_POINTER(struct proc_run, proc_run_free)
#define AUTO_PROC_RUN AUTO(proc_run_free_auto)

/* As a shell has it: the exit status, or 128 and the signal; 127 where it is not known. */
int proc_run_code(const struct proc_run_result *result);
/* "killed by SIGKILL", "exit status 3", "it is not known how it ended"; the caller frees. */
char *proc_run_text(const struct proc_run_result *result);
/* Of a code of proc_run_code: "was killed by SIGKILL", "failed with exit status 3". */
char *proc_run_code_text(int code);

#endif

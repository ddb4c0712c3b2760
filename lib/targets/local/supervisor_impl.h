/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the supervisor, shared by its files: one attempt while it is watched over.
 *
 *	supervisor.c        the loop, its events, the course from phase to phase
 *	supervisor_setup.c  what is run once before it
 *	supervisor_gpus.c   the queue for GPUs
 *	supervisor_start.c  the program is started
 *	supervisor_observe.c  looking at it while it runs
 *	supervisor_watch.c  notes for people, marks of the log
 *	supervisor_stop.c   cancel, time limit, the family and its end
 *	supervisor_end.c    how it ended, written down
 */
#ifndef DLRUN_TARGETS_LOCAL_SUPERVISOR_IMPL_H
#define DLRUN_TARGETS_LOCAL_SUPERVISOR_IMPL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "core/attempt/attempt.h"
#include "core/attempt/marks.h"
#include "core/record/reply.h"
#include "host/gpu.h"
#include "targets/local/supervisor.h"

enum phase {
	PHASE_TREE,       /* the worker unpacks */
	PHASE_SETUP,      /* waits for the setup */
	PHASE_SETUP_RUNS, /* runs it here */
	PHASE_SETUP_LEFT, /* it has ended, its family has not */
	PHASE_GPUS,       /* waits for GPUs */
	PHASE_RUNNING,    /* the program runs */
	PHASE_LEFTOVERS,  /* it has ended, its family has not */
	PHASE_OVER,
};

enum stop { STOP_NONE, STOP_CANCEL, STOP_TIMEOUT };

struct supervisor_gpus;
struct observer;
struct setup;

struct supervisor {
	const char *dir;
	char *tree; /* absolute */
	const struct attempt_job *job;
	const char *const *inherited;
	struct attempt_state state;
	struct target_status end;
	struct attempt_next next;
	struct loop *loop;
	enum phase phase;
	enum stop stop;
	bool adopted; /* the program is not our child */
	pid_t child;  /* the program, or before it the setup */
	bool reaped;
	bool wants_spare; /* and has not asked for it yet */
	int wait_status;
	int64_t ended_ms;
	double cpu_s;
	int64_t peak_bytes;
	pid_t worker;
	int worker_fd;
	struct loop_fd *worker_source;
	char worker_order; /* not answered yet; 0: none */
	char reply[REPLY_MAX];
	size_t reply_len;
	int log_fd, lock_fd, marks_fd, notes_fd;
	int dir_watch, log_watch;
	bool log_quiet; /* a mark was made less than MARK_MS ago */
	struct mark last_mark;
	struct loop_timer *kill_timer, *look_timer, *limit_timer, *signal_timer;
	struct setup *setup; /* NULL: none */
	struct loop_timer *setup_timer;
	int setup_status;
	struct supervisor_gpus *gpus; /* NULL: none */
	struct observer *observer;
	struct loop_timer *observe_timer;
	int64_t observed_ms;   /* when it was written last */
	int64_t collect_ms;    /* clock_ms(), when event files are collected next */
	int64_t oom_kills;     /* when the program began, of a group that is shared; -1 */
	int64_t kill_since_ms; /* clock_ms() of the first SIGKILL; 0: none yet */
};

/* A line of ATTEMPT_NOTES. */
void sup_note(struct supervisor *sup, const char *fmt, ...) ERR_PRINTF(2, 3);
void sup_mark_log(struct supervisor *sup);
void sup_watch_log(struct supervisor *sup);
/* Set the state that is reported before the program has begun. text is copied; may be empty. */
void sup_wait_as(struct supervisor *sup, enum run_state state, const char *text);

/* Send one of the orders of supervisor.h; the reply comes by the loop. */
int sup_ask_worker(struct supervisor *sup, char order, struct err *err);

/* Order a tree made ahead, once, when the program has begun: a moment later or behind its end, so
 * that neither waits for the disk. */
void sup_ask_spare(struct supervisor *sup);

/* The way to the program: each step begins the next one, or ends the attempt. */
void sup_setup_begin(struct supervisor *sup);
/* The line and what it has left behind are gone. */
void sup_setup_over(struct supervisor *sup);
void sup_setup_env(const struct supervisor *sup, struct strv *env);

void sup_gpus_begin(struct supervisor *sup);
/* Handle the worker's reply; result may be NULL. */
void sup_gpus_answered(struct supervisor *sup, int r, const struct json *result, struct err *err);
/* NULL: none. */
const struct gpu_list *sup_gpus_granted(const struct supervisor *sup);
const int *sup_gpus_fds(const struct supervisor *sup, size_t *ret_n);
void sup_gpus_env(const struct supervisor *sup, struct strv *env);
void sup_gpus_free(struct supervisor *sup);

void sup_observe_begin(struct supervisor *sup);
/* Take a last sample; the observations become a part of the end. */
void sup_observe_end(struct supervisor *sup);

/* Make a cgroup for the family where there may be one; remove it again when it is empty. */
void sup_make_family(struct supervisor *sup);
void sup_check_family(struct supervisor *sup);
/* Count the processes that the kernel killed before the program began, for sup_judge. */
void sup_count_kills(struct supervisor *sup);
void sup_start_program(struct supervisor *sup);
/* End the attempt before its program has begun. */
void sup_start_failed(struct supervisor *sup, const struct err *err);

void sup_stop(struct supervisor *sup, enum stop why);
void sup_look_for_cancel(struct supervisor *sup);
void sup_set_limit(struct supervisor *sup);
/* The child is gone; what it has left behind follows. */
void sup_setup_ended(struct supervisor *sup);
void sup_program_ended(struct supervisor *sup);

struct rusage;
void sup_add_usage(struct supervisor *sup, const struct rusage *usage);
/* Reserve space for the end on a disk that may be full by then. */
void sup_make_reserve(void);
/* Set sup->end from how the program ended. */
void sup_judge(struct supervisor *sup);
void sup_finish(struct supervisor *sup);
void sup_finish_as(struct supervisor *sup, enum run_state state, int code, const char *reason,
	const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the supervisor (supervise.h): one attempt while it is watched over.
 *
 *	supervise.c       the two processes, from attempt to attempt
 *	supervisor.c      the loop, and the way to the program: tree, setup, GPUs, start; what is
 *	                  observed while it runs
 *	supervisor_after.c
 *	                  the runs that it begins after
 *	supervisor_study.c
 *	                  the slot of a member of a study, and the failure of another one
 *	supervisor_ranks.c
 *	                  the programs of a run of several nodes, all on this machine
 *	supervisor_end.c  cancel, time limit, the family and its end; how it ended, written down
 */
#ifndef DLRUN_TARGETS_LOCAL_SUPERVISOR_H
#define DLRUN_TARGETS_LOCAL_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "core/attempt/attempt.h"
#include "core/attempt/marks.h"
#include "core/record/reply.h"
#include "host/gpu.h"

/* Orders to the worker process, which does what may take long, one byte each: to wait for the runs
 * that it begins after, for those who are before it in the line of its study, the tree, which GPUs
 * there are (it replies to these, reply.h), at last a spare. */
enum {
	WORKER_AFTER = 'a',
	WORKER_LINE = 'l',
	WORKER_TREE = 't',
	WORKER_GPUS = 'g',
	WORKER_SPARE = 's'
};

struct supervisor_start {
	const char *dir; /* the attempt's, absolute; also the current one */
	const struct attempt_job *job;
	struct attempt_state state; /* written before; with a program: watch over that one */
	pid_t worker;               /* makes trees; 0 with a program */
	int worker_fd;              /* not owned */
	int log_fd, lock_fd;        /* not owned */
	struct study_slot *slot;    /* kept from the attempt before; taken over. Or NULL */
	const char *const *env;     /* inherited, for the program */
};

/* Runs in the attempt's directory; returns when exit.json is written. *ret_next: the attempt to
 * begin now, which no other process can begin; its dir is NULL if there is none. */
int supervisor_run(
	const struct supervisor_start *start, struct attempt_next *ret_next, struct err *err);

enum phase {
	PHASE_AFTER,      /* waits for other runs */
	PHASE_SLOT,       /* waits for a slot of its study */
	PHASE_TREE,       /* the worker unpacks */
	PHASE_SETUP,      /* waits for the setup */
	PHASE_SETUP_RUNS, /* runs it here */
	PHASE_SETUP_LEFT, /* it has ended, its family has not */
	PHASE_GPUS,       /* waits for GPUs */
	PHASE_RUNNING,    /* the program runs */
	PHASE_LEFTOVERS,  /* it has ended, its family has not */
	PHASE_OVER,
};

enum stop { STOP_NONE, STOP_CANCEL, STOP_WITHDRAW, STOP_TIMEOUT };

struct supervisor_gpus;
struct observer;
struct setup;
struct study_slot;
struct supervisor_ranks;
struct program;

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
	bool adopted;                   /* the program is not our child */
	pid_t child;                    /* the program (of rank 0), or before it the setup */
	struct supervisor_ranks *ranks; /* NULL: one program */
	uint16_t ports[ROLES_MAX];      /* for the ranks of each role to meet */
	bool reaped;
	bool wants_spare; /* and has not ordered it yet */
	int wait_status;
	int64_t ended_ms;
	double cpu_s;
	int64_t peak_bytes;
	pid_t worker;
	int worker_fd;
	struct loop_fd *worker_source;
	char worker_order; /* without a reply yet; 0: none */
	char reply[REPLY_MAX];
	size_t reply_len;
	int log_fd, lock_fd, marks_fd, notes_fd;
	int dir_watch, log_watch;
	bool log_quiet; /* a mark was made less than MARK_MS ago */
	struct mark last_mark;
	struct loop_timer *kill_timer, *poll_timer, *limit_timer, *signal_timer;
	int64_t after_begun_ms, after_pause_ms; /* of the process that waits for other runs */
	struct study_slot *slot;                /* NULL: none */
	struct loop_fd *slot_source;
	struct loop_timer *slot_timer;
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

/* supervisor.c */

/* A line of ATTEMPT_NOTES. */
void sup_note(struct supervisor *sup, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Of a log of that size, where it has grown since the last mark. */
void sup_mark(int marks_fd, int64_t size, struct mark *last);
void sup_mark_log(struct supervisor *sup);
/* Order a tree made ahead, once, when the program has begun: a moment later or behind its end, so
 * that neither waits for the disk. */
void sup_order_spare(struct supervisor *sup);
/* The line of the setup and what it has left behind are gone. */
void sup_setup_over(struct supervisor *sup);
/* Take a last sample; the observations become a part of the end. */
void sup_observe_end(struct supervisor *sup);
/* Set the state that is reported before the program has begun. text is copied; may be empty. */
void sup_wait_as(struct supervisor *sup, enum run_state state, const char *text);
/* Send one of the orders above; the reply comes by the loop. */
int sup_order_worker(struct supervisor *sup, char order, struct err *err);
void sup_start_failed(struct supervisor *sup, const struct err *err);
/* No other run is waited for any more: a slot is next. */
void sup_after_over(struct supervisor *sup);
/* The slot is granted: the tree is next. */
void sup_slot_over(struct supervisor *sup);

/* supervisor_after.c */

/* Whether it waits for other runs before anything else. */
bool sup_wants_after(const struct supervisor *sup);
void sup_after_begin(struct supervisor *sup);
/* Handle the worker's reply; result may be NULL. */
void sup_after_on_reply(
	struct supervisor *sup, int r, const struct json *result, const struct err *err);
/* In the worker: wait for the runs of the attempt in the current directory; fd gets the reply.
 * self: path of this program. */
void after_waiter_run(const char *self, int fd);

/* Fork the program of a rank, which waits for program_release. */
int sup_fork_rank(
	struct supervisor *sup, int rank, int log_fd, struct program *ret, struct err *err);

/* supervisor_ranks.c */

/* How many nodes this machine plays; 1: no ranks. */
int sup_nodes(const struct supervisor *sup);
/* Fork all ranks, which are in the state from then on; on failure none is left. */
int sup_ranks_start(struct supervisor *sup, pid_t *ret_first, struct err *err);
/* Let all of them go. Returns an errno if one could not be executed: then none is left but the
 * program of the state, to be waited for. */
int sup_ranks_release(struct supervisor *sup);
/* Watch over the ranks of a supervisor that was killed. */
void sup_ranks_adopt(struct supervisor *sup);
/* Mark the logs of the ranks behind the first one. */
void sup_ranks_mark(struct supervisor *sup);
/* A child is gone: if it was a rank that failed, end the others. 1: no rank is left. */
int sup_ranks_ended(struct supervisor *sup, pid_t pid, int status);
/* The part of the run of the first rank that failed; of rank 0 if none has. */
void sup_ranks_part(const struct supervisor *sup, struct roles_part *ret);
/* Whether a rank has failed by itself, or all that decide have ended: the others are ended. */
bool sup_ranks_is_ending(const struct supervisor *sup);
/* Signal the group of each rank that runs. */
void sup_ranks_signal(const struct supervisor *sup, int sig);
/* The end is known: add the ranks to it. */
void sup_ranks_finish(struct supervisor *sup);
void sup_ranks_free(struct supervisor *sup);

/* supervisor_study.c */

/* Whether it waits for a slot before anything else. */
bool sup_wants_slot(const struct supervisor *sup);
void sup_slot_begin(struct supervisor *sup);
/* Handle the worker's reply. */
void sup_slot_on_reply(struct supervisor *sup, int r, const struct err *err);
/* Give it back, or leave the line. */
void sup_slot_free(struct supervisor *sup);
/* End the attempt as cancelled if it is not to begin because another member has failed. */
bool sup_study_over(struct supervisor *sup);
/* The end is known: let the next attempt keep the slot, tell the others of a failure. */
void sup_study_end(struct supervisor *sup);

/* supervisor_end.c */

void sup_check_cancel(struct supervisor *sup);
/* Signal all processes of the attempt, and kill them after grace_ms. */
void sup_end_family(struct supervisor *sup, int sig, int64_t grace_ms);
/* Before the program has begun, when it is not to. */
void sup_end_worker(struct supervisor *sup);
/* The same, and end the attempt as cancelled; text says why. */
void sup_cancel_unbegun(struct supervisor *sup, const char *text);
/* The end of an attempt that was stopped before its program: cancelled (text), or taken back. */
void sup_finish_unbegun(struct supervisor *sup, const char *text);
void sup_set_limit(struct supervisor *sup);
/* The child is gone; what it has left behind follows. */
void sup_setup_ended(struct supervisor *sup);
void sup_program_ended(struct supervisor *sup);

struct rusage;
void sup_add_usage(struct supervisor *sup, const struct rusage *usage);
/* Count the processes that the kernel killed before the program began. */
void sup_count_kills(struct supervisor *sup);
/* Reserve space for the end on a disk that may be full by then. */
void sup_make_reserve(void);
void sup_finish_as(struct supervisor *sup, enum run_state state, int code, const char *reason,
	const char *text);
/* The end is in sup->end. */
void sup_finish(struct supervisor *sup);

#endif

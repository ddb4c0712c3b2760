/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An attempt on this machine, as its directory (state/runs/ID/attempts/N) describes it:
 *
 *	job.json    the job; written by the submit, read by the supervisor
 *	lock        held by the supervisor while it lives; the kernel frees it
 *	state.json  the processes: pids with start times, boot, cgroup; replaced at each step
 *	cancel      its end has been requested
 *	withdraw    the same, unless its program has begun
 *	log, marks  the program's output; when it came (core/attempt/marks.h)
 *	exit.json   how it ended; its presence makes the end final
 *	tree/       where the program runs; files/ is $DLRUN_ATTEMPT_DIR
 *	ranks/R/    log and marks of rank R, from 1 on, where this machine plays several nodes
 *	packages/   Python packages of the tree by their own names (runtime_mount.h)
 *	setup_env.json  the variables that its setup has changed (a virtual environment's)
 *	observed.json, gpus.json  what the program uses (observe.h), which GPUs it was given
 *	started, collected.json  since when files of the tree are results, what became of them
 *	                         (collect.h)
 *	supervisor.log
 *
 * An attempt that failed and is to be repeated names the next one in its exit.json. The next
 * attempt is made and locked before, so that each instant is either before (the attempt has not
 * ended) or after (the next one has begun); a next attempt that is not locked and has no state was
 * killed in between, and the first process that checks it ends it (failed, Interrupted): only its
 * supervisor had the program's environment.
 *
 * The submitting process holds ../../submit.lock until it has done all that it has to. Together
 * these files tell a run that waits from one whose submit or supervisor was killed, a reboot, and a
 * pid that another process has now.
 */
#ifndef DLRUN_CORE_ATTEMPT_ATTEMPT_H
#define DLRUN_CORE_ATTEMPT_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/os/os.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/spec.h"
#include "core/target/target.h"
#include "host/gpu.h"

#define ATTEMPT_JOB      "job.json"
#define ATTEMPT_LOCK     "lock"
#define ATTEMPT_STATE    "state.json"
#define ATTEMPT_CANCEL   "cancel"
#define ATTEMPT_WITHDRAW "withdraw"
#define ATTEMPT_LOG      "log"
#define ATTEMPT_MARKS    "marks"
#define ATTEMPT_EXIT     "exit.json"
#define ATTEMPT_TREE     "tree"
#define ATTEMPT_TEMP     "tree.tmp"
#define ATTEMPT_FILES    "files"
#define ATTEMPT_PACKAGES "packages"
#define ATTEMPT_NOTES    "supervisor.log"
#define ATTEMPT_GPUS     "gpus.json"
#define ATTEMPT_SETUP    "setup_env.json"
/* Of a cluster: exists once the cluster has taken the attempt. */
#define ATTEMPT_ACCEPTED "accepted"
/* A directory for each rank with its log and marks. Of a cluster: once the rank has ended. Of this
 * machine: from rank 1 on, while the attempt's own files are those of rank 0. */
#define ATTEMPT_RANKS "ranks"
/* Space for exit.json, and the file that becomes ATTEMPT_CANCEL, on a disk that fills up; gone at
 * the end. */
#define ATTEMPT_RESERVE        "reserve"
#define ATTEMPT_CANCEL_RESERVE "cancel.reserve"
/* File of the run, relative to state/runs/ID. */
#define RUN_SUBMIT_LOCK "submit.lock"

#define ATTEMPT_ADDRESS "127.0.0.1" /* of this machine, whichever of its nodes */

/* job.json. Values that look like secrets are not in it: the supervisor inherits them. */
struct attempt_job {
	char *run_id;
	int attempt;
	/* The run's, with the attempt's own variables in env, and the retries that are left. */
	struct spec spec;
	struct strv defaults; /* K=V, only where nothing is set */
	char *layout, *image; /* directory and digest; NULL: the tree is there already */
	char *spares;         /* directory of trees made ahead; NULL: none are kept */
	char *outputs;        /* $DLRUN_OUTPUT_DIR */
	char *setups;         /* directory of setups (setup.h); NULL: there are none */
	char *slots;          /* directory of its study's slots (study_slot.h); NULL: no member */
	uint64_t tree_bytes;
	bool cgroup; /* false: do without one though there may be one */
};
int attempt_job_write(const char *dir, const struct attempt_job *job, struct err *err);
int attempt_job_read(const char *dir, struct attempt_job *ret, struct err *err);
void attempt_job_done(struct attempt_job *job);
/* NAME=VALUE in the environment of every process that works for the attempt in dir, and of no other
 * attempt, even one that its program has started. The caller frees. */
char *attempt_mark(const char *dir);
/* Set the variables that locate the attempt: for directory dir. */
void attempt_job_place(struct attempt_job *job, const char *dir);

/* The directory of another attempt of the same run; the caller frees. */
char *attempt_sibling(const char *dir, int number);
/* dir and what a program finds in it; outputs: the run's, may be NULL. nodes: that this machine
 * plays; up to 1 are one. */
int attempt_make_dirs(const char *dir, const char *outputs, int nodes, struct err *err);
/* The file that $DLRUN_HOSTFILE names: a line for each of nodes. */
int attempt_write_hosts(const char *path, int nodes, struct err *err);

enum { ATTEMPT_SLOT_FDS = 2 };

/* The attempt after this one, made and locked, but not begun. */
struct attempt_next {
	char *dir; /* NULL: there is none */
	int lock_fd;
	int number;
	bool has_slot; /* of its study, which it keeps: */
	int slot_fds[ATTEMPT_SLOT_FDS];
};
/* Make the next attempt from the job of the attempt in dir, with one retry less. */
int attempt_next_make(const char *dir, struct attempt_next *ret, struct err *err);
void attempt_next_done(struct attempt_next *next);

/* A process, distinguishable from a later one with the same pid. */
struct attempt_process {
	pid_t pid; /* 0: none */
	uint64_t start;
};
bool attempt_process_alive(const struct attempt_process *process);

/* A rank of several that run on this machine. */
struct attempt_rank {
	struct attempt_process program;
	enum run_state state; /* running, or how it ended: */
	struct run_exit exit;
};

enum { ATTEMPT_TEXT_SIZE = 512, ATTEMPT_RANKS_MAX = 64 };

/* state.json; replaced as a whole, not synced: after a power cut the boot has changed anyway. */
struct attempt_state {
	enum run_state state; /* starting, queued or running */
	/* setup: what is run before the program (setup.h), while it runs. */
	struct attempt_process supervisor, program, setup;
	char text[ATTEMPT_TEXT_SIZE]; /* why it waits; may be empty */
	char boot_id[OS_ID_SIZE], machine_id[OS_ID_SIZE];
	struct os_family family;
	/* Warning about limits that cannot be enforced here; may be empty. */
	char warning[ATTEMPT_TEXT_SIZE];
	int64_t started_ms; /* of the program; 0: not yet */
	/* Where this machine plays several nodes, once they have begun; program is that of rank
	 * 0. */
	int n_ranks;
	struct attempt_rank ranks[ATTEMPT_RANKS_MAX];
};
/* Whether the program, or that of any rank, lives. */
bool attempt_program_alive(const struct attempt_state *state);
/* "ranks" of dlrun/run/v1, of attempt number; NULL without several. The caller frees. */
struct json *attempt_ranks_json(const struct attempt_state *state, int number);
/* This boot and machine, the calling process as supervisor. */
void attempt_state_init(struct attempt_state *state);
int attempt_state_write(const char *dir, const struct attempt_state *state, struct err *err);
/* false: there is no state that can be read. */
bool attempt_state_read(const char *dir, struct attempt_state *ret);

/* exit.json; its content is on disk before it is seen. next: the number of the attempt that follows
 * by itself; 0: none. Of status->observed only usage. status->ranks may be NULL. */
int attempt_end_write(
	const char *dir, const struct target_status *status, int next, struct err *err);
bool attempt_end_read(const char *dir, struct target_status *ret);
/* The GPUs that the attempt was given (gpus.json); none where that is not known. */
void attempt_gpus(const char *dir, struct gpu_list *ret);
/* The environment as a setup has changed it, for commands beside the program: written to the
 * current directory, the attempt's. Without the file such commands run without the setup. */
void attempt_setup_env_write(const struct strv *before, const struct strv *with);
void attempt_setup_env_read(const char *dir, struct strv *env);
/* The attempt that follows this one by itself, or 0. */
int attempt_next(const char *dir);
/* Observations of the attempt beside its state (target_status.observed), or NULL. The caller
 * frees. */
struct json *attempt_observed(const char *dir);

/* The status of the attempt now. submit_lock: path of the run's; while it is held and no supervisor
 * has the attempt: preparing. An attempt whose submit died before a supervisor had it is ended here
 * (failed, Interrupted), so that no supervisor can begin it later. */
int attempt_poll(
	const char *dir, const char *submit_lock, struct target_status *ret, struct err *err);

/* Request the end: durable when it returns, then the supervisor is woken, if it lives. An attempt
 * that has ended or never began is left alone. */
int attempt_cancel(const char *dir, struct err *err);
/* Whether the end was requested of a program that has no supervisor any more: it needs one. */
bool attempt_is_orphan(const char *dir);

/* Take back an attempt whose program has not begun, also one that has not come yet. 1: it is
 * decided: taken, and its end is written down (failed, Interrupted), or else it has begun or has
 * ended; 0: its supervisor has been asked, and is to be asked again in a moment. */
int attempt_withdraw(const char *dir, bool *ret_taken, struct err *err);
#define ATTEMPT_WITHDRAWN "it was taken back before it had begun"
/* Whether an attempt has ended without having begun, and nobody asked for that. */
bool attempt_never_began(const struct target_status *status);

/* A status of a final state. text is copied. */
void attempt_set_end(struct target_status *status, enum run_state state, int code, int sig,
	const char *origin, const char *reason, const char *text);

/* An attempt of this machine, as a handle names it. */
struct attempt_place {
	char machine[OS_ID_SIZE];
	char run_id[RUN_ID_SIZE];
	int attempt;
	bool foreign;      /* another machine's */
	char *dir;         /* of the attempt */
	char *submit_lock; /* of the run */
	int64_t limit;     /* bytes of the log that count; 0: all */
	int rank;          /* of several on this machine: whose log */
};
void attempt_place_done(struct attempt_place *place);
#define AUTO_ATTEMPT_PLACE AUTO(attempt_place_done)

/* Read the log and marks in place->dir (taken over), wherever they come from. */
void attempt_log_read(struct loop *loop, struct attempt_place *place,
	const struct target_log_request *request, char *token, struct target_call *call);

/* Offer the files below root to a sink. dir: of the attempt that writes them, whose results are
 * collected before; NULL: a fetch has filled root, nothing changes there. */
int attempt_files_fetch(struct loop *loop, const char *root, const char *dir,
	struct fetch_sink *sink, struct target_call *call, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets: where programs run (this machine, a cluster, SSH hosts) and what they can do. Shaped for
 * remote, slow and failing targets: every operation is started, runs on the loop, has a deadline,
 * and ends by one call of `done`; local ones do the same.
 *
 * A target gives each attempt an opaque handle (stored with it, enough to find it again from any
 * process) and each log position an opaque resume token.
 */
#ifndef DLRUN_CORE_TARGET_TARGET_H
#define DLRUN_CORE_TARGET_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/run.h"
#include "oci/image/image.h"
#include "oci/layout/layout.h"

/* Runs of many hosts name all of them, and a place in the log of each. */
enum { TARGET_TOKEN_SIZE = 8192, TARGET_HANDLE_SIZE = 8192 };

/* In a container: what all runs of the target share. */
#define TARGET_CACHES_DIR "/dlrun/caches"

struct spec;
struct target_study;

/* An attempt to start. Everything is borrowed until submit is done. */
struct target_job {
	const char *run_id;
	int attempt;
	const char *handle; /* chosen by target_ops.prepare, durable before submit */
	const struct spec *spec;
	const struct strv *env;         /* K=V: the spec's, and those that describe the code */
	const struct strv *default_env; /* K=V only where nothing is set there; may be NULL */
	const struct strv *secret_env;  /* as env, never written anywhere; may be NULL */
	struct layout *layout;
	const struct image *image;
	uint64_t tree_bytes;   /* of the unpacked code */
	bool followed;         /* its log is asked for next */
	const struct run *run; /* its record, which travels to clusters and hosts */
	/* "REPO@sha256:…" of an image in a registry, where the target takes images from one
	 * (needs_image); then layout and image are NULL. */
	const char *image_ref;
	/* There is no registry: image_ref is the base, as far as it is known, and the code is in
	 * the layers of the record's image, which layout has once it is to be sent. */
	bool code_apart;
	bool carries_over; /* that image has the results of the attempt before (carry_over.h) */
	/* Only the image is wanted, on as many nodes as the spec has, each of which could take the
	 * run: nothing is requested of them. */
	bool is_warming;
	const struct strv *only_nodes; /* with is_warming: some of these; none: any */
	/* For check and preview of the first member of a study: all of it; or NULL. */
	const struct target_study *study;
};

/* All members of a study (spec.study), which are started together. Borrowed until that is done. */
struct target_study {
	const struct target_job *first; /* the first one: all that they have in common */
	size_t n;
	const struct strv *commands; /* n: words, as those of first->spec */
	const struct strv *env;      /* n: K=V that differ, the same names in each; or NULL */
	/* n: objects, "params" of their records, for other machines; or NULL. */
	const struct json *const *params;
	const bool *left_out; /* n: members that are not to begin; NULL: none */
};

/* The state of an attempt as the target knows it now. */
struct target_status {
	enum run_state state;
	struct run_exit exit;
	int64_t started_ms, ended_ms; /* wall clock of the target; 0: not yet */
	/* Set if the attempt has ended and its results wait at the target until then for take_run
	 * (app/transfer/fetch.h); else 0. */
	int64_t results_until_ms;
	char *results_unsent; /* why results have not come to where they were to be sent; or NULL */
	char *results_lost;   /* why results that waited there are gone, as far as known; or NULL */
	bool cancelling;
	bool is_stranded;      /* it waits where it can never begin, until it is taken back */
	bool waits_for_code;   /* of ops->deliver */
	char *text;            /* one sentence: why it is in that state; or NULL */
	char *hint;            /* what to do about that; or NULL */
	struct json *evidence; /* a list of lines; or NULL */
	struct json *ranks;    /* ranks of dlrun/run/v1; or NULL */
	/* dlrun/observed/v1 (observe.h), with "resources" as in dlrun/run/v1: what the attempt was
	 * given; or NULL. */
	struct json *observed;
	/* If a place of several has taken the attempt: its handle from now on, and the members of
	 * the record's "target" that say so; or NULL. */
	char *handle;
	struct json *where;
	/* If the attempt failed: the attempt that the target began by itself after it; or NULL. */
	char *next_handle;
};
void target_status_done(struct target_status *status);

/* An operation in flight; embedded in the caller's own struct, zeroed before the start. done is
 * called exactly once, never from within the starting call; err belongs to the caller of done's
 * owner after it (err_move). target_call_cancel drops the operation without a call of done. */
struct target_call {
	int64_t deadline_ms; /* clock_ms(); 0: none */
	void (*done)(struct target_call *call, int status, struct err *err);
	void *private;
};

/* Log bytes as they come, in order. */
struct target_log_events {
	/* Raw bytes of the program of a rank (which changes at ends of lines, or where
	 * one does not end for long); time_ms of their arrival there (0: unknown). Return < 0 to
	 * stop; the bytes of that call count as not delivered. */
	int (*data)(void *ctx, int rank, const char *data, size_t len, int64_t time_ms,
		struct err *err);
	/* A reconnect, a wait: one sentence for people. */
	void (*notice)(void *ctx, const char *text);
	/* Output is missing at this place: one sentence. NULL: notice is called. */
	void (*gap)(void *ctx, const char *text);
	void *ctx;
};
void target_log_gap(const struct target_log_events *events, const char *text);
struct target_log_request {
	const char *token;  /* where to go on; NULL: from the start */
	int64_t tail_lines; /* -1: all */
	int64_t since_ms;   /* wall clock; 0: all */
	int rank;           /* -1: all */
	bool follow;        /* until the attempt ends */
	struct target_log_events events;
};

/* Code on its way to the nodes that wait for it. */
struct target_delivery_events {
	/* Several tries have failed for the same node, for this error, and it goes on trying; not
	 * set: that node has got on since. */
	void (*failing)(void *ctx, const struct err *error);
	void *ctx;
};

/* A command beside the program, in its directory and environment. After the program has ended it
 * runs in what is left of its tree, else E_RUN_ENDED or E_NODE_FAILED. */
struct target_exec_request {
	int rank;
	const struct strv *command; /* empty: a shell */
	int fds[3];                 /* stdin, stdout, stderr; -1: none. They stay the caller's */
	bool tty;                   /* fds are a terminal, and the command gets one */
	/* K=V of the run's secrets, for places that keep no values; or NULL. */
	const struct strv *secret_env;
	bool is_shell; /* the terminal of ad-hoc work, which outlives connections */
	/* Called when the bytes of the terminal go to another one, elsewhere: it is to be raw. Not
	 * called where the command has this very terminal. */
	void (*raw)(void *ctx);
	void (*size)(void *ctx, unsigned *ret_columns, unsigned *ret_rows);
	void *ctx;
};

/* The script of versions of data (runner/73-store.sh), outside of any run. */
struct target_store_request {
	const struct strv *words; /* VERB DIR ARGS… */
	size_t host;              /* of several, from 0 */
	int fds[3];               /* stdin, stdout, stderr; -1: none. They stay the caller's */
};

struct target;
struct fetch_sink;

/* Criteria for choosing a place of the target. */
struct target_requirements {
	const char *run_id;
	const struct spec *spec;
	const struct image *image; /* NULL: not known yet, or it stays in a registry */
	const char *base;          /* that the code lies on, as the user named it; or NULL */
	uint64_t tree_bytes;       /* of the unpacked code; 0: not known */
};

/* Whether a run has room at a target, as far as could be asked. */
struct target_room {
	bool is_now;    /* it could begin at once; else it would wait there */
	unsigned n_now; /* as often as that, by free GPUs; 0: not known */
	/* Names of those that could run one of its ranks if they were empty; none: not known. */
	struct strv nodes;
	char *text; /* what is free, or what it would wait for: a few words; or NULL */
};
void target_room_done(struct target_room *room);

struct target_ops {
	const char *kind; /* as the configuration and records name it */
	/* This machine: programs see its files, and their ports and GPUs are here. */
	bool is_here;
	/* Programs see the files of an image only, which comes from a registry instead of the
	 * layout here; what they write ends with them, except for volumes. */
	bool needs_image;
	/* A scheduler with queues and priorities gives programs the resources that they
	 * requested; without one a run that requests no GPUs gets those that are free. */
	bool has_scheduler;
	bool has_login;       /* hosts with a login */
	bool has_nodes;       /* a run may have several nodes */
	bool has_own_network; /* a program's ports are not those of its machine */
	/* Add the members that describe the target in a run's record, beside kind and name; may be
	 * NULL. */
	void (*describe)(const struct target *target, struct json *json);
	/* Check whether the job could run there, before anything is sent; job->image_ref is NULL
	 * yet. Notes (one sentence each) are for the user. May be NULL: then it could. */
	int (*check)(struct target *target, const struct target_job *job, struct strv *ret_notes,
		struct target_call *call, struct err *err);
	/* Start whatever takes long, because the target will be needed soon. Does not block; NULL:
	 * nothing takes long. */
	void (*warm)(struct target *target);
	/* Gather what prepare must know of the place, where check is not called before; blocks for
	 * a moment. Fails when the run cannot be there, or the target does not respond. Notes as of
	 * check. May be NULL. */
	int (*learn)(struct target *target, const struct target_requirements *requirements,
		struct strv *ret_notes, struct err *err);
	/* Ask whether there is room for the run now, without any effect there. *ret is filled when
	 * done. Fails by the reason why the run can never be there; ERR_NET: no answer. NULL: there
	 * is room. */
	int (*room)(struct target *target, const struct target_requirements *requirements,
		struct target_room *ret, struct target_call *call, struct err *err);
	/* Choose the handle of an attempt, by what is known of the place; no effect anywhere
	 * yet. */
	int (*prepare)(struct target *target, const char *run_id, int attempt,
		const struct spec *spec, char handle[static TARGET_HANDLE_SIZE], struct err *err);
	/* Idempotent by handle: a second submit of a started attempt is success. */
	int (*submit)(struct target *target, const struct target_job *job, struct target_call *call,
		struct err *err);
	/* Start the first attempts of all members of a study, for which prepare chose a handle
	 * each, durable before; none of them has several nodes. Idempotent as submit: what was
	 * started by a request that was lost is found. NULL: they are submitted one by one. */
	int (*submit_study)(struct target *target, const struct target_study *study,
		struct target_call *call, struct err *err);
	/* Send the code of an attempt with code_apart, that is more than the target stores, to each
	 * node that waits for it. Done when the attempt has ended. NULL: none is sent so. */
	int (*deliver)(struct target *target, const struct target_job *job,
		const struct target_delivery_events *events, struct target_call *call,
		struct err *err);
	/* *ret is filled when done. ERR_NET if the target is not reachable; an attempt that is not
	 * known there: state lost, or failed with reason Interrupted if it never began. */
	int (*state)(struct target *target, const char *handle, struct target_status *ret,
		struct target_call *call, struct err *err);
	/* token (TARGET_TOKEN_SIZE) is kept up to date while bytes are delivered. Done at the end
	 * of the log, or of the attempt with follow. */
	int (*logs)(struct target *target, const char *handle,
		const struct target_log_request *request, char *token, struct target_call *call,
		struct err *err);
	/* Done when the request is durable there, not when the program has ended. Idempotent. */
	int (*cancel)(struct target *target, const char *handle, struct target_call *call,
		struct err *err);
	/* Take back an attempt that has not begun. Set when done: true: it never began, nor will,
	 * and nothing of it is left that waits; false: it has begun or has ended, or may have, and
	 * goes on as if nobody had asked. No program that has begun is ended. Idempotent: once true
	 * it is true for ever. After an error it is one or the other, which the same question
	 * tells; until then it may wait without beginning. One that has not come there yet never
	 * begins when it comes. NULL: attempts stay where they are. */
	int (*withdraw)(struct target *target, const char *handle, bool *ret_taken,
		struct target_call *call, struct err *err);
	/* Remove what the attempt keeps there (its tree, spares); outputs and logs only with
	 * all. */
	int (*forget)(struct target *target, const char *handle, bool all, struct target_call *call,
		struct err *err);
	/* Copy into the local record what the target keeps only for a while: the log of an attempt
	 * that has ended, or (follow) until it has; if the call is cancelled, what has arrived is
	 * kept. Done at once when it is here already. NULL: nothing needs copying. */
	int (*keep)(struct target *target, const char *handle, bool follow,
		struct target_call *call, struct err *err);
	/* The following may be NULL: E_TARGET_UNSUPPORTED. */
	/* List what submit would create there, in order, without the values of secrets. The target
	 * checks whether it would accept that, if it supports this. Blocks. */
	int (*preview)(struct target *target, const struct target_job *job, struct json **ret,
		struct strv *ret_notes, struct err *err);
	/* Forward a connected socket to a port of the program of a rank. fd is the target's from
	 * now on, whatever is returned. Done when the connection has ended, with the reason if that
	 * was not orderly. Cancelled with target_call_cancel: the socket is reset. */
	int (*relay)(struct target *target, const char *handle, int rank, uint16_t port, int fd,
		struct target_call *call, struct err *err);
	/* A command beside the program; E_EXEC_NOT_FOUND, E_EXEC_NOT_EXECUTABLE. */
	int (*exec)(struct target *target, const char *handle,
		const struct target_exec_request *request, int *ret_status,
		struct target_call *call, struct err *err);
	/* Run the script of versions of data where programs see DIR. NULL: only a run sees it. */
	int (*store)(struct target *target, const struct target_store_request *request,
		int *ret_status, struct target_call *call, struct err *err);
	/* Sample what the programs of an attempt use now, from beside them; takes seconds. *ret
	 * (the caller's): dlrun/observed/v1, which state reports from then on; NULL: nothing is
	 * known. The member is NULL if state reports it by itself. */
	int (*sample)(struct target *target, const char *handle, struct json **ret,
		struct target_call *call, struct err *err);
	/* Offer the run's results to the sink (app/transfer/fetch.h). */
	int (*fetch)(struct target *target, const char *handle, struct fetch_sink *sink,
		struct target_call *call, struct err *err);
	/* The records of runs that live there, with the member "adopted" (app/runs/refresh.h): that
	 * of id, E_RUN_NOT_FOUND without one, or (id NULL) all of this user. */
	int (*adopt)(struct target *target, const char *id, struct run_list *ret,
		struct target_call *call, struct err *err);
	void (*free)(struct target *target);
};

struct target {
	const struct target_ops *ops;
	char *name;
	struct loop *loop;
	/* Report a forwarded connection that was lost or is back again: one sentence. Or NULL. */
	void (*notice)(void *ctx, const char *text);
	void *notice_ctx;
	/* Amount sent by the last submit, for a remote target that takes images from the layout
	 * here. */
	uint64_t sent_bytes;
	unsigned sent_layers;
	const struct strv *hosts; /* of store; NULL: there is one place */
	/* Without a registry: so many bytes of code are stored there, and more are delivered by
	 * ops->deliver; at most code_max, as check has found (0: any number). */
	uint64_t code_stored, code_max;
};

void target_free(struct target *target);
AUTO_POINTER(struct target, target_free)

/* Drop a call in flight without a call of done. */
void target_call_cancel(struct target_call *call);

/* Whether a call that began at begin_ms (clock_ms()) failed because the machine slept meanwhile:
 * its time was over at once, and no connection had a chance. It may begin anew. */
bool target_slept(const struct target *target, int64_t begin_ms, const struct err *err);

/* Blocking versions that run the loop: for commands that do one thing. */
/* Of a target that has check. */
int target_check_job(struct target *target, const struct target_job *job, int64_t timeout_ms,
	struct strv *ret_notes, struct err *err);
int target_submit(
	struct target *target, const struct target_job *job, int64_t timeout_ms, struct err *err);
/* Of a target that has submit_study. */
int target_submit_study(struct target *target, const struct target_study *study, int64_t timeout_ms,
	struct err *err);
/* Of a target that has deliver. */
int target_deliver(struct target *target, const struct target_job *job,
	const struct target_delivery_events *events, struct err *err);
int target_state(struct target *target, const char *handle, int64_t timeout_ms,
	struct target_status *ret, struct err *err);
/* Follows for as long as the attempt lives; *interrupted (may be NULL) ends it with ERR_CANCELED
 * within a second. */
int target_logs(struct target *target, const char *handle, const struct target_log_request *request,
	char token[static TARGET_TOKEN_SIZE], const volatile int *interrupted, struct err *err);
/* Interrupted in the same way. */
int target_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	const volatile int *interrupted, struct err *err);
/* Whether the target can tell now what became of an attempt that no process submits any more. */
bool target_knows(struct target *target, const char *handle, int64_t timeout_ms);
/* *ret_status: the command's exit code. Interrupted in the same way. */
int target_exec(struct target *target, const char *handle,
	const struct target_exec_request *request, int *ret_status, const volatile int *interrupted,
	struct err *err);
/* Of a target that has store; interrupted in the same way. */
int target_store(struct target *target, const struct target_store_request *request, int *ret_status,
	const volatile int *interrupted, struct err *err);
int target_adopt(struct target *target, const char *id, int64_t timeout_ms, struct run_list *ret,
	struct err *err);
int target_cancel(struct target *target, const char *handle, int64_t timeout_ms, struct err *err);
/* Of a target that has room. */
int target_room(struct target *target, const struct target_requirements *requirements,
	int64_t timeout_ms, struct target_room *ret, struct err *err);
int target_withdraw(struct target *target, const char *handle, int64_t timeout_ms, bool *ret_taken,
	struct err *err);
int target_forget(
	struct target *target, const char *handle, bool all, int64_t timeout_ms, struct err *err);

#endif

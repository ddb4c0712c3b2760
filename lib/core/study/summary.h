/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A study in a few lines: its members by the values of their axes, how many are in which state, and
 * what their main metric has come to. An engine on records.
 */
#ifndef DLRUN_CORE_STUDY_SUMMARY_H
#define DLRUN_CORE_STUDY_SUMMARY_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/vec.h"
#include "core/study/compare.h"
#include "core/record/group.h"
#include "core/record/run.h"

struct study_row {
	struct strv values; /* of the keys of the summary */
	size_t n;           /* members */
	struct group_counts counts;
	size_t n_values;         /* members that have the metric; 0: best and median are not set */
	double best, median;     /* of the best value of each member; without a goal, of the last */
	const struct run *first; /* member */
	const struct run *member; /* of the best value */
};

struct study_summary {
	struct strv keys; /* the axes whose values tell the rows apart */
	struct study_rows VEC_OF(struct study_row) rows; /* in the order of the members */
	struct study_row all;                            /* the whole study; no values */
	const char *metric; /* of the records; NULL: no member has one */
	enum compare_goal goal;
	int64_t left_ms; /* until the last member has ended, as far as those that have succeeded
			    tell; -1: not known, 0: all have ended */
};

/* runs: the members, in their order. keys: the axes (names in params); a study of many values has
 * rows for those of the first axis, and for each member where that tells no two apart. parallel: so
 * many run at once; 0: any number. now_ms: wall clock. Pointers of runs are borrowed. */
void study_summarise(const struct run_list *runs, const struct strv *keys, size_t parallel,
	int64_t now_ms, struct study_summary *ret);
void study_summary_done(struct study_summary *summary);
#define AUTO_STUDY_SUMMARY AUTO(study_summary_done)

#endif

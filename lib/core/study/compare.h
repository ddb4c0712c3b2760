/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns that tell runs apart: what differs in how they were submitted, and what came of it. An
 * engine on their records.
 */
#ifndef DLRUN_CORE_STUDY_COMPARE_H
#define DLRUN_CORE_STUDY_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/columns.h"
#include "core/record/run.h"

enum { COMPARE_RUNS_MAX = 1000 };

/* The values of a metric that are better, as far as its name tells. */
enum compare_goal { COMPARE_ANY, COMPARE_MIN, COMPARE_MAX };
/* By the words of the name: "val_loss" is better where it is lower, "top-1 accuracy" where it is
 * higher; a loss or an error comes before the others. */
enum compare_goal compare_goal_of(const char *metric);
/* The median of n values, at least one, none of them NaN. They are sorted then. */
double compare_median(double *values, size_t n);
/* The goal of a column metrics.NAME.min or metrics.NAME.max that compare_columns has made, whose
 * values are the best ones of the runs; COMPARE_ANY for each other column. */
enum compare_goal compare_column_goal(const struct column *column);

/* Members of the record whose names are titles enough, the more important ones first. */
enum compare_member { COMPARE_METRICS, COMPARE_PARAMS, COMPARE_ENV, COMPARE_OTHER };
enum compare_member compare_member_of(const struct column *column);
/* The name without that member: "lr" for params.lr, "loss min" for metrics.loss.min, "id" for id.
 * The caller frees. */
char *compare_title(const struct column *column);

/* The best of the values of a column; NaN: there is none, or its name does not tell what is better.
 * An array, one for each column; the caller frees. values: as by columns_get. */
double *compare_find_best(const struct columns *columns, const struct column_values *values);
bool compare_is_best(double best, const struct column_value *value);

/* Whether runs differ in the text of a member of an object of the record ("snapshot", "id"), as far
 * as they have one. ret: two of them; may be NULL. */
bool compare_differ(
	const struct run_list *runs, const char *member, const char *name, const struct run **ret);

struct compare_rules {
	const struct strv *metrics; /* names, or patterns of fnmatch(3); empty: all */
	size_t metrics_max;         /* without patterns: so many, the main one first; 0: all */
};

/* Columns in this order: the id; the state unless all have completed; parameters, variables (the
 * member "env" of a record, if it was added) and tags, and the command without its parameters,
 * where they differ; of each metric the last value and, where its name tells what is better, the
 * best; the duration, energy, target, base image and code, where they are known or differ.
 * *ret_excluded: metrics beyond metrics_max. E_USAGE for a pattern that no metric matches. */
int compare_columns(const struct run_list *runs, const struct compare_rules *rules,
	struct columns *ret, size_t *ret_excluded, struct err *err);

#endif

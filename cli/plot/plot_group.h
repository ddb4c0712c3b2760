/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Curves of runs that share the value of a parameter, as one: the median of their values at each
 * step, and the best of them where the name of the metric tells what is better (compare.h). A run
 * counts at the steps between its first and its last value; between two values it is on the
 * straight line. An engine.
 */
#ifndef DLRUN_CLI_PLOT_PLOT_GROUP_H
#define DLRUN_CLI_PLOT_PLOT_GROUP_H

#include <stddef.h>

#include "base/util/err.h"
#include "cli/plot/plot_data.h"
#include "core/study/compare.h"

enum { PLOT_GROUP_STEPS = 2000 }; /* of a curve; of more they are evenly apart */

/* A curve of a run. */
struct plot_member {
	const void *run;   /* by which runs are told apart */
	const char *value; /* of the parameter; NULL: it has none */
	struct series_curve curve;
};

struct plot_group {
	char *value; /* or NULL */
	char *dir;   /* the last name of the directory, where runs have several curves of the tag */
	char *tag;
	enum compare_goal goal; /* COMPARE_ANY: there is no best */
	size_t n_runs;
	struct series_point *median, *best; /* at the same steps; times are NaN */
	size_t *counts;                     /* of runs, at each step */
	size_t n;
};
struct plot_groups VEC_OF(struct plot_group);
void plot_groups_done(struct plot_groups *groups);
#define AUTO_PLOT_GROUPS AUTO(plot_groups_done)

/* Sorted by tag, directory and value, numbers by size. */
void plot_groups_make(const struct plot_member *members, size_t n, struct plot_groups *ret);

/* The same of the curves of runs, by the parameter or else the column of `ps` of that name.
 * E_USAGE where no run has it, with those that tell them apart. */
int plot_groups_of(
	const struct plot_curves *curves, const char *by, struct plot_groups *ret, struct err *err);

/* As plot_charts_make; lines have the best as the edge of a band. Points are borrowed from
 * groups. */
size_t plot_groups_charts(const struct plot_groups *groups, const char *by,
	const struct strv *globs, size_t max, struct plot_charts *ret);
/* A line for each step below "BY,runs,dir,tag,step,median,best". */
int plot_groups_csv(struct app *app, const struct plot_groups *groups, const char *by);
/* dlrun/plot-groups/v1: see dlrun-plot(1). */
int plot_groups_json(struct app *app, const struct plot_groups *groups, const char *by);

#endif

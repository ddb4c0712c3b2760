/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection of the curves to draw, their charts and the names of their lines. An engine.
 */
#ifndef DLRUN_CLI_PLOT_PLOT_PICK_H
#define DLRUN_CLI_PLOT_PLOT_PICK_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "cli/plot/chart.h"
#include "cli/plot/plot_data.h"
#include "cli/plot/plot_sources.h"

struct plot_chart {
	char *title;
	struct chart_lines lines;
	size_t left_out; /* lines beyond CHART_LINES_MAX */
};

struct plot_charts VEC_OF(struct plot_chart);

/* Curves whose tags one of the patterns matches (*, ? and […] match slashes, too), in the order of
 * the sources; no patterns: all. E_EVENTS_TAG for a pattern that matches none. */
int plot_pick(const struct plot_sources *sources, const struct strv *globs, struct plot_curves *ret,
	struct err *err);

/* A chart for each pattern, or without one for each tag, in order of their names. Lines are called
 * by what they do not have in common: run, directory, tag. Sub-runs that add_scalars makes of a
 * tag (loss_train below the directory that logs loss) are lines of its chart: "train". Makes at
 * most max charts; returns how many more there would be. */
size_t plot_charts_make(const struct plot_curves *curves, const struct strv *globs, size_t max,
	struct plot_charts *ret);
void plot_charts_done(struct plot_charts *charts);
/* The directory of a curve as people would call it; the caller frees. */
char *plot_dir_name(const struct series_curve *curve);

#endif

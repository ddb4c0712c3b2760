/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Curves as data: every value, as TensorBoard would tell it. Written piece by piece, because there
 * may be millions.
 */
#ifndef DLRUN_CLI_PLOT_PLOT_DATA_H
#define DLRUN_CLI_PLOT_PLOT_DATA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/plot/trace.h"
#include "core/record/run.h"
#include "events/series.h"

struct app;

/*
 * Sources of `dlrun plot`: runs and directories of event files, each with its curves.
 */
struct plot_source {
	char *name;      /* the id of a run, or the directory as it was named */
	char *label;     /* the same, of directories what they do not have in common */
	char *dir;       /* absolute: where the event files are */
	struct run *run; /* NULL: a directory */
	size_t mirrored; /* the run's number in the mirror */
	struct series *series;
};

struct plot_sources {
	struct plot_source *v; /* as vec.h has it */
	size_t n, cap;
	struct mirror *mirror; /* of runs; NULL: there are none */
};

/* Words are runs, studies and directories (a word with a slash, or one that is no run); none: the
 * newest run. Event files of runs that are elsewhere are brought here (mirror.h): blocks until each
 * run has been polled once. One of several that cannot be polled is warned of; with patient
 * (--watch) it is no failure either way: see plot_sources_error. */
int plot_sources_open(struct plot_sources *sources, struct app *app, const struct strv *words,
	bool patient, struct err *err);
/* Why a run could not be polled when that was tried last, and *ret_name, which one; NULL: all
 * could. */
const struct err *plot_sources_error(const struct plot_sources *sources, const char **ret_name);
/* Read new data. */
int plot_sources_poll(struct plot_sources *sources, bool *ret_new, struct err *err);
/* How runs go on now: states are refreshed. */
void plot_sources_refresh(struct plot_sources *sources, struct app *app);
/* Whether a run among them has not ended. */
bool plot_sources_go_on(const struct plot_sources *sources);
/* E_EVENTS_NONE where there is no curve at all; it tells what could be done about it. */
int plot_sources_check(const struct plot_sources *sources, struct err *err);
void plot_sources_done(struct plot_sources *sources);

struct plot_curve {
	const struct plot_source *source;
	struct series_curve curve;
};

struct plot_curves VEC_OF(struct plot_curve);
static inline void plot_curves_done(struct plot_curves *curves)
{
	vec_done(curves);
}

/* The shortest decimal that gives value again: "0.1", "NaN", "-Infinity". */
enum { PLOT_NUMBER = 32 };
const char *plot_number(double value, char out[static PLOT_NUMBER]);
/* Print what is in out if it is more than so much. Returns whether the stream takes more. */
enum { PLOT_PIECE = 64 << 10, PLOT_PIECE_MAX = 1 << 20 };
bool plot_data_flush(struct app *app, struct buf *out, size_t more_than);

/* A line for each value below "run,dir,tag,step,wall_time,value" (RFC 4180, lines end with LF). */
int plot_csv(struct app *app, const struct plot_curves *curves);
/* dlrun/plot/v1: see dlrun-plot(1). */
int plot_json(struct app *app, const struct plot_curves *curves);

/*
 * Selection of the curves to draw, their charts and the names of their lines. An engine.
 */
struct plot_chart {
	char *title;
	struct chart_lines lines;
	size_t excluded; /* lines beyond CHART_LINES_MAX */
};

struct plot_charts VEC_OF(struct plot_chart);

/* Whether a pattern matches a tag, which may have brackets of its own. */
bool plot_is_match(const char *glob, const char *tag);

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

#endif

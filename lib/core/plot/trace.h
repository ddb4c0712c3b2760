/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts of curves, before they are drawn as text (cli/plot/chart.h) or as SVG (svg.h): what of a
 * curve is shown, and axes. Engines.
 */
#ifndef DLRUN_CORE_PLOT_TRACE_H
#define DLRUN_CORE_PLOT_TRACE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"
#include "events/series.h"

/*
 * A curve as it is drawn: its points along one axis, smoothed, and reduced to columns, so that a
 * million points take one pass and no memory. An engine.
 */
enum trace_x {
	TRACE_STEP,
	TRACE_REL,  /* seconds since the curve's first point */
	TRACE_WALL, /* seconds since 1970 */
};

struct trace_view {
	enum trace_x x;
	double smooth; /* 0 to below 1: weight of the values before, as TensorBoard's slider has it
			* (a moving average without the bias of its start) */
	bool log;      /* values are their decimal logarithms; those not above 0 are left out */
};

struct trace_point {
	double x, y; /* y may be NaN or infinite */
	size_t at;   /* of the curve */
};

struct trace {
	const struct series_curve *curve;
	const struct trace_view *view;
	size_t at;
	double start_s;              /* of TRACE_REL; NaN: not known */
	double average, debias_left; /* of the values so far; 1 - their weight in it */
};

void trace_begin(
	struct trace *trace, const struct series_curve *curve, const struct trace_view *view);
/* false at the end. Points without a place (a time that is no number) are passed over. */
bool trace_next(struct trace *trace, struct trace_point *ret);

struct trace_column {
	double first, last, min, max; /* of its finite values, in their order */
	bool has;                     /* any */
	bool not_finite, seam;        /* a NaN or infinite value; a later start of the program */
};
/* n columns from x_min to x_max, zeroed by this. */
void trace_columns(const struct series_curve *curve, const struct trace_view *view, double x_min,
	double x_max, size_t n, struct trace_column *columns);

/*
 * Ticks of an axis where people expect them, and their texts. An engine.
 */
enum axis_kind {
	AXIS_NUMBER,
	AXIS_LOG,      /* positions are decimal logarithms */
	AXIS_STEP,     /* whole numbers: 500, 10k, 1.5M */
	AXIS_DURATION, /* seconds: 30s, 5m, 2h, 3d */
	AXIS_TIME,     /* seconds since 1970, as local time */
};

enum { AXIS_TICKS_MAX = 24, AXIS_TEXT = 24 };

struct axis_tick {
	double at;
	char text[AXIS_TEXT];
};

struct axis {
	double min, max; /* min < max; finite */
	struct axis_tick ticks[AXIS_TICKS_MAX];
	size_t n;
};

/* min and max are finite, min <= max; where they are equal the axis has some room around them.
 * About wanted ticks (1 to AXIS_TICKS_MAX), between min and max, rising. */
void axis_make(enum axis_kind kind, double min, double max, unsigned wanted, struct axis *ret);
/* Where at is along the axis, from 0 to 1; values beyond it are at its ends. */
double axis_part_of(const struct axis *axis, double at);

enum {
	CHART_LINES_MAX = 26, /* each has a letter */
	CHART_WIDTH_MIN = 20,
	CHART_WIDTH_MAX = 1000,
	CHART_HEIGHT_MIN = 2,
	CHART_HEIGHT_MAX = 200,
};

struct chart_line {
	char *label; /* foreign text */
	struct series_curve curve;
	/* The other side of a band beside the curve, at the same steps; n 0: there is none. */
	struct series_curve edge;
};

struct chart_lines VEC_OF(struct chart_line);

struct chart {
	const char *title; /* foreign text */
	const struct chart_line *lines;
	size_t n_lines; /* at most CHART_LINES_MAX */
	struct trace_view view;
	unsigned width, height; /* characters; height: of what is between the axes */
	/* Of text (cli/plot/chart.h). */
	bool utf8;
	bool color; /* lines are told apart by it; without: by letters along them */
};

/* The axes of a chart, with about so many ticks; raw: with room for values as they are, too, where
 * smoothed ones are drawn. false: there is nothing to draw. */
bool chart_axes(const struct chart *chart, bool raw, unsigned x_ticks, unsigned y_ticks,
	struct axis *x, struct axis *y);
/* "step", "time since start", "local time". */
const char *chart_x_name(const struct trace_view *view);
/* The newest value that is drawn, unsmoothed: "0.0312 @150"; "" without one. With an edge that of
 * it, too: "0.0312 @150, best 0.021". */
void chart_last(const struct chart_line *line, char *out, size_t size);
/* Values of it that are NaN or infinite. */
size_t chart_not_finite(const struct chart_line *line);

#endif

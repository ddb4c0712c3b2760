/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A curve as it is drawn: its points along one axis, smoothed, and reduced to columns, so that a
 * million points take one pass and no memory. An engine.
 */
#ifndef DLRUN_CLI_TERM_TRACE_H
#define DLRUN_CLI_TERM_TRACE_H

#include <stdbool.h>
#include <stddef.h>

#include "events/series.h"

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

/* Nothing yet: min above max. */
struct trace_range {
	double x_min, x_max, y_min, y_max;
};
#define TRACE_RANGE_EMPTY ((struct trace_range){HUGE_VAL, -HUGE_VAL, HUGE_VAL, -HUGE_VAL})
/* Make range as wide as the curve's finite values. Returns how many points it passed. */
size_t trace_widen(
	struct trace_range *range, const struct series_curve *curve, const struct trace_view *view);

struct trace_column {
	double first, last, min, max; /* of its finite values, in their order */
	bool has;                     /* any */
	bool not_finite, seam;        /* a NaN or infinite value; a later start of the program */
};
/* n columns from x_min to x_max, zeroed by this. */
void trace_columns(const struct series_curve *curve, const struct trace_view *view, double x_min,
	double x_max, size_t n, struct trace_column *columns);

#endif

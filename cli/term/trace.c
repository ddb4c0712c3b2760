/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/trace.h"

#include <math.h>
#include <string.h>

static double find_start(const struct series_curve *curve)
{
	for (size_t i = 0; i < curve->n; i++)
		if (isfinite(curve->points[i].wall_time_s))
			return curve->points[i].wall_time_s;
	return (double)NAN;
}

void trace_begin(
	struct trace *trace, const struct series_curve *curve, const struct trace_view *view)
{
	*trace = (struct trace){
		.curve = curve,
		.view = view,
		.start_s = view->x == TRACE_REL ? find_start(curve) : 0,
		.debias_left = 1,
	};
}

static double trace_x_of(const struct trace *trace, const struct series_point *point)
{
	if (trace->view->x == TRACE_STEP)
		return (double)point->step;
	return point->wall_time_s - trace->start_s;
}

static double smoothed(struct trace *trace, double value)
{
	double weight = trace->view->smooth;

	if (!isfinite(value) || weight <= 0)
		return value;
	trace->average = trace->average * weight + (1 - weight) * value;
	trace->debias_left *= weight;
	return trace->average / (1 - trace->debias_left);
}

bool trace_next(struct trace *trace, struct trace_point *ret)
{
	while (trace->at < trace->curve->n) {
		const struct series_point *point = &trace->curve->points[trace->at++];
		double x = trace_x_of(trace, point), y = smoothed(trace, point->value);

		if (!isfinite(x) || (trace->view->log && y <= 0))
			continue;
		ret->x = x;
		ret->y = trace->view->log ? log10(y) : y;
		ret->at = trace->at - 1;
		return true;
	}
	return false;
}

size_t trace_widen(
	struct trace_range *range, const struct series_curve *curve, const struct trace_view *view)
{
	struct trace trace;
	struct trace_point point;
	size_t n = 0;

	trace_begin(&trace, curve, view);
	for (; trace_next(&trace, &point); n++) {
		range->x_min = fmin(range->x_min, point.x);
		range->x_max = fmax(range->x_max, point.x);
		if (!isfinite(point.y))
			continue;
		range->y_min = fmin(range->y_min, point.y);
		range->y_max = fmax(range->y_max, point.y);
	}
	return n;
}

static void trace_add_value(struct trace_column *column, double y)
{
	if (!isfinite(y)) {
		column->not_finite = true;
		return;
	}
	if (!column->has)
		column->first = column->min = column->max = y;
	column->has = true;
	column->last = y;
	column->min = y < column->min ? y : column->min;
	column->max = y > column->max ? y : column->max;
}

void trace_columns(const struct series_curve *curve, const struct trace_view *view, double x_min,
	double x_max, size_t n, struct trace_column *columns)
{
	double scale = x_max > x_min ? (double)(n - 1) / (x_max - x_min) : 0;
	struct trace trace;
	struct trace_point point;
	size_t seam = 0;

	memset(columns, 0, n * sizeof(*columns));
	trace_begin(&trace, curve, view);
	while (trace_next(&trace, &point)) {
		double at = (point.x - x_min) * scale + 0.5;

		if (!(at >= 0 && at < (double)n))
			continue;
		trace_add_value(&columns[(size_t)at], point.y);
		while (seam < curve->n_seams &&
			curve->seams[seam] <= curve->points[point.at].step) {
			columns[(size_t)at].seam = true;
			seam++;
		}
	}
}

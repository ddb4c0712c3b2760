/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plot/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

/*
 * Curves
 */

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

/* Nothing yet: min above max. */
struct trace_range {
	double x_min, x_max, y_min, y_max;
};
#define TRACE_RANGE_EMPTY ((struct trace_range){HUGE_VAL, -HUGE_VAL, HUGE_VAL, -HUGE_VAL})

/* Make range as wide as the curve's finite values. Returns how many points it passed. */
static size_t trace_widen(
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

/*
 * Charts
 */

static enum axis_kind x_kind(const struct trace_view *view)
{
	return view->x == TRACE_STEP ? AXIS_STEP : view->x == TRACE_REL ? AXIS_DURATION : AXIS_TIME;
}

const char *chart_x_name(const struct trace_view *view)
{
	return view->x == TRACE_STEP  ? "step"
	       : view->x == TRACE_REL ? "time since start"
				      : "local time";
}

bool chart_axes(const struct chart *chart, bool raw, unsigned x_ticks, unsigned y_ticks,
	struct axis *x, struct axis *y)
{
	struct trace_range range = TRACE_RANGE_EMPTY;
	struct trace_view as_is = chart->view;

	as_is.smooth = 0;
	for (size_t i = 0; i < chart->n_lines; i++) {
		trace_widen(&range, &chart->lines[i].curve, &chart->view);
		trace_widen(&range, &chart->lines[i].edge, &chart->view);
		if (raw && chart->view.smooth > 0)
			trace_widen(&range, &chart->lines[i].curve, &as_is);
	}
	if (!(range.x_min <= range.x_max))
		return false;
	/* Nothing but NaN: their marks have a place still. */
	if (!(range.y_min <= range.y_max))
		range.y_min = range.y_max = 0;
	axis_make(x_kind(&chart->view), range.x_min, range.x_max, x_ticks, x);
	axis_make(chart->view.log ? AXIS_LOG : AXIS_NUMBER, range.y_min, range.y_max, y_ticks, y);
	return true;
}

void chart_last(const struct chart_line *line, char *out, size_t size)
{
	const struct series_curve *curve = &line->curve;

	*out = '\0';
	if (!curve->n)
		return;
	int len = snprintf(out, size, "%.4g @%lld", curve->points[curve->n - 1].value,
		(long long)curve->points[curve->n - 1].step);
	if (line->edge.n && len > 0 && (size_t)len < size)
		snprintf(out + len, size - (size_t)len, ", best %.4g",
			line->edge.points[line->edge.n - 1].value);
}

size_t chart_not_finite(const struct chart_line *line)
{
	size_t n = 0;

	for (size_t i = 0; i < line->curve.n; i++)
		n += isfinite(line->curve.points[i].value) ? 0 : 1;
	return n;
}

/*
 * Axes
 */

static const double MINUTE_S = 60, DAY_S = 86400;

/* 1, 2 or 5 times a power of ten, not below least. */
static double nice_step(double least)
{
	double power = pow(10, floor(log10(least)));

	for (size_t i = 0; i < 3; i++) {
		static const double factors[] = {1, 2, 5};
		if (power * factors[i] >= least * (1 - 1e-9))
			return power * factors[i];
	}
	return power * 10;
}

static double time_step(double least)
{
	static const double steps[] = {1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
		7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400};

	if (least < 1)
		return nice_step(least);
	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (steps[i] >= least)
			return steps[i];
	return nice_step(least / DAY_S) * DAY_S;
}

static double step_of(enum axis_kind kind, double least)
{
	double step;

	switch (kind) {
	case AXIS_STEP:
		step = nice_step(least);
		return step < 1 ? 1 : step;
	case AXIS_DURATION:
	case AXIS_TIME:
		return time_step(least);
	default:
		return nice_step(least);
	}
}

/*
 * Texts
 */

static int decimals_of(double step)
{
	return step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
}

static void number_text(double value, double step, double largest, char out[static AXIS_TEXT])
{
	int decimals = decimals_of(step);

	if (decimals <= 5 && largest < 1e6) {
		snprintf(out, AXIS_TEXT, "%.*f", decimals, value);
		return;
	}
	int digits = 1 + (int)floor(log10(largest)) - (int)floor(log10(step) + 1e-9);
	digits = digits < 1 ? 1 : digits > 15 ? 15 : digits;
	snprintf(out, AXIS_TEXT, "%.*g", digits, value);
}

static void step_text(double value, double largest, char out[static AXIS_TEXT])
{
	static const struct {
		double above, unit;
		const char *name;
	} units[] = {{1e13, 1e12, "T"}, {1e10, 1e9, "G"}, {1e7, 1e6, "M"}, {1e4, 1e3, "k"}};

	for (size_t i = 0; i < ARRAY_LEN(units) && value != 0; i++)
		if (largest >= units[i].above && largest < 1e17) {
			snprintf(out, AXIS_TEXT, "%.10g%s", value / units[i].unit, units[i].name);
			return;
		}
	snprintf(out, AXIS_TEXT, largest < 1e17 ? "%.0f" : "%.4g", value);
}

static void duration_tick(double value, double step, char out[static AXIS_TEXT])
{
	static const struct {
		double unit;
		const char *name;
	} units[] = {{86400, "d"}, {3600, "h"}, {60, "m"}};

	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (step >= units[i].unit && value != 0) {
			snprintf(out, AXIS_TEXT, "%.6g%s", value / units[i].unit, units[i].name);
			return;
		}
	if (step < 0.1 && fabs(value) < 10)
		snprintf(out, AXIS_TEXT, "%.*fms", decimals_of(step * 1000), value * 1000);
	else if (fabs(value) >= MINUTE_S && step >= 1)
		snprintf(out, AXIS_TEXT, "%.0fm%02.0f", floor(value / MINUTE_S),
			value - MINUTE_S * floor(value / MINUTE_S));
	else
		snprintf(out, AXIS_TEXT, "%.*fs", decimals_of(step), value);
}

static size_t format_time(double step, const struct tm *tm, char out[static AXIS_TEXT])
{
	if (step >= DAY_S)
		return strftime(out, AXIS_TEXT, "%m-%d", tm);
	if (step >= MINUTE_S)
		return strftime(out, AXIS_TEXT, "%H:%M", tm);
	return strftime(out, AXIS_TEXT, "%H:%M:%S", tm);
}

static void axis_time_text(double value, double step, char out[static AXIS_TEXT])
{
	time_t seconds = fabs(value) < 1e15 ? (time_t)floor(value) : 0;
	struct tm tm;

	if (!localtime_r(&seconds, &tm) || format_time(step, &tm, out) == 0)
		snprintf(out, AXIS_TEXT, "-");
}

static void tick_text(
	enum axis_kind kind, double value, double step, double largest, char out[static AXIS_TEXT])
{
	if (fabs(value) < step * 1e-6)
		value = 0;
	switch (kind) {
	case AXIS_STEP:
		step_text(value, largest, out);
		break;
	case AXIS_DURATION:
		duration_tick(value, step, out);
		break;
	case AXIS_TIME:
		axis_time_text(value, step, out);
		break;
	default:
		number_text(value, step, largest, out);
		break;
	}
}

/*
 * Ticks
 */

/* Seconds that local time is ahead, so that ticks stand at its hours and days. */
static double offset_of(enum axis_kind kind, double at)
{
	time_t seconds = fabs(at) < 1e15 ? (time_t)at : 0;
	struct tm tm;

	if (kind != AXIS_TIME || !localtime_r(&seconds, &tm))
		return 0;
	return (double)tm.tm_gmtoff;
}

static void add_linear(enum axis_kind kind, unsigned wanted, struct axis *axis)
{
	double step = step_of(kind, (axis->max - axis->min) / wanted);
	double offset = offset_of(kind, axis->min), slack = step * 1e-6;
	double first = ceil((axis->min + offset) / step - 1e-6);
	double largest = fmax(fabs(axis->min), fabs(axis->max));

	for (double i = 0; axis->n < AXIS_TICKS_MAX; i++) {
		double at = (first + i) * step - offset;

		if (!(at <= axis->max + slack) || (axis->n && at <= axis->ticks[axis->n - 1].at))
			return;
		axis->ticks[axis->n].at = at;
		tick_text(kind, at, step, largest, axis->ticks[axis->n++].text);
	}
}

static void add_log_tick(struct axis *axis, double factor, double power)
{
	double at = power + log10(factor), slack = (axis->max - axis->min) * 1e-6;

	if (at < axis->min - slack || at > axis->max + slack || axis->n == AXIS_TICKS_MAX)
		return;
	if (axis->n > 0 && at <= axis->ticks[axis->n - 1].at)
		return;
	axis->ticks[axis->n].at = at;
	snprintf(axis->ticks[axis->n++].text, AXIS_TEXT, "%.4g", pow(10, at));
}

/* Powers of ten, and 2 and 5 between them where there are few. */
static void axis_add_log(unsigned wanted, struct axis *axis)
{
	double decades = axis->max - axis->min, every = ceil(decades / wanted);
	double first = floor(axis->min);

	if (decades < 0.5) {
		double low = pow(10, axis->min), high = pow(10, axis->max);
		double step = nice_step((high - low) / wanted);

		double first_k = ceil(low / step);

		/* Above 2^53 the next whole number is the same one. */
		for (int i = 0; i <= AXIS_TICKS_MAX; i++)
			if ((first_k + i) * step <= high * (1 + 1e-9))
				add_log_tick(axis, (first_k + i) * step, 0);
		return;
	}
	first = every > 1 ? every * floor(first / every) : first;
	for (double power = first; power <= axis->max; power += every < 1 ? 1 : every) {
		add_log_tick(axis, 1, power);
		if (decades <= (double)wanted / 2) {
			add_log_tick(axis, 2, power);
			add_log_tick(axis, 5, power);
		}
	}
}

/* Room around a single value, so that it has a place. */
static void spread(enum axis_kind kind, struct axis *axis)
{
	double margin = kind == AXIS_NUMBER ? fabs(axis->min) * 0.1 : 0.5;

	if (axis->max - axis->min > fmax(fabs(axis->min), fabs(axis->max)) * 1e-12)
		return;
	margin = margin > 0 ? margin : 1;
	axis->max += fmax(margin, fabs(axis->max) * 1e-9);
	axis->min -= kind == AXIS_STEP || kind == AXIS_DURATION
			     ? 0
			     : fmax(margin, fabs(axis->min) * 1e-9);
}

/* Limit values: the difference of two at both ends of the range of a double would overflow. */
static double axis_within(double value)
{
	static const double most = 8e307;

	return value > most ? most : value < -most ? -most : value;
}

void axis_make(enum axis_kind kind, double min, double max, unsigned wanted, struct axis *ret)
{
	*ret = (struct axis){.min = axis_within(min), .max = axis_within(max)};
	spread(kind, ret);
	wanted = wanted < 1 ? 1 : wanted > AXIS_TICKS_MAX ? AXIS_TICKS_MAX : wanted;
	if (kind == AXIS_LOG)
		axis_add_log(wanted, ret);
	else
		add_linear(kind, wanted, ret);
}

double axis_part_of(const struct axis *axis, double at)
{
	double part = (at - axis->min) / (axis->max - axis->min);

	return part > 0 ? part < 1 ? part : 1 : 0;
}

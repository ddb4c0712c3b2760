/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/chart.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

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

enum {
	BRAILLE = 0x2800,
	X_TICK_WIDTH = 12, /* about */
	Y_TICK_HEIGHT = 3, /* of two at least */
	PLOT_MIN = 10,     /* columns that the plot keeps: else there are no texts beside it */
	LETTER_EVERY = 6,  /* characters */
	LABEL_COLUMNS = 60,
};

static const char *const colors[] = {"\033[36m", "\033[33m", "\033[35m", "\033[32m", "\033[34m",
	"\033[31m", "\033[96m", "\033[93m", "\033[95m", "\033[92m", "\033[94m", "\033[91m",
	"\033[37m", "\033[97m", "\033[90m", "\033[39m"};

struct cell {
	uint8_t dots; /* as in braille; of ASCII: not 0 */
	uint8_t line; /* that was drawn last */
	char letter;  /* instead of the dots, or 0 */
	uint8_t band; /* dots behind those of lines, */
	uint8_t of;   /* and the line that they belong to */
	bool seam;
};

struct canvas {
	const struct chart *chart;
	struct axis x, y;
	unsigned cols, rows;   /* characters */
	unsigned sub_x, sub_y; /* dots in each */
	unsigned label_width;  /* of the texts at the left; 0: none */
	struct cell *cells;
	char *marks; /* below each column: a line's number + 1 where a value is no number */
	struct trace_column *columns, *edges; /* of a line; of the edge of its band */
};

static const char *color_of(size_t line)
{
	return colors[line % ARRAY_LEN(colors)];
}

/*
 * Axes
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

static unsigned widest_text(const struct axis *axis)
{
	size_t widest = 0;

	for (size_t i = 0; i < axis->n; i++)
		if (strlen(axis->ticks[i].text) > widest)
			widest = strlen(axis->ticks[i].text);
	return (unsigned)widest;
}

/* The place of at among n. */
static unsigned chart_place_of(const struct axis *axis, double at, unsigned n)
{
	double place = (at - axis->min) / (axis->max - axis->min) * (n - 1) + 0.5;

	return place > 0 ? place < n ? (unsigned)place : n - 1 : 0;
}

/* false: nothing to draw. */
static bool canvas_init(struct canvas *canvas, const struct chart *chart)
{
	unsigned width = chart->width < CHART_WIDTH_MIN ? CHART_WIDTH_MIN : chart->width;

	*canvas = (struct canvas){.chart = chart,
		.rows = chart->height < CHART_HEIGHT_MIN ? CHART_HEIGHT_MIN : chart->height,
		.sub_x = chart->utf8 ? 2 : 1,
		.sub_y = chart->utf8 ? 4 : 1};
	unsigned y_ticks = canvas->rows * 2 / Y_TICK_HEIGHT;
	if (!chart_axes(chart, false, width / X_TICK_WIDTH, y_ticks < 2 ? 2 : y_ticks, &canvas->x,
		    &canvas->y))
		return false;
	canvas->label_width = widest_text(&canvas->y);
	if (canvas->label_width + 2 + PLOT_MIN > width)
		canvas->label_width = 0;
	canvas->cols = width - canvas->label_width - 2;
	canvas->cells = mem_alloc((size_t)canvas->cols * canvas->rows, sizeof(*canvas->cells));
	canvas->marks = mem_alloc(canvas->cols, 1);
	size_t n = (size_t)canvas->cols * canvas->sub_x;
	canvas->columns = mem_alloc(n, sizeof(*canvas->columns));
	canvas->edges = mem_alloc(n, sizeof(*canvas->edges));
	return true;
}

static void canvas_done(struct canvas *canvas)
{
	free(canvas->cells);
	free(canvas->marks);
	free(canvas->columns);
	free(canvas->edges);
}

/*
 * Lines
 */

static struct cell *cell_at(struct canvas *canvas, unsigned col, unsigned row)
{
	return &canvas->cells[(size_t)row * canvas->cols + col];
}

static uint8_t chart_bit(const struct canvas *canvas, unsigned x, unsigned y)
{
	static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

	return canvas->sub_y == 1 ? 1 : bits[y % 4][x % 2];
}

static void dot(struct canvas *canvas, unsigned x, unsigned y, size_t line)
{
	struct cell *cell = cell_at(canvas, x / canvas->sub_x, y / canvas->sub_y);

	cell->dots |= chart_bit(canvas, x, y);
	cell->line = (uint8_t)line;
}

/* Dots are counted from the top. */
static unsigned row_of(const struct canvas *canvas, double value)
{
	unsigned n = canvas->rows * canvas->sub_y;

	return n - 1 - chart_place_of(&canvas->y, value, n);
}

static void vertical(struct canvas *canvas, unsigned x, unsigned from, unsigned to, size_t line)
{
	unsigned top = from < to ? from : to, bottom = from < to ? to : from;

	for (unsigned y = top; y <= bottom; y++)
		dot(canvas, x, y, line);
}

/* Draw the line between the last value of one column and the first of a later one. */
static void connect(struct canvas *canvas, unsigned from_x, unsigned from_y, unsigned x, unsigned y,
	size_t line)
{
	double slope = ((double)y - (double)from_y) / (double)(x - from_x);
	unsigned before = from_y;

	for (unsigned i = 1; i <= x - from_x; i++) {
		unsigned here = (unsigned)((double)from_y + slope * i + 0.5);
		/* A step is drawn half in each of the columns. */
		unsigned middle = (before + here) / 2;

		vertical(canvas, from_x + i - 1, before, middle, line);
		vertical(canvas, from_x + i, middle, here, line);
		before = here;
	}
}

static void chart_add_mark(struct canvas *canvas, unsigned x, size_t line)
{
	canvas->marks[x / canvas->sub_x] = (char)(line + 1);
}

static void add_seam(struct canvas *canvas, unsigned x)
{
	for (unsigned row = 0; row < canvas->rows; row++)
		cell_at(canvas, x / canvas->sub_x, row)->seam = true;
}

/* Mark the line with its letter: at its end, and along it where there are no colours. */
static void add_letters(struct canvas *canvas, size_t line, unsigned last)
{
	const struct chart *chart = canvas->chart;
	unsigned every = LETTER_EVERY * (unsigned)chart->n_lines;
	unsigned next = LETTER_EVERY * (unsigned)line;

	if (chart->n_lines < 2)
		return;
	for (unsigned x = 0; x <= last; x++) {
		const struct trace_column *column = &canvas->columns[x];
		unsigned col = x / canvas->sub_x;

		if (!column->has || (x != last && (chart->color || col < next)))
			continue;
		struct cell *cell =
			cell_at(canvas, col, row_of(canvas, column->last) / canvas->sub_y);
		cell->letter = (char)('a' + line);
		cell->line = (uint8_t)line;
		next = col - col % every + LETTER_EVERY * (unsigned)line;
		next += next <= col ? every : 0;
	}
}

static void chart_draw_line(struct canvas *canvas, size_t line)
{
	const struct chart *chart = canvas->chart;
	unsigned n = canvas->cols * canvas->sub_x, last = 0;
	bool joined = false; /* to the column last */

	trace_columns(&chart->lines[line].curve, &chart->view, canvas->x.min, canvas->x.max, n,
		canvas->columns);
	for (unsigned x = 0; x < n; x++) {
		const struct trace_column *column = &canvas->columns[x];

		if (column->not_finite)
			chart_add_mark(canvas, x, line);
		if (column->seam)
			add_seam(canvas, x);
		if (!column->has) {
			joined &= !column->not_finite;
			continue;
		}
		if (joined)
			connect(canvas, last, row_of(canvas, canvas->columns[last].last), x,
				row_of(canvas, column->first), line);
		vertical(canvas, x, row_of(canvas, column->max), row_of(canvas, column->min), line);
		last = x;
		joined = true;
	}
	add_letters(canvas, line, last);
}

/*
 * Bands
 */

/* A column of a band, from row to row, one dot in four. */
static void chart_shade(struct canvas *canvas, unsigned x, unsigned from, unsigned to, size_t line)
{
	unsigned top = from < to ? from : to, bottom = from < to ? to : from;
	bool is_fine = canvas->sub_y > 1;

	for (unsigned y = top; y <= bottom; y++) {
		struct cell *cell = cell_at(canvas, x / canvas->sub_x, y / canvas->sub_y);

		if (is_fine && (x % 2 || y % 2))
			continue;
		if (cell->band && cell->of != line)
			cell->band = 0;
		cell->band |= chart_bit(canvas, x, y);
		cell->of = (uint8_t)line;
	}
}

/* Between two columns that have values, to lie between both edges there. */
static void chart_shade_between(struct canvas *canvas, unsigned from_x, unsigned x, size_t line)
{
	const struct trace_column *curve = canvas->columns, *edge = canvas->edges;

	for (unsigned i = from_x + 1; i <= x; i++) {
		double part = (double)(i - from_x) / (double)(x - from_x);
		double a = curve[from_x].last + part * (curve[x].last - curve[from_x].last);
		double b = edge[from_x].last + part * (edge[x].last - edge[from_x].last);

		chart_shade(canvas, i, row_of(canvas, a), row_of(canvas, b), line);
	}
}

static void chart_draw_band(struct canvas *canvas, size_t line)
{
	const struct chart_line *of = &canvas->chart->lines[line];
	unsigned n = canvas->cols * canvas->sub_x, last = n;

	if (!of->edge.n)
		return;
	trace_columns(
		&of->curve, &canvas->chart->view, canvas->x.min, canvas->x.max, n, canvas->columns);
	trace_columns(
		&of->edge, &canvas->chart->view, canvas->x.min, canvas->x.max, n, canvas->edges);
	for (unsigned x = 0; x < n; x++) {
		if (!canvas->columns[x].has || !canvas->edges[x].has)
			continue;
		if (last < n)
			chart_shade_between(canvas, last, x, line);
		else
			chart_shade(canvas, x, row_of(canvas, canvas->columns[x].last),
				row_of(canvas, canvas->edges[x].last), line);
		last = x;
	}
}

/*
 * Text
 */

/* A line of text in changing colours. */
struct painter {
	struct buf *out;
	const char *style; /* in force, or NULL */
};

static void paint(struct painter *painter, const char *style)
{
	if (style == painter->style)
		return;
	if (painter->style)
		buf_adds(painter->out, UI_OFF);
	if (style)
		buf_adds(painter->out, style);
	painter->style = style;
}

static void add_blank(const struct chart *chart, struct buf *out)
{
	if (chart->utf8)
		unicode_add(out, BRAILLE);
	else
		buf_addc(out, ' ');
}

static bool chart_is_blank(const struct cell *cell)
{
	return !cell->dots && !cell->letter && !cell->seam && !cell->band;
}

/* The sign of a cell with dots: of lines, or of a band behind them. */
static void chart_add_dots(
	const struct chart *chart, const struct cell *cell, struct painter *painter)
{
	if (chart->utf8)
		unicode_add(painter->out, BRAILLE + (cell->dots ? cell->dots : cell->band));
	else if (!cell->dots)
		buf_addc(painter->out, '.');
	else
		buf_addc(painter->out, chart->n_lines > 1 ? (char)('a' + cell->line) : '*');
}

static const char *chart_style_of(const struct cell *cell, const char *otherwise)
{
	if (cell->dots || cell->letter)
		return color_of(cell->line);
	if (cell->band)
		return color_of(cell->of);
	return cell->seam ? UI_DIM : otherwise;
}

static void chart_add_cell(
	const struct chart *chart, const struct cell *cell, struct painter *painter)
{
	paint(painter, chart_style_of(cell, painter->style));
	if (cell->letter)
		buf_addc(painter->out, cell->letter);
	else if (cell->dots || cell->band)
		chart_add_dots(chart, cell, painter);
	else if (cell->seam)
		buf_adds(painter->out, chart->utf8 ? "┊" : ":");
	else
		add_blank(chart, painter->out);
}

static void chart_add_row(struct canvas *canvas, unsigned row, struct buf *out)
{
	const struct chart *chart = canvas->chart;
	const struct cell *cells = cell_at(canvas, 0, row);
	struct painter painter = {.out = out};
	unsigned end = canvas->cols;

	while (end > 0 && chart_is_blank(&cells[end - 1]))
		end--;
	for (unsigned col = 0; col < end; col++)
		chart_add_cell(chart, &cells[col], &painter);
	paint(&painter, NULL);
	buf_addc(out, '\n');
}

/* Of several ticks in a row, take the one nearest to the end of the axis. */
static const char *y_text(const struct canvas *canvas, unsigned row)
{
	const char *text = NULL;

	for (size_t i = 0; i < canvas->y.n; i++)
		if (row_of(canvas, canvas->y.ticks[i].at) / canvas->sub_y == row &&
			(!text || row < canvas->rows / 2))
			text = canvas->y.ticks[i].text;
	return text;
}

static void chart_add_rows(struct canvas *canvas, struct buf *out)
{
	bool utf8 = canvas->chart->utf8;

	for (unsigned row = 0; row < canvas->rows; row++) {
		const char *text = y_text(canvas, row);

		if (canvas->label_width)
			buf_addf(out, "%*s ", (int)canvas->label_width, text ? text : "");
		buf_adds(out, text ? (utf8 ? "┤" : "+") : (utf8 ? "│" : "|"));
		chart_add_row(canvas, row, out);
	}
}

/* The tick that stands at a column, or NULL. */
static const struct axis_tick *x_tick(const struct canvas *canvas, unsigned col)
{
	for (size_t i = 0; i < canvas->x.n; i++)
		if (chart_place_of(&canvas->x, canvas->x.ticks[i].at, canvas->cols) == col)
			return &canvas->x.ticks[i];
	return NULL;
}

static void add_x_axis(const struct canvas *canvas, struct buf *out)
{
	bool utf8 = canvas->chart->utf8;
	struct painter painter = {.out = out};

	buf_addf(out, "%*s", (int)canvas->label_width + (canvas->label_width ? 1 : 0), "");
	buf_adds(out, utf8 ? "└" : "+");
	for (unsigned col = 0; col < canvas->cols; col++) {
		char mark = canvas->marks[col];

		paint(&painter, mark ? color_of((size_t)mark - 1) : NULL);
		if (mark)
			buf_adds(out, utf8 ? "×" : "x");
		else if (x_tick(canvas, col))
			buf_adds(out, utf8 ? "┬" : "+");
		else
			buf_adds(out, utf8 ? "─" : "-");
	}
	paint(&painter, NULL);
	buf_addc(out, '\n');
}

/* Where the name of the axis begins, at its end; the whole width where there is no room for it. */
static unsigned name_place(const struct canvas *canvas, const char *name)
{
	unsigned len = (unsigned)strlen(name);

	return canvas->cols >= len * 3 ? canvas->cols - len : canvas->cols;
}

/* Texts stand below their ticks where they have room. */
static void add_x_texts(const struct canvas *canvas, struct buf *out)
{
	unsigned left = canvas->label_width + (canvas->label_width ? 2 : 1), used = 0;
	const char *name = chart_x_name(&canvas->chart->view);
	unsigned name_at = left + name_place(canvas, name), end = left + canvas->cols;

	end = name_at < end ? name_at - 1 : end;
	for (unsigned col = 0; col < canvas->cols; col++) {
		const struct axis_tick *tick = x_tick(canvas, col);
		unsigned wide = tick ? (unsigned)strlen(tick->text) : 0;
		unsigned at = left + col > wide / 2 ? left + col - wide / 2 : 0;

		if (at + wide > end && name_at >= left + canvas->cols)
			at = end > wide ? end - wide : 0;
		if (!tick || (used && at <= used) || at + wide > end)
			continue;
		buf_addf(out, "%*s%s", (int)(at - used), "", tick->text);
		used = at + wide;
	}
	if (name_at < left + canvas->cols)
		buf_addf(out, "%*s%s", (int)(name_at - used), "", name);
	buf_addc(out, '\n');
}

/*
 * Legend
 */

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

static void add_label(const char *label, size_t columns, bool utf8, struct buf *out)
{
	AUTO_BUF struct buf clean;
	const struct app stream = {.utf8 = utf8, .plain = !utf8};

	buf_init(&clean, UI_TEXT_MAX);
	term_clean(label, strlen(label), true, &clean);
	ui_cut(&stream, clean.data, columns, out);
}

static void add_legend_line(const struct chart *chart, size_t i, size_t columns, struct buf *out)
{
	const struct chart_line *line = &chart->lines[i];
	size_t not_finite = chart_not_finite(line);
	char last[64];

	buf_addf(out, "  %s", color_of(i));
	if (chart->n_lines > 1)
		buf_addc(out, (char)('a' + i));
	else
		buf_adds(out, chart->utf8 ? "⠤" : "*");
	buf_adds(out, UI_OFF " ");
	size_t before = out->len;
	add_label(line->label, columns, chart->utf8, out);
	size_t wide = str_columns(out->data + before);
	chart_last(line, last, sizeof(last));
	buf_addf(out, "%*s%s", (int)(columns - wide + 2), "", last);
	if (not_finite)
		buf_addf(out, "  %s %zu not finite", chart->utf8 ? "×" : "x", not_finite);
	if (line->curve.n_seams)
		buf_addf(out, "  %s started again at step %lld", chart->utf8 ? "┊" : ":",
			(long long)line->curve.seams[line->curve.n_seams - 1]);
	buf_addc(out, '\n');
}

static void chart_add_legend(const struct chart *chart, struct buf *out)
{
	size_t most = chart->width / 2 < LABEL_COLUMNS ? chart->width / 2 : LABEL_COLUMNS;
	size_t columns = 0;

	for (size_t i = 0; i < chart->n_lines; i++) {
		AUTO_BUF struct buf label;

		buf_init(&label, UI_TEXT_MAX);
		add_label(chart->lines[i].label, most, chart->utf8, &label);
		size_t wide = str_columns(label.data);
		columns = wide > columns ? wide : columns;
	}
	for (size_t i = 0; i < chart->n_lines; i++)
		add_legend_line(chart, i, columns, out);
}

void chart_draw(const struct chart *chart, struct buf *out)
{
	struct canvas canvas;

	buf_adds(out, UI_BOLD);
	add_label(chart->title, chart->width, chart->utf8, out);
	buf_adds(out, UI_OFF "\n");
	if (!canvas_init(&canvas, chart)) {
		buf_adds(out, "  no values to draw\n");
		return;
	}
	for (size_t i = 0; i < chart->n_lines; i++)
		chart_draw_band(&canvas, i);
	for (size_t i = 0; i < chart->n_lines; i++)
		chart_draw_line(&canvas, i);
	chart_add_rows(&canvas, out);
	add_x_axis(&canvas, out);
	add_x_texts(&canvas, out);
	chart_add_legend(chart, out);
	canvas_done(&canvas);
}

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

		for (double k = ceil(low / step); k * step <= high * (1 + 1e-9); k++)
			add_log_tick(axis, k * step, 0);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/chart.h"

#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

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
	return (unsigned)(axis_part_of(axis, at) * (n - 1) + 0.5);
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

static void add_label(const char *label, size_t columns, bool utf8, struct buf *out)
{
	AUTO_BUF struct buf clean = buf_with(UI_TEXT_MAX);
	const struct app stream = {.utf8 = utf8, .plain = !utf8};

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
	size_t most = chart->width / 2 < LABEL_COLUMNS ? chart->width / 2 : LABEL_COLUMNS;
	size_t columns = 0;

	for (size_t i = 0; i < chart->n_lines; i++) {
		AUTO_BUF struct buf label = buf_with(UI_TEXT_MAX);

		add_label(chart->lines[i].label, most, chart->utf8, &label);
		size_t wide = str_columns(label.data);
		columns = wide > columns ? wide : columns;
	}
	for (size_t i = 0; i < chart->n_lines; i++)
		add_legend_line(chart, i, columns, out);
	canvas_done(&canvas);
}

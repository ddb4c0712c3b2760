/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plot/svg.h"

#include <math.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"

enum {
	LEFT = 64,
	RIGHT = 16,
	TOP = 36,    /* of a chart: its title */
	BOTTOM = 40, /* texts of the axis */
	LEGEND_LINE = 18,
	GAP = 12,
	X_TICK_WIDTH = 90,
	Y_TICK_HEIGHT = 44,
};

static const char *const colors[] = {"#0077bb", "#ee7733", "#009988", "#cc3311", "#aa3377",
	"#4477aa", "#997700", "#228833", "#ee3377", "#66ccee", "#882255", "#ddaa33", "#332288",
	"#44aa99", "#994455", "#555555"};

static const char head[] =
	"<style>text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:14px}"
	".g{stroke:#ddd}.a{stroke:#888}.s{stroke:#999;stroke-dasharray:3 4}"
	".b{fill-opacity:.15}.c{fill:none;stroke-width:1.5;stroke-linejoin:round}.r{stroke-opacity:.25}"
	".w{fill:#fff}</style>\n";

struct frame {
	const struct chart *chart;
	bool is_part; /* of a page, whose style sheet has the colours */
	struct axis x, y;
	unsigned top, width, height;          /* of the plot; its left is LEFT */
	struct trace_column *columns, *edges; /* of a line; of the edge of its band */
};

void svg_add_text(const char *text, struct buf *out)
{
	AUTO_BUF struct buf clean = buf_with(out->max);

	term_clean(text, strlen(text), true, &clean);
	for (const char *p = clean.data; *p; p++) {
		static const char special[] = "&<>\"'";
		static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
		const char *found = strchr(special, *p);

		if (found)
			buf_adds(out, names[found - special]);
		else
			buf_addc(out, *p);
	}
}

static double y_of(const struct frame *frame, double at)
{
	return frame->top + (1 - axis_part_of(&frame->y, at)) * frame->height;
}

static unsigned total_height(const struct chart *chart)
{
	return TOP + chart->height + BOTTOM + LEGEND_LINE * (unsigned)chart->n_lines + GAP;
}

/*
 * Axes
 */

void svg_add_axes(
	const struct axis *x, const struct axis *y, const struct svg_area *area, struct buf *out)
{
	unsigned left = area->left, right = left + area->width, bottom = area->top + area->height;

	for (size_t i = 0; i < y->n; i++) {
		double at = area->top + (1 - axis_part_of(y, y->ticks[i].at)) * area->height;

		buf_addf(out, "<path class=\"g\" d=\"M%u %.1fH%u\"/>", left, at, right);
		buf_addf(out, "<text x=\"%u\" y=\"%.1f\" text-anchor=\"end\">", left - 6, at + 4);
		svg_add_text(y->ticks[i].text, out);
		buf_adds(out, "</text>\n");
	}
	for (size_t i = 0; i < x->n; i++) {
		double at = left + axis_part_of(x, x->ticks[i].at) * area->width;

		buf_addf(out, "<path class=\"g\" d=\"M%.1f %uV%u\"/>", at, area->top, bottom);
		buf_addf(out, "<text x=\"%.1f\" y=\"%u\" text-anchor=\"middle\">", at, bottom + 16);
		svg_add_text(x->ticks[i].text, out);
		buf_adds(out, "</text>\n");
	}
	buf_addf(out, "<path class=\"a\" fill=\"none\" d=\"M%u %uV%uH%u\"/>\n", left, area->top,
		bottom, right);
}

/*
 * Lines
 */

/* The attributes of what is drawn for a line: its classes, and its colour. */
static void svg_add_color(
	const struct frame *frame, const char *class, size_t line, struct buf *out)
{
	size_t i = line % ARRAY_LEN(colors);

	if (frame->is_part)
		buf_addf(out, "class=\"%s%sk%zu\"", class, *class ? " " : "", i);
	else if (*class)
		buf_addf(out, "class=\"%s\" stroke=\"%s\"", class, colors[i]);
	else
		buf_addf(out, "stroke=\"%s\"", colors[i]);
}

/* The first, lowest, highest and last value of each pixel: what a line through all would show. */
static void svg_add_path(const struct frame *frame, const struct trace_column *columns,
	const char *class, size_t line, struct buf *out)
{
	bool joined = false;

	buf_adds(out, "<path ");
	svg_add_color(frame, class, line, out);
	buf_adds(out, " d=\"");
	for (unsigned i = 0; i <= frame->width; i++) {
		const struct trace_column *column = &columns[i];
		const double ys[] = {column->first, column->min, column->max, column->last};
		double before = (double)NAN;

		if (!column->has) {
			joined &= !column->not_finite;
			continue;
		}
		for (size_t k = 0; k < ARRAY_LEN(ys); k++) {
			double y = y_of(frame, ys[k]);

			if (y == before)
				continue;
			buf_addf(out, "%c%u %.1f", joined ? 'L' : 'M', LEFT + i, y);
			before = y;
			/* A single point is a line of no length, which round ends show. */
			if (!joined)
				buf_adds(out, "h0");
			joined = true;
		}
	}
	buf_adds(out, "\" stroke-linecap=\"round\"/>\n");
}

/* The band between the curve and its edge: along the one, and back along the other. */
static void svg_add_band(const struct frame *frame, size_t line, struct buf *out)
{
	const char *letter = "M";

	buf_addf(out, "<path class=\"b\" fill=\"%s\" d=\"", colors[line % ARRAY_LEN(colors)]);
	for (unsigned i = 0; i <= frame->width; i++)
		if (frame->columns[i].has && frame->edges[i].has) {
			buf_addf(out, "%s%u %.1f", letter, LEFT + i,
				y_of(frame, frame->columns[i].last));
			letter = "L";
		}
	for (unsigned i = frame->width + 1; i-- > 0;)
		if (frame->columns[i].has && frame->edges[i].has)
			buf_addf(out, "L%u %.1f", LEFT + i, y_of(frame, frame->edges[i].last));
	buf_adds(out, *letter == 'L' ? "Z\"/>\n" : "\"/>\n");
}

static void svg_add_line(const struct frame *frame, size_t line, struct buf *out)
{
	const struct series_curve *curve = &frame->chart->lines[line].curve;
	struct trace_view raw = frame->chart->view;
	size_t n = frame->width + 1;

	if (frame->is_part) {
		buf_adds(out, "<g><title>");
		svg_add_text(frame->chart->lines[line].label, out);
		buf_adds(out, "</title>");
	}
	if (raw.smooth > 0) {
		raw.smooth = 0;
		trace_columns(curve, &raw, frame->x.min, frame->x.max, n, frame->columns);
		svg_add_path(frame, frame->columns, "c r", line, out);
	}
	trace_columns(curve, &frame->chart->view, frame->x.min, frame->x.max, n, frame->columns);
	if (frame->chart->lines[line].edge.n) {
		trace_columns(&frame->chart->lines[line].edge, &frame->chart->view, frame->x.min,
			frame->x.max, n, frame->edges);
		svg_add_band(frame, line, out);
		svg_add_path(frame, frame->edges, "c r", line, out);
	}
	svg_add_path(frame, frame->columns, "c", line, out);
	unsigned bottom = frame->top + frame->height;

	for (unsigned i = 0; i <= frame->width; i++) {
		if (frame->columns[i].seam)
			buf_addf(out, "<path class=\"s\" d=\"M%u %uV%u\"/>\n", LEFT + i, frame->top,
				bottom);
		if (!frame->columns[i].not_finite)
			continue;
		buf_adds(out, "<path ");
		svg_add_color(frame, "", line, out);
		buf_addf(out, " d=\"M%u %ul8 8m0 -8l-8 8\"/>\n", LEFT + i - 4, bottom - 4);
	}
	if (frame->is_part)
		buf_adds(out, "</g>");
}

static void svg_add_legend(const struct frame *frame, struct buf *out)
{
	unsigned y = frame->top + frame->height + BOTTOM;

	for (size_t i = 0; i < frame->chart->n_lines; i++, y += LEGEND_LINE) {
		const struct chart_line *line = &frame->chart->lines[i];
		size_t not_finite = chart_not_finite(line);
		char last[64];

		chart_last(line, last, sizeof(last));
		buf_adds(out, "<path stroke-width=\"3\" ");
		svg_add_color(frame, "", i, out);
		buf_addf(out, " d=\"M%d %uh20\"/>", LEFT, y + 6);
		buf_addf(out, "<text x=\"%d\" y=\"%u\">", LEFT + 28, y + 10);
		svg_add_text(line->label, out);
		buf_addf(out, "%s%s", *line->label ? " · " : "", last);
		if (not_finite)
			buf_addf(out, " · × %zu not finite", not_finite);
		buf_adds(out, "</text>\n");
	}
}

static void svg_add_chart(const struct chart *chart, bool is_part, unsigned top, struct buf *out)
{
	struct frame frame = {
		.chart = chart, .is_part = is_part, .top = top + TOP, .height = chart->height};

	frame.width = chart->width - LEFT - RIGHT;
	buf_addf(out, "<text class=\"t\" x=\"%d\" y=\"%u\">", LEFT, top + 22);
	svg_add_text(chart->title, out);
	buf_adds(out, "</text>\n");
	if (!chart_axes(chart, true, frame.width / X_TICK_WIDTH, frame.height / Y_TICK_HEIGHT + 1,
		    &frame.x, &frame.y)) {
		buf_addf(out, "<text x=\"%d\" y=\"%u\">no values to draw</text>\n", LEFT,
			frame.top + 16);
		return;
	}
	frame.columns = mem_alloc(frame.width + 1, sizeof(*frame.columns));
	frame.edges = mem_alloc(frame.width + 1, sizeof(*frame.edges));
	const struct svg_area area = {LEFT, frame.top, frame.width, frame.height};
	svg_add_axes(&frame.x, &frame.y, &area, out);
	buf_addf(out, "<text x=\"%u\" y=\"%u\" text-anchor=\"end\">%s</text>\n", LEFT + frame.width,
		frame.top + frame.height + 32, chart_x_name(&chart->view));
	/* With smoothing what is behind may stand out of the frame. */
	buf_addf(out, "<svg x=\"0\" y=\"%u\" width=\"%u\" height=\"%u\" viewBox=\"0 %u %u %u\">\n",
		frame.top - 2, chart->width, frame.height + 8, frame.top - 2, chart->width,
		frame.height + 8);
	for (size_t i = 0; i < chart->n_lines; i++)
		svg_add_line(&frame, i, out);
	buf_adds(out, "</svg>\n");
	svg_add_legend(&frame, out);
	free(frame.columns);
	free(frame.edges);
}

void svg_draw(const struct chart *charts, size_t n, struct buf *out)
{
	unsigned width = n ? charts[0].width : SVG_WIDTH, height = 0;

	for (size_t i = 0; i < n; i++)
		height += total_height(&charts[i]);
	buf_addf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" "
		"viewBox=\"0 0 %u %u\">\n",
		width, height, width, height);
	buf_adds(out, head);
	buf_addf(out, "<rect class=\"w\" width=\"%u\" height=\"%u\"/>\n", width, height);
	for (size_t i = 0, top = 0; i < n; top += total_height(&charts[i++]))
		svg_add_chart(&charts[i], false, (unsigned)top, out);
	buf_adds(out, "</svg>\n");
}

void svg_draw_part(const struct chart *chart, struct buf *out)
{
	buf_adds(out, "<svg class=\"plot\" role=\"img\" aria-label=\"");
	svg_add_text(chart->title, out);
	buf_addf(out, "\" viewBox=\"0 0 %u %u\">\n", chart->width, total_height(chart));
	svg_add_chart(chart, true, 0, out);
	buf_adds(out, "</svg>\n");
}

enum { HEIGHTS = 8 };

struct bucket {
	double sum;
	size_t n;
};

/* Whether a metric of that name may be that curve. */
static bool spark_is_called(const struct series_curve *curve, const char *name)
{
	const char *last = fs_basename(curve->dir);
	AUTO_FREE char *in_last = mem_printf("%s/%s", last, curve->tag);
	AUTO_FREE char *in_nested =
		curve->nested ? mem_printf("%s/%s", curve->nested, curve->tag) : NULL;

	return str_eq(curve->tag, name) || str_eq(in_last, name) || str_eq(in_nested, name);
}

bool spark_find(const struct series *series, const char *name, struct series_curve *ret)
{
	double newest_s = -INFINITY;
	bool found = false;

	for (size_t i = 0; i < series_count(series); i++) {
		struct series_curve curve;

		series_get(series, i, &curve);
		if (curve.n == 0 || !spark_is_called(&curve, name) ||
			(found && !(curve.points[curve.n - 1].wall_time_s > newest_s)))
			continue;
		*ret = curve;
		newest_s = curve.points[curve.n - 1].wall_time_s;
		found = true;
	}
	return found;
}

/* By steps; returns how many values are finite. */
static size_t spark_fill(const struct series_point *points, size_t n, struct bucket *buckets)
{
	double first = (double)points[0].step, last = (double)points[n - 1].step;
	size_t finite = 0;

	for (size_t i = 0; i < n; i++) {
		double part = last > first ? ((double)points[i].step - first) / (last - first)
					   : (double)i / (double)n;
		size_t at = (size_t)(part * SPARK_WIDTH);
		struct bucket *bucket = &buckets[at < SPARK_WIDTH ? at : SPARK_WIDTH - 1];

		if (!isfinite(points[i].value))
			continue;
		bucket->sum += points[i].value;
		bucket->n++;
		finite++;
	}
	return finite;
}

static void add_block(double part, struct buf *out)
{
	int height = (int)(part * HEIGHTS);

	if (!(part > 0))
		height = 0;
	else if (height >= HEIGHTS)
		height = HEIGHTS - 1;
	/* U+2581 to U+2588 */
	buf_addf(out, "\xe2\x96%c", 0x81 + height);
}

bool spark_add(const struct series_point *points, size_t n, struct buf *out)
{
	struct bucket buckets[SPARK_WIDTH] = {0};
	double low = INFINITY, high = -INFINITY;

	if (n < 2 || spark_fill(points, n, buckets) < 2)
		return false;
	for (size_t i = 0; i < SPARK_WIDTH; i++) {
		double mean = buckets[i].n ? buckets[i].sum / (double)buckets[i].n : NAN;
		low = fmin(low, mean);
		high = fmax(high, mean);
	}
	/* Few points: as many blocks as there are. */
	for (size_t i = 0; i < SPARK_WIDTH; i++) {
		if (buckets[i].n)
			add_block(
				(buckets[i].sum / (double)buckets[i].n - low) / (high - low), out);
		else if (n >= SPARK_WIDTH)
			buf_addc(out, ' ');
	}
	return true;
}

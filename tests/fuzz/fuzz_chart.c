/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts of any points: text of the width that was asked for, in UTF-8 or ASCII alone; an SVG
 * without markup that is not its own; and axes whose ticks rise within them.
 */
#include <math.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "cli/plot/chart.h"
#include "core/plot/svg.h"
#include "cli/term/ui.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { POINT = 24, HEAD = 4, LINES_MAX = 3, OUT_MAX = 16 << 20, LEGEND_EXTRA = 200 };

static double double_of(const uint8_t *p)
{
	uint64_t bits = get_le64(p);
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static void check_axis(const struct axis *axis)
{
	BUG_ON(!(axis->min < axis->max) || !isfinite(axis->max - axis->min));
	for (size_t i = 0; i < axis->n; i++) {
		BUG_ON(!(axis->ticks[i].at >= axis->min - (axis->max - axis->min) * 1e-3));
		BUG_ON(!(axis->ticks[i].at <= axis->max + (axis->max - axis->min) * 1e-3));
		BUG_ON(i > 0 && !(axis->ticks[i].at > axis->ticks[i - 1].at));
		BUG_ON(memchr(axis->ticks[i].text, 0, AXIS_TEXT) == NULL);
	}
}

/* Lines of the plot are as wide as the chart; those of the text below may be a little wider. */
static void check_text(const struct chart *chart, const struct buf *out)
{
	AUTO_BUF struct buf plain;

	buf_init(&plain, OUT_MAX);
	term_clean(out->data, out->len, false, &plain);
	BUG_ON(!str_is_utf8(out->data, out->len) || out->full);
	for (size_t i = 0; !chart->utf8 && i < out->len; i++)
		BUG_ON((uint8_t)out->data[i] >= 0x80);
	for (const char *line = plain.data; *line;) {
		size_t len = strcspn(line, "\n");
		AUTO_FREE char *copy = mem_strndup(line, len);

		BUG_ON(str_columns(copy) > chart->width + (copy[0] == ' ' ? LEGEND_EXTRA : 0));
		line += len + (line[len] == '\n');
	}
}

/* Only the text below a chart may tell of values that are no numbers: "nan @3". */
static void check_numbers(const char *svg, const char *name)
{
	for (const char *p = svg; (p = strstr(p, name)); p++)
		BUG_ON(strncmp(p + strlen(name), " @", 2) != 0);
}

static void check_chart(struct chart *chart)
{
	AUTO_BUF struct buf text, svg;
	struct axis x, y;

	buf_init(&text, OUT_MAX);
	buf_init(&svg, OUT_MAX);
	if (chart_axes(chart, true, 1 + chart->width / 12, 1 + chart->height / 3, &x, &y)) {
		check_axis(&x);
		check_axis(&y);
	}
	chart_draw(chart, &text);
	check_text(chart, &text);
	chart->width += 200;
	svg_draw(chart, 1, &svg);
	BUG_ON(!str_is_utf8(svg.data, svg.len) || svg.full || strstr(svg.data, "<script"));
	check_numbers(svg.data, "nan");
	check_numbers(svg.data, "inf");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct chart_line lines[LINES_MAX];
	int64_t seam;

	if (size < HEAD + POINT)
		return 0;
	size_t n = (size - HEAD) / POINT, n_lines = 1 + data[0] % LINES_MAX;
	struct series_point *points = mem_alloc(n, sizeof(*points));
	for (size_t i = 0; i < n; i++) {
		const uint8_t *p = data + HEAD + i * POINT;
		points[i] = (struct series_point){
			(int64_t)get_le64(p), double_of(p + 8), double_of(p + 16)};
	}
	seam = points[n / 2].step;
	for (size_t i = 0; i < n_lines; i++)
		lines[i] = (struct chart_line){.label = i ? (char *)"<script>" : (char *)"a",
			.curve = {.dir = "",
				.tag = "t",
				.points = points + i * n / n_lines,
				.n = n / n_lines,
				.seams = &seam,
				.n_seams = data[0] >> 7}};
	struct chart chart = {.title = "t",
		.lines = lines,
		.n_lines = n_lines,
		.view = {.x = data[1] % 3, .log = data[1] & 8, .smooth = data[1] & 16 ? 0.6 : 0},
		.width = CHART_WIDTH_MIN + data[2] % 100,
		.height = CHART_HEIGHT_MIN + data[3] % 30,
		.utf8 = data[1] & 32,
		.color = data[1] & 64};
	check_chart(&chart);
	free(points);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plot/points.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/plot/svg.h"

enum {
	POINTS_WIDTH = 560,
	POINTS_HEIGHT = 320,
	POINTS_LEFT = 70,
	POINTS_RIGHT = 20,
	POINTS_TOP = 20,
	POINTS_BOTTOM = 46,
	POINTS_TICKS = 5,
};

/* From there on values are better told apart by their logarithms. */
static const double POINTS_FAR = 100;

/*
 * Axes
 */

/* Copy as much of word as a tick holds, whole characters. */
static void points_set_tick(struct axis_tick *tick, double at, const char *word)
{
	size_t n = 0;

	while (word[n]) {
		size_t len = str_utf8_len(word + n, strlen(word + n));
		len = len ? len : 1;
		if (n + len >= sizeof(tick->text))
			break;
		n += len;
	}
	tick->at = at;
	memcpy(tick->text, word, n);
	tick->text[n] = '\0';
}

static bool points_make_words(struct points_axis *axis)
{
	AUTO_STRV struct strv words = {0};

	for (size_t i = 0; i < axis->n; i++) {
		const char *text = axis->values[i].text;

		if (text && strv_find(&words, text) < 0)
			strv_add(&words, text);
		if (words.n > POINTS_WORDS_MAX)
			return false;
	}
	if (words.n < 2)
		return false;
	strv_sort(&words);
	axis->axis = (struct axis){.min = -0.5, .max = (double)words.n - 0.5, .n = words.n};
	for (size_t i = 0; i < words.n; i++)
		points_set_tick(&axis->axis.ticks[i], (double)i, words.v[i]);
	for (size_t i = 0; i < axis->n; i++)
		if (axis->values[i].text)
			axis->at[i] = (double)strv_find(&words, axis->values[i].text);
	return true;
}

static bool points_make_numbers(struct points_axis *axis)
{
	double min = INFINITY, max = -INFINITY;

	for (size_t i = 0; i < axis->n; i++)
		if (axis->values[i].text && isfinite(axis->values[i].number)) {
			min = fmin(min, axis->values[i].number);
			max = fmax(max, axis->values[i].number);
		}
	if (!(min < max))
		return false;
	bool is_log = min > 0 && max / min >= POINTS_FAR;
	for (size_t i = 0; i < axis->n; i++)
		if (axis->values[i].text && isfinite(axis->values[i].number))
			axis->at[i] =
				is_log ? log10(axis->values[i].number) : axis->values[i].number;
	axis_make(is_log ? AXIS_LOG : AXIS_NUMBER, is_log ? log10(min) : min,
		is_log ? log10(max) : max, POINTS_TICKS, &axis->axis);
	return true;
}

bool points_axis_make(
	const char *title, const struct points_value *values, size_t n, struct points_axis *ret)
{
	bool are_numbers = true;

	*ret = (struct points_axis){
		.title = title, .values = values, .n = n, .at = mem_alloc(n + 1, sizeof(*ret->at))};
	for (size_t i = 0; i < n; i++) {
		ret->at[i] = (double)NAN;
		are_numbers &= !values[i].text || values[i].is_number;
	}
	if (are_numbers ? points_make_numbers(ret) : points_make_words(ret))
		return true;
	points_axis_done(ret);
	return false;
}

void points_axis_done(struct points_axis *axis)
{
	if (!axis)
		return;
	free(TAKE(axis->at));
}

/*
 * Points
 */

static double points_y_of(const struct points_axis *axis, double at)
{
	return POINTS_TOP + (1 - axis_part_of(&axis->axis, at)) * POINTS_HEIGHT;
}

/* In their order: by the value of the colour, so that the better ones are on top. */
struct points_ordered {
	size_t i;
	double key;
};

static int points_compare(const void *a_ptr, const void *b_ptr)
{
	const struct points_ordered *a = a_ptr, *b = b_ptr;

	if (a->key < b->key || a->key > b->key)
		return a->key < b->key ? -1 : 1;
	return a->i < b->i ? -1 : a->i > b->i;
}

static struct points_ordered *points_order(const struct points *points)
{
	struct points_ordered *order = mem_alloc(points->n + 1, sizeof(*order));

	for (size_t i = 0; i < points->n; i++) {
		double at = points->shade ? points->shade->at[i] : (double)NAN;

		order[i] = (struct points_ordered){i, isnan(at)               ? -INFINITY
						      : points->is_low_better ? -at
									      : at};
	}
	qsort(order, points->n, sizeof(*order), points_compare);
	return order;
}

/* The beginning of a link whose content is drawn; its class tells the colour. */
static void points_begin_link(const struct points *points, size_t i, struct buf *out)
{
	double at = points->shade ? points->shade->at[i] : (double)NAN;
	char shade[16] = "v";

	if (!isnan(at)) {
		int step = (int)(axis_part_of(&points->shade->axis, at) * POINTS_SHADES);
		snprintf(shade, sizeof(shade), "v%d",
			step < POINTS_SHADES ? step : POINTS_SHADES - 1);
	}
	buf_addf(out, "<a class=\"%s\" href=\"", shade);
	svg_add_text(points->urls[i], out);
	buf_adds(out, "\"><title>");
	svg_add_text(points->names[i], out);
}

static void points_add_value(const struct points_axis *axis, size_t i, struct buf *out)
{
	if (!axis || !axis->values[i].text)
		return;
	buf_adds(out, "\n");
	svg_add_text(axis->title, out);
	buf_adds(out, " ");
	svg_add_text(axis->values[i].text, out);
}

static void points_begin(const char *what, unsigned width, unsigned height, struct buf *out)
{
	buf_addf(out,
		"<svg class=\"plot\" role=\"group\" aria-label=\"%s\" viewBox=\"0 0 %u %u\">\n",
		what, width, height);
}

static void points_add_label(double x, double y, const char *anchor, const char *class,
	const char *text, struct buf *out)
{
	buf_addf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y,
		anchor);
	svg_add_text(text, out);
	buf_adds(out, "</text>\n");
}

void points_scatter(const struct points *points, const struct points_axis *x,
	const struct points_axis *y, struct buf *out)
{
	static const struct svg_area area = {POINTS_LEFT, POINTS_TOP, POINTS_WIDTH, POINTS_HEIGHT};
	AUTO_FREE struct points_ordered *order = points_order(points);

	points_begin("Scatter", POINTS_LEFT + POINTS_WIDTH + POINTS_RIGHT,
		POINTS_TOP + POINTS_HEIGHT + POINTS_BOTTOM, out);
	svg_add_axes(&x->axis, &y->axis, &area, out);
	points_add_label(POINTS_LEFT, POINTS_TOP - 6, "start", "t", y->title, out);
	points_add_label(POINTS_LEFT + POINTS_WIDTH, POINTS_TOP + POINTS_HEIGHT + 36, "end", "t",
		x->title, out);
	for (size_t k = 0; k < points->n; k++) {
		size_t i = order[k].i;

		if (isnan(x->at[i]) || isnan(y->at[i]))
			continue;
		points_begin_link(points, i, out);
		points_add_value(x, i, out);
		points_add_value(y, i, out);
		if (points->shade && points->shade != x && points->shade != y)
			points_add_value(points->shade, i, out);
		buf_addf(out, "</title><circle class=\"p\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/></a>\n",
			POINTS_LEFT + axis_part_of(&x->axis, x->at[i]) * POINTS_WIDTH,
			points_y_of(y, y->at[i]));
	}
	buf_adds(out, "</svg>\n");
}

/*
 * Parallel coordinates
 */

static double points_x_at(size_t axis, size_t n)
{
	return POINTS_LEFT + (double)axis * POINTS_WIDTH / (double)(n > 1 ? n - 1 : 1);
}

static void points_add_line(const struct points *points, const struct points_axis *axes, size_t n,
	size_t i, struct buf *out)
{
	bool joined = false;

	points_begin_link(points, i, out);
	for (size_t k = 0; k < n; k++)
		points_add_value(&axes[k], i, out);
	buf_adds(out, "</title><path class=\"c\" d=\"");
	for (size_t k = 0; k < n; k++) {
		if (isnan(axes[k].at[i])) {
			joined = false;
			continue;
		}
		buf_addf(out, "%c%.0f %.1f", joined ? 'L' : 'M', points_x_at(k, n),
			points_y_of(&axes[k], axes[k].at[i]));
		joined = true;
	}
	buf_adds(out, "\"/></a>\n");
}

void points_parallel(
	const struct points *points, const struct points_axis *axes, size_t n, struct buf *out)
{
	AUTO_FREE struct points_ordered *order = points_order(points);
	unsigned bottom = POINTS_TOP + POINTS_HEIGHT;

	points_begin("Parallel coordinates", POINTS_LEFT * 2 + POINTS_WIDTH, bottom + POINTS_BOTTOM,
		out);
	for (size_t k = 0; k < points->n; k++)
		points_add_line(points, axes, n, order[k].i, out);
	for (size_t k = 0; k < n; k++) {
		double x = points_x_at(k, n);

		buf_addf(out, "<path class=\"a\" d=\"M%.0f %dV%u\"/>", x, POINTS_TOP, bottom);
		for (size_t t = 0; t < axes[k].axis.n; t++)
			points_add_label(x - 5, points_y_of(&axes[k], axes[k].axis.ticks[t].at) + 4,
				"end", "h", axes[k].axis.ticks[t].text, out);
		points_add_label(x, bottom + (k % 2 ? 38 : 22), "middle", "t", axes[k].title, out);
	}
	buf_adds(out, "</svg>\n");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts as one SVG 1.1 document that needs nothing else: no scripts, links or fonts of its own.
 * Text from elsewhere is escaped (XML 1.0, 2.2 and 2.4). An engine.
 */
#ifndef DLRUN_CORE_PLOT_SVG_H
#define DLRUN_CORE_PLOT_SVG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "core/plot/trace.h"
#include "events/series.h"

enum { SVG_WIDTH = 720, SVG_HEIGHT = 280 };

/* Draw the charts one below the other. The width (of all) and height (of the plot) of a chart are
 * pixels here. */
void svg_draw(const struct chart *charts, size_t n, struct buf *out);

/* A chart as a part of a page (HTML): without a style sheet and colours of its own, which are
 * those of the classes: "k0" to "k15" of lines (stroke), "t" the title, "g" grid, "a" axis, "s" a
 * seam, "c" a line, "r" the values that were smoothed. Lines are named when pointed at. */
void svg_draw_part(const struct chart *chart, struct buf *out);

/* The grid of two axes with the texts of their ticks, and their lines. */
struct svg_area {
	unsigned left, top, width, height; /* pixels */
};
void svg_add_axes(
	const struct axis *x, const struct axis *y, const struct svg_area *area, struct buf *out);

/* Text in an element or a quoted attribute of SVG or HTML: escaped, without controls. */
void svg_add_text(const char *text, struct buf *out);

/*
 * A curve in one line of text: blocks of eight heights.
 */
enum { SPARK_WIDTH = 32 };

/* At most SPARK_WIDTH blocks, each the mean of the finite values of as many steps; blank where
 * there are none. false, and nothing is added: fewer than two finite values. */
bool spark_add(const struct series_point *points, size_t n, struct buf *out);

/* The curve of series that metrics call name (metrics.h); of several the one with the newest
 * value. false: there is none. */
bool spark_find(const struct series *series, const char *name, struct series_curve *ret);

#endif

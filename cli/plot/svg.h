/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts as one SVG 1.1 document that needs nothing else: no scripts, links or fonts of its own.
 * Text from elsewhere is escaped (XML 1.0, 2.2 and 2.4). An engine.
 */
#ifndef DLRUN_CLI_PLOT_SVG_H
#define DLRUN_CLI_PLOT_SVG_H

#include <stddef.h>

#include "base/util/buf.h"
#include "cli/plot/chart.h"

enum { SVG_WIDTH = 720, SVG_HEIGHT = 280, SVG_WIDTH_MAX = 10000 };

/* Draw the charts one below the other. The width (of all) and height (of the plot) of a chart are
 * pixels here. */
void svg_draw(const struct chart *charts, size_t n, struct buf *out);

#endif

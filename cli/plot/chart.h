/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Curves as text: braille dots (2 by 4 in each character), or ASCII, with axes, a line of text for
 * each curve, the seams of restarts and marks for values that are no numbers. An engine.
 *
 *	loss
 *	 2 ┤⠱⡀
 *	   │ ⠈⠢⢄⡀⢀⣀
 *	 1 ┤    ⠈⠁ ⠉
 *	   └┬─────┬─────
 *	    0    50   step
 *	  ⠤ train  1.02 @90
 *
 * Blanks between dots are U+2800, because some fonts give dots another width than a blank.
 */
#ifndef DLRUN_CLI_PLOT_CHART_H
#define DLRUN_CLI_PLOT_CHART_H

#include "base/util/buf.h"
#include "core/plot/trace.h"

/* Appends lines, with the colours of ui.h. */
void chart_draw(const struct chart *chart, struct buf *out);

#endif

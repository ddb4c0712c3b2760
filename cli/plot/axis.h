/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ticks of an axis where people expect them, and their texts. An engine.
 */
#ifndef DLRUN_CLI_PLOT_AXIS_H
#define DLRUN_CLI_PLOT_AXIS_H

#include <stddef.h>

enum axis_kind {
	AXIS_NUMBER,
	AXIS_LOG,      /* positions are decimal logarithms */
	AXIS_STEP,     /* whole numbers: 500, 10k, 1.5M */
	AXIS_DURATION, /* seconds: 30s, 5m, 2h, 3d */
	AXIS_TIME,     /* seconds since 1970, as local time */
};

enum { AXIS_TICKS_MAX = 24, AXIS_TEXT = 24 };

struct axis_tick {
	double at;
	char text[AXIS_TEXT];
};

struct axis {
	double min, max; /* min < max; finite */
	struct axis_tick ticks[AXIS_TICKS_MAX];
	size_t n;
};

/* min and max are finite, min <= max; where they are equal the axis has some room around them.
 * About wanted ticks (1 to AXIS_TICKS_MAX), between min and max, rising. */
void axis_make(enum axis_kind kind, double min, double max, unsigned wanted, struct axis *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs as points: a scatter of two columns, and parallel coordinates of several, each an SVG that
 * is a part of a page (HTML). Colours come from its style sheet: classes "v0" to "v7", from low to
 * high, "v" where there is no value. Points lead to pages and are named when pointed at. Text from
 * elsewhere is escaped. An engine.
 */
#ifndef DLRUN_CORE_PLOT_POINTS_H
#define DLRUN_CORE_PLOT_POINTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "core/plot/trace.h"

enum { POINTS_SHADES = 8, POINTS_WORDS_MAX = 20, POINTS_MAX = 1000 };

struct points_value {
	const char *text; /* as it is shown; NULL: there is none */
	bool is_number;
	double number;
};

/* A column of values, numbers (by their logarithms where they lie far apart) or at most
 * POINTS_WORDS_MAX different words. */
struct points_axis {
	const char *title;
	const struct points_value *values;
	size_t n;
	struct axis axis;
	double *at; /* of each value along the axis; NaN: nowhere */
};
/* title and values live as long. false, and nothing to free: it says nothing: too many words, no
 * value, or the same one everywhere. */
bool points_axis_make(
	const char *title, const struct points_value *values, size_t n, struct points_axis *ret);
void points_axis_done(struct points_axis *axis);

struct points {
	size_t n; /* POINTS_MAX at most */
	const char *const *names, *const *urls;
	const struct points_axis *shade; /* the column of the colour; NULL: none */
	bool is_low_better;              /* low values of shade are drawn on top */
};

void points_scatter(const struct points *points, const struct points_axis *x,
	const struct points_axis *y, struct buf *out);
void points_parallel(
	const struct points *points, const struct points_axis *axes, size_t n, struct buf *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Curves as data: every value, as TensorBoard would tell it. Written piece by piece, because there
 * may be millions.
 */
#ifndef DLRUN_CLI_PLOT_PLOT_DATA_H
#define DLRUN_CLI_PLOT_PLOT_DATA_H

#include <stddef.h>

#include "cli/plot/plot_sources.h"

struct app;

struct plot_curve {
	const struct plot_source *source;
	struct series_curve curve;
};

struct plot_curves VEC_OF(struct plot_curve);
static inline void plot_curves_done(struct plot_curves *curves)
{
	vec_done(curves);
}

enum { PLOT_NUMBER = 32 };

/* The shortest decimal that gives value again: "0.1", "NaN", "-Infinity". */
const char *plot_number(double value, char out[static PLOT_NUMBER]);

/* A line for each value below "run,dir,tag,step,wall_time,value" (RFC 4180, lines end with LF). */
int plot_csv(struct app *app, const struct plot_curves *curves);
/* dlrun/plot/v1: see dlrun-plot(1). */
int plot_json(struct app *app, const struct plot_curves *curves);

#endif

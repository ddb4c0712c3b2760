/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A curve in one line of text: blocks of eight heights.
 */
#ifndef DLRUN_CLI_PLOT_SPARK_H
#define DLRUN_CLI_PLOT_SPARK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "events/series.h"

enum { SPARK_WIDTH = 32 };

/* At most SPARK_WIDTH blocks, each the mean of the finite values of as many steps; blank where
 * there are none. false, and nothing is added: fewer than two finite values. */
bool spark_add(const struct series_point *points, size_t n, struct buf *out);

/* The curve of series that metrics call name (metrics.h); of several the one with the newest
 * value. false: there is none. */
bool spark_find(const struct series *series, const char *name, struct series_curve *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All scalars of the event files below a directory (event_files.h) as curves, as
 * TensorBoard would show them with nothing left out, kept up to date by reading what is new.
 *
 * A curve is one tag in one directory with event files ("" is the directory itself). Points are in
 * order of steps: a value at a step that is not above the last one takes the place of all from
 * that step on (as TensorBoard's data server has it), and so does a restart that the file tells of
 * (SessionLog START; its EventAccumulator). Where a program went on from an earlier step, or said
 * that it was started again, is a seam; a second value at the last step is none. Values may be NaN
 * or infinite, and so may times.
 */
#ifndef DLRUN_EVENTS_SERIES_H
#define DLRUN_EVENTS_SERIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	SERIES_CURVES_MAX = 20000,
	SERIES_POINTS_MAX = 20 * 1000 * 1000, /* in all: 24 bytes each */
	SERIES_DEPTH = 32,                    /* levels below the directory */
	SERIES_FILES_MAX = 20000,             /* what is beyond is left out, as it is deeper down */
	SERIES_RECORD_MAX = 4 << 20,          /* larger ones hold images and graphs */
	SERIES_PART = 64 << 20,               /* bytes that are read between two checks of limits */
};

struct series_point {
	int64_t step;
	double wall_time_s, value;
};

struct series_curve {
	const char *dir, *tag; /* dir: below the first one */
	const char *nested; /* dir below the nearest one with event files that it lies in, or NULL:
				* a sub-run, as add_scalars makes them */
	const struct series_point *points;
	size_t n;
	const int64_t *seams; /* steps that a later start of the program began at, rising */
	size_t n_seams;
};

struct series;
struct series *series_new(const char *dir);
/* Read what is new; blocks as long as the disk does. Returns whether anything was. E_NOT_FOUND_…
 * is not told: a directory that is not there (yet) has no curves. ERR_LIMIT: more points or curves
 * than the limits, what is there stays. */
int series_poll(struct series *series, bool *ret_new, struct err *err);
/* Read a part of it, at most SERIES_PART bytes, so that the caller is not kept: *ret_more where
 * there is more to read at once. Errors as of series_poll. */
int series_poll_part(struct series *series, bool *ret_more, struct err *err);
/* At most so many points, instead of SERIES_POINTS_MAX. */
void series_limit(struct series *series, size_t points);
size_t series_count(const struct series *series);
/* Sorted by tag, then directory; valid until the next look. */
void series_get(const struct series *series, size_t i, struct series_curve *ret);
/* Seconds since 1970 of the newest event; NaN: none. */
double series_newest_s(const struct series *series);
void series_free(struct series *series);
AUTO_POINTER(struct series, series_free)

#endif

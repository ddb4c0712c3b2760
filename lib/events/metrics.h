/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last value of each scalar in the event files (tfevents.h) below a directory, wherever
 * they appear. Looks cost little: directories are read again when they have changed, files from
 * where the last look ended.
 *
 * A scalar is called like its tag. Event files lie in directories of their own for each start of a
 * program: of one tag in several, the newest value counts. But directories called val, valid,
 * validation, dev, eval or test put their name before, and those below one that has event files
 * itself their path from there: "validation/loss".
 */
#ifndef DLRUN_EVENTS_METRICS_H
#define DLRUN_EVENTS_METRICS_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/auto.h"

enum {
	METRICS_MAX = 200,      /* in the result: those that came first */
	METRICS_SCALARS = 2000, /* of one tag in one directory */
	METRICS_NAME_MAX = 200, /* bytes of a tag; what is longer is left out */
	METRICS_DEPTH = 12,     /* levels below the directory */
	METRICS_DIRS = 4000,
	METRICS_FILES = 1000,
	METRICS_ENTRIES = 200000,     /* names that one look reads */
	METRICS_POLL_BYTES = 8 << 20, /* of event files that one look reads */
	METRICS_RECORD_MAX = 1 << 20,
};

struct metrics;
struct metrics *metrics_new(const char *dir);
/* Returns whether there is more to read at once. */
bool metrics_poll(struct metrics *metrics);
/* {"loss": {"value": 2.31, "step": 100, "min": 2.3, "min_step": 90, "max": 9.1, "max_step": 1}}:
 * the last value, and of all that its directory has had the lowest and the highest. A value that is
 * no number is null, with "not_finite": "nan", "inf" or "-inf"; without any finite one there are no
 * min and max. The caller frees. */
struct json *metrics_json(const struct metrics *metrics);
void metrics_free(struct metrics *metrics);
AUTO_POINTER(struct metrics, metrics_free)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was seen of a program (dlrun/observed/v1, observe.h) as a part of its run's record.
 */
#ifndef DLRUN_CORE_RECORD_OBSERVED_H
#define DLRUN_CORE_RECORD_OBSERVED_H

#include "base/data/json.h"

#define OBSERVED_SCHEMA "dlrun/observed/v1"
/* Where the supervisor keeps it, in the attempt's directory. */
#define OBSERVED_FILE "observed.json"

enum { OBSERVED_TEXTS_MAX = 64, OBSERVED_MAX = 1 << 20 /* bytes */ };

/* Into doc (dlrun/run/v1): usage and metrics replace what is known, links and the warning (what the
 * target says of its own) are added, params only where the command has none of that name, results
 * (results.h) and resources (what the target has given) are set. observed may be NULL, and
 * members may be missing or of any form. */
void observed_merge(const struct json *observed, struct json *doc);

/* One more rank of a run of several: amounts (cpu, cpu_s, power_w, energy_j) are of all ranks, the
 * rest is of the rank that has the most. all: an object. */
void observed_add_rank(struct json *all, const struct json *one);

/* A look of one moment ("time", "now", and "cpu_s" in "usage") into what is kept of such looks, an
 * object: peaks stay, gpu_busy becomes the mean of all looks that told it ("gpu_looks" counts
 * them). What was used between two looks is not made up: energy_j stays as it is. */
void observed_keep(struct json *kept, const struct json *look);

/* What was kept there, or NULL where there is none (yet) or it cannot be read. */
struct json *observed_read(const char *attempt_dir);

#endif

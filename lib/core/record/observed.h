/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observations of a program (dlrun/observed/v1, observe.h) as a part of its run's record.
 */
#ifndef DLRUN_CORE_RECORD_OBSERVED_H
#define DLRUN_CORE_RECORD_OBSERVED_H

#include "base/data/json.h"

#define OBSERVED_SCHEMA "dlrun/observed/v1"
/* File of the supervisor in the attempt's directory. */
#define OBSERVED_FILE "observed.json"
/* Member of the cost of an attempt by the prices at its end: {"amount": 12.4, "per_hour": 62.0,
 * "nodes": 2.0 (parts of nodes count as such), "group": "gpu-a, gpu-b"}, in the currency of the
 * prices; null: it is not known, and is not asked for again. */
#define OBSERVED_COST "cost"

enum { OBSERVED_TEXTS_MAX = 64, OBSERVED_MAX = 1 << 20 /* bytes */ };

/* Merge observed into doc (dlrun/run/v1): usage and metrics replace what is known, links and the
 * warning (the target's own) are added, params only where the command has none of that name,
 * results (results.h), the cost and resources (those the target has given) are set. observed may be
 * NULL, and members may be missing or of any form. */
void observed_merge(const struct json *observed, struct json *doc);

/* Add a rank to all, an object for the ranks of a run: amounts (cpu, cpu_s, power_w, energy_j) are
 * sums over all ranks, the rest is of the rank that has the most. */
void observed_add_rank(struct json *all, const struct json *one);

/* Add a single sample ("time", "now", and "cpu_s" in "usage") to kept, an object for such samples:
 * peaks stay, gpu_busy becomes the mean of all samples that have it ("gpu_looks" counts them). Use
 * between two samples is not estimated: energy_j stays as it is. */
void observed_keep(struct json *kept, const struct json *sample);

/* Read OBSERVED_FILE; NULL where there is none (yet) or it cannot be read. */
struct json *observed_read(const char *attempt_dir);

#endif

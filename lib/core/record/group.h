/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Studies as far as records of runs tell: runs with the same group are members of the study of that
 * name, whether `sweep` has made them or somebody has named the group. An engine on records.
 */
#ifndef DLRUN_CORE_RECORD_GROUP_H
#define DLRUN_CORE_RECORD_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "core/record/run.h"

/* The group of the run, or NULL. */
const char *run_group(const struct run *run);
/* The study that `sweep` has made it for, or NULL. */
const char *run_study(const struct run *run);
/* The index of a run among the members of its study, by its id (run_member_id); -1: its group has
 * no numbers. */
int64_t run_member_index(const struct run *run);

/* Sort members by their index; those without one follow, in the order that they had. */
void group_sort(struct run_list *runs);

/* How many runs are in each state. */
struct group_counts {
	size_t states[RUN_STATES];
};
void group_count(const struct run_list *runs, struct group_counts *ret);
/* The state of all of them together: what still goes on, else the worst end. */
enum run_state group_state(const struct group_counts *counts);
/* "12 succeeded, 2 failed, 1 queued", ends first. */
void group_counts_text(const struct group_counts *counts, struct buf *out);
/* {"succeeded": 12, …}, states without runs are absent. */
struct json *group_counts_json(const struct group_counts *counts);

/* The parameters that tell the members apart: for each its values as text, each once, numbers
 * sorted and before text. {"lr": ["0.01", "0.1"], …} in the order of their first appearance; a
 * member without the parameter adds null. */
struct json *group_axes(const struct run_list *runs);

/* Order of values as people expect it: numbers by size, before text; missing ones (NULL) last. */
int group_compare_values(const char *a, const char *b);

#endif

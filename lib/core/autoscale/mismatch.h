/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that are not as the template of their group says, by labels and taints: what is taken for a
 * fault of the template, and how a group is planned with then. An engine.
 *
 * A node that is new may lack labels, and have taints, because its agents have not come up; after
 * SCALE_SETTLING_MS it is as it is. A label with another value is a mismatch at once. A taint is
 * none where a pod runs that does not tolerate it: it has come since.
 *
 * As JSON, in snapshots and in the state:
 *	[{"label": "pool", "told": "gpu", "found": "cpu" (none), "node": "n1"},
 *	 {"taint": "dedicated", "found": "ml", "effect": "NoSchedule", "node": "n1"}]
 */
#ifndef DLRUN_CORE_AUTOSCALE_MISMATCH_H
#define DLRUN_CORE_AUTOSCALE_MISMATCH_H

#include <stdbool.h>

#include "base/data/json.h"
#include "core/autoscale/model.h"

/* MISMATCH_TEXT_MAX: of a key, a value, the name of a node. */
enum { SCALE_SETTLING_MS = 5 * 60 * 1000, MISMATCHES_MAX = 8, MISMATCH_TEXT_MAX = 320 };

/* Whether a node of a group with a template is so new that it may still become like that: one that
 * is not ready for limits.boot_ms, others not for longer than that. */
bool mismatch_may_settle(const struct scale_model *model, const struct scale_node *node);
bool mismatch_has_taint(const struct scale_taints *taints, const struct scale_taint *taint);
/* Find the faults of a template that a node of its group shows and that matter to pods that wait,
 * is_waiting of each shape, MISMATCHES_MAX at most, after those that are there. */
void mismatch_find(const struct scale_model *model, size_t node, const bool *is_waiting,
	struct scale_mismatches *ret);
/* Move what was found to what is known, in place of what is known of the same label or taint.
 * Returns whether some was not known. */
bool mismatch_merge(struct scale_mismatches *found, struct scale_mismatches *into);
/* Drop those in which the node is as the template says. */
void mismatch_drop_refuted(struct scale_mismatches *mismatches, const struct scale_node *node);
/* Take from the group's labels those that its nodes lack or have otherwise, and add their taints to
 * its own, as far as its template says what it was told when they were found. Once. */
void mismatch_apply(const struct scale_mismatches *found, struct scale_group *group);
/* The template as its provider says it: labels, sorted, and taints; their texts are borrowed. */
void mismatch_told(
	const struct scale_group *group, struct scale_pairs *labels, struct scale_taints *taints);
/* The fault of its template, which is applied, that keeps pods of a shape from a group's machines:
 * a text that the caller frees; NULL: something else does. */
char *mismatch_why(const struct scale_group *group, const struct scale_shape *shape);

/* False: some are not in the format; the others are taken. */
bool mismatch_read(const struct json *json, struct scale_mismatches *ret);
/* NULL: there are none. The caller frees. */
struct json *mismatch_write(const struct scale_mismatches *mismatches);

#endif

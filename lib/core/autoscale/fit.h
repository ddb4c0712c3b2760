/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether pods of a shape may run on a machine: selectors, affinity, taints, amounts. An engine of
 * the planner's; semantics of core/v1 NodeSelectorRequirement, Toleration and Taint.
 */
#ifndef DLRUN_CORE_AUTOSCALE_FIT_H
#define DLRUN_CORE_AUTOSCALE_FIT_H

#include <stdbool.h>

#include "base/util/buf.h"
#include "core/autoscale/model.h"

/* The key by which affinity asks for a node's name (matchFields). */
#define SCALE_NODE_NAME "metadata.name"

/* Borrowed. */
struct scale_machine {
	const char *name; /* NULL: it has none yet */
	const struct scale_pairs *labels;
	const struct scale_taints *taints;
};

const char *scale_pair(const struct scale_pairs *pairs, const char *key);
/* Whether it is the key of a node's zone, or was until Kubernetes 1.17. */
bool scale_is_zone(const char *key);
/* The zone that labels of a node say; NULL: none. */
const char *scale_zone(const struct scale_pairs *labels);
/* Whether labels are as one of the terms says, or there is none. */
bool scale_affinity_holds(const struct scale_terms *terms, const struct scale_machine *machine);
/* Without amounts. *ret_why, where it does not: a text that the caller frees; may be NULL. */
bool scale_allows(
	const struct scale_shape *shape, const struct scale_machine *machine, char **ret_why);
/* Whether room holds one. */
bool scale_holds(const struct scale_model *model, const struct scale_shape *shape,
	const struct scale_amounts *room, char **ret_why);
/* How many of them room holds, at most max. */
int64_t scale_count(
	const struct scale_shape *shape, const struct scale_amounts *room, int n, int64_t max);
/* A text of what a shape asks of a machine but for amounts: equal for equal constraints. */
void scale_constraints_text(const struct scale_shape *shape, struct buf *text);
/* The same for all of a shape but its name. */
void scale_shape_text(const struct scale_shape *shape, struct buf *text);
/* Whether the resource at i is one of GPUs. */
bool scale_is_gpu(const struct scale_model *model, int i);
bool scale_wants_gpu(const struct scale_model *model, const struct scale_amounts *amounts);
/* The resources that have a name. */
int scale_n_resources(const struct scale_model *model);

#endif

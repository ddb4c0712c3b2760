/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: a pure function from a model to a plan. No clock, no I/O, nothing random: the same
 * model gives the same plan.
 *
 * Waiting pods are placed, in the order of their priority, the largest gangs first, on the free
 * room of nodes, on nodes that we have cordoned, on machines on their way, then on new machines of
 * the groups by weight, price (spot before on-demand) and id. New machines are packed in several
 * orders of the shapes (the sum of the shares of all resources, the largest share, cpu and memory,
 * arrival), and by patterns that fill a machine; the cheapest packing is taken. A gang is placed
 * whole or not at all, and where it has to be in one zone or group, in that where it costs least.
 * What the plan helps, the scheduler can place; what it does not help has a reason for each group.
 *
 * A node goes when nothing but daemons has run on it for limits.idle_ms, no waiting pod is placed
 * on it, and it is none of limits.spares: it is cordoned in one plan, and removed in a later one,
 * the longest idle first, at most limits.removals in one plan. One that is needed again is
 * uncordoned. A node with pods of others than daemons is never removed, however long it is silent.
 *
 * Source: dlrun's research on autoscalers; first fit decreasing with several resources is vector
 * bin packing (Panigrahy and others, Heuristics for Vector Bin Packing, 2011).
 */
#ifndef DLRUN_CORE_AUTOSCALE_PLAN_H
#define DLRUN_CORE_AUTOSCALE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/vec.h"
#include "core/autoscale/model.h"

enum scale_action_kind {
	SCALE_UNCORDON, /* node */
	SCALE_GROW,     /* group from desired to `to` */
	/* group to `to`: machines that were asked for and are not on their way (capacity), or are
	 * late and have no id */
	SCALE_SHRINK,
	SCALE_CORDON, /* node, idle */
	/* node, cordoned by us and idle: end its machine, delete its object */
	SCALE_REMOVE,
	SCALE_FORGET, /* node, without a machine: delete its object */
	/* group, instance: a machine that did not become a node in limits.boot_ms, is_awaited */
	SCALE_TERMINATE,
};
struct scale_action {
	enum scale_action_kind kind;
	int32_t node, group; /* -1: none */
	int32_t instance;    /* of the group's instances; -1: none */
	/* of SCALE_GROW and SCALE_SHRINK: the group's desired size, absolute, so that an action
	 * may be repeated */
	int64_t from, to;
	int64_t bought; /* of SCALE_GROW: machines that it adds */
	int64_t pods;   /* placed there */
	char *why;      /* a sentence for people; owned */
};
struct scale_actions VEC_OF(struct scale_action);

/* Where pods that wait go. */
enum scale_supply { SCALE_FREE, SCALE_UNCORDONED, SCALE_ON_ITS_WAY, SCALE_NEW, SCALE_NOT_HELPED };
struct scale_placement {
	int32_t pod; /* of pods; of one with a count, as many as `pods` */
	int64_t pods;
	enum scale_supply supply;
	int32_t node, group; /* -1: none */
	/* of the group's that are on their way, or of its new ones, from 0; -1: none */
	int32_t machine;
};
struct scale_placements VEC_OF(struct scale_placement);

/* Why pods are not helped by a group or (group -1) by all that is. */
struct scale_reason {
	int32_t group;
	char *text; /* owned: "a machine of it has 8 nvidia.com/gpu, not 16", … */
};
struct scale_reasons VEC_OF(struct scale_reason);
/* Equal pods that are not helped. */
struct scale_left {
	int32_t shape, gang; /* gang -1: none */
	int32_t pod;         /* one of them, of pods */
	int32_t reasons;     /* of the plan's lists, which many have in common */
	int64_t pods;        /* so many */
};
struct scale_lefts VEC_OF(struct scale_left);

/* Of pods on new machines: what no packing can go below. */
struct scale_bound {
	int64_t nodes, nodes_least;
	double price, price_least; /* for an hour; negative: not known */
};

struct scale_plan {
	struct scale_actions actions;       /* in the order in which they are to be done */
	struct scale_placements placements; /* by pod */
	struct scale_lefts left;
	struct scale_reason_lists VEC_OF(struct scale_reasons) reasons;
	struct strv remarks; /* sentences about machines that are left alone */
	struct scale_bound bound;
	int64_t waiting, helped; /* pods */
	int64_t nodes_after;     /* of all groups, with those on their way */
	double price_after;      /* for an hour; of those whose price is known */
};
void scale_plan_done(struct scale_plan *plan);
#define AUTO_SCALE_PLAN AUTO(scale_plan_done)

/* The model stays as it is. Memory and time are bounded by the limits of snapshot.h. */
void scale_plan_make(const struct scale_model *model, struct scale_plan *ret);

/* The model as it will be when the plan is done and all machines have come: pods are placed, new
 * nodes are there, removed ones are not. For what-ifs and tests: a plan of it has no actions. */
void scale_plan_apply(const struct scale_plan *plan, struct scale_model *model);

/* Whether a machine should have become a node by now. */
bool scale_is_late(const struct scale_model *model, const struct scale_instance *instance);

/* A node of no group that may be that machine: it has come since, without an id or by another one;
 * or NULL. */
const struct scale_node *scale_may_be_node(const struct scale_model *model,
	const struct scale_group *group, const struct scale_instance *instance);

/* Whether a pod of this shape could run on an empty machine like that; else *ret_why, a text
 * that the caller frees (ret_why may be NULL). */
bool scale_fits(const struct scale_model *model, const struct scale_shape *shape,
	const struct scale_pairs *labels, const struct scale_taints *taints,
	const struct scale_amounts *room, char **ret_why);

#endif

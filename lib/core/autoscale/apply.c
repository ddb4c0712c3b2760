/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/plan_impl.h"

/* A machine of a group as a node; its index. */
static int32_t apply_new_node(struct scale_model *model, int32_t g, const char *instance)
{
	struct scale_group *group = &model->groups.v[g];
	struct scale_node *node = vec_push(&model->nodes);

	*node = (struct scale_node){.name = mem_printf("%s-new-%zu", group->id, model->nodes.n),
		.group = g,
		.room = group->room,
		.is_ready = true,
		.created_ms = model->now_ms,
		.idle_since_ms = model->now_ms};
	node->instance = instance ? mem_strdup(instance) : mem_strdup(node->name);
	vec_foreach (const struct scale_pair, pair, &group->labels)
		scale_pairs_add(&node->labels, pair->key, pair->value);
	vec_foreach (const struct scale_taint, taint, &group->taints)
		scale_taints_add(&node->taints, taint->key, taint->value, taint->effect);
	if (!instance)
		*vec_push(&group->instances) =
			(struct scale_instance){.id = mem_strdup(node->instance),
				.state = SCALE_RUNNING,
				.since_ms = model->now_ms};
	return (int32_t)model->nodes.n - 1;
}

/* Put a placement's pods on a node: its own entry, or one that is split off. */
static void apply_pod(struct scale_model *model, int32_t index, int64_t count, int32_t node)
{
	struct scale_pod *pod = &model->pods.v[index];

	if (count < pod->count) {
		pod->count -= count;
		struct scale_pod part = *pod;
		part.name = mem_strdup(pod->name);
		part.count = count;
		part.node = node;
		*vec_push(&model->pods) = part;
	} else {
		pod->node = node;
	}
	model->nodes.v[node].idle_since_ms = 0;
}

/* Nodes of the machines of one group that were none before. */
struct apply_nodes VEC_OF(int32_t);
struct apply_group {
	struct apply_nodes coming, bought;
};

/* The machines that were no nodes, in the order in which they were counted. */
static void apply_come(struct scale_model *model, const struct scale_prepared *prepared, int32_t g,
	struct apply_nodes *ret)
{
	int64_t coming = prepared->groups[g].coming;

	for (size_t i = 0; i < model->groups.v[g].instances.n; i++) {
		const struct scale_instance instance = model->groups.v[g].instances.v[i];
		if (instance.state == SCALE_STOPPING || str_empty(instance.id) ||
			map_get(&prepared->instances, instance.id) ||
			scale_is_late(model, &instance))
			continue;
		model->groups.v[g].instances.v[i].state = SCALE_RUNNING;
		*vec_push(ret) = apply_new_node(model, g, instance.id);
	}
	while ((int64_t)ret->n < coming && ret->n < PLAN_MACHINES_MAX)
		*vec_push(ret) = apply_new_node(model, g, NULL);
}

static void apply_drop_instance(struct scale_model *model, int32_t g, const char *id)
{
	struct scale_group *group = &model->groups.v[g];

	vec_foreach (struct scale_instance, instance, &group->instances) {
		if (!str_eq(instance->id, id))
			continue;
		group->desired--;
		instance->state = SCALE_STOPPING;
		return;
	}
	group->desired -= !group->instances.n;
}

static void apply_drop_nodes(struct scale_model *model, const bool *goes)
{
	AUTO_FREE int32_t *place = mem_alloc(model->nodes.n + 1, sizeof(*place));
	struct scale_nodes nodes = {0};
	struct scale_pods pods = {0};

	for (size_t i = 0; i < model->nodes.n; i++) {
		place[i] = (int32_t)nodes.n;
		if (goes[i])
			scale_node_done(&model->nodes.v[i]);
		else
			*vec_push(&nodes) = model->nodes.v[i];
	}
	vec_foreach (struct scale_pod, pod, &model->pods) {
		if (pod->node >= 0 && goes[pod->node]) {
			free(pod->name);
			continue;
		}
		pod->node = pod->node >= 0 ? place[pod->node] : -1;
		*vec_push(&pods) = *pod;
	}
	vec_done(&model->nodes);
	vec_done(&model->pods);
	model->nodes = nodes;
	model->pods = pods;
}

static void apply_action(struct scale_model *model, const struct scale_action *action, bool *goes)
{
	struct scale_node *node = action->node >= 0 ? &model->nodes.v[action->node] : NULL;

	switch (action->kind) {
	case SCALE_UNCORDON:
		node->cordoned = SCALE_OPEN;
		node->cordoned_ms = 0;
		break;
	case SCALE_CORDON:
		node->cordoned = SCALE_CORDONED_BY_US;
		node->cordoned_ms = model->now_ms;
		break;
	case SCALE_GROW:
	case SCALE_SHRINK:
		model->groups.v[action->group].desired = action->to;
		break;
	case SCALE_REMOVE:
		goes[action->node] = true;
		apply_drop_instance(model, action->group, node->instance);
		break;
	case SCALE_FORGET:
		goes[action->node] = true;
		break;
	case SCALE_TERMINATE:
		apply_drop_instance(model, action->group,
			model->groups.v[action->group].instances.v[action->instance].id);
		break;
	}
}

void scale_plan_apply(const struct scale_plan *plan, struct scale_model *model)
{
	struct scale_prepared prepared;
	AUTO_FREE struct apply_group *groups = mem_alloc(model->groups.n + 1, sizeof(*groups));

	prepared_make(model, &prepared);
	for (size_t g = 0; g < model->groups.n; g++)
		apply_come(model, &prepared, (int32_t)g, &groups[g].coming);
	prepared_done(&prepared);
	vec_foreach (const struct scale_action, action, &plan->actions)
		for (int64_t n = action->kind == SCALE_GROW ? action->bought : 0; n > 0; n--)
			*vec_push(&groups[action->group].bought) =
				apply_new_node(model, action->group, NULL);
	vec_foreach (const struct scale_placement, placed, &plan->placements) {
		if (placed->supply == SCALE_NOT_HELPED)
			continue;
		const struct apply_nodes *nodes = placed->supply == SCALE_NEW
							  ? &groups[placed->group].bought
						  : placed->node < 0 ? &groups[placed->group].coming
								     : NULL;
		apply_pod(model, placed->pod, placed->pods,
			nodes ? nodes->v[placed->machine] : placed->node);
	}
	AUTO_FREE bool *goes = mem_alloc(model->nodes.n + 1, sizeof(*goes));
	vec_foreach (const struct scale_action, action, &plan->actions)
		apply_action(model, action, goes);
	apply_drop_nodes(model, goes);
	for (size_t g = 0; g < model->groups.n; g++) {
		vec_done(&groups[g].coming);
		vec_done(&groups[g].bought);
	}
}

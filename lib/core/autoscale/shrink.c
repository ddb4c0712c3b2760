/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/plan_impl.h"

static void shrink_add(struct scale_plan *plan, enum scale_action_kind kind, int32_t group,
	int32_t node, char *take_why)
{
	*vec_push(&plan->actions) = (struct scale_action){
		.kind = kind, .node = node, .group = group, .instance = -1, .why = take_why};
}

/* Pods that wait and are placed on each node. */
static int64_t *shrink_placed(const struct scale_packing *k)
{
	int64_t *placed = mem_alloc(k->prepared->model->nodes.n + 1, sizeof(*placed));

	vec_foreach (const struct scale_pool, pool, &k->pools)
		vec_foreach (const struct scale_bin, bin, &pool->bins)
			if (bin->node >= 0)
				placed[bin->node] += bin->placed;
	return placed;
}

void plan_uncordon(const struct scale_packing *k, struct scale_plan *plan)
{
	AUTO_FREE int64_t *placed = shrink_placed(k);
	const struct scale_model *model = k->prepared->model;

	for (size_t i = 0; i < model->nodes.n; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		bool is_busy = k->prepared->is_busy[i];
		if (node->cordoned != SCALE_CORDONED_BY_US || node->has_no_instance ||
			(!placed[i] && !is_busy))
			continue;
		shrink_add(plan, SCALE_UNCORDON, node->group, (int32_t)i,
			placed[i] ? mem_printf("%" PRId64 " waiting %s room there", placed[i],
					    placed[i] == 1 ? "pod has" : "pods have")
				  : mem_strdup("pods run there again"));
		plan->actions.v[plan->actions.n - 1].pods = placed[i];
	}
}

/* Machines that were asked for and do not come: the group is told, lest they come when nobody
 * waits. Of those that are late without an id there is nothing else to end. */
static void shrink_desired(const struct scale_packing *k, struct scale_plan *plan)
{
	const struct scale_model *model = k->prepared->model;

	for (size_t g = 0; g < model->groups.n; g++) {
		const struct scale_group *group = &model->groups.v[g];
		int64_t size = k->prepared->groups[g].size;
		size = size < group->min ? group->min : size;
		bool is_silent = !group->instances.n && k->prepared->groups[g].nodes;
		if (group->refused || prepared_sells(k->prepared, g) || is_silent ||
			size >= group->desired)
			continue;
		const char *why = group->wait_until_ms <= model->now_ms ? "they are late"
				  : group->failure == SCALE_NO_FAILURE
					  ? "it failed"
					  : scale_failure_names[group->failure];
		shrink_add(plan, SCALE_SHRINK, (int32_t)g, -1,
			mem_printf("%" PRId64 " %s not come: %s", group->desired - size,
				group->desired - size == 1 ? "machine does" : "machines do", why));
		plan->actions.v[plan->actions.n - 1].from = group->desired;
		plan->actions.v[plan->actions.n - 1].to = size;
	}
}

struct shrink_node {
	const struct scale_node *node;
	int32_t index;
	int64_t since_ms; /* the longest idle are first */
	bool is_dead;
};
struct shrink_nodes VEC_OF(struct shrink_node);

static int shrink_by_age(const void *left, const void *right)
{
	const struct shrink_node *a = left, *b = right;

	if (a->is_dead != b->is_dead)
		return a->is_dead ? -1 : 1;
	if (a->since_ms != b->since_ms)
		return a->since_ms < b->since_ms ? -1 : 1;
	return strcmp(a->node->name, b->node->name);
}

/* Idle nodes of ours that are not needed, and those that are silent for too long. */
static void shrink_find(
	const struct scale_packing *k, const int64_t *placed, struct shrink_nodes *ret)
{
	const struct scale_model *model = k->prepared->model;
	const struct scale_limits *limits = &model->limits;

	for (size_t i = 0; i < model->nodes.n; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		if (node->group < 0 || model->groups.v[node->group].refused || node->kept ||
			node->cordoned == SCALE_CORDONED || node->has_no_instance ||
			k->prepared->is_leaving[i] || k->prepared->is_busy[i] || placed[i])
			continue;
		bool is_dead = !node->is_ready && node->silent_ms &&
			       model->now_ms - node->silent_ms > limits->silent_ms;
		bool is_idle = node->is_ready && node->idle_since_ms &&
			       model->now_ms - node->idle_since_ms >= limits->idle_ms;
		if (is_dead || is_idle)
			*vec_push(ret) = (struct shrink_node){node, (int32_t)i,
				is_dead ? node->silent_ms : node->idle_since_ms, is_dead};
	}
	vec_sort(ret, shrink_by_age);
}

static char *shrink_why(const struct scale_model *model, const struct shrink_node *idle)
{
	char text[32];
	const char *since = duration_text(model->now_ms - idle->since_ms, text);

	return idle->is_dead ? mem_printf("not heard from for %s", since)
			     : mem_printf("nothing has run there for %s", since);
}

/* Idle nodes that stay: the least of their group, and the last ones of it as spares. */
static void shrink_choose(
	const struct scale_packing *k, const struct shrink_nodes *idle, bool *stays)
{
	const struct scale_model *model = k->prepared->model;
	AUTO_FREE int64_t *nodes = mem_alloc(model->groups.n + 1, sizeof(*nodes));
	AUTO_FREE int64_t *left = mem_alloc(model->groups.n + 1, sizeof(*left));

	for (size_t g = 0; g < model->groups.n; g++)
		nodes[g] = k->prepared->groups[g].nodes;
	vec_foreach (const struct shrink_node, one, idle)
		left[one->node->group] += !one->is_dead;
	for (size_t i = 0; i < idle->n; i++) {
		int32_t g = idle->v[i].node->group;
		bool is_least = nodes[g] <= model->groups.v[g].min;
		bool is_spare = left[g] <= model->limits.spares;
		stays[i] = !idle->v[i].is_dead && (is_least || is_spare);
		nodes[g] -= !stays[i];
		left[g] -= !stays[i] && !idle->v[i].is_dead;
	}
}

static void shrink_nodes(const struct scale_packing *k, const int64_t *placed, int64_t *removals,
	struct scale_plan *plan)
{
	const struct scale_model *model = k->prepared->model;
	struct shrink_nodes idle = {0};
	int64_t cordons = model->limits.removals;

	shrink_find(k, placed, &idle);
	AUTO_FREE bool *stays = mem_alloc(idle.n + 1, sizeof(*stays));
	shrink_choose(k, &idle, stays);
	for (size_t i = 0; i < idle.n; i++)
		cordons -= !stays[i] && idle.v[i].node->cordoned == SCALE_CORDONED_BY_US;
	for (size_t i = 0; i < idle.n; i++) {
		const struct shrink_node *one = &idle.v[i];
		const struct scale_node *node = one->node;
		bool is_ours = node->cordoned == SCALE_CORDONED_BY_US;
		int64_t *left = is_ours ? removals : &cordons;
		if (stays[i] && is_ours)
			shrink_add(plan, SCALE_UNCORDON, node->group, one->index,
				mem_strdup("its group keeps it"));
		if (stays[i] || *left <= 0 || (is_ours && node->cordoned_ms >= model->now_ms))
			continue;
		--*left;
		shrink_add(plan, is_ours ? SCALE_REMOVE : SCALE_CORDON, node->group, one->index,
			shrink_why(model, one));
	}
	vec_done(&idle);
}

/* Nodes that have no machine. Pods of one may run on, where the provider does not list it by
 * mistake: it has to be silent for long. */
static void shrink_forget(const struct scale_packing *k, int64_t *removals, struct scale_plan *plan)
{
	const struct scale_model *model = k->prepared->model;

	for (size_t i = 0; i<model->nodes.n && * removals> 0; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		if (node->group < 0 || !node->has_no_instance || node->kept || node->is_ready ||
			model->groups.v[node->group].refused)
			continue;
		bool is_silent = node->silent_ms &&
				 model->now_ms - node->silent_ms > model->limits.silent_ms;
		if (k->prepared->is_busy[i] && !is_silent)
			continue;
		--*removals;
		shrink_add(plan, SCALE_FORGET, node->group, (int32_t)i,
			mem_strdup("the provider has no machine of it"));
	}
}

/* Whether a label of a node says that it is none of this group. */
static bool shrink_contradicts(const struct scale_node *node, const struct scale_group *group)
{
	vec_foreach (const struct scale_pair, label, &node->labels) {
		if (str_eq(label->key, "node-role.kubernetes.io/control-plane"))
			return true;
		vec_foreach (const struct scale_pair, own, &group->labels)
			if (str_eq(own->key, label->key) && !str_eq(own->value, label->value))
				return true;
	}
	return false;
}

const struct scale_node *scale_may_be_node(const struct scale_model *model,
	const struct scale_group *group, const struct scale_instance *instance)
{
	vec_foreach (const struct scale_node, node, &model->nodes) {
		bool is_before = node->created_ms && node->created_ms < instance->since_ms;
		if (node->group < 0 && !is_before && !shrink_contradicts(node, group))
			return node;
	}
	return NULL;
}

/* Machines of a group that are late and no nodes, and are left alone. */
struct shrink_left {
	int64_t lost;
	const struct scale_instance *first_unsure, *first_lost;
	const struct scale_node *node; /* that the first one may be */
};

/* node: that it may be; or NULL. */
static void shrink_leave(struct shrink_left *left, const struct scale_instance *instance,
	const struct scale_node *node)
{
	if (node && !left->first_unsure) {
		left->first_unsure = instance;
		left->node = node;
	}
	if (!node && !left->lost++)
		left->first_lost = instance;
}

/* Without a number of machines that may be nodes by another id: it changes often, and each other
 * text is another notice. */
static void shrink_tell_left(
	const struct scale_group *group, const struct shrink_left *left, struct strv *remarks)
{
	char more[64] = "";

	if (left->first_unsure)
		strv_addf(remarks,
			"group %s: its machine %s may be node %s by another id: both count",
			group->id, left->first_unsure->id, left->node->name);
	if (left->lost > 1)
		snprintf(more, sizeof(more), " (so are %" PRId64 " more)", left->lost - 1);
	if (left->lost)
		strv_addf(remarks,
			"group %s: its machine %s is late, and is not ended because it may have "
			"been a node%s",
			group->id, left->first_lost->id, more);
}

/* Machines that have not become nodes. A node of which the machine is not known may be one, and of
 * a machine that had a node somebody may have deleted its object. */
static void shrink_dead_of(
	const struct scale_packing *k, size_t g, int64_t *removals, struct scale_plan *plan)
{
	const struct scale_prepared *p = k->prepared;
	const struct scale_model *model = p->model;
	const struct scale_group *group = &model->groups.v[g];
	struct shrink_left left = {0};
	char text[32];

	for (size_t i = 0; i < group->instances.n; i++) {
		const struct scale_instance *instance = &group->instances.v[i];
		if (instance->state == SCALE_STOPPING || str_empty(instance->id) ||
			map_get(&p->instances, instance->id))
			continue;
		if (!scale_is_late(model, instance))
			continue;
		const struct scale_node *node = scale_may_be_node(model, group, instance);
		if (node || !instance->is_awaited)
			shrink_leave(&left, instance, node);
		if (node || !instance->is_awaited || *removals <= 0)
			continue;
		--*removals;
		duration_text(model->now_ms - instance->since_ms, text);
		shrink_add(plan, SCALE_TERMINATE, (int32_t)g, -1,
			mem_printf("it has not become a node in %s", text));
		plan->actions.v[plan->actions.n - 1].instance = (int32_t)i;
	}
	shrink_tell_left(group, &left, &plan->remarks);
}

static void shrink_dead(const struct scale_packing *k, int64_t *removals, struct scale_plan *plan)
{
	const struct scale_prepared *p = k->prepared;

	for (size_t g = 0; g < p->model->groups.n; g++)
		if (!p->model->groups.v[g].refused && !p->groups[g].nameless)
			shrink_dead_of(k, g, removals, plan);
}

void plan_shrink(const struct scale_packing *k, struct scale_plan *plan)
{
	AUTO_FREE int64_t *placed = shrink_placed(k);
	int64_t removals = k->prepared->model->limits.removals;

	shrink_desired(k, plan);
	shrink_forget(k, &removals, plan);
	shrink_dead(k, &removals, plan);
	shrink_nodes(k, placed, &removals, plan);
}

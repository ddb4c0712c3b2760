/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/plan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/mismatch.h"
#include "core/autoscale/plan_impl.h"

#define GOOD_ENOUGH 1.005

static void plan_reasons_done(struct scale_reasons *reasons)
{
	vec_foreach (struct scale_reason, reason, reasons)
		free(reason->text);
	vec_done(reasons);
}

void scale_plan_done(struct scale_plan *plan)
{
	vec_foreach (struct scale_action, action, &plan->actions)
		free(action->why);
	vec_done(&plan->actions);
	vec_done(&plan->placements);
	vec_done(&plan->left);
	vec_foreach (struct scale_reasons, reasons, &plan->reasons)
		plan_reasons_done(reasons);
	vec_done(&plan->reasons);
	strv_done(&plan->remarks);
	*plan = (struct scale_plan){0};
}

/* Reasons. */

/* Pods of a shape and gang that are not helped, of all priorities. */
struct plan_left {
	const struct scale_lot *lot;
	int32_t pod; /* one of them */
	int64_t pods;
};

static void plan_give_reason(struct scale_reasons *reasons, int32_t group, char *take_text)
{
	*vec_push(reasons) = (struct scale_reason){.group = group, .text = take_text};
}

static char *plan_why_unknown(const struct scale_group *group)
{
	/* Other failures are of a purchase. */
	const char *why = group->failure == SCALE_FAILED_CONFIG ? group->failure_text : NULL;

	return mem_printf(
		"it is not known what its machines are like%s%s", why ? ": " : "", why ? why : "");
}

static char *plan_why_not(const struct scale_packing *k, const struct scale_lot *lot, size_t g,
	enum scale_denial denial)
{
	const struct scale_model *model = k->prepared->model;
	const struct scale_group *group = &model->groups.v[g];
	char *why = NULL;

	switch (denial) {
	case SCALE_DENIED_REFUSED:
		return mem_strdup(group->refused);
	case SCALE_DENIED_TEMPLATE:
		return plan_why_unknown(group);
	case SCALE_DENIED_FIT:
		why = mismatch_why(group, &model->shapes.v[lot->shape]);
		if (why)
			return why;
		scale_fits(model, &model->shapes.v[lot->shape], &group->labels, &group->taints,
			&group->room, &why);
		if (why && scale_fits(model, &model->shapes.v[lot->shape], &group->labels,
				   &group->taints, &group->told, NULL))
			REPLACE(why,
				mem_printf("%s: its nodes leave less than its template says", why));
		return why ? why : mem_strdup("its machines do not fit");
	case SCALE_DENIED_GPU:
		return mem_strdup("its machines have GPUs, which are not asked for");
	case SCALE_DENIED_WAIT:
		return mem_printf("it is not asked for %" PRId64 " s more, after a failure: %s%s%s",
			(group->wait_until_ms - model->now_ms + 999) / 1000,
			group->failure == SCALE_NO_FAILURE ? "it is not known which"
							   : scale_failure_names[group->failure],
			group->failure_text ? ", " : "",
			group->failure_text ? group->failure_text : "");
	case SCALE_DENIED_LOST:
		return mem_printf("it owes %" PRId64 " %s that did not come in time",
			k->prepared->groups[g].lost,
			k->prepared->groups[g].lost == 1 ? "machine" : "machines");
	case SCALE_DENIED_MAX:
		return mem_printf("its maximum is %" PRId64, group->max);
	case SCALE_DENIED_NODES:
		return mem_printf("the limit is %" PRId64 " nodes", model->limits.nodes);
	case SCALE_DENIED_STEP:
		return mem_printf(
			"a plan adds at most %" PRId64 " nodes", plan_step(&model->limits));
	case SCALE_DENIED_PRICE:
		return mem_printf("the limit is %.2f for an hour", model->limits.price);
	case SCALE_DENIED_NO_PRICE:
		return mem_strdup("its price is not known, and there is a limit");
	case SCALE_GRANTED:
		break;
	}
	if (lot->gang >= 0 && model->gangs.v[lot->gang].same == SCALE_SAME_ZONE)
		return mem_strdup("all of the gang has to be in one zone");
	if (lot->gang >= 0 && model->gangs.v[lot->gang].same == SCALE_SAME_GROUP)
		return mem_strdup("all of the gang has to be in one group");
	return mem_strdup(
		lot->gang >= 0 ? "another pod of the gang finds no room" : "no room is left");
}

/* Of a gang: with how many machines it would have to help, and how many it may. */
static char *plan_why_too_few(const struct scale_packing *k, const struct plan_left *left, size_t g)
{
	const struct scale_lot *lot = left->lot;
	const struct scale_model *model = k->prepared->model;
	const struct scale_group *group = &model->groups.v[g];
	int64_t per = scale_count(
		&model->shapes.v[lot->shape], &group->room, k->prepared->n_resources, left->pods);
	int64_t need = left->pods / per + (left->pods % per != 0);
	enum scale_denial denial;
	int64_t have = packing_allowance(k, g, need, &denial);
	AUTO_FREE char *why = plan_why_not(k, lot, g, denial);
	if (lot->gang < 0 || have == 0 || have == need)
		return TAKE(why);
	return mem_printf("%s: %" PRId64 " of the %" PRId64
			  " machines that would hold all of the gang",
		why, have, need);
}

static void plan_reasons_of(
	const struct scale_packing *k, const struct plan_left *left, struct scale_reasons *ret)
{
	const struct scale_model *model = k->prepared->model;
	const struct scale_lot *lot = left->lot;
	const struct scale_shape *shape = &model->shapes.v[lot->shape];
	bool is_other_unsupported = k->prepared->units.v[lot->unit].is_unsupported;

	for (size_t i = 0; i < shape->unsupported.n; i++)
		plan_give_reason(ret, -1, mem_printf("not supported: %s", shape->unsupported.v[i]));
	if (shape->unsupported.n)
		return;
	if (is_other_unsupported)
		plan_give_reason(ret, -1,
			mem_strdup("another pod of the gang has a constraint that is not "
				   "supported"));
	else if (!model->groups.n)
		plan_give_reason(ret, -1,
			mem_strdup("no node has room, and there are no groups to buy from"));
	for (size_t i = 0; !is_other_unsupported && i < model->groups.n; i++) {
		size_t g = (size_t)(k->prepared->ranked[i] - model->groups.v);
		enum scale_denial denial = packing_fits(k, lot, g);
		plan_give_reason(ret, (int32_t)g,
			denial != SCALE_GRANTED ? plan_why_not(k, lot, g, denial)
						: plan_why_too_few(k, left, g));
	}
}

/* Pods that are left by shape and gang. */
struct plan_lefts VEC_OF(struct plan_left);

static void plan_find_left(const struct scale_packing *k, struct plan_lefts *ret)
{
	const struct scale_prepared *p = k->prepared;
	struct map known = {0};

	for (size_t i = 0; i < p->lots.n; i++) {
		const struct scale_lot *lot = &p->lots.v[i];
		if (!k->left[i])
			continue;
		AUTO_FREE char *key = mem_printf("%d %d", lot->shape, lot->gang);
		intptr_t at = (intptr_t)map_get(&known, key);
		if (!at) {
			const struct scale_pod *last = p->waiting.v[lot->at + lot->n - 1].pod;
			*vec_push(ret) = (struct plan_left){
				.lot = lot, .pod = (int32_t)(last - p->model->pods.v)};
			at = (intptr_t)ret->n;
			map_put(&known, key, (void *)at);
		}
		ret->v[at - 1].pods += k->left[i];
	}
	map_done(&known);
}

/* The number of an equal list, or of this one; reasons are taken. */
static int32_t plan_list_of(
	struct scale_plan *plan, struct map *known, struct buf *key, struct scale_reasons *reasons)
{
	buf_reset(key);
	vec_foreach (const struct scale_reason, reason, reasons)
		buf_addf(key, "%d %s\n", reason->group, reason->text);
	intptr_t at = key->full ? 0 : (intptr_t)map_get(known, key->data);
	if (at) {
		plan_reasons_done(reasons);
		return (int32_t)at - 1;
	}
	*vec_push(&plan->reasons) = *reasons;
	if (!key->full)
		map_put(known, key->data, (void *)(intptr_t)plan->reasons.n);
	return (int32_t)plan->reasons.n - 1;
}

void plan_reasons(const struct scale_packing *k, struct scale_plan *plan)
{
	struct plan_lefts lefts = {0};
	struct map known = {0};
	AUTO_BUF struct buf key = buf_with(PLAN_KEY_MAX);
	size_t n = 0;

	plan_find_left(k, &lefts);
	vec_foreach (const struct plan_left, left, &lefts) {
		struct scale_reasons reasons = {0};
		if (n < PLAN_REASONS_MAX)
			plan_reasons_of(k, left, &reasons);
		else
			plan_give_reason(&reasons, -1, mem_strdup("there are too many reasons"));
		n += reasons.n;
		*vec_push(&plan->left) = (struct scale_left){.shape = left->lot->shape,
			.gang = left->lot->gang,
			.pod = left->pod,
			.pods = left->pods,
			.reasons = plan_list_of(plan, &known, &key, &reasons)};
	}
	vec_done(&lefts);
	map_done(&known);
}

/* Placements: by pod, in the order of the lots' pods. */

struct plan_cursor {
	size_t next;  /* of waiting */
	int64_t used; /* of that pod's count */
};

static void plan_place(const struct scale_packing *k, struct plan_cursor *cursor,
	struct scale_placement like, int64_t count, struct scale_plan *plan)
{
	const struct scale_prepared *p = k->prepared;

	while (count > 0) {
		const struct scale_pod *pod = p->waiting.v[cursor->next].pod;
		int64_t n = pod->count - cursor->used;
		n = n < count ? n : count;
		like.pod = (int32_t)(pod - p->model->pods.v);
		like.pods = n;
		*vec_push(&plan->placements) = like;
		count -= n;
		cursor->used += n;
		if (cursor->used == pod->count)
			*cursor = (struct plan_cursor){.next = cursor->next + 1};
	}
}

static void plan_placements(const struct scale_packing *k, struct scale_plan *plan)
{
	const struct scale_prepared *p = k->prepared;
	AUTO_FREE struct plan_cursor *cursors = mem_alloc(p->lots.n + 1, sizeof(*cursors));

	for (size_t i = 0; i < p->lots.n; i++) {
		cursors[i].next = p->lots.v[i].at;
		plan->waiting += p->lots.v[i].count;
	}
	vec_foreach (const struct scale_entry, entry, &k->entries) {
		const struct scale_pool *pool = &k->pools.v[entry->pool];
		struct scale_placement like = {.supply = pool->supply,
			.node = pool->bins.v[entry->bin].node,
			.group = pool->group,
			.machine = pool->bins.v[entry->bin].node < 0 ? entry->bin : -1};
		plan_place(k, &cursors[entry->lot], like, entry->count, plan);
	}
	for (size_t i = 0; i < p->lots.n; i++)
		plan_place(k, &cursors[i],
			(struct scale_placement){
				.supply = SCALE_NOT_HELPED, .node = -1, .group = -1, .machine = -1},
			k->left[i], plan);
	plan->helped = k->helped;
}

static void plan_grow(const struct scale_packing *k, struct scale_plan *plan)
{
	const struct scale_prepared *p = k->prepared;

	for (size_t i = 0; i < p->model->groups.n; i++) {
		size_t g = (size_t)(p->ranked[i] - p->model->groups.v);
		if (!k->bought[g])
			continue;
		int64_t pods = 0;
		vec_foreach (const struct scale_bin, bin, &k->pools.v[k->new_pool[g]].bins)
			pods += bin->placed;
		*vec_push(&plan->actions) = (struct scale_action){.kind = SCALE_GROW,
			.node = -1,
			.group = (int32_t)g,
			.instance = -1,
			.from = p->ranked[i]->desired,
			.to = p->groups[g].size + k->bought[g],
			.bought = k->bought[g],
			.pods = pods,
			.why = mem_printf("%" PRId64 " %s for %" PRId64 " waiting %s", k->bought[g],
				k->bought[g] == 1 ? "machine" : "machines", pods,
				pods == 1 ? "pod" : "pods")};
	}
}

/* Pods of a unit that a packing helps. */
static int64_t plan_helped(const struct scale_packing *k, const struct scale_unit *unit)
{
	int64_t helped = unit->count;

	for (size_t i = unit->lot; i < unit->lot + unit->n_lots; i++)
		helped -= k->left[i];
	return helped;
}

/* How many more pods a helps than b, of the highest priority of which they do not help as many. */
static int64_t plan_compare(const struct scale_packing *a, const struct scale_packing *b)
{
	int64_t more = 0;
	int32_t priority = 0;

	vec_foreach (const struct scale_unit, unit, &a->prepared->units) {
		if (more && unit->priority != priority)
			break;
		priority = unit->priority;
		more += plan_helped(a, unit) - plan_helped(b, unit);
	}
	return more;
}

/* The better one helps more, costs less, has fewer machines. */
static bool plan_is_better(const struct scale_packing *a, const struct scale_packing *b)
{
	int64_t more = plan_compare(a, b);

	if (more)
		return more > 0;
	if (a->price < b->price * (1 - 1e-9) || b->price < a->price * (1 - 1e-9))
		return a->price < b->price;
	return a->n_bought < b->n_bought;
}

/* Whether no other packing can be better, or by so little that it is not looked for. */
static bool plan_is_best(const struct scale_packing *k, const struct scale_bound *bound)
{
	for (size_t i = 0; i < k->prepared->lots.n; i++)
		if (k->left[i])
			return false;
	if (bound->price > 0)
		return bound->price <= bound->price_least * GOOD_ENOUGH;
	return bound->nodes <= bound->nodes_least;
}

/* Tries at packing, the likely best first. */
static const struct {
	enum scale_order order;
	enum scale_buying buying;
} plan_tries[] = {
	{SCALE_BY_SUM, SCALE_BY_MACHINE},
	{SCALE_BY_SUM, SCALE_BY_PATTERN},
	{SCALE_BY_SUM, SCALE_BY_SHARE},
	{SCALE_BY_LARGEST, SCALE_BY_MACHINE},
	{SCALE_BY_LARGEST, SCALE_BY_SHARE},
	{SCALE_BY_CPU_AND_MEMORY, SCALE_BY_MACHINE},
	{SCALE_BY_CPU_AND_MEMORY, SCALE_BY_SHARE},
	{SCALE_AS_THEY_CAME, SCALE_BY_MACHINE},
	{SCALE_AS_THEY_CAME, SCALE_BY_SHARE},
};

static bool plan_is_same(const struct scale_turns *a, const struct scale_turns *b)
{
	size_t i = 0;

	while (i < a->n && a->v[i].unit == b->v[i].unit)
		i++;
	return i == a->n;
}

/* Whether none before is the same try for want of pods that differ. */
static bool plan_is_new(
	const struct scale_prepared *prepared, const struct scale_turns *turns, size_t at)
{
	if (plan_tries[at].buying == SCALE_BY_PATTERN && !prepared->has_singles)
		return false;
	for (size_t i = 0; i < at; i++)
		if (plan_tries[i].buying == plan_tries[at].buying &&
			plan_is_same(&turns[plan_tries[i].order], &turns[plan_tries[at].order]))
			return false;
	return true;
}

static void plan_pack(
	struct scale_prepared *prepared, struct scale_packing *best, struct scale_bound *ret_bound)
{
	struct scale_turns turns[SCALE_N_ORDERS] = {{0}};

	packing_turns(prepared, plan_tries[0].order, &turns[plan_tries[0].order]);
	packing_make(prepared, &turns[plan_tries[0].order], plan_tries[0].buying, best);
	plan_bound(best, ret_bound);
	for (size_t i = 1; i < ARRAY_LEN(plan_tries) && !plan_is_best(best, ret_bound); i++) {
		struct scale_turns *order = &turns[plan_tries[i].order];
		struct scale_packing next;
		if (!order->n)
			packing_turns(prepared, plan_tries[i].order, order);
		if (!plan_is_new(prepared, turns, i))
			continue;
		packing_make(prepared, order, plan_tries[i].buying, &next);
		bool is_better = plan_is_better(&next, best);
		packing_done(is_better ? best : &next);
		if (!is_better)
			continue;
		*best = next;
		plan_bound(best, ret_bound);
	}
	for (int i = 0; i < SCALE_N_ORDERS; i++)
		vec_done(&turns[i]);
}

void scale_plan_make(const struct scale_model *model, struct scale_plan *ret)
{
	struct scale_prepared prepared;
	struct scale_packing packing;

	*ret = (struct scale_plan){0};
	prepared_make(model, &prepared);
	plan_pack(&prepared, &packing, &ret->bound);
	plan_placements(&packing, ret);
	plan_uncordon(&packing, ret);
	plan_grow(&packing, ret);
	plan_shrink(&packing, ret);
	plan_reasons(&packing, ret);
	ret->nodes_after = prepared.total + packing.n_bought;
	ret->price_after = prepared.price + packing.price;
	vec_foreach (const struct scale_action, action, &ret->actions) {
		bool goes = action->kind == SCALE_REMOVE || action->kind == SCALE_TERMINATE;
		ret->nodes_after -= goes;
		double price =
			goes && action->group >= 0 ? model->groups.v[action->group].price : 0;
		ret->price_after -= price > 0 ? price : 0;
	}
	packing_done(&packing);
	prepared_done(&prepared);
}

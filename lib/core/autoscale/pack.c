/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "core/autoscale/plan_impl.h"

/* Places that are tried for one gang, the likely cheapest first. */
enum { PLACES_MAX = 64 };
/* Of sums of amounts in floating point. */
#define PRECISION 1e-9

static const struct scale_where anywhere = {SCALE_ANY, SCALE_ANY};

/* Pools. */

static int32_t pack_add_pool(struct scale_packing *k, enum scale_supply supply, int32_t group,
	int32_t machine_class, int32_t zone)
{
	int32_t number = (int32_t)k->pools.n;

	*vec_push(&k->pools) = (struct scale_pool){.supply = supply,
		.group = group,
		.machine_class = machine_class,
		.zone = zone,
		.n_resources = k->prepared->n_resources,
		.scale = k->prepared->scale};
	*vec_push(&k->groups[group + 1].pools) = number;
	*vec_push(&k->zones[zone + 1].pools) = number;
	return number;
}

/* So much more or, negative, less is free in a pool. */
static void pack_count_free(struct scale_packing *k, const struct scale_pool *pool,
	const struct scale_amounts *amounts, int64_t count)
{
	for (int r = 0; r < pool->n_resources; r++) {
		double more = (double)amounts->of[r] * (double)count;
		k->groups[pool->group + 1].free[r] += more;
		k->zones[pool->zone + 1].free[r] += more;
	}
}

static struct scale_bin *pack_add_bin(
	struct scale_packing *k, int32_t pool, const struct scale_amounts *free)
{
	pack_count_free(k, &k->pools.v[pool], free, 1);
	return pool_add(&k->pools.v[pool], free);
}

/* Machines that exist. */

static int32_t pack_pool(struct scale_packing *k, struct map *known, enum scale_supply supply,
	int32_t group, int32_t machine_class, int32_t zone)
{
	char text[80];

	snprintf(text, sizeof(text), "%d %d %d %d", (int)supply, group, machine_class, zone);
	intptr_t at = (intptr_t)map_get(known, text);
	if (!at) {
		at = pack_add_pool(k, supply, group, machine_class, zone) + 1;
		map_put(known, text, (void *)at);
	}
	return (int32_t)at - 1;
}

static void pack_add_mark(struct scale_marks *marks, int32_t mark)
{
	vec_foreach (const int32_t, known, marks)
		if (*known == mark)
			return;
	*vec_push(marks) = mark;
}

static void pack_mark(struct scale_packing *k, struct scale_bin *bin, int32_t shape)
{
	vec_foreach (const int32_t, mark, &k->prepared->marks[shape])
		pack_add_mark(&bin->marks, *mark);
	vec_foreach (const int32_t, mark, &k->prepared->apart[shape])
		pack_add_mark(&bin->apart, *mark);
}

/* The supply that a node is for pods that wait; SCALE_NOT_HELPED: nothing. */
static enum scale_supply pack_supply_of(const struct scale_prepared *p, size_t i)
{
	const struct scale_model *model = p->model;
	const struct scale_node *node = &model->nodes.v[i];

	if (node->cordoned == SCALE_CORDONED || node->has_no_instance || p->is_leaving[i])
		return SCALE_NOT_HELPED;
	if (p->is_booting[i] && node->is_ready && node->cordoned == SCALE_OPEN)
		return SCALE_ON_ITS_WAY;
	if (!node->is_ready) {
		bool is_new = node->created_ms && node->cordoned == SCALE_OPEN &&
			      model->now_ms - node->created_ms <= model->limits.boot_ms;
		return is_new ? SCALE_ON_ITS_WAY : SCALE_NOT_HELPED;
	}
	return node->cordoned == SCALE_OPEN ? SCALE_FREE : SCALE_UNCORDONED;
}

static void pack_add_nodes(struct scale_packing *k, enum scale_supply supply)
{
	struct scale_prepared *p = k->prepared;
	const struct scale_model *model = p->model;
	struct map known = {0};

	for (size_t i = 0; i < model->nodes.n; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		if (pack_supply_of(p, i) != supply)
			continue;
		int32_t pool = pack_pool(
			k, &known, supply, node->group, p->node_class[i], p->node_zone[i]);
		pack_add_bin(k, pool, &p->free[i])->node = (int32_t)i;
	}
	map_done(&known);
}

static void pack_mark_nodes(struct scale_packing *k)
{
	const struct scale_model *model = k->prepared->model;
	struct scale_bin **bins = mem_alloc(model->nodes.n + 1, sizeof(struct scale_bin *));

	vec_foreach (struct scale_pool, pool, &k->pools)
		vec_foreach (struct scale_bin, bin, &pool->bins)
			bins[bin->node] = bin;
	vec_foreach (const struct scale_pod, pod, &model->pods)
		if (pod->node >= 0 && bins[pod->node])
			pack_mark(k, bins[pod->node], pod->shape);
	free(bins);
}

/* Machines on their way have no place until one is taken as if it was bought. */
static void pack_add_coming(struct scale_packing *k)
{
	const struct scale_prepared *p = k->prepared;
	int64_t left = PLAN_MACHINES_MAX;

	for (size_t i = 0; i < p->model->groups.n; i++) {
		const struct scale_group *group = p->ranked[i];
		size_t g = (size_t)(group - p->model->groups.v);
		int64_t coming = group->has_template ? p->groups[g].coming : 0;
		k->coming[g] = coming < left ? coming : left;
		k->n_coming += k->coming[g];
		left -= k->coming[g];
	}
}

/* Placing. */

static bool pack_meet(const struct scale_marks *a, const struct scale_marks *b)
{
	vec_foreach (const int32_t, x, a)
		vec_foreach (const int32_t, y, b)
			if (*x == *y)
				return true;
	return false;
}

void packing_take(struct scale_packing *k, size_t pool, size_t at, int32_t lot_index, int64_t count)
{
	const struct scale_lot *lot = &k->prepared->lots.v[lot_index];
	struct scale_bin *bin = &k->pools.v[pool].bins.v[at];

	*vec_push(&k->entries) = (struct scale_entry){.pool = (int32_t)pool,
		.bin = (int32_t)at,
		.lot = lot_index,
		.count = count,
		.n_marks = bin->marks.n,
		.n_apart = bin->apart.n};
	const struct scale_amounts *request = &k->prepared->model->shapes.v[lot->shape].request;
	pool_take(&k->pools.v[pool], at, request, count);
	pack_count_free(k, &k->pools.v[pool], request, -count);
	if (k->prepared->has_marks)
		pack_mark(k, bin, lot->shape);
	k->left[lot_index] -= count;
	k->helped += count;
}

static void pack_want(const struct scale_packing *k, int32_t lot, struct scale_want *ret)
{
	const struct scale_prepared *p = k->prepared;

	pool_want(&p->model->shapes.v[p->lots.v[lot].shape].request, p->scale, p->n_resources, ret);
}

/* Place pods of a lot on machines of one pool, from a machine on. What is placed. */
static int64_t pack_fill(struct scale_packing *k, size_t pool_index, size_t from, int32_t lot,
	const struct scale_want *one, int64_t want)
{
	const struct scale_prepared *p = k->prepared;
	int32_t shape = p->lots.v[lot].shape;
	const struct scale_marks *marks = &p->marks[shape], *apart = &p->apart[shape];
	bool is_alone = p->has_marks && pack_meet(marks, apart);
	int64_t placed = 0;

	while (placed < want) {
		struct scale_pool *pool = &k->pools.v[pool_index];
		ptrdiff_t at = pool_find(pool, one, from);
		if (at < 0)
			break;
		const struct scale_bin *bin = &pool->bins.v[at];
		from = (size_t)at + 1;
		if (p->has_marks &&
			(pack_meet(&bin->marks, apart) || pack_meet(&bin->apart, marks)))
			continue;
		int64_t n = pool_count(pool, (size_t)at, one->request, want - placed);
		if (is_alone && n > 1)
			n = 1;
		packing_take(k, pool_index, (size_t)at, lot, n);
		placed += n;
	}
	return placed;
}

/* NULL: anywhere. */
static const struct scale_place *pack_place(
	const struct scale_packing *k, const struct scale_where *where)
{
	if (where->zone != SCALE_ANY)
		return &k->zones[where->zone + 1];
	return where->group != SCALE_ANY ? &k->groups[where->group + 1] : NULL;
}

/* Groups there, in their order. */
struct pack_groups {
	const struct scale_group *const *v;
	size_t n;
	const struct scale_group *one; /* storage for v */
};
static void pack_groups(
	const struct scale_packing *k, const struct scale_where *where, struct pack_groups *ret)
{
	const struct scale_prepared *p = k->prepared;

	*ret = (struct pack_groups){.v = p->ranked, .n = p->model->groups.n};
	if (where->zone != SCALE_ANY) {
		ret->v = p->in_zone[where->zone + 1].v;
		ret->n = p->in_zone[where->zone + 1].n;
	} else if (where->group != SCALE_ANY) {
		ret->one = where->group >= 0 ? &p->model->groups.v[where->group] : NULL;
		ret->v = &ret->one;
		ret->n = where->group >= 0;
	}
}

/* On what exists, and what was bought before. */
static int64_t pack_on_present(
	struct scale_packing *k, int32_t lot, int64_t want, const struct scale_where *where)
{
	const struct scale_place *place = pack_place(k, where);
	int32_t shape = k->prepared->lots.v[lot].shape;
	size_t n = place ? place->pools.n : k->pools.n;
	struct scale_want one;
	int64_t placed = 0;

	pack_want(k, lot, &one);
	for (size_t i = 0; i < n && placed < want; i++) {
		size_t at = place ? (size_t)place->pools.v[i] : i;
		const struct scale_pool *pool = &k->pools.v[at];
		if (pool->bins.n && prepared_allows(k->prepared, shape, pool->machine_class))
			placed += pack_fill(k, at, 0, lot, &one, want - placed);
	}
	return placed;
}

/* Buying. */

int64_t plan_step(const struct scale_limits *limits)
{
	return limits->step && limits->step < PLAN_MACHINES_MAX ? limits->step : PLAN_MACHINES_MAX;
}

/* How many machines more than those on their way. */
static int64_t pack_allowance_of_new(
	const struct scale_packing *k, size_t g, int64_t want, enum scale_denial *ret_denial)
{
	const struct scale_model *model = k->prepared->model;
	const struct scale_group *group = &model->groups.v[g];
	const struct scale_limits *limits = &model->limits;
	struct {
		int64_t more;
		enum scale_denial denial;
	} bounds[] = {
		{group->max - k->prepared->groups[g].size - k->bought[g], SCALE_DENIED_MAX},
		{limits->nodes ? limits->nodes - k->prepared->total - k->n_bought : want,
			SCALE_DENIED_NODES},
		{plan_step(limits) - k->n_bought, SCALE_DENIED_STEP},
		{want, SCALE_DENIED_PRICE},
	};
	double more = limits->price - k->prepared->price - k->price;

	if (!prepared_sells(k->prepared, g)) {
		bounds[0].more = 0;
		bounds[0].denial = group->wait_until_ms > model->now_ms ? SCALE_DENIED_WAIT
									: SCALE_DENIED_LOST;
	}
	if (limits->price > 0 && group->price < 0)
		bounds[3].more = 0, bounds[3].denial = SCALE_DENIED_NO_PRICE;
	else if (limits->price > 0 && group->price > 0 && more / group->price < (double)want)
		bounds[3].more = more > 0 ? (int64_t)(more / group->price + 1e-9) : 0;
	for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
		if (bounds[i].more < want) {
			want = bounds[i].more > 0 ? bounds[i].more : 0;
			*ret_denial = bounds[i].denial;
		}
	return want;
}

int64_t packing_allowance(
	const struct scale_packing *k, size_t g, int64_t want, enum scale_denial *ret_denial)
{
	int64_t coming = k->coming[g] < want ? k->coming[g] : want;

	*ret_denial = SCALE_GRANTED;
	if (coming == want)
		return want;
	if (k->prepared->model->groups.v[g].refused) {
		*ret_denial = SCALE_DENIED_REFUSED;
		return coming;
	}
	return coming + pack_allowance_of_new(k, g, want - coming, ret_denial);
}

static bool pack_find_other(const struct scale_packing *k, int32_t shape)
{
	const struct scale_prepared *p = k->prepared;

	for (size_t g = 0; g < p->model->groups.n; g++) {
		const struct scale_group *group = &p->model->groups.v[g];
		if (!p->groups[g].has_gpu && !group->refused && group->has_template &&
			prepared_allows(k->prepared, shape, p->groups[g].machine_class) &&
			scale_holds(p->model, &p->model->shapes.v[shape], &group->room, NULL))
			return true;
	}
	return false;
}

static bool pack_has_other(const struct scale_packing *k, int32_t shape)
{
	signed char *known = &k->prepared->has_other[shape];

	if (*known < 0)
		*known = pack_find_other(k, shape);
	return *known;
}

/* Whether the machines of a group, bought or not, are for pods of a lot. */
static enum scale_denial pack_judge_machines(
	const struct scale_packing *k, const struct scale_lot *lot, size_t g)
{
	const struct scale_prepared *p = k->prepared;
	const struct scale_group *group = &p->model->groups.v[g];
	const struct scale_shape *shape = &p->model->shapes.v[lot->shape];

	if (!group->has_template)
		return SCALE_DENIED_TEMPLATE;
	if (!prepared_allows(k->prepared, lot->shape, p->groups[g].machine_class) ||
		!scale_holds(p->model, shape, &group->room, NULL))
		return SCALE_DENIED_FIT;
	if (p->groups[g].has_gpu && !p->units.v[lot->unit].wants_gpu &&
		pack_has_other(k, lot->shape))
		return SCALE_DENIED_GPU;
	return SCALE_GRANTED;
}

static enum scale_denial pack_judge(
	const struct scale_packing *k, const struct scale_lot *lot, size_t g)
{
	return k->prepared->model->groups.v[g].refused ? SCALE_DENIED_REFUSED
						       : pack_judge_machines(k, lot, g);
}

enum scale_denial packing_fits(const struct scale_packing *k, const struct scale_lot *lot, size_t g)
{
	const struct scale_prepared *p = k->prepared;

	if (!p->fits)
		return pack_judge(k, lot, g);
	size_t row = 2 * (size_t)lot->shape + p->units.v[lot->unit].wants_gpu;
	unsigned char *known = &p->fits[row * p->model->groups.n + g];
	if (!*known)
		*known = (unsigned char)(pack_judge(k, lot, g) + 1);
	return (enum scale_denial)(*known - 1);
}

/* Of a group that is refused by now, only the machines on their way. */
static bool pack_gives(const struct scale_packing *k, const struct scale_lot *lot, size_t g)
{
	enum scale_denial denial = packing_fits(k, lot, g);

	if (denial == SCALE_DENIED_REFUSED && k->coming[g] > 0)
		denial = pack_judge_machines(k, lot, g);
	return denial == SCALE_GRANTED;
}

struct pack_offer {
	size_t group;
	int64_t machines; /* to buy of it at once */
	bool is_coming;   /* all of them are on their way */
	double cost;      /* of one pod */
};

static double pack_share(const struct scale_packing *k, const struct scale_shape *shape,
	const struct scale_amounts *room)
{
	double most = 0;

	for (int r = 0; r < k->prepared->n_resources; r++)
		if (shape->request.of[r] > 0 &&
			(double)shape->request.of[r] / (double)room->of[r] > most)
			most = (double)shape->request.of[r] / (double)room->of[r];
	return most;
}

static void pack_offer(
	struct scale_packing *k, int32_t lot, int64_t want, size_t g, struct pack_offer *ret)
{
	const struct scale_prepared *p = k->prepared;
	int32_t shape_index = p->lots.v[lot].shape;
	const struct scale_shape *shape = &p->model->shapes.v[shape_index];
	const struct scale_group *group = &p->model->groups.v[g];
	bool is_alone = p->has_marks && pack_meet(&p->marks[shape_index], &p->apart[shape_index]);
	int64_t most = scale_count(shape, &group->room, p->n_resources, is_alone ? 1 : want);
	double price = group->price < 0 ? 1 : group->price;

	*ret = (struct pack_offer){.group = g};
	if (k->buying == SCALE_BY_SHARE) {
		/* Of a machine that is filled about half a pod's share is left over. */
		double share = is_alone ? 1 : pack_share(k, shape, &group->room);
		ret->machines = want / most + (want % most != 0);
		ret->cost = price * share / (1 - share / 2);
	} else {
		ret->machines = want / most;
		ret->cost = price / (double)most;
	}
}

/* Machines that come anyway, then groups by weight, then whether their price is known, then what a
 * pod costs; ranked breaks ties. */
static bool pack_is_better(const struct scale_packing *k, const struct pack_offer *offer,
	const struct pack_offer *best)
{
	const struct scale_group *a = &k->prepared->model->groups.v[offer->group];
	const struct scale_group *b = &k->prepared->model->groups.v[best->group];

	if (!best->machines || offer->is_coming != best->is_coming)
		return !best->machines || offer->is_coming;
	if (a->weight != b->weight)
		return a->weight < b->weight;
	if ((a->price < 0) != (b->price < 0))
		return a->price >= 0;
	return offer->cost < best->cost * (1 - 1e-12);
}

static struct pack_offer pack_choose(
	struct scale_packing *k, int32_t lot, int64_t want, const struct scale_where *where)
{
	const struct scale_prepared *p = k->prepared;
	struct pack_offer best = {0};
	struct pack_groups groups;

	pack_groups(k, where, &groups);
	for (size_t i = 0; i < groups.n; i++) {
		size_t g = (size_t)(groups.v[i] - p->model->groups.v);
		enum scale_denial denial;
		struct pack_offer offer;
		bool is_heavy = best.machines &&
				groups.v[i]->weight > p->model->groups.v[best.group].weight;
		if (is_heavy && (best.is_coming || !k->n_coming))
			break;
		if (!packing_allowance(k, g, 1, &denial) || !pack_gives(k, &p->lots.v[lot], g))
			continue;
		pack_offer(k, lot, want, g, &offer);
		offer.is_coming = k->coming[g] > 0;
		if (!offer.is_coming)
			offer.machines = packing_allowance(k, g, offer.machines, &denial);
		else if (offer.machines > k->coming[g])
			offer.machines = k->coming[g];
		if (offer.machines && pack_is_better(k, &offer, &best))
			best = offer;
	}
	return best;
}

/* n negative: it is undone. */
static void pack_count_bought(struct scale_packing *k, size_t g, int64_t n, bool is_coming)
{
	double price = k->prepared->model->groups.v[g].price;

	if (is_coming) {
		k->coming[g] -= n;
		k->n_coming -= n;
		return;
	}
	k->bought[g] += n;
	k->n_bought += n;
	k->price += price > 0 ? price * (double)n : 0;
}

static int32_t *pack_pool_of(struct scale_packing *k, size_t g, bool is_coming)
{
	return is_coming ? &k->coming_pool[g] : &k->new_pool[g];
}

size_t packing_buy(struct scale_packing *k, size_t g, int64_t *n, size_t *ret_bin)
{
	const struct scale_supply_of_group *like = &k->prepared->groups[g];
	bool is_coming = k->coming[g] > 0;
	int32_t *pool = pack_pool_of(k, g, is_coming);

	if (is_coming && *n > k->coming[g])
		*n = k->coming[g];
	if (*pool < 0)
		*pool = pack_add_pool(k, is_coming ? SCALE_ON_ITS_WAY : SCALE_NEW, (int32_t)g,
			like->machine_class, like->zone);
	*ret_bin = k->pools.v[*pool].bins.n;
	*vec_push(&k->purchases) = (struct scale_purchase){(int32_t)g, *n, is_coming};
	k->n_purchased++;
	pack_count_bought(k, g, *n, is_coming);
	for (int64_t i = 0; i < *n; i++)
		pack_add_bin(k, *pool, &k->prepared->model->groups.v[g].room);
	return (size_t)*pool;
}

static int64_t pack_on_new(
	struct scale_packing *k, int32_t lot, int64_t want, const struct scale_where *where)
{
	int64_t placed = 0;

	while (placed < want) {
		struct pack_offer offer = pack_choose(k, lot, want - placed, where);
		if (!offer.machines)
			break;
		size_t from, pool = packing_buy(k, offer.group, &offer.machines, &from);
		struct scale_want one;
		pack_want(k, lot, &one);
		placed += pack_fill(k, pool, from, lot, &one, want - placed);
	}
	return placed;
}

void packing_on_present(struct scale_packing *k, int32_t lot)
{
	pack_on_present(k, lot, k->left[lot], &anywhere);
}

static int64_t pack_lot(
	struct scale_packing *k, size_t lot, int64_t want, const struct scale_where *where)
{
	int64_t placed = pack_on_present(k, (int32_t)lot, want, where);

	return placed + pack_on_new(k, (int32_t)lot, want - placed, where);
}

/* Gangs. */

/* A state to come back to. */
struct pack_state {
	size_t n_entries, n_purchases;
};

static struct pack_state pack_state(const struct scale_packing *k)
{
	return (struct pack_state){k->entries.n, k->purchases.n};
}

static void pack_undo(struct scale_packing *k, struct pack_state to)
{
	const struct scale_model *model = k->prepared->model;

	while (k->entries.n > to.n_entries) {
		const struct scale_entry *entry = &k->entries.v[--k->entries.n];
		const struct scale_lot *lot = &k->prepared->lots.v[entry->lot];
		const struct scale_amounts *request = &model->shapes.v[lot->shape].request;
		struct scale_pool *pool = &k->pools.v[entry->pool];
		pool_take(pool, (size_t)entry->bin, request, -entry->count);
		pack_count_free(k, pool, request, entry->count);
		pool->bins.v[entry->bin].marks.n = entry->n_marks;
		pool->bins.v[entry->bin].apart.n = entry->n_apart;
		k->left[entry->lot] += entry->count;
		k->helped -= entry->count;
	}
	while (k->purchases.n > to.n_purchases) {
		const struct scale_purchase *bought = &k->purchases.v[--k->purchases.n];
		size_t g = (size_t)bought->group;
		struct scale_pool *pool = &k->pools.v[*pack_pool_of(k, g, bought->is_coming)];
		pool_cut(pool, pool->bins.n - (size_t)bought->n);
		pack_count_free(k, pool, &model->groups.v[g].room, -bought->n);
		pack_count_bought(k, g, -bought->n, bought->is_coming);
	}
}

/* Place that many pods of a gang there, all or none. */
static bool pack_gang_at(
	struct scale_packing *k, const struct scale_unit *unit, const struct scale_where *where)
{
	const struct pack_state before = pack_state(k);
	int64_t wanted = unit->at_once;

	for (size_t i = unit->lot; i < unit->lot + unit->n_lots && wanted > 0; i++) {
		int64_t want = k->left[i] < wanted ? k->left[i] : wanted;
		wanted -= pack_lot(k, i, want, where);
	}
	if (wanted > 0)
		pack_undo(k, before);
	return wanted <= 0;
}

/* The cost of a gang at a place, or the least that it can be. */
struct pack_cost {
	double price;
	int64_t machines; /* negative: it has no place there */
};

static const struct pack_cost pack_nowhere = {.machines = -1};

static bool pack_is_less(const struct pack_cost *a, const struct pack_cost *b)
{
	double same = PRECISION * (a->price + b->price);

	return a->price < b->price - same ||
	       (a->price <= b->price + same && a->machines < b->machines);
}

/* The least that those pods of a gang together ask for that are of use at once. */
static void pack_demand(const struct scale_packing *k, const struct scale_unit *unit, double *ret)
{
	const struct scale_prepared *p = k->prepared;
	int64_t left = 0;

	for (size_t i = unit->lot; i < unit->lot + unit->n_lots; i++)
		left += k->left[i];
	for (int r = 0; r < p->n_resources; r++) {
		double sum = 0, least = -1;
		for (size_t i = unit->lot; i < unit->lot + unit->n_lots; i++) {
			double one = (double)p->model->shapes.v[p->lots.v[i].shape].request.of[r];
			sum += one * (double)k->left[i];
			least = k->left[i] && (least < 0 || one < least) ? one : least;
		}
		ret[r] = unit->at_once >= left ? sum : least * (double)unit->at_once;
	}
}

static bool pack_sells(const struct scale_packing *k, const struct scale_unit *unit, size_t g)
{
	for (size_t i = unit->lot; i < unit->lot + unit->n_lots; i++)
		if (pack_gives(k, &k->prepared->lots.v[i], g))
			return true;
	return false;
}

/* The machines that groups may still give for a gang: the largest room of each resource, the lowest
 * price, how many come anyway; how many there are, of each group at most as many as it has pods. */
static int64_t pack_for_sale(const struct scale_packing *k, const struct scale_unit *unit,
	const struct scale_where *where, double *ret_most, double *ret_lowest, int64_t *ret_coming)
{
	struct pack_groups groups;
	int64_t machines = 0;

	pack_groups(k, where, &groups);
	for (size_t i = 0; i < groups.n; i++) {
		size_t g = (size_t)(groups.v[i] - k->prepared->model->groups.v);
		double price = groups.v[i]->price > 0 ? groups.v[i]->price : 0;
		enum scale_denial denial;
		int64_t more = pack_sells(k, unit, g)
				       ? packing_allowance(k, g, unit->at_once, &denial)
				       : 0;
		if (!more)
			continue;
		*ret_lowest = !machines || price < *ret_lowest ? price : *ret_lowest;
		machines += more;
		*ret_coming += k->coming[g] < more ? k->coming[g] : more;
		for (int r = 0; r < k->prepared->n_resources; r++)
			if ((double)groups.v[i]->room.of[r] > ret_most[r])
				ret_most[r] = (double)groups.v[i]->room.of[r];
	}
	return machines;
}

/* The least that a demand can cost there: what is free counts in full, and so do machines. */
static struct pack_cost pack_least(const struct scale_packing *k, const struct scale_unit *unit,
	const double *demand, const struct scale_where *where)
{
	const struct scale_place *place = pack_place(k, where);
	double most[SCALE_RESOURCES_MAX] = {0}, lowest = 0, machines = 0;
	int64_t coming = 0, allowance = pack_for_sale(k, unit, where, most, &lowest, &coming);

	for (int r = 0; r < k->prepared->n_resources; r++) {
		double lack = demand[r] * (1 - PRECISION) - place->free[r] * (1 + PRECISION);
		if (lack > 0 && most[r] <= 0)
			return pack_nowhere;
		if (lack > 0 && lack / most[r] > machines)
			machines = lack / most[r];
	}
	if (machines > (double)allowance)
		return pack_nowhere;
	int64_t whole = (int64_t)machines + (machines > (double)(int64_t)machines);
	whole = whole > coming ? whole - coming : 0;
	return (struct pack_cost){lowest * (double)whole, whole};
}

static struct scale_where pack_where_of(bool by_zone, int32_t at)
{
	return by_zone ? (struct scale_where){at, SCALE_ANY} : (struct scale_where){SCALE_ANY, at};
}

/* The place that may cost least; -1: none. */
static int32_t pack_cheapest(const struct pack_cost *costs, int32_t n)
{
	int32_t at = -1;

	for (int32_t i = 0; i < n; i++)
		if (costs[i].machines >= 0 && (at < 0 || pack_is_less(&costs[i], &costs[at])))
			at = i;
	return at;
}

/* The places of a gang and the least cost at each. Members that run fix it. */
static int32_t pack_places(const struct scale_packing *k, const struct scale_unit *unit,
	bool by_zone, struct pack_cost **ret)
{
	const struct scale_prepared *p = k->prepared;
	int32_t n = by_zone ? (int32_t)p->zones.n : (int32_t)p->model->groups.n;
	int32_t fixed = by_zone ? p->gang_zone[unit->gang] : p->gang_group[unit->gang];
	double demand[SCALE_RESOURCES_MAX];

	*ret = mem_alloc((size_t)n + 1, sizeof(**ret));
	pack_demand(k, unit, demand);
	for (int32_t i = 0; i < n; i++) {
		struct scale_where where = pack_where_of(by_zone, i);
		bool is_other = p->gang_running[unit->gang] && i != fixed;
		(*ret)[i] = is_other ? pack_nowhere : pack_least(k, unit, demand, &where);
	}
	return n;
}

/* The place where a gang costs least. Those are tried where it may cost less than at the best so
 * far. */
static bool pack_gang_same(
	struct scale_packing *k, const struct scale_unit *unit, struct scale_where *ret_where)
{
	bool by_zone = k->prepared->model->gangs.v[unit->gang].same == SCALE_SAME_ZONE;
	AUTO_FREE struct pack_cost *least = NULL;
	int32_t n = pack_places(k, unit, by_zone, &least), at, best_at = -1;
	const struct pack_state before = pack_state(k);
	const struct pack_cost paid = {k->price, k->n_bought};
	struct pack_cost best = {0};

	for (int tries = 0; tries < PLACES_MAX; tries++) {
		at = pack_cheapest(least, n);
		if (at < 0 || (best_at >= 0 && !pack_is_less(&least[at], &best)))
			break;
		least[at].machines = -1;
		*ret_where = pack_where_of(by_zone, at);
		if (!pack_gang_at(k, unit, ret_where))
			continue;
		struct pack_cost cost = {k->price - paid.price, k->n_bought - paid.machines};
		if (best_at < 0 || pack_is_less(&cost, &best)) {
			best = cost;
			best_at = at;
		}
		pack_undo(k, before);
	}
	*ret_where = pack_where_of(by_zone, best_at);
	return best_at >= 0 && pack_gang_at(k, unit, ret_where);
}

bool packing_is_open(const struct scale_packing *k, const struct scale_unit *unit)
{
	int64_t left = 0;

	for (size_t i = unit->lot; i < unit->lot + unit->n_lots; i++)
		left += k->left[i];
	return left > 0 && !unit->is_unsupported;
}

/* The place of so many of a gang as are of use at once; of those that run already, it is known. */
static bool pack_gang(
	struct scale_packing *k, const struct scale_unit *unit, struct scale_where *ret_where)
{
	const struct scale_prepared *p = k->prepared;
	const struct scale_gang *gang = &p->model->gangs.v[unit->gang];
	bool by_zone = gang->same == SCALE_SAME_ZONE;

	*ret_where = anywhere;
	if (gang->same == SCALE_ANYWHERE)
		return unit->at_once <= 0 || pack_gang_at(k, unit, ret_where);
	if (unit->at_once > 0)
		return pack_gang_same(k, unit, ret_where);
	*ret_where = pack_where_of(
		by_zone, by_zone ? p->gang_zone[unit->gang] : p->gang_group[unit->gang]);
	return p->gang_running[unit->gang] > 0;
}

/* Equal numbers: nothing has happened that may help a unit. Pods of one shape find room only on
 * machines that were bought since; a gang that is packed in another way may need less. */
static size_t pack_moment(const struct scale_packing *k, const struct scale_unit *unit)
{
	return 1 + (unit->gang < 0 ? k->n_purchased : k->entries.n);
}

void packing_unit(struct scale_packing *k, const struct scale_unit *unit)
{
	struct scale_progress *progress = &k->progress[unit - k->prepared->units.v];

	if (progress->failed_at == pack_moment(k, unit) || !packing_is_open(k, unit))
		return;
	if (unit->gang < 0) {
		progress->is_there = true;
		progress->where = anywhere;
	}
	if (!progress->is_there)
		progress->is_there = pack_gang(k, unit, &progress->where);
	/* Pods beyond the least number of a gang are of use one by one, at the same place. */
	for (size_t i = unit->lot; progress->is_there && i < unit->lot + unit->n_lots; i++)
		pack_lot(k, i, k->left[i], &progress->where);
	if (packing_is_open(k, unit))
		progress->failed_at = pack_moment(k, unit);
}

void packing_start(struct scale_prepared *p, enum scale_buying buying, struct scale_packing *ret)
{
	struct scale_packing *k = ret;

	*k = (struct scale_packing){.prepared = p, .buying = buying};
	k->new_pool = mem_alloc(p->model->groups.n + 1, sizeof(*k->new_pool));
	k->coming_pool = mem_alloc(p->model->groups.n + 1, sizeof(*k->coming_pool));
	k->coming = mem_alloc(p->model->groups.n + 1, sizeof(*k->coming));
	k->zones = mem_alloc(p->zones.n + 1, sizeof(*k->zones));
	k->groups = mem_alloc(p->model->groups.n + 1, sizeof(*k->groups));
	k->bought = mem_alloc(p->model->groups.n + 1, sizeof(*k->bought));
	k->left = mem_alloc(p->lots.n + 1, sizeof(*k->left));
	k->progress = mem_alloc(p->units.n + 1, sizeof(*k->progress));
	for (size_t g = 0; g < p->model->groups.n; g++)
		k->new_pool[g] = k->coming_pool[g] = -1;
	for (size_t i = 0; i < p->lots.n; i++)
		k->left[i] = p->lots.v[i].count;
	for (int supply = SCALE_FREE; supply <= SCALE_ON_ITS_WAY; supply++)
		pack_add_nodes(k, (enum scale_supply)supply);
	if (p->has_marks)
		pack_mark_nodes(k);
	pack_add_coming(k);
}

void packing_done(struct scale_packing *k)
{
	vec_foreach (struct scale_pool, pool, &k->pools)
		pool_done(pool);
	vec_done(&k->pools);
	vec_done(&k->entries);
	vec_done(&k->purchases);
	for (size_t i = 0; i <= k->prepared->zones.n; i++)
		vec_done(&k->zones[i].pools);
	for (size_t i = 0; i <= k->prepared->model->groups.n; i++)
		vec_done(&k->groups[i].pools);
	free(k->zones);
	free(k->groups);
	free(k->new_pool);
	free(k->coming_pool);
	free(k->coming);
	free(k->bought);
	free(k->left);
	free(k->progress);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds below which no packing of pods can go. Groups that hold pods in common are a part; the
 * bounds of parts add up. Of a part: weights of the resources for which no machine is worth more
 * than it costs bound the price from below, by the duality of linear programs; and pods that take
 * more than half of any machine share none with their like.
 */
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/autoscale/plan_impl.h"

enum { STEPS = 32 }; /* of the first weight, between nothing and its largest value */

struct bound_part {
	double demand[SCALE_RESOURCES_MAX];
	double machines[SCALE_RESOURCES_MAX], half[SCALE_RESOURCES_MAX];
};

/* Machines with GPUs that others want hold pods without, too. */
static bool bound_holds(const struct scale_packing *k, const struct scale_lot *lot, size_t g)
{
	enum scale_denial denial = packing_fits(k, lot, g);

	return prepared_sells(k->prepared, g) &&
	       (denial == SCALE_GRANTED || denial == SCALE_DENIED_GPU);
}

static double bound_price(const struct scale_packing *k, size_t g)
{
	double price = k->prepared->model->groups.v[g].price;

	return price < 0 ? k->prepared->no_price : price;
}

static size_t bound_root(size_t *parts, size_t g)
{
	while (parts[g] != g)
		g = parts[g] = parts[parts[g]];
	return g;
}

/* The groups that hold a lot, joined to one part; the part's number, or SIZE_MAX: none does. */
static size_t bound_join(const struct scale_packing *k, const struct scale_lot *lot, size_t *parts)
{
	size_t root = SIZE_MAX;

	for (size_t g = 0; g < k->prepared->model->groups.n; g++) {
		if (!bound_holds(k, lot, g))
			continue;
		size_t other = bound_root(parts, g);
		if (root != SIZE_MAX)
			parts[other] = root;
		else
			root = other;
	}
	return root;
}

static void bound_add(const struct scale_packing *k, const struct scale_lot *lot, double count,
	struct bound_part *part)
{
	const struct scale_model *model = k->prepared->model;
	const struct scale_amounts *request = &model->shapes.v[lot->shape].request;
	double least[SCALE_RESOURCES_MAX];
	bool is_half[SCALE_RESOURCES_MAX];

	for (int r = 0; r < k->prepared->n_resources; r++) {
		least[r] = 1;
		is_half[r] = request->of[r] > 0;
		part->demand[r] += count * (double)request->of[r];
	}
	for (size_t g = 0; g < model->groups.n; g++) {
		if (!bound_holds(k, lot, g))
			continue;
		const struct scale_amounts *room = &model->groups.v[g].room;
		for (int r = 0; r < k->prepared->n_resources; r++) {
			double share =
				room->of[r] > 0 ? (double)request->of[r] / (double)room->of[r] : 0;
			least[r] = share < least[r] ? share : least[r];
			is_half[r] = is_half[r] && request->of[r] > room->of[r] / 2;
		}
	}
	for (int r = 0; r < k->prepared->n_resources; r++) {
		part->machines[r] += request->of[r] > 0 ? count * least[r] : 0;
		part->half[r] += is_half[r] ? count : 0;
	}
}

/* The largest weight of r beside the others, for which no machine of the part is worth more
 * than its price. */
static double bound_weight(
	const struct scale_packing *k, const size_t *groups, size_t n, const double *weights, int r)
{
	double most = -1;

	for (size_t i = 0; i < n; i++) {
		const struct scale_amounts *room = &k->prepared->model->groups.v[groups[i]].room;
		double left = bound_price(k, groups[i]);
		if (room->of[r] <= 0)
			continue;
		for (int other = 0; other < k->prepared->n_resources; other++)
			left -= other == r ? 0 : weights[other] * (double)room->of[other];
		left = left > 0 ? left / (double)room->of[r] : 0;
		most = most < 0 || left < most ? left : most;
	}
	return most < 0 ? 0 : most;
}

/* Weights for two resources, the first a part of its largest, then what is left for the others. */
static double bound_worth(const struct scale_packing *k, const size_t *groups, size_t n,
	const double *demand, int first, int second, double part, struct scale_weights *ret)
{
	double *weights = ret->of, worth = 0;

	*ret = (struct scale_weights){0};
	weights[first] = part * bound_weight(k, groups, n, weights, first);
	weights[second] = bound_weight(k, groups, n, weights, second);
	for (int r = 0; r < k->prepared->n_resources; r++) {
		if (r != first && r != second && demand[r] > 0)
			weights[r] = bound_weight(k, groups, n, weights, r);
		worth += weights[r] * demand[r];
	}
	return worth;
}

static double bound_part_price(const struct scale_packing *k, const size_t *groups, size_t n,
	const struct bound_part *part, struct scale_weights *ret_weights)
{
	struct scale_weights weights;
	double best = 0;

	for (int a = 0; a < k->prepared->n_resources; a++)
		for (int b = 0; b < k->prepared->n_resources; b++)
			for (int i = 0; i <= STEPS; i++) {
				if (a == b || part->demand[a] <= 0 || part->demand[b] <= 0)
					break;
				double worth = bound_worth(k, groups, n, part->demand, a, b,
					(double)i / STEPS, &weights);
				if (worth > best)
					*ret_weights = weights;
				best = worth > best ? worth : best;
			}
	return best;
}

/* The weights of groups of a part, for packings to come. */
static void bound_tell(const struct scale_packing *k, const size_t *groups, size_t n,
	struct scale_weights *weights)
{
	const struct scale_model *model = k->prepared->model;

	for (size_t i = 0; i < n; i++) {
		const struct scale_amounts *room = &model->groups.v[groups[i]].room;
		double worth = 0;
		for (int r = 0; r < k->prepared->n_resources; r++)
			worth += weights->of[r] * (double)room->of[r];
		bool is_tight = worth >= bound_price(k, groups[i]) * (1 - 1e-6);
		for (int r = 0; is_tight && r < k->prepared->n_resources; r++)
			weights->room[r] += (double)room->of[r];
	}
	for (size_t i = 0; i < n; i++)
		k->prepared->weights[groups[i]] = *weights;
}

static int64_t bound_whole(double machines)
{
	int64_t whole = (int64_t)machines;

	return (double)whole < machines - 1e-6 ? whole + 1 : whole;
}

static void bound_add_part(const struct scale_packing *k, const size_t *groups, size_t n,
	const struct bound_part *part, struct scale_bound *ret)
{
	int64_t machines = 0;
	double lowest = -1;

	for (int r = 0; r < k->prepared->n_resources; r++) {
		int64_t all = bound_whole(part->machines[r]), half = bound_whole(part->half[r]);
		machines = all > machines ? all : machines;
		machines = half > machines ? half : machines;
	}
	for (size_t i = 0; i < n; i++)
		if (lowest < 0 || bound_price(k, groups[i]) < lowest)
			lowest = bound_price(k, groups[i]);
	struct scale_weights weights = {0};
	double price = bound_part_price(k, groups, n, part, &weights);
	bound_tell(k, groups, n, &weights);
	double whole = lowest * (double)machines;
	ret->nodes_least += machines;
	ret->price_least += price > whole ? price : whole;
}

static void bound_parts(const struct scale_packing *k, size_t *parts, const struct bound_part *sums,
	struct scale_bound *ret)
{
	size_t n_groups = k->prepared->model->groups.n;
	AUTO_FREE size_t *groups = mem_alloc(n_groups + 1, sizeof(*groups));

	for (size_t root = 0; root < n_groups; root++) {
		size_t n = 0;
		if (bound_root(parts, root) != root || sums[root].demand[SCALE_PODS] <= 0)
			continue;
		for (size_t g = 0; g < n_groups; g++)
			if (bound_root(parts, g) == root)
				groups[n++] = g;
		bound_add_part(k, groups, n, &sums[root], ret);
	}
}

/* The bound of pods on new machines and, with is_coming, on those that are on their way. */
static void bound_sum(const struct scale_packing *k, bool is_coming, struct scale_bound *ret)
{
	const struct scale_prepared *p = k->prepared;
	AUTO_FREE int64_t *bought = mem_alloc(p->lots.n + 1, sizeof(*bought));
	AUTO_FREE size_t *parts = mem_alloc(p->model->groups.n + 1, sizeof(*parts));
	AUTO_FREE size_t *of_lot = mem_alloc(p->lots.n + 1, sizeof(*of_lot));
	AUTO_FREE struct bound_part *sums = mem_alloc(p->model->groups.n + 1, sizeof(*sums));

	vec_foreach (const struct scale_entry, entry, &k->entries) {
		const struct scale_pool *pool = &k->pools.v[entry->pool];
		if (pool->supply == SCALE_NEW || (is_coming && pool->bins.v[entry->bin].node < 0))
			bought[entry->lot] += entry->count;
	}
	for (size_t g = 0; g < p->model->groups.n; g++)
		parts[g] = g;
	for (size_t i = 0; i < p->lots.n; i++)
		of_lot[i] = bought[i] ? bound_join(k, &p->lots.v[i], parts) : SIZE_MAX;
	for (size_t i = 0; i < p->lots.n; i++)
		if (of_lot[i] != SIZE_MAX)
			bound_add(k, &p->lots.v[i], (double)bought[i],
				&sums[bound_root(parts, of_lot[i])]);
	bound_parts(k, parts, sums, ret);
}

void plan_bound(const struct scale_packing *k, struct scale_bound *ret)
{
	const struct scale_prepared *p = k->prepared;
	struct scale_bound all = {0};
	bool is_coming = false;

	for (size_t g = 0; g < p->model->groups.n; g++)
		is_coming = is_coming || k->coming_pool[g] >= 0;
	*ret = (struct scale_bound){.nodes = k->n_bought, .price = k->price};
	bound_sum(k, false, ret);
	/* Weights are those of the plan that bought what is on its way: they are told last. */
	if (is_coming)
		bound_sum(k, true, &all);
	for (size_t g = 0; g < p->model->groups.n; g++)
		if (k->bought[g] && p->model->groups.v[g].price < 0)
			ret->price = ret->price_least = -1;
}

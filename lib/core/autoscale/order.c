/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which pods are placed, and a packing of all of them in one.
 */
#include <stdlib.h>

#include "core/autoscale/plan_impl.h"

enum { ROUNDS_MAX = 4 };

static double order_size(
	const struct scale_prepared *p, const struct scale_unit *unit, enum scale_order order)
{
	double all = 0;

	for (size_t i = unit->lot; i < unit->lot + unit->n_lots; i++) {
		const struct scale_lot *lot = &p->lots.v[i];
		const struct scale_amounts *request = &p->model->shapes.v[lot->shape].request;
		double sum = 0, most = 0, both = 0;
		for (int r = 0; r < p->n_resources; r++) {
			double share = (double)request->of[r] / (double)p->largest.of[r];
			sum += share;
			most = share > most ? share : most;
			both += r == SCALE_CPU || r == SCALE_MEMORY ? share : 0;
		}
		double size[SCALE_N_ORDERS] = {sum, most, both, 0};
		all += (unit->gang >= 0 ? sum * (double)lot->count : size[order]);
	}
	return all;
}

static int order_by_turn(const void *left, const void *right)
{
	const struct scale_turn *a = left, *b = right;

	if (a->unit->priority != b->unit->priority)
		return a->unit->priority > b->unit->priority ? -1 : 1;
	if ((a->unit->gang < 0) != (b->unit->gang < 0))
		return a->unit->gang < 0 ? 1 : -1;
	if (a->wants_gpu != b->wants_gpu)
		return a->wants_gpu ? -1 : 1;
	if (a->size != b->size)
		return a->size > b->size ? -1 : 1;
	return a->unit < b->unit ? -1 : a->unit > b->unit;
}

/* Pods of one priority, from a turn on, that are of use alone: on what exists, then by patterns.
 * What is left has its turn as ever. */
static void order_by_patterns(struct scale_packing *k, const struct scale_turns *turns, size_t from)
{
	const struct scale_prepared *p = k->prepared;
	struct scale_numbers lots = {0};

	for (size_t i = from; i < turns->n; i++) {
		const struct scale_unit *unit = turns->v[i].unit;
		int32_t lot = (int32_t)unit->lot, shape = p->lots.v[lot].shape;
		if (unit->priority != turns->v[from].unit->priority)
			break;
		if (!packing_is_open(k, unit) || p->marks[shape].n || p->apart[shape].n)
			continue;
		packing_on_present(k, lot);
		if (k->left[lot])
			*vec_push(&lots) = lot;
	}
	packing_by_patterns(k, &lots);
	vec_done(&lots);
}

/* The first turn of its priority without a gang. */
static bool order_is_single(const struct scale_turns *turns, size_t i)
{
	const struct scale_unit *unit = turns->v[i].unit, *last = i ? turns->v[i - 1].unit : NULL;

	return unit->gang < 0 && (!last || last->gang >= 0 || last->priority != unit->priority);
}

void packing_turns(const struct scale_prepared *p, enum scale_order order, struct scale_turns *ret)
{
	vec_foreach (const struct scale_unit, unit, &p->units)
		*vec_push(ret) =
			(struct scale_turn){unit, unit->wants_gpu, order_size(p, unit, order)};
	vec_sort(ret, order_by_turn);
}

void packing_make(struct scale_prepared *p, const struct scale_turns *turns,
	enum scale_buying buying, struct scale_packing *ret)
{
	struct scale_packing *k = ret;

	packing_start(p, buying, k);
	/* Machines that were bought for later units may have room for earlier ones. */
	int64_t before = -1;
	for (int round = 0; round < ROUNDS_MAX && k->helped > before; round++) {
		before = k->helped;
		for (size_t i = 0; i < turns->n; i++) {
			if (!round && buying == SCALE_BY_PATTERN && order_is_single(turns, i))
				order_by_patterns(k, turns, i);
			packing_unit(k, turns->v[i].unit);
		}
	}
}

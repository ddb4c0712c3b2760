/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New machines by patterns: for the largest pods that are left the machine, and the pods beside
 * them, that waste least of its price; as many of these as there are such pods; then the same for
 * the largest of the rest. What an amount is worth is what the bound (bound.c) found: a machine
 * that holds what its price is worth wastes nothing. First fit leaves gaps that the pods behind
 * do not fill well; a pattern looks for those that do. Large are pods that ask much of what has no
 * price, too: in the end nothing would be left to go beside them.
 *
 * Source: the sequential heuristic procedure for the cutting stock problem (R. W. Haessler, A
 * Heuristic Programming Solution to a Nonlinear Cutting Stock Problem, 1971).
 */
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/autoscale/plan_impl.h"

/* Steps of the search for one pattern, and of all of a packing. Pods that are left then are
 * placed one after the other. */
enum { PARTS_MAX = 16, ONE_STEPS_MAX = 2000, STEPS_MAX = 200 * 1000 };
#define NEARLY 1e-9

struct pattern {
	size_t group;
	double worth; /* of the pods in it */
	double share; /* of its price, that they are worth */
	size_t n;
	struct {
		int32_t lot;
		int64_t count;
	} parts[PARTS_MAX];
};

struct pattern_lot {
	int32_t lot;
	const struct scale_group *home; /* the first group that gives it machines */
	double size;
};
struct pattern_lots VEC_OF(struct pattern_lot);

struct pattern_search {
	struct scale_packing *k;
	struct pattern_lots open;           /* the largest first */
	int64_t steps;                      /* left */
	const struct scale_weights *weight; /* of the machine that is filled, as is: */
	struct pattern now, best;
};

static double pattern_worth(const struct pattern_search *s, const struct scale_amounts *amounts)
{
	double worth = 0;

	for (int r = 0; r < s->k->prepared->n_resources; r++)
		worth += s->weight->of[r] * (double)amounts->of[r];
	return worth;
}

static bool pattern_is_alike(const struct scale_group *a, const struct scale_group *b)
{
	return a->weight == b->weight && (a->price < 0) == (b->price < 0);
}

/* Whether machines of the group are the first choice for a lot, or as good as that. */
static bool pattern_takes(const struct scale_packing *k, const struct pattern_lot *open, size_t g)
{
	const struct scale_prepared *p = k->prepared;

	return pattern_is_alike(open->home, &p->model->groups.v[g]) &&
	       packing_fits(k, &p->lots.v[open->lot], g) == SCALE_GRANTED;
}

/* The best contents of room beside those of now, of open lots from a place on. The first lot is in
 * each pattern. */
static void pattern_fill(struct pattern_search *s, size_t from, const struct scale_amounts *room)
{
	const struct scale_prepared *p = s->k->prepared;
	const struct pattern before = s->now;
	double most = before.worth + pattern_worth(s, room);
	size_t at = before.n;

	if (at && before.worth > s->best.worth * (1 + NEARLY))
		s->best = before;
	for (size_t i = from; i < s->open.n && (at || !i) && at < PARTS_MAX; i++) {
		int32_t lot = s->open.v[i].lot;
		if (most <= s->best.worth * (1 + NEARLY) || --s->steps < 0)
			break;
		if (!pattern_takes(s->k, &s->open.v[i], s->now.group))
			continue;
		const struct scale_shape *shape = &p->model->shapes.v[p->lots.v[lot].shape];
		double worth = pattern_worth(s, &shape->request);
		int64_t count = scale_count(shape, room, p->n_resources, s->k->left[lot]);
		for (s->now.n = at + 1; count > 0 && s->steps >= 0; count--) {
			struct scale_amounts rest = *room;
			for (int r = 0; r < p->n_resources; r++)
				rest.of[r] -= count * shape->request.of[r];
			s->now.parts[at].lot = lot;
			s->now.parts[at].count = count;
			s->steps--;
			s->now.worth = before.worth + (double)count * worth;
			pattern_fill(s, i + 1, &rest);
		}
		s->now = before;
	}
}

static bool pattern_is_twin(
	const struct scale_prepared *p, const struct scale_group *a, const struct scale_group *b)
{
	size_t g = (size_t)(a - p->model->groups.v), h = (size_t)(b - p->model->groups.v);
	bool is_same = p->groups[g].machine_class == p->groups[h].machine_class;

	for (int r = 0; is_same && r < p->n_resources; r++)
		is_same = a->room.of[r] == b->room.of[r];
	return is_same;
}

static bool pattern_gives(const struct scale_packing *k, const struct scale_lot *lot, size_t g)
{
	enum scale_denial denial;

	return packing_fits(k, lot, g) == SCALE_GRANTED && packing_allowance(k, g, 1, &denial) > 0;
}

/* The best pattern with the first open lot in it; false: no group gives a machine for it. Of equal
 * machines the first are tried, of equal patterns the largest is taken. */
static bool pattern_find(struct pattern_search *s, struct pattern *ret)
{
	const struct scale_prepared *p = s->k->prepared;
	AUTO_FREE const struct scale_group **tried =
		mem_alloc(p->model->groups.n + 1, sizeof(*tried));
	const struct pattern_lot *first = &s->open.v[0];
	size_t n_tried = 0;

	*ret = (struct pattern){0};
	for (size_t i = 0; i < p->model->groups.n && s->k->pattern_steps < STEPS_MAX; i++) {
		const struct scale_group *group = p->ranked[i];
		size_t g = (size_t)(group - p->model->groups.v), twin = 0;
		s->k->pattern_steps++;
		if (!pattern_takes(s->k, first, g) ||
			!pattern_gives(s->k, &p->lots.v[first->lot], g))
			continue;
		while (twin < n_tried && !pattern_is_twin(p, tried[twin], group))
			twin++;
		if (twin < n_tried)
			continue;
		tried[n_tried++] = group;
		s->weight = &p->weights[g];
		s->steps = ONE_STEPS_MAX;
		s->now = s->best = (struct pattern){.group = g};
		pattern_fill(s, 0, &group->room);
		s->k->pattern_steps += ONE_STEPS_MAX - s->steps;
		s->best.share = s->best.worth / (group->price > 0 ? group->price : 1);
		if (s->best.share > ret->share * (1 + NEARLY) ||
			(s->best.share > ret->share * (1 - NEARLY) && s->best.worth > ret->worth))
			*ret = s->best;
	}
	return ret->n > 0;
}

static void pattern_buy(struct scale_packing *k, const struct pattern *pattern)
{
	int64_t n = k->left[pattern->parts[0].lot];
	enum scale_denial denial;

	for (size_t i = 0; i < pattern->n; i++) {
		int64_t times = k->left[pattern->parts[i].lot] / pattern->parts[i].count;
		n = times < n ? times : n;
	}
	n = packing_allowance(k, pattern->group, n, &denial);
	for (int64_t left = n; left > 0; left -= n) {
		n = left;
		size_t bin, pool = packing_buy(k, pattern->group, &n, &bin);
		for (int64_t m = 0; m < n; m++, bin++)
			for (size_t i = 0; i < pattern->n; i++)
				packing_take(k, pool, bin, pattern->parts[i].lot,
					pattern->parts[i].count);
	}
}

/* The first that is not done, and the rest behind it. */
static void pattern_close(struct pattern_search *s, bool drop_first)
{
	size_t n = 0;

	for (size_t i = drop_first; i < s->open.n; i++)
		if (s->k->left[s->open.v[i].lot])
			s->open.v[n++] = s->open.v[i];
	s->k->pattern_steps += (int64_t)s->open.n;
	s->open.n = n;
}

static const struct scale_group *pattern_home(const struct scale_packing *k, int32_t lot)
{
	const struct scale_prepared *p = k->prepared;

	for (size_t i = 0; i < p->model->groups.n; i++)
		if (pattern_gives(k, &p->lots.v[lot], (size_t)(p->ranked[i] - p->model->groups.v)))
			return p->ranked[i];
	return NULL;
}

/* Shares of the machines that are worth their price; of what has no price they count twice. */
static double pattern_size(const struct scale_prepared *p, const struct pattern_lot *open)
{
	const struct scale_lot *lot = &p->lots.v[open->lot];
	const struct scale_amounts *request = &p->model->shapes.v[lot->shape].request;
	const struct scale_weights *weights = &p->weights[open->home - p->model->groups.v];
	double size = 0;

	for (int r = 0; r < p->n_resources; r++)
		if (weights->room[r] > 0)
			size += (double)request->of[r] / weights->room[r] *
				(weights->of[r] > 0 ? 1 : 2);
	return size;
}

static int pattern_by_size(const void *left, const void *right)
{
	const struct pattern_lot *a = left, *b = right;

	if (a->size != b->size)
		return a->size > b->size ? -1 : 1;
	return a->lot < b->lot ? -1 : a->lot > b->lot;
}

void packing_by_patterns(struct scale_packing *k, const struct scale_numbers *lots)
{
	struct pattern_search s = {.k = k};
	struct pattern pattern;

	vec_foreach (const int32_t, lot, lots) {
		struct pattern_lot open = {.lot = *lot, .home = pattern_home(k, *lot)};
		open.size = open.home ? pattern_size(k->prepared, &open) : 0;
		if (open.home)
			*vec_push(&s.open) = open;
	}
	vec_sort(&s.open, pattern_by_size);
	while (s.open.n && k->pattern_steps < STEPS_MAX) {
		bool is_found = pattern_find(&s, &pattern);
		if (is_found)
			pattern_buy(k, &pattern);
		pattern_close(&s, !is_found);
	}
	vec_done(&s.open);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/mismatch.h"
#include "core/autoscale/plan_impl.h"

enum { TEXT_MAX = 4 << 20 };

/* The number of a text, which it gets when it is first asked for. */
static int32_t prepared_number(struct map *map, const char *text)
{
	void *known = map_get(map, text);

	if (known)
		return (int32_t)((intptr_t)known - 1);
	int32_t number = (int32_t)map->n;
	map_put(map, text, (void *)((intptr_t)number + 1));
	return number;
}

static int64_t prepared_add(int64_t a, int64_t b)
{
	return a > INT64_MAX / 2 - b ? INT64_MAX / 2 : a + b;
}

static void prepared_count_node(struct scale_prepared *p, const struct scale_pod *pod)
{
	struct scale_amounts *free = &p->free[pod->node];
	const struct scale_shape *shape = &p->model->shapes.v[pod->shape];

	for (int r = 0; r < p->n_resources; r++) {
		int64_t request = shape->request.of[r];
		bool is_more = request > 0 && free->of[r] / request < pod->count;
		free->of[r] = is_more ? 0 : free->of[r] - request * pod->count;
	}
	if (!pod->is_daemon)
		p->is_busy[pod->node] = true;
}

/* A machine's text: of its labels those that any shape asks for. */
static int32_t prepared_class(struct scale_prepared *p, struct map *keys, struct map *classes,
	const struct scale_machine *machine)
{
	AUTO_BUF struct buf text = buf_with(TEXT_MAX);

	vec_foreach (const struct scale_pair, label, machine->labels)
		if (map_get(keys, label->key))
			buf_addf(&text, "%zu:%s=%zu:%s\n", strlen(label->key), label->key,
				strlen(label->value), label->value);
	if (machine->name && map_get(keys, SCALE_NODE_NAME))
		buf_addf(&text, SCALE_NODE_NAME "=%s\n", machine->name);
	vec_foreach (const struct scale_taint, taint, machine->taints)
		buf_addf(&text, "!%zu:%s=%s:%d\n", strlen(taint->key), taint->key,
			taint->value ? taint->value : "", (int)taint->effect);
	if (text.full) { /* alike to none */
		buf_reset(&text);
		buf_addf(&text, "%zu", p->classes.n);
	}
	int32_t number = prepared_number(classes, text.data);
	if ((size_t)number == p->classes.n)
		*vec_push(&p->classes) = *machine;
	return number;
}

/* A node as it will be: the agents of a new one may still set labels of its group's template that
 * pods ask for, and take away taints that are not in there. Else the next one would be bought
 * meanwhile. */
static struct scale_machine prepared_machine(
	struct scale_prepared *p, const struct map *keys, size_t i)
{
	const struct scale_node *node = &p->model->nodes.v[i];
	const struct scale_machine is = {node->name, &node->labels, &node->taints};
	struct scale_expected *expected;
	bool differs = false;

	if (node->cordoned != SCALE_OPEN || !mismatch_may_settle(p->model, node))
		return is;
	const struct scale_group *group = &p->model->groups.v[node->group];
	expected = mem_alloc(1, sizeof(*expected));
	vec_foreach (const struct scale_pair, label, &node->labels)
		*vec_push(&expected->labels) = *label;
	vec_foreach (const struct scale_pair, label, &group->labels)
		if (map_get(keys, label->key) && !scale_pair(&node->labels, label->key)) {
			*vec_push(&expected->labels) = *label;
			differs = true;
		}
	vec_foreach (const struct scale_taint, taint, &node->taints) {
		if (taint->effect == SCALE_PREFER_NO_SCHEDULE ||
			mismatch_has_taint(&group->taints, taint))
			*vec_push(&expected->taints) = *taint;
		else
			differs = true;
	}
	scale_pairs_sort(&expected->labels);
	*vec_push(&p->expected) = expected;
	p->is_booting[i] = p->is_booting[i] || differs;
	return differs ? (struct scale_machine){node->name, &expected->labels, &expected->taints}
		       : is;
}

static void prepared_ask(const struct scale_shape *shape, struct map *keys)
{
	static char is_asked[] = "asked";

	vec_foreach (const struct scale_pair, pair, &shape->selector)
		map_put(keys, pair->key, is_asked);
	vec_foreach (const struct scale_term, term, &shape->affinity)
		vec_foreach (const struct scale_rule, rule, term)
			map_put(keys, rule->key, is_asked);
}

static void prepared_classes(struct scale_prepared *p)
{
	const struct scale_model *model = p->model;
	struct map keys = {0}, signatures = {0}, classes = {0};
	AUTO_FREE bool *is_asked = mem_alloc(model->shapes.n + 1, sizeof(*is_asked));

	/* Only pods that wait ask; those of daemons name the node where they are. */
	vec_foreach (const struct scale_pod, pod, &model->pods)
		is_asked[pod->shape] = is_asked[pod->shape] || pod->node < 0;

	for (size_t i = 0; i < model->shapes.n; i++) {
		AUTO_BUF struct buf text = buf_with(TEXT_MAX);
		if (is_asked[i])
			prepared_ask(&model->shapes.v[i], &keys);
		scale_constraints_text(&model->shapes.v[i], &text);
		p->shape_signature[i] = prepared_number(&signatures, text.data);
	}
	for (size_t i = 0; i < model->nodes.n; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		const struct scale_machine machine = prepared_machine(p, &keys, i);
		p->node_class[i] = prepared_class(p, &keys, &classes, &machine);
		const char *zone = scale_zone(machine.labels);
		if (!zone && node->group >= 0)
			zone = model->groups.v[node->group].zone;
		p->node_zone[i] = zone ? prepared_number(&p->zones, zone) : -1;
	}
	for (size_t i = 0; i < model->groups.n; i++) {
		const struct scale_group *group = &model->groups.v[i];
		p->groups[i].machine_class = prepared_class(p, &keys, &classes,
			&(struct scale_machine){NULL, &group->labels, &group->taints});
		const char *zone = scale_zone(&group->labels);
		zone = zone ? zone : group->zone;
		p->groups[i].zone = zone ? prepared_number(&p->zones, zone) : -1;
		p->groups[i].has_gpu = scale_wants_gpu(model, &group->room);
	}
	size_t n = signatures.n * p->classes.n + 1;
	if (n <= PLAN_FITS_MAX) {
		p->allows = mem_alloc(n, 1);
		memset(p->allows, -1, n);
	}
	map_done(&keys);
	map_done(&signatures);
	map_done(&classes);
}

bool prepared_allows(struct scale_prepared *p, int32_t shape, int32_t machine_class)
{
	size_t at = (size_t)p->shape_signature[shape] * p->classes.n + (size_t)machine_class;
	signed char unknown = -1, *known = p->allows ? &p->allows[at] : &unknown;

	if (*known < 0)
		*known = scale_allows(
			&p->model->shapes.v[shape], &p->classes.v[machine_class], NULL);
	return *known;
}

static void prepared_marks(struct scale_prepared *p)
{
	vec_foreach (const struct scale_shape, shape, &p->model->shapes)
		p->has_marks = p->has_marks || shape->apart.n;
	for (size_t i = 0; p->has_marks && i < p->model->shapes.n; i++) {
		const struct scale_shape *shape = &p->model->shapes.v[i];
		for (size_t k = 0; k < shape->marks.n; k++)
			*vec_push(&p->marks[i]) = prepared_number(&p->texts, shape->marks.v[k]);
		for (size_t k = 0; k < shape->apart.n; k++)
			*vec_push(&p->apart[i]) = prepared_number(&p->texts, shape->apart.v[k]);
	}
}

bool scale_is_late(const struct scale_model *model, const struct scale_instance *instance)
{
	return instance->since_ms && model->now_ms - instance->since_ms > model->limits.boot_ms;
}

bool prepared_sells(const struct scale_prepared *p, size_t g)
{
	return p->model->groups.v[g].wait_until_ms <= p->model->now_ms && !p->groups[g].lost;
}

/* Machines of a group that are no nodes: those that still may become one. */
static void prepared_count_group(struct scale_prepared *p, size_t g)
{
	const struct scale_group *group = &p->model->groups.v[g];
	struct scale_supply_of_group *supply = &p->groups[g];
	bool is_refused = group->wait_until_ms > p->model->now_ms;
	int64_t known = 0, dead = 0;

	vec_foreach (const struct scale_instance, instance, &group->instances) {
		if (instance->state == SCALE_STOPPING)
			continue;
		bool is_late = scale_is_late(p->model, instance);
		if (is_late && str_empty(instance->id)) {
			supply->lost++;
			continue;
		}
		known++;
		if (!str_empty(instance->id) && map_get(&p->instances, instance->id))
			continue;
		dead += is_late;
		supply->coming += !is_late;
	}
	/* Providers that name no instances: the nodes are what is there. */
	if (!group->instances.n)
		known = supply->nodes;
	/* Nodes whose machines are not known are some of those that seem to be no nodes. */
	supply->coming -= supply->nameless < supply->coming ? supply->nameless : supply->coming;
	/* Late machines that the group is no longer asked for are of no matter. */
	int64_t more = group->desired > known ? group->desired - known : 0;
	supply->lost = supply->lost < more ? supply->lost : more;
	if (!is_refused)
		supply->coming += more - supply->lost;
	supply->size = group->desired - (is_refused ? more : supply->lost);
	if (supply->size < supply->nodes + supply->coming + dead)
		supply->size = supply->nodes + supply->coming + dead;
	p->total = prepared_add(p->total, supply->size);
	if (group->price > 0)
		p->price += group->price * (double)supply->size;
}

static void prepared_groups(struct scale_prepared *p)
{
	const struct scale_model *model = p->model;
	struct map stopping = {0};

	vec_foreach (const struct scale_group, group, &model->groups)
		vec_foreach (const struct scale_instance, instance, &group->instances)
			if (instance->state == SCALE_STOPPING && !str_empty(instance->id))
				map_put(&stopping, instance->id, instance->id);
	for (size_t i = 0; i < model->nodes.n; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		struct scale_supply_of_group *supply =
			node->group >= 0 ? &p->groups[node->group] : NULL;
		p->is_leaving[i] = node->instance && map_get(&stopping, node->instance);
		if (supply && !node->has_no_instance && !p->is_leaving[i])
			supply->nodes++;
		if (node->instance)
			map_put(&p->instances, node->instance, node->name);
		else if (supply)
			supply->nameless++;
	}
	for (size_t g = 0; g < model->groups.n; g++)
		prepared_count_group(p, g);
	map_done(&stopping);
}

static void prepared_zones(struct scale_prepared *p)
{
	p->in_zone = mem_alloc(p->zones.n + 1, sizeof(*p->in_zone));
	for (size_t i = 0; i < p->model->groups.n; i++) {
		int32_t zone = p->groups[p->ranked[i] - p->model->groups.v].zone;
		*vec_push(&p->in_zone[zone + 1]) = p->ranked[i];
	}
}

static int prepared_rank(const void *left, const void *right)
{
	const struct scale_group *a = *(const struct scale_group *const *)left;
	const struct scale_group *b = *(const struct scale_group *const *)right;

	if (a->weight != b->weight)
		return a->weight < b->weight ? -1 : 1;
	if ((a->price < 0) != (b->price < 0))
		return a->price < 0 ? 1 : -1;
	if (a->price != b->price)
		return a->price < b->price ? -1 : 1;
	if (a->is_spot != b->is_spot)
		return a->is_spot ? -1 : 1;
	return strcmp(a->id, b->id);
}

static int prepared_by_lot(const void *left, const void *right)
{
	const struct scale_waiting *one = left, *other = right;
	const struct scale_pod *a = one->pod, *b = other->pod;

	if (one->priority != other->priority)
		return one->priority > other->priority ? -1 : 1;
	if (a->gang != b->gang)
		return a->gang > b->gang ? -1 : 1; /* those without one last */
	if (a->shape != b->shape)
		return a->shape < b->shape ? -1 : 1;
	int by_name = strcmp(a->name, b->name);
	return by_name ? by_name : a < b ? -1 : a > b;
}

static void prepared_add_unit(
	struct scale_prepared *p, const struct scale_waiting *waiting, size_t lot)
{
	const struct scale_pod *pod = waiting->pod;
	struct scale_unit *last = p->units.n ? &p->units.v[p->units.n - 1] : NULL;

	if (!last || pod->gang < 0 || last->gang != pod->gang) {
		last = vec_push(&p->units);
		*last = (struct scale_unit){
			.priority = waiting->priority, .gang = pod->gang, .lot = lot};
	}
	last->n_lots++;
}

/* Pods of a gang that are of use only together: all that wait, or what its least number lacks. */
static void prepared_at_once(struct scale_prepared *p)
{
	vec_foreach (struct scale_unit, unit, &p->units) {
		if (unit->gang < 0)
			continue;
		int64_t min = p->model->gangs.v[unit->gang].min;
		unit->at_once = min > 0 ? min - p->gang_running[unit->gang] : unit->count;
		if (unit->at_once > unit->count)
			unit->at_once = unit->count;
	}
}

static void prepared_pods(struct scale_prepared *p)
{
	const struct scale_model *model = p->model;

	vec_foreach (const struct scale_pod, pod, &model->pods) {
		if (pod->node < 0 && !pod->is_daemon)
			*vec_push(&p->waiting) = (struct scale_waiting){pod, pod->priority};
		p->has_singles = p->has_singles || (pod->node < 0 && pod->gang < 0);
		if (pod->gang < 0 || pod->node < 0)
			continue;
		p->gang_running[pod->gang] += pod->count;
		p->gang_zone[pod->gang] = p->node_zone[pod->node];
		p->gang_group[pod->gang] = model->nodes.v[pod->node].group;
	}
	AUTO_FREE int32_t *most = mem_alloc(model->gangs.n + 1, sizeof(*most));
	for (size_t i = 0; i < model->gangs.n; i++)
		most[i] = INT32_MIN;
	vec_foreach (const struct scale_waiting, waiting, &p->waiting)
		if (waiting->pod->gang >= 0 && waiting->priority > most[waiting->pod->gang])
			most[waiting->pod->gang] = waiting->priority;
	vec_foreach (struct scale_waiting, waiting, &p->waiting)
		if (waiting->pod->gang >= 0)
			waiting->priority = most[waiting->pod->gang];
	vec_sort(&p->waiting, prepared_by_lot);
}

static void prepared_lots(struct scale_prepared *p)
{
	const struct scale_model *model = p->model;
	const struct scale_waiting *before = NULL;

	for (size_t i = 0; i < p->waiting.n; i++) {
		const struct scale_waiting *waiting = &p->waiting.v[i];
		const struct scale_pod *pod = waiting->pod;
		if (!before || before->pod->shape != pod->shape || before->pod->gang != pod->gang ||
			before->priority != waiting->priority) {
			*vec_push(&p->lots) =
				(struct scale_lot){.shape = pod->shape, .gang = pod->gang, .at = i};
			prepared_add_unit(p, waiting, p->lots.n - 1);
			p->lots.v[p->lots.n - 1].unit = (int32_t)p->units.n - 1;
		}
		before = waiting;
		struct scale_lot *lot = &p->lots.v[p->lots.n - 1];
		lot->count += pod->count;
		lot->n++;
		p->units.v[p->units.n - 1].count += pod->count;
	}
	vec_foreach (const struct scale_lot, lot, &p->lots) {
		struct scale_unit *unit = &p->units.v[lot->unit];
		const struct scale_shape *shape = &model->shapes.v[lot->shape];
		unit->wants_gpu = unit->wants_gpu || scale_wants_gpu(model, &shape->request);
		unit->is_unsupported = unit->is_unsupported || shape->unsupported.n;
	}
}

/* A node that is new and lacks what its group's machines have will have it soon: devices are
 * registered after the node. */
static void prepared_free(struct scale_prepared *p, size_t i)
{
	const struct scale_model *model = p->model;
	const struct scale_node *node = &model->nodes.v[i];
	const struct scale_group *group = node->group >= 0 ? &model->groups.v[node->group] : NULL;

	p->free[i] = node->room;
	if (!group || !group->has_template || !node->created_ms ||
		model->now_ms - node->created_ms > model->limits.boot_ms)
		return;
	for (int r = SCALE_RESOURCES_FIXED; r < p->n_resources; r++)
		if (!node->room.of[r] && group->room.of[r] > 0) {
			p->free[i].of[r] = group->room.of[r];
			p->is_booting[i] = true;
		}
}

void prepared_make(const struct scale_model *model, struct scale_prepared *ret)
{
	size_t n_nodes = model->nodes.n + 1, n_groups = model->groups.n + 1;
	size_t n_shapes = model->shapes.n + 1, n_gangs = model->gangs.n + 1;
	struct scale_prepared *p = ret;

	*p = (struct scale_prepared){.model = model, .n_resources = scale_n_resources(model)};
	p->free = mem_alloc(n_nodes, sizeof(*p->free));
	p->is_leaving = mem_alloc(n_nodes, sizeof(*p->is_leaving));
	p->is_booting = mem_alloc(n_nodes, sizeof(*p->is_booting));
	p->has_other = mem_alloc(n_shapes, 1);
	memset(p->has_other, -1, n_shapes);
	p->is_busy = mem_alloc(n_nodes, sizeof(*p->is_busy));
	p->node_class = mem_alloc(n_nodes, sizeof(*p->node_class));
	p->node_zone = mem_alloc(n_nodes, sizeof(*p->node_zone));
	p->shape_signature = mem_alloc(n_shapes, sizeof(*p->shape_signature));
	p->groups = mem_alloc(n_groups, sizeof(*p->groups));
	p->weights = mem_alloc(n_groups, sizeof(*p->weights));
	p->ranked = mem_alloc(n_groups, sizeof(*p->ranked));
	p->marks = mem_alloc(n_shapes, sizeof(*p->marks));
	p->apart = mem_alloc(n_shapes, sizeof(*p->apart));
	p->gang_zone = mem_alloc(n_gangs, sizeof(*p->gang_zone));
	p->gang_group = mem_alloc(n_gangs, sizeof(*p->gang_group));
	p->gang_running = mem_alloc(n_gangs, sizeof(*p->gang_running));
	for (size_t i = 0; i < model->gangs.n; i++)
		p->gang_zone[i] = p->gang_group[i] = -1;
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
		p->largest.of[r] = 1;
	for (size_t i = 0; i < model->nodes.n; i++) {
		prepared_free(p, i);
		for (int r = 0; r < p->n_resources; r++)
			if (p->free[i].of[r] > p->largest.of[r])
				p->largest.of[r] = p->free[i].of[r];
	}
	p->no_price = 1;
	for (size_t i = 0; i < model->groups.n; i++) {
		p->ranked[i] = &model->groups.v[i];
		if (model->groups.v[i].price >= 0)
			p->no_price = 0;
		for (int r = 0; r < p->n_resources; r++)
			if (model->groups.v[i].room.of[r] > p->largest.of[r])
				p->largest.of[r] = model->groups.v[i].room.of[r];
	}
	for (int r = 0; r < p->n_resources; r++)
		p->scale[r] = POOL_WHOLE / (double)p->largest.of[r];
	qsort(p->ranked, model->groups.n, sizeof(*p->ranked), prepared_rank);
	vec_foreach (const struct scale_pod, pod, &model->pods)
		if (pod->node >= 0)
			prepared_count_node(p, pod);
	prepared_classes(p);
	prepared_marks(p);
	prepared_groups(p);
	prepared_zones(p);
	prepared_pods(p);
	prepared_lots(p);
	prepared_at_once(p);
	if (2 * n_shapes * n_groups <= PLAN_FITS_MAX)
		p->fits = mem_alloc(2 * n_shapes * n_groups, 1);
}

void prepared_done(struct scale_prepared *p)
{
	for (size_t i = 0; i < p->model->shapes.n; i++) {
		vec_done(&p->marks[i]);
		vec_done(&p->apart[i]);
	}
	vec_foreach (struct scale_expected *, expected, &p->expected) {
		vec_done(&(*expected)->labels);
		vec_done(&(*expected)->taints);
		free(*expected);
	}
	vec_done(&p->expected);
	free(p->free);
	free(p->is_busy);
	free(p->is_leaving);
	free(p->is_booting);
	free(p->has_other);
	free(p->node_class);
	free(p->node_zone);
	free(p->shape_signature);
	free(p->groups);
	for (size_t i = 0; i <= p->zones.n; i++)
		vec_done(&p->in_zone[i]);
	free(p->in_zone);
	free(p->weights);
	free(p->ranked);
	free(p->marks);
	free(p->apart);
	free(p->allows);
	free(p->fits);
	free(p->gang_zone);
	free(p->gang_group);
	free(p->gang_running);
	vec_done(&p->classes);
	vec_done(&p->waiting);
	vec_done(&p->lots);
	vec_done(&p->units);
	map_done(&p->zones);
	map_done(&p->texts);
	map_done(&p->instances);
}

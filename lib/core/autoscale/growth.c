/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/growth.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/podspec.h"
#include "core/autoscale/snapshot.h"
#include "kube/status/object.h"

enum {
	GROWTH_HEAD = 4 << 10,              /* of the text: all but the lists */
	GROWTH_GROUPS = GROWTH_MAX / 4 * 3, /* what groups may take at most, with */
	GROWTH_NAMES = GROWTH_MAX / 4,      /* names of nodes */
	GROWTH_REASON_MAX = 160,
	GROWTH_NAME_MAX = 400, /* NAMESPACE/NAME of a pod */
	GROWTH_CLUSTER_MAX = 253,
	GROWTH_NODE_MAX = 253,
	GROWTH_EVERY_MAX_S = 86400,
	GROWTH_LATE_MS = 60 * 1000,
	GROWTH_LATE_TURNS = 3,
	GROWTH_SILENT_MS = 5 * 60 * 1000,
};

/* Writing. */

/* A unit of what waits together: a gang, or a pod without one. */
struct growth_unit {
	enum { UNIT_NONE, UNIT_COMES, UNIT_IS_LEFT } state;
	int32_t shape, gang;
	int32_t group;       /* of the machine that comes last */
	int64_t expected_ms; /* of that; 0: not known */
};

/* A list, and how many bytes of it are left. */
struct growth_list {
	struct json *json;
	size_t left;
	int64_t left_out;
};

static void growth_add(struct growth_list *list, struct json *take)
{
	AUTO_BUF struct buf text = buf_with(GROWTH_MAX);

	json_print(take, &text);
	if (list->left_out || text.full || text.len + 1 > list->left) {
		list->left_out++;
		json_free(take);
		return;
	}
	list->left -= text.len + 1;
	json_add(list->json, take);
}

static void growth_set_time(struct json *to, const char *key, int64_t wall_ms)
{
	char text[CLOCK_TEXT_SIZE];

	clock_format(wall_ms, text);
	json_set_str(to, key, text);
}

/* The text before has it where no node is there to tell. */
static int64_t growth_boot_before(const struct growth *before, const char *id)
{
	for (size_t i = 0; before && i < before->model.groups.n; i++)
		if (str_eq(before->model.groups.v[i].id, id))
			return growth_boot_ms(before, i);
	return 0;
}

/* The last node of each group whose machine is known, or NULL. The caller frees. */
static const struct scale_node **growth_last_nodes(const struct scale_model *model)
{
	const struct scale_node **last = mem_alloc(model->groups.n + 1, sizeof(const void *));

	vec_foreach (const struct scale_node, node, &model->nodes) {
		int32_t g = node->group;
		if (g >= 0 && node->instance &&
			(!last[g] || node->created_ms > last[g]->created_ms))
			last[g] = node;
	}
	return last;
}

/* How long machines of a group take to become nodes: as it says, or as the last one took. 0: not
 * known. */
static int64_t growth_boot(
	const struct growth *before, const struct scale_group *group, const struct scale_node *last)
{
	if (group->boot_ms > 0)
		return group->boot_ms;
	vec_foreach (const struct scale_instance, instance, &group->instances) {
		if (!last || !instance->since_ms || !str_eq(instance->id, last->instance))
			continue;
		int64_t boot_ms = last->created_ms - instance->since_ms;
		if (boot_ms > 0 && boot_ms <= SCALE_BOOT_MAX * 1000LL)
			return boot_ms;
	}
	return growth_boot_before(before, group->id);
}

void growth_learn_boots(const struct growth *before, struct scale_model *model)
{
	AUTO_FREE const struct scale_node **last = growth_last_nodes(model);

	for (size_t i = 0; i < model->groups.n; i++) {
		struct scale_group *group = &model->groups.v[i];
		group->boot_ms = (growth_boot(before, group, last[i]) + 999) / 1000 * 1000;
	}
}

/* Add a name to a list while there is space in bytes, once. */
static bool growth_add_name(struct json *list, const char *name, struct map *known, size_t *left)
{
	size_t len = name ? strlen(name) : 0;

	if (!len || len > GROWTH_NODE_MAX || len + 3 > *left || map_get(known, name))
		return false;
	*left -= len + 3;
	map_put(known, name, list);
	json_add_str(list, name);
	return true;
}

static void growth_write_gone(const struct growth_turn *turn, const struct scale_group *group,
	struct map *known, size_t *left, struct json *to)
{
	static const char *const from[] = {"nodes", "gone"};
	const struct json *one =
		turn->before ? json_first(json_get(turn->before->json, "groups")) : NULL;
	struct json *gone = json_array();

	while (one && !str_eq(json_get_str(one, "id"), group->id))
		one = json_next(one);
	for (size_t i = 0; one && i < ARRAY_LEN(from); i++)
		for (const struct json *m = kube_first(one, from[i]);
			m && json_count(gone) < GROWTH_GONE_MAX; m = json_next(m))
			growth_add_name(gone, json_str(m), known, left);
	if (json_count(gone))
		json_set(to, "gone", gone);
	else
		json_free(gone);
}

/* Facts of a turn about its groups: how long machines take, and lists of their nodes. */
struct growth_facts {
	int64_t *boot_ms;
	struct json **nodes;
	struct map known; /* names of nodes that are there, and those that have been written */
	size_t left;      /* bytes for names */
};

static void growth_gather(const struct growth_turn *turn, struct growth_facts *ret)
{
	const struct scale_model *model = turn->model;
	size_t n = model->groups.n;
	AUTO_FREE const struct scale_node **last = growth_last_nodes(model);

	ret->boot_ms = mem_alloc(n + 1, sizeof(*ret->boot_ms));
	ret->nodes = mem_alloc(n + 1, sizeof(*ret->nodes));
	ret->left = GROWTH_NAMES;
	for (size_t i = 0; i < n; i++)
		ret->nodes[i] = model->groups.v[i].price >= 0 ? json_array() : NULL;
	vec_foreach (const struct scale_node, node, &model->nodes)
		if (node->group >= 0 && ret->nodes[node->group])
			growth_add_name(
				ret->nodes[node->group], node->name, &ret->known, &ret->left);
	for (size_t i = 0; i < n; i++)
		ret->boot_ms[i] = growth_boot(turn->before, &model->groups.v[i], last[i]);
}

static void growth_facts_done(struct growth_facts *facts)
{
	free(facts->boot_ms);
	free(facts->nodes); /* the lists are in the text */
	map_done(&facts->known);
}

static void growth_write_groups(
	const struct growth_turn *turn, struct growth_facts *facts, struct growth_list *ret)
{
	/* Of interest to the one who runs the autoscaler, or known otherwise. */
	static const char *const kept_back[] = {
		"provider", "min", "weight", "mismatches", "instances", "failure_text", "refused"};
	const struct scale_model *model = turn->model;

	for (size_t i = 0; i < model->groups.n; i++) {
		const struct scale_group *group = &model->groups.v[i];
		struct json *one = snapshot_write_group(model, group);

		for (size_t k = 0; k < ARRAY_LEN(kept_back); k++)
			json_remove(one, kept_back[k]);
		if (facts->boot_ms[i] > 0)
			json_set_int(one, "boot_s", facts->boot_ms[i] / 1000);
		/* The reader should take it for full, as it is. */
		if (group->refused)
			json_set_int(one, "max", group->desired);
		if (facts->nodes[i]) {
			json_set(one, "nodes", facts->nodes[i]);
			growth_write_gone(turn, group, &facts->known, &facts->left, one);
		}
		growth_add(ret, one);
	}
}

/* A machine on its way was begun when the last instance of its group was, or before. */
int64_t growth_expected_ms(
	const struct scale_model *model, const struct scale_placement *placement, int64_t boot_ms)
{
	const struct scale_group *group = &model->groups.v[placement->group];
	int64_t now_ms = model->now_ms, since_ms = 0;

	if (placement->supply == SCALE_ON_ITS_WAY)
		vec_foreach (const struct scale_instance, instance, &group->instances)
			if (instance->state != SCALE_STOPPING && instance->since_ms > since_ms)
				since_ms = instance->since_ms;
	if (boot_ms <= 0)
		return 0;
	since_ms = since_ms && since_ms < now_ms ? since_ms : now_ms;
	return since_ms + boot_ms > now_ms ? since_ms + boot_ms : now_ms;
}

static void growth_take(const struct growth_turn *turn, const int64_t *boot_ms,
	const struct scale_placement *placement, struct growth_unit *unit)
{
	bool is_left = placement->supply == SCALE_NOT_HELPED;

	if (is_left)
		unit->state = UNIT_IS_LEFT;
	/* A node that starts is of no group where nobody knows its machine. */
	if (unit->state == UNIT_IS_LEFT || (!is_left && placement->group < 0) ||
		(placement->supply != SCALE_NEW && placement->supply != SCALE_ON_ITS_WAY))
		return;
	int64_t expected_ms = growth_expected_ms(turn->model, placement, boot_ms[placement->group]);
	/* Not known is later than all that is. */
	bool is_later = unit->state == UNIT_NONE ||
			(unit->expected_ms && (!expected_ms || expected_ms > unit->expected_ms));
	unit->state = UNIT_COMES;
	if (is_later) {
		unit->group = placement->group;
		unit->expected_ms = expected_ms;
	}
}

/* Pods of a shape or gang that are left stand together: where those of each begin, from 1. */
struct growth_reasons {
	size_t *of_shape, *of_gang;
};

static void growth_find_reasons(const struct growth_turn *turn, struct growth_reasons *ret)
{
	const struct scale_lefts *lefts = &turn->plan->left;

	ret->of_shape = mem_alloc(turn->model->shapes.n + 1, sizeof(*ret->of_shape));
	ret->of_gang = mem_alloc(turn->model->gangs.n + 1, sizeof(*ret->of_gang));
	for (size_t i = lefts->n; i-- > 0;) {
		const struct scale_left *left = &lefts->v[i];
		if (left->gang >= 0)
			ret->of_gang[left->gang] = i + 1;
		else
			ret->of_shape[left->shape] = i + 1;
	}
}

/* A reason for everybody: the texts of providers and of who pays are not. */
static char *growth_reason(const struct scale_model *model, const struct scale_reason *reason)
{
	const struct scale_group *group =
		reason->group >= 0 ? &model->groups.v[reason->group] : NULL;

	if (!group)
		return mem_printf("%.*s", GROWTH_REASON_MAX, reason->text);
	if (group->refused)
		return mem_printf("%.*s: it is not for the autoscaler to change", GROWTH_REASON_MAX,
			group->id);
	if (group->wait_until_ms > model->now_ms)
		return mem_printf("%.*s: it waits after a failure%s%s", GROWTH_REASON_MAX,
			group->id, group->failure == SCALE_NO_FAILURE ? "" : ": ",
			scale_failure_names[group->failure]);
	if (!group->has_template)
		return mem_printf("%.*s: it is not known what its machines are like",
			GROWTH_REASON_MAX, group->id);
	return mem_printf(
		"%.*s: %.*s", GROWTH_REASON_MAX, group->id, GROWTH_REASON_MAX, reason->text);
}

static struct json *growth_write_reasons(const struct growth_turn *turn,
	const struct growth_reasons *found, const struct growth_unit *unit)
{
	const struct scale_plan *plan = turn->plan;
	size_t from = unit->gang >= 0 ? found->of_gang[unit->gang] : found->of_shape[unit->shape];
	struct json *list = json_array();

	for (size_t i = from, n = 0; i > 0 && i <= plan->left.n; i++) {
		const struct scale_left *left = &plan->left.v[i - 1];
		if (left->gang != unit->gang || (unit->gang < 0 && left->shape != unit->shape))
			break;
		vec_foreach (const struct scale_reason, reason, &plan->reasons.v[left->reasons]) {
			if (n++ >= GROWTH_REASONS_MAX)
				return list;
			AUTO_FREE char *text = growth_reason(turn->model, reason);
			json_add_str(list, text);
		}
	}
	return list;
}

static void growth_write_waiting(
	const struct growth_turn *turn, const int64_t *boot_ms, struct growth_list *ret)
{
	const struct scale_model *model = turn->model;
	size_t n_gangs = model->gangs.n, n = n_gangs + model->pods.n;
	AUTO_FREE struct growth_unit *units = mem_alloc(n + 1, sizeof(*units));
	struct growth_reasons found = {0};

	growth_find_reasons(turn, &found);
	vec_foreach (const struct scale_placement, placement, &turn->plan->placements) {
		const struct scale_pod *pod = &model->pods.v[placement->pod];
		struct growth_unit *unit = pod->gang >= 0
						   ? &units[pod->gang]
						   : &units[n_gangs + (size_t)placement->pod];
		unit->shape = pod->shape;
		unit->gang = pod->gang;
		growth_take(turn, boot_ms, placement, unit);
	}
	for (size_t i = 0; i < n; i++) {
		const struct growth_unit *unit = &units[i];
		const char *name =
			i < n_gangs ? model->gangs.v[i].name : model->pods.v[i - n_gangs].name;
		if (unit->state == UNIT_NONE)
			continue;
		if (json_count(ret->json) >= GROWTH_WAITING_MAX || strlen(name) > GROWTH_NAME_MAX) {
			ret->left_out++;
			continue;
		}
		struct json *one = json_object();
		json_set_str(one, "name", name);
		if (unit->state == UNIT_COMES)
			json_set_str(one, "group", model->groups.v[unit->group].id);
		if (unit->state == UNIT_COMES && unit->expected_ms)
			growth_set_time(one, "expected", unit->expected_ms);
		if (unit->state == UNIT_IS_LEFT)
			json_set(one, "reasons", growth_write_reasons(turn, &found, unit));
		growth_add(ret, one);
	}
	free(found.of_shape);
	free(found.of_gang);
}

struct json *growth_write(const struct growth_turn *turn)
{
	const struct scale_model *model = turn->model;
	struct growth_list groups = {json_array(), GROWTH_GROUPS, 0};
	struct growth_list waiting = {json_array(), GROWTH_MAX - GROWTH_HEAD, 0};
	struct json *json = json_object(), *data = json_object();
	AUTO(growth_facts_done) struct growth_facts facts = {0};
	AUTO_BUF struct buf text = buf_with(GROWTH_MAX);

	growth_gather(turn, &facts);
	json_set_int(json, "version", 1);
	if (model->cluster && strlen(model->cluster) <= GROWTH_CLUSTER_MAX)
		json_set_str(json, "cluster", model->cluster);
	growth_set_time(json, "updated", model->now_ms);
	json_set_int(json, "every_s", turn->every_ms / 1000);
	json_set_bool(json, "applies", turn->applies);
	growth_write_groups(turn, &facts, &groups);
	waiting.left -= GROWTH_GROUPS - groups.left;
	growth_write_waiting(turn, facts.boot_ms, &waiting);
	json_set(json, "groups", groups.json);
	json_set(json, "waiting", waiting.json);
	if (groups.left_out)
		json_set_int(json, "more_groups", groups.left_out);
	if (waiting.left_out)
		json_set_int(json, "more_waiting", waiting.left_out);
	json_print(json, &text);
	BUG_ON(text.full);
	json_free(json);
	json_set_str(data, GROWTH_KEY, text.data);
	return data;
}

/* Reading. */

static int growth_bad(struct err *err, const char *what)
{
	return err_set(err, E_SCALE_SNAPSHOT, "what the autoscaler says: %s", what);
}

/* Read what is known of a group: a later version may say more. */
static int growth_read_groups(const struct json *list, struct growth *ret, struct err *err)
{
	static const char *const known[] = {"id", "region", "zone", "spot", "price", "max",
		"desired", "template", "failure", "wait_until"};

	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		AUTO_JSON struct json *group = json_object();
		void *number = (void *)(intptr_t)(ret->model.groups.n + 1);
		for (size_t i = 0; i < ARRAY_LEN(known); i++)
			if (json_get(m, known[i]))
				json_set(group, known[i], json_clone(json_get(m, known[i])));
		int r = snapshot_read_group(group, &ret->model, err);
		if (r < 0)
			return r;
		for (const struct json *name = kube_first(m, "gone"); name; name = json_next(name))
			if (json_str(name))
				map_put(&ret->nodes, json_str(name), number);
	}
	/* A name may have been that of a node of another group before. */
	intptr_t number = 0;
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		number++;
		for (const struct json *name = kube_first(m, "nodes"); name; name = json_next(name))
			if (json_str(name))
				map_put(&ret->nodes, json_str(name), (void *)number);
	}
	return 0;
}

static int growth_read_all(int64_t now_ms, struct growth *ret, struct err *err)
{
	const struct json *json = ret->json, *groups = json_get(json, "groups");
	const char *updated = json_get_str(json, "updated");
	int64_t every_s = json_get_int(json, "every_s", 0), age_ms;

	if (json_get_int(json, "version", 0) != 1)
		return growth_bad(err, "version is not 1");
	if (!updated || clock_parse(updated, &ret->updated_ms, NULL) < 0)
		return growth_bad(err, "updated is no time");
	if (every_s < 1 || every_s > GROWTH_EVERY_MAX_S)
		return growth_bad(err, "every_s is not within 1 and 86,400");
	if (groups && json_kind(groups) != JSON_ARRAY)
		return growth_bad(err, "groups is no list");
	ret->model.cluster = mem_strdup(json_get_str(json, "cluster"));
	ret->model.now_ms = ret->updated_ms;
	ret->applies = json_get_bool(json, "applies", false);
	/* A text from the future says nothing about now, either: a clock is wrong. */
	age_ms = now_ms > ret->updated_ms ? now_ms - ret->updated_ms : ret->updated_ms - now_ms;
	ret->is_silent = age_ms > GROWTH_SILENT_MS &&
			 age_ms > GROWTH_LATE_TURNS * every_s * 1000 + GROWTH_LATE_MS;
	return growth_read_groups(groups, ret, err);
}

int growth_read(const struct json *map, int64_t now_ms, struct growth *ret, struct err *err)
{
	const char *text = json_get_str(json_get(map, "data"), GROWTH_KEY);

	*ret = (struct growth){0};
	scale_model_init(&ret->model);
	if (!text || json_parse(text, strlen(text), GROWTH_MAX, "", &ret->json, NULL) < 0)
		return growth_bad(err, "it is no JSON, or too long");
	return growth_read_all(now_ms, ret, err);
}

void growth_done(struct growth *growth)
{
	scale_model_done(&growth->model);
	json_free(growth->json);
	map_done(&growth->nodes);
	*growth = (struct growth){0};
}

const struct json *growth_waiting(const struct growth *growth, const char *name)
{
	for (const struct json *m = kube_first(growth->json, "waiting"); m; m = json_next(m))
		if (name && str_eq(json_get_str(m, "name"), name))
			return m;
	return NULL;
}

int64_t growth_boot_ms(const struct growth *growth, size_t group)
{
	const struct json *m = json_first(json_get(growth->json, "groups"));
	int64_t boot_s;

	for (; m && group; group--)
		m = json_next(m);
	boot_s = json_get_int(m, "boot_s", 0);
	return boot_s > 0 && boot_s <= SCALE_BOOT_MAX ? boot_s * 1000 : 0;
}

int growth_group_of(const struct growth *growth, const char *node)
{
	return (int)(intptr_t)map_get(&growth->nodes, node) - 1;
}

bool growth_may_buy(const struct growth *growth, size_t group)
{
	const struct scale_group *g = &growth->model.groups.v[group];

	return g->desired < g->max && g->wait_until_ms <= growth->updated_ms;
}

/* Groups that may have one more machine come first, those without a price behind all others. */
static bool growth_is_better(const struct growth *growth, size_t a, size_t b)
{
	double price = growth->model.groups.v[a].price, other = growth->model.groups.v[b].price;
	bool may = growth_may_buy(growth, a), may_other = growth_may_buy(growth, b);

	return may != may_other ? may : price >= 0 && (other < 0 || price < other);
}

/* Pods of a run are bound to each other only: any group that is in a zone may be in theirs. Takes
 * such terms from the rest of a spec. */
static void growth_take_zones(const struct json *spec, struct json *rest, struct strv *ret_keys)
{
	const struct json *term = kube_first(
		spec, "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution");
	struct json *others = json_array();

	for (; term; term = json_next(term)) {
		const char *key = json_get_str(term, "topologyKey");
		if (key && scale_is_zone(key))
			strv_add(ret_keys, key);
		else
			json_add(others, json_clone(term));
	}
	json_set(json_sub(json_sub(rest, "affinity"), "podAffinity"),
		"requiredDuringSchedulingIgnoredDuringExecution", others);
}

static void growth_shape(struct growth *growth, const struct json *spec, struct scale_shape *ret)
{
	struct podspec podspec = {.model = &growth->model};
	AUTO_JSON struct json *rest = json_clone(spec);
	AUTO_STRV struct strv zones = {0};
	const struct podspec_pod pod = {.kube_namespace = "", .spec = rest};

	/* Where its claims are bound is not known here, and most are for any node. */
	json_remove(rest, "volumes");
	growth_take_zones(spec, rest, &zones);
	podspec_shape(&podspec, &pod, ret);
	for (size_t i = 0; i < zones.n; i++)
		podspec_needs_label(ret, zones.v[i]);
	podspec_done(&podspec);
}

int growth_group_for(struct growth *growth, const struct json *spec, struct strv *ret_reasons)
{
	struct scale_model *model = &growth->model;
	AUTO(scale_shape_done) struct scale_shape shape = {0};
	int best = -1;

	growth_shape(growth, spec, &shape);
	for (size_t i = 0; i < model->groups.n; i++) {
		const struct scale_group *group = &model->groups.v[i];
		AUTO_FREE char *why = NULL;
		bool may = group->max > 0 && group->has_template &&
			   scale_fits(model, &shape, &group->labels, &group->taints, &group->room,
				   &why);
		if (may && (best < 0 || growth_is_better(growth, i, (size_t)best)))
			best = (int)i;
		else if (!may && ret_reasons->n < GROWTH_REASONS_MAX)
			strv_addf(ret_reasons, "%.*s: %.*s", GROWTH_REASON_MAX, group->id,
				GROWTH_REASON_MAX,
				why               ? why
				: group->max == 0 ? "its maximum is 0"
						  : "what its machines are like is not known");
	}
	if (best >= 0)
		strv_done(ret_reasons);
	return best;
}

double growth_share(struct growth *growth, size_t group, const struct json *spec)
{
	AUTO(scale_shape_done) struct scale_shape shape = {0};
	double most = 0;

	growth_shape(growth, spec, &shape);
	const struct scale_amounts *room = &growth->model.groups.v[group].room;
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
		double part = room->of[r] > 0 ? (double)shape.request.of[r] / (double)room->of[r]
					      : shape.request.of[r] > 0;
		most = part > most ? part : most;
	}
	return most < 1 ? most : 1;
}

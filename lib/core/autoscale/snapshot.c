/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/snapshot.h"

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/mismatch.h"
#include "core/autoscale/snapshot_words.h"
#include "kube/status/object.h"

enum {
	AMOUNT_TEXT_MAX = 60,
	SHAPE_TEXT_MAX = 1 << 20,
	PODS_PER_NODE = 110, /* kubelet's --max-pods */
	COUNT_MAX = 1000 * 1000,
	PODS_MAX = 10 * 1000 * 1000, /* with counts */
	MARKS_MAX = 64,
	GANGS_MAX = 100 * 1000,
};

/* The place of what is read, for errors: "pods[3]". */
struct snapshot_at {
	const char *list;
	size_t i;
	const char *name;  /* instead of a number; or NULL */
	const char *group; /* one that a provider reports, instead of all of that; or NULL */
};

struct snapshot_reader {
	struct scale_model *model;
	struct map shapes, nodes, gangs, groups; /* numbers from 1 by name */
	int64_t n_pods;
};

static int snapshot_bad(
	const struct snapshot_at *at, const char *member, const char *what, struct err *err)
{
	const char *dot = *at->list && *member ? "." : "";

	if (at->group)
		return err_set(err, E_SCALE_SNAPSHOT, "group %.100s%s%s %s", at->group,
			*member ? ": " : "", member, what);
	if (at->name)
		return err_set(err, E_SCALE_SNAPSHOT, "%s%s%s%s%s %s", at->list,
			*at->list && *at->name ? "." : "", at->name, dot, member, what);
	return err_set(err, E_SCALE_SNAPSHOT, "%s[%zu]%s%s %s", at->list, at->i, dot, member, what);
}

/* Members of a kind; what is not there stays as it is. */

static int snapshot_kind(const struct json *json, const char *key, enum json_kind kind,
	const struct snapshot_at *at, const struct json **ret, struct err *err)
{
	static const char *const wrong[] = {[JSON_NULL] = "is not null",
		[JSON_BOOL] = "is neither true nor false",
		[JSON_NUMBER] = "is not a number",
		[JSON_STRING] = "is not a string",
		[JSON_ARRAY] = "is not a list",
		[JSON_OBJECT] = "is not an object"};
	const struct json *member = json_get(json, key);

	*ret = member;
	return member && json_kind(member) != kind ? snapshot_bad(at, key, wrong[kind], err) : 0;
}

static int snapshot_int(const struct json *json, const char *key, int64_t min, int64_t max,
	const struct snapshot_at *at, int64_t *ret, struct err *err)
{
	const struct json *member;
	int r = snapshot_kind(json, key, JSON_NUMBER, at, &member, err);

	if (r < 0 || !member)
		return r;
	int64_t value = json_int(member, INT64_MIN);
	if (value == INT64_MIN || value < min || value > max)
		return snapshot_bad(at, key, "is not a whole number within its range", err);
	*ret = value;
	return 0;
}

static int snapshot_price(const struct json *json, const char *key, const struct snapshot_at *at,
	double *ret, struct err *err)
{
	const struct json *member;
	int r = snapshot_kind(json, key, JSON_NUMBER, at, &member, err);

	if (r < 0 || !member)
		return r;
	double value = json_get_num(json, key, -1);
	if (!(value >= 0 && value <= SCALE_PRICE_MAX))
		return snapshot_bad(at, key, "is not a price", err);
	*ret = value;
	return 0;
}

static int snapshot_bool(const struct json *json, const char *key, const struct snapshot_at *at,
	bool *ret, struct err *err)
{
	const struct json *member;
	int r = snapshot_kind(json, key, JSON_BOOL, at, &member, err);

	*ret = json_get_bool(json, key, false);
	return r;
}

static int snapshot_str(const struct json *json, const char *key, const struct snapshot_at *at,
	char **ret, struct err *err)
{
	const struct json *member;
	int r = snapshot_kind(json, key, JSON_STRING, at, &member, err);

	*ret = mem_strdup(json_str(member));
	return r;
}

static int snapshot_known(
	const struct json *json, const char *words, const struct snapshot_at *at, struct err *err)
{
	if (json_kind(json) != JSON_OBJECT)
		return snapshot_bad(at, "", "is not an object", err);
	for (const struct json *m = json_first(json); m; m = json_next(m))
		if (!str_is_word_of(json_key(m), words))
			return snapshot_bad(at, json_key(m), "is not known", err);
	return 0;
}

static int snapshot_time(const struct json *json, const char *key, const struct snapshot_at *at,
	int64_t *ret, struct err *err)
{
	const struct json *member = json_get(json, key);

	if (!member)
		return 0;
	if (!json_str(member) || clock_parse(json_str(member), ret, NULL) < 0)
		return snapshot_bad(at, key, "is not a time (RFC 3339)", err);
	return 0;
}

static int snapshot_word(const struct json *json, const char *key, const char *const words[],
	const struct snapshot_at *at, int *ret, struct err *err)
{
	const struct json *member = json_get(json, key);

	if (member && !scale_word(words, json_str(member), ret))
		return snapshot_bad(at, key, "is not a known word", err);
	return 0;
}

/* Amounts. */

bool snapshot_amount(const struct json *json, int resource, bool up, int64_t *ret)
{
	AUTO_BUF struct buf number = buf_with(AMOUNT_TEXT_MAX);
	const char *text = json_str(json);
	int64_t milli = 0;

	if (json_kind(json) == JSON_NUMBER) {
		json_print(json, &number);
		text = number.data;
	}
	if (!text || !kube_quantity(text, &milli) || milli < 0 || milli > INT64_MAX / 2)
		return false;
	*ret = resource == SCALE_CPU ? milli : milli / 1000 + (up && milli % 1000 != 0);
	return true;
}

static char *snapshot_amount_text(const struct json *member)
{
	AUTO_BUF struct buf text = buf_with(SHAPE_TEXT_MAX);

	json_print(member, &text);
	return mem_printf("%s: %.*s", json_key(member), AMOUNT_TEXT_MAX, text.data);
}

/* Amounts that could not be read are added to bad. */
static void snapshot_amounts(const struct json *json, struct scale_model *model,
	struct scale_amounts *ret, struct strv *bad)
{
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		int resource = scale_resource(model, json_key(m));
		if (resource < 0 || !snapshot_amount(m, resource, true, &ret->of[resource]))
			strv_add_take(bad, snapshot_amount_text(m));
	}
}

/* A resource that no shape can ask for, because there are too many kinds, is of no use. */
static bool snapshot_room(const struct json *json, struct scale_model *model, const char *what,
	const char *name, struct scale_amounts *ret)
{
	*ret = (struct scale_amounts){.of = {[SCALE_PODS] = PODS_PER_NODE}};
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		int resource = scale_resource(model, json_key(m));
		if (resource < 0 || snapshot_amount(m, resource, false, &ret->of[resource]))
			continue;
		AUTO_FREE char *text = snapshot_amount_text(m);
		strv_addf(&model->remarks, "%s %.100s: an amount cannot be read: %s", what, name,
			text);
		*ret = (struct scale_amounts){0};
		return false;
	}
	return true;
}

/* Labels, taints and what asks for them. */

static int snapshot_pairs(const struct json *json, const char *key, const struct snapshot_at *at,
	struct scale_pairs *ret, struct err *err)
{
	const struct json *pairs;

	ERR_TRY(snapshot_kind(json, key, JSON_OBJECT, at, &pairs, err));
	for (const struct json *m = json_first(pairs); m; m = json_next(m)) {
		if (!json_str(m))
			return snapshot_bad(at, key, "has a value that is not a string", err);
		scale_pairs_add(ret, json_key(m), json_str(m));
	}
	scale_pairs_sort(ret);
	return 0;
}

static int snapshot_taints(const struct json *json, const struct snapshot_at *at,
	struct scale_taints *ret, struct err *err)
{
	const struct json *list;

	ERR_TRY(snapshot_kind(json, "taints", JSON_ARRAY, at, &list, err));
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		int effect = 0;
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");
		if (json_kind(m) != JSON_OBJECT)
			return snapshot_bad(at, "taints", "has one that is not an object", err);
		ERR_TRY(snapshot_known(m, "key value effect", at, err));
		ERR_TRY(snapshot_word(m, "effect", snapshot_effects, at, &effect, err));
		if (!key || !json_get(m, "effect") || (json_get(m, "value") && !value))
			return snapshot_bad(at, "taints", "lacks a key or an effect", err);
		scale_taints_add(ret, key, value, effect);
	}
	return 0;
}

static int snapshot_tolerations(const struct json *json, const struct snapshot_at *at,
	struct scale_tolerations *ret, struct err *err)
{
	const struct json *list;

	ERR_TRY(snapshot_kind(json, "tolerations", JSON_ARRAY, at, &list, err));
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		int effect = -1;
		ERR_TRY(snapshot_known(m, "key value effect", at, err));
		ERR_TRY(snapshot_word(m, "effect", snapshot_effects, at, &effect, err));
		struct scale_toleration *toleration = vec_push(ret);
		toleration->effect = effect;
		ERR_TRY(snapshot_str(m, "key", at, &toleration->key, err));
		ERR_TRY(snapshot_str(m, "value", at, &toleration->value, err));
	}
	return 0;
}

static int snapshot_texts(const struct json *json, const char *key, const struct snapshot_at *at,
	struct strv *ret, struct err *err)
{
	const struct json *list;

	ERR_TRY(snapshot_kind(json, key, JSON_ARRAY, at, &list, err));
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		if (!json_str(m))
			return snapshot_bad(at, key, "has an element that is not a string", err);
		strv_add(ret, json_str(m));
	}
	return 0;
}

static int snapshot_affinity(const struct json *json, const struct snapshot_at *at,
	struct scale_terms *ret, struct err *err)
{
	const struct json *list;

	ERR_TRY(snapshot_kind(json, "affinity", JSON_ARRAY, at, &list, err));
	for (const struct json *t = json_first(list); t; t = json_next(t)) {
		struct scale_term *term = vec_push(ret);
		if (json_kind(t) != JSON_ARRAY)
			return snapshot_bad(at, "affinity", "is not a list of lists", err);
		for (const struct json *r = json_first(t); r; r = json_next(r)) {
			int op = 0;
			ERR_TRY(snapshot_known(r, "key op values", at, err));
			if (!json_get_str(r, "key") || !json_get(r, "op"))
				return snapshot_bad(at, "affinity", "lacks a key or an op", err);
			ERR_TRY(snapshot_word(r, "op", snapshot_ops, at, &op, err));
			struct scale_rule *rule = vec_push(term);
			rule->key = mem_strdup(json_get_str(r, "key"));
			rule->op = op;
			ERR_TRY(snapshot_texts(r, "values", at, &rule->values, err));
		}
	}
	return 0;
}

/* The lists. */

static int snapshot_shape(const struct json *json, const struct snapshot_at *at,
	struct scale_model *model, struct scale_shape *ret, struct err *err)
{
	AUTO_STRV struct strv bad = {0};
	const struct json *request;

	ERR_TRY(snapshot_known(
		json, "request selector affinity tolerations apart marks unsupported", at, err));
	ERR_TRY(snapshot_texts(json, "unsupported", at, &ret->unsupported, err));
	ret->request.of[SCALE_PODS] = 1;
	ERR_TRY(snapshot_kind(json, "request", JSON_OBJECT, at, &request, err));
	snapshot_amounts(request, model, &ret->request, &bad);
	for (size_t i = 0; i < bad.n; i++)
		strv_addf(&ret->unsupported, "a request of %s", bad.v[i]);
	ERR_TRY(snapshot_pairs(json, "selector", at, &ret->selector, err));
	ERR_TRY(snapshot_affinity(json, at, &ret->affinity, err));
	ERR_TRY(snapshot_tolerations(json, at, &ret->tolerations, err));
	ERR_TRY(snapshot_texts(json, "apart", at, &ret->apart, err));
	ERR_TRY(snapshot_texts(json, "marks", at, &ret->marks, err));
	if (ret->apart.n > MARKS_MAX || ret->marks.n > MARKS_MAX)
		return snapshot_bad(at, "marks", "and apart are too many", err);
	return 0;
}

static void snapshot_put(struct map *map, const char *name, size_t number)
{
	map_put(map, name, (void *)(intptr_t)number);
}

/* Shapes that are alike are one. */
static int snapshot_shapes(const struct json *json, struct snapshot_reader *reader, struct err *err)
{
	struct map texts = {0};
	int r = json && json_kind(json) != JSON_OBJECT
			? err_set(err, E_SCALE_SNAPSHOT, "shapes is not an object")
		: json_count(json) > SCALE_SHAPES_LIMIT
			? err_set(err, E_DATA_LIMIT, "a snapshot has at most %d shapes",
				  SCALE_SHAPES_LIMIT)
			: 0;

	for (const struct json *m = json_first(json); m && r == 0; m = json_next(m)) {
		struct snapshot_at at = {.list = "shapes", .name = json_key(m) ? json_key(m) : "?"};
		struct scale_shape *shape = vec_push(&reader->model->shapes);
		AUTO_BUF struct buf text = buf_with(SHAPE_TEXT_MAX);
		shape->name = mem_strdup(at.name);
		r = snapshot_shape(m, &at, reader->model, shape, err);
		scale_shape_text(shape, &text);
		if (r == 0)
			r = buf_check(&text, "a shape", err);
		intptr_t known = (intptr_t)map_get(&texts, text.data);
		if (known) {
			scale_shape_done(shape);
			reader->model->shapes.n--;
		} else {
			known = (intptr_t)reader->model->shapes.n;
			snapshot_put(&texts, text.data, (size_t)known);
		}
		snapshot_put(&reader->shapes, at.name, (size_t)known);
	}
	map_done(&texts);
	return r;
}

static int snapshot_gangs(const struct json *json, struct snapshot_reader *reader, struct err *err)
{
	if (json && json_kind(json) != JSON_OBJECT)
		return err_set(err, E_SCALE_SNAPSHOT, "gangs is not an object");
	if (json_count(json) > GANGS_MAX)
		return err_set(err, E_DATA_LIMIT, "a snapshot has at most %d gangs", GANGS_MAX);
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		struct snapshot_at at = {.list = "gangs", .name = json_key(m) ? json_key(m) : "?"};
		struct scale_gang *gang = vec_push(&reader->model->gangs);
		int same = 0;
		ERR_TRY(snapshot_known(m, "owner same min", &at, err));
		gang->name = mem_strdup(at.name);
		ERR_TRY(snapshot_str(m, "owner", &at, &gang->owner, err));
		ERR_TRY(snapshot_int(m, "min", 0, PODS_MAX, &at, &gang->min, err));
		ERR_TRY(snapshot_word(m, "same", snapshot_sames, &at, &same, err));
		gang->same = same;
		snapshot_put(&reader->gangs, gang->name, reader->model->gangs.n);
	}
	return 0;
}

static int snapshot_lookup(const struct json *json, const char *key, const struct map *map,
	const struct snapshot_at *at, int32_t *ret, struct err *err)
{
	const char *name = json_get_str(json, key);

	*ret = name ? (int32_t)(intptr_t)map_get(map, name) - 1 : -1;
	return json_get(json, key) && *ret < 0
		       ? snapshot_bad(at, key, "is not in the snapshot", err)
		       : 0;
}

static int snapshot_pod(const struct json *m, const struct snapshot_at *at,
	struct snapshot_reader *reader, struct err *err)
{
	struct scale_pod *pod = vec_push(&reader->model->pods);

	ERR_TRY(snapshot_known(m, "name shape node gang count priority daemon", at, err));
	int64_t priority = 0;
	pod->count = 1;
	ERR_TRY(snapshot_str(m, "name", at, &pod->name, err));
	ERR_TRY(snapshot_int(m, "count", 1, COUNT_MAX, at, &pod->count, err));
	ERR_TRY(snapshot_int(m, "priority", INT32_MIN, INT32_MAX, at, &priority, err));
	pod->priority = (int32_t)priority;
	ERR_TRY(snapshot_bool(m, "daemon", at, &pod->is_daemon, err));
	ERR_TRY(snapshot_lookup(m, "shape", &reader->shapes, at, &pod->shape, err));
	ERR_TRY(snapshot_lookup(m, "node", &reader->nodes, at, &pod->node, err));
	ERR_TRY(snapshot_lookup(m, "gang", &reader->gangs, at, &pod->gang, err));
	if (!pod->name || pod->shape < 0)
		return snapshot_bad(at, pod->name ? "shape" : "name", "is missing", err);
	reader->n_pods += pod->count;
	return reader->n_pods > PODS_MAX
		       ? err_set(err, E_DATA_LIMIT, "a snapshot has at most %d pods", PODS_MAX)
		       : 0;
}

static int snapshot_node(const struct json *m, const struct snapshot_at *at,
	struct snapshot_reader *reader, struct err *err)
{
	struct scale_node *node = vec_push(&reader->model->nodes);
	int cordoned = SCALE_OPEN;
	const struct json *room;

	ERR_TRY(snapshot_known(m,
		"name instance group labels taints room ready cordoned created idle_since "
		"cordoned_since silent_since no_instance kept",
		at, err));
	ERR_TRY(snapshot_str(m, "name", at, &node->name, err));
	if (!node->name)
		return snapshot_bad(at, "name", "is missing", err);
	ERR_TRY(snapshot_str(m, "instance", at, &node->instance, err));
	ERR_TRY(snapshot_str(m, "kept", at, &node->kept, err));
	ERR_TRY(snapshot_bool(m, "ready", at, &node->is_ready, err));
	ERR_TRY(snapshot_bool(m, "no_instance", at, &node->has_no_instance, err));
	ERR_TRY(snapshot_kind(m, "room", JSON_OBJECT, at, &room, err));
	ERR_TRY(snapshot_lookup(m, "group", &reader->groups, at, &node->group, err));
	ERR_TRY(snapshot_word(m, "cordoned", snapshot_cordons, at, &cordoned, err));
	node->cordoned = cordoned;
	ERR_TRY(snapshot_pairs(m, "labels", at, &node->labels, err));
	ERR_TRY(snapshot_taints(m, at, &node->taints, err));
	ERR_TRY(snapshot_time(m, "created", at, &node->created_ms, err));
	ERR_TRY(snapshot_time(m, "idle_since", at, &node->idle_since_ms, err));
	ERR_TRY(snapshot_time(m, "cordoned_since", at, &node->cordoned_ms, err));
	ERR_TRY(snapshot_time(m, "silent_since", at, &node->silent_ms, err));
	snapshot_room(room, reader->model, "node", node->name, &node->room);
	if (map_get(&reader->nodes, node->name))
		return snapshot_bad(at, "name", "is there twice", err);
	snapshot_put(&reader->nodes, node->name, reader->model->nodes.n);
	return 0;
}

static int snapshot_instance(const struct json *m, const struct snapshot_at *at,
	struct scale_instances *ret, struct err *err)
{
	struct scale_instance *instance = vec_push(ret);
	int state = SCALE_RUNNING;

	ERR_TRY(snapshot_known(m, "id was state since awaited", at, err));
	ERR_TRY(snapshot_str(m, "id", at, &instance->id, err));
	if (!instance->id)
		instance->id = mem_strdup("");
	ERR_TRY(snapshot_str(m, "was", at, &instance->was, err));
	ERR_TRY(snapshot_word(m, "state", snapshot_states, at, &state, err));
	instance->state = state;
	ERR_TRY(snapshot_time(m, "since", at, &instance->since_ms, err));
	return snapshot_bool(m, "awaited", at, &instance->is_awaited, err);
}

/* A machine that is listed again is counted once, with a remark; NULL: it is an error. */
static int snapshot_instances(const struct json *json, const struct snapshot_at *at,
	struct scale_group *group, struct strv *remarks, struct err *err)
{
	struct scale_instances *all = &group->instances;
	struct map known = {0};
	const struct json *list;
	bool is_told = false;
	int r = snapshot_kind(json, "instances", JSON_ARRAY, at, &list, err);

	for (const struct json *m = json_first(list); m && r == 0; m = json_next(m)) {
		r = snapshot_instance(m, at, all, err);
		struct scale_instance *last = &all->v[all->n - 1];
		if (r < 0 || !*last->id)
			continue;
		if (!map_get(&known, last->id)) {
			snapshot_put(&known, last->id, all->n);
			continue;
		}
		AUTO_FREE char *text = mem_printf("has the id %.100s twice", last->id);
		if (!remarks)
			r = snapshot_bad(at, "instances", text, err);
		else if (!is_told)
			strv_addf(remarks, "group %.100s %s", group->id, text);
		is_told = true;
		free(last->id);
		free(last->was);
		all->n--;
	}
	map_done(&known);
	return r;
}

static int snapshot_group(const struct json *m, const struct snapshot_at *at,
	struct scale_model *model, struct strv *remarks, struct err *err)
{
	struct scale_group *group = vec_push(&model->groups);
	const struct json *template, *room;
	int failure = SCALE_NO_FAILURE;
	int64_t boot_s = 0;

	group->price = -1;
	ERR_TRY(snapshot_known(m,
		"id provider min max desired region zone spot price weight boot_s template "
		"mismatches instances wait_until failure failure_text refused",
		at, err));
	ERR_TRY(snapshot_str(m, "id", at, &group->id, err));
	if (!group->id)
		return snapshot_bad(at, "id", "is missing", err);
	ERR_TRY(snapshot_str(m, "provider", at, &group->provider, err));
	ERR_TRY(snapshot_str(m, "region", at, &group->region, err));
	ERR_TRY(snapshot_str(m, "zone", at, &group->zone, err));
	ERR_TRY(snapshot_str(m, "failure_text", at, &group->failure_text, err));
	ERR_TRY(snapshot_str(m, "refused", at, &group->refused, err));
	ERR_TRY(snapshot_int(m, "min", 0, SCALE_GROUP_SIZE_MAX, at, &group->min, err));
	ERR_TRY(snapshot_int(m, "max", 0, SCALE_GROUP_SIZE_MAX, at, &group->max, err));
	if (group->min > group->max)
		return snapshot_bad(at, "min", "is above max", err);
	ERR_TRY(snapshot_int(m, "desired", 0, SCALE_GROUP_SIZE_MAX, at, &group->desired, err));
	ERR_TRY(snapshot_int(
		m, "weight", -SCALE_WEIGHT_MAX, SCALE_WEIGHT_MAX, at, &group->weight, err));
	ERR_TRY(snapshot_price(m, "price", at, &group->price, err));
	ERR_TRY(snapshot_int(m, "boot_s", 1, SCALE_BOOT_MAX, at, &boot_s, err));
	group->boot_ms = boot_s * 1000;
	ERR_TRY(snapshot_bool(m, "spot", at, &group->is_spot, err));
	ERR_TRY(snapshot_word(m, "failure", scale_failure_names, at, &failure, err));
	group->failure = (enum scale_failure)failure;
	ERR_TRY(snapshot_time(m, "wait_until", at, &group->wait_until_ms, err));
	ERR_TRY(snapshot_instances(m, at, group, remarks, err));
	if (!mismatch_read(json_get(m, "mismatches"), &group->mismatches))
		return snapshot_bad(at, "mismatches", "is not a list of labels and taints", err);
	ERR_TRY(snapshot_kind(m, "template", JSON_OBJECT, at, &template, err));
	if (!template)
		return 0;
	ERR_TRY(snapshot_known(template, "labels taints room", at, err));
	ERR_TRY(snapshot_pairs(template, "labels", at, &group->labels, err));
	ERR_TRY(snapshot_taints(template, at, &group->taints, err));
	ERR_TRY(snapshot_kind(template, "room", JSON_OBJECT, at, &room, err));
	group->has_template = snapshot_room(room, model, "group", group->id, &group->room);
	return 0;
}

static int snapshot_add_group(const struct json *json, const struct snapshot_at *at,
	struct scale_model *model, struct strv *remarks, struct err *err)
{
	if (model->groups.n >= SCALE_GROUPS_LIMIT)
		return err_set(err, E_DATA_LIMIT, "there are over %d groups", SCALE_GROUPS_LIMIT);
	int r = snapshot_group(json, at, model, remarks, err);
	const struct scale_group *last = model->groups.v + model->groups.n - 1;
	vec_foreach (const struct scale_group, other, &model->groups)
		if (r == 0 && other != last && str_eq(other->id, last->id))
			r = snapshot_bad(at, "id", "is there twice", err);
	if (r < 0)
		scale_group_done(&model->groups.v[--model->groups.n]);
	return r;
}

int snapshot_read_group(const struct json *json, struct scale_model *model, struct err *err)
{
	const char *id = json_get_str(json, "id");
	const struct snapshot_at at = {.list = "groups", .group = id ? id : "without an id"};

	ERR_TRY(snapshot_add_group(json, &at, model, &model->remarks, err));
	/* A provider knows none. */
	scale_mismatches_done(&model->groups.v[model->groups.n - 1].mismatches);
	return 0;
}

static int snapshot_limits(const struct json *json, struct scale_limits *ret, struct err *err)
{
	struct snapshot_at at = {.list = "limits", .name = ""};
	struct {
		const char *key;
		int64_t *value;
		int64_t unit, min;
	} numbers[] = {
		{"nodes", &ret->nodes, 1, 1},
		{"step", &ret->step, 1, 1},
		{"removals", &ret->removals, 1, 1},
		{"idle_s", &ret->idle_ms, 1000, 0},
		{"spares", &ret->spares, 1, 0},
		{"boot_s", &ret->boot_ms, 1000, 0},
		{"silent_s", &ret->silent_ms, 1000, 0},
	};

	if (!json)
		return 0;
	ERR_TRY(snapshot_known(
		json, "nodes price step removals idle_s spares boot_s silent_s", &at, err));
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		int64_t value = *numbers[i].value / numbers[i].unit;
		ERR_TRY(snapshot_int(
			json, numbers[i].key, numbers[i].min, SCALE_LIMIT_MAX, &at, &value, err));
		*numbers[i].value = value * numbers[i].unit;
	}
	ERR_TRY(snapshot_price(json, "price", &at, &ret->price, err));
	if (json_get(json, "price") && ret->price <= 0)
		return snapshot_bad(&at, "price", "must be above 0: nothing could be bought", err);
	return 0;
}

static int snapshot_list(const struct json *json, const char *key, size_t max,
	struct snapshot_reader *reader,
	int (*read)(const struct json *, const struct snapshot_at *, struct snapshot_reader *,
		struct err *),
	struct err *err)
{
	const struct json *list = json_get(json, key);
	struct snapshot_at at = {key, 0, NULL};

	if (list && json_kind(list) != JSON_ARRAY)
		return err_set(err, E_SCALE_SNAPSHOT, "%s is not a list", key);
	if (json_count(list) > max)
		return err_set(err, E_DATA_LIMIT, "a snapshot has at most %zu %s", max, key);
	for (const struct json *m = json_first(list); m; m = json_next(m), at.i++)
		ERR_TRY(read(m, &at, reader, err));
	return 0;
}

static int snapshot_list_group(const struct json *m, const struct snapshot_at *at,
	struct snapshot_reader *reader, struct err *err)
{
	ERR_TRY(snapshot_add_group(m, at, reader->model, NULL, err));
	size_t n = reader->model->groups.n;
	snapshot_put(&reader->groups, reader->model->groups.v[n - 1].id, n);
	return 0;
}

static int snapshot_all(const struct json *json, struct snapshot_reader *reader, struct err *err)
{
	struct snapshot_at at = {.list = "", .name = ""};
	struct scale_model *model = reader->model;

	if (json_kind(json) != JSON_OBJECT)
		return err_set(
			err, E_SCALE_SNAPSHOT, "this is not a snapshot: it is not an object");
	ERR_TRY(snapshot_known(json,
		"dlrun_autoscale cluster now limits shapes gangs pods nodes groups remarks", &at,
		err));
	if (json_get_int(json, "dlrun_autoscale", 0) != 1)
		return err_set(err, E_SCALE_SNAPSHOT,
			"this is not a snapshot of version 1: \"dlrun_autoscale\" is not 1");
	ERR_TRY(snapshot_str(json, "cluster", &at, &model->cluster, err));
	ERR_TRY(snapshot_time(json, "now", &at, &model->now_ms, err));
	if (!model->now_ms)
		return err_set(err, E_SCALE_SNAPSHOT, "now is missing");
	ERR_TRY(snapshot_limits(json_get(json, "limits"), &model->limits, err));
	ERR_TRY(snapshot_shapes(json_get(json, "shapes"), reader, err));
	ERR_TRY(snapshot_gangs(json_get(json, "gangs"), reader, err));
	ERR_TRY(snapshot_list(
		json, "groups", SCALE_GROUPS_LIMIT, reader, snapshot_list_group, err));
	ERR_TRY(snapshot_list(json, "nodes", SCALE_NODES_LIMIT, reader, snapshot_node, err));
	ERR_TRY(snapshot_list(json, "pods", SCALE_PODS_LIMIT, reader, snapshot_pod, err));
	return snapshot_texts(json, "remarks", &at, &model->remarks, err);
}

int snapshot_read(const struct json *json, struct scale_model *ret, struct err *err)
{
	struct snapshot_reader reader = {.model = ret};
	int r = snapshot_all(json, &reader, err);

	map_done(&reader.shapes);
	map_done(&reader.nodes);
	map_done(&reader.gangs);
	map_done(&reader.groups);
	return r;
}

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
#include "core/autoscale/snapshot_words.h"
#include "kube/status/object.h"

enum {
	AMOUNT_TEXT_MAX = 60,
	SHAPE_TEXT_MAX = 1 << 20,
	PODS_PER_NODE = 110, /* kubelet's --max-pods */
	COUNT_MAX = 1000 * 1000,
};

#define ERR_TRY(call)                                                                              \
	do {                                                                                       \
		int r_ = (call);                                                                   \
		if (r_ < 0)                                                                        \
			return r_;                                                                 \
	} while (0)

/* The place of what is read, for errors: "pods[3]". */
struct snapshot_at {
	const char *list;
	size_t i;
	const char *name; /* instead of a number; or NULL */
};

struct snapshot_reader {
	struct scale_model *model;
	struct map shapes, nodes, gangs, groups; /* numbers from 1 by name */
};

static int snapshot_bad(
	const struct snapshot_at *at, const char *member, const char *what, struct err *err)
{
	if (at->name)
		return err_set(
			err, E_SCALE_SNAPSHOT, "%s.%s.%s %s", at->list, at->name, member, what);
	return err_set(err, E_SCALE_SNAPSHOT, "%s[%zu].%s %s", at->list, at->i, member, what);
}

static int snapshot_known(
	const struct json *json, const char *words, const struct snapshot_at *at, struct err *err)
{
	if (json_kind(json) != JSON_OBJECT)
		return snapshot_bad(at, "", "is no object", err);
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
		return snapshot_bad(at, key, "is no time", err);
	return 0;
}

static int snapshot_word(const struct json *json, const char *key, const char *const words[],
	const struct snapshot_at *at, int *ret, struct err *err)
{
	const struct json *member = json_get(json, key);

	if (member && !scale_word(words, json_str(member), ret))
		return snapshot_bad(at, key, "is none of the words for it", err);
	return 0;
}

/* Amounts. */

bool snapshot_amount(const struct json *json, int resource, int64_t *ret)
{
	AUTO_BUF struct buf text = buf_with(SHAPE_TEXT_MAX);
	int64_t milli = 0;

	if (json_kind(json) == JSON_NUMBER)
		json_print(json, &text);
	else
		buf_adds(&text, json_str(json) ? json_str(json) : "");
	if (!kube_quantity(text.data, &milli) || milli < 0 || milli > INT64_MAX / 2)
		return false;
	*ret = resource == SCALE_CPU ? milli : milli / 1000 + (milli % 1000 != 0);
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
		if (resource < 0 || !snapshot_amount(m, resource, &ret->of[resource]))
			strv_add_take(bad, snapshot_amount_text(m));
	}
}

static bool snapshot_room(const struct json *json, struct scale_model *model, const char *what,
	const char *name, struct scale_amounts *ret)
{
	AUTO_STRV struct strv bad = {0};

	*ret = (struct scale_amounts){.of = {[SCALE_PODS] = PODS_PER_NODE}};
	snapshot_amounts(json, model, ret, &bad);
	if (!bad.n)
		return true;
	strv_addf(&model->remarks, "%s %.100s: amounts that cannot be read: %s", what, name,
		bad.v[0]);
	*ret = (struct scale_amounts){0};
	return false;
}

/* Labels, taints and what asks for them. */

static int snapshot_by_key(const void *left, const void *right)
{
	return strcmp(
		((const struct scale_pair *)left)->key, ((const struct scale_pair *)right)->key);
}

static int snapshot_pairs(const struct json *json, const char *member, const struct snapshot_at *at,
	struct scale_pairs *ret, struct err *err)
{
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		if (!json_key(m) || !json_str(m))
			return snapshot_bad(at, member, "is no object of texts", err);
		*vec_push(ret) =
			(struct scale_pair){mem_strdup(json_key(m)), mem_strdup(json_str(m))};
	}
	vec_sort(ret, snapshot_by_key);
	return 0;
}

static int snapshot_taints(const struct json *json, const struct snapshot_at *at,
	struct scale_taints *ret, struct err *err)
{
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		int effect = 0;
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");
		ERR_TRY(snapshot_known(m, "key value effect", at, err));
		ERR_TRY(snapshot_word(m, "effect", snapshot_effects, at, &effect, err));
		if (!key || !json_get(m, "effect"))
			return snapshot_bad(at, "taints", "lacks a key or an effect", err);
		*vec_push(ret) = (struct scale_taint){
			mem_strdup(key), mem_strdup(value ? value : ""), effect};
	}
	return 0;
}

static int snapshot_tolerations(const struct json *json, const struct snapshot_at *at,
	struct scale_tolerations *ret, struct err *err)
{
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		int effect = -1;
		ERR_TRY(snapshot_known(m, "key value effect", at, err));
		ERR_TRY(snapshot_word(m, "effect", snapshot_effects, at, &effect, err));
		*vec_push(ret) = (struct scale_toleration){mem_strdup(json_get_str(m, "key")),
			mem_strdup(json_get_str(m, "value")), effect};
	}
	return 0;
}

static int snapshot_texts(const struct json *json, const char *member, const struct snapshot_at *at,
	struct strv *ret, struct err *err)
{
	if (json && json_kind(json) != JSON_ARRAY)
		return snapshot_bad(at, member, "is no list", err);
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		if (!json_str(m))
			return snapshot_bad(at, member, "is no list of texts", err);
		strv_add(ret, json_str(m));
	}
	return 0;
}

static int snapshot_affinity(const struct json *json, const struct snapshot_at *at,
	struct scale_terms *ret, struct err *err)
{
	for (const struct json *t = json_first(json); t; t = json_next(t)) {
		struct scale_term *term = vec_push(ret);
		if (json_kind(t) != JSON_ARRAY)
			return snapshot_bad(at, "affinity", "is no list of lists", err);
		for (const struct json *r = json_first(t); r; r = json_next(r)) {
			int op = 0;
			ERR_TRY(snapshot_known(r, "key op values", at, err));
			if (!json_get_str(r, "key") || !json_get(r, "op"))
				return snapshot_bad(at, "affinity", "lacks a key or an op", err);
			ERR_TRY(snapshot_word(r, "op", snapshot_ops, at, &op, err));
			struct scale_rule *rule = vec_push(term);
			rule->key = mem_strdup(json_get_str(r, "key"));
			rule->op = op;
			ERR_TRY(snapshot_texts(
				json_get(r, "values"), "affinity", at, &rule->values, err));
		}
	}
	return 0;
}

/* The lists. */

static int snapshot_shape(const struct json *json, const struct snapshot_at *at,
	struct scale_model *model, struct scale_shape *ret, struct err *err)
{
	AUTO_STRV struct strv bad = {0};

	ERR_TRY(snapshot_known(
		json, "request selector affinity tolerations apart marks unsupported", at, err));
	ERR_TRY(snapshot_texts(
		json_get(json, "unsupported"), "unsupported", at, &ret->unsupported, err));
	ret->request.of[SCALE_PODS] = 1;
	snapshot_amounts(json_get(json, "request"), model, &ret->request, &bad);
	for (size_t i = 0; i < bad.n; i++)
		strv_addf(&ret->unsupported, "a request of %s", bad.v[i]);
	ERR_TRY(snapshot_pairs(json_get(json, "selector"), "selector", at, &ret->selector, err));
	ERR_TRY(snapshot_affinity(json_get(json, "affinity"), at, &ret->affinity, err));
	ERR_TRY(snapshot_tolerations(json_get(json, "tolerations"), at, &ret->tolerations, err));
	ERR_TRY(snapshot_texts(json_get(json, "apart"), "apart", at, &ret->apart, err));
	return snapshot_texts(json_get(json, "marks"), "marks", at, &ret->marks, err);
}

static void snapshot_put(struct map *map, const char *name, size_t number)
{
	map_put(map, name, (void *)(intptr_t)number);
}

/* Shapes that are alike are one. */
static int snapshot_shapes(const struct json *json, struct snapshot_reader *reader, struct err *err)
{
	struct map texts = {0};
	int r = json_count(json) > SCALE_SHAPES_LIMIT
			? err_set(err, E_DATA_LIMIT, "a snapshot has at most %d shapes",
				  SCALE_SHAPES_LIMIT)
			: 0;

	for (const struct json *m = json_first(json); m && r == 0; m = json_next(m)) {
		struct snapshot_at at = {"shapes", 0, json_key(m) ? json_key(m) : "?"};
		struct scale_shape *shape = vec_push(&reader->model->shapes);
		AUTO_BUF struct buf text = buf_with(SHAPE_TEXT_MAX);
		shape->name = mem_strdup(at.name);
		r = snapshot_shape(m, &at, reader->model, shape, err);
		scale_shape_text(shape, &text);
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
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		struct snapshot_at at = {"gangs", 0, json_key(m) ? json_key(m) : "?"};
		struct scale_gang *gang = vec_push(&reader->model->gangs);
		int same = 0;
		ERR_TRY(snapshot_known(m, "owner same min", &at, err));
		gang->name = mem_strdup(at.name);
		gang->owner = mem_strdup(json_get_str(m, "owner"));
		gang->min = json_get_int(m, "min", 0);
		ERR_TRY(snapshot_word(m, "same", snapshot_sames, &at, &same, err));
		gang->same = same;
		if (gang->min < 0)
			return snapshot_bad(&at, "min", "is negative", err);
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
		       ? snapshot_bad(at, key, "names nothing that is there", err)
		       : 0;
}

static int snapshot_pod(const struct json *m, const struct snapshot_at *at,
	struct snapshot_reader *reader, struct err *err)
{
	struct scale_pod *pod = vec_push(&reader->model->pods);

	ERR_TRY(snapshot_known(
		m, "name shape node gang count priority since daemon kept", at, err));
	pod->name = mem_strdup(json_get_str(m, "name"));
	pod->count = json_get_int(m, "count", 1);
	int64_t priority = json_get_int(m, "priority", 0);
	pod->is_daemon = json_get_bool(m, "daemon", false);
	pod->is_kept = json_get_bool(m, "kept", false);
	ERR_TRY(snapshot_lookup(m, "shape", &reader->shapes, at, &pod->shape, err));
	ERR_TRY(snapshot_lookup(m, "node", &reader->nodes, at, &pod->node, err));
	ERR_TRY(snapshot_lookup(m, "gang", &reader->gangs, at, &pod->gang, err));
	ERR_TRY(snapshot_time(m, "since", at, &pod->since_ms, err));
	if (!pod->name || pod->shape < 0)
		return snapshot_bad(at, pod->name ? "shape" : "name", "is missing", err);
	if (pod->count < 1 || pod->count > COUNT_MAX)
		return snapshot_bad(at, "count", "is not within 1 and 1,000,000", err);
	if (priority < INT32_MIN || priority > INT32_MAX)
		return snapshot_bad(at, "priority", "is not within 32 bits", err);
	pod->priority = (int32_t)priority;
	return 0;
}

static int snapshot_node(const struct json *m, const struct snapshot_at *at,
	struct snapshot_reader *reader, struct err *err)
{
	struct scale_node *node = vec_push(&reader->model->nodes);
	int cordoned = SCALE_OPEN;

	ERR_TRY(snapshot_known(m,
		"name instance group labels taints room ready cordoned created idle_since "
		"cordoned_since silent_since no_instance kept",
		at, err));
	node->name = mem_strdup(json_get_str(m, "name"));
	if (!node->name)
		return snapshot_bad(at, "name", "is missing", err);
	node->instance = mem_strdup(json_get_str(m, "instance"));
	node->kept = mem_strdup(json_get_str(m, "kept"));
	node->is_ready = json_get_bool(m, "ready", false);
	node->has_no_instance = json_get_bool(m, "no_instance", false);
	ERR_TRY(snapshot_lookup(m, "group", &reader->groups, at, &node->group, err));
	ERR_TRY(snapshot_word(m, "cordoned", snapshot_cordons, at, &cordoned, err));
	node->cordoned = cordoned;
	ERR_TRY(snapshot_pairs(json_get(m, "labels"), "labels", at, &node->labels, err));
	ERR_TRY(snapshot_taints(json_get(m, "taints"), at, &node->taints, err));
	ERR_TRY(snapshot_time(m, "created", at, &node->created_ms, err));
	ERR_TRY(snapshot_time(m, "idle_since", at, &node->idle_since_ms, err));
	ERR_TRY(snapshot_time(m, "cordoned_since", at, &node->cordoned_ms, err));
	ERR_TRY(snapshot_time(m, "silent_since", at, &node->silent_ms, err));
	snapshot_room(json_get(m, "room"), reader->model, "node", node->name, &node->room);
	if (map_get(&reader->nodes, node->name))
		return snapshot_bad(at, "name", "is there twice", err);
	snapshot_put(&reader->nodes, node->name, reader->model->nodes.n);
	return 0;
}

static int snapshot_instances(const struct json *json, const struct snapshot_at *at,
	struct scale_instances *ret, struct err *err)
{
	for (const struct json *m = json_first(json); m; m = json_next(m)) {
		struct scale_instance *instance = vec_push(ret);
		const char *id = json_get_str(m, "id");
		int state = SCALE_RUNNING;
		ERR_TRY(snapshot_known(m, "id state since", at, err));
		instance->id = mem_strdup(id ? id : "");
		ERR_TRY(snapshot_word(m, "state", snapshot_states, at, &state, err));
		instance->state = state;
		ERR_TRY(snapshot_time(m, "since", at, &instance->since_ms, err));
	}
	return 0;
}

static int snapshot_group(const struct json *m, const struct snapshot_at *at,
	struct scale_model *model, struct err *err)
{
	struct scale_group *group = vec_push(&model->groups);
	const struct json *template = json_get(m, "template");
	int failure = SCALE_NO_FAILURE;

	group->price = json_get_num(m, "price", -1);
	ERR_TRY(snapshot_known(m,
		"id provider min max desired region zone spot price weight template instances "
		"wait_until failure failure_text refused",
		at, err));
	group->id = mem_strdup(json_get_str(m, "id"));
	if (!group->id)
		return snapshot_bad(at, "id", "is missing", err);
	group->provider = mem_strdup(json_get_str(m, "provider"));
	group->region = mem_strdup(json_get_str(m, "region"));
	group->zone = mem_strdup(json_get_str(m, "zone"));
	group->failure_text = mem_strdup(json_get_str(m, "failure_text"));
	group->refused = mem_strdup(json_get_str(m, "refused"));
	group->min = json_get_int(m, "min", 0);
	group->max = json_get_int(m, "max", 0);
	group->desired = json_get_int(m, "desired", 0);
	group->weight = json_get_int(m, "weight", 0);
	group->is_spot = json_get_bool(m, "spot", false);
	if (group->min < 0 || group->max < 0 || group->desired < 0 || group->max > INT32_MAX ||
		group->desired > INT32_MAX)
		return snapshot_bad(at, "min, max or desired", "is out of range", err);
	ERR_TRY(snapshot_word(m, "failure", scale_failure_names, at, &failure, err));
	group->failure = (enum scale_failure)failure;
	ERR_TRY(snapshot_time(m, "wait_until", at, &group->wait_until_ms, err));
	ERR_TRY(snapshot_instances(json_get(m, "instances"), at, &group->instances, err));
	if (!template)
		return 0;
	ERR_TRY(snapshot_known(template, "labels taints room", at, err));
	ERR_TRY(snapshot_pairs(json_get(template, "labels"), "labels", at, &group->labels, err));
	ERR_TRY(snapshot_taints(json_get(template, "taints"), at, &group->taints, err));
	group->has_template =
		snapshot_room(json_get(template, "room"), model, "group", group->id, &group->room);
	return 0;
}

int snapshot_read_group(const struct json *json, struct scale_model *model, struct err *err)
{
	struct snapshot_at at = {"groups", model->groups.n, NULL};

	if (model->groups.n >= SCALE_GROUPS_LIMIT)
		return err_set(err, E_DATA_LIMIT, "there are over %d groups", SCALE_GROUPS_LIMIT);
	int r = snapshot_group(json, &at, model, err);
	vec_foreach (const struct scale_group, other, &model->groups)
		if (r == 0 && other != &model->groups.v[at.i] &&
			str_eq(other->id, model->groups.v[at.i].id))
			r = snapshot_bad(&at, "id", "is there twice", err);
	if (r < 0)
		scale_group_done(&model->groups.v[--model->groups.n]);
	return r;
}

static int snapshot_limits(const struct json *json, struct scale_limits *ret, struct err *err)
{
	struct snapshot_at at = {"limits", 0, "limits"};
	struct {
		const char *key;
		int64_t *value;
		int64_t unit;
	} numbers[] = {
		{"nodes", &ret->nodes, 1},
		{"step", &ret->step, 1},
		{"removals", &ret->removals, 1},
		{"idle_s", &ret->idle_ms, 1000},
		{"spares", &ret->spares, 1},
		{"boot_s", &ret->boot_ms, 1000},
		{"silent_s", &ret->silent_ms, 1000},
	};

	if (!json)
		return 0;
	ERR_TRY(snapshot_known(
		json, "nodes price step removals idle_s spares boot_s silent_s", &at, err));
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		int64_t value =
			json_get_int(json, numbers[i].key, *numbers[i].value / numbers[i].unit);
		if (value < 0 || value > INT32_MAX)
			return snapshot_bad(&at, numbers[i].key, "is out of range", err);
		*numbers[i].value = value * numbers[i].unit;
	}
	ret->price = json_get_num(json, "price", ret->price);
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
		return err_set(err, E_SCALE_SNAPSHOT, "%s is no list", key);
	if (json_count(list) > max)
		return err_set(err, E_DATA_LIMIT, "a snapshot has at most %zu %s", max, key);
	for (const struct json *m = json_first(list); m; m = json_next(m), at.i++)
		ERR_TRY(read(m, &at, reader, err));
	return 0;
}

static int snapshot_list_group(const struct json *m, const struct snapshot_at *at UNUSED,
	struct snapshot_reader *reader, struct err *err)
{
	ERR_TRY(snapshot_read_group(m, reader->model, err));
	size_t n = reader->model->groups.n;
	snapshot_put(&reader->groups, reader->model->groups.v[n - 1].id, n);
	return 0;
}

static int snapshot_all(const struct json *json, struct snapshot_reader *reader, struct err *err)
{
	struct snapshot_at at = {"the snapshot", 0, "the snapshot"};
	struct scale_model *model = reader->model;

	ERR_TRY(snapshot_known(json,
		"dlrun_autoscale cluster now limits shapes gangs pods nodes groups remarks", &at,
		err));
	if (json_get_int(json, "dlrun_autoscale", 0) != 1)
		return err_set(err, E_SCALE_SNAPSHOT,
			"this is no snapshot of version 1: \"dlrun_autoscale\" is not 1");
	model->cluster = mem_strdup(json_get_str(json, "cluster"));
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
	return snapshot_texts(json_get(json, "remarks"), "remarks", &at, &model->remarks, err);
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

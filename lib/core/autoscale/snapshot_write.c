/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/snapshot.h"
#include "core/autoscale/mismatch.h"
#include "core/autoscale/snapshot_words.h"

static void write_str(struct json *to, const char *key, const char *value)
{
	if (value)
		json_set_str(to, key, value);
}

static void write_int(struct json *to, const char *key, int64_t value, int64_t usual)
{
	if (value != usual)
		json_set_int(to, key, value);
}

static void write_bool(struct json *to, const char *key, bool value)
{
	if (value)
		json_set_bool(to, key, true);
}

static void write_time(struct json *to, const char *key, int64_t wall_ms)
{
	char text[CLOCK_TEXT_SIZE];

	if (!wall_ms)
		return;
	clock_format(wall_ms, text);
	json_set_str(to, key, text);
}

/* The largest binary unit that says it exactly. */
static void write_bytes(struct json *to, const char *key, int64_t bytes)
{
	static const char *const units[] = {"", "Ki", "Mi", "Gi", "Ti"};
	size_t unit = 0;

	while (bytes && bytes % 1024 == 0 && unit + 1 < ARRAY_LEN(units)) {
		bytes /= 1024;
		unit++;
	}
	AUTO_FREE char *text = mem_printf("%" PRId64 "%s", bytes, units[unit]);
	json_set_str(to, key, text);
}

static struct json *write_amounts(
	const struct scale_model *model, const struct scale_amounts *amounts, int64_t usual_pods)
{
	struct json *json = json_object();

	for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
		int64_t amount = amounts->of[r];
		const char *name = model->resources[r];
		if (amount == (r == SCALE_PODS ? usual_pods : 0))
			continue;
		if (r == SCALE_MEMORY || r == SCALE_DISK) {
			write_bytes(json, name, amount);
		} else if (r == SCALE_CPU && amount % 1000) {
			AUTO_FREE char *milli = mem_printf("%" PRId64 "m", amount);
			json_set_str(json, name, milli);
		} else {
			json_set_int(json, name, r == SCALE_CPU ? amount / 1000 : amount);
		}
	}
	return json;
}

static void write_pairs(struct json *to, const char *key, const struct scale_pairs *pairs)
{
	vec_foreach (const struct scale_pair, pair, pairs)
		json_set_str(json_sub(to, key), pair->key, pair->value);
}

static void write_taints(struct json *to, const struct scale_taints *taints)
{
	struct json *list = json_array();

	vec_foreach (const struct scale_taint, taint, taints) {
		struct json *one = json_object();
		json_set_str(one, "key", taint->key);
		if (!str_empty(taint->value))
			json_set_str(one, "value", taint->value);
		json_set_str(one, "effect", snapshot_effects[taint->effect]);
		json_add(list, one);
	}
	if (taints->n)
		json_set(to, "taints", list);
	else
		json_free(list);
}

static void write_texts(struct json *to, const char *key, const struct strv *texts)
{
	struct json *list = json_array();

	json_add_strv(list, texts);
	if (texts->n)
		json_set(to, key, list);
	else
		json_free(list);
}

static struct json *write_affinity(const struct scale_terms *terms)
{
	struct json *list = json_array();

	vec_foreach (const struct scale_term, term, terms) {
		struct json *all = json_array();
		vec_foreach (const struct scale_rule, rule, term) {
			struct json *one = json_object();
			json_set_str(one, "key", rule->key);
			json_set_str(one, "op", snapshot_ops[rule->op]);
			write_texts(one, "values", &rule->values);
			json_add(all, one);
		}
		json_add(list, all);
	}
	return list;
}

static struct json *write_shape(const struct scale_model *model, const struct scale_shape *shape)
{
	struct json *json = json_object(), *tolerations = json_array();

	json_set(json, "request", write_amounts(model, &shape->request, 1));
	write_pairs(json, "selector", &shape->selector);
	if (shape->affinity.n)
		json_set(json, "affinity", write_affinity(&shape->affinity));
	vec_foreach (const struct scale_toleration, t, &shape->tolerations) {
		struct json *one = json_object();
		write_str(one, "key", t->key);
		write_str(one, "value", t->value);
		write_str(one, "effect", t->effect < 0 ? NULL : snapshot_effects[t->effect]);
		json_add(tolerations, one);
	}
	if (shape->tolerations.n)
		json_set(json, "tolerations", tolerations);
	else
		json_free(tolerations);
	write_texts(json, "apart", &shape->apart);
	write_texts(json, "marks", &shape->marks);
	write_texts(json, "unsupported", &shape->unsupported);
	return json;
}

static struct json *write_pod(const struct scale_model *model, const struct scale_pod *pod)
{
	struct json *json = json_object();

	json_set_str(json, "name", pod->name);
	json_set_str(json, "shape", model->shapes.v[pod->shape].name);
	if (pod->node >= 0)
		json_set_str(json, "node", model->nodes.v[pod->node].name);
	if (pod->gang >= 0)
		json_set_str(json, "gang", model->gangs.v[pod->gang].name);
	write_int(json, "count", pod->count, 1);
	write_int(json, "priority", pod->priority, 0);
	write_bool(json, "daemon", pod->is_daemon);
	return json;
}

static struct json *write_node(const struct scale_model *model, const struct scale_node *node)
{
	struct json *json = json_object();

	json_set_str(json, "name", node->name);
	write_str(json, "instance", node->instance);
	if (node->group >= 0)
		json_set_str(json, "group", model->groups.v[node->group].id);
	write_pairs(json, "labels", &node->labels);
	write_taints(json, &node->taints);
	json_set(json, "room", write_amounts(model, &node->room, 110));
	write_bool(json, "ready", node->is_ready);
	if (node->cordoned != SCALE_OPEN)
		json_set_str(json, "cordoned", snapshot_cordons[node->cordoned]);
	write_time(json, "created", node->created_ms);
	write_time(json, "idle_since", node->idle_since_ms);
	write_time(json, "cordoned_since", node->cordoned_ms);
	write_time(json, "silent_since", node->silent_ms);
	write_bool(json, "no_instance", node->has_no_instance);
	write_str(json, "kept", node->kept);
	return json;
}

static void write_instances(struct json *to, const struct scale_instances *instances)
{
	struct json *list = json_array();

	vec_foreach (const struct scale_instance, instance, instances) {
		struct json *one = json_object();
		json_set_str(one, "id", instance->id);
		write_str(one, "was", instance->was);
		json_set_str(one, "state", snapshot_states[instance->state]);
		write_time(one, "since", instance->since_ms);
		write_bool(one, "awaited", instance->is_awaited);
		json_add(list, one);
	}
	if (instances->n)
		json_set(to, "instances", list);
	else
		json_free(list);
}

struct json *snapshot_write_group(const struct scale_model *model, const struct scale_group *group)
{
	struct json *json = json_object();

	json_set_str(json, "id", group->id);
	write_str(json, "provider", group->provider);
	write_int(json, "min", group->min, 0);
	json_set_int(json, "max", group->max);
	json_set_int(json, "desired", group->desired);
	write_str(json, "region", group->region);
	write_str(json, "zone", group->zone);
	write_bool(json, "spot", group->is_spot);
	if (group->price >= 0)
		json_set_num(json, "price", group->price);
	write_int(json, "weight", group->weight, 0);
	write_int(json, "boot_s", group->boot_ms / 1000, 0);
	if (group->has_template) {
		struct json *template = json_sub(json, "template");
		write_pairs(template, "labels", &group->labels);
		write_taints(template, &group->taints);
		json_set(template, "room", write_amounts(model, &group->room, 110));
	}
	if (group->mismatches.n)
		json_set(json, "mismatches", mismatch_write(&group->mismatches));
	write_instances(json, &group->instances);
	write_time(json, "wait_until", group->wait_until_ms);
	if (group->failure != SCALE_NO_FAILURE)
		json_set_str(json, "failure", scale_failure_names[group->failure]);
	write_str(json, "failure_text", group->failure_text);
	write_str(json, "refused", group->refused);
	return json;
}

static struct json *write_limits(const struct scale_limits *limits)
{
	struct json *json = json_object();

	write_int(json, "nodes", limits->nodes, 0);
	if (limits->price > 0)
		json_set_num(json, "price", limits->price);
	write_int(json, "step", limits->step, 0);
	json_set_int(json, "removals", limits->removals);
	json_set_int(json, "idle_s", limits->idle_ms / 1000);
	json_set_int(json, "spares", limits->spares);
	json_set_int(json, "boot_s", limits->boot_ms / 1000);
	json_set_int(json, "silent_s", limits->silent_ms / 1000);
	return json;
}

struct json *snapshot_write(const struct scale_model *model)
{
	struct json *json = json_object(), *pods = json_array(), *nodes = json_array(),
		    *groups = json_array();

	json_set_int(json, "dlrun_autoscale", 1);
	write_str(json, "cluster", model->cluster);
	write_time(json, "now", model->now_ms);
	json_set(json, "limits", write_limits(&model->limits));
	vec_foreach (const struct scale_shape, shape, &model->shapes)
		json_set(json_sub(json, "shapes"), shape->name, write_shape(model, shape));
	vec_foreach (const struct scale_gang, gang, &model->gangs) {
		struct json *one = json_object();
		write_str(one, "owner", gang->owner);
		if (gang->same != SCALE_ANYWHERE)
			json_set_str(one, "same", snapshot_sames[gang->same]);
		write_int(one, "min", gang->min, 0);
		json_set(json_sub(json, "gangs"), gang->name, one);
	}
	vec_foreach (const struct scale_pod, pod, &model->pods)
		json_add(pods, write_pod(model, pod));
	vec_foreach (const struct scale_node, node, &model->nodes)
		json_add(nodes, write_node(model, node));
	vec_foreach (const struct scale_group, group, &model->groups)
		json_add(groups, snapshot_write_group(model, group));
	json_set(json, "pods", pods);
	json_set(json, "nodes", nodes);
	json_set(json, "groups", groups);
	write_texts(json, "remarks", &model->remarks);
	return json;
}

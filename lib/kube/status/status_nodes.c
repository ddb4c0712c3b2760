/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Nodes that could take a pod: its selector and required node affinity against labels, tolerations
 * against taints, requests against what is allocatable and, when all pods are known, free.
 */

struct node {
	const char *name;
	int64_t cpu, memory, disk, gpus;                /* allocatable; cpu in thousandths */
	int64_t cpu_taken, memory_taken, gpus_taken;    /* requests of its pods */
	bool matches, right_arch, off, temporarily_off; /* off: cordoned or not ready */
	char taint[128];                                /* "" if all are tolerated */
};
struct node_list VEC_OF(struct node);

/*
 * Labels
 */

static bool list_has(const struct json *values, const char *value)
{
	if (!values || json_kind(values) != JSON_ARRAY || !value)
		return false;
	for (const struct json *m = json_first(values); m; m = json_next(m))
		if (str_eq(json_str(m), value))
			return true;
	return false;
}

static bool compares(const struct json *values, const char *value, bool greater)
{
	int64_t is, bound;
	const char *text = values && json_kind(values) == JSON_ARRAY && json_first(values)
				   ? json_str(json_first(values))
				   : NULL;

	if (!value || !text || str_to_int(value, INT64_MIN, INT64_MAX, "", &is, NULL) < 0 ||
		str_to_int(text, INT64_MIN, INT64_MAX, "", &bound, NULL) < 0)
		return false;
	return greater ? is > bound : is < bound;
}

/* Evaluate a member of matchExpressions; value is NULL if the node has no such label. */
static bool expression_holds(const struct json *expression, const char *value)
{
	const char *op = json_get_str(expression, "operator");
	const struct json *values = json_get(expression, "values");

	if (str_eq(op, "In"))
		return list_has(values, value);
	if (str_eq(op, "NotIn"))
		return !list_has(values, value);
	if (str_eq(op, "Exists"))
		return value;
	if (str_eq(op, "DoesNotExist"))
		return !value;
	return compares(values, value, str_eq(op, "Gt"));
}

static bool expressions_hold(const struct json *list, const struct json *labels, const char *name)
{
	if (!list || json_kind(list) != JSON_ARRAY)
		return true;
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key");

		if (key && !expression_holds(m, name ? name : json_get_str(labels, key)))
			return false;
	}
	return true;
}

static bool affinity_holds(const struct json *spec, const struct json *node)
{
	const struct json *terms = kube_at(spec,
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
		"nodeSelectorTerms");
	const struct json *labels = kube_at(node, "metadata.labels");
	const char *name = kube_str_at(node, "metadata.name");

	if (!terms || json_kind(terms) != JSON_ARRAY || !json_first(terms))
		return true;
	for (const struct json *m = json_first(terms); m; m = json_next(m))
		if (expressions_hold(json_get(m, "matchExpressions"), labels, NULL) &&
			expressions_hold(json_get(m, "matchFields"), NULL, name ? name : ""))
			return true;
	return false;
}

static bool selector_holds(const struct json *spec, const struct json *node)
{
	const struct json *selector = json_get(spec, "nodeSelector");
	const struct json *labels = kube_at(node, "metadata.labels");

	if (!selector || json_kind(selector) != JSON_OBJECT)
		return true;
	for (const struct json *m = json_first(selector); m; m = json_next(m))
		if (!str_eq(json_get_str(labels, json_key(m)), json_str(m)))
			return false;
	return true;
}

/*
 * Taints
 */

static bool tolerates(const struct json *toleration, const struct json *taint)
{
	const char *key = json_get_str(toleration, "key"),
		   *op = json_get_str(toleration, "operator");
	const char *effect = json_get_str(toleration, "effect");
	const char *value = json_get_str(toleration, "value");
	const char *tainted = json_get_str(taint, "value");

	if (!str_empty(effect) && !str_eq(effect, json_get_str(taint, "effect")))
		return false;
	if (!str_empty(key) && !str_eq(key, json_get_str(taint, "key")))
		return false;
	if (str_eq(op, "Exists"))
		return true;
	return !str_empty(key) && str_eq(value ? value : "", tainted ? tainted : "");
}

static bool is_tolerated(const struct json *spec, const struct json *taint)
{
	const struct json *list = json_get(spec, "tolerations");

	if (str_eq(json_get_str(taint, "effect"), "PreferNoSchedule"))
		return true;
	if (!list || json_kind(list) != JSON_ARRAY)
		return false;
	for (const struct json *m = json_first(list); m; m = json_next(m))
		if (tolerates(m, taint))
			return true;
	return false;
}

/* Taints of the cluster itself come and go: not-ready, unreachable, disk-pressure,
 * unschedulable. */
static void read_taints(const struct json *spec, const struct json *json, struct node *node)
{
	const struct json *list = kube_at(json, "spec.taints");

	if (!list || json_kind(list) != JSON_ARRAY)
		return;
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");

		if (!key || is_tolerated(spec, m))
			continue;
		if (str_starts(key, "node.kubernetes.io/") ||
			str_starts(key, "node.cloudprovider.kubernetes.io/"))
			node->off = true;
		else if (!*node->taint)
			snprintf(node->taint, sizeof(node->taint), "%s%s%s", key,
				str_empty(value) ? "" : "=", str_empty(value) ? "" : value);
	}
}

/*
 * Nodes
 */

static const char *arch_of(const struct json *node)
{
	const char *arch = kube_label(node, "kubernetes.io/arch");

	return arch ? arch : kube_str_at(node, "status.nodeInfo.architecture");
}

static void read_node(const struct json *json, const struct json *spec,
	const struct kube_demand *want, struct node *node)
{
	const struct json *has = kube_at(json, "status.allocatable");
	const char *arch = json_get_str(json_get(spec, "nodeSelector"), "kubernetes.io/arch");

	node->name = kube_str_at(json, "metadata.name");
	node->cpu = kube_quantity_of(json_get(has, "cpu"));
	node->memory = kube_quantity_of(json_get(has, "memory")) / 1000;
	node->disk = kube_quantity_of(json_get(has, "ephemeral-storage")) / 1000;
	if (*want->resource)
		node->gpus = kube_quantity_of(json_get(has, want->resource)) / 1000;
	node->matches = selector_holds(spec, json) && affinity_holds(spec, json);
	node->right_arch = !arch || !arch_of(json) || str_eq(arch, arch_of(json));
	node->off = json_get_bool(json_get(json, "spec"), "unschedulable", false) ||
		    (kube_condition(json, "Ready") && !kube_condition_is(json, "Ready", "True"));
	read_taints(spec, json, node);
}

static void take(struct node *node, const struct json *pod, const char *resource)
{
	struct kube_demand demand;

	kube_demand_of(json_get(pod, "spec"), &demand);
	if (__builtin_add_overflow(node->cpu_taken, demand.cpu_milli, &node->cpu_taken))
		node->cpu_taken = INT64_MAX;
	if (__builtin_add_overflow(node->memory_taken, demand.memory, &node->memory_taken))
		node->memory_taken = INT64_MAX;
	if (*resource && str_eq(demand.resource, resource) &&
		__builtin_add_overflow(node->gpus_taken, demand.gpus, &node->gpus_taken))
		node->gpus_taken = INT64_MAX;
}

static void take_all(const struct kube_items *pods, const char *resource, struct node_list *nodes)
{
	struct map by_name = {0};

	vec_foreach (struct node, node, nodes)
		if (node->name)
			map_put(&by_name, node->name, node);
	for (size_t i = 0; i < pods->n; i++) {
		const char *name = kube_str_at(pods->v[i], "spec.nodeName");
		const char *phase = kube_str_at(pods->v[i], "status.phase");
		struct node *node = name ? map_get(&by_name, name) : NULL;

		if (node && !str_eq(phase, "Succeeded") && !str_eq(phase, "Failed"))
			take(node, pods->v[i], resource);
	}
	map_done(&by_name);
}

/*
 * Totals over nodes
 */

static int64_t free_of(int64_t all, int64_t taken)
{
	return taken >= all ? 0 : all - taken;
}

static void raise(int64_t *max, int64_t value)
{
	if (value > *max)
		*max = value;
}

static bool is_large_enough(const struct node *node, const struct kube_demand *want)
{
	return node->gpus >= want->gpus && node->cpu >= want->cpu_milli &&
	       node->memory >= want->memory && (!node->disk || node->disk >= want->disk);
}

static bool is_free_enough(const struct node *node, const struct kube_demand *want)
{
	return free_of(node->gpus, node->gpus_taken) >= want->gpus &&
	       free_of(node->cpu, node->cpu_taken) >= want->cpu_milli &&
	       free_of(node->memory, node->memory_taken) >= want->memory;
}

/* A node that the pod may go to, as far as labels and taints are concerned. */
static void count_usable(
	const struct node *node, const struct kube_demand *want, struct kube_room *room)
{
	room->tolerated++;
	raise(&room->gpus_max, node->gpus);
	raise(&room->memory_max, node->memory);
	raise(&room->cpu_max, node->cpu);
	raise(&room->disk_max, node->disk);
	if (is_large_enough(node, want))
		room->fit_ever++;
	if (node->off || !room->taken_known)
		return;
	raise(&room->gpus_free, free_of(node->gpus, node->gpus_taken));
	raise(&room->memory_free, free_of(node->memory, node->memory_taken));
	raise(&room->cpu_free, free_of(node->cpu, node->cpu_taken));
	if (is_large_enough(node, want) && is_free_enough(node, want))
		room->fit_now++;
}

static void count_node(
	const struct node *node, const struct kube_demand *want, struct kube_room *room)
{
	room->nodes++;
	room->with_gpu += node->gpus > 0;
	room->right_arch += node->right_arch;
	if (!node->matches)
		return;
	room->matching++;
	room->off += node->off;
	if (!*node->taint) {
		count_usable(node, want, room);
		return;
	}
	if (!is_large_enough(node, want))
		return;
	room->tainted++;
	if (!*room->taint)
		memcpy(room->taint, node->taint, sizeof(room->taint));
}

static int by_free(const void *a, const void *b)
{
	const struct node *x = a, *y = b;
	int64_t fx = free_of(x->gpus, x->gpus_taken), fy = free_of(y->gpus, y->gpus_taken);

	return (fx < fy) - (fx > fy);
}

/* Free GPUs (or all, while nobody knows which are free) of each usable node that has any. */
static void list_gpus(struct node_list *nodes, struct kube_room *room)
{
	size_t len = 0;

	vec_sort(nodes, by_free);
	vec_foreach (struct node, node, nodes) {
		if (!node->gpus || !node->matches || *node->taint || node->off)
			continue;
		if (len + 16 > sizeof(room->free_text)) {
			memcpy(room->free_text + len, " …", sizeof(" …"));
			return;
		}
		len += (size_t)snprintf(room->free_text + len, sizeof(room->free_text) - len,
			"%s%d", len ? " " : "",
			(int)free_of(node->gpus, node->gpus_taken) % 100000);
	}
}

static bool is_of_pool(const struct json *node)
{
	static const char *const labels[] = {"karpenter.sh/nodepool",
		"karpenter.sh/provisioner-name", "eks.amazonaws.com/nodegroup",
		"cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool", "agentpool"};

	for (size_t i = 0; i < ARRAY_LEN(labels); i++)
		if (kube_label(node, labels[i]))
			return true;
	return false;
}

static bool scales(const struct kube_case *c)
{
	static const char *const reasons[] = {
		"TriggeredScaleUp", "NotTriggerScaleUp", "Nominated", "FailedToScaleUp"};

	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (kube_pods_event(c, reasons[i]))
			return true;
	return false;
}

static void add_arch(const struct json *node, struct kube_room *room)
{
	const char *arch = arch_of(node);
	size_t len = strlen(room->arch_has);

	if (str_empty(arch) || strstr(room->arch_has, arch) ||
		len + strlen(arch) + 3 > sizeof(room->arch_has))
		return;
	snprintf(room->arch_has + len, sizeof(room->arch_has) - len, "%s%s", len ? ", " : "", arch);
}

static void measure(const struct kube_case *c, const struct json *spec, struct kube_room *ret)
{
	const struct kube_items *items = &c->facts->nodes;
	struct node_list nodes = {0};
	struct kube_demand want;

	kube_demand_of(spec, &want);
	*ret = (struct kube_room){.known = items->known,
		.taken_known = items->known && c->facts->node_pods.known,
		.grows = scales(c)};
	for (size_t i = 0; i < items->n; i++) {
		read_node(items->v[i], spec, &want, vec_push(&nodes));
		ret->grows = ret->grows || is_of_pool(items->v[i]);
		add_arch(items->v[i], ret);
	}
	if (ret->taken_known)
		take_all(&c->facts->node_pods, want.resource, &nodes);
	vec_foreach (struct node, node, &nodes)
		count_node(node, &want, ret);
	list_gpus(&nodes, ret);
	if (!ret->taken_known || !*want.resource)
		ret->gpus_free = -1;
	vec_done(&nodes);
}

const struct kube_room *kube_room_of(struct kube_case *c, const struct json *spec)
{
	if (!c->room) {
		c->room = mem_alloc(1, sizeof(*c->room));
		measure(c, spec, c->room);
	}
	return c->room;
}

int kube_gpus_fit(const struct kube_room *room)
{
	return room->gpus_free > 100000 ? 100000 : (int)room->gpus_free;
}

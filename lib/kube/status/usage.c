/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/status/usage.h"

#include <stdio.h>
#include <string.h>

#include "base/util/map.h"
#include "base/util/str.h"
#include "kube/status/object.h"

#define MILLI 1000.0

static void usage_of(const struct json *usage, struct kube_usage *ret)
{
	const struct json *cpu = json_get(usage, "cpu"), *memory = json_get(usage, "memory");

	*ret = (struct kube_usage){-1, -1};
	if (cpu)
		ret->cpus = (double)kube_quantity_of(cpu) / MILLI;
	if (memory)
		ret->memory_bytes = kube_quantity_of(memory) / 1000;
}

void kube_usage_of_pod(
	const struct json *list, const char *pod, const char *container, struct kube_usage *ret)
{
	const struct json *item = kube_first(list, "items");

	while (item && !str_eq(kube_str_at(item, "metadata.name"), pod))
		item = json_next(item);
	usage_of(json_get(kube_named(item, "containers", container), "usage"), ret);
}

/*
 * Nodes
 */

static int64_t usage_gpus_of(const struct json *amounts)
{
	int64_t gpus = 0;

	json_foreach (m, amounts)
		if (kube_is_gpu(json_key(m)) && kube_quantity_of(m) > 0)
			gpus += kube_quantity_of(m) / 1000;
	return gpus;
}

const char *kube_gpu_model(const struct json *node)
{
	static const char *const labels[] = {
		"nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.nvidia.com/model"};
	const struct json *all = kube_at(node, "metadata.labels");

	for (size_t i = 0; i < ARRAY_LEN(labels); i++)
		if (!str_empty(json_get_str(all, labels[i])))
			return json_get_str(all, labels[i]);
	return NULL;
}

/* Sum up the GPUs that pods have on each node, by its name: in one pass, as there may be thousands
 * of both. Pods that wait are on none. */
static void usage_sum_taken(const struct json *pods, struct map *ret)
{
	json_foreach (pod, json_get(pods, "items")) {
		const char *name = kube_str_at(pod, "spec.nodeName");
		struct kube_demand demand;
		if (str_empty(name))
			continue;
		kube_demand_of(kube_at(pod, "spec"), &demand);
		intptr_t before = (intptr_t)map_get(ret, name);
		if (demand.gpus > 0)
			map_put(ret, name, (void *)(before + (intptr_t)demand.gpus));
	}
}

static void usage_add_node(const struct json *json, const struct map *taken,
	const struct map *metrics, struct kube_node_list *ret)
{
	const char *name = kube_str_at(json, "metadata.name");
	const struct json *amounts = kube_at(json, "status.allocatable");
	struct kube_node *node;

	if (str_empty(name) || !kube_condition_is(json, "Ready", "True"))
		return;
	node = vec_push(ret);
	*node = (struct kube_node){
		.name = name,
		.model = kube_gpu_model(json),
		.takes_pods = !json_get_bool(kube_at(json, "spec"), "unschedulable", false),
		.cpus = (double)kube_quantity_of(json_get(amounts, "cpu")) / MILLI,
		.memory_bytes = kube_quantity_of(json_get(amounts, "memory")) / 1000,
		.gpus = usage_gpus_of(amounts),
		.gpus_taken = taken ? (intptr_t)map_get(taken, name) : -1,
	};
	usage_of(json_get(map_get(metrics, name), "usage"), &node->usage);
}

static int usage_by_name(const void *a, const void *b)
{
	return strcmp(((const struct kube_node *)a)->name, ((const struct kube_node *)b)->name);
}

void kube_nodes_of(const struct json *nodes, const struct json *pods, const struct json *metrics,
	struct kube_node_list *ret)
{
	struct map taken = {0}, used = {0};

	usage_sum_taken(pods, &taken);
	json_foreach (m, json_get(metrics, "items"))
		if (!str_empty(kube_str_at(m, "metadata.name")))
			map_put(&used, kube_str_at(m, "metadata.name"), (void *)(uintptr_t)m);
	json_foreach (node, json_get(nodes, "items"))
		usage_add_node(node, pods ? &taken : NULL, &used, ret);
	vec_sort(ret, usage_by_name);
	map_done(&taken);
	map_done(&used);
}

void kube_running_pods(const struct json *pods, struct kube_names *ret)
{
	json_foreach (pod, json_get(pods, "items")) {
		const char *name = kube_str_at(pod, "metadata.name");

		if (!str_empty(name) && !kube_str_at(pod, "metadata.deletionTimestamp") &&
			str_eq(kube_str_at(pod, "status.phase"), "Running"))
			*vec_push(ret) = name;
	}
}

void kube_capacity_of(const struct json *nodes, const struct json *pods, struct kube_capacity *ret)
{
	struct kube_node_list list = {0};

	*ret = (struct kube_capacity){.gpus_free = pods ? 0 : -1};
	kube_nodes_of(nodes, pods, NULL, &list);
	vec_foreach (const struct kube_node, node, &list) {
		/* Nodes that take no more pods do not count. */
		if (!node->takes_pods)
			continue;
		ret->nodes++;
		ret->gpus += node->gpus;
		if (pods && node->gpus > node->gpus_taken)
			ret->gpus_free += node->gpus - node->gpus_taken;
	}
	vec_done(&list);
}

static int usage_by_model(const void *a, const void *b)
{
	return strcmp(((const struct kube_gpus *)a)->model, ((const struct kube_gpus *)b)->model);
}

static struct kube_gpus *usage_kind(struct kube_gpus_list *list, const char *model, bool is_known)
{
	struct kube_gpus *kind;

	vec_foreach (struct kube_gpus, known, list)
		if (strncmp(known->model, model, sizeof(known->model) - 1) == 0)
			return known;
	kind = vec_push(list);
	*kind = (struct kube_gpus){.free = is_known ? 0 : -1};
	snprintf(kind->model, sizeof(kind->model), "%s", model);
	return kind;
}

void kube_gpus_of(const struct json *nodes, const struct json *pods, struct kube_gpus_list *ret)
{
	struct kube_node_list list = {0};

	kube_nodes_of(nodes, pods, NULL, &list);
	vec_foreach (const struct kube_node, node, &list) {
		if (!node->takes_pods || node->gpus <= 0)
			continue;
		struct kube_gpus *kind = usage_kind(ret, node->model ? node->model : "", pods);
		kind->all += node->gpus;
		if (pods && node->gpus > node->gpus_taken)
			kind->free += node->gpus - node->gpus_taken;
	}
	vec_sort(ret, usage_by_model);
	vec_done(&list);
}

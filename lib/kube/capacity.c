#include "kube/capacity.h"

#include "base/map.h"
#include "base/str.h"
#include "kube/status_impl.h"

static bool takes_pods(const struct json *node)
{
	return !json_get_bool(kube_at(node, "spec"), "unschedulable", false) &&
	       kube_condition_is(node, "Ready", "True");
}

static int64_t gpus_of(const struct json *node)
{
	const struct json *amounts = kube_at(node, "status.allocatable");
	int64_t gpus = 0;

	for (const struct json *m = json_first(amounts); m; m = json_next(m))
		if (kube_is_gpu(json_key(m)) && kube_quantity_of(m) > 0)
			gpus += kube_quantity_of(m) / 1000;
	return gpus;
}

/* What pods have of each node, by its name: in one pass, as there may be thousands of both. Those
 * that wait are on none. */
static void sum_taken(const struct json *pods, struct map *ret)
{
	for (const struct json *pod = json_first(json_get(pods, "items")); pod;
		pod = json_next(pod)) {
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

void kube_capacity_of(const struct json *nodes, const struct json *pods, struct kube_capacity *ret)
{
	struct map taken_on = {0};

	*ret = (struct kube_capacity){.gpus_free = pods ? 0 : -1};
	sum_taken(pods, &taken_on);
	for (const struct json *node = json_first(json_get(nodes, "items")); node;
		node = json_next(node)) {
		/* What is on nodes that take no more pods does not count. */
		int64_t gpus = takes_pods(node) ? gpus_of(node) : 0;
		const char *name = kube_str_at(node, "metadata.name");
		int64_t taken = name ? (intptr_t)map_get(&taken_on, name) : 0;

		ret->nodes += takes_pods(node);
		ret->gpus += gpus;
		if (pods)
			ret->gpus_free += taken < gpus ? gpus - taken : 0;
	}
	map_done(&taken_on);
}

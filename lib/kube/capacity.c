#include "kube/capacity.h"

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

/* Pods on nodes that take no more of them do not count, and neither do those that wait. */
static int64_t taken_on(const struct json *node, const struct json *pods)
{
	const char *name = kube_str_at(node, "metadata.name");
	int64_t gpus = 0;

	for (const struct json *pod = json_first(json_get(pods, "items")); pod;
		pod = json_next(pod)) {
		struct kube_demand demand;
		if (!name || !str_eq(kube_str_at(pod, "spec.nodeName"), name))
			continue;
		kube_demand_of(kube_at(pod, "spec"), &demand);
		gpus += demand.gpus;
	}
	return gpus;
}

void kube_capacity_of(const struct json *nodes, const struct json *pods, struct kube_capacity *ret)
{
	*ret = (struct kube_capacity){.gpus_free = pods ? 0 : -1};
	for (const struct json *node = json_first(json_get(nodes, "items")); node;
		node = json_next(node)) {
		int64_t gpus = takes_pods(node) ? gpus_of(node) : 0;
		int64_t taken = gpus > 0 && pods ? taken_on(node, pods) : 0;

		ret->nodes += takes_pods(node);
		ret->gpus += gpus;
		if (pods)
			ret->gpus_free += taken < gpus ? gpus - taken : 0;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "kube/status/usage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_nodes(const struct json *nodes, const struct json *pods, const struct json *used)
{
	struct kube_node_list list = {0};
	struct kube_capacity has;

	kube_nodes_of(nodes, pods, used, &list);
	vec_foreach (const struct kube_node, node, &list) {
		BUG_ON(str_empty(node->name) || node->gpus < 0);
		BUG_ON(!(node->cpus >= 0) || node->memory_bytes < 0);
		BUG_ON(!(node->usage.cpus >= -1) || node->usage.memory_bytes < -1);
	}
	kube_capacity_of(nodes, pods, &has);
	BUG_ON(has.nodes > (int64_t)list.n || has.gpus_free > has.gpus);
	vec_done(&list);
}

/* {"nodes", "pods", "metrics"}: lists as a cluster may answer them. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_JSON struct json *json = NULL;
	struct kube_names names = {0};
	struct kube_usage usage;
	const struct json *pods;

	if (json_parse((const char *)data, size, JSON_SIZE_MAX, "it", &json, NULL) < 0)
		return 0;
	pods = json_get(json, "pods");
	check_nodes(json_get(json, "nodes"), pods, json_get(json, "metrics"));
	kube_running_pods(pods, &names);
	vec_foreach (const char *, name, &names) {
		kube_usage_of_pod(json_get(json, "metrics"), *name, "program", &usage);
		BUG_ON(!(usage.cpus >= -1) || usage.memory_bytes < -1);
	}
	vec_done(&names);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/status/capacity.h"

#include "kube/status/usage.h"

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

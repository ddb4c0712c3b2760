/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Total capacity of the nodes of a cluster: an engine over lists of nodes and pods.
 */
#ifndef DLRUN_KUBE_STATUS_CAPACITY_H
#define DLRUN_KUBE_STATUS_CAPACITY_H

#include <stdint.h>

#include "base/data/json.h"

struct kube_capacity {
	int64_t nodes, gpus; /* nodes that take pods, and their GPUs of all kinds */
	int64_t gpus_free;   /* -1: not known */
};
/* nodes: a List of all nodes; pods: a List of the pods of all namespaces that have not ended, NULL:
 * not known. What is of another form counts as nothing. */
void kube_capacity_of(const struct json *nodes, const struct json *pods, struct kube_capacity *ret);

#endif

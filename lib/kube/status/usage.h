/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Usage of pods and nodes as reported by the resource metrics API of a cluster
 * (metrics.k8s.io/v1beta1: PodMetricsList, NodeMetricsList), and what nodes have. Engines over
 * lists; items of another form count as not known.
 */
#ifndef DLRUN_KUBE_STATUS_USAGE_H
#define DLRUN_KUBE_STATUS_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/vec.h"

#define KUBE_METRICS_GROUP "/apis/metrics.k8s.io/v1beta1"

/* Below 0: not known. */
struct kube_usage {
	double cpus; /* in use */
	int64_t memory_bytes;
};
/* Usage of the container in the pod of that name; list: a PodMetricsList, or NULL. */
void kube_usage_of_pod(
	const struct json *list, const char *pod, const char *container, struct kube_usage *ret);

/* A node that is ready; strings live as long as the list. Below 0: not known. */
struct kube_node {
	const char *name;
	const char *model; /* of its GPUs, as their labels say; or NULL */
	bool takes_pods;   /* false: cordoned */
	double cpus;       /* that pods may have, as is the rest */
	int64_t memory_bytes, gpus, gpus_taken;
	struct kube_usage usage; /* of all that runs there */
};
struct kube_node_list VEC_OF(struct kube_node);
/* nodes: a List of Nodes; pods: a List of the pods of all namespaces that have not ended, or NULL;
 * metrics: a NodeMetricsList, or NULL. By name; the caller frees with vec_done. */
void kube_nodes_of(const struct json *nodes, const struct json *pods, const struct json *metrics,
	struct kube_node_list *ret);

/* The model of a node's GPUs, as the discovery tools of the vendors label it; or NULL. */
const char *kube_gpu_model(const struct json *node);

/* The pods of a List that run, each once: its name, which lives as long as the list. */
struct kube_names VEC_OF(const char *);
void kube_running_pods(const struct json *pods, struct kube_names *ret);

/* GPUs of one model on the nodes that take pods. */
struct kube_gpus {
	char model[64];    /* "": the labels do not say */
	int64_t all, free; /* free < 0: not known */
};
struct kube_gpus_list VEC_OF(struct kube_gpus);
/* Of each model, by name; lists as of kube_capacity_of. The caller frees with vec_done. */
void kube_gpus_of(const struct json *nodes, const struct json *pods, struct kube_gpus_list *ret);

/* Total capacity of the nodes of a cluster. */
struct kube_capacity {
	int64_t nodes, gpus; /* nodes that take pods, and their GPUs of all kinds */
	int64_t gpus_free;   /* -1: not known */
};
/* nodes: a List of all nodes; pods: a List of the pods of all namespaces that have not ended, NULL:
 * not known. What is of another form counts as nothing. */
void kube_capacity_of(const struct json *nodes, const struct json *pods, struct kube_capacity *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resources of a machine that runs programs, and their use at a moment: this machine, a host of an
 * ssh target, a node of a cluster.
 */
#ifndef DLRUN_CORE_RECORD_MACHINE_H
#define DLRUN_CORE_RECORD_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/vec.h"
#include "kube/status/usage.h"
#include "node/node.h"

enum { MACHINES_MAX = 2000 };

/* Below 0: not known. */
struct machine_gpu {
	char vendor[16], model[96], holder[64]; /* holder: a run, "other", or empty */
	unsigned index;
	bool used;            /* some process computes on it */
	double busy, power_w; /* busy: 0 to 1 */
	int64_t memory_bytes, memory_used_bytes;
};
struct machine {
	char *target, *host;
	char *error;   /* why nothing is known, or not of its GPUs; one sentence, or NULL */
	bool answered; /* the machine was reached */
	double cpus;   /* processors; of a node of a cluster those that pods may have */
	double load;   /* of one minute; of a node of a cluster: processors in use */
	int64_t memory_bytes, memory_used_bytes;
	int64_t n_gpus, gpus_free;
	char *model;                            /* of the GPUs; or NULL */
	struct VEC_OF(struct machine_gpu) gpus; /* each, where that is known */
};
struct machine_list VEC_OF(struct machine);

/* Initialize a machine of which nothing is known. */
void machine_init(struct machine *machine, const char *target, const char *host);
void machine_done(struct machine *machine);
void machine_list_done(struct machine_list *list);
#define AUTO_MACHINES AUTO(machine_list_done)

/* Fill in a machine that machine_init has made. */
void machine_from_node(const struct node_machine *node, struct machine *ret);
void machine_from_kube(const struct kube_node *node, struct machine *ret);
/* Set the counts and the model from gpus. */
void machine_count_gpus(struct machine *machine);

/* {"target", "host", "reachable", "error", "cpus", "load", "memory_bytes", "memory_used_bytes",
 * "gpus_all", "gpus_free", "gpu_model", "gpus": [{"index", "vendor", "model", "busy", …}]}, null
 * where something is not known. The caller frees. */
struct json *machine_json(const struct machine *machine);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resources of a node and their use at a moment (`machine` of protocol.h).
 */
#ifndef DLRUN_NODE_MACHINE_H
#define DLRUN_NODE_MACHINE_H

#include "node/node.h"
#include "node/wire.h"

/* Below 0 (cpus: 0): not known. */
struct node_meter {
	struct node_gpu gpu;
	double busy, power_w; /* busy: 0 to 1 */
	int64_t memory_used_bytes;
};
struct node_machine {
	double load; /* of one minute */
	unsigned cpus;
	int64_t memory_bytes, memory_free_bytes;
	struct VEC_OF(struct node_meter) gpus; /* by vendor and index */
	char *fault;                           /* why there are none: the node's words; or NULL */
};
void node_machine_init(struct node_machine *machine);
void node_machine_done(struct node_machine *machine); /* NULL is accepted */

/* ret: initialised; filled anew. It may take 40 s where the tools for GPUs hang. */
struct node_call *node_machine(
	struct node *node, struct node_machine *ret, node_done_fn *done, void *ctx);

/* The words of one line of the answer, added; what is of another form counts as not known.
 * E_NODE_PROTOCOL, E_DATA_LIMIT. */
int node_machine_line(
	const struct node_words *words, struct node_machine *machine, struct err *err);

#endif

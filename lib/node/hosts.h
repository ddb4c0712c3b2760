/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hosts of a pool, as people write them, and which of them is to take a run. Engines.
 */
#ifndef DLRUN_NODE_HOSTS_H
#define DLRUN_NODE_HOSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"

#define NODE_ROOT_DEFAULT "~/.dlrun" /* of the runner, on a host */

enum { NODE_HOSTS_MAX = 1024, NODE_LAYERS_SLACK = 1 << 20 };

/* "gpu1", "me@gpu2", "gpu1:2222", "[::1]:2222", "//gpu1" (of ssh://gpu1), "gpu[03-16]" (width is
 * kept), "a[1,4-5]b[1-3]", comma between hosts; each host once, in order. E_USAGE: empty, a name
 * that begins with "-", control characters, spaces, "/", a range that goes down, more than
 * NODE_HOSTS_MAX. *ret is as before then. */
int node_hosts_parse(const char *text, struct strv *ret, struct err *err);
/* Add the hosts of text behind the present ones. */
int node_hosts_add(struct strv *hosts, const char *text, struct err *err);

/* host as ssh takes it, without its port (0: none) and the brackets of an address. The caller
 * frees. */
char *node_host_destination(const char *host, unsigned *ret_port);

/* Facts about a host that a run may go to. */
struct node_offer {
	const char *host;
	bool answered;            /* it could be asked; else it is passed over */
	const char *why_not;      /* why it was not, one sentence; or NULL */
	unsigned gpus, gpus_free; /* that fit the run; free: nobody holds or uses them */
	unsigned cpus;
	double load; /* of the last minute; < 0: not known */
	uint64_t memory_bytes, memory_free_bytes, disk_free_bytes;
	unsigned queued;        /* runs of dlrun's that wait for GPUs there */
	uint64_t missing_bytes; /* of the layers that it has not */
};
struct node_requirements {
	unsigned nodes; /* that are wanted at once */
	int gpus;       /* on each; -1: one if it has any */
	uint64_t memory_bytes, disk_bytes;
	double cpus;
};
/* Choose the hosts for a run: fits, then has the layers (all but NODE_LAYERS_SLACK bytes), then
 * most free; the order of writing at last. Load and memory, which change from moment to moment,
 * count in steps. With gpus -1 a host without GPUs is taken only where none has any.
 * *ret: indexes of offers, nodes of them, or empty when it cannot be. *ret_why: one sentence about
 * the choice, or why none can ("3 of 4 hosts answered; none has 2 GPUs"). A run that fits but finds
 * all GPUs busy goes to the host with the shortest queue; a gang of several nodes does not wait:
 * all at once or none. With gpus 0 hosts without GPUs go first. The caller frees. */
struct node_choice {
	struct VEC_OF(size_t) hosts;
	bool is_ready; /* it would not wait there */
	char *why;
};
void node_choose(const struct node_offer *offers, size_t n,
	const struct node_requirements *requirements, struct node_choice *ret);
void node_choice_done(struct node_choice *choice);

/* The hosts of a pool for the members of a study of which `parallel` (> 0) run at once on all n of
 * them, though no host knows of the others: there are so many slots, slot s is host s % n's, and
 * member i waits for slot i % parallel. The index of its host, below both n and parallel. */
size_t node_member_host(int index, int parallel, size_t n);
/* How many slots a host has: the limit that it keeps. Their sum is parallel. */
int node_member_slots(size_t host, int parallel, size_t n);

#endif

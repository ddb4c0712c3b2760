/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about the hosts of a pool that a program may notice: system, drivers, tools, limits, clock.
 * A run goes to any of the hosts, so each fact should be the same on all.
 */
#ifndef DLRUN_TARGETS_SSH_HOST_FACTS_H
#define DLRUN_TARGETS_SSH_HOST_FACTS_H

#include <stddef.h>

#include "base/util/vec.h"
#include "targets/ssh/node_open.h"

struct host_fact_value {
	char *value; /* as the host reported it, or "none", "not known": filter it before display */
	struct strv hosts;
};
struct host_fact {
	const char *name;                             /* "driver" */
	struct VEC_OF(struct host_fact_value) values; /* never empty, the most frequent first */
};
struct host_facts VEC_OF(struct host_fact);
void host_facts_done(struct host_facts *facts);
#define AUTO_HOST_FACTS AUTO(host_facts_done)

/* probes: asked with gpus_too and fields_too. A host that did not answer is left out, and so is a
 * fact that no host reports. An engine. */
void host_facts_compare(const struct node_probe *probes, size_t n, struct host_facts *ret);

#endif

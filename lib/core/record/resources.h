/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resources that a run needs of each node, and its queue and priority, for targets that allocate
 * them. GPUs are part of the runtime (runtime.h), because every kind of target has them.
 */
#ifndef DLRUN_CORE_RECORD_RESOURCES_H
#define DLRUN_CORE_RECORD_RESOURCES_H

#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/config/config.h"

enum { RESOURCES_NODES_MAX = 10000 };

/* 0 and NULL: not set. */
struct resources {
	int nodes;          /* at least 1 */
	int64_t cpus_milli; /* thousandths of a processor */
	uint64_t memory_bytes, shm_bytes, disk_bytes;
	char *gpu_type; /* a name of the target's gpu_types */
	/* Nodes of a cluster: any in a list with commas; whether they may be taken back. */
	char *region, *instance_type;
	char *same; /* "zone", or the key of a label: its value is that of the nodes of all ranks */
	enum { RESOURCES_SPOT_ANY, RESOURCES_SPOT, RESOURCES_SPOT_NOT } spot;
	char *queue, *priority;
};

/* Apply the configuration (resources:, queue:, priority:) on top of ret, which a repeated run
 * brings along. E_CONFIG, E_USAGE. */
int resources_from_config(const struct config *config, struct resources *ret, struct err *err);
/* Members nodes, cpus, … of object; only those that are set. Reading is lenient. */
void resources_to_json(const struct resources *resources, struct json *object);
void resources_from_json(const struct json *object, struct resources *ret);
void resources_done(struct resources *resources);
#define AUTO_RESOURCES AUTO(resources_done)

/* "4", "0.5", "500m" in thousandths. E_CONFIG naming what. */
int resources_parse_cpus(const char *text, const char *what, int64_t *ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The autoscaler's ConfigMaps: the state that only it reads (core/autoscale/state.h), and the
 * growth of the cluster, which everybody may read (core/autoscale/growth.h). All of it blocks.
 */
#ifndef DLRUN_APP_AUTOSCALE_PUBLISH_H
#define DLRUN_APP_AUTOSCALE_PUBLISH_H

#include "app/autoscale/system_map.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/state.h"

enum { PUBLISH_EVERY_MS = 60 * 1000 };

struct state_store {
	struct system_map map;
	struct scale_state state;
};
struct state_store state_store_of(struct kube_client *client);
void state_store_done(struct state_store *store);
/* E_DATA of a ConfigMap that cannot be read. */
int state_store_read(struct state_store *store, struct err *err);
/* Writes the state if it has changed since. */
int state_store_write(struct state_store *store, struct err *err);

struct growth_store {
	struct system_map map;
	struct buf written; /* without its time */
	int64_t written_ms; /* clock_ms(); 0: never by this process */
};
struct growth_store growth_store_of(struct kube_client *client);
void growth_store_done(struct growth_store *store);
/* Reads it for how long machines of groups take, as far as anybody knows. */
void growth_store_learn(struct growth_store *store, struct scale_model *model);
/* Writes what a turn has come to if it differs from the last one, and each PUBLISH_EVERY_MS. */
int growth_store_write(struct growth_store *store, const struct scale_model *model,
	const struct scale_plan *plan, int64_t every_ms, struct err *err);

#endif

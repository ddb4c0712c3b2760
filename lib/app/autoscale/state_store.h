/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The autoscaler's state (core/autoscale/state.h) in the cluster: the ConfigMap
 * dlrun-autoscale-state. It is replaced only in the version that was read, so that of two
 * autoscalers that both think to hold the Lease one is refused.
 */
#ifndef DLRUN_APP_AUTOSCALE_STATE_STORE_H
#define DLRUN_APP_AUTOSCALE_STATE_STORE_H

#include "base/util/err.h"
#include "core/autoscale/state.h"
#include "kube/api/client.h"

/* Zero, but for the client. */
struct state_store {
	struct kube_client *client;
	struct scale_state state;
	struct json *object; /* as it is in the cluster; NULL: it is not there */
};
void state_store_done(struct state_store *store);

/* Blocks. kube.* errors; E_DATA of a ConfigMap that cannot be read. */
int state_store_read(struct state_store *store, struct err *err);
/* Writes what has changed since it was read. Blocks. E_SCALE_LEASE: somebody else has written. */
int state_store_write(struct state_store *store, struct err *err);

#endif

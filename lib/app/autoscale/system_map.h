/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ConfigMap of the autoscaler in the namespace dlrun-system, of which one key is read and
 * written. It is replaced only in the version that was read, so that of two autoscalers that both
 * think to hold the Lease one is refused. All of it blocks.
 */
#ifndef DLRUN_APP_AUTOSCALE_SYSTEM_MAP_H
#define DLRUN_APP_AUTOSCALE_SYSTEM_MAP_H

#include "base/util/err.h"
#include "kube/api/client.h"

#define AUTOSCALE_NAMESPACE "dlrun-system"

struct system_map {
	struct kube_client *client;
	const char *name, *key; /* plain words, borrowed */
	struct json *object;    /* as it is in the cluster; NULL: it is not there */
};
void system_map_done(struct system_map *map);

/* kube.* errors; a ConfigMap that is not there is none. */
int system_map_read(struct system_map *map, struct err *err);
/* The value of the key; NULL: there is none. */
const char *system_map_text(const struct system_map *map);
/* Sets the value of the key. E_SCALE_LEASE: somebody else has written since it was read. */
int system_map_write(struct system_map *map, const char *text, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The acts of the autoscaler on nodes of the cluster: the marks that it keeps on them, cordons, and
 * the end of their objects.
 */
#ifndef DLRUN_APP_AUTOSCALE_NODE_ACTS_H
#define DLRUN_APP_AUTOSCALE_NODE_ACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "base/util/map.h"
#include "core/autoscale/model.h"
#include "kube/api/client.h"

enum node_act_kind {
	NODE_ACT_MARK, /* its group, and since when it is idle, or that it is not */
	NODE_ACT_CORDON,
	NODE_ACT_UNCORDON,
};
struct node_act {
	enum node_act_kind kind;
	int32_t node; /* of the model's */
	bool is_done;
	struct err error; /* set by node_acts_do; also where the node is gone */
};
struct node_acts VEC_OF(struct node_act);
void node_acts_done(struct node_acts *acts);
#define AUTO_NODE_ACTS AUTO(node_acts_done)

/* All at once; waits for all of them. Idle times and cordons are as the model has them. Each act
 * has its own error: a node that has changed since the model was made is not touched.
 * E_CANCELED. */
int node_acts_do(struct kube_client *client, const volatile int *interrupted,
	struct scale_model *model, struct node_acts *acts, struct err *err);

/* A node whose object may go, as the API server has it now. Strings are owned. */
struct node_look {
	int32_t node;        /* of the model's */
	int32_t action;      /* the caller's */
	char *uid, *version; /* NULL: it may not go */
	char *why;           /* why not */
};
struct node_looks VEC_OF(struct node_look);
void node_looks_done(struct node_looks *looks);
#define AUTO_NODE_LOOKS AUTO(node_looks_done)

/* Look at nodes again, all at once, of which is_dead says that they have no machines and must not
 * respond; else they must be cordoned by us and run nothing but daemons. Blocks. E_CANCELED. */
int node_acts_look(struct kube_client *client, const volatile int *interrupted,
	const struct scale_model *model, bool is_dead, struct node_looks *looks, struct err *err);
/* Delete the object of that uid and version (NULL: of any); already gone is success. Blocks. */
int node_acts_forget(struct kube_client *client, const char *name, const char *uid,
	const char *version, struct err *err);
/* The ids by which the machines of all nodes may be called, as keys. Blocks. */
int node_acts_instances(struct kube_client *client, const volatile int *interrupted,
	struct map *ret, struct err *err);

#endif

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
#include "core/autoscale/model.h"
#include "kube/api/client.h"

enum node_act_kind {
	NODE_ACT_MARK, /* its group, and since when it is idle, or that it is not */
	NODE_ACT_CORDON,
	NODE_ACT_UNCORDON,
};
struct node_act {
	enum node_act_kind kind;
	int32_t node;     /* of the model's */
	struct err error; /* set by node_acts_do; of a node that is gone, too */
};
struct node_acts VEC_OF(struct node_act);
void node_acts_done(struct node_acts *acts);
#define AUTO_NODE_ACTS AUTO(node_acts_done)

/* All at once; waits for all of them. Idle times and cordons are as the model has them. Errors of
 * single ones are theirs. E_CANCELED. */
int node_acts_do(struct kube_client *client, const volatile int *interrupted,
	const struct scale_model *model, struct node_acts *acts, struct err *err);

/* Whether a node's object may go, as the API server has it now: 1, and *ret_uid, the caller's, says
 * which object that is; 0, and *ret_why, the caller's. Blocks. */

/* A node that is to go may if it is cordoned by us and runs nothing but daemons. */
int node_acts_is_free(struct kube_client *client, const struct scale_node *node, char **ret_uid,
	char **ret_why, struct err *err);
/* A node without a machine may if it does not respond. */
int node_acts_is_dead(struct kube_client *client, const struct scale_node *node, char **ret_uid,
	char **ret_why, struct err *err);
/* Delete the object of that uid; one that is gone is right. Blocks. */
int node_acts_forget(
	struct kube_client *client, const char *name, const char *uid, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of a cluster as it is now: all lists that the planner needs, and the groups of all
 * providers, are asked for at the same time. What a cluster lacks (JobSets, Kueue, …) is not
 * missed; what may not be read is a remark.
 */
#ifndef DLRUN_APP_AUTOSCALE_COLLECT_H
#define DLRUN_APP_AUTOSCALE_COLLECT_H

#include "app/autoscale/supply.h"
#include "base/util/err.h"
#include "core/autoscale/model.h"
#include "core/context/session.h"
#include "targets/kube/kube_open.h"

enum { COLLECT_MS = 30 * 1000 };

/* target: a cluster, "kube[:CONTEXT[/NAMESPACE]]" or a target of the configuration that is one. It
 * belongs to the session. E_TARGET_UNSUPPORTED: the target is no cluster. */
int collect_open(
	struct session *session, const char *target, struct kube_cluster **ret, struct err *err);
/* The model has its limits, and its groups where supply is NULL; now_ms, by the clock of the API
 * server, and what the cluster has are set. kube.* errors of nodes and pods. */
int collect_cluster(struct kube_cluster *cluster, struct supply *supply,
	const volatile int *interrupted, struct scale_model *model, struct err *err);

#endif

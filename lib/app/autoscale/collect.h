/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of a cluster as it is now: all lists that the planner needs are asked for at the same
 * time, page by page. What a cluster lacks (JobSets, Kueue, …) is not missed; what may not be read
 * is a remark.
 */
#ifndef DLRUN_APP_AUTOSCALE_COLLECT_H
#define DLRUN_APP_AUTOSCALE_COLLECT_H

#include "base/util/err.h"
#include "core/autoscale/model.h"
#include "core/context/session.h"

enum { COLLECT_MS = 60 * 1000 };

/* target: a cluster, "kube[:CONTEXT[/NAMESPACE]]" or a target of the configuration that is one. The
 * model has its groups and limits; now_ms, cluster (where it is NULL) and what the cluster has are
 * set. kube.* errors of nodes and pods; E_TARGET_UNSUPPORTED: the target is no cluster. */
int collect_cluster(struct session *session, const char *target, const volatile int *interrupted,
	struct scale_model *model, struct err *err);

#endif

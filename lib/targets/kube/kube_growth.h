/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growth of a cluster as its autoscaler reports it (core/autoscale/growth.h): facts for
 * kube/status, and the cost of runs by its prices.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_GROWTH_H
#define DLRUN_TARGETS_KUBE_KUBE_GROWTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "kube/job/job.h"
#include "kube/status/status.h"
#include "targets/kube/kube_open.h"
#include "targets/kube/target_kube.h"

/* Ask for the ConfigMap. */
struct kube_call *kube_growth_query(
	const struct kube_cluster *cluster, int64_t deadline_ms, kube_done_fn *done, void *ctx);
/* Keep the response to that: there is one, there is none, or it may not be read. No response
 * (status 0), or a failure of the server, leaves what is known. */
void kube_growth_keep(struct kube_cluster *cluster, int status, const struct json *object);
void kube_growth_free(struct growth *growth); /* NULL is accepted */
/* Whether it is known as it was fresh_ms ago. */
bool kube_growth_is_fresh(const struct kube_cluster *cluster, int64_t fresh_ms);

/* For pods of a run that is to be submitted, those of kube_objects_pods, as many. The caller ends
 * and frees each. NULL: nothing is known. */
struct kube_growth *kube_growth_for(const struct kube_cluster *cluster, const struct kube_run *run,
	const struct kube_objects *objects, size_t *ret_n);
/* For the pods of a run that wait. false: nothing is known. */
bool kube_growth_of(const struct kube_cluster *cluster, const struct kube_facts *facts,
	struct kube_growth *ret);
/* The cost of a run that has ended, dlrun/observed/v1 "cost" (observed.h); NULL: not known. The
 * caller frees. */
struct json *kube_growth_cost(const struct kube_cluster *cluster, const struct kube_facts *facts,
	const struct kube_status *status);

#endif

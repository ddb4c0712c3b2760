/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about one run, picked out of lists of a namespace for status.c.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_FACTS_H
#define DLRUN_TARGETS_KUBE_KUBE_FACTS_H

#include <stdbool.h>

#include "base/data/json.h"
#include "core/target/target.h"
#include "kube/status/status.h"
#include "targets/kube/target_kube.h"

enum kube_facts_kind {
	KUBE_FACTS_JOB,
	KUBE_FACTS_PODS,
	KUBE_FACTS_EVENTS,
	KUBE_FACTS_NODES,     /* of the cluster */
	KUBE_FACTS_WORKLOADS, /* of Kueue */
	KUBE_FACTS_JOBSETS,
	KUBE_FACTS_KINDS,
};
_Static_assert(
	(int)KUBE_FACTS_KINDS == (int)KUBE_LISTS, "of each a cluster knows whether it is denied");

struct kube_facts_store {
	struct kube_facts facts; /* borrows from the lists and from the vectors */
	struct kube_objects_list VEC_OF(const struct json *) pods, events, nodes;
};

/* lists: List objects as the server gave them, NULL for what is not known. */
void kube_facts_of(struct json *const lists[static KUBE_FACTS_KINDS],
	const struct kube_handle *handle, struct kube_facts_store *ret);
void kube_facts_store_done(struct kube_facts_store *store);

/* The object made for the attempt, its Job or JobSet, or the Job that the JobSet made; or NULL. */
const struct json *kube_facts_made(
	struct json *const lists[static KUBE_FACTS_KINDS], const struct kube_handle *handle);
/* Whether it waits for what Kueue or the scheduler says of it. */
bool kube_facts_is_suspended(const struct json *made);
bool kube_facts_is_unscheduled(const struct json *pods, const char *job);
/* Whether the Job that it has made does not tell enough of its JobSet: it has ended badly, waits or
 * is not there. false: it is none. */
bool kube_facts_needs_jobset(const struct json *jobs, const struct kube_handle *handle);
/* Whether the Job alone does not tell enough: it has failed, or does not run. */
bool kube_facts_job_needs_pods(const struct json *jobs, const struct kube_handle *handle);

void kube_status_to_target(const struct kube_status *status, struct target_status *ret);

#endif

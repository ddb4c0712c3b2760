/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about one run, picked out of lists of a namespace for status.c.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_FACTS_H
#define DLRUN_TARGETS_KUBE_KUBE_FACTS_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/map.h"
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
	struct kube_facts facts; /* borrows from the lists, the index, the vectors and job */
	struct json *job;        /* of a study, as the member sees it; or NULL */
	struct kube_objects_list VEC_OF(const struct json *) events, nodes;
};

/* Pods of runs, found by their Job and the member that they belong to. */
struct kube_pod_index {
	struct map map; /* "JOB", "JOB/INDEX" → struct kube_objects_list */
};
/* pods: a List, which is borrowed; or NULL. */
void kube_pod_index_make(const struct json *pods, struct kube_pod_index *ret);
void kube_pod_index_done(struct kube_pod_index *index);

/* lists: List objects as the server gave them, NULL for what is not known. index: of those pods.
 */
void kube_facts_of(struct json *const lists[static KUBE_FACTS_KINDS],
	const struct kube_pod_index *index, const struct kube_handle *handle,
	struct kube_facts_store *ret);
void kube_facts_store_done(struct kube_facts_store *store);

/* The object made for the attempt, its Job or JobSet, or the Job that the JobSet made; or NULL. */
const struct json *kube_facts_made(
	struct json *const lists[static KUBE_FACTS_KINDS], const struct kube_handle *handle);
/* Whether the Job that it has made does not tell enough of its JobSet: it has ended badly, waits or
 * is not there. false: it is none. */
bool kube_facts_needs_jobset(const struct json *jobs, const struct kube_handle *handle);
/* Whether the Job alone does not tell enough: it has failed, or does not run. */
bool kube_facts_job_needs_pods(const struct json *jobs, const struct kube_handle *handle);

/*
 * Watches of the Job and pods of one run: repeated requests for its state in one command (`wait`,
 * the end of a log) are answered from them, not by a list each time.
 */

/* The watcher of the run, begun when it is asked for the third time; NULL before that. Belongs to
 * the list, which lives as long as the client. */
struct kube_watcher *kube_watcher_of(struct kube_watchers *watchers, struct kube_client *client,
	const struct kube_handle *handle);
/* Lists of the Job, of the pods and of its JobSet as they are now (clock_ms), as the server would
 * give them. false: they are not known, or not as of now: the watch has been silent for 10 s, so
 * that it may be dead, or it does not know the Job, which may just have been made. */
bool kube_watcher_lists(const struct kube_watcher *watcher, const struct kube_handle *handle,
	int64_t now_ms, struct json *ret_lists[static KUBE_FACTS_KINDS]);
/* With lists that were asked for because of that (NULL: not known): a silent watch that knows the
 * same is current again, another one is begun anew. */
void kube_watcher_compare(
	struct kube_watcher *watcher, struct json *const lists[static KUBE_FACTS_KINDS]);
void kube_watchers_done(struct kube_watchers *watchers);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a cluster has room for a run now: questions beside those of a preflight (preflight.h),
 * and what follows from the replies to both. With a queue of Kueue the queue decides, without one
 * what is free on nodes. An engine: no I/O.
 */
#ifndef DLRUN_KUBE_JOB_ROOM_H
#define DLRUN_KUBE_JOB_ROOM_H

#include <stdbool.h>

#include "base/util/err.h"
#include "kube/job/job.h"
#include "kube/job/preflight.h"

/* Questions that kube_room_query_more adds at most. */
enum { KUBE_ROOM_MORE_MAX = 9 };

/* Add to those of kube_preflight_query. */
void kube_room_query(const struct kube_run *run, struct kube_questions *ret);
/* After the reply to one: the ClusterQueue behind the queue, and its admission checks. */
void kube_room_query_more(const struct kube_question *answered, const struct kube_reply *reply,
	struct kube_questions *ret);

struct kube_room {
	bool is_now;
	/* Names of those that could run one of its pods if they were empty; none: not known. The
	 * caller frees. */
	struct strv nodes;
	char *text; /* what is free, or what it would wait for; the caller frees */
};
/* After a preflight without problems. E_SCHED_QUOTA: the queue never has so much;
 * E_TARGET_UNSUPPORTED: it hands Jobs to other clusters. */
int kube_room_evaluate(const struct kube_run *run, const struct kube_objects *objects,
	const struct kube_questions *questions, const struct kube_reply *replies,
	struct kube_room *ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of a cluster as a model: nodes, pods, and gangs as far as dlrun's Jobs, JobSets, Kueue's
 * Workloads and PodGroups say what belongs together. An engine.
 *
 * A pod waits if it has no node and is not being deleted. Pods of a gang that do not exist yet are
 * added with a count, so that a gang is bought as one. A Workload of Kueue without quota waits for
 * quota, not for nodes: nothing is bought for it, and a remark says so.
 *
 * Required affinity by zone to pods like oneself, as InterPodAffinity of kube-scheduler has it: a
 * gang of which all pods that wait have it and select all of it is in one zone, and so are pods of
 * no gang, which become one of which each is of use. What it selects else is not supported.
 */
#ifndef DLRUN_CORE_AUTOSCALE_OBJECTS_H
#define DLRUN_CORE_AUTOSCALE_OBJECTS_H

#include "base/data/json.h"
#include "core/autoscale/model.h"

/* State that the loop keeps on nodes. */
#define SCALE_CORDONED_BY    "dlrun/cordoned-by" /* annotation: SCALE_US */
#define SCALE_US             "autoscale"
#define SCALE_CORDONED_SINCE "dlrun/cordoned-since" /* annotations: RFC 3339 */
#define SCALE_IDLE_SINCE     "dlrun/idle-since"
#define SCALE_GROUP          "dlrun/group" /* annotation: the id of its group */

enum objects_kind {
	OBJECTS_NODES,
	OBJECTS_PODS,
	OBJECTS_JOBS,
	OBJECTS_CLAIMS,
	OBJECTS_VOLUMES,
	OBJECTS_JOBSETS,
	OBJECTS_WORKLOADS,  /* of Kueue */
	OBJECTS_POD_GROUPS, /* scheduling.x-k8s.io */
	OBJECTS_VOLCANO,    /* scheduling.volcano.sh */
	OBJECTS_KINDS,
};
/* The path of a kind at the API server. */
const char *objects_path(enum objects_kind kind);
/* Whether a cluster may lack it. */
bool objects_is_optional(enum objects_kind kind);

/* Adds the ids by which providers may call a node's machine, the likeliest first: of its
 * providerID, its name, its Machine of Cluster API. */
void objects_ids(const struct json *node, struct strv *ret);
/* SCALE_OPEN, SCALE_CORDONED or SCALE_CORDONED_BY_US. */
int objects_cordon(const struct json *node);
/* Why a node is never removed, which the caller frees; NULL: it may be. */
char *objects_kept(const struct json *node);
/* Whether a pod is of a DaemonSet or of its node itself. */
bool objects_is_daemon(const struct json *pod);

/* Take from an object of a list what objects_read does not look at, most of its bytes. */
void objects_trim(struct json *item);
/* lists: of each kind the List object, or NULL. The model has its groups, limits and time already;
 * nodes, pods, gangs and shapes are added. */
void objects_read(const struct json *const lists[OBJECTS_KINDS], struct scale_model *model);

#endif

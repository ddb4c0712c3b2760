/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at clusters before anything is sent there: whether they answer, what this user may do in a
 * namespace, and what is there. All questions to all clusters are asked at the same time; what has
 * no response at the end of the time limit is not known.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_POLL_H
#define DLRUN_TARGETS_KUBE_KUBE_POLL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "kube/status/usage.h"
#include "targets/kube/kube_open.h"

enum kube_may { KUBE_MAY_UNKNOWN, KUBE_MAY, KUBE_MAY_NOT };

enum kube_right {
	KUBE_RIGHT_SUBMIT,
	KUBE_RIGHT_LOGS,
	KUBE_RIGHT_EXEC,
	KUBE_RIGHT_FORWARD,
	KUBE_RIGHT_SECRETS,
	KUBE_RIGHT_EVENTS,
	KUBE_RIGHT_NODES,
	KUBE_RIGHT_STUDIES,
	KUBE_RIGHTS,
};
/* Behind "may" and "may not": "start runs". */
const char *kube_right_text(enum kube_right right);
/* The tier of `dlrun init --rbac` that has it; NULL: the ClusterRole. */
const char *kube_right_tier(enum kube_right right);

struct kube_poll {
	/* Input, borrowed. NULL: as for kube_open (context, kube_namespace), none (the others). */
	const char *context, *kube_namespace;
	const char *queue, *pull_secret;
	bool who;    /* ask who the server takes us for */
	bool claims; /* ask whether a claim for results would be served */

	/* Results; strings are owned. */
	struct kube_cluster *cluster; /* the session's; NULL: error says why */
	struct err error;             /* why it could not be asked, or does not know us */
	bool reached;                 /* it knows us */
	int64_t response_ms;          /* until the first response; -1: none came */
	char *version;                /* "v1.34.1" */
	char *user;
	enum kube_may rights[KUBE_RIGHTS];
	/* Status of HTTP; 0: not asked, or no response. */
	int namespace_status, queue_status, pull_secret_status;
	char *enforced; /* Pod Security level of the namespace: "privileged" where none is set */
	char *pull_secret_type;
	bool may_claim;        /* claims may be created */
	char *default_class;   /* StorageClass of claims that name none; NULL: none, or not known */
	int64_t queue_pending; /* workloads that wait in the queue; -1: not known */
	bool capacity_known;   /* nodes may be read */
	struct kube_capacity capacity; /* of the whole cluster */
	struct kube_gpus_list gpus;    /* the same GPUs by model */
};
void kube_poll_done(struct kube_poll *poll);

/* Fills looks, which are zero but for what to look at. *interrupted (may be NULL) ends it with
 * E_CANCELED; nothing else is an error. Blocks for limit_ms at most, but for reading kubeconfigs.
 */
int kube_poll_all(struct session *session, struct kube_poll *polls, size_t n, int64_t limit_ms,
	const volatile int *interrupted, struct err *err);

/* "v1.34.1, may submit, 2 nodes, 3 of 8 GPUs free": one line for people; the caller frees. */
char *kube_poll_text(const struct kube_poll *poll);
/* Appends the rights that are as wanted, behind before and with commas; nothing if none is. */
void kube_poll_add_rights(
	const struct kube_poll *poll, enum kube_may wanted, const char *before, struct buf *out);
/* Adds the members of look to an object. */
void kube_poll_to_json(const struct kube_poll *poll, struct json *json);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Permissions that dlrun needs in a namespace, in terms of RBAC (rbac.authorization.k8s.io/v1): one
 * table for the Roles printed by `dlrun init --rbac` and for the checks of preflight. An engine.
 */
#ifndef DLRUN_KUBE_JOB_RBAC_H
#define DLRUN_KUBE_JOB_RBAC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/err.h"

/* Each holds all before it. */
enum kube_tier {
	KUBE_TIER_SUBMIT,  /* submit, ps, why, cancel, wait: runs without secrets */
	KUBE_TIER_LOGS,    /* logs, and what submit shows while it follows */
	KUBE_TIER_EXEC,    /* exec, ssh, forward, tensorboard, fetch, top */
	KUBE_TIER_SECRETS, /* secrets: */
	KUBE_TIERS,
};
/* "submit" "logs" "exec" "secrets" */
const char *kube_tier_name(enum kube_tier tier);
/* Sentence for a namespace that grants only lower tiers ("logs of runs cannot be read"). */
const char *kube_tier_lack(enum kube_tier tier);

struct kube_rule {
	enum kube_tier tier;
	bool everywhere;      /* of the whole cluster, and dlrun does without it */
	const char *group;    /* "" the core group */
	const char *resource; /* "jobs", "pods/log" */
	const char *verbs;    /* "create get list", in the order of the alphabet */
};
extern const struct kube_rule kube_rules[];
extern const size_t kube_rules_n;

/* Whether the tier, or one below it, has that verb. */
bool kube_rule_allows(
	enum kube_tier tier, const char *group, const char *resource, const char *verb);

struct kube_rbac {
	enum kube_tier tier;
	const char *kube_namespace;
	const char *subject_kind; /* "User" "Group" "ServiceAccount" (of that namespace) */
	const char *subject;
	bool nodes; /* also the reads of the whole cluster: a ClusterRole and its binding */
};

/* YAML documents to be applied by an administrator of the cluster. E_KUBE_NAME for a subject or
 * namespace that is none. */
int kube_rbac_print(const struct kube_rbac *rbac, struct buf *out, struct err *err);

#endif

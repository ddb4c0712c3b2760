/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where runs can go: this machine, the targets of the configuration, and the contexts of the
 * kubeconfig that none of them names. Hosts of the ssh configuration are not listed: they are names
 * for many things.
 */
#ifndef DLRUN_TARGETS_TARGET_LIST_H
#define DLRUN_TARGETS_TARGET_LIST_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/target/target.h"
#include "targets/kube/kube_poll.h"
#include "targets/ssh/node_open.h"

struct target_item {
	char *name;                   /* as -t has it */
	const struct target_ops *ops; /* of its kind */
	bool is_default, is_cluster;
	bool is_configured;             /* or "local" */
	char *context, *kube_namespace; /* as they are said; NULL: the current one, the context's */
	char *why_not;                  /* why a cluster was not asked, one sentence; or NULL */
	bool requested;
	struct kube_poll poll; /* if it was asked */
	/* Of an ssh target. */
	struct strv hosts;
	char *dir;                      /* there; NULL: the default */
	struct node_probe *node_probes; /* of each, if it was asked; zero else */
};

/* GPUs of one model at a target. */
struct target_gpus {
	char *model;       /* or NULL: not known */
	int64_t all, free; /* free < 0: not known */
};
struct target_gpus_list VEC_OF(struct target_gpus);
void target_gpus_done(struct target_gpus_list *list);
/* Of an item that was asked, in the order of its hosts; of this machine as it is now, which blocks
 * for a moment. */
void target_item_gpus(
	struct session *session, const struct target_item *item, struct target_gpus_list *ret);

struct target_list {
	struct VEC_OF(struct target_item) items;
	bool facts_too; /* query: what its hosts have (node_probe.fields) */
	char *error;    /* why there are no contexts, if the kubeconfig is broken; or NULL */
};
void target_list_done(struct target_list *list);
#define AUTO_TARGET_LIST AUTO(target_list_done)

/* Names only, nothing is asked. wanted: only these, which target_check has found to be there;
 * empty: all. Errors of the configuration. */
int target_list_make(struct session *session, const struct strv *wanted, struct target_list *ret,
	struct err *err);
/* Ask all clusters and hosts at the same time, for limit_ms. A program that logs in is started only
 * for what was wanted, is configured or is current: it might open a browser. E_CANCELED as
 * kube_poll_all. */
int target_list_query(struct session *session, struct target_list *list, bool wanted,
	int64_t limit_ms, const volatile int *interrupted, struct err *err);

/* The hosts only. */
int target_list_query_hosts(struct session *session, struct target_list *list, int64_t limit_ms,
	const volatile int *interrupted, struct err *err);

/* The places that the configuration sends runs to: its targets, and the default target if it is a
 * kube:… or ssh:…. */
int target_list_clusters(struct session *session, struct target_list *ret, struct err *err);

#endif

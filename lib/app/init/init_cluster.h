/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proposals of `dlrun init` for clusters: names of targets, and where images could be pushed.
 */
#ifndef DLRUN_APP_INIT_INIT_CLUSTER_H
#define DLRUN_APP_INIT_INIT_CLUSTER_H

#include <stdbool.h>

#include "app/init/init_project.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "targets/kube/kube_look.h"

/* A target to be written. Strings are owned. */
struct init_cluster {
	char *name;           /* of the target */
	char *context;        /* NULL: none is current */
	char *kube_namespace; /* chosen; NULL: that of the context */
	struct kube_look look;
};
struct init_cluster_list VEC_OF(struct init_cluster);
void init_cluster_list_done(struct init_cluster_list *list);
#define AUTO_INIT_CLUSTERS AUTO(init_cluster_list_done)

/* text: kube[:CONTEXT[/NAMESPACE]]; "kube" is the current context. E_USAGE for another form; a
 * context that is not there is E_KUBE_CONTEXT, unless there is no kubeconfig to look into. */
int init_cluster_add(
	struct session *session, const char *text, struct init_cluster_list *list, struct err *err);
/* Ask all of them at the same time; what was found is in look. E_CANCELED. */
int init_cluster_look(struct session *session, struct init_cluster_list *list, int64_t limit_ms,
	const volatile int *interrupted, struct err *err);

/* The name of a target from that of a context: the last part of it, as a name of a run may be. The
 * caller frees. An engine. */
char *init_target_name(const char *context);

/* Registries that there are logins for: "docker.io", "host/team". */
void init_find_logins(struct session *session, struct strv *ret);
/* User of the login for host, requested from a helper for limit_ms if there is one; NULL: the login
 * does not say. The caller frees. */
char *init_login_user(struct session *session, const char *host, int64_t limit_ms);
/* Where images could go: HOST/USER/NAME. user may be NULL. The caller frees. An engine. */
char *init_repository(const char *host, const char *user, const char *name);
/* Whether it is HOST[:PORT]/REPO without tag: E_USAGE. */
int init_check_repository(const char *text, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters as the kubeconfig and the environment have them, opened once for a command: connections,
 * logins and programs that log in are shared by all that is asked of them.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_OPEN_H
#define DLRUN_TARGETS_KUBE_KUBE_OPEN_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "kube/api/kubeconfig.h"
#include "kube/api/client.h"
#include "net/http/http.h"

enum { KUBE_SERVER_ID_SIZE = 17, KUBE_LISTS = 6 };

struct growth;
struct kube_watcher;
struct kube_watchers VEC_OF(struct kube_watcher *);

struct kube_cluster {
	struct kube_access access;
	struct http *http;
	struct kube_client *client;
	struct kube_watchers watchers;
	char server_id[KUBE_SERVER_ID_SIZE]; /* of the API server: what handles name it by */
	struct json *nodes;                  /* as the scheduler sees them; NULL: not known */
	int64_t nodes_ms;                    /* clock_ms() of that; 0: never asked */
	struct growth *growth;               /* of kube_growth.h; NULL: none, or not known */
	int64_t growth_ms;                   /* clock_ms() of that; 0: never asked */
	unsigned failed_repairs;             /* of what others have left to do (kube_reconcile.h) */
	int64_t denied_ms[KUBE_LISTS]; /* clock_ms() when it was, by enum kube_facts_kind; 0: not */
};

/* The cluster of a context (NULL: the current one) in a namespace (NULL: the context's). A program
 * that logs in is started. Belongs to the session. kube.* errors; E_CONFIG of a proxy variable. */
int kube_open(struct session *session, const char *context, const char *kube_namespace,
	struct kube_cluster **ret, struct err *err);
/* The parsed kubeconfig; belongs to the session. */
int kube_open_config(struct session *session, const struct kubeconfig **ret, struct err *err);

/* For session_done: before the loop ends. */
struct kube_clusters;
void kube_clusters_free(struct kube_clusters *clusters);

/*
 * kube[:CONTEXT[/NAMESPACE]], as -t takes it.
 */

bool kube_name_is(const char *name);
/* The parts of such a name; NULL: not given. Names of contexts may have slashes (those of EKS do):
 * the longest one that the kubeconfig has is meant, else what stands before the first slash. The
 * caller frees both. */
void kube_name_split(
	struct session *session, const char *name, char **ret_context, char **ret_namespace);
/* The same of a target with a definition (or NULL), whose `context:` and `namespace:` count. */
void kube_name_read(struct session *session, const char *name, const struct json *definition,
	char **ret_context, char **ret_namespace);

#endif

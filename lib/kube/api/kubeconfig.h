/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kubeconfig files as client-go reads them (v1.Config): the list of $KUBECONFIG merged, the first
 * file to set a value wins, paths are relative to their file. An engine but for reading files.
 */
#ifndef DLRUN_KUBE_API_KUBECONFIG_H
#define DLRUN_KUBE_API_KUBECONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/http/http.h"
#include "net/stream/url.h"

/*
 * Everything needed to talk to one cluster as one user: from a context of a kubeconfig, or from
 * within a pod.
 */

enum kube_interactive { KUBE_EXEC_NEVER, KUBE_EXEC_IF_AVAILABLE, KUBE_EXEC_ALWAYS };

/* A program that makes credentials (client.authentication.k8s.io, v1 and v1beta1). */
struct kube_exec {
	char *command; /* as it is to be executed: a relative path with a slash is resolved */
	struct strv args;
	struct strv env;   /* K=V over this process's */
	char *api_version; /* "client.authentication.k8s.io/v1" */
	char *install_hint;
	char *file; /* of the kubeconfig that names it */
	bool provide_cluster_info;
	enum kube_interactive interactive;
	struct json *cluster_config; /* for spec.cluster.config, or NULL */
};

/* Strings are owned, NULL where there is nothing. */
struct kube_access {
	char *context, *cluster,
		*user;        /* names in the kubeconfig; for people. In a pod: "in-cluster" */
	char *kube_namespace; /* "default" where the context has none */
	struct url server;    /* its path ends without a slash */
	struct http_tls tls;  /* points to the strings below */
	char *ca_pem, *cert_pem, *key_pem, *server_name;
	char *proxy; /* proxy-url */
	/* The login: one of these, or only a client certificate. A token takes precedence over
	 * exec, the contents of a token file over a token. */
	char *token;
	char *token_file; /* read again each minute */
	char *username, *password;
	struct kube_exec *exec;
	/* Impersonation */
	char *as, *as_uid;
	struct strv as_groups, as_extra; /* as_extra: "key=value" */
	struct strv warnings;            /* one sentence each, to be said each time */
};

void kube_access_done(struct kube_access *access);
#define AUTO_KUBE_ACCESS AUTO(kube_access_done)

struct kubeconfig_env {
	const char *kubeconfig; /* $KUBECONFIG, or NULL */
	const char *home;       /* for ~/.kube/config */
	const char *cwd;        /* absolute; relative names of the list are seen from it */
	/* A kubeconfig below it is not read unless $KUBECONFIG names it; NULL: none. */
	const char *tree;
	/* In a pod: $KUBERNETES_SERVICE_HOST and _PORT, and where the service account's files are
	 * ("/var/run/secrets/kubernetes.io/serviceaccount"); used when no file gives a context. */
	const char *service_host, *service_port, *service_account_dir;
};

/* The name of what a pod finds in itself, as a context. */
#define KUBECONFIG_IN_CLUSTER "in-cluster"

struct kubeconfig;
/* Of no file. */
struct kubeconfig *kubeconfig_new(void);
/* Adds what a file says behind what earlier ones said. E_KUBE_CONFIG. An engine. */
int kubeconfig_add(
	struct kubeconfig *config, const char *text, size_t len, const char *file, struct err *err);
/* Missing files of the list are left out. E_KUBE_CONFIG naming the file (and line) for one that is
 * none, E_KUBE_NO_CONFIG when there is nothing at all and this is no pod. */
int kubeconfig_load(const struct kubeconfig_env *env, struct kubeconfig **ret, struct err *err);
void kubeconfig_free(struct kubeconfig *config);
AUTO_POINTER(struct kubeconfig, kubeconfig_free)
#define AUTO_KUBECONFIG AUTO(kubeconfig_free_auto)

/* Names of the contexts, in their order; the current one, or NULL. Live as long as config. */
void kubeconfig_contexts(const struct kubeconfig *config, struct strv *ret);
const char *kubeconfig_current(const struct kubeconfig *config);
/* Names of the files that were read, in their order. */
void kubeconfig_files(const struct kubeconfig *config, struct strv *ret);

/* context NULL: the current one. kube_namespace NULL: that of the context. Reads the files that it
 * names. Where both are given, data wins over a file, and what a token file says over a token. To
 * a server of http no login is sent. E_KUBE_CONTEXT with the near match; E_KUBE_CONFIG for what
 * cannot be used (auth-provider, an unreadable file, no server). */
int kubeconfig_access(const struct kubeconfig *config, const char *context,
	const char *kube_namespace, struct kube_access *ret, struct err *err);

#endif

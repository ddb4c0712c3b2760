/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything needed to talk to one cluster as one user: from a context of a kubeconfig, or from
 * within a pod. Made by kubeconfig.c.
 */
#ifndef DLRUN_KUBE_API_ACCESS_H
#define DLRUN_KUBE_API_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/vec.h"
#include "net/http/http.h"
#include "net/stream/url.h"

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

#endif

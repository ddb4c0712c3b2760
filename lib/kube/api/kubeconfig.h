/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kubeconfig files as client-go reads them (v1.Config): the list of $KUBECONFIG merged, the first
 * file to set a value wins, paths are relative to their file. An engine but for reading files.
 */
#ifndef DLRUN_KUBE_API_KUBECONFIG_H
#define DLRUN_KUBE_API_KUBECONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/access.h"

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

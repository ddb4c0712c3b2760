/* SPDX-License-Identifier: Apache-2.0 */
/* Parsed kubeconfig files, and the access made from them; for kubeconfig*.c. */
#ifndef DLRUN_KUBE_API_KUBECONFIG_IMPL_H
#define DLRUN_KUBE_API_KUBECONFIG_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/access.h"
#include "kube/api/kubeconfig.h"

enum { KUBECONFIG_FILES_MAX = 64, KUBECONFIG_PEM_MAX = 1 << 20, KUBECONFIG_TOKEN_MAX = 64 << 10 };

/* A member of contexts, clusters or users; the first file that has the name gave it. */
struct kubeconfig_entry {
	char *name;
	char *file;
	struct json *body; /* an object */
};
struct kubeconfig_entries VEC_OF(struct kubeconfig_entry);

struct kubeconfig {
	struct kubeconfig_entries contexts, clusters, users;
	struct strv files; /* that were there */
	char *current;
	/* In a pod, when no file names a context: */
	char *service_host, *service_port, *service_account_dir;
};

/* Adds what a file says behind what earlier ones said. E_KUBE_CONFIG. An engine. */
int kubeconfig_add(
	struct kubeconfig *config, const char *text, size_t len, const char *file, struct err *err);
/* NULL if there is none. */
const struct kubeconfig_entry *kubeconfig_find(
	const struct kubeconfig_entries *entries, const char *name);

/* The place of a value, for messages. */
struct kubeconfig_where {
	const char *kind; /* "user", "cluster", "context" */
	const struct kubeconfig_entry *entry;
};
/* E_KUBE_CONFIG: 'FILE: user "NAME": …' */
int kubeconfig_bad(const struct kubeconfig_where *where, struct err *err, const char *fmt, ...)
	ERR_PRINTF(3, 4);
/* *ret: a copy of the text at key, NULL if there is none or it is empty. */
int kubeconfig_text(
	const struct kubeconfig_where *where, const char *key, char **ret, struct err *err);
int kubeconfig_bool(
	const struct kubeconfig_where *where, const char *key, bool *ret, struct err *err);
/* PEM text: base64 at KEY-data, or else the file at KEY. */
int kubeconfig_pem(
	const struct kubeconfig_where *where, const char *key, char **ret, struct err *err);
/* path as it is to be opened: seen from the directory of file. */
char *kubeconfig_path(const char *file, const char *path);

/* The user's part of access. */
int kubeconfig_take_user(
	const struct kubeconfig_entry *user, struct kube_access *access, struct err *err);
int kubeconfig_take_exec(const struct kubeconfig_where *user, const struct json *exec,
	struct kube_access *access, struct err *err);
/* Access as a pod has it (client-go, rest.InClusterConfig). */
int kubeconfig_in_cluster(
	const struct kubeconfig *config, struct kube_access *access, struct err *err);

#endif

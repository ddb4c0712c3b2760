/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials of a client for the API server: a token, a token file that is read again each minute,
 * a user name and password, or the output of an exec plugin (client-go credential plugins,
 * ExecCredential of client.authentication.k8s.io/v1 and v1beta1).
 *
 * A plugin is started at once and runs beside everything else. It has KUBE_PLUGIN_MS, unless it may
 * talk with the user on a terminal; its stdout may have KUBE_PLUGIN_OUT_MAX bytes. The credential
 * is used until it expires, and renewed shortly before, beside the requests; it is kept in memory,
 * and if it has an expiry time also as a file (0600) in cache_dir, under a hash of the command,
 * arguments, environment and cluster. The program that a user entry of a kubeconfig names is
 * recorded in pin_file; a changed program is reported by note, or must be confirmed. No secret
 * appears in arguments or messages.
 */
#ifndef DLRUN_KUBE_API_CREDENTIAL_H
#define DLRUN_KUBE_API_CREDENTIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "kube/api/kubeconfig.h"
#include "kube/api/client.h"

enum {
	KUBE_PLUGIN_MS = 60 * 1000,
	KUBE_PLUGIN_OUT_MAX = 1 << 20,
	KUBE_PLUGIN_MARGIN_MS = 60 * 1000, /* so long before it expires it is made anew */
	KUBE_TOKEN_FILE_MS = 60 * 1000,
};

/* Strings are owned, NULL where there is nothing. Zero: anonymous. */
struct kube_login {
	char *authorization;      /* "Bearer …", "Basic …" */
	char *cert_pem, *key_pem; /* instead of those of the access */
	unsigned generation;      /* another one for each login */
};
void kube_login_done(struct kube_login *login);
void kube_login_copy(const struct kube_login *from, struct kube_login *to);

struct kube_credential_options {
	struct loop *loop;
	const struct kube_access *access; /* lives as long as the credential */
	struct kube_plugin_options plugin;
	int64_t limit_ms; /* for a plugin without a terminal; 0: KUBE_PLUGIN_MS */
	void (*note)(void *ctx, const char *text); /* or NULL */
	void *note_ctx;
};

/* The file in which a plugin's login for this access is kept, or NULL without a cache_dir. The
 * caller frees. */
char *kube_cache_path(const struct kube_access *access, const struct kube_plugin_options *plugin);

struct kube_credential;
struct kube_credential *kube_credential_new(const struct kube_credential_options *options);
/* Waits that are left are given up; a plugin that runs is killed. NULL is accepted. */
void kube_credential_free(struct kube_credential *credential);

/* login lives during the call; error is set instead: E_KUBE_PLUGIN, E_KUBE_AUTH (the token file),
 * and may be taken over. */
typedef int kube_login_fn(
	void *ctx, const struct kube_login *login, struct err *error, struct err *err);
struct kube_login_wait;
/* fn is called from the loop, once, never from here. */
struct kube_login_wait *kube_credential_want(
	struct kube_credential *credential, kube_login_fn *fn, void *ctx);
/* Not once fn was called. NULL is accepted. */
void kube_credential_cancel(struct kube_login_wait *wait);
/* The server has said 401 to the login of that generation: whether another one is to be had, by
 * kube_credential_want. */
bool kube_credential_refused(struct kube_credential *credential, unsigned generation);

/*
 * Expiry of a login, as far as it says so itself: an engine. Nothing is verified.
 */

/* Milliseconds since 1970, 0: it does not say. */
/* A JSON Web Token (RFC 7519): "exp" of its claims. */
int64_t kube_expiry_token(const char *token);
/* The first certificate of PEM text (RFC 7468; X.509, RFC 5280 4.1.2.5): notAfter. */
int64_t kube_expiry_certificate(const char *pem);

#endif

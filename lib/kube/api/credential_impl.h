/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of credential.c: not for others. */
#ifndef DLRUN_KUBE_API_CREDENTIAL_IMPL_H
#define DLRUN_KUBE_API_CREDENTIAL_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "kube/api/credential.h"

/* Credentials made by a plugin. */
struct kube_made {
	char *token, *cert_pem, *key_pem;
	int64_t expires_ms; /* clock_wall_ms(); 0: it does not say */
};
void kube_made_done(struct kube_made *made);
#define AUTO_KUBE_MADE AUTO(kube_made_done)

void kube_wipe(char *secret);
void kube_wipe_buf(struct buf *buf);
/* The name of a program for people. The caller frees. */
char *kube_program_shown(const struct kube_exec *exec);

/* credential_answer.c: engines. */
/* The value of KUBERNETES_EXEC_INFO. The caller frees. */
char *kube_plugin_info(const struct kube_access *access, bool interactive);
/* Everything that a plugin may know of the cluster, whether it is told or not. The caller frees. */
char *kube_plugin_cluster(const struct kube_access *access);
/* E_KUBE_PLUGIN without a word of what was printed, which may be the secret. */
int kube_plugin_parse(const char *text, size_t len, const struct kube_access *access,
	struct kube_made *ret, struct err *err);
/* E_KUBE_PLUGIN: "NAME, which logs in to the cluster CLUSTER, WHY". */
int kube_plugin_fault(const struct kube_access *access, const char *why, struct err *err);
/* The last lines of what a plugin said become evidence. */
void kube_plugin_said(const char *text, size_t len, struct err *err);

/* credential_cache.c: as {token, cert_pem, key_pem, expires_ms}. */
/* The file for this access, or NULL without a cache_dir. The caller frees. */
char *kube_cache_path(const struct kube_access *access, const struct kube_plugin_options *plugin);
/* false: there is none that is still good. */
bool kube_cache_read(const char *path, struct kube_made *ret);
/* Quietly nothing where it cannot be kept. */
void kube_cache_write(const char *path, const struct kube_made *made);

/* credential_pin.c: whether the program may be run; E_KUBE_PLUGIN. */
int kube_plugin_allowed(const struct kube_credential_options *options, struct err *err);

/* credential_exec.c: one run of a plugin. */
struct kube_plugin;
/* fault is set if r < 0. Called from the loop, once, as the last thing. */
typedef int kube_plugin_fn(
	void *ctx, int r, struct kube_made *made, struct err *fault, struct err *err);
int kube_plugin_start(const struct kube_credential_options *options, kube_plugin_fn *end, void *ctx,
	struct kube_plugin **ret, struct err *err);
/* Kills it if it still runs. NULL is accepted. */
void kube_plugin_free(struct kube_plugin *plugin);

#endif

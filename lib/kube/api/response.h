/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meaning of a cluster's responses, and text from elsewhere for people: an engine.
 */
#ifndef DLRUN_KUBE_API_RESPONSE_H
#define DLRUN_KUBE_API_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "kube/api/client.h"
#include "net/http/http.h"

enum {
	KUBE_RETRY_AFTER_MAX_MS = 30 * 1000,
	KUBE_WARNINGS_MAX = 16,
	KUBE_WORDS_MAX = 600, /* of a message of the server */
};

/* Text on a single line: runs of blanks and line breaks become one blank, the rest is as by
 * str_escape, cut behind max bytes with "…". The caller frees. */
char *kube_words(const char *text, size_t len, size_t max);

/* A hint that another program asks the cluster of a context (NULL, or that of a pod: no hint), with
 * a question behind it. */
void kube_hint_version(const char *context, const char *question, struct err *err);

struct kube_requested {
	const char *method, *path, *host;
	const char *user;    /* for the hint after a 401, or NULL */
	const char *context; /* of the kubeconfig, for hints, or NULL */
};
/* "jobs/x in namespace y", "pods in namespace y", "nodes". The caller frees. */
char *kube_path_shown(const char *path);
/* Reads the response: object, error, reason, warnings, status. */
void kube_response_read(const struct kube_requested *requested, struct http_response *http,
	bool is_stream, struct kube_response *ret);
void kube_response_done(struct kube_response *response);
#define AUTO_KUBE_RESPONSE AUTO(kube_response_done)
/* Whether the same request may work in a moment, by what came. */
bool kube_response_is_transient(const struct kube_response *response);
/* Milliseconds that the server asks to wait, -1 if it does not. */
int64_t kube_response_retry_after(const struct kube_response *response);
/* error: what from, an error of lib/net, means here. */
void kube_unreachable(const struct kube_requested *requested, struct err *from, struct err *error);

#endif

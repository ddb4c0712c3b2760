/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the API server of one cluster as one user (Kubernetes API concepts: verbs, Status,
 * limit and continue, fieldValidation), over http.c.
 *
 * Credentials are the client's: a token file is read again, an exec plugin is started at once by
 * kube_client_new, its credential is used by all requests that wait for it, refreshed before it
 * expires and once after a 401, also in the middle of streams' reconnections. Nothing is requested
 * of the cluster before the first request.
 *
 * What is repeated (kube_request.is_idempotent; GET always is): errors of the transport, 429, 500
 * with "leader changed" or "timed out", 502, 503, 504, with growing waits (Retry-After is obeyed,
 * at most 30 s) until the deadline. Others are responses. What had no effect is repeated in any
 * case: nothing was sent, 429 with Retry-After, or a POST that others were in the way of (409
 * Conflict, as of a ResourceQuota that several creates count on; AlreadyExists is a response). A
 * server that was not reached yet is given up after 5 s. What a login takes does not count.
 */
#ifndef DLRUN_KUBE_API_CLIENT_H
#define DLRUN_KUBE_API_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "kube/api/kubeconfig.h"
#include "net/http/http.h"
#include "net/stream/stream.h"

/* How exec plugins are run; see credential.h. */
struct kube_plugin_options {
	const char *cache_dir; /* 0700: credentials until they expire (0600); NULL: none are kept */
	const char *pin_file;  /* which programs were allowed; NULL: none are remembered */
	const char *const *env; /* NULL-ended, for PATH and the child */
	int tty_fd;             /* -1: no terminal, nothing may ask */
	/* May this program be run, which was never seen before? NULL: it is allowed and pinned when
	 * it comes from the user's own kubeconfig. */
	int (*confirm)(void *ctx, const struct kube_exec *exec, struct err *err);
	/* Report that a plugin is waited for: one sentence. NULL: as kube_client_options.note. */
	void (*note)(void *ctx, const char *text);
	void *ctx;
};

struct kube_client_options {
	struct loop *loop;
	struct http *http;
	const struct kube_access *access; /* lives as long as the client */
	struct kube_plugin_options plugin;
	/* Report a wait or a retry: one sentence. May be NULL. */
	void (*note)(void *ctx, const char *text);
	void *ctx;
};

struct kube_client;
struct kube_client *kube_client_new(const struct kube_client_options *options);
/* Calls that are left are given up without their done, but detached ones are waited for. */
void kube_client_free(struct kube_client *client);
AUTO_POINTER(struct kube_client, kube_client_free)
#define AUTO_KUBE_CLIENT AUTO(kube_client_free_auto)
struct loop *kube_client_loop(const struct kube_client *client);

struct kube_response {
	int status;          /* HTTP; 0: none came */
	struct json *object; /* what came, a Status too; or NULL. TAKE() it to keep it */
	/* Not a success: E_KUBE_UNREACHABLE (evidence: what happened), E_KUBE_AUTH (401, plugin),
	 * E_KUBE_DENIED (403), E_KUBE_NOT_FOUND, E_KUBE_EXISTS (409 AlreadyExists), E_KUBE_CONFLICT
	 * (409), E_KUBE_GONE (410), E_KUBE_INVALID (400, 422: with the fields), E_KUBE_BUSY (429),
	 * E_KUBE_SERVER (5xx), E_KUBE_RESPONSE (no JSON, HTML of a proxy), http.* ids of TLS. The
	 * server's own message is in it, bounded and without control characters. */
	struct err error;
	const char *reason;         /* Status.reason ("AlreadyExists"), or "" */
	struct strv warnings;       /* of Warning headers (RFC 9111 form, code 299) */
	struct http_response *http; /* or NULL */
};
typedef int kube_done_fn(void *ctx, struct kube_response *response, struct err *err);

struct kube_request {
	const char *method; /* GET POST PUT PATCH DELETE */
	const char *path;   /* "/api/v1/namespaces/x/pods": segments from outside by kube_path */
	/* Pairs "key", "value", NULL-ended, percent-encoded here; or NULL. */
	const char *const *query;
	const struct json *body;  /* copied; NULL: none */
	const char *content_type; /* NULL: application/json */
	bool is_idempotent;       /* may be sent again though a response was lost */
	int64_t deadline_ms;      /* clock_ms(), repetitions included; 0: 60 s from now */
	size_t max_body;          /* 0: JSON_SIZE_MAX */
	/* For streams (logs, watch): bytes of a success as they come, and no deadline but idle_ms.
	 * As http_data_fn. The object of the response is NULL then; not repeated once bytes
	 * came. */
	http_data_fn *data;
	enum http_share share; /* with data, for as long as it goes on */
	int64_t idle_ms;
	kube_done_fn *done;
	void *ctx;
};

struct kube_call;
/* Copies what it keeps. done is called from the loop, exactly once unless given up. */
struct kube_call *kube_start(struct kube_client *client, const struct kube_request *request);
/* A request whose response nobody needs (done and ctx are not used), as the last one of an
 * operation that is given up. kube_client_free runs the loop for it until its deadline. */
void kube_start_detached(struct kube_client *client, const struct kube_request *request);
/* A number for the present try, 0: there was none; another as soon as it has failed and that is got
 * over. */
unsigned kube_try(const struct kube_call *call);
/* HTTP_TURN state of the call, as in http.h. */
bool kube_waits_for_turn(const struct kube_call *call);
bool kube_is_to_give_way(const struct kube_call *call);
/* NULL is accepted. */
void kube_cancel(struct kube_call *call);

/* A whole list, page by page (limit 500, at most `max` items, else E_DATA_LIMIT): done gets one
 * List object with all items and the resourceVersion of the first page. A continue token that has
 * expired (410) begins again. */
struct kube_call *kube_list(struct kube_client *client, const char *path, const char *const *query,
	size_t max, int64_t deadline_ms, kube_done_fn *done, void *ctx);
/* Of a call of kube_list, before the loop runs: each item passes here as its page comes, to lose
 * what is not needed, so that memory is that of what is left. */
typedef void kube_trim_fn(struct json *item);
void kube_list_trim(struct kube_call *call, kube_trim_fn *trim);

/* Send one request and wait for its response on the loop, for commands that do one thing. *ret
 * (may be NULL) is set on success only; err is the response's error. request->done and ctx are not
 * used. */
int kube_query(struct kube_client *client, const struct kube_request *request, struct json **ret,
	struct err *err);

/* A connection upgraded with the client's credentials (upgrade.h): exec, port-forward. protocol
 * and headers as there. Not repeated; a 401 is, once, after a refresh. done: stream is NULL with
 * response->error set, of the kinds above. */
struct kube_upgrade_request {
	const char *method, *path;
	const char *const *query;
	const char *protocol; /* "websocket", "SPDY/3.1" */
	const struct strv *headers;
	int64_t deadline_ms;
	int (*done)(
		void *ctx, struct stream *stream, struct kube_response *response, struct err *err);
	void *ctx;
};
struct kube_call *kube_upgrade(
	struct kube_client *client, const struct kube_upgrade_request *request);

/* "/api/v1/namespaces/%s/pods" with each argument percent-encoded as one segment (RFC 3986). The
 * caller frees. */
char *kube_path(const char *format, ...) ERR_PRINTF(1, 2);
/* Whether it is a DNS label (RFC 1123), as names of namespaces and Jobs are. */
bool kube_is_dns_label(const char *name);

#endif

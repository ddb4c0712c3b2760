/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of client.c: not for others. */
#ifndef DLRUN_KUBE_API_CLIENT_IMPL_H
#define DLRUN_KUBE_API_CLIENT_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/err.h"
#include "kube/api/client.h"
#include "kube/api/credential.h"
#include "net/http/http.h"
#include "net/stream/url.h"

enum {
	KUBE_DEADLINE_MS = 60 * 1000,
	KUBE_FIRST_MS = 5000, /* for a server that has not answered yet and cannot be reached */
	KUBE_PAUSE_FIRST_MS = 100,
	KUBE_PAUSE_MAX_MS = 5000,
	KUBE_RETRY_AFTER_MAX_MS = 30 * 1000,
	KUBE_NOTE_MIN_MS = 1000,    /* shorter waits are not told */
	KUBE_NOTE_EVERY_MS = 10000, /* nor others more often */
	KUBE_WARNINGS_MAX = 16,
	KUBE_WORDS_MAX = 600, /* of a message of the server */
	KUBE_PAGE = 500,
	KUBE_PAGE_SIZE_MAX = 64 << 20,
};

struct kube_client {
	struct kube_client_options options;
	struct kube_credential *credential;
	char *host; /* for people */
	struct kube_call *calls;
	bool answered; /* by something that speaks HTTP */
	int64_t noted_ms;
};

/* How the exchange of a call is done. */
struct kube_call_ops {
	void (*send)(struct kube_call *call, const struct url *url, const struct strv *headers,
		const struct http_tls *tls);
	void (*cancel)(struct kube_call *call);
	int (*done)(struct kube_call *call, struct kube_answer *answer, struct err *err);
	/* A good answer: 1: it is not the last, call was changed for the next one. May be NULL. */
	int (*more)(struct kube_call *call, struct kube_answer *answer);
	/* After a refusal: whether it is to be begun again, changed. May be NULL. */
	bool (*restart)(struct kube_call *call, const struct kube_answer *answer);
	bool is_once;                         /* faults are not repeated */
	void (*free)(struct kube_call *call); /* of more_ctx; may be NULL */
};

/* At any time wait or exchange is pending, or timer runs. */
struct kube_call {
	struct kube_client *client;
	struct kube_call *prev, *next;
	const struct kube_call_ops *ops;

	char *method, *path, *content_type;
	struct strv query; /* key, value, … */
	char *body;
	size_t body_len;
	bool is_idempotent;
	int64_t deadline_ms, idle_ms;
	size_t max_body;
	http_data_fn *data;
	enum http_share share;
	kube_done_fn *fn;
	void *ctx;
	void *more_ctx; /* of ops */

	struct kube_login login;
	struct kube_login_wait *wait;
	void *exchange; /* of ops: struct http_call, struct upgrade */
	struct loop_timer *timer, *deadline_timer;
	bool finished, refreshed, got_bytes;
	unsigned tries;
	int64_t began_ms, wanted_ms; /* the first exchange; the login */
	struct err cause;            /* why it was tried again */
};

/* client_call.c */
/* Copies the texts of request; fn, data and ops are set by the caller, then it is begun. */
struct kube_call *kube_call_new(struct kube_client *client, const struct kube_request *request,
	const struct kube_call_ops *ops);
void kube_call_begin(struct kube_call *call);
/* Handle the result of the exchange. */
int kube_call_answered(struct kube_call *call, struct http_answer *http, struct err *err);
/* End the call; it is gone then. */
int kube_call_finish(struct kube_call *call, struct kube_answer *answer, struct err *err);
/* The query parameter is value from now on. */
void kube_call_set_query(struct kube_call *call, const char *key, const char *value);

/* client_status.c: engines. */
struct kube_asked {
	const char *method, *path, *host;
	const char *user;    /* for the hint after a 401, or NULL */
	const char *context; /* of the kubeconfig, for hints, or NULL */
};
/* "jobs/x in namespace y", "pods in namespace y", "nodes". The caller frees. */
char *kube_path_shown(const char *path);
/* Reads the answer: object, fault, reason, warnings, status. */
void kube_answer_read(const struct kube_asked *asked, struct http_answer *http, bool is_stream,
	struct kube_answer *ret);
void kube_answer_done(struct kube_answer *answer);
#define AUTO_KUBE_ANSWER AUTO(kube_answer_done)
/* Whether the same request may work in a moment, by what came. */
bool kube_answer_is_transient(const struct kube_answer *answer);
/* Milliseconds that the server asks to wait, -1 if it does not. */
int64_t kube_answer_retry_after(const struct kube_answer *answer);
/* fault: what from, a fault of lib/net, means here. */
void kube_unreachable(const struct kube_asked *asked, struct err *from, struct err *fault);

#endif

/*
 * Requests to one repository of a registry (OCI distribution-spec 1.1; Docker registry HTTP API
 * V2): login, retries, and answers turned into errors, so that those who push see only successes,
 * the refusals that they asked to see, and failures worth reporting.
 */
#ifndef DLRUN_OCI_REGISTRY_H
#define DLRUN_OCI_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/auto.h"
#include "base/err.h"
#include "net/http.h"
#include "oci/auth.h"
#include "oci/blob.h"
#include "oci/layout.h"
#include "oci/ref.h"

enum {
	REGISTRY_TRIES = 5,
	REGISTRY_RETRY_AFTER_MAX_MS = 30 * 1000,
};

struct registry_options {
	struct http *http;
	struct loop *loop;
	const struct credential_env *env;
	const char *host, *repo; /* of struct ref */
	const char *ca_file;     /* or NULL: /etc/docker/certs.d/HOST/ca.crt if there is one */
	bool insecure;       /* https with any certificate, and http where https is not spoken */
	int64_t deadline_ms; /* clock_ms() at which everything has failed */
	int64_t idle_ms;     /* 0: 30 s */
	const char *remembered_challenge; /* auth_options */
	bool remembered_http;             /* with insecure: http worked last time */
	/* Waits that people should know of: "429 …, waiting 12 s". NULL: nobody. */
	void (*note)(void *ctx, const char *text);
	void *note_ctx;
};

struct registry;
/* Starts looking for the login. https, but for hosts of this machine without a ca_file, which are
 * asked by http (docker's rule), and for insecure ones: https first, http when that is not spoken
 * there (remembered_http: the other way round). A server that speaks plain http where https is
 * needed is E_REGISTRY_INSECURE. */
int registry_new(const struct registry_options *options, struct registry **ret, struct err *err);
/* Requests that are left are given up. */
void registry_free(struct registry *registry);
AUTO_POINTER(struct registry, registry_free)
#define AUTO_REGISTRY AUTO(registry_free_auto)

const char *registry_name(const struct registry *registry); /* "HOST/REPO" */
const char *registry_host(const struct registry *registry);
struct auth *registry_auth(struct registry *registry);
bool registry_uses_http(const struct registry *registry); /* as far as is known */

/* Which statuses are no failure: passed to done with the answer. */
enum registry_accept {
	REGISTRY_OK_ONLY = 0,   /* 2xx (and 206) */
	REGISTRY_NOT_FOUND = 1, /* 404 */
	REGISTRY_REFUSED = 2,   /* 401 after login, 403, 405, 400, 409, 412, 416, 501 */
	REGISTRY_ANY = 4,       /* whatever it is */
};

/* answer is NULL with fault. The fault is a whole sentence ("registry HOST: …") with evidence and a
 * hint. */
typedef int registry_done_fn(
	void *ctx, struct http_answer *answer, struct err *fault, struct err *err);

struct registry_request {
	const char *method;
	const char *path;      /* behind /v2/REPO/: "blobs/uploads/"; NULL with url */
	const struct url *url; /* a Location; credentials go there only if it is the registry's
				  * origin; it may not lead inwards */
	const struct strv *headers;
	struct http_body body;
	size_t max_body;
	http_data_fn *data; /* as http_request; the ctx is the request's */
	unsigned accept;    /* enum registry_accept */
	bool once;          /* the request is not sent again once it may have arrived */
	const char *doing;  /* for messages: "uploading a layer" */
	registry_done_fn *done;
	void *ctx;
};
struct registry_call;
/* done is called from the loop, once, unless the call is given up. Retries: connection faults,
 * 408, 429 (Retry-After up to REGISTRY_RETRY_AFTER_MAX_MS), 500, 502, 503, 504, 507 is
 * E_REGISTRY_FULL; 0.2, 0.6, 1.8, 5 s with full jitter; 401 renews the token once, then is E_REGISTRY_AUTH or
 * E_REGISTRY_DENIED. deadline: E_REGISTRY_TIMEOUT naming what was being done. */
struct registry_call *registry_start(
	struct registry *registry, const struct registry_request *request);
void registry_cancel(struct registry_call *call);
void registry_resume(struct registry_call *call);

/* The error that an answer means, with the registry's own code and words (bounded, cleaned) as
 * evidence: an engine. Always returns negative. */
int registry_answer_error(const char *host, const char *repo, const char *doing,
	const struct http_answer *answer, struct err *err);
/* Whether the errors of an answer ({"errors":[{"code","detail":{"digest"}}]}) have code; digests
 * (may be NULL) gets those that their details name. */
bool registry_answer_has(const struct http_answer *answer, const char *code, struct strv *digests);
/* Where an answer's Location leads (url_resolve); E_REGISTRY_ANSWER if there is none. */
int registry_location(const struct registry *registry, const struct http_answer *answer,
	struct url *ret, struct err *err);

/*
 * Base images
 */

/* The manifest (through indexes, by platform) and configuration of HOST/REPO:TAG or @DIGEST, put
 * into cache by digest, every byte checked; what the cache has is not fetched. known: the digest
 * that the tag had when it was looked up lately (then nothing is asked if the cache has all of it),
 * or NULL. platform: "linux/amd64". found: the digest of the manifest or index that the reference
 * stands for. E_IMAGE_BASE, E_IMAGE_PLATFORM, E_IMAGE, registry.*. */
typedef int registry_base_fn(void *ctx, const char *digest, struct err *fault, struct err *err);
struct registry_base;
struct registry_base *registry_base_start(struct registry *registry, const struct ref *ref,
	const char *known, const char *platform, struct layout *cache, registry_base_fn *found,
	void *ctx);
void registry_base_free(struct registry_base *base);

#endif

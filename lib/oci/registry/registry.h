/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to one repository of a registry (OCI distribution-spec 1.1; Docker registry HTTP API
 * V2): login, retries, and responses turned into errors, so that those who push see only successes,
 * the refusals that they want to see, and failures worth reporting.
 */
#ifndef DLRUN_OCI_REGISTRY_REGISTRY_H
#define DLRUN_OCI_REGISTRY_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "net/http/http.h"
#include "oci/auth/auth.h"
#include "oci/layout/layout.h"
#include "oci/model/blob.h"
#include "oci/model/ref.h"

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
	/* The client certificate and its key, PEM; both NULL: certs.d/HOST/NAME.cert and NAME.key
	 * if they are there. */
	const char *cert_file, *key_file;
	bool insecure;       /* https with any certificate, and http where https is not spoken */
	bool push;           /* the repository is written to: pull,push is requested, else pull */
	int64_t deadline_ms; /* clock_ms() at which everything has failed; INT64_MAX: never */
	int64_t idle_ms;     /* 0: 30 s */
	/* Results of the last time. Without either of the first two, requests wait for the response
	 * to the first one, so that at most one of them is sent in vain. */
	const char *remembered_challenge; /* auth_options */
	bool remembered_open;             /* no login was requested */
	bool remembered_http;             /* http worked */
	/* Waits to report: "429 …, waiting 12 s". Or NULL. */
	void (*note)(void *ctx, const char *text);
	void *note_ctx;
};

struct registry;
/* Starts looking for the login. https, but for hosts of this machine without certificates, which
 * are tried by http first and by https when that is not spoken there (docker's rule; with anything
 * remembered but http: the other way round), and for insecure ones: https first, then http
 * (remembered_http: the other way round). A server that speaks plain http where https is needed is
 * E_REGISTRY_INSECURE. A client certificate that cannot be read is E_HTTP_CERT.
 *
 * docker.io is reached at registry-1.docker.io, and one-word repositories are library/NAME there,
 * as docker has it; messages have the name that the user wrote. */
int registry_new(const struct registry_options *options, struct registry **ret, struct err *err);
/* Where docker keeps the issuers to trust for host ("host[:port]"): the file, or NULL. The caller
 * frees. */
char *registry_find_ca(const char *host);
/* The same of this side's certificate, the first by its name, and of its key, which may be missing;
 * NULL: neither. */
char *registry_find_cert(const char *host, char **ret_key);
/* Requests that are left are given up. */
void registry_free(struct registry *registry);
AUTO_POINTER(struct registry, registry_free)
#define AUTO_REGISTRY AUTO(registry_free_auto)

const char *registry_name(const struct registry *registry); /* "HOST/REPO" */
const char *registry_host(const struct registry *registry);
struct loop *registry_loop(const struct registry *registry);
/* Whether repo of this host has the same login as the registry's. */
bool registry_shares_login(const struct registry *registry, const char *repo);
/* Another repository of this host will be read, for mounts and bases: requested together with the
 * first from the next token on, by the same login. shares_login: whether it has no other
 * (registry_shares_login); where it has, a token without it will do. */
void registry_add_source(struct registry *registry, const char *repo, bool shares_login);
/* How requests name repo of this host: "library/NAME" for docker.io's NAME. For mount's from=. The
 * caller frees. */
char *registry_repo_path(const struct registry *registry, const char *repo);
struct auth *registry_auth(struct registry *registry);
bool registry_uses_http(const struct registry *registry); /* as far as is known */
bool registry_has_responded(const struct registry *registry);
int64_t registry_deadline_ms(const struct registry *registry); /* as in its options */

/* Statuses that are not errors besides 2xx: passed to done with the response. */
enum registry_accept {
	REGISTRY_NOT_FOUND = 1, /* 404 */
	REGISTRY_REFUSED = 2,   /* 401 after login, 403, 405, 400, 409, 412, 416, 501 */
	REGISTRY_ANY = 4,       /* whatever it is, but for a first 401: not tried again */
	REGISTRY_NO_LOGIN = 8,  /* 401 and 403 as they are: no other login for this */
};

/* response is NULL with error. The error is a whole sentence that names the registry, with evidence
 * and a hint. */
typedef int registry_done_fn(
	void *ctx, struct http_response *response, struct err *error, struct err *err);

struct registry_request {
	const char *method;
	const char *repo;      /* of this host; NULL: the registry's */
	const char *path;      /* behind /v2/REPO/: "blobs/uploads/", or from a slash on as it is:
				  * "/v2/"; NULL with url */
	const struct url *url; /* a Location; credentials go there only if it is the registry's
				  * origin; it may not lead inwards */
	const struct strv *headers;
	struct http_body body; /* one that is read is sent once; nothing is tried again then */
	size_t max_body;       /* of a success; 0: HTTP_ERROR_BODY_MAX */
	http_data_fn *data;    /* as http_request; nothing is tried again once it was called */
	unsigned accept;       /* enum registry_accept */
	bool once;             /* not sent again once it may have arrived (401 and 429 say that
			     * nothing was done) */
	const char *doing;     /* for messages: "uploading a layer" */
	registry_done_fn *done;
	void *ctx;
};

struct registry_call;
/* done is called from the loop, once, unless the call is given up; the call ends with it.
 *
 * Tried again, REGISTRY_TRIES times in all, after 0.1 to 0.2, 0.3 to 0.6, 0.9 to 1.8 and 2.5 to 5 s
 * or what Retry-After says (REGISTRY_RETRY_AFTER_MAX_MS at most): connections that were cut or
 * idle, 408, 429, 500, 502, 503, 504; then it is E_REGISTRY_UNREACHABLE with the last cause. A host
 * that has not responded yet and takes no connection is given up after two seconds. 401 gets a new
 * token once, then it is E_REGISTRY_AUTH or E_REGISTRY_DENIED. The deadline is E_REGISTRY_TIMEOUT
 * naming what was being done; no wait is begun that would pass it. */
struct registry_call *registry_start(
	struct registry *registry, const struct registry_request *request);
void registry_cancel(struct registry_call *call);
/* About n POSTs without headers and body (mounts) will come as soon as something else got its
 * response: connections for them are made meanwhile. Those that are not used are given back when a
 * body is sent, or by an n of 0; until then they keep the loop going. */
void registry_expect(struct registry *registry, unsigned n);
void registry_resume(struct registry_call *call);
/* Bytes of the body that have left so far, in the present try. */
uint64_t registry_sent(const struct registry_call *call);
/* For done, when it does not like what it accepted: the error that the response means, with the
 * registry's own code and words (bounded, cleaned) as evidence. Always returns negative. */
int registry_call_error(
	const struct registry_call *call, const struct http_response *response, struct err *err);

/* Whether the errors of a response ({"errors":[{"code","detail":{"digest"}}]}) have code; digests
 * (may be NULL) gets those that their details name. */
bool registry_response_has(
	const struct http_response *response, const char *code, struct strv *digests);
/* Where a response's Location leads (url_resolve). One that names the registry itself by http where
 * https is spoken means https (a proxy before it that does not say so). E_REGISTRY_RESPONSE if
 * there is none, or if it leads elsewhere from https to http. */
int registry_location(const struct registry *registry, const struct http_response *response,
	struct url *ret, struct err *err);

/*
 * Base images
 */

/* The manifest (through indexes, by platform) and configuration of HOST/REPO:TAG or @DIGEST, put
 * into cache by digest, every byte checked, so that image_base_load(cache, name, digest, platform)
 * works; what the cache has is not fetched. Writing into cache blocks for a few syncs.
 *
 * found is called from the loop, once, with the digest of the manifest or index that the reference
 * stands for (and error NULL), or with digest NULL and an error: E_IMAGE_BASE, E_IMAGE_PLATFORM,
 * E_IMAGE, registry.*, http.*. */
typedef int registry_base_fn(void *ctx, const char *digest, struct err *error, struct err *err);
/* The layers of the base (image_base), lowest first, as soon as they are known: at most once, from
 * the loop, before found, which may be a failure all the same. Not if the cache has all. */
typedef void registry_layers_fn(void *ctx, const struct descriptor *layers, size_t n);

struct registry_base_request {
	/* Of a repository of the registry's host, not necessarily the registry's own. */
	const struct ref *ref;
	/* The digest that the tag had when it was looked up lately (then nothing is requested if
	 * the cache has all of it), or NULL. */
	const char *known;
	/* The one that it had some time ago (then HEAD asks whether it moved, if the cache has all
	 * of it), or NULL. */
	const char *older;
	const char *platform; /* "linux/amd64" */
	struct layout *cache;
	registry_layers_fn *layers; /* or NULL */
	registry_base_fn *found;
	void *ctx; /* of both */
};
struct registry_base;
/* Copies what it keeps, but for the cache. */
struct registry_base *registry_base_start(
	struct registry *registry, const struct registry_base_request *request);
/* Also gives up. NULL is accepted. */
void registry_base_free(struct registry_base *base);

#endif

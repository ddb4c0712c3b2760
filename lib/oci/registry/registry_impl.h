/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the parts of registry.c, and private to them.
 */
#ifndef DLRUN_OCI_REGISTRY_REGISTRY_IMPL_H
#define DLRUN_OCI_REGISTRY_REGISTRY_IMPL_H

#include "oci/registry/registry.h"

enum {
	REGISTRY_CONNECT_MS = 2000, /* for a host that has not answered yet and refuses */
	REGISTRY_PROBE_MS = 3000,
	REGISTRY_LOGINS_MAX = 4,   /* of one call, if auth.c finds each worth while */
	REGISTRY_SWITCHES_MAX = 2, /* between https and http: there and back */
};

struct registry {
	struct http *http;
	struct loop *loop;
	const struct credential_env *env;
	char *host, *repo; /* as the user wrote them */
	char *name;        /* "HOST/REPO" */
	char *server;      /* who is asked: host[:port] */
	char *ca_file;
	struct buf cert, key; /* PEM text, or empty */
	char *remembered_challenge;
	struct http_tls tls;
	struct url origin; /* path "/" */
	struct strv scopes;
	bool has_other_login; /* a source of mounts is read with a login of its own */
	struct auth *auth;
	int64_t deadline_ms, idle_ms;
	void (*note)(void *ctx, const char *text);
	void *note_ctx;
	bool may_switch; /* the other scheme is allowed, too */
	unsigned switches;
	bool answered;  /* by what speaks HTTP at the origin */
	bool succeeded; /* it has taken a request: there are connections to use again */
	enum address_zone zone;
	bool gated; /* until the first answer, the others wait for the pilot */
	struct registry_call *pilot;
	struct registry_call *calls;
	unsigned n_expected; /* requests without a body */
	/* Held ones of no call yet, sent by those to come. */
	struct http_calls VEC_OF(struct http_call *) spares;
};

/* registry_certs.c */
/* The certificate of this side, if there is one, to its tls. E_HTTP_CERT. */
int registry_read_cert(
	struct registry *registry, const struct registry_options *options, struct err *err);

/* registry.c */
/* The other of https and http from now on, with a new look-up of the login. */
void registry_switch_scheme(struct registry *registry);
/* Whether the fault means that the origin speaks the other scheme, and that one may be tried. */
bool registry_wants_switch(const struct registry *registry, const struct http_answer *answer);

/* registry_probe.c: whether a host with which TLS failed speaks plain http. Nothing secret is
 * sent. fault is moved to done as it is, or as E_REGISTRY_INSECURE. */
struct registry_probe;
typedef int registry_probed_fn(void *ctx, struct err *fault, struct err *err);
struct registry_probe *registry_probe_start(
	struct registry *registry, struct err *fault, registry_probed_fn *done, void *ctx);
void registry_probe_free(struct registry_probe *probe);
/* Whether it would make sense. */
bool registry_wants_probe(const struct registry *registry, const struct err *fault);

/* registry_call.c */
/* Have the calls that wait for auth wait for the present one. */
void registry_drop_waits(struct registry *registry);
void registry_renew_waits(struct registry *registry);
void registry_drop_spares(struct registry *registry);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registries as the configuration and the environment set them up: certificates, proxies, logins,
 * limits; and where their cache lies.
 */
#ifndef DLRUN_CORE_IMAGE_REGISTRY_OPEN_H
#define DLRUN_CORE_IMAGE_REGISTRY_OPEN_H

#include <stdbool.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "net/http/http.h"
#include "oci/model/ref.h"
#include "oci/registry/registry.h"
#include "oci/registry/registry_cache.h"

struct layout;
struct target;

/* A tunnel to a registry, which ends with its client: first member of each implementation. */
struct registry_tunnel {
	char *host; /* "host[:port]" of the registry */
	void (*free)(struct registry_tunnel *tunnel);
};
struct registry_tunnel_options {
	struct session *session;
	struct target *target;                     /* the cluster, where it is open */
	const char *target_name;                   /* else */
	const char *host;                          /* "host[:port]" of the registry */
	const char *forward;                       /* "NAMESPACE/SERVICE:PORT" */
	struct http *http;                         /* is freed before the tunnel */
	void (*note)(void *ctx, const char *text); /* or NULL */
	void *ctx;
};

struct registry_client_options {
	struct session *session;
	const struct config *config;
	/* The target whose registry with `forward` takes precedence over others of the same name;
	 * or NULL. */
	struct target *target;
	const char *target_name; /* the same where it is not open */
	struct loop *loop;       /* the session's */
	int64_t limit_ms;        /* from init on; 0: push_timeout */
	bool is_large;           /* a push that push_timeout limits where it is set only */
	http_event_fn *event;    /* or NULL */
	void (*note)(void *ctx, const char *text); /* or NULL */
	void *ctx;                                 /* of both */
	struct strv *warnings; /* what should be said each time is added, or NULL */
};

/* State that registries share; outlives them. */
struct registry_client {
	struct registry_client_options options;
	int64_t deadline_ms;
	struct http *http;
	struct credential_env credentials;
	struct registry_tunnel_list VEC_OF(struct registry_tunnel *) tunnels;
};
void registry_client_init(
	struct registry_client *client, const struct registry_client_options *options);
void registry_client_done(struct registry_client *client);

/* Open the repository of ref; push: it is written to. Facts in memory are used. A registry with
 * `forward` is reached through a tunnel that ends with the client (session_env.open_tunnel). */
int registry_client_open(struct registry_client *client, const struct ref *ref, bool push,
	const struct registry_cache *cache, struct registry **ret, struct err *err);
/* Store what registry has found out in memory. */
void registry_client_learn(const struct registry *registry, struct registry_cache *cache);

/* The cache file of a repository in dir. The caller frees. */
char *registry_cache_path(const char *dir, const char *host, const char *repo);
/* The name in its list of tags of what ref stands for on platform. The caller frees. */
char *registry_cache_tag(const struct ref *ref, const char *platform);
/* The layout where descriptions of images from registries lie. */
int registry_open_bases(const struct session *session, struct layout **ret, struct err *err);

/*
 * Requests to registries beside a push, which the caller waits for.
 */

/* A client for the session; its requests end limit_ms from now on. */
int registry_query_init(
	struct registry_client *client, struct session *session, int64_t limit_ms, struct err *err);
/* text: HOST/REPO, as the configuration has it. Neither uses nor updates the registry cache. */
int registry_query_open(struct registry_client *client, const char *text, bool push,
	struct registry **ret, struct err *err);

/* Describe for people what the certificate of host is checked against, and the certificate that the
 * host presents. The caller frees. */
char *registry_query_certificates(const struct registry_client *client, const char *host);

/* A response that is kept. */
struct registry_reply {
	int status;
	struct strv headers;
	struct buf body;
	struct url url;
};
void registry_reply_done(struct registry_reply *reply);
#define AUTO_REGISTRY_REPLY AUTO(registry_reply_done)
/* Blocks. done and ctx of the request are not used. A failed request returns its error, as does a
 * response 401 or 403 that the request accepts. */
int registry_query(struct registry_client *client, struct registry *registry,
	const struct registry_request *request, struct registry_reply *ret, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Authentication at one registry: the login, and from it what goes into Authorization (OCI
 * distribution-spec, "Authorization"; distribution's token specification: token.md, oauth.md,
 * scope.md; RFC 7617, RFC 6750).
 *
 * One auth serves all requests to a host: one look-up of the login, started early; one token for
 * all of them; when the registry says that it has expired, one refresh, which all wait for.
 */
#ifndef DLRUN_OCI_AUTH_AUTH_H
#define DLRUN_OCI_AUTH_AUTH_H

#include <stdbool.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/http/http.h"
#include "net/stream/field.h"
#include "oci/auth/credentials.h"

struct auth_options {
	struct http *http;
	struct loop *loop;
	const struct credential_env *env;
	const char *host;           /* "host[:port]" as the user wrote it */
	const char *repo;           /* whose login is looked up: the one that is written to */
	const struct url *registry; /* https or http at it */
	const struct http_tls *tls; /* of the registry, for a realm at the same host */
	/* The last challenge of the registry ("Bearer realm=…,service=…"), or NULL. If set, the
	 * token is fetched before the first request. */
	const char *remembered_challenge;
};

struct auth;
/* Starts looking for the login. Pointers of options are copied, but http, loop, env and tls. */
struct auth *auth_new(const struct auth_options *options);
void auth_free(struct auth *auth);

/* Add a scope that requests may use from now on: "repository:NAME:pull,push". One call for each,
 * the repository that is written to first. A new scope makes the present token insufficient. */
void auth_add_scope(struct auth *auth, const char *scope);
/* Where the token server refuses all scopes together, the first is requested alone, and requests
 * that need another one are denied. */
void auth_allow_fewer_scopes(struct auth *auth);

/* authorization: the value for the field, or NULL: none is needed as far as is known. generation
 * numbers it. error: E_REGISTRY_AUTH, E_REGISTRY_HELPER, the http.* of the token server. */
typedef int auth_ready_fn(void *ctx, const char *authorization, unsigned generation,
	struct err *error, struct err *err);
struct auth_wait;
/* ready is called from the loop, or at once (and NULL returned) when it is known. */
struct auth_wait *auth_want(struct auth *auth, auth_ready_fn *ready, void *ctx);
/* The registry responded 401 (or 403 with insufficient_scope) to a request that was made with
 * generation (0: without any): as auth_want with a newer one. E_REGISTRY_AUTH when a login was
 * refused, or none is there; E_REGISTRY_DENIED when a fresh token with the scope was. A realm on
 * plain http (unless the registry is) is E_REGISTRY_RESPONSE naming it, one that leads inwards
 * E_HTTP_ZONE, one of another site that would get a login E_REGISTRY_REALM. A scope that the
 * answer asks for is added. zone: of the address that responded.
 * Those who wait are served in their order; each ready may call anything here, auth_free too,
 * which serves no request any more. */
struct auth_wait *auth_refused(struct auth *auth, const struct strv *headers,
	enum address_zone zone, unsigned generation, auth_ready_fn *ready, void *ctx);
/* No ready any more. NULL is accepted. */
void auth_cancel(struct auth_wait *wait);

/* For people: who we are there, "me (from ~/.docker/config.json)", "anonymous"; NULL: not known
 * yet. Valid until the next call. */
const char *auth_identity(const struct auth *auth);
/* The challenge that the registry gave, to be remembered; NULL: none. */
const char *auth_challenge(const struct auth *auth);
/* Warnings of the look-up of the login, one sentence each. */
const struct strv *auth_warnings(const struct auth *auth);

/* Engines, for tests. */

/* Whether a login for the one host may go to the other, as far as their names (lower case) tell:
 * equal, or of one registrable domain (registry.gitlab.com and gitlab.com, registry-1.docker.io and
 * auth.docker.io), where a domain that many share (azurecr.io, co.uk) is none. */
bool auth_is_same_site(const char *a, const char *b);

enum { AUTH_TOKEN_BODY_MAX = 64 << 10 };
/* The URL of GET to realm for a token: service, one scope parameter for each, client_id.
 * E_REGISTRY_RESPONSE for a realm that is missing or no URL. */
int auth_token_url(const struct challenge *challenge, const struct strv *scopes, struct url *ret,
	struct err *err);
/* The form of the OAuth2 POST (application/x-www-form-urlencoded); credential has an identity
 * token. */
void auth_token_form(const struct challenge *challenge, const struct strv *scopes,
	const struct credential *credential, struct buf *out);
/* token or access_token; *ret_refresh (or NULL) is a new identity token; *ret_life_ms from
 * expires_in (60 s without, a day at most). The caller wipes both. E_REGISTRY_RESPONSE. */
int auth_token_parse(const char *text, size_t len, char **ret_token, char **ret_refresh,
	int64_t *ret_life_ms, struct err *err);

/*
 * Scopes of tokens (distribution's token specification, scope.md): "TYPE:NAME:ACTION,ACTION".
 * An engine.
 */

enum { AUTH_SCOPES_MAX = 16, AUTH_SCOPE_LEN_MAX = 1024 };

/* Whether one of scopes has the type and name of wanted and all of its actions. */
bool auth_scope_covers(const struct strv *scopes, const char *wanted);
/* Add what the blank-separated scopes of text have over those that are there already, up to max of
 * them (AUTH_SCOPES_MAX at most); true if there was anything. What is longer than the limits, or
 * not plain, is left out. */
bool auth_scope_merge(struct strv *scopes, size_t max, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by auth.c (who waits, what is known) and auth_fetch.c (asking for tokens). */
#ifndef DLRUN_OCI_AUTH_AUTH_IMPL_H
#define DLRUN_OCI_AUTH_AUTH_IMPL_H

#include "oci/auth/auth.h"

enum auth_scheme { AUTH_NONE, AUTH_BASIC, AUTH_BEARER };

struct auth_wait {
	struct auth *auth;
	auth_ready_fn *ready;
	void *ctx;
	bool due;         /* what it waits for is there */
	struct err fault; /* or this is */
	struct auth_wait *next;
};

struct auth {
	struct http *http;
	struct loop *loop;
	const struct http_tls *tls;
	const struct strv *realms; /* credential_env */
	char *host;
	struct url registry;

	struct credential_lookup *lookup; /* NULL: the login is known */
	struct credential login;
	struct err login_fault;
	struct strv warnings;
	char *identity;

	/* Requirements of the registry. */
	enum auth_scheme scheme;
	struct challenge_list challenges;
	const struct challenge *challenge; /* one of them */
	char *challenge_text;
	bool is_remembered; /* and has not said so itself yet */
	enum address_zone zone;
	struct strv scopes;
	size_t scopes_max; /* 1: the token server refuses the others */
	bool may_drop_scopes;
	unsigned scopes_version;

	/* The present authorization. */
	char *authorization;
	unsigned generation;
	bool is_token;       /* it was fetched and ends */
	unsigned for_scopes; /* version of them */
	int64_t got_ms, renew_ms;
	bool is_stale;      /* the registry has refused it */
	bool after_refusal; /* it replaces one that was refused */
	struct err refused; /* the login was */

	/* Asking for a token. */
	bool is_eager; /* before anybody waits */
	struct http_call *call;
	struct loop_timer *pause;
	struct buf form;
	bool asked_by_form, has_no_form;
	unsigned tries, asked_version;
	int64_t asked_ms;

	struct auth_wait *first, **last;
	struct loop_timer *kick;
	struct err at_once; /* of a ready that was called outside of the loop */
	bool *ret_freed;
};

static inline bool auth_is_busy(const struct auth *auth)
{
	return auth->call || auth->pause;
}

/* Ask the realm for a token; ends with auth_got or auth_fail. */
int auth_fetch(struct auth *auth, struct err *err);
/* Takes authorization over. */
int auth_got(struct auth *auth, char *authorization, int64_t renew_ms, struct err *err);
/* fault is moved. */
int auth_fail(struct auth *auth, struct err *fault, struct err *err);

/* E_REGISTRY_AUTH: the login is refused, or there is none. */
int auth_no_login(const struct auth *auth, struct err *err);
/* E_REGISTRY_DENIED, or auth_no_login without one. */
int auth_denied(const struct auth *auth, struct err *err);
/* "Basic …" of user:password, the caller wipes it. */
char *auth_basic(const char *user, const char *password);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/auth.h"

#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/auth_impl.h"
#include "oci/auth/auth_scope.h"
#include "oci/auth/credential_secret.h"

/* A token that is refused so soon after it was fetched because of a refusal is not refused for its
 * age. */
enum { FRESH_MS = 1000 };

static int step(struct auth *auth, struct err *err);

static void copy_err(struct err *to, const struct err *from)
{
	err_set(to, from->id, "%s", from->message);
	for (size_t i = 0; i < from->n_evidence; i++)
		err_evidence(to, "%s", from->evidence[i]);
	if (from->hint)
		err_hint(to, "%s", from->hint);
}

/*
 * Faults
 */

/* "the login of me (from ~/.docker/config.json)" */
static char *login_text(const struct credential *login)
{
	AUTO_FREE char *user = login->user ? str_shown(login->user) : NULL;

	if (login->identity_token || login->registry_token || !user)
		return mem_printf("the login token (from %s)", login->origin);
	return mem_printf("the login of %s (from %s)", user, login->origin);
}

int auth_no_login(const struct auth *auth, struct err *err)
{
	if (credential_is_there(&auth->login)) {
		AUTO_FREE char *login = login_text(&auth->login);
		err_set(err, E_REGISTRY_AUTH, "registry %s does not accept %s", auth->host, login);
	} else {
		err_set(err, E_REGISTRY_AUTH,
			"registry %s requires a login, and none is configured", auth->host);
		for (size_t i = 0; i < auth->warnings.n; i++)
			err_evidence(err, "%s", auth->warnings.v[i]);
	}
	return err_hint(err, "docker login %s", auth->host);
}

int auth_denied(const struct auth *auth, struct err *err)
{
	const char *scope = auth->challenge ? challenge_param(auth->challenge, "scope") : NULL;

	if (!credential_is_there(&auth->login))
		return auth_no_login(auth, err);
	if (str_empty(scope))
		scope = auth->scopes.n > 0 ? auth->scopes.v[0] : "what was asked for";
	AUTO_FREE char *login = login_text(&auth->login);
	AUTO_FREE char *shown = str_shown(scope);
	return err_set(err, E_REGISTRY_DENIED, "registry %s accepts %s, but not for %s", auth->host,
		login, shown);
}

/*
 * Waiting callers
 */

static int kicked(void *ctx, struct err *err)
{
	struct auth *auth = ctx;

	auth->kick = NULL;
	return step(auth, err);
}

static void kick(struct auth *auth)
{
	if (!auth->kick)
		auth->kick = loop_add_timer(auth->loop, clock_ms(), kicked, auth);
}

static struct auth_wait *add_wait(struct auth *auth, auth_ready_fn *ready, void *ctx)
{
	struct auth_wait *wait = mem_alloc(1, sizeof(*wait));

	*wait = (struct auth_wait){.auth = auth, .ready = ready, .ctx = ctx};
	*auth->last = wait;
	auth->last = &wait->next;
	return wait;
}

static void unlink_wait(struct auth *auth, struct auth_wait *wait)
{
	struct auth_wait **at = &auth->first;

	while (*at != wait)
		at = &(*at)->next;
	*at = wait->next;
	if (auth->last == &wait->next)
		auth->last = at;
}

static void free_wait(struct auth_wait *wait)
{
	err_done(&wait->fault);
	free(wait);
}

void auth_cancel(struct auth_wait *wait)
{
	if (!wait)
		return;
	unlink_wait(wait->auth, wait);
	free_wait(wait);
}

/* ready may do anything, also free auth: *ret_freed then. */
static int call_ready(
	struct auth *auth, const struct auth_wait *wait, bool *ret_freed, struct err *err)
{
	bool freed = false, *outer = auth->ret_freed;
	struct err fault = wait->fault;
	bool failed = err_is_set(&fault);

	/* Put back below, unless auth is gone. */
	/* cppcheck-suppress autoVariables */
	auth->ret_freed = &freed;
	int r = wait->ready(wait->ctx, failed ? NULL : auth->authorization, auth->generation,
		failed ? &fault : NULL, err);
	err_done(&fault);
	*ret_freed = freed;
	if (!freed)
		auth->ret_freed = outer;
	else if (outer)
		*outer = true;
	return r < 0 ? r : 0;
}

static struct auth_wait *find_due(const struct auth *auth)
{
	struct auth_wait *wait = auth->first;

	while (wait && !wait->due)
		wait = wait->next;
	return wait;
}

/* 1: auth is gone. */
static int serve_due(struct auth *auth, struct err *err)
{
	struct auth_wait *wait;
	bool freed = false;

	while ((wait = find_due(auth))) {
		struct auth_wait served = *wait;

		unlink_wait(auth, wait);
		free(wait);
		int r = call_ready(auth, &served, &freed, err);
		if (r < 0 || freed)
			return r < 0 ? r : 1;
	}
	return 0;
}

/* Everybody who waits now; what comes meanwhile is looked at later. */
static int serve(struct auth *auth, const struct err *fault, struct err *err)
{
	for (struct auth_wait *wait = auth->first; wait; wait = wait->next) {
		if (!wait->due && fault)
			copy_err(&wait->fault, fault);
		wait->due = true;
	}
	int r = serve_due(auth, err);
	if (r == 0 && auth->first)
		kick(auth);
	return r < 0 ? r : 0;
}

/*
 * The challenge and the authorization
 */

static void drop_challenge(struct auth *auth)
{
	challenges_done(&auth->challenges);
	auth->challenge = NULL;
	auth->scheme = AUTH_NONE;
	auth->is_remembered = false;
	free(TAKE(auth->challenge_text));
}

static void add_quoted(struct buf *out, const char *text)
{
	buf_addc(out, '"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			buf_addc(out, '\\');
		buf_addc(out, *text);
	}
	buf_addc(out, '"');
}

/* Without scope and error, which belong to one request. */
static char *challenge_to_text(const struct challenge *challenge)
{
	static const char *const keys[] = {"realm", "service"};
	AUTO_BUF struct buf out = {0};
	const char *join = " ";

	buf_init(&out, HTTP_HEADERS_MAX * 2);
	buf_adds(&out, strcmp(challenge->scheme, "basic") == 0 ? "Basic" : "Bearer");
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const char *value = challenge_param(challenge, keys[i]);

		if (!value)
			continue;
		buf_addf(&out, "%s%s=", join, keys[i]);
		add_quoted(&out, value);
		join = ",";
	}
	return buf_take(&out);
}

/* false: nothing in it that dlrun knows. */
static bool take_challenge(struct auth *auth, const struct strv *headers)
{
	AUTO_CHALLENGES struct challenge_list list = {0};

	challenges_parse(headers, &list);
	const struct challenge *bearer = challenge_find(&list, "bearer");
	const struct challenge *challenge = bearer ? bearer : challenge_find(&list, "basic");
	if (!challenge)
		return false;
	drop_challenge(auth);
	auth->challenges = list;
	list = (struct challenge_list){0};
	auth->challenge = challenge;
	auth->scheme = bearer ? AUTH_BEARER : AUTH_BASIC;
	auth->challenge_text = challenge_to_text(challenge);
	return true;
}

static bool is_good(const struct auth *auth)
{
	if (!auth->authorization || auth->is_stale)
		return false;
	return !auth->is_token ||
	       (auth->for_scopes == auth->scopes_version && clock_ms() < auth->renew_ms);
}

int auth_got(struct auth *auth, char *authorization, int64_t renew_ms, struct err *err)
{
	secret_free(auth->authorization);
	auth->authorization = authorization;
	auth->generation++;
	auth->got_ms = clock_ms();
	auth->renew_ms = renew_ms;
	auth->after_refusal = auth->is_stale;
	auth->is_stale = false;
	auth->is_remembered = false;
	/* A scope that came while it was fetched is missing in it. */
	if (auth->is_token && auth->for_scopes != auth->scopes_version)
		return step(auth, err);
	return serve(auth, NULL, err);
}

/* A remembered challenge may be outdated: drop it and send the request without authorization, so
 * that the registry states its requirements itself. */
int auth_fail(struct auth *auth, struct err *fault, struct err *err)
{
	if (!auth->is_remembered)
		return serve(auth, fault, err);
	drop_challenge(auth);
	err_clear(&auth->refused);
	return serve(auth, NULL, err);
}

static int fail_copy(struct auth *auth, const struct err *known, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	copy_err(&fault, known);
	return auth_fail(auth, &fault, err);
}

static int use_basic(struct auth *auth, struct err *err)
{
	const struct credential *login = &auth->login;
	AUTO_ERR struct err fault = {0};

	if (!login->user && !login->identity_token) {
		auth_no_login(auth, &fault);
		return auth_fail(auth, &fault, err);
	}
	auth->is_token = false;
	return auth_got(auth,
		login->user ? auth_basic(login->user, login->password)
			    : auth_basic("<token>", login->identity_token),
		INT64_MAX, err);
}

static int renew(struct auth *auth, struct err *err)
{
	auth->is_eager = false;
	if (err_is_set(&auth->login_fault))
		return fail_copy(auth, &auth->login_fault, err);
	if (err_is_set(&auth->refused))
		return fail_copy(auth, &auth->refused, err);
	if (auth->login.registry_token) {
		auth->is_token = false;
		return auth_got(
			auth, mem_printf("Bearer %s", auth->login.registry_token), INT64_MAX, err);
	}
	return auth->scheme == AUTH_BASIC ? use_basic(auth, err) : auth_fetch(auth, err);
}

static int step(struct auth *auth, struct err *err)
{
	if (err_is_set(&auth->at_once))
		return err_move(err, &auth->at_once);
	int r = serve_due(auth, err);
	if (r != 0)
		return r < 0 ? r : 0;
	if (auth_is_busy(auth) || auth->lookup)
		return 0;
	if (auth->scheme == AUTH_NONE || is_good(auth))
		return serve(auth, NULL, err);
	if (!auth->first && !(auth->is_eager && auth->scopes.n > 0))
		return 0;
	return renew(auth, err);
}

/*
 * The login
 */

static int login_found(void *ctx, struct credential *found, const struct strv *warnings,
	struct err *fault, struct err *err)
{
	struct auth *auth = ctx;

	strv_copy(&auth->warnings, warnings);
	if (found) {
		auth->login = *found;
		*found = (struct credential){0};
	} else {
		err_move(&auth->login_fault, fault);
	}
	credential_free(TAKE(auth->lookup));
	AUTO_FREE char *user = auth->login.user ? str_escaped(auth->login.user) : NULL;
	auth->identity = !credential_is_there(&auth->login)
				 ? mem_strdup("anonymous")
				 : mem_printf("%s (from %s)",
					   user && !auth->login.identity_token ? user : "a token",
					   auth->login.origin);
	return step(auth, err);
}

/*
 * From outside
 */

/* Where the registry is said to be by its name, until it has answered. */
static enum address_zone zone_of_name(const struct url *url)
{
	enum address_zone zone;

	if (url_is_loopback(url))
		return ADDRESS_LOOPBACK;
	return address_zone_of_text(url->host, &zone) ? zone : ADDRESS_PUBLIC;
}

static void remember(struct auth *auth, const char *challenge)
{
	AUTO_STRV struct strv headers = {0};

	if (str_empty(challenge))
		return;
	strv_addf(&headers, "www-authenticate: %s", challenge);
	auth->is_remembered = auth->is_eager = take_challenge(auth, &headers);
}

struct auth *auth_new(const struct auth_options *options)
{
	struct auth *auth = mem_alloc(1, sizeof(*auth));

	auth->http = options->http;
	auth->loop = options->loop;
	auth->tls = options->tls;
	auth->realms = options->env->realms;
	auth->host = mem_strdup(options->host);
	auth->last = &auth->first;
	auth->scopes_max = AUTH_SCOPES_MAX;
	url_copy(options->registry, &auth->registry);
	auth->zone = zone_of_name(&auth->registry);
	remember(auth, options->remembered_challenge);
	auth->lookup = credential_start(
		options->loop, options->env, options->host, options->repo, login_found, auth);
	return auth;
}

static void free_waits(struct auth *auth)
{
	while (auth->first) {
		struct auth_wait *wait = auth->first;

		auth->first = wait->next;
		free_wait(wait);
	}
}

void auth_free(struct auth *auth)
{
	if (!auth)
		return;
	if (auth->ret_freed)
		*auth->ret_freed = true;
	http_cancel(auth->call);
	loop_remove_timer(auth->loop, auth->pause);
	loop_remove_timer(auth->loop, auth->kick);
	credential_free(auth->lookup);
	free_waits(auth);
	credential_done(&auth->login);
	secret_free(auth->authorization);
	secret_buf_done(&auth->form);
	err_done(&auth->login_fault);
	err_done(&auth->refused);
	err_done(&auth->at_once);
	drop_challenge(auth);
	strv_done(&auth->warnings);
	strv_done(&auth->scopes);
	url_done(&auth->registry);
	free(auth->identity);
	free(auth->host);
	free(auth);
}

void auth_add_scope(struct auth *auth, const char *scope)
{
	if (!auth_scope_merge(&auth->scopes, auth->scopes_max, scope))
		return;
	auth->scopes_version++;
	if (auth->is_eager)
		kick(auth);
}

void auth_allow_fewer_scopes(struct auth *auth)
{
	auth->may_drop_scopes = true;
}

struct auth_wait *auth_want(struct auth *auth, auth_ready_fn *ready, void *ctx)
{
	const struct auth_wait wait = {.ready = ready, .ctx = ctx};
	AUTO_ERR struct err fault = {0};
	bool freed = false;

	if (auth->first || (auth->scheme != AUTH_NONE && !is_good(auth))) {
		kick(auth);
		return add_wait(auth, ready, ctx);
	}
	int r = call_ready(auth, &wait, &freed, &fault);
	if (r < 0 && !freed) {
		err_move(&auth->at_once, &fault);
		kick(auth);
	}
	return NULL;
}

/* Whether it is worth while to get another one in its place. */
static bool is_worth_renewing(const struct auth *auth, bool has_new_scope)
{
	const char *why = challenge_param(auth->challenge, "error");

	/* The registry may require a token now, unlike in the remembered or previous challenge. */
	if (!auth->is_token)
		return auth->scheme == AUTH_BEARER && !auth->login.registry_token;
	if (has_new_scope || auth->scheme == AUTH_BASIC)
		return true;
	if (why && strcmp(why, "insufficient_scope") == 0)
		return false;
	return !auth->after_refusal || clock_ms() - auth->got_ms >= FRESH_MS;
}

/* The first to tell that there is need of something, or that what there is is refused. */
static void judge_refusal(struct auth *auth, const struct strv *headers, struct auth_wait *wait)
{
	if (!take_challenge(auth, headers) && !auth->challenge) {
		err_set(&wait->fault, E_REGISTRY_ANSWER,
			"registry %s requires a login but offers neither Basic nor Bearer",
			auth->host);
		wait->due = true;
		return;
	}
	auth->is_remembered = false;
	const char *scope = challenge_param(auth->challenge, "scope");
	bool has_new_scope = scope && auth_scope_merge(&auth->scopes, auth->scopes_max, scope);
	auth->scopes_version += has_new_scope;
	if (!auth->authorization)
		return;
	auth->is_stale = is_worth_renewing(auth, has_new_scope);
	if (auth->is_stale)
		return;
	if (auth->is_token)
		auth_denied(auth, &wait->fault);
	else
		auth_no_login(auth, &wait->fault);
	wait->due = true;
}

struct auth_wait *auth_refused(struct auth *auth, const struct strv *headers,
	enum address_zone zone, unsigned generation, auth_ready_fn *ready, void *ctx)
{
	struct auth_wait *wait = add_wait(auth, ready, ctx);

	auth->zone = zone;
	if (generation == auth->generation && !auth_is_busy(auth) && !auth->is_stale)
		judge_refusal(auth, headers, wait);
	kick(auth);
	return wait;
}

const char *auth_identity(const struct auth *auth)
{
	return auth->identity;
}

const char *auth_challenge(const struct auth *auth)
{
	return auth->challenge_text;
}

const struct strv *auth_warnings(const struct auth *auth)
{
	return &auth->warnings;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/auth.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/stream/address.h"
#include "net/stream/url.h"
#include "oci/auth/credentials.h"

enum auth_scheme { AUTH_NONE, AUTH_BASIC, AUTH_BEARER };

struct auth_wait {
	struct auth *auth;
	auth_ready_fn *ready;
	void *ctx;
	bool due;         /* what it waits for is there */
	struct err error; /* or this is */
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
	struct err login_error;
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
	struct loop_timer *retry;
	struct buf form;
	bool requested_by_form, has_no_form;
	unsigned tries, requested_version;
	int64_t requested_ms;

	struct auth_wait *first, **last;
	struct loop_timer *kick;
	struct err at_once; /* of a ready that was called outside of the loop */
	bool *ret_freed;
};

static inline bool auth_is_busy(const struct auth *auth)
{
	return auth->call || auth->retry;
}

static int auth_fetch(struct auth *auth, struct err *err);
static char *auth_basic(const char *user, const char *password);

/* A token that is refused so soon after it was fetched because of a refusal is not refused for its
 * age. */
enum { FRESH_MS = 1000 };

static int auth_step(struct auth *auth, struct err *err);

static void copy_err(struct err *to, const struct err *from)
{
	err_set(to, from->id, "%s", from->message);
	for (size_t i = 0; i < from->n_evidence; i++)
		err_evidence(to, "%s", from->evidence[i]);
	if (from->hint)
		err_hint(to, "%s", from->hint);
}

/*
 * Errors
 */

/* "the login of me (from ~/.docker/config.json)" */
static char *login_text(const struct credential *login)
{
	AUTO_FREE char *user = login->user ? str_shown(login->user) : NULL;

	if (login->identity_token || login->registry_token || !user)
		return mem_printf("the login token (from %s)", login->origin);
	return mem_printf("the login of %s (from %s)", user, login->origin);
}

/* E_REGISTRY_AUTH: the login is refused, or there is none. */
static int auth_no_login(const struct auth *auth, struct err *err)
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

/* E_REGISTRY_DENIED, or auth_no_login without one. */
static int auth_denied(const struct auth *auth, struct err *err)
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
	return auth_step(auth, err);
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
	err_done(&wait->error);
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
	struct err error = wait->error;
	bool failed = err_is_set(&error);

	/* Put back below, unless auth is gone. */
	/* cppcheck-suppress autoVariables */
	auth->ret_freed = &freed;
	int r = wait->ready(wait->ctx, failed ? NULL : auth->authorization, auth->generation,
		failed ? &error : NULL, err);
	err_done(&error);
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

/* All that wait now; what comes meanwhile has its turn later. */
static int auth_serve(struct auth *auth, const struct err *error, struct err *err)
{
	for (struct auth_wait *wait = auth->first; wait; wait = wait->next) {
		if (!wait->due && error)
			copy_err(&wait->error, error);
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

static void auth_add_quoted(struct buf *out, const char *text)
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
	AUTO_BUF struct buf out = buf_with(HTTP_HEADERS_MAX * 2);
	const char *join = " ";

	buf_adds(&out, strcmp(challenge->scheme, "basic") == 0 ? "Basic" : "Bearer");
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const char *value = challenge_param(challenge, keys[i]);

		if (!value)
			continue;
		buf_addf(&out, "%s%s=", join, keys[i]);
		auth_add_quoted(&out, value);
		join = ",";
	}
	return buf_take(&out);
}

/* false: nothing in it that dlrun knows. */
static bool auth_take_challenge(struct auth *auth, const struct strv *headers)
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

static bool auth_is_good(const struct auth *auth)
{
	if (!auth->authorization || auth->is_stale)
		return false;
	return !auth->is_token ||
	       (auth->for_scopes == auth->scopes_version && clock_ms() < auth->renew_ms);
}

/* Takes authorization over. */
static int auth_got(struct auth *auth, char *authorization, int64_t renew_ms, struct err *err)
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
		return auth_step(auth, err);
	return auth_serve(auth, NULL, err);
}

/* A remembered challenge may be outdated: drop it and send the request without authorization, so
 * that the registry states its requirements itself. */
static int auth_fail(struct auth *auth, struct err *error, struct err *err)
{
	if (!auth->is_remembered)
		return auth_serve(auth, error, err);
	drop_challenge(auth);
	err_clear(&auth->refused);
	return auth_serve(auth, NULL, err);
}

static int fail_copy(struct auth *auth, const struct err *known, struct err *err)
{
	AUTO_ERR struct err error = {0};

	copy_err(&error, known);
	return auth_fail(auth, &error, err);
}

static int use_basic(struct auth *auth, struct err *err)
{
	const struct credential *login = &auth->login;
	AUTO_ERR struct err error = {0};

	if (!login->user && !login->identity_token) {
		auth_no_login(auth, &error);
		return auth_fail(auth, &error, err);
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
	if (err_is_set(&auth->login_error))
		return fail_copy(auth, &auth->login_error, err);
	if (err_is_set(&auth->refused))
		return fail_copy(auth, &auth->refused, err);
	if (auth->login.registry_token) {
		auth->is_token = false;
		return auth_got(
			auth, mem_printf("Bearer %s", auth->login.registry_token), INT64_MAX, err);
	}
	return auth->scheme == AUTH_BASIC ? use_basic(auth, err) : auth_fetch(auth, err);
}

static int auth_step(struct auth *auth, struct err *err)
{
	if (err_is_set(&auth->at_once))
		return err_move(err, &auth->at_once);
	int r = serve_due(auth, err);
	if (r != 0)
		return r < 0 ? r : 0;
	if (auth_is_busy(auth) || auth->lookup)
		return 0;
	if (auth->scheme == AUTH_NONE || auth_is_good(auth))
		return auth_serve(auth, NULL, err);
	if (!auth->first && !(auth->is_eager && auth->scopes.n > 0))
		return 0;
	return renew(auth, err);
}

/*
 * The login
 */

static int login_found(void *ctx, struct credential *found, const struct strv *warnings,
	struct err *error, struct err *err)
{
	struct auth *auth = ctx;

	strv_copy(&auth->warnings, warnings);
	if (found) {
		auth->login = *found;
		*found = (struct credential){0};
	} else {
		err_move(&auth->login_error, error);
	}
	credential_free(TAKE(auth->lookup));
	AUTO_FREE char *user = auth->login.user ? str_escaped(auth->login.user) : NULL;
	auth->identity = !credential_is_there(&auth->login)
				 ? mem_strdup("anonymous")
				 : mem_printf("%s (from %s)",
					   user && !auth->login.identity_token ? user : "a token",
					   auth->login.origin);
	return auth_step(auth, err);
}

/*
 * From outside
 */

/* Where the registry is said to be by its name, until it has responded. */
static enum address_zone zone_of_name(const struct url *url)
{
	enum address_zone zone;

	if (url_is_loopback(url))
		return ADDRESS_LOOPBACK;
	return address_zone_of_text(url->host, &zone) ? zone : ADDRESS_PUBLIC;
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
	if (!str_empty(options->remembered_challenge)) {
		AUTO_STRV struct strv headers = {0};
		strv_addf(&headers, "www-authenticate: %s", options->remembered_challenge);
		auth->is_remembered = auth->is_eager = auth_take_challenge(auth, &headers);
	}
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
	loop_remove_timer(auth->loop, auth->retry);
	loop_remove_timer(auth->loop, auth->kick);
	credential_free(auth->lookup);
	free_waits(auth);
	credential_done(&auth->login);
	secret_free(auth->authorization);
	secret_buf_done(&auth->form);
	err_done(&auth->login_error);
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
	AUTO_ERR struct err error = {0};
	bool freed = false;

	if (auth->first || (auth->scheme != AUTH_NONE && !auth_is_good(auth))) {
		kick(auth);
		return add_wait(auth, ready, ctx);
	}
	int r = call_ready(auth, &wait, &freed, &error);
	if (r < 0 && !freed) {
		err_move(&auth->at_once, &error);
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

/* The first response that requests a login, or refuses the one that was sent. */
static void auth_evaluate_refusal(
	struct auth *auth, const struct strv *headers, struct auth_wait *wait)
{
	if (!auth_take_challenge(auth, headers) && !auth->challenge) {
		err_set(&wait->error, E_REGISTRY_RESPONSE,
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
		auth_denied(auth, &wait->error);
	else
		auth_no_login(auth, &wait->error);
	wait->due = true;
}

struct auth_wait *auth_refused(struct auth *auth, const struct strv *headers,
	enum address_zone zone, unsigned generation, auth_ready_fn *ready, void *ctx)
{
	struct auth_wait *wait = add_wait(auth, ready, ctx);

	auth->zone = zone;
	if (generation == auth->generation && !auth_is_busy(auth) && !auth->is_stale)
		auth_evaluate_refusal(auth, headers, wait);
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

/*
 * Decide which hosts are one site. The Public Suffix List is not used, because every machine has
 * another version of it or none: a missing name costs a line in the user's configuration, a name
 * too many gives a login to a stranger.
 */

/* Below these anybody can have a name: each is a site of its own. */
static const char *const shared_domains[] = {"amazonaws.com", "app.github.dev", "appspot.com",
	"arpa", "azure-api.net", "azurecr.io", "azurefd.net", "azurewebsites.net",
	"cloudapp.azure.com", "cloudapp.net", "cloudfront.net", "cluster.local", "ddns.net",
	"deno.dev", "digitaloceanspaces.com", "duckdns.org", "dyndns.org", "fly.dev", "github.io",
	"gitlab.io", "herokuapp.com", "jfrog.io", "loca.lt", "netlify.app", "ngrok-free.app",
	"ngrok.app", "ngrok.dev", "ngrok.io", "nip.io", "no-ip.org", "ondigitalocean.app",
	"onrender.com", "pages.dev", "pkg.dev", "railway.app", "run.app", "sslip.io",
	"trycloudflare.com", "ts.net", "vercel.app", "web.app", "windows.net", "workers.dev",
	"xip.io"};

/* Second-level labels that many share below a country's two letters: co.uk, com.cn, ac.jp. */
static const char *const second_levels[] = {"ac", "co", "com", "edu", "go", "gob", "gouv", "gov",
	"ne", "net", "nom", "or", "org", "sch"};

static bool auth_is_below(const char *host, const char *domain)
{
	size_t len = strlen(host), end = strlen(domain);

	return len > end && host[len - end - 1] == '.' && str_eq(host + len - end, domain);
}

/* The label before at, which is the start of one. */
static const char *label_before(const char *host, const char *at)
{
	if (at == host)
		return host;
	for (at--; at > host && at[-1] != '.';)
		at--;
	return at;
}

static bool is_second_level(const char *label, const char *top)
{
	size_t len = (size_t)(top - label) - 1;

	if (strlen(top) != 2)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(second_levels); i++)
		if (strlen(second_levels[i]) == len && strncmp(label, second_levels[i], len) == 0)
			return true;
	return false;
}

/* The end of host that is its site: "docker.io" of auth.docker.io. */
static const char *site_of(const char *host)
{
	const char *top = label_before(host, host + strlen(host));
	const char *second = label_before(host, top);

	/* The end of host stands for a label with nothing behind it. */
	if (*top == '\0' || second == top)
		return host;
	for (size_t i = 0; i < ARRAY_LEN(shared_domains); i++)
		if (auth_is_below(host, shared_domains[i]))
			return host;
	return is_second_level(second, top) ? label_before(host, second) : second;
}

static char *without_dot(const char *host)
{
	size_t len = strlen(host);

	return mem_strndup(host, len > 0 && host[len - 1] == '.' ? len - 1 : len);
}

bool auth_is_same_site(const char *a, const char *b)
{
	AUTO_FREE char *one = without_dot(a);
	AUTO_FREE char *other = without_dot(b);
	enum address_zone zone;

	if (str_eq(one, other))
		return true;
	if (address_zone_of_text(one, &zone) || address_zone_of_text(other, &zone))
		return false;
	return str_eq(site_of(one), site_of(other));
}

/* Requests to a token server, and its responses. */

static const char client_id[] = "dlrun";

enum {
	TOKEN_LIFE_MS = 60 * 1000, /* token.md: without expires_in */
	TOKEN_LIFE_MAX_S = 24 * 60 * 60,
};

static void auth_add_param(struct url *url, const char *key, const char *value)
{
	char *path = url_add_param(url->path, key, value);

	REPLACE(url->path, path);
}

int auth_token_url(const struct challenge *challenge, const struct strv *scopes, struct url *ret,
	struct err *err)
{
	const char *realm = challenge_param(challenge, "realm");
	const char *service = challenge_param(challenge, "service");
	AUTO_ERR struct err why = {0};
	AUTO_URL struct url url = {0};

	if (str_empty(realm))
		return err_set(err, E_REGISTRY_RESPONSE,
			"the registry does not say where its tokens come from");
	if (url_parse(realm, "the realm", &url, &why) < 0)
		return err_set(err, E_REGISTRY_RESPONSE, "the registry names no token server: %s",
			why.message);
	if (service)
		auth_add_param(&url, "service", service);
	for (size_t i = 0; i < scopes->n; i++)
		auth_add_param(&url, "scope", scopes->v[i]);
	auth_add_param(&url, "client_id", client_id);
	if (strlen(url.path) > URL_MAX)
		return err_set(err, E_REGISTRY_RESPONSE, "the URL of the token server is too long");
	*ret = url;
	url = (struct url){0};
	return 0;
}

/*
 * OAuth2
 */

static bool auth_is_unreserved(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c) || c == '-' ||
	       c == '.' || c == '_' || c == '~';
}

/* Not by url_add_param, which would leave copies of the secret behind. */
static void auth_add_escaped(struct buf *out, const char *text)
{
	for (; *text; text++) {
		if (auth_is_unreserved(*text))
			buf_addc(out, *text);
		else
			buf_addf(out, "%%%02X", (unsigned char)*text);
	}
}

static void auth_add_field(struct buf *out, const char *key, const char *value)
{
	buf_addf(out, "&%s=", key);
	auth_add_escaped(out, value);
}

void auth_token_form(const struct challenge *challenge, const struct strv *scopes,
	const struct credential *credential, struct buf *out)
{
	const char *service = challenge_param(challenge, "service");

	buf_adds(out, "grant_type=refresh_token");
	auth_add_field(out, "service", service ? service : "");
	auth_add_field(out, "client_id", client_id);
	for (size_t i = 0; i < scopes->n; i++) {
		buf_adds(out, i == 0 ? "&scope=" : "%20");
		auth_add_escaped(out, scopes->v[i]);
	}
	auth_add_field(out, "refresh_token", credential->identity_token);
}

/*
 * Responses
 */

/* Whether text is valid in a field's value behind "Bearer " (RFC 6750 section 2.1, somewhat
 * relaxed). */
static bool auth_is_token(const char *text)
{
	if (str_empty(text))
		return false;
	for (; *text; text++)
		if (*text <= ' ' || *text >= 0x7f)
			return false;
	return true;
}

int auth_token_parse(const char *text, size_t len, char **ret_token, char **ret_refresh,
	int64_t *ret_life_ms, struct err *err)
{
	AUTO_SECRET_JSON struct json *root = NULL;

	if (json_parse(text, len, AUTH_TOKEN_BODY_MAX, "the answer", &root, NULL) < 0)
		return err_set(
			err, E_REGISTRY_RESPONSE, "the token server's answer is not valid JSON");
	const char *token = json_get_str(root, "token");
	if (str_empty(token))
		token = json_get_str(root, "access_token");
	if (!auth_is_token(token))
		return err_set(
			err, E_REGISTRY_RESPONSE, "the token server's answer holds no token");
	const char *refresh = json_get_str(root, "refresh_token");
	int64_t life_s = json_get_int(root, "expires_in", 0);
	if (life_s > TOKEN_LIFE_MAX_S)
		life_s = TOKEN_LIFE_MAX_S;
	*ret_token = mem_strdup(token);
	*ret_refresh = str_empty(refresh) ? NULL : mem_strdup(refresh);
	*ret_life_ms = life_s > 0 ? life_s * 1000 : TOKEN_LIFE_MS;
	return 0;
}

enum {
	TRIES = 4,
	RETRY_FIRST_MS = 200,
	RETRY_MAX_MS = 10 * 1000,
	RESPONSE_MS = 30 * 1000,
	/* Renewed so long before their end, or a tenth of their life if that is less. */
	AHEAD_MS = 5000,
};

/* "Basic …" of user:password, the caller wipes it. */
static char *auth_basic(const char *user, const char *password)
{
	AUTO_SECRET char *plain = mem_printf("%s:%s", user, password);
	size_t len = strlen(plain);
	AUTO_BUF struct buf out = buf_with(strlen("Basic ") + 4 * (len / 3 + 1));

	buf_reserve(&out, out.max); /* never moved, so that no copies are left behind */
	buf_adds(&out, "Basic ");
	base64_encode(plain, len, &out);
	return buf_take(&out);
}

/*
 * Where to
 */

/* Passwords and tokens may go over http only to the machine that is spoken to by http
 * anyway. */
static bool may_go_plain(const struct auth *auth, const struct url *realm)
{
	if (auth->registry.tls)
		return false;
	if (str_eq(realm->host, auth->registry.host) || !credential_is_there(&auth->login))
		return true;
	return url_is_loopback(realm) && url_is_loopback(&auth->registry);
}

/* The user's own configuration names it. */
static bool auth_is_allowed(const struct auth *auth, const struct url *realm)
{
	AUTO_FREE char *authority = url_authority(realm);
	const struct strv *realms = auth->realms;

	for (size_t i = 0; realms && i < realms->n; i++)
		if (strcasecmp(realms->v[i], realm->host) == 0 ||
			strcasecmp(realms->v[i], authority) == 0)
			return true;
	return false;
}

/* The server that responds for a registry does not choose who else gets the login for it. */
static bool may_have_login(const struct auth *auth, const struct url *realm)
{
	return auth_is_same_site(realm->host, auth->registry.host) ||
	       (url_is_loopback(realm) && url_is_loopback(&auth->registry)) ||
	       auth_is_allowed(auth, realm);
}

static int check_realm(const struct auth *auth, const struct url *realm, struct err *err)
{
	if (!realm->tls && !may_go_plain(auth, realm)) {
		AUTO_FREE char *shown = url_shown(realm);
		return err_set(err, E_REGISTRY_RESPONSE,
			"registry %s wants the login to be sent without TLS, to %s", auth->host,
			shown);
	}
	if (!credential_is_there(&auth->login) || may_have_login(auth, realm))
		return 0;
	AUTO_FREE char *authority = url_authority(realm);
	err_set(err, E_REGISTRY_REALM, "registry %s wants its login sent to another site, %s",
		auth->host, authority);
	err_evidence(err, "a login goes nowhere else than to the site of its registry, unless your "
			  "own configuration (~/.config/dlrun/config.yaml) allows it:");
	return err_hint(err, "registry_realms: [\"%s\"]", authority);
}

/*
 * The request
 */

static int token_done(void *ctx, struct http_response *response, struct err *err);

/* The value of Authorization for a GET; NULL: anonymous. */
static char *login_value(const struct auth *auth)
{
	if (auth->login.identity_token)
		return auth_basic("<token>", auth->login.identity_token);
	return auth->login.user ? auth_basic(auth->login.user, auth->login.password) : NULL;
}

static void auth_start(struct auth *auth, const struct url *realm, const struct url *url)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_SECRET char *authorization = NULL;
	bool is_here = str_eq(realm->host, auth->registry.host);
	struct http_request request = {.method = "GET",
		.url = url,
		.headers = &headers,
		.max_body = AUTH_TOKEN_BODY_MAX,
		.tls = is_here ? auth->tls : NULL,
		.has_zone = !is_here && !auth_is_allowed(auth, realm),
		.zone = auth->zone,
		.deadline_ms = clock_deadline(RESPONSE_MS),
		.done = token_done,
		.ctx = auth};

	strv_add(&headers, "Accept: application/json");
	auth->requested_by_form = auth->login.identity_token && !auth->has_no_form;
	if (auth->requested_by_form) {
		static const size_t max = 4 * CREDENTIAL_SECRET_MAX;
		buf_init(&auth->form, max);
		buf_reserve(&auth->form, max);
		auth_token_form(auth->challenge, &auth->scopes, &auth->login, &auth->form);
		strv_add(&headers, "Content-Type: application/x-www-form-urlencoded");
		request.method = "POST";
		request.url = realm;
		request.body.data = auth->form.data;
		request.body.size = auth->form.len;
	} else {
		authorization = login_value(auth);
		request.authorization = authorization;
	}
	auth->requested_ms = clock_ms();
	auth->requested_version = auth->scopes_version;
	auth->call = http_start(auth->http, &request);
}

static int auth_request_token(struct auth *auth, struct err *err)
{
	const char *text = challenge_param(auth->challenge, "realm");
	AUTO_URL struct url realm = {0}, url = {0};

	int r = auth_token_url(auth->challenge, &auth->scopes, &url, err);
	if (r == 0)
		r = url_parse(text, "the realm", &realm, err);
	if (r == 0)
		r = check_realm(auth, &realm, err);
	if (r == 0)
		auth_start(auth, &realm, &url);
	return r;
}

static int auth_request_or_fail(struct auth *auth, struct err *err)
{
	AUTO_ERR struct err error = {0};

	return auth_request_token(auth, &error) < 0 ? auth_fail(auth, &error, err) : 0;
}

/* Ask the realm for a token; ends with auth_got or auth_fail. */
static int auth_fetch(struct auth *auth, struct err *err)
{
	auth->tries = 0;
	return auth_request_or_fail(auth, err);
}

/*
 * The response
 */

static int auth_on_retry(void *ctx, struct err *err)
{
	struct auth *auth = ctx;

	auth->retry = NULL;
	return auth_request_or_fail(auth, err);
}

static bool is_busy_status(int status)
{
	return status == 408 || status == 429 || (status >= 500 && status != 501);
}

/* Whether the request is sent once more, a little later. */
static bool auth_try_again(struct auth *auth, const struct http_response *response)
{
	const char *after = field_find(&response->headers, "retry-after");
	int64_t wait_ms = after ? field_retry_after(after, clock_wall_ms()) : -1;
	uint32_t most_ms = RETRY_FIRST_MS;

	if (!(response->status ? is_busy_status(response->status) : response->is_transient) ||
		++auth->tries >= TRIES)
		return false;
	for (unsigned i = 1; i < auth->tries; i++)
		most_ms *= 3;
	if (wait_ms < 0)
		wait_ms = random_below(most_ms) + 1;
	if (wait_ms > RETRY_MAX_MS)
		wait_ms = RETRY_MAX_MS;
	auth->retry = loop_add_timer(auth->loop, clock_ms() + wait_ms, auth_on_retry, auth);
	return true;
}

static int auth_take_token(struct auth *auth, const struct http_response *response, struct err *err)
{
	AUTO_SECRET char *token = NULL, *refresh = NULL;
	AUTO_ERR struct err error = {0};
	int64_t life_ms;

	if (auth_token_parse(response->body.data, response->body.len, &token, &refresh, &life_ms,
		    &error) < 0) {
		err_prefix(&error, "registry %s", auth->host);
		return auth_fail(auth, &error, err);
	}
	if (refresh && auth->login.identity_token) {
		secret_free(auth->login.identity_token);
		auth->login.identity_token = TAKE(refresh);
	}
	auth->is_token = true;
	auth->for_scopes = auth->requested_version;
	int64_t ahead_ms = life_ms / 10 < AHEAD_MS ? life_ms / 10 : AHEAD_MS;
	return auth_got(
		auth, mem_printf("Bearer %s", token), auth->requested_ms + life_ms - ahead_ms, err);
}

static bool is_login_refused(const struct auth *auth, int status)
{
	return status == 401 || (status == 400 && auth->requested_by_form);
}

/* Turn a status that is not a success into an error. */
static int auth_evaluate_status(
	const struct auth *auth, const struct http_response *response, struct err *err)
{
	AUTO_FREE char *server = url_authority(&response->url);
	int status = response->status;

	if (is_login_refused(auth, status))
		return auth_no_login(auth, err);
	if (status == 403)
		return auth_denied(auth, err);
	if (is_busy_status(status))
		return err_set(err, E_REGISTRY_UNREACHABLE,
			"registry %s: its token server %s answers %d, also when asked again",
			auth->host, server, status);
	if (status >= 300 && status < 400)
		return err_set(err, E_REGISTRY_RESPONSE,
			"registry %s: its token server %s sends the login elsewhere (%d)",
			auth->host, server, status);
	return err_set(err, E_REGISTRY_RESPONSE, "registry %s: its token server %s answers %d",
		auth->host, server, status);
}

static int auth_fail_response(struct auth *auth, struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (response->status == 0) {
		err_move(&error, &response->error);
		if (error.id != E_IO) /* there is no libcurl */
			err_prefix(&error, "registry %s: asking its token server", auth->host);
	} else {
		AUTO_FREE char *shown = url_shown(&response->url);
		auth_evaluate_status(auth, response, &error);
		err_evidence(&error, "%s answered %d", shown, response->status);
	}
	if (is_login_refused(auth, response->status) && credential_is_there(&auth->login))
		auth_no_login(auth, &auth->refused);
	return auth_fail(auth, &error, err);
}

/* Some give no token at all where one of its scopes is not allowed. */
static bool drop_scopes(struct auth *auth, int status)
{
	if (!auth->may_drop_scopes || auth->scopes.n < 2 ||
		!(status == 403 || is_login_refused(auth, status)))
		return false;
	auth->scopes_max = 1;
	strv_cut(&auth->scopes, 1);
	return true;
}

static int auth_evaluate_response(
	struct auth *auth, struct http_response *response, struct err *err)
{
	bool is_unknown = response->status == 404 || response->status == 405;

	if (response->status >= 200 && response->status < 300)
		return auth_take_token(auth, response, err);
	if (auth->requested_by_form && is_unknown) {
		auth->has_no_form = true;
		return auth_request_or_fail(auth, err);
	}
	if (drop_scopes(auth, response->status))
		return auth_request_or_fail(auth, err);
	return auth_try_again(auth, response) ? 0 : auth_fail_response(auth, response, err);
}

/* auth may be gone when this returns, and so may the response's client. */
static int token_done(void *ctx, struct http_response *response, struct err *err)
{
	struct auth *auth = ctx;

	auth->call = NULL;
	secret_buf_done(&auth->form);
	return auth_evaluate_response(auth, response, err);
}

/* Where the actions begin: behind the last colon, because names may have a port. */
static const char *find_actions(const char *scope)
{
	const char *colon = strrchr(scope, ':');

	return colon ? colon + 1 : scope + strlen(scope);
}

static bool has_action(const char *actions, const char *action, size_t len)
{
	while (*actions) {
		size_t n = strcspn(actions, ",");

		if (n == len && memcmp(actions, action, len) == 0)
			return true;
		actions += n + (actions[n] != '\0');
	}
	return false;
}

static bool covers(const char *scope, const char *wanted)
{
	const char *have = find_actions(scope), *want = find_actions(wanted);

	if (have - scope != want - wanted || strncmp(scope, wanted, (size_t)(want - wanted)) != 0)
		return false;
	while (*want) {
		size_t n = strcspn(want, ",");

		if (!has_action(have, want, n))
			return false;
		want += n + (want[n] != '\0');
	}
	return true;
}

bool auth_scope_covers(const struct strv *scopes, const char *wanted)
{
	for (size_t i = 0; i < scopes->n; i++)
		if (covers(scopes->v[i], wanted))
			return true;
	return false;
}

static bool auth_is_plain(const char *scope)
{
	for (; *scope; scope++)
		if (*scope <= ' ' || *scope >= 0x7f)
			return false;
	return true;
}

/* In the place of one that it has more actions than, or at the end. */
static bool auth_put(struct strv *scopes, size_t max, const char *scope)
{
	for (size_t i = 0; i < scopes->n; i++) {
		if (!covers(scope, scopes->v[i]))
			continue;
		REPLACE(scopes->v[i], mem_strdup(scope));
		return true;
	}
	if (scopes->n >= max)
		return false;
	strv_add(scopes, scope);
	return true;
}

bool auth_scope_merge(struct strv *scopes, size_t max, const char *text)
{
	bool added = false;

	while (*text) {
		size_t len = strcspn(text, " ");
		AUTO_FREE char *scope = mem_strndup(text, len);

		text += len + (text[len] != '\0');
		if (len == 0 || len > AUTH_SCOPE_LEN_MAX || !auth_is_plain(scope) ||
			auth_scope_covers(scopes, scope))
			continue;
		added |= auth_put(scopes, max, scope);
	}
	return added;
}

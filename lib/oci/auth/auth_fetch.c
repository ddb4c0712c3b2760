/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <strings.h>

#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "oci/auth/auth_impl.h"
#include "oci/auth/credential_secret.h"

enum {
	TRIES = 4,
	PAUSE_FIRST_MS = 200,
	PAUSE_MAX_MS = 10 * 1000,
	ANSWER_MS = 30 * 1000,
	/* Renewed so long before their end, or a tenth of their life if that is less. */
	AHEAD_MS = 5000,
};

char *auth_basic(const char *user, const char *password)
{
	AUTO_SECRET char *plain = mem_printf("%s:%s", user, password);
	size_t len = strlen(plain);
	AUTO_BUF struct buf out = {0};

	buf_init(&out, strlen("Basic ") + 4 * (len / 3 + 1));
	buf_room(&out, out.max); /* never moved, so that no copies are left behind */
	buf_adds(&out, "Basic ");
	base64_encode(plain, len, &out);
	return buf_take(&out);
}

/*
 * Where to
 */

/* Passwords and tokens may go over http to nobody but the machine that is spoken to by http
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
static bool is_allowed(const struct auth *auth, const struct url *realm)
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
	       is_allowed(auth, realm);
}

static int check_realm(const struct auth *auth, const struct url *realm, struct err *err)
{
	if (!realm->tls && !may_go_plain(auth, realm)) {
		AUTO_FREE char *shown = url_shown(realm);
		return err_set(err, E_REGISTRY_ANSWER,
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

static int token_done(void *ctx, struct http_answer *answer, struct err *err);

/* The value of Authorization for a GET; NULL: anonymous. */
static char *login_value(const struct auth *auth)
{
	if (auth->login.identity_token)
		return auth_basic("<token>", auth->login.identity_token);
	return auth->login.user ? auth_basic(auth->login.user, auth->login.password) : NULL;
}

static void make_form(struct auth *auth)
{
	static const size_t max = 4 * CREDENTIAL_SECRET_MAX;

	buf_init(&auth->form, max);
	buf_room(&auth->form, max);
	auth_token_form(auth->challenge, &auth->scopes, &auth->login, &auth->form);
}

static void start(struct auth *auth, const struct url *realm, const struct url *url)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_SECRET char *authorization = NULL;
	bool is_here = str_eq(realm->host, auth->registry.host);
	struct http_request request = {.method = "GET",
		.url = url,
		.headers = &headers,
		.max_body = AUTH_TOKEN_BODY_MAX,
		.tls = is_here ? auth->tls : NULL,
		.has_zone = !is_here && !is_allowed(auth, realm),
		.zone = auth->zone,
		.deadline_ms = clock_deadline(ANSWER_MS),
		.done = token_done,
		.ctx = auth};

	strv_add(&headers, "Accept: application/json");
	auth->asked_by_form = auth->login.identity_token && !auth->has_no_form;
	if (auth->asked_by_form) {
		make_form(auth);
		strv_add(&headers, "Content-Type: application/x-www-form-urlencoded");
		request.method = "POST";
		request.url = realm;
		request.body.data = auth->form.data;
		request.body.size = auth->form.len;
	} else {
		authorization = login_value(auth);
		request.authorization = authorization;
	}
	auth->asked_ms = clock_ms();
	auth->asked_version = auth->scopes_version;
	auth->call = http_start(auth->http, &request);
}

static int ask(struct auth *auth, struct err *err)
{
	const char *text = challenge_param(auth->challenge, "realm");
	AUTO_URL struct url realm = {0}, url = {0};

	int r = auth_token_url(auth->challenge, &auth->scopes, &url, err);
	if (r == 0)
		r = url_parse(text, "the realm", &realm, err);
	if (r == 0)
		r = check_realm(auth, &realm, err);
	if (r == 0)
		start(auth, &realm, &url);
	return r;
}

static int ask_or_fail(struct auth *auth, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	return ask(auth, &fault) < 0 ? auth_fail(auth, &fault, err) : 0;
}

int auth_fetch(struct auth *auth, struct err *err)
{
	auth->tries = 0;
	return ask_or_fail(auth, err);
}

/*
 * The answer
 */

static int ask_again(void *ctx, struct err *err)
{
	struct auth *auth = ctx;

	auth->pause = NULL;
	return ask_or_fail(auth, err);
}

static bool is_busy_status(int status)
{
	return status == 408 || status == 429 || (status >= 500 && status != 501);
}

/* Whether it is asked once more, a little later. */
static bool try_again(struct auth *auth, const struct http_answer *answer)
{
	const char *after = field_find(&answer->headers, "retry-after");
	int64_t wait_ms = after ? field_retry_after(after, clock_wall_ms()) : -1;
	uint32_t most_ms = PAUSE_FIRST_MS;

	if (!(answer->status ? is_busy_status(answer->status) : answer->is_transient) ||
		++auth->tries >= TRIES)
		return false;
	for (unsigned i = 1; i < auth->tries; i++)
		most_ms *= 3;
	if (wait_ms < 0)
		wait_ms = random_below(most_ms) + 1;
	if (wait_ms > PAUSE_MAX_MS)
		wait_ms = PAUSE_MAX_MS;
	auth->pause = loop_add_timer(auth->loop, clock_ms() + wait_ms, ask_again, auth);
	return true;
}

static int take_token(struct auth *auth, const struct http_answer *answer, struct err *err)
{
	AUTO_SECRET char *token = NULL, *refresh = NULL;
	AUTO_ERR struct err fault = {0};
	int64_t life_ms;

	if (auth_token_parse(
		    answer->body.data, answer->body.len, &token, &refresh, &life_ms, &fault) < 0) {
		err_prefix(&fault, "registry %s", auth->host);
		return auth_fail(auth, &fault, err);
	}
	if (refresh && auth->login.identity_token) {
		secret_free(auth->login.identity_token);
		auth->login.identity_token = TAKE(refresh);
	}
	auth->is_token = true;
	auth->for_scopes = auth->asked_version;
	int64_t ahead_ms = life_ms / 10 < AHEAD_MS ? life_ms / 10 : AHEAD_MS;
	return auth_got(
		auth, mem_printf("Bearer %s", token), auth->asked_ms + life_ms - ahead_ms, err);
}

static bool is_login_refused(const struct auth *auth, int status)
{
	return status == 401 || (status == 400 && auth->asked_by_form);
}

/* Turn a status that is not a success into an error. */
static int judge_status(const struct auth *auth, const struct http_answer *answer, struct err *err)
{
	AUTO_FREE char *server = url_authority(&answer->url);
	int status = answer->status;

	if (is_login_refused(auth, status))
		return auth_no_login(auth, err);
	if (status == 403)
		return auth_denied(auth, err);
	if (is_busy_status(status))
		return err_set(err, E_REGISTRY_UNREACHABLE,
			"registry %s: its token server %s answers %d, also when asked again",
			auth->host, server, status);
	if (status >= 300 && status < 400)
		return err_set(err, E_REGISTRY_ANSWER,
			"registry %s: its token server %s sends the login elsewhere (%d)",
			auth->host, server, status);
	return err_set(err, E_REGISTRY_ANSWER, "registry %s: its token server %s answers %d",
		auth->host, server, status);
}

static int fail_answer(struct auth *auth, struct http_answer *answer, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	if (answer->status == 0) {
		err_move(&fault, &answer->fault);
		if (fault.id != E_IO) /* there is no libcurl */
			err_prefix(&fault, "registry %s: asking its token server", auth->host);
	} else {
		AUTO_FREE char *shown = url_shown(&answer->url);
		judge_status(auth, answer, &fault);
		err_evidence(&fault, "%s answered %d", shown, answer->status);
	}
	if (is_login_refused(auth, answer->status) && credential_is_there(&auth->login))
		auth_no_login(auth, &auth->refused);
	return auth_fail(auth, &fault, err);
}

/* Some give no token at all where one of its scopes is not allowed. */
static bool drop_scopes(struct auth *auth, int status)
{
	if (!auth->may_drop_scopes || auth->scopes.n < 2 ||
		!(status == 403 || is_login_refused(auth, status)))
		return false;
	auth->scopes_max = 1;
	while (auth->scopes.n > 1)
		free(auth->scopes.v[--auth->scopes.n]);
	return true;
}

static int judge_answer(struct auth *auth, struct http_answer *answer, struct err *err)
{
	bool is_unknown = answer->status == 404 || answer->status == 405;

	if (answer->status >= 200 && answer->status < 300)
		return take_token(auth, answer, err);
	if (auth->asked_by_form && is_unknown) {
		auth->has_no_form = true;
		return ask_or_fail(auth, err);
	}
	if (drop_scopes(auth, answer->status))
		return ask_or_fail(auth, err);
	return try_again(auth, answer) ? 0 : fail_answer(auth, answer, err);
}

/* auth may be gone when this returns, and so may the answer's client. */
static int token_done(void *ctx, struct http_answer *answer, struct err *err)
{
	struct auth *auth = ctx;

	auth->call = NULL;
	secret_buf_done(&auth->form);
	return judge_answer(auth, answer, err);
}

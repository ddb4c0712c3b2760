/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/auth.h"

static bool is_visible(const char *text)
{
	for (; *text; text++)
		if (*text <= ' ' || *text >= 0x7f)
			return false;
	return true;
}

static void check_token(const char *text, size_t len)
{
	AUTO_FREE char *token = NULL, *refresh = NULL;
	AUTO_ERR struct err err = {0};
	int64_t life_ms = -1;

	int r = auth_token_parse(text, len, &token, &refresh, &life_ms, &err);
	assert(err_is_set(&err) == (r < 0));
	if (r < 0) {
		assert(!token && !refresh && life_ms == -1 && err.id == E_REGISTRY_RESPONSE);
		return;
	}
	assert(*token && is_visible(token) && len <= AUTH_TOKEN_BODY_MAX);
	assert(!refresh || *refresh);
	assert(life_ms >= 1000 && life_ms <= 24LL * 60 * 60 * 1000);
}

/* What was merged is covered, and only that much is kept. */
static void check_scopes(struct strv *scopes, const char *text)
{
	AUTO_STRV struct strv again = {0};

	auth_scope_merge(scopes, AUTH_SCOPES_MAX, text);
	assert(scopes->n <= AUTH_SCOPES_MAX);
	for (size_t i = 0; i < scopes->n; i++) {
		assert(is_visible(scopes->v[i]) && strlen(scopes->v[i]) <= AUTH_SCOPE_LEN_MAX);
		assert(auth_scope_covers(scopes, scopes->v[i]));
	}
	strv_copy(&again, scopes);
	assert(!auth_scope_merge(&again, AUTH_SCOPES_MAX, text) || scopes->n == AUTH_SCOPES_MAX);
}

/* The URL that is asked is one, with the realm's origin. */
static void check_url(const struct challenge *challenge, const struct strv *scopes)
{
	AUTO_URL struct url url = {0}, realm = {0}, again = {0};
	AUTO_ERR struct err err = {0};

	int r = auth_token_url(challenge, scopes, &url, &err);
	assert(err_is_set(&err) == (r < 0));
	if (r < 0) {
		assert(err.id == E_REGISTRY_RESPONSE && !url.host);
		return;
	}
	assert(url_parse(challenge_param(challenge, "realm"), "it", &realm, NULL) == 0);
	assert(url_same_origin(&url, &realm) && url.path[0] == '/' && is_visible(url.path));
	assert(strlen(url.path) <= URL_MAX && str_ends(url.path, "client_id=dlrun"));
	AUTO_FREE char *text = url_text(&url);
	if (strlen(text) <= URL_MAX)
		assert(url_parse(text, "it", &again, NULL) == 0 && str_eq(again.path, url.path));
}

/* Nothing in a field of the form ends it. */
static void check_form(const struct challenge *challenge, const struct strv *scopes, char *secret)
{
	const struct credential login = {.identity_token = secret};
	AUTO_BUF struct buf out = {0};
	size_t n = 0;

	buf_init(&out, 1 << 24);
	auth_token_form(challenge, scopes, &login, &out);
	assert(!out.full && is_visible(out.data));
	for (const char *at = out.data; *at; at++)
		n += *at == '&';
	assert(n == 3 + (scopes->n > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO_CHALLENGES struct challenge_list challenges = {0};
	AUTO_STRV struct strv headers = {0}, scopes = {0};

	check_token((const char *)data, size);
	strv_addf(&headers, "www-authenticate: %s", text);
	challenges_parse(&headers, &challenges);
	check_scopes(&scopes, text);
	for (size_t i = 0; i < challenges.n; i++) {
		const char *scope = challenge_param(&challenges.v[i], "scope");

		if (scope)
			check_scopes(&scopes, scope);
		check_url(&challenges.v[i], &scopes);
		check_form(&challenges.v[i], &scopes, text);
	}
	return 0;
}

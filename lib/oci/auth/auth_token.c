/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to a token server, and its responses. */

#include <string.h>

#include "base/data/json.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/url.h"
#include "oci/auth/auth.h"
#include "oci/auth/credential_secret.h"

static const char client_id[] = "dlrun";

enum {
	TOKEN_LIFE_MS = 60 * 1000, /* token.md: without expires_in */
	TOKEN_LIFE_MAX_S = 24 * 60 * 60,
};

static void add_param(struct url *url, const char *key, const char *value)
{
	char *path = url_add_param(url->path, key, value);

	free(url->path);
	url->path = path;
}

int auth_token_url(const struct challenge *challenge, const struct strv *scopes, struct url *ret,
	struct err *err)
{
	const char *realm = challenge_param(challenge, "realm");
	const char *service = challenge_param(challenge, "service");
	AUTO_ERR struct err why = {0};
	AUTO_URL struct url url = {0};

	if (str_empty(realm))
		return err_set(err, E_REGISTRY_ANSWER,
			"the registry does not say where its tokens come from");
	if (url_parse(realm, "the realm", &url, &why) < 0)
		return err_set(err, E_REGISTRY_ANSWER, "the registry names no token server: %s",
			why.message);
	if (service)
		add_param(&url, "service", service);
	for (size_t i = 0; i < scopes->n; i++)
		add_param(&url, "scope", scopes->v[i]);
	add_param(&url, "client_id", client_id);
	if (strlen(url.path) > URL_MAX)
		return err_set(err, E_REGISTRY_ANSWER, "the URL of the token server is too long");
	*ret = url;
	url = (struct url){0};
	return 0;
}

/*
 * OAuth2
 */

static bool is_unreserved(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c) || c == '-' ||
	       c == '.' || c == '_' || c == '~';
}

/* Not by url_add_param, which would leave copies of the secret behind. */
static void add_escaped(struct buf *out, const char *text)
{
	for (; *text; text++) {
		if (is_unreserved(*text))
			buf_addc(out, *text);
		else
			buf_addf(out, "%%%02X", (unsigned char)*text);
	}
}

static void add_field(struct buf *out, const char *key, const char *value)
{
	buf_addf(out, "&%s=", key);
	add_escaped(out, value);
}

void auth_token_form(const struct challenge *challenge, const struct strv *scopes,
	const struct credential *credential, struct buf *out)
{
	const char *service = challenge_param(challenge, "service");

	buf_adds(out, "grant_type=refresh_token");
	add_field(out, "service", service ? service : "");
	add_field(out, "client_id", client_id);
	for (size_t i = 0; i < scopes->n; i++) {
		buf_adds(out, i == 0 ? "&scope=" : "%20");
		add_escaped(out, scopes->v[i]);
	}
	add_field(out, "refresh_token", credential->identity_token);
}

/*
 * Answers
 */

/* Whether text is valid in a field's value behind "Bearer " (RFC 6750 section 2.1, somewhat
 * relaxed). */
static bool is_token(const char *text)
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
			err, E_REGISTRY_ANSWER, "the token server's answer is not valid JSON");
	const char *token = json_get_str(root, "token");
	if (str_empty(token))
		token = json_get_str(root, "access_token");
	if (!is_token(token))
		return err_set(err, E_REGISTRY_ANSWER, "the token server's answer holds no token");
	const char *refresh = json_get_str(root, "refresh_token");
	int64_t life_s = json_get_int(root, "expires_in", 0);
	if (life_s > TOKEN_LIFE_MAX_S)
		life_s = TOKEN_LIFE_MAX_S;
	*ret_token = mem_strdup(token);
	*ret_refresh = str_empty(refresh) ? NULL : mem_strdup(refresh);
	*ret_life_ms = life_s > 0 ? life_s * 1000 : TOKEN_LIFE_MS;
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <strings.h>

#include "base/data/json.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/credential_secret.h"
#include "oci/auth/credentials.h"

static const char hub_key[] = "https://index.docker.io/v1/";
static const char *const hub_hosts[] = {"index.docker.io", "docker.io", "registry-1.docker.io"};

/*
 * Keys: which registry, and which part of it
 */

static bool is_host(const char *text, size_t len, const char *host)
{
	return strlen(host) == len && strncasecmp(text, host, len) == 0;
}

static bool is_hub(const char *text, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(hub_hosts); i++)
		if (is_host(text, len, hub_hosts[i]))
			return true;
	return false;
}

/* Docker Hub has several names and one login. */
static bool is_same_host(const char *text, size_t len, const char *host)
{
	return is_host(text, len, host) || (is_hub(text, len) && is_hub(host, strlen(host)));
}

static const char *skip_scheme(const char *key)
{
	if (str_starts(key, "https://"))
		return key + strlen("https://");
	return str_starts(key, "http://") ? key + strlen("http://") : key;
}

/* "/v1/" and "/v2/" behind a host are no repositories: docker wrote them once. */
static bool is_api_path(const char *path, size_t len)
{
	return len == 0 || (len == 2 && path[0] == 'v' && (path[1] == '1' || path[1] == '2'));
}

enum { RANK_NONE, RANK_HOST, RANK_EXACT, RANK_PREFIX };

/* How well a key of `auths` names host/repo: more is better, longer prefixes most of all. */
static size_t rank_key(const char *key, const char *host, const char *repo)
{
	const char *at = skip_scheme(key);
	size_t host_len = strcspn(at, "/");

	if (!is_same_host(at, host_len, host))
		return RANK_NONE;
	const char *path = at + host_len + (at[host_len] == '/');
	size_t len = strlen(path);
	while (len > 0 && path[len - 1] == '/')
		len--;
	if (is_api_path(path, len))
		return strcmp(key, host) == 0 ? RANK_EXACT : RANK_HOST;
	if (strncmp(repo, path, len) == 0 && (repo[len] == '/' || !repo[len]))
		return RANK_PREFIX + len;
	return RANK_NONE;
}

/*
 * Entries
 */

static bool has_text(const struct json *entry, const char *key)
{
	return !str_empty(json_get_str(entry, key));
}

static bool has_login(const struct json *entry)
{
	return has_text(entry, "auth") || has_text(entry, "identitytoken") ||
	       has_text(entry, "registrytoken") || has_text(entry, "username");
}

/* docker leaves an empty entry for each login that a helper keeps. */
static const struct json *find_entry(const struct json *auths, const char *host, const char *repo)
{
	const struct json *best = NULL;
	size_t best_rank = RANK_NONE;

	if (!auths || json_kind(auths) != JSON_OBJECT)
		return NULL;
	for (const struct json *entry = json_first(auths); entry; entry = json_next(entry)) {
		size_t rank = rank_key(json_key(entry), host, repo);

		if (rank <= best_rank || json_kind(entry) != JSON_OBJECT || !has_login(entry))
			continue;
		best = entry;
		best_rank = rank;
	}
	return best;
}

static int fail_entry(const char *what, const char *key, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(key);

	return err_set(err, E_DATA, "%s: the login of %s %s", what, shown, why);
}

/* "user:password" in base64; a password may have colons. docker filled it up with NULs once. */
static int read_auth(const char *auth, struct credential *ret, const char **ret_why)
{
	AUTO_SECRET_BUF struct buf plain = {0};

	buf_init(&plain, CREDENTIAL_SECRET_MAX);
	AUTO_SECRET char *joined = mem_alloc(strlen(auth) + 1, 1);
	size_t len = 0;

	/* As `base64` breaks its lines, and docker reads them. */
	for (const char *at = auth; *at; at++)
		if (*at != '\n' && *at != '\r')
			joined[len++] = *at;
	if (!base64_decode(joined, len, &plain)) {
		*ret_why = "is not base64";
		return -1;
	}
	while (plain.len > 0 && plain.data[plain.len - 1] == '\0')
		buf_truncate(&plain, plain.len - 1);
	char *colon = memchr(plain.data, ':', plain.len);
	if (!colon || memchr(plain.data, '\0', plain.len)) {
		*ret_why = "is not USER:PASSWORD in base64";
		return -1;
	}
	ret->user = mem_strndup(plain.data, (size_t)(colon - plain.data));
	ret->password = mem_strdup(colon + 1);
	return 0;
}

static void read_fields(const struct json *entry, struct credential *ret)
{
	const char *password = json_get_str(entry, "password");

	ret->user = mem_strdup(json_get_str(entry, "username"));
	ret->password = mem_strdup(password ? password : "");
}

static char *dup_field(const struct json *entry, const char *key)
{
	return has_text(entry, key) ? mem_strdup(json_get_str(entry, key)) : NULL;
}

static int check_entry(const struct json *entry, const char **ret_why)
{
	static const char *const keys[] = {
		"auth", "identitytoken", "registrytoken", "username", "password"};

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const char *text = json_get_str(entry, keys[i]);

		if (!text || strlen(text) <= CREDENTIAL_SECRET_MAX)
			continue;
		*ret_why = "is longer than dlrun accepts";
		return -1;
	}
	return 0;
}

static int read_entry(
	const struct json *entry, const char *what, struct credential *ret, struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	const char *why = NULL;
	int r = check_entry(entry, &why);

	if (r == 0 && has_text(entry, "auth"))
		r = read_auth(json_get_str(entry, "auth"), &login, &why);
	else if (r == 0 && has_text(entry, "username"))
		read_fields(entry, &login);
	login.identity_token = dup_field(entry, "identitytoken");
	login.registry_token = dup_field(entry, "registrytoken");
	if (r == 0)
		r = credential_check(&login, &why);
	if (r < 0)
		return fail_entry(what, json_key(entry), why, err);
	login.origin = mem_strdup(what);
	*ret = login;
	login = (struct credential){0};
	return 1;
}

int credential_check(const struct credential *login, const char **ret_why)
{
	const char *token = login->registry_token;

	if (login->user && strchr(login->user, ':')) {
		*ret_why = "has a user name with a colon";
		return -1;
	}
	for (; token && *token; token++) {
		if (*token > ' ' && *token < 0x7f)
			continue;
		*ret_why = "has a registrytoken with characters that no token has";
		return -1;
	}
	return 0;
}

/*
 * Helpers
 */

static bool is_helper_name(const char *name)
{
	return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
	       strlen(name);
}

/* The helper of this registry, else that of all; *ret_key is what the logins are called there. */
static const char *find_helper(const struct json *root, const char *host, const char **ret_key)
{
	const struct json *helpers = json_get(root, "credHelpers");

	for (const struct json *helper =
			helpers && json_kind(helpers) == JSON_OBJECT ? json_first(helpers) : NULL;
		helper; helper = json_next(helper)) {
		size_t rank = rank_key(json_key(helper), host, "");

		if (rank == RANK_NONE || rank >= RANK_PREFIX || str_empty(json_str(helper)))
			continue;
		*ret_key = json_key(helper);
		return json_str(helper);
	}
	*ret_key = is_hub(host, strlen(host)) ? hub_key : host;
	return has_text(root, "credsStore") ? json_get_str(root, "credsStore") : NULL;
}

/* ~/.dockercfg has the entries at the top. */
static const struct json *find_auths(const struct json *root)
{
	if (json_get(root, "auths") || json_get(root, "credHelpers") ||
		json_get(root, "credsStore"))
		return json_get(root, "auths");
	return root;
}

int credential_file_find(const char *text, size_t len, const char *what, const char *host,
	const char *repo, struct credential *ret, char **ret_helper, char **ret_key,
	struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	AUTO_SECRET_JSON struct json *root = NULL;
	const char *key;

	int r = json_parse(text, len, CREDENTIAL_FILE_MAX, what, &root, err);
	if (r < 0)
		return r;
	if (json_kind(root) != JSON_OBJECT)
		return err_set(err, E_DATA, "%s is not a JSON object", what);
	const char *helper = find_helper(root, host, &key);
	if (helper && !is_helper_name(helper)) {
		AUTO_FREE char *shown = str_shown(helper);
		return err_set(err, E_DATA, "%s: \"%s\" is not a valid credential helper name",
			what, shown);
	}
	const struct json *entry = find_entry(find_auths(root), host, repo);
	r = entry ? read_entry(entry, what, &login, err) : 0;
	if (r < 0)
		return r;
	*ret = login;
	login = (struct credential){0};
	*ret_helper = mem_strdup(helper);
	*ret_key = helper ? mem_strdup(key) : NULL;
	return helper ? 1 : r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig_impl.h"

/* Whether s may stand in a header. */
static bool is_header_text(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			return false;
	return true;
}

static int check_secrets(
	const struct kubeconfig_where *user, const struct kube_access *access, struct err *err)
{
	if (access->token && strlen(access->token) > KUBECONFIG_TOKEN_MAX)
		return kubeconfig_bad(
			user, err, "its token is larger than %d bytes", KUBECONFIG_TOKEN_MAX);
	if (access->token && !is_header_text(access->token))
		return kubeconfig_bad(user, err, "its token has line breaks or control characters");
	if (access->username && strchr(access->username, ':'))
		return kubeconfig_bad(user, err, "its username has a colon");
	if (access->token && (access->username || access->password))
		return kubeconfig_bad(user, err,
			"it has both a token and a username, of which only one can be used");
	return 0;
}

/*
 * Client certificates
 */

static int take_certificate(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	int r = kubeconfig_pem(user, "client-certificate", &access->cert_pem, err);

	if (r < 0 || !access->cert_pem)
		return r;
	r = kubeconfig_pem(user, "client-key", &access->key_pem, err);
	if (r == 0 && !access->key_pem)
		return kubeconfig_bad(user, err, "it has a client-certificate and no client-key");
	return r;
}

/*
 * Impersonation
 */

static int take_group(
	const struct kubeconfig_where *user, const char *group, struct strv *ret, struct err *err)
{
	if (!group || !is_header_text(group))
		return kubeconfig_bad(user, err, "as-groups must be a list of texts");
	strv_add(ret, group);
	return 0;
}

static int take_groups(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	const struct json *groups = json_get(user->entry->body, "as-groups");

	for (const struct json *group = json_first(groups); group; group = json_next(group)) {
		int r = take_group(user, json_str(group), &access->as_groups, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int take_extra(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	const struct json *extra = json_get(user->entry->body, "as-user-extra");

	for (const struct json *values = json_first(extra); values; values = json_next(values)) {
		const char *key = json_key(values);

		for (const struct json *v = json_first(values); v; v = json_next(v)) {
			const char *text = json_str(v);
			if (str_empty(key) || strchr(key, '=') || !text || !is_header_text(text) ||
				!str_is_plain(key))
				return kubeconfig_bad(user, err,
					"as-user-extra must be lists of texts by their names");
			strv_addf(&access->as_extra, "%s=%s", key, text);
		}
	}
	return 0;
}

static int take_impersonation(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	int r = kubeconfig_text(user, "as", &access->as, err);

	if (r == 0)
		r = kubeconfig_text(user, "as-uid", &access->as_uid, err);
	if (r == 0)
		r = take_groups(user, access, err);
	if (r == 0)
		r = take_extra(user, access, err);
	if (r < 0)
		return r;
	if (!access->as && (access->as_uid || access->as_groups.n > 0 || access->as_extra.n > 0))
		return kubeconfig_bad(user, err, "as-uid, as-groups or as-user-extra without as");
	if ((access->as && !is_header_text(access->as)) ||
		(access->as_uid && !is_header_text(access->as_uid)))
		return kubeconfig_bad(user, err, "as or as-uid has control characters");
	return 0;
}

/*
 * Old ways
 */

/* Replacements for auth providers (client-go dropped them in 1.26). */
static const struct {
	const char *name, *hint;
} providers[] = {
	{"gcp", "gcloud components install gke-gcloud-auth-plugin, then "
		"gcloud container clusters get-credentials CLUSTER"},
	{"azure", "kubelogin convert-kubeconfig"},
	{"oidc", "kubectl krew install oidc-login, then kubectl oidc-login setup"},
};

static int refuse_provider(
	const struct kubeconfig_where *user, const struct json *provider, struct err *err)
{
	const char *name = json_get_str(provider, "name");
	AUTO_FREE char *shown = str_shown(name ? name : "");

	kubeconfig_bad(
		user, err, "auth-provider \"%s\" is not supported any more, exec: is", shown);
	for (size_t i = 0; i < ARRAY_LEN(providers); i++)
		if (str_eq(providers[i].name, name))
			return err_hint(err, "%s", providers[i].hint);
	return err_hint(err, "ask whoever runs the cluster for a kubeconfig with exec:");
}

static int take_texts(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	const struct {
		const char *key;
		char **to;
	} texts[] = {
		{"token", &access->token},
		{"username", &access->username},
		{"password", &access->password},
	};
	AUTO_FREE char *token_file = NULL;
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(texts); i++)
		r = kubeconfig_text(user, texts[i].key, texts[i].to, err);
	if (r == 0)
		r = kubeconfig_text(user, "tokenFile", &token_file, err);
	if (token_file)
		access->token_file = kubeconfig_path(user->entry->file, token_file);
	return r == 0 ? check_secrets(user, access, err) : r;
}

int kubeconfig_take_user(
	const struct kubeconfig_entry *entry, struct kube_access *access, struct err *err)
{
	const struct kubeconfig_where user = {"user", entry};
	const struct json *provider = json_get(entry->body, "auth-provider");
	const struct json *exec = json_get(entry->body, "exec");

	if (provider && json_kind(provider) != JSON_NULL)
		return refuse_provider(&user, provider, err);
	int r = take_texts(&user, access, err);
	if (r == 0)
		r = take_certificate(&user, access, err);
	if (r == 0)
		r = take_impersonation(&user, access, err);
	if (r == 0 && exec && json_kind(exec) != JSON_NULL)
		r = kubeconfig_take_exec(&user, exec, access, err);
	return r;
}

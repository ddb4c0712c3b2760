/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/kubeconfig.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/data/yaml.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "kube/api/client.h"
#include "net/http/proxy.h"

enum { KUBECONFIG_FILES_MAX = 64, KUBECONFIG_PEM_MAX = 1 << 20, KUBECONFIG_TOKEN_MAX = 64 << 10 };

/* A member of contexts, clusters or users; the first file that has the name gave it. */
struct kubeconfig_entry {
	char *name;
	char *file;
	struct json *body; /* an object */
};
struct kubeconfig_entries VEC_OF(struct kubeconfig_entry);

struct kubeconfig {
	struct kubeconfig_entries contexts, clusters, users;
	struct strv files; /* that were there */
	char *current;
	/* In a pod, when no file names a context: */
	char *service_host, *service_port, *service_account_dir;
};

/* Adds what a file says behind what earlier ones said. E_KUBE_CONFIG. An engine. */
int kubeconfig_add(
	struct kubeconfig *config, const char *text, size_t len, const char *file, struct err *err);

/* The place of a value, for messages. */
struct kubeconfig_where {
	const char *kind; /* "user", "cluster", "context" */
	const struct kubeconfig_entry *entry;
};

/*
 * Values
 */

/* E_KUBE_CONFIG: 'FILE: user "NAME": …' */
ERR_PRINTF(3, 4)
static int kubeconfig_bad(
	const struct kubeconfig_where *where, struct err *err, const char *fmt, ...)
{
	AUTO_FREE char *shown = str_shown(where->entry->name);
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *why = mem_vprintf(fmt, args);
	va_end(args);
	return err_set(err, E_KUBE_CONFIG, "%s: %s \"%s\": %s", where->entry->file, where->kind,
		shown, why);
}

static const struct json *value_at(const struct kubeconfig_where *where, const char *key)
{
	const struct json *value = json_get(where->entry->body, key);

	return value && json_kind(value) != JSON_NULL ? value : NULL;
}

/* *ret: a copy of the text at key, NULL if there is none or it is empty. */
static int kubeconfig_text(
	const struct kubeconfig_where *where, const char *key, char **ret, struct err *err)
{
	const struct json *value = value_at(where, key);

	if (value && !json_str(value))
		return kubeconfig_bad(where, err, "%s must be text; put it in quotes", key);
	if (value && *json_str(value))
		*ret = mem_strdup(json_str(value));
	return 0;
}

/* path as it is to be opened: seen from the directory of file. */
static char *kubeconfig_path(const char *file, const char *path)
{
	const char *slash = strrchr(file, '/');
	AUTO_FREE char *dir = mem_strndup(file, slash ? (size_t)(slash - file) + 1 : 0);

	return *path == '/' ? mem_strdup(path) : mem_printf("%s%s", dir, path);
}

/* Line breaks may stand anywhere in it. */
static bool kubeconfig_decode(const char *text, struct buf *out)
{
	size_t len = 0;
	AUTO_FREE char *packed = mem_strdup(text);

	for (const char *at = text; *at; at++)
		if (!strchr(" \t\r\n", *at))
			packed[len++] = *at;
	return base64_decode(packed, len, out);
}

/* PEM text: base64 at KEY-data, or else the file at KEY. */
static int kubeconfig_pem(
	const struct kubeconfig_where *where, const char *key, char **ret, struct err *err)
{
	AUTO_FREE char *data_key = mem_printf("%s-data", key);
	AUTO_FREE char *data = NULL, *name = NULL, *what = NULL;
	AUTO_BUF struct buf pem = {0};
	AUTO_ERR struct err error = {0};

	int r = kubeconfig_text(where, data_key, &data, err);
	if (r == 0)
		r = kubeconfig_text(where, key, &name, err);
	if (r < 0 || (!data && !name))
		return r;
	if (data) {
		buf_init(&pem, KUBECONFIG_PEM_MAX);
		what = mem_strdup(data_key);
		if (!kubeconfig_decode(data, &pem))
			return kubeconfig_bad(where, err, "%s is not valid base64", data_key);
	} else {
		AUTO_FREE char *path = kubeconfig_path(where->entry->file, name);
		what = mem_printf("%s: %s", key, path);
		if (fs_read(path, KUBECONFIG_PEM_MAX, &pem, NULL, &error) < 0)
			return kubeconfig_bad(where, err, "%s: %s", key, error.message);
	}
	if (pem.full)
		return kubeconfig_bad(
			where, err, "%s is larger than %d bytes", what, KUBECONFIG_PEM_MAX);
	if (strlen(pem.data) != pem.len || !strstr(pem.data, "-----BEGIN "))
		return kubeconfig_bad(where, err, "%s is not in PEM form", what);
	*ret = buf_take(&pem);
	return 0;
}

/*
 * Plugins that log in
 */

enum { EXEC_WORDS_MAX = 1000 };

static const char exec_group[] = "client.authentication.k8s.io/";

/* A member of exec that is text, or NULL. */
static int kubeconfig_text_of(const struct kubeconfig_where *user, const struct json *exec,
	const char *key, const char **ret, struct err *err)
{
	const struct json *value = json_get(exec, key);

	if (value && json_kind(value) != JSON_NULL && !json_str(value))
		return kubeconfig_bad(user, err, "exec: %s must be text; put it in quotes", key);
	*ret = value ? json_str(value) : NULL;
	return 0;
}

static int take_args(const struct kubeconfig_where *user, const struct json *args,
	struct kube_exec *exec, struct err *err)
{
	if (json_count(args) > EXEC_WORDS_MAX)
		return kubeconfig_bad(user, err, "exec: more than %d args", EXEC_WORDS_MAX);
	json_foreach (arg, args) {
		if (!json_str(arg))
			return kubeconfig_bad(user, err,
				"exec: args must be a list of texts; put them in quotes");
		strv_add(&exec->args, json_str(arg));
	}
	return 0;
}

static int take_env(const struct kubeconfig_where *user, const struct json *env,
	struct kube_exec *exec, struct err *err)
{
	if (json_count(env) > EXEC_WORDS_MAX)
		return kubeconfig_bad(user, err, "exec: more than %d env", EXEC_WORDS_MAX);
	json_foreach (item, env) {
		const char *name = json_get_str(item, "name");
		const char *value = json_get_str(item, "value");

		if (str_empty(name) || strchr(name, '=') || (json_get(item, "value") && !value))
			return kubeconfig_bad(user, err,
				"exec: env must be a list of name and value, both in quotes");
		AUTO_FREE char *pair = mem_printf("%s=%s", name, value ? value : "");
		env_set(&exec->env, pair, false);
	}
	return 0;
}

static int kubeconfig_take_version(const struct kubeconfig_where *user, const struct json *from,
	struct kube_exec *exec, struct err *err)
{
	const char *version = NULL;
	int r = kubeconfig_text_of(user, from, "apiVersion", &version, err);

	if (r < 0)
		return r;
	if (str_empty(version))
		return kubeconfig_bad(user, err, "exec: apiVersion is missing");
	exec->api_version = mem_strdup(version);
	if (str_starts(version, exec_group) &&
		(str_eq(version + strlen(exec_group), "v1") ||
			str_eq(version + strlen(exec_group), "v1beta1")))
		return 0;
	AUTO_FREE char *shown = str_shown(version);
	kubeconfig_bad(user, err, "exec: apiVersion %s is not supported", shown);
	return err_hint(err, "change it to %sv1beta1 in %s and update %s", exec_group,
		user->entry->file, exec->command);
}

/* v1 has no default for it (client-go, validateAuthInfo). */
static int take_mode(const struct kubeconfig_where *user, const struct json *from,
	struct kube_exec *exec, struct err *err)
{
	static const char *const modes[] = {
		[KUBE_EXEC_NEVER] = "Never",
		[KUBE_EXEC_IF_AVAILABLE] = "IfAvailable",
		[KUBE_EXEC_ALWAYS] = "Always",
	};
	const char *mode = NULL;
	int r = kubeconfig_text_of(user, from, "interactiveMode", &mode, err);

	if (r < 0)
		return r;
	if (str_empty(mode) && str_ends(exec->api_version, "/v1beta1"))
		mode = modes[KUBE_EXEC_IF_AVAILABLE];
	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		if (str_eq(mode, modes[i])) {
			exec->interactive = (enum kube_interactive)i;
			return 0;
		}
	}
	kubeconfig_bad(user, err,
		str_empty(mode) ? "exec: interactiveMode is missing"
				: "exec: interactiveMode is none of Never, IfAvailable, Always");
	return err_hint(
		err, "write interactiveMode: IfAvailable below exec: in %s", user->entry->file);
}

static int take_command(const struct kubeconfig_where *user, const struct json *from,
	struct kube_exec *exec, struct err *err)
{
	const char *command = NULL, *hint = NULL;
	int r = kubeconfig_text_of(user, from, "command", &command, err);

	if (r == 0)
		r = kubeconfig_text_of(user, from, "installHint", &hint, err);
	if (r < 0)
		return r;
	if (str_empty(command))
		return kubeconfig_bad(user, err, "exec: command is missing");
	exec->command = strchr(command, '/') ? kubeconfig_path(user->entry->file, command)
					     : mem_strdup(command);
	exec->install_hint = str_empty(hint) ? NULL : mem_strdup(hint);
	exec->file = mem_strdup(user->entry->file);
	return 0;
}

static int kubeconfig_take_exec(const struct kubeconfig_where *user, const struct json *from,
	struct kube_access *access, struct err *err)
{
	if (json_kind(from) != JSON_OBJECT)
		return kubeconfig_bad(user, err, "exec must be a map");
	struct kube_exec *exec = access->exec = mem_alloc(1, sizeof(*exec));
	int r = take_command(user, from, exec, err);
	if (r == 0)
		r = take_args(user, json_get(from, "args"), exec, err);
	if (r == 0)
		r = take_env(user, json_get(from, "env"), exec, err);
	if (r == 0)
		r = kubeconfig_take_version(user, from, exec, err);
	if (r == 0)
		r = take_mode(user, from, exec, err);
	exec->provide_cluster_info = json_get_bool(from, "provideClusterInfo", false);
	return r;
}

/*
 * Users
 */

/* Whether s may stand in a header. */
static bool kubeconfig_is_header_text(const char *s)
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
	if (access->token && !kubeconfig_is_header_text(access->token))
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

static int take_groups(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	json_foreach (group, json_get(user->entry->body, "as-groups")) {
		if (!json_str(group) || !kubeconfig_is_header_text(json_str(group)))
			return kubeconfig_bad(user, err, "as-groups must be a list of texts");
		strv_add(&access->as_groups, json_str(group));
	}
	return 0;
}

static int take_extra(
	const struct kubeconfig_where *user, struct kube_access *access, struct err *err)
{
	const struct json *extra = json_get(user->entry->body, "as-user-extra");

	json_foreach (values, extra) {
		const char *key = json_key(values);

		json_foreach (v, values) {
			const char *text = json_str(v);
			if (str_empty(key) || strchr(key, '=') || !text ||
				!kubeconfig_is_header_text(text) || !str_is_plain(key))
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
	if ((access->as && !kubeconfig_is_header_text(access->as)) ||
		(access->as_uid && !kubeconfig_is_header_text(access->as_uid)))
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

/* The user's part of access. */
static int kubeconfig_take_user(
	const struct kubeconfig_entry *entry, struct kube_access *access, struct err *err)
{
	const struct kubeconfig_where user = {"user", entry};
	const struct json *provider = value_at(&user, "auth-provider");
	const struct json *exec = value_at(&user, "exec");

	if (provider) {
		const char *name = json_get_str(provider, "name");
		AUTO_FREE char *shown = str_shown(name ? name : "");

		kubeconfig_bad(&user, err,
			"auth-provider \"%s\" is not supported any more, exec: is", shown);
		for (size_t i = 0; i < ARRAY_LEN(providers); i++)
			if (str_eq(providers[i].name, name))
				return err_hint(err, "%s", providers[i].hint);
		return err_hint(err, "ask whoever runs the cluster for a kubeconfig with exec:");
	}
	int r = take_texts(&user, access, err);
	if (r == 0)
		r = take_certificate(&user, access, err);
	if (r == 0)
		r = take_impersonation(&user, access, err);
	if (r == 0 && exec)
		r = kubeconfig_take_exec(&user, exec, access, err);
	return r;
}

/*
 * Single files
 */

/* Errors of other modules, which name the file, become ours. */
static int as_ours(struct err *error, struct err *err)
{
	err_set(err, E_KUBE_CONFIG, "%s", error->message ? error->message : "not readable");
	if (error->hint)
		err_hint(err, "%s", error->hint);
	return -ERR_CONFIG;
}

static int parse_yaml(
	const char *text, size_t len, const char *file, struct json **ret, struct err *err)
{
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_ERR struct err error = {0};

	if (yaml_parse(text, len, file, &yaml, &error) < 0)
		return as_ours(&error, err);
	*ret = yaml_to_json(yaml);
	return 0;
}

static int kubeconfig_parse(
	const char *text, size_t len, const char *file, struct json **ret, struct err *err)
{
	AUTO_ERR struct err error = {0};
	size_t blanks = 0;

	while (blanks < len && strchr(" \t\r\n", text[blanks]) && text[blanks])
		blanks++;
	if (blanks == len || text[blanks] != '{')
		return parse_yaml(text, len, file, ret, err);
	if (json_parse(text, len, YAML_SIZE_MAX, file, ret, &error) == 0)
		return 0;
	/* {a: b} is YAML only. */
	if (parse_yaml(text, len, file, ret, NULL) == 0)
		return 0;
	return as_ours(&error, err);
}

static bool kubeconfig_is_missing(const struct json *value)
{
	return !value || json_kind(value) == JSON_NULL;
}

static int expect(const struct json *root, const char *key, const char *wanted, const char *file,
	struct err *err)
{
	const struct json *value = json_get(root, key);

	if (kubeconfig_is_missing(value) || str_eq(json_str(value), wanted) ||
		str_eq(json_str(value), ""))
		return 0;
	AUTO_FREE char *shown = str_shown(json_str(value) ? json_str(value) : "no text");
	return err_set(err, E_KUBE_CONFIG, "%s: no kubeconfig: its %s is %s, not %s", file, key,
		shown, wanted);
}

/* NULL if there is none. */
static const struct kubeconfig_entry *kubeconfig_find(
	const struct kubeconfig_entries *entries, const char *name)
{
	vec_foreach (struct kubeconfig_entry, entry, entries)
		if (str_eq(entry->name, name))
			return entry;
	return NULL;
}

/* The destination of the members of a list. */
struct section {
	struct kubeconfig_entries *entries;
	size_t n_before; /* what earlier files gave */
	const char *key, *member, *file;
};

static int kubeconfig_fail_entry(
	const struct section *section, const char *name, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);

	return err_set(err, E_KUBE_CONFIG, "%s: %s \"%s\": %s", section->file, section->member,
		shown, why);
}

static int kubeconfig_add_entry(
	const struct section *section, const struct json *item, struct err *err)
{
	const char *name = json_get_str(item, "name");
	const struct json *body = json_get(item, section->member);

	if (!name)
		return err_set(err, E_KUBE_CONFIG, "%s: a member of %s has no name", section->file,
			section->key);
	if (!kubeconfig_is_missing(body) && json_kind(body) != JSON_OBJECT)
		return kubeconfig_fail_entry(section, name, "it must be a map", err);
	const struct kubeconfig_entry *first = kubeconfig_find(section->entries, name);
	if (first && first >= section->entries->v + section->n_before)
		return kubeconfig_fail_entry(section, name, "it is there twice", err);
	if (first)
		return 0;
	*vec_push(section->entries) = (struct kubeconfig_entry){
		.name = mem_strdup(name),
		.file = mem_strdup(section->file),
		.body = kubeconfig_is_missing(body) ? json_object() : json_clone(body),
	};
	return 0;
}

static int add_section(const struct section *section, const struct json *list, struct err *err)
{
	if (kubeconfig_is_missing(list))
		return 0;
	if (json_kind(list) != JSON_ARRAY)
		return err_set(
			err, E_KUBE_CONFIG, "%s: %s must be a list", section->file, section->key);
	json_foreach (item, list) {
		int r = kubeconfig_add_entry(section, item, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_current(
	struct kubeconfig *config, const struct json *root, const char *file, struct err *err)
{
	const struct json *current = json_get(root, "current-context");

	if (kubeconfig_is_missing(current))
		return 0;
	if (!json_str(current))
		return err_set(err, E_KUBE_CONFIG, "%s: current-context must be text", file);
	if (!config->current && *json_str(current))
		config->current = mem_strdup(json_str(current));
	return 0;
}

int kubeconfig_add(
	struct kubeconfig *config, const char *text, size_t len, const char *file, struct err *err)
{
	const struct section sections[] = {
		{&config->contexts, config->contexts.n, "contexts", "context", file},
		{&config->clusters, config->clusters.n, "clusters", "cluster", file},
		{&config->users, config->users.n, "users", "user", file},
	};
	AUTO_JSON struct json *root = NULL;

	strv_add(&config->files, file);
	int r = kubeconfig_parse(text, len, file, &root, err);
	if (r < 0)
		return r;
	if (json_kind(root) != JSON_OBJECT)
		return err_set(err, E_KUBE_CONFIG, "%s: no kubeconfig: it must be a map", file);
	r = expect(root, "kind", "Config", file, err);
	if (r == 0)
		r = expect(root, "apiVersion", "v1", file, err);
	if (r == 0)
		r = add_current(config, root, file, err);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(sections); i++)
		r = add_section(&sections[i], json_get(root, sections[i].key), err);
	return r;
}

/*
 * The list of files
 */

static int kubeconfig_read_file(struct kubeconfig *config, const char *file, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err error = {0};
	bool missing = false;

	if (fs_read(file, YAML_SIZE_MAX, &text, &missing, &error) < 0)
		return missing ? 0 : as_ours(&error, err);
	return kubeconfig_add(config, text.data, text.len, file, err);
}

static int kubeconfig_read_list(
	struct kubeconfig *config, const struct kubeconfig_env *env, struct err *err)
{
	AUTO_STRV struct strv seen = {0};

	for (const char *at = env->kubeconfig; *at;) {
		size_t len = strcspn(at, ":");
		AUTO_FREE char *name = mem_strndup(at, len);
		AUTO_FREE char *file = fs_join(env->cwd, name);

		at += len + (at[len] == ':');
		if (!*name || strv_find(&seen, file) >= 0)
			continue;
		if (seen.n == KUBECONFIG_FILES_MAX)
			return err_set(err, E_KUBE_CONFIG, "KUBECONFIG names more than %d files",
				KUBECONFIG_FILES_MAX);
		strv_add(&seen, file);
		int r = kubeconfig_read_file(config, file, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool kubeconfig_is_below(const char *path, const char *dir)
{
	AUTO_FREE char *real_path = NULL, *real_dir = NULL;

	if (fs_realpath(path, &real_path, NULL) == 0)
		path = real_path;
	if (fs_realpath(dir, &real_dir, NULL) == 0)
		dir = real_dir;
	size_t len = strlen(dir);
	while (len > 0 && dir[len - 1] == '/')
		len--;
	return strncmp(path, dir, len) == 0 && path[len] == '/';
}

/* ~/.kube/config, unless it comes with the code. *ret_excluded: it does. */
static int read_home(struct kubeconfig *config, const struct kubeconfig_env *env,
	char **ret_excluded, struct err *err)
{
	if (str_empty(env->home))
		return 0;
	AUTO_FREE char *file = mem_printf("%s/.kube/config", env->home);
	if (!env->tree || !kubeconfig_is_below(file, env->tree))
		return kubeconfig_read_file(config, file, err);
	if (access(file, F_OK) == 0)
		*ret_excluded = TAKE(file);
	return 0;
}

static void take_pod(struct kubeconfig *config, const struct kubeconfig_env *env)
{
	if (str_empty(env->service_host) || str_empty(env->service_port) ||
		str_empty(env->service_account_dir))
		return;
	AUTO_FREE char *token = mem_printf("%s/token", env->service_account_dir);
	if (access(token, F_OK) < 0)
		return;
	config->service_host = mem_strdup(env->service_host);
	config->service_port = mem_strdup(env->service_port);
	config->service_account_dir = mem_strdup(env->service_account_dir);
}

struct kubeconfig *kubeconfig_new(void)
{
	return mem_alloc(1, sizeof(struct kubeconfig));
}

int kubeconfig_load(const struct kubeconfig_env *env, struct kubeconfig **ret, struct err *err)
{
	AUTO_KUBECONFIG struct kubeconfig *config = kubeconfig_new();
	AUTO_FREE char *excluded = NULL;

	int r = str_empty(env->kubeconfig) ? read_home(config, env, &excluded, err)
					   : kubeconfig_read_list(config, env, err);
	if (r < 0)
		return r;
	if (config->contexts.n == 0)
		take_pod(config, env);
	if (config->contexts.n == 0 && !config->service_host) {
		if (excluded) {
			AUTO_BUF struct buf quoted = buf_with(64 << 10);
			str_shell_quote(&quoted, excluded);
			err_set(err, E_KUBE_NO_CONFIG,
				"%s lies in the tree that is run, so it is not read by itself",
				excluded);
			return err_hint(err, "export KUBECONFIG=%s", quoted.data);
		}
		if (config->files.n > 0)
			return err_set(
				err, E_KUBE_NO_CONFIG, "%s names no context", config->files.v[0]);
		if (!str_empty(env->kubeconfig)) {
			AUTO_FREE char *shown = str_shown(env->kubeconfig);
			err_set(err, E_KUBE_NO_CONFIG, "KUBECONFIG points to a missing file: %s",
				shown);
			return err_hint(err, "unset KUBECONFIG   # then ~/.kube/config counts");
		}
		err_set(err, E_KUBE_NO_CONFIG,
			"there is no ~/.kube/config, and KUBECONFIG is not set");
		return err_hint(err,
			"ask whoever runs the cluster for a kubeconfig, and save it as ~/.kube/config");
	}
	*ret = TAKE(config);
	return 0;
}

static void entries_done(struct kubeconfig_entries *entries)
{
	vec_foreach (struct kubeconfig_entry, entry, entries) {
		free(entry->name);
		free(entry->file);
		json_free(entry->body);
	}
	vec_done(entries);
}

void kubeconfig_free(struct kubeconfig *config)
{
	if (!config)
		return;
	entries_done(&config->contexts);
	entries_done(&config->clusters);
	entries_done(&config->users);
	strv_done(&config->files);
	free(config->current);
	free(config->service_host);
	free(config->service_port);
	free(config->service_account_dir);
	free(config);
}

void kubeconfig_contexts(const struct kubeconfig *config, struct strv *ret)
{
	struct strv names = {0};

	vec_foreach (const struct kubeconfig_entry, entry, &config->contexts)
		strv_add(&names, entry->name);
	if (config->service_host)
		strv_add(&names, KUBECONFIG_IN_CLUSTER);
	*ret = names;
}

const char *kubeconfig_current(const struct kubeconfig *config)
{
	return config->service_host ? KUBECONFIG_IN_CLUSTER : config->current;
}

void kubeconfig_files(const struct kubeconfig *config, struct strv *ret)
{
	vec_foreach (char *, file, &config->files)
		strv_add(ret, *file);
}

void kube_access_done(struct kube_access *access)
{
	if (!access)
		return;
	free(access->context);
	free(access->cluster);
	free(access->user);
	free(access->kube_namespace);
	url_done(&access->server);
	free(access->ca_pem);
	free(access->cert_pem);
	mem_wipe(access->key_pem);
	free(access->server_name);
	mem_wipe(access->proxy);
	mem_wipe(access->token);
	free(access->token_file);
	free(access->username);
	mem_wipe(access->password);
	struct kube_exec *exec = access->exec;
	if (exec) {
		free(exec->command);
		strv_done(&exec->args);
		strv_done(&exec->env);
		free(exec->api_version);
		free(exec->install_hint);
		free(exec->file);
		json_free(exec->cluster_config);
		free(exec);
	}
	free(access->as);
	free(access->as_uid);
	strv_done(&access->as_groups);
	strv_done(&access->as_extra);
	strv_done(&access->warnings);
	*access = (struct kube_access){0};
}

/*
 * Access by a context
 */

/*
 * Clusters
 */

static int take_server(
	const struct kubeconfig_where *cluster, struct kube_access *access, struct err *err)
{
	AUTO_FREE char *server = NULL;
	AUTO_ERR struct err error = {0};
	int r = kubeconfig_text(cluster, "server", &server, err);

	if (r < 0)
		return r;
	if (!server)
		return kubeconfig_bad(cluster, err, "it has no server");
	if (!strstr(server, "://")) {
		AUTO_FREE char *shown = str_shown(server);
		kubeconfig_bad(cluster, err, "server does not begin with https://");
		return err_hint(err, "write server: https://%s", shown);
	}
	if (url_parse(server, "server", &access->server, &error) < 0)
		return kubeconfig_bad(cluster, err, "%s", error.message);
	char *path = access->server.path;
	path[strcspn(path, "?")] = '\0';
	for (size_t len = strlen(path); len > 0 && path[len - 1] == '/'; len--)
		path[len - 1] = '\0';
	return 0;
}

/* Put into the form that http.c takes; Go looks up names at a SOCKS proxy. */
static int take_proxy(
	const struct kubeconfig_where *cluster, struct kube_access *access, struct err *err)
{
	AUTO_FREE char *text = NULL, *proxy = NULL;
	struct url anywhere = {.tls = true, .host = (char[]){"anywhere"}, .port = 443};
	int r = kubeconfig_text(cluster, "proxy-url", &text, err);

	if (r < 0 || !text)
		return r;
	const struct proxy_env env = {.https_proxy = text};
	if (!strstr(text, "://") || proxy_for(&env, &anywhere, &proxy, NULL) < 0 || !proxy)
		return kubeconfig_bad(
			cluster, err, "proxy-url is not http://, https:// or socks5://HOST:PORT");
	access->proxy = str_starts(proxy, "socks5://")
				? mem_printf("socks5h%s", proxy + strlen("socks5"))
				: TAKE(proxy);
	return 0;
}

static int take_tls(
	const struct kubeconfig_where *cluster, struct kube_access *access, struct err *err)
{
	const struct json *insecure = value_at(cluster, "insecure-skip-tls-verify");
	int r = kubeconfig_pem(cluster, "certificate-authority", &access->ca_pem, err);

	if (r == 0)
		r = kubeconfig_text(cluster, "tls-server-name", &access->server_name, err);
	if (r < 0)
		return r;
	if (insecure && json_kind(insecure) != JSON_BOOL)
		return kubeconfig_bad(
			cluster, err, "insecure-skip-tls-verify must be true or false");
	access->tls.insecure =
		json_get_bool(cluster->entry->body, "insecure-skip-tls-verify", false);
	if (access->tls.insecure && access->ca_pem)
		return kubeconfig_bad(cluster, err,
			"certificate-authority and insecure-skip-tls-verify cannot be used together");
	return 0;
}

/* The configuration of the cluster for an exec plugin (ExecCredential, spec.cluster.config). */
static struct json *exec_config(const struct json *cluster)
{
	const struct json *list = json_get(cluster, "extensions");

	json_foreach (item, list)
		if (str_eq(json_get_str(item, "name"), "client.authentication.k8s.io/exec"))
			return json_get(item, "extension") ? json_clone(json_get(item, "extension"))
							   : NULL;
	return NULL;
}

static int take_cluster(
	const struct kubeconfig_entry *entry, struct kube_access *access, struct err *err)
{
	const struct kubeconfig_where cluster = {"cluster", entry};
	int r = take_server(&cluster, access, err);

	if (r == 0)
		r = take_proxy(&cluster, access, err);
	if (r == 0)
		r = take_tls(&cluster, access, err);
	if (r == 0) {
		AUTO_FREE char *shown = url_shown(&access->server);

		if (access->server.tls && access->tls.insecure)
			strv_addf(&access->warnings,
				"the certificate of %s is not checked (insecure-skip-tls-verify): whoever "
				"is in between can read and change everything",
				shown);
		if (!access->server.tls && !url_is_loopback(&access->server))
			strv_addf(&access->warnings,
				"%s is asked without encryption, so no login is sent to it", shown);
	}
	return r;
}

/*
 * Contexts
 */

/* The member of entries that the context names at key; NULL if it names none. */
static int kubeconfig_follow(const struct kubeconfig_where *context, const char *key,
	const struct kubeconfig_entries *entries, const struct kubeconfig_entry **ret,
	struct err *err)
{
	AUTO_FREE char *name = NULL;
	int r = kubeconfig_text(context, key, &name, err);

	if (r < 0 || !name)
		return r;
	*ret = kubeconfig_find(entries, name);
	if (*ret)
		return 0;
	AUTO_FREE char *shown = str_shown(name);
	return kubeconfig_bad(
		context, err, "it names the %s \"%s\", which no kubeconfig has", key, shown);
}

static int kubeconfig_take_namespace(const struct kubeconfig_where *context, const char *wanted,
	struct kube_access *access, struct err *err)
{
	AUTO_FREE char *own = NULL;
	int r = context ? kubeconfig_text(context, "namespace", &own, err) : 0;

	if (r < 0)
		return r;
	const char *name = wanted ? wanted : own ? own : "default";
	if (!kube_is_dns_label(name)) {
		AUTO_FREE char *shown = str_shown(name);
		return err_set(err, E_KUBE_CONFIG,
			"\"%s\" cannot be a namespace: up to 63 of a-z, 0-9 and -", shown);
	}
	REPLACE(access->kube_namespace, mem_strdup(name));
	return 0;
}

static int take_context(const struct kubeconfig *config, const struct kubeconfig_entry *entry,
	const char *kube_namespace, struct kube_access *access, struct err *err)
{
	const struct kubeconfig_where context = {"context", entry};
	const struct kubeconfig_entry *cluster = NULL, *user = NULL;
	int r = kubeconfig_follow(&context, "cluster", &config->clusters, &cluster, err);

	if (r == 0)
		r = kubeconfig_follow(&context, "user", &config->users, &user, err);
	if (r < 0)
		return r;
	if (!cluster)
		return kubeconfig_bad(&context, err, "it names no cluster");
	access->context = mem_strdup(entry->name);
	access->cluster = mem_strdup(cluster->name);
	access->user = mem_strdup(user ? user->name : "");
	r = take_cluster(cluster, access, err);
	if (r == 0)
		r = kubeconfig_take_namespace(&context, kube_namespace, access, err);
	/* As client-go has it: no login goes over a connection that anybody can read. */
	if (r == 0 && user && access->server.tls)
		r = kubeconfig_take_user(user, access, err);
	if (r == 0 && access->exec)
		access->exec->cluster_config = exec_config(cluster->body);
	return r;
}

/*
 * Pods
 */

static int read_account(const char *dir, const char *name, char **ret, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err error = {0};

	if (fs_read(path, KUBECONFIG_PEM_MAX, &text, NULL, &error) < 0)
		return err_set(err, E_KUBE_CONFIG, "%s", error.message);
	while (text.len > 0 && strchr(" \t\r\n", text.data[text.len - 1]))
		buf_truncate(&text, text.len - 1);
	*ret = buf_take(&text);
	return 0;
}

/* Access as a pod has it (client-go, rest.InClusterConfig). */
static int kubeconfig_in_cluster(
	const struct kubeconfig *config, struct kube_access *access, struct err *err)
{
	const char *dir = config->service_account_dir, *host = config->service_host;
	bool is_ip6 = strchr(host, ':') && *host != '[';
	AUTO_FREE char *server = mem_printf("https://%s%s%s:%s", is_ip6 ? "[" : "", host,
		is_ip6 ? "]" : "", config->service_port);
	AUTO_FREE char *own = NULL;
	AUTO_ERR struct err error = {0};

	access->context = mem_strdup(KUBECONFIG_IN_CLUSTER);
	access->cluster = mem_strdup(KUBECONFIG_IN_CLUSTER);
	access->user = mem_strdup(KUBECONFIG_IN_CLUSTER);
	if (url_parse(server, "KUBERNETES_SERVICE_HOST", &access->server, &error) < 0)
		return err_set(err, E_KUBE_CONFIG, "%s", error.message);
	access->server.path[0] = '\0';
	access->token_file = mem_printf("%s/token", dir);
	int r = read_account(dir, "ca.crt", &access->ca_pem, err);
	if (r == 0 && read_account(dir, "namespace", &own, NULL) < 0)
		own = NULL;
	return r == 0 ? kubeconfig_take_namespace(NULL, own, access, err) : r;
}

static int make_access(const struct kubeconfig *config, const char *name,
	const char *kube_namespace, struct kube_access *access, struct err *err)
{
	if (!name)
		name = kubeconfig_current(config);
	if (!name) {
		AUTO_FREE char *shown = str_shown(config->contexts.v[0].name);

		err_set(err, E_KUBE_CONTEXT, "%s sets no current-context", config->files.v[0]);
		return err_hint(err, "kubectl config use-context %s", shown);
	}
	if (config->service_host && str_eq(name, KUBECONFIG_IN_CLUSTER)) {
		int r = kubeconfig_in_cluster(config, access, err);
		if (r == 0 && kube_namespace)
			r = kubeconfig_take_namespace(NULL, kube_namespace, access, err);
		return r;
	}
	const struct kubeconfig_entry *context = kubeconfig_find(&config->contexts, name);
	if (!context) {
		AUTO_STRV struct strv names = {0};
		AUTO_FREE char *shown = str_shown(name);

		kubeconfig_contexts(config, &names);
		err_set(err, E_KUBE_CONTEXT, "there is no context \"%s\" in %s", shown,
			config->files.n == 1 ? config->files.v[0] : "the kubeconfigs");
		const char *meant = str_suggest(name, (const char *const *)names.v, names.n);
		if (!meant)
			return err_hint(err, "kubectl config get-contexts");
		AUTO_FREE char *near_shown = str_shown(meant);
		return err_hint(err, "did you mean %s?", near_shown);
	}
	return take_context(config, context, kube_namespace, access, err);
}

int kubeconfig_access(const struct kubeconfig *config, const char *context,
	const char *kube_namespace, struct kube_access *ret, struct err *err)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	int r = make_access(config, context, kube_namespace, &access, err);

	if (r < 0)
		return r;
	access.tls.ca_pem = access.ca_pem;
	access.tls.cert_pem = access.cert_pem;
	access.tls.key_pem = access.key_pem;
	access.tls.server_name = access.server_name;
	*ret = access;
	access = (struct kube_access){0};
	return 0;
}

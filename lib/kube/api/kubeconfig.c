/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/kubeconfig.h"

#include <stdlib.h>
#include <string.h>

#include "base/data/yaml_json.h"
#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig_impl.h"

/*
 * Single files
 */

/* Errors of other modules, which name the file, become ours. */
static int as_ours(struct err *fault, struct err *err)
{
	err_set(err, E_KUBE_CONFIG, "%s", fault->message ? fault->message : "not readable");
	if (fault->hint)
		err_hint(err, "%s", fault->hint);
	return -ERR_CONFIG;
}

static int parse_yaml(
	const char *text, size_t len, const char *file, struct json **ret, struct err *err)
{
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_ERR struct err fault = {0};

	if (yaml_parse(text, len, file, &yaml, &fault) < 0)
		return as_ours(&fault, err);
	*ret = yaml_to_json(yaml);
	return 0;
}

static int parse(const char *text, size_t len, const char *file, struct json **ret, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	size_t blanks = 0;

	while (blanks < len && strchr(" \t\r\n", text[blanks]) && text[blanks])
		blanks++;
	if (blanks == len || text[blanks] != '{')
		return parse_yaml(text, len, file, ret, err);
	if (json_parse(text, len, YAML_SIZE_MAX, file, ret, &fault) == 0)
		return 0;
	/* {a: b} is YAML only. */
	if (parse_yaml(text, len, file, ret, NULL) == 0)
		return 0;
	return as_ours(&fault, err);
}

static bool is_missing(const struct json *value)
{
	return !value || json_kind(value) == JSON_NULL;
}

static int expect(const struct json *root, const char *key, const char *wanted, const char *file,
	struct err *err)
{
	const struct json *value = json_get(root, key);

	if (is_missing(value) || str_eq(json_str(value), wanted) || str_eq(json_str(value), ""))
		return 0;
	AUTO_FREE char *shown = str_shown(json_str(value) ? json_str(value) : "no text");
	return err_set(err, E_KUBE_CONFIG, "%s: no kubeconfig: its %s is %s, not %s", file, key,
		shown, wanted);
}

const struct kubeconfig_entry *kubeconfig_find(
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

static int fail_entry(
	const struct section *section, const char *name, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);

	return err_set(err, E_KUBE_CONFIG, "%s: %s \"%s\": %s", section->file, section->member,
		shown, why);
}

static int add_entry(const struct section *section, const struct json *item, struct err *err)
{
	const char *name = json_get_str(item, "name");
	const struct json *body = json_get(item, section->member);

	if (!name)
		return err_set(err, E_KUBE_CONFIG, "%s: a member of %s has no name", section->file,
			section->key);
	if (!is_missing(body) && json_kind(body) != JSON_OBJECT)
		return fail_entry(section, name, "it must be a map", err);
	const struct kubeconfig_entry *first = kubeconfig_find(section->entries, name);
	if (first && first >= section->entries->v + section->n_before)
		return fail_entry(section, name, "it is there twice", err);
	if (first)
		return 0;
	*vec_push(section->entries) = (struct kubeconfig_entry){
		.name = mem_strdup(name),
		.file = mem_strdup(section->file),
		.body = is_missing(body) ? json_object() : json_clone(body),
	};
	return 0;
}

static int add_section(const struct section *section, const struct json *list, struct err *err)
{
	if (is_missing(list))
		return 0;
	if (json_kind(list) != JSON_ARRAY)
		return err_set(
			err, E_KUBE_CONFIG, "%s: %s must be a list", section->file, section->key);
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		int r = add_entry(section, item, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_current(
	struct kubeconfig *config, const struct json *root, const char *file, struct err *err)
{
	const struct json *current = json_get(root, "current-context");

	if (is_missing(current))
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

	int r = parse(text, len, file, &root, err);
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

static int read_file(struct kubeconfig *config, const char *file, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err fault = {0};
	bool missing = false;

	if (fs_read(file, YAML_SIZE_MAX, &text, &missing, &fault) < 0)
		return missing ? 0 : as_ours(&fault, err);
	strv_add(&config->files, file);
	return kubeconfig_add(config, text.data, text.len, file, err);
}

static int read_list(struct kubeconfig *config, const struct kubeconfig_env *env, struct err *err)
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
		int r = read_file(config, file, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_below(const char *path, const char *dir)
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

/* ~/.kube/config, unless it comes with the code. *ret_left_out: it does. */
static int read_home(struct kubeconfig *config, const struct kubeconfig_env *env,
	char **ret_left_out, struct err *err)
{
	if (str_empty(env->home))
		return 0;
	AUTO_FREE char *file = mem_printf("%s/.kube/config", env->home);
	if (!env->tree || !is_below(file, env->tree))
		return read_file(config, file, err);
	if (access(file, F_OK) == 0)
		*ret_left_out = TAKE(file);
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

static int fail_none(const struct kubeconfig_env *env, const struct kubeconfig *config,
	const char *left_out, struct err *err)
{
	if (left_out) {
		AUTO_BUF struct buf quoted;
		buf_init(&quoted, 64 << 10);
		str_shell_quote(&quoted, left_out);
		err_set(err, E_KUBE_NO_CONFIG,
			"%s lies in the tree that is run, so it is not read by itself", left_out);
		return err_hint(err, "export KUBECONFIG=%s", quoted.data);
	}
	if (config->files.n > 0)
		return err_set(err, E_KUBE_NO_CONFIG, "%s names no context", config->files.v[0]);
	if (!str_empty(env->kubeconfig)) {
		AUTO_FREE char *shown = str_shown(env->kubeconfig);
		err_set(err, E_KUBE_NO_CONFIG, "KUBECONFIG points to a missing file: %s", shown);
		return err_hint(err, "unset KUBECONFIG   # then ~/.kube/config counts");
	}
	err_set(err, E_KUBE_NO_CONFIG, "there is no ~/.kube/config, and KUBECONFIG is not set");
	return err_hint(err,
		"ask whoever runs the cluster for a kubeconfig, and save it as ~/.kube/config");
}

int kubeconfig_load(const struct kubeconfig_env *env, struct kubeconfig **ret, struct err *err)
{
	AUTO_KUBECONFIG struct kubeconfig *config = mem_alloc(1, sizeof(*config));
	AUTO_FREE char *left_out = NULL;

	int r = str_empty(env->kubeconfig) ? read_home(config, env, &left_out, err)
					   : read_list(config, env, err);
	if (r < 0)
		return r;
	if (config->contexts.n == 0)
		take_pod(config, env);
	if (config->contexts.n == 0 && !config->service_host)
		return fail_none(env, config, left_out, err);
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

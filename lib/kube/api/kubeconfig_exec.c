/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/os/env.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig_impl.h"

enum { EXEC_WORDS_MAX = 1000 };

static const char group[] = "client.authentication.k8s.io/";

/* A member of exec that is text, or NULL. */
static int text_of(const struct kubeconfig_where *user, const struct json *exec, const char *key,
	const char **ret, struct err *err)
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
	for (const struct json *arg = json_first(args); arg; arg = json_next(arg)) {
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
	for (const struct json *item = json_first(env); item; item = json_next(item)) {
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

static int take_version(const struct kubeconfig_where *user, const struct json *from,
	struct kube_exec *exec, struct err *err)
{
	const char *version = NULL;
	int r = text_of(user, from, "apiVersion", &version, err);

	if (r < 0)
		return r;
	if (str_empty(version))
		return kubeconfig_bad(user, err, "exec: apiVersion is missing");
	exec->api_version = mem_strdup(version);
	if (str_starts(version, group) && (str_eq(version + strlen(group), "v1") ||
						  str_eq(version + strlen(group), "v1beta1")))
		return 0;
	AUTO_FREE char *shown = str_shown(version);
	kubeconfig_bad(user, err, "exec: apiVersion %s is not supported", shown);
	return err_hint(err, "change it to %sv1beta1 in %s and update %s", group, user->entry->file,
		exec->command);
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
	int r = text_of(user, from, "interactiveMode", &mode, err);

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
	int r = text_of(user, from, "command", &command, err);

	if (r == 0)
		r = text_of(user, from, "installHint", &hint, err);
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

int kubeconfig_take_exec(const struct kubeconfig_where *user, const struct json *from,
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
		r = take_version(user, from, exec, err);
	if (r == 0)
		r = take_mode(user, from, exec, err);
	exec->provide_cluster_info = json_get_bool(from, "provideClusterInfo", false);
	return r;
}

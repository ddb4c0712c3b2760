/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/targets.h"

#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/target_work.h"
#include "targets/kube/kube_open.h"
#include "targets/kube/target_kube.h"
#include "targets/local/target_local.h"
#include "targets/ssh/target_node.h"

/* The built-in one, or what the configuration calls by that name. */
static const char *kind_of(struct config *config, const char *name)
{
	const struct json *definition = config_target(config, name);
	const char *kind = json_get_str(definition, "kind");

	if (definition)
		return kind ? kind : "local";
	if (kube_name_is(name))
		return "kubernetes";
	if (target_node_is(name))
		return "ssh";
	return str_eq(name, "local") ? "local" : NULL;
}

static int fail_unknown(struct config *config, const char *name, struct err *err)
{
	AUTO_STRV struct strv names = {0};
	AUTO_FREE char *shown = str_escaped(name);
	const char *near;

	strv_add(&names, "local");
	config_target_names(config, &names);
	near = str_suggest(name, (const char *const *)names.v, names.n);
	err_set(err, E_TARGET, "there is no target '%s'", shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "dlrun targets");
}

int target_check(struct config *config, const char *name, struct err *err)
{
	return kind_of(config, name) ? 0 : fail_unknown(config, name, err);
}

static int open_kube(struct session *session, struct config *config, const char *name,
	struct target **ret, struct err *err)
{
	const struct json *definition = config_target(config, name);
	AUTO_FREE char *context = NULL, *kube_namespace = NULL;

	if (!definition)
		kube_name_split(session, name, &context, &kube_namespace);
	return target_kube_new(session, name, definition, context, kube_namespace, ret, err);
}

int target_open(struct session *session, const char *name, struct target **ret, struct err *err)
{
	struct config *config;
	const char *kind;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	kind = kind_of(config, name);
	if (!kind)
		return fail_unknown(config, name, err);
	if (str_eq(kind, "kubernetes"))
		return open_kube(session, config, name, ret, err);
	if (str_eq(kind, "ssh"))
		return target_node_new(
			session, name, config_target(config, name), NULL, NULL, ret, err);
	*ret = target_local_new(session, name);
	return 0;
}

/* The configuration may call another place by that name now, or none. */
int target_open_run(
	struct session *session, const struct run *run, struct target **ret, struct err *err)
{
	const struct json *target = json_get(run->doc, "target");
	const char *name = run_target(run), *kind = json_get_str(target, "kind");
	bool is_ssh = str_eq(kind, "ssh");
	struct config *config;

	if (!is_ssh && !str_eq(kind, "kubernetes"))
		return target_open(session, name, ret, err);
	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	if (is_ssh)
		return target_node_recorded(
			session, name, config_target(config, name), target, ret, err);
	return target_kube_new(session, name, config_target(config, name),
		json_get_str(target, "context"), json_get_str(target, "namespace"), ret, err);
}

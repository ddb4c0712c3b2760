/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/targets.h"

#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/kube/kube_open.h"
#include "targets/kube/target_kube.h"
#include "targets/local/target_local.h"
#include "targets/ssh/target_node.h"

static const struct target_ops *const targets_kinds[] = {
	&target_local_ops, &target_kube_ops, &target_node_ops};

static const struct target_ops *targets_kind(const char *kind)
{
	for (size_t i = 0; kind && i < ARRAY_LEN(targets_kinds); i++)
		if (str_eq(targets_kinds[i]->kind, kind))
			return targets_kinds[i];
	return NULL;
}

/* The built-in one, or what the configuration calls by that name. */
const struct target_ops *target_ops_named(const struct config *config, const char *name)
{
	const struct json *definition = config ? config_target(config, name) : NULL;

	if (definition) {
		const char *kind = json_get_str(definition, "kind");
		return kind ? targets_kind(kind) : &target_local_ops;
	}
	if (kube_name_is(name))
		return &target_kube_ops;
	if (target_node_is(name))
		return &target_node_ops;
	return str_eq(name, "local") ? &target_local_ops : NULL;
}

const struct target_ops *target_ops_recorded(const struct run *run)
{
	static const struct target_ops unknown = {.kind = "unknown"};
	const struct target_ops *ops =
		targets_kind(json_get_str(json_get(run->doc, "target"), "kind"));

	return ops ? ops : &unknown;
}

static int targets_fail_unknown(struct config *config, const char *name, struct err *err)
{
	AUTO_STRV struct strv names = {0};
	AUTO_FREE char *shown = str_escaped(name);

	strv_add(&names, "local");
	config_target_names(config, &names);
	const char *near = str_suggest(name, (const char *const *)names.v, names.n);
	err_set(err, E_TARGET, "there is no target '%s'", shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "dlrun targets");
}

int target_check(struct config *config, const char *name, struct err *err)
{
	return target_ops_named(config, name) ? 0 : targets_fail_unknown(config, name, err);
}

int target_open(struct session *session, const char *name, struct target **ret, struct err *err)
{
	struct config *config;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	const struct target_ops *ops = target_ops_named(config, name);
	if (!ops)
		return targets_fail_unknown(config, name, err);
	const struct json *definition = config_target(config, name);
	if (ops == &target_kube_ops) {
		AUTO_FREE char *context = NULL, *kube_namespace = NULL;
		kube_name_read(session, name, definition, &context, &kube_namespace);
		return target_kube_new(
			session, name, definition, context, kube_namespace, ret, err);
	}
	if (ops == &target_node_ops)
		return target_node_new(session, name, definition, NULL, NULL, ret, err);
	*ret = target_local_new(session, name);
	return 0;
}

/* The configuration may call another place by that name now, or none. */
int target_open_run(
	struct session *session, const struct run *run, struct target **ret, struct err *err)
{
	const struct json *target = json_get(run->doc, "target");
	const struct target_ops *ops = target_ops_recorded(run);
	const char *name = run_target(run);
	struct config *config;

	if (ops != &target_node_ops && ops != &target_kube_ops)
		return target_open(session, name, ret, err);
	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	if (ops == &target_node_ops)
		return target_node_recorded(
			session, name, config_target(config, name), target, ret, err);
	return target_kube_new(session, name, config_target(config, name),
		json_get_str(target, "context"), json_get_str(target, "namespace"), ret, err);
}

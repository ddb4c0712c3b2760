/* SPDX-License-Identifier: Apache-2.0 */
#include "app/prepare/prepare.h"

/* Roles (core/record/roles.h) of a submit. Where all have a command, the run's own is a copy of
 * roles_main's. */

static void submit_roles_name_run(struct spec *spec)
{
	const struct role *role = roles_main(spec);

	strv_copy(&spec->command, &role->command);
	spec->shell = role->shell;
}

int submit_set_roles(struct submit *submit, struct err *err)
{
	const struct strv *words = submit->options->command;
	struct spec *spec = &submit->spec;

	/* Ad-hoc work in a terminal is one program. */
	if (submit->options->terminal)
		return 0;
	if (!submit->parent) {
		int r = roles_from_config(submit->config, &spec->roles, err);
		if (r < 0)
			return r;
	}
	if (!spec->roles.list.n)
		return 0;
	if (submit->options->study) {
		err_set(err, E_USAGE, "the runs of a study cannot have roles");
		config_blame(submit->config, "roles", err);
		return err_hint(err, "without roles: in dlrun.yaml, or submit runs one by one");
	}
	if (roles_take_command(spec))
		return 0;
	if (words && words->n) {
		err_set(err, E_USAGE, "each role of the run has a command of its own");
		config_blame(submit->config, "roles", err);
		return err_hint(err, "dlrun submit   # without a command");
	}
	submit_roles_name_run(spec);
	return 0;
}

int submit_each_command(struct submit *submit, int (*check)(struct submit *submit, struct err *err),
	struct err *err)
{
	struct spec *spec = &submit->spec;
	bool is_taken = roles_take_command(spec);
	int r = is_taken ? check(submit, err) : 0;
	size_t n_typed = submit->typed_env.n;

	for (size_t i = 0; r == 0 && i < spec->roles.list.n; i++) {
		struct role *role = &spec->roles.list.v[i];
		const struct strv command = spec->command;
		const bool shell = spec->shell;
		if (!role->command.n)
			continue;
		spec->command = role->command;
		spec->shell = role->shell;
		r = check(submit, err);
		role->command = spec->command;
		role->shell = spec->shell;
		spec->command = command;
		spec->shell = shell;
		if (r == 0 && submit->typed_env.n > n_typed) {
			err_set(err, E_CONFIG, "%s in front of its command: variables have a list",
				submit->typed_env.v[n_typed]);
			r = err_hint(err, "roles: {%s: {env: {EPOCHS: 10}}}", role->name);
		}
		if (r < 0)
			err_prefix(err, "role %s", role->name);
	}
	if (r == 0 && !is_taken)
		submit_roles_name_run(spec);
	return r;
}

/* The roles say how many nodes and GPUs. */
static int submit_roles_refuse(struct submit *submit, const char *key, const char *option,
	const char *instead, struct err *err)
{
	const struct config *config = submit->config;

	if (!config_is_set(config, key))
		return 0;
	err_set(err, E_USAGE, "%s cannot be used for a run with roles",
		config_is_option(config, key) ? option : key);
	config_blame(config, key, err);
	return err_hint(err, "roles: {%s: {%s}}", roles_main(&submit->spec)->name, instead);
}

int submit_check_roles(struct submit *submit, struct err *err)
{
	struct spec *spec = &submit->spec;
	const struct target_ops *ops = submit->target->ops;
	bool is_sized = false;
	int r = 0;

	if (!spec->roles.list.n)
		return 0;
	r = submit_roles_refuse(submit, "resources.nodes", "--nodes", "nodes: 2", err);
	if (r == 0 && config_is_option(submit->config, "resources.gpus"))
		r = submit_roles_refuse(submit, "resources.gpus", "--gpus", "gpus: 1", err);
	if (r < 0)
		return r;
	spec->resources.nodes = roles_sum(&spec->roles);
	vec_foreach (const struct role, role, &spec->roles.list)
		is_sized |= role->cpus_milli || role->memory_bytes;
	if (ops->is_here && is_sized)
		submit_warn(submit,
			"cpus and memory of roles are not limits on this machine; those of "
			"resources: are, of the whole run");
	r = roles_check(spec, err);
	return r < 0 ? config_blame(submit->config, "roles", err) : 0;
}

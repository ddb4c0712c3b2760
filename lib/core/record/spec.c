/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/run.h"

enum { GRACE_MS = 10000 };

static void study_to_json(const struct spec_study *study, struct json *spec)
{
	if (!study->id)
		return;
	struct json *json = json_sub(spec, "study");
	json_set_str(json, "id", study->id);
	json_set_int(json, "index", study->index);
	json_set_int(json, "size", study->size);
	json_set_int(json, "parallel", study->parallel);
	json_set_bool(json, "fail_fast", study->fail_fast);
}

static int study_from_json(const struct json *json, struct spec_study *ret, struct err *err)
{
	const char *id = json_get_str(json, "id");

	if (!json)
		return 0;
	ret->index = (int)json_get_int(json, "index", -1);
	ret->size = (int)json_get_int(json, "size", 0);
	ret->parallel = (int)json_get_int(json, "parallel", 0);
	ret->fail_fast = json_get_bool(json, "fail_fast", false);
	if (!id || !run_id_is_valid(id) || ret->index < 0 || ret->index >= ret->size ||
		ret->parallel < 0)
		return err_set(err, E_DATA, "the study of the run is not complete");
	ret->id = mem_strdup(id);
	return 0;
}

void spec_add_members(const struct spec *spec, struct json *json)
{
	words_set(json, "command", &spec->command);
	json_set_bool(json, "shell", spec->shell);
	if (spec->terminal)
		json_set_bool(json, "terminal", true);
	json_set_bytes(json, "cwd", spec->cwd, strlen(spec->cwd));
	words_set(json, "env", &spec->env);
	words_set(json, "secrets", &spec->secrets);
	json_set_int(json, "timeout_ms", spec->timeout_ms);
	json_set_int(json, "grace_ms", spec->grace_ms);
	runtime_to_json(&spec->runtime, json);
	resources_to_json(&spec->resources, json_sub(json, "resources"));
	roles_to_json(&spec->roles, json);
	if (spec->ports.n)
		json_set(json, "ports", ports_to_json(&spec->ports));
	if (spec->drop_entrypoint)
		json_set_bool(json, "drop_entrypoint", true);
	study_to_json(&spec->study, json);
	if (spec->after.n)
		json_set(json, "after", after_to_json(&spec->after));
}

struct json *spec_to_json(const struct spec *spec)
{
	struct json *json = json_object();

	json_set_str(json, "schema", SPEC_SCHEMA);
	spec_add_members(spec, json);
	return json;
}

static int read_lists(const struct json *json, struct spec *spec, struct err *err)
{
	int r = words_get(json, "command", &spec->command, err);

	if (r == 0)
		r = words_get(json, "env", &spec->env, err);
	if (r == 0)
		r = words_get(json, "secrets", &spec->secrets, err);
	if (r == 0)
		r = roles_from_json(json, &spec->roles, err);
	if (r == 0)
		r = study_from_json(json_get(json, "study"), &spec->study, err);
	if (r == 0)
		r = after_from_json(json_get(json, "after"), &spec->after, err);
	return r < 0 ? r : runtime_from_json(json, &spec->runtime, err);
}

int spec_from_members(const struct json *json, struct spec *ret, struct err *err)
{
	AUTO_SPEC struct spec spec = {0};

	int r = read_lists(json, &spec, err);
	if (r < 0)
		return r;
	resources_from_json(json_get(json, "resources"), &spec.resources);
	ports_from_json(json_get(json, "ports"), &spec.ports);
	spec.shell = json_get_bool(json, "shell", false);
	spec.terminal = json_get_bool(json, "terminal", false);
	spec.drop_entrypoint = json_get_bool(json, "drop_entrypoint", false);
	spec.cwd = words_get_one(json, "cwd");
	spec.timeout_ms = json_get_int(json, "timeout_ms", 0);
	spec.grace_ms = json_get_int(json, "grace_ms", GRACE_MS);
	if (spec.command.n == 0 || !spec.cwd || spec.timeout_ms < 0 || spec.grace_ms < 0 ||
		(spec.roles.list.n && roles_sum(&spec.roles) != spec.resources.nodes))
		return err_set(err, E_DATA, "the specification of the run is not complete");
	*ret = spec;
	spec = (struct spec){0};
	return 0;
}

int spec_from_json(const struct json *json, struct spec *ret, struct err *err)
{
	if (!json || !str_eq(json_get_str(json, "schema"), SPEC_SCHEMA))
		return err_set(err, E_DATA, "the specification of the run is not of " SPEC_SCHEMA);
	return spec_from_members(json, ret, err);
}

/* By way of JSON, which has every member: a new one is copied, too. */
int spec_copy(const struct spec *spec, struct spec *ret, struct err *err)
{
	AUTO_JSON struct json *json = json_object();

	spec_add_members(spec, json);
	return spec_from_members(json, ret, err);
}

static void spec_fill_addresses(
	const struct spec *spec, const struct strv *addresses, struct strv *texts)
{
	for (size_t i = 0; i < texts->n; i++) {
		char *filled = roles_fill(spec, addresses, texts->v[i]);
		REPLACE(texts->v[i], filled);
	}
}

int spec_of_role(const struct spec *spec, size_t index, const struct strv *addresses,
	struct spec *ret, struct err *err)
{
	struct roles_part part;
	AUTO_SPEC struct spec copy = {0};
	int r = spec_copy(spec, &copy, err);

	if (r < 0)
		return r;
	roles_nth(spec, index, &part);
	if (part.name) {
		const struct strv *env = &spec->roles.list.v[index].env;
		for (size_t i = 0; i < env->n; i++)
			env_set(&copy.env, env->v[i], false);
		strv_copy(&copy.command, part.command);
		copy.shell = part.shell;
		copy.resources.nodes = part.nodes;
		copy.resources.cpus_milli = part.cpus_milli;
		copy.resources.memory_bytes = part.memory_bytes;
		copy.runtime.gpus = part.gpus;
		roles_done(&copy.roles);
		if (addresses) {
			spec_fill_addresses(spec, addresses, &copy.command);
			spec_fill_addresses(spec, addresses, &copy.env);
		}
	}
	*ret = copy;
	copy = (struct spec){0};
	return 0;
}

void spec_done(struct spec *spec)
{
	if (!spec)
		return;
	strv_done(&spec->command);
	free(spec->cwd);
	strv_done(&spec->env);
	strv_done(&spec->secrets);
	runtime_done(&spec->runtime);
	resources_done(&spec->resources);
	roles_done(&spec->roles);
	free(spec->study.id);
	after_done(&spec->after);
	*spec = (struct spec){0};
}

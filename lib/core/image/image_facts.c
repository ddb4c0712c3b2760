/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/image_facts.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "oci/image/image.h"

enum { NAMES_MAX = 1000 };

static char *copy_or_null(const char *text)
{
	return text && *text ? mem_strdup(text) : NULL;
}

static const char *first_word(const struct json *list)
{
	return list && json_kind(list) == JSON_ARRAY ? json_str(json_first(list)) : NULL;
}

static bool is_shell(const char *program)
{
	static const char *const names[] = {"sh", "ash", "bash", "dash", "zsh"};
	const char *name = program ? fs_basename(program) : NULL;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return true;
	return false;
}

static void read_history(const struct json *config, struct image_facts *ret)
{
	const struct json *list = json_get(config, "history");

	if (!list || json_kind(list) != JSON_ARRAY)
		return;
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		const char *by = json_get_str(item, "created_by");
		if (!by)
			continue;
		ret->has_shell |=
			strstr(by, "/bin/sh") || strstr(by, "/bin/bash") || str_starts(by, "RUN ");
		ret->lacks_shell |= str_starts(by, "bazel ") || str_starts(by, "ko ");
	}
	ret->lacks_shell = ret->lacks_shell && !ret->has_shell;
}

void image_facts_of_config(const struct json *config, const char *platform, const char *workdir,
	struct image_facts *ret)
{
	const struct json *run = json_get(config, "config");
	const struct json *entrypoint = json_get(run, "Entrypoint");
	const char *os = json_get_str(config, "os"), *arch = json_get_str(config, "architecture");
	size_t len = strcspn(platform, "/");
	const char *rest = platform[len] ? platform + len + 1 : "amd64";

	*ret = (struct image_facts){
		.user = copy_or_null(json_get_str(run, "User")),
		.os = os ? mem_strdup(os) : mem_strndup(platform, len),
		.arch = arch ? mem_strdup(arch) : mem_strndup(rest, strcspn(rest, "/")),
		.workdir = mem_strdup(workdir),
		.is_scratch = !config,
		.program = copy_or_null(first_word(json_get(run, "Cmd"))),
	};
	read_history(config, ret);
	ret->has_shell |= is_shell(ret->program) || is_shell(first_word(entrypoint));
	for (const struct json *item = entrypoint ? json_first(entrypoint) : NULL; item;
		item = json_next(item))
		if (json_str(item))
			strv_add(&ret->entrypoint, json_str(item));
	const struct json *env = json_get(run, "Env");
	for (const struct json *item = env ? json_first(env) : NULL;
		item && ret->env_names.n < NAMES_MAX; item = json_next(item)) {
		const char *pair = json_str(item);
		if (pair)
			strv_add_take(&ret->env_names, mem_strndup(pair, strcspn(pair, "=")));
	}
}

struct json *image_facts_to_json(const struct image_facts *facts)
{
	struct json *json = json_object();

	words_set(json, "entrypoint", &facts->entrypoint);
	words_set(json, "env_names", &facts->env_names);
	json_set_str(json, "user", facts->user);
	json_set_str(json, "os", facts->os);
	json_set_str(json, "arch", facts->arch);
	json_set_str(json, "workdir", facts->workdir);
	json_set_bool(json, "is_scratch", facts->is_scratch);
	json_set_str(json, "program", facts->program);
	json_set_bool(json, "has_shell", facts->has_shell);
	json_set_bool(json, "lacks_shell", facts->lacks_shell);
	return json;
}

void image_facts_from_json(const struct json *json, struct image_facts *ret)
{
	const char *workdir = json_get_str(json, "workdir");

	*ret = (struct image_facts){
		.user = copy_or_null(json_get_str(json, "user")),
		.os = copy_or_null(json_get_str(json, "os")),
		.arch = copy_or_null(json_get_str(json, "arch")),
		.workdir = mem_strdup(workdir ? workdir : IMAGE_WORKDIR),
		.is_scratch = json_get_bool(json, "is_scratch", false),
		.program = copy_or_null(json_get_str(json, "program")),
		.has_shell = json_get_bool(json, "has_shell", false),
		.lacks_shell = json_get_bool(json, "lacks_shell", false),
	};
	words_get(json, "entrypoint", &ret->entrypoint, NULL);
	words_get(json, "env_names", &ret->env_names, NULL);
}

void image_facts_done(struct image_facts *facts)
{
	if (!facts)
		return;
	strv_done(&facts->entrypoint);
	strv_done(&facts->env_names);
	free(facts->user);
	free(facts->os);
	free(facts->arch);
	free(facts->workdir);
	free(facts->program);
	*facts = (struct image_facts){0};
}

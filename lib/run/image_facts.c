#include "run/image_facts.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "oci/image.h"
#include "run/words.h"

enum { NAMES_MAX = 1000 };

static char *copy_or_null(const char *text)
{
	return text && *text ? mem_strdup(text) : NULL;
}

static void take_names(const struct json *env, struct strv *ret)
{
	for (const struct json *item = env ? json_first(env) : NULL; item && ret->n < NAMES_MAX;
		item = json_next(item)) {
		const char *pair = json_str(item);
		if (pair)
			strv_add_take(ret, mem_strndup(pair, strcspn(pair, "=")));
	}
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
	};
	for (const struct json *item = entrypoint ? json_first(entrypoint) : NULL; item;
		item = json_next(item))
		if (json_str(item))
			strv_add(&ret->entrypoint, json_str(item));
	take_names(json_get(run, "Env"), &ret->env_names);
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
	*facts = (struct image_facts){0};
}

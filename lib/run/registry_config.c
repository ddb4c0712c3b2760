#include "run/registry_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "run/config_impl.h"

void registry_config_done(struct registry_config *config)
{
	if (!config)
		return;
	free(config->push);
	free(config->pull);
	free(config->ca);
	*config = (struct registry_config){0};
}

static const struct json *at_top(const struct config *config)
{
	return config->values[config_key_index("registry")].json;
}

static void fill(const struct json *json, struct registry_config *ret)
{
	const char *push = json_get_str(json, "push"), *pull = json_get_str(json, "pull");

	*ret = (struct registry_config){
		.push = mem_strdup(push),
		.pull = mem_strdup(pull ? pull : push),
		.ca = mem_strdup(json_get_str(json, "ca")),
		.insecure = json_get_bool(json, "insecure", false),
	};
}

int registry_config_find(const struct config *config, const char *target_name,
	struct registry_config *ret, struct err *err)
{
	const struct json *target = target_name ? config_target(config, target_name) : NULL;
	const struct json *own = json_get(target, "registry");
	const struct json *json = own ? own : at_top(config);

	if (!json)
		return 0;
	if (json_get(json, "forward")) {
		err_set(err, E_CONFIG, "registry%s%s: forward is for Kubernetes targets",
			own ? " of " : "", own ? target_name : "");
		return err_hint(err, "dlrun config --show-origin %s", own ? "targets" : "registry");
	}
	fill(json, ret);
	return 1;
}

static bool is_at(const char *repository, const char *host)
{
	size_t len = strlen(host);

	return repository && strncasecmp(repository, host, len) == 0 && repository[len] == '/';
}

static void add_for_host(const struct json *json, const char *host, struct registry_config *ret)
{
	AUTO_REGISTRY_CONFIG struct registry_config found = {0};

	fill(json, &found);
	if (!is_at(found.push, host) && !is_at(found.pull, host))
		return;
	if (!ret->push) {
		*ret = found;
		found = (struct registry_config){0};
		return;
	}
	if (!ret->ca)
		ret->ca = TAKE(found.ca);
	ret->insecure |= found.insecure;
}

/* The definitions in their order; i from 0, NULL behind the last one. */
static const struct json *next_definition(const struct config *config, const struct json **target)
{
	const struct json *targets = config->values[config_key_index("targets")].json;

	*target = *target ? json_next(*target) : json_first(targets);
	return json_get(*target, "registry");
}

void registry_config_for_host(
	const struct config *config, const char *host, struct registry_config *ret)
{
	const struct json *target = NULL;

	*ret = (struct registry_config){0};
	add_for_host(at_top(config), host, ret);
	do
		add_for_host(next_definition(config, &target), host, ret);
	while (target);
}

static void add_push(const struct json *json, struct strv *ret)
{
	const char *push = json_get_str(json, "push");

	if (push && !json_get(json, "forward") && strv_find(ret, push) < 0)
		strv_add(ret, push);
}

void registry_config_all(const struct config *config, struct strv *ret)
{
	const struct json *target = NULL;

	add_push(at_top(config), ret);
	do
		add_push(next_definition(config, &target), ret);
	while (target);
}

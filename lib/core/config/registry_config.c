/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/registry_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"
#include "core/config/target_names.h"

void registry_config_done(struct registry_config *config)
{
	if (!config)
		return;
	free(config->push);
	free(config->pull);
	free(config->ca);
	free(config->cert);
	free(config->key);
	free(config->forward);
	free(config->target);
	*config = (struct registry_config){0};
}

static const struct json *at_top(const struct config *config)
{
	return config->values[config_key_index("registry")].json;
}

static void registry_config_fill(
	const struct json *json, const char *target, struct registry_config *ret)
{
	const char *forward = json_get_str(json, "forward");

	const char *push = json_get_str(json, "push"), *pull = json_get_str(json, "pull");

	*ret = (struct registry_config){
		.push = mem_strdup(push),
		.pull = mem_strdup(pull ? pull : push),
		.ca = mem_strdup(json_get_str(json, "ca")),
		.cert = mem_strdup(json_get_str(json, "cert")),
		.key = mem_strdup(json_get_str(json, "key")),
		.forward = mem_strdup(forward),
		.target = forward ? mem_strdup(target) : NULL,
		.insecure = json_get_bool(json, "insecure", false),
	};
}

bool registry_config_is_off(const struct config *config, const char *target_name)
{
	const struct json *target = target_name ? config_target(config, target_name) : NULL;
	const struct json *own = json_get(target, "registry");

	return str_eq(json_get_str(own ? own : at_top(config), "push"), REGISTRY_NONE);
}

int registry_config_find(const struct config *config, const char *target_name,
	struct registry_config *ret, struct err *err)
{
	const struct json *target = target_name ? config_target(config, target_name) : NULL;
	const struct json *own = json_get(target, "registry");
	const struct json *json = own ? own : at_top(config);

	if (!json || registry_config_is_off(config, target_name))
		return 0;
	if (json_get(json, "forward") && !config_target_is_cluster(config, target_name)) {
		err_set(err, E_CONFIG, "registry%s%s: forward is for Kubernetes targets",
			own ? " of " : "", own ? target_name : "");
		return err_hint(err, "dlrun config --show-origin %s", own ? "targets" : "registry");
	}
	registry_config_fill(json, target_name, ret);
	return 1;
}

static bool is_at(const char *repository, const char *host)
{
	size_t len = strlen(host);

	return repository && strncasecmp(repository, host, len) == 0 && repository[len] == '/';
}

static void add_for_host(
	const struct json *json, const char *target, const char *host, struct registry_config *ret)
{
	AUTO_REGISTRY_CONFIG struct registry_config found = {0};

	registry_config_fill(json, target, &found);
	if (!is_at(found.push, host) && !is_at(found.pull, host))
		return;
	/* The name for nodes is reached without the tunnel. */
	if (!is_at(found.push, host))
		free(TAKE(found.forward));
	if (!ret->push) {
		*ret = found;
		found = (struct registry_config){0};
		return;
	}
	if (!ret->ca)
		ret->ca = TAKE(found.ca);
	if (!ret->cert) {
		ret->cert = TAKE(found.cert);
		ret->key = TAKE(found.key);
	}
	if (!ret->forward) {
		ret->forward = TAKE(found.forward);
		ret->target = TAKE(found.target);
	}
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
	AUTO_FREE char *first = target_names_first(config, config_str(config, "target"));
	add_for_host(at_top(config), first, host, ret);
	do {
		const struct json *json = next_definition(config, &target);
		add_for_host(json, target ? json_key(target) : NULL, host, ret);
	} while (target);
}

static void add_push(
	const struct config *config, const struct json *json, const char *target, struct strv *ret)
{
	const char *push = json_get_str(json, "push");
	bool is_led = !json_get(json, "forward") || config_target_is_cluster(config, target);

	if (push && is_led && !str_eq(push, REGISTRY_NONE) && strv_find(ret, push) < 0)
		strv_add(ret, push);
}

void registry_config_all(const struct config *config, struct strv *ret)
{
	const struct json *target = NULL;
	AUTO_FREE char *first = target_names_first(config, config_str(config, "target"));

	add_push(config, at_top(config), first, ret);
	do {
		const struct json *json = next_definition(config, &target);
		add_push(config, json, target ? json_key(target) : NULL, ret);
	} while (target);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"
#include "core/config/ports.h"

/*
 * The configuration as users are shown it.
 */

/* Values of secret names are not shown. */
static struct json *env_json(const struct strv *env)
{
	struct json *object = json_object();

	for (size_t i = 0; i < env->n; i++) {
		const char *equals = strchr(env->v[i], '=');
		AUTO_FREE char *name = mem_strndup(
			env->v[i], equals ? (size_t)(equals - env->v[i]) : strlen(env->v[i]));

		if (!equals)
			json_set(object, name, json_null());
		else
			json_set_str(object, name,
				config_name_is_secret(name) ? "(hidden)" : equals + 1);
	}
	return object;
}

/* Use the shorter of the forms that a file may have. */
static struct json *registry_json(const struct json *registry)
{
	return json_clone(json_count(registry) == 1 ? json_get(registry, "push") : registry);
}

static struct json *ports_json(const struct strv *texts)
{
	struct ports ports = {0};

	for (size_t i = 0; i < texts->n; i++)
		ports_add(&ports, texts->v[i], NULL);
	return ports_to_json(&ports);
}

static struct json *value_json(const struct config_key *key, const struct config_value *value)
{
	struct json *holder = json_object(), *list;

	switch (key->type) {
	case CONFIG_COMMAND:
		if (value->shell) {
			json_set_str(holder, "value", value->list.v[0]);
			break;
		}
		/* fallthrough */
	case CONFIG_LIST:
	case CONFIG_SECRETS:
		list = json_array();
		json_add_strv(list, &value->list);
		json_set(holder, "value", list);
		break;
	case CONFIG_PORTS:
		json_set(holder, "value", ports_json(&value->list));
		break;
	case CONFIG_ENV:
		json_set(holder, "value", env_json(&value->list));
		break;
	case CONFIG_TARGETS:
		json_set(holder, "value", value->json ? json_clone(value->json) : json_object());
		break;
	case CONFIG_REGISTRY:
		json_set(holder, "value", registry_json(value->json));
		break;
	default:
		json_set_str(holder, "value", value->text);
	}
	return holder;
}

struct json *config_to_json(const struct config *config)
{
	static const char *const sources[] = {
		"default", "site", "user", "project", "environment", "option"};
	struct json *values = json_object();

	for (size_t i = 0; i < config_keys_n; i++) {
		const struct config_value *value = &config->values[i];
		struct json *item;

		if (config_keys[i].type == CONFIG_MAP || (!value->set && !value->text))
			continue;
		item = value_json(&config_keys[i], value);
		json_set_str(item, "source", sources[value->origin.source]);
		json_set_str(item, "file", value->origin.file);
		if (value->origin.line) {
			json_set_int(item, "line", value->origin.line);
			json_set_int(item, "column", value->origin.column);
		}
		json_set(values, config_keys[i].name, item);
	}
	return values;
}

/* Whether `word` is one of the words of name, which are joined by '_'. */
static bool has_word(const char *name, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = name; *p;) {
		size_t n = strcspn(p, "_");

		if (n == len && strncasecmp(p, word, n) == 0)
			return true;
		p += n;
		p += *p == '_';
	}
	return false;
}

bool config_name_is_secret(const char *name)
{
	static const char *const words[] = {"TOKEN", "KEY", "APIKEY", "SECRET", "SECRETS",
		"PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (has_word(name, words[i]))
			return true;
	return false;
}

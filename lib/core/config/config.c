/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "core/config/config_impl.h"
#include "core/config/ports.h"

/*
 * Values, and errors that name their location.
 */

size_t config_key_index(const char *name)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (str_eq(config_keys[i].name, name))
			return i;
	return config_keys_n;
}

int config_location_prefix(struct err *err, const struct config_location *location)
{
	if (location->at.line)
		return err_prefix(
			err, "%s:%u:%u", location->file, location->at.line, location->at.column);
	return err_prefix(err, "%s", location->file);
}

struct config_location config_location_of(
	const struct config_location *outer, const struct yaml *item)
{
	return (struct config_location){outer->source, outer->file, yaml_place(item)};
}

int config_location_error(
	struct err *err, enum err_id id, const struct config_location *location, const char *text)
{
	err_set(err, id, "%s", text);
	return config_location_prefix(err, location);
}

int config_location_errorf(
	struct err *err, const struct config_location *location, const char *fmt, ...)
{
	AUTO_FREE char *text = NULL;
	va_list args;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	return config_location_error(err, E_CONFIG, location, text);
}

char *config_place_hint(const char *name)
{
	char *hint = config_target_key_hint(name);

	if (!hint && !strchr(name, '.') && config_key_index(name) < config_keys_n)
		hint = mem_printf("%s: is a key of its own, at the top of the file", name);
	return hint;
}

int config_unknown_key(struct err *err, const struct config_location *location, const char *where,
	const struct yaml *item, const char *const *known, size_t n, const char *right)
{
	const char *near = str_suggest(item->key, known, n);
	AUTO_FREE char *place = right || near ? NULL : config_place_hint(item->key);
	AUTO_FREE char *shown = str_shown(item->key);

	err_set(err, E_CONFIG_KEY, "unknown key '%s'%s%s", shown, *where ? " in " : "", where);
	config_location_prefix(
		err, &(struct config_location){location->source, location->file, item->key_mark});
	if (right)
		return err_hint(err, "%s", right);
	if (near)
		return err_hint(err, "did you mean '%s'?", near);
	return err_hint(err, "%s", place ? place : "dlrun help dlrun.yaml");
}

static void config_value_done(struct config_value *value)
{
	free(value->origin.file);
	free(value->text);
	strv_done(&value->list);
	json_free(value->json);
	*value = (struct config_value){0};
}

void config_value_mark(struct config_value *value, const struct config_location *location)
{
	char *file = mem_strdup(location->file);

	free(value->origin.file);
	value->origin = (struct config_origin){
		location->source, file, location->at.line, location->at.column};
	value->set = true;
}

/*
 * Scalars
 */

int config_check_scalar(const struct config_key *key, const char *text, struct err *err)
{
	uint64_t size;
	int64_t number;

	switch (key->type) {
	case CONFIG_INT:
		return str_to_int(text, 0, INT64_MAX, key->name, &number, err);
	case CONFIG_SIZE:
		return str_to_size(text, &size, err);
	case CONFIG_DURATION:
		return duration_parse(text, &number, err);
	case CONFIG_ENUM:
		return str_choose(text, key->choices, key->name, err);
	default:
		return 0;
	}
}

int config_set_scalar(struct config *config, size_t i, const char *text,
	const struct config_location *location, struct err *err)
{
	const struct config_key *key = &config_keys[i];
	struct config_value *value = &config->values[i];
	AUTO_ERR struct err cause = {0};

	if (key->type == CONFIG_REGISTRY) {
		if (config_set_registry(key->name, text, &value->json, &cause) < 0) {
			config_location_prefix(&cause, location);
			return err_move(err, &cause);
		}
		config_value_mark(value, location);
		return 0;
	}
	if (config_check_scalar(key, text, &cause) < 0) {
		if (!str_starts(cause.message, key->name))
			err_prefix(&cause, "%s", key->name);
		return config_location_error(err, E_CONFIG, location, cause.message);
	}
	REPLACE(value->text, mem_strdup(text));
	config_value_mark(value, location);
	return 0;
}

bool config_is_option(const struct config *config, const char *key)
{
	return config_origin(config, key)->source == CONFIG_FROM_OPTION;
}

int config_blame(const struct config *config, const char *key, struct err *err)
{
	const struct config_origin *origin = config_origin(config, key);

	if (!origin->file || config_is_option(config, key))
		return -(int)err->code;
	return config_location_prefix(err, &(struct config_location){origin->source, origin->file,
						   {origin->line, origin->column}});
}

static const struct config_value *config_value_of(const struct config *config, const char *name)
{
	size_t i = config_key_index(name);

	BUG_ON(i == config_keys_n);
	return &config->values[i];
}

static int read_environment(struct config *config, const char *const *env, struct err *err)
{
	for (size_t i = 0; i < config_keys_n; i++) {
		AUTO_FREE char *name = mem_printf("DLRUN_%s", config_keys[i].name);
		const char *text;
		int r;

		if (!config_keys[i].env)
			continue;
		for (char *p = name; *p; p++)
			*p = (char)toupper((unsigned char)*p);
		text = env_get(env, name);
		if (str_empty(text))
			continue;
		r = config_set_scalar(config, i, text,
			&(struct config_location){CONFIG_FROM_ENV, name, {0}}, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Load the project's file after the other files, which define what is safe. */
static int load_project(struct config *config, const struct config_files *files, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	const char *slash = strrchr(files->project, '/');

	config->root = files->root ? mem_strdup(files->root)
				   : mem_strndup(files->project,
					     slash ? (size_t)(slash - files->project) : 0);
	int r = config_read_project(config, files, &text, err);
	return r > 0 ? config_read_text(config, CONFIG_FROM_PROJECT, files->project, &text, err)
		     : r;
}

int config_load(const struct config_files *files, struct config **ret, struct err *err)
{
	AUTO_CONFIG struct config *config = mem_alloc(1, sizeof(*config));
	int r = 0;

	BUG_ON(config_keys_n > CONFIG_KEYS_MAX);
	for (size_t i = 0; i < config_keys_n; i++)
		config->values[i].text = mem_strdup(config_keys[i].fallback);
	config->home = mem_strdup(env_get(files->env, "HOME"));
	if (files->site)
		r = config_read_file(config, CONFIG_FROM_SITE, files->site, err);
	if (r == 0 && files->user)
		r = config_read_file(config, CONFIG_FROM_USER, files->user, err);
	if (r == 0 && files->project)
		r = load_project(config, files, err);
	r = r < 0 || files->inside_run ? r : read_environment(config, files->env, err);
	if (r < 0)
		return r;
	*ret = TAKE(config);
	return 0;
}

void config_free(struct config *config)
{
	if (!config)
		return;
	for (size_t i = 0; i < config_keys_n; i++)
		config_value_done(&config->values[i]);
	config_project_done(&config->project);
	free(config->home);
	free(config->root);
	free(config);
}

int config_override(struct config *config, const char *key, const char *text, struct err *err)
{
	size_t i = config_key_index(key);
	AUTO_ERR struct err cause = {0};

	BUG_ON(i == config_keys_n || config_keys[i].type == CONFIG_REGISTRY);
	if (config_keys[i].type == CONFIG_LIST) {
		strv_done(&config->values[i].list);
		strv_add(&config->values[i].list, text);
	} else if (config_check_scalar(&config_keys[i], text, &cause) < 0) {
		return err_set(err, E_USAGE, "--%s: %s", key, cause.message);
	} else {
		REPLACE(config->values[i].text, mem_strdup(text));
	}
	config_value_mark(&config->values[i],
		&(struct config_location){CONFIG_FROM_OPTION, "the command line", {0}});
	return 0;
}

/*
 * Readers
 */

const char *config_str(const struct config *config, const char *key)
{
	return config_value_of(config, key)->text;
}

int64_t config_int(const struct config *config, const char *key, int64_t unset)
{
	const char *text = config_value_of(config, key)->text;
	int64_t number = unset;

	if (text)
		str_to_int(text, 0, INT64_MAX, key, &number, NULL);
	return number;
}

uint64_t config_size(const struct config *config, const char *key)
{
	const char *text = config_value_of(config, key)->text;
	uint64_t size = 0;

	if (text)
		str_to_size(text, &size, NULL);
	return size;
}

int64_t config_duration(const struct config *config, const char *key, int64_t unset)
{
	const char *text = config_value_of(config, key)->text;
	int64_t ms = unset;

	if (text)
		duration_parse(text, &ms, NULL);
	return ms;
}

const struct strv *config_list(const struct config *config, const char *key)
{
	return &config_value_of(config, key)->list;
}

bool config_is_set(const struct config *config, const char *key)
{
	return config_value_of(config, key)->set;
}

const struct strv *config_command(const struct config *config, bool *ret_shell)
{
	const struct config_value *value = config_value_of(config, "command");

	*ret_shell = value->shell;
	return &value->list;
}

const struct strv *config_env(const struct config *config)
{
	return &config_value_of(config, "env")->list;
}

const struct strv *config_secrets(const struct config *config)
{
	return &config_value_of(config, "secrets")->list;
}

const struct json *config_target(const struct config *config, const char *name)
{
	return json_get(config_value_of(config, "targets")->json, name);
}

bool config_target_is_cluster(const struct config *config, const char *name)
{
	const struct json *definition = name ? config_target(config, name) : NULL;

	if (definition)
		return str_eq(json_get_str(definition, "kind"), "kubernetes");
	return name && (str_eq(name, "kube") || str_starts(name, "kube:"));
}

const struct json *config_axes(const struct config *config)
{
	return config_value_of(config, "sweep.over")->json;
}

const struct json *config_roles(const struct config *config)
{
	return config_value_of(config, "roles")->json;
}

void config_target_names(const struct config *config, struct strv *ret)
{
	const struct json *targets = config_value_of(config, "targets")->json;

	if (!targets)
		return;
	for (const struct json *item = json_first(targets); item; item = json_next(item))
		strv_add(ret, json_key(item));
}

const struct config_origin *config_origin(const struct config *config, const char *key)
{
	return &config_value_of(config, key)->origin;
}

char *config_base_dir(const struct config *config, const char *key, const char *cwd)
{
	const struct config_origin *origin = config_origin(config, key);

	return origin->line ? fs_dirname(origin->file) : mem_strdup(cwd);
}

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

static struct json *config_value_json(
	const struct config_key *key, const struct config_value *value)
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
	case CONFIG_AXES:
	case CONFIG_ROLES:
		json_set(holder, "value", json_clone(value->json));
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
		item = config_value_json(&config_keys[i], value);
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
static bool config_has_word(const char *name, const char *word)
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

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (config_has_word(name, words[i]))
			return true;
	return false;
}

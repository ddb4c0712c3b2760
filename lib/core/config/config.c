/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"

static const struct config_value *value_of(const struct config *config, const char *name)
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
		r = config_set_scalar(
			config, i, text, &(struct config_place){CONFIG_FROM_ENV, name, {0}}, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static void set_defaults(struct config *config)
{
	BUG_ON(config_keys_n > CONFIG_KEYS_MAX);
	for (size_t i = 0; i < config_keys_n; i++)
		config->values[i].text = mem_strdup(config_keys[i].fallback);
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

static int load(struct config *config, const struct config_files *files, struct err *err)
{
	int r = 0;

	if (files->site)
		r = config_read_file(config, CONFIG_FROM_SITE, files->site, err);
	if (r == 0 && files->user)
		r = config_read_file(config, CONFIG_FROM_USER, files->user, err);
	if (r == 0 && files->project)
		r = load_project(config, files, err);
	return r < 0 || files->inside_run ? r : read_environment(config, files->env, err);
}

int config_load(const struct config_files *files, struct config **ret, struct err *err)
{
	AUTO_CONFIG struct config *config = mem_alloc(1, sizeof(*config));
	int r;

	set_defaults(config);
	config->home = mem_strdup(env_get(files->env, "HOME"));
	r = load(config, files, err);
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
		free(config->values[i].text);
		config->values[i].text = mem_strdup(text);
	}
	config_value_mark(&config->values[i],
		&(struct config_place){CONFIG_FROM_OPTION, "the command line", {0}});
	return 0;
}

/*
 * Readers
 */

const char *config_str(const struct config *config, const char *key)
{
	return value_of(config, key)->text;
}

int64_t config_int(const struct config *config, const char *key, int64_t unset)
{
	const char *text = value_of(config, key)->text;
	int64_t number = unset;

	if (text)
		str_to_int(text, 0, INT64_MAX, key, &number, NULL);
	return number;
}

uint64_t config_size(const struct config *config, const char *key)
{
	const char *text = value_of(config, key)->text;
	uint64_t size = 0;

	if (text)
		str_to_size(text, &size, NULL);
	return size;
}

int64_t config_duration(const struct config *config, const char *key, int64_t unset)
{
	const char *text = value_of(config, key)->text;
	int64_t ms = unset;

	if (text)
		duration_parse(text, &ms, NULL);
	return ms;
}

const struct strv *config_list(const struct config *config, const char *key)
{
	return &value_of(config, key)->list;
}

bool config_is_set(const struct config *config, const char *key)
{
	return value_of(config, key)->set;
}

const struct strv *config_command(const struct config *config, bool *ret_shell)
{
	const struct config_value *value = value_of(config, "command");

	*ret_shell = value->shell;
	return &value->list;
}

const struct strv *config_env(const struct config *config)
{
	return &value_of(config, "env")->list;
}

const struct strv *config_secrets(const struct config *config)
{
	return &value_of(config, "secrets")->list;
}

const struct json *config_target(const struct config *config, const char *name)
{
	return json_get(value_of(config, "targets")->json, name);
}

void config_target_names(const struct config *config, struct strv *ret)
{
	const struct json *targets = value_of(config, "targets")->json;

	if (!targets)
		return;
	for (const struct json *item = json_first(targets); item; item = json_next(item))
		strv_add(ret, json_key(item));
}

const struct config_origin *config_origin(const struct config *config, const char *key)
{
	return &value_of(config, key)->origin;
}

char *config_base_dir(const struct config *config, const char *key, const char *cwd)
{
	const struct config_origin *origin = config_origin(config, key);

	return origin->line ? fs_dirname(origin->file) : mem_strdup(cwd);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"
#include "core/config/ports.h"
#include "core/config/target_names.h"

/*
 * The content of a configuration file.
 */

enum { PLAIN_MAX = 200 }; /* of a value in a hint */

int config_wrong_kind(struct err *err, const struct config_location *location, const char *key,
	const char *wanted, const struct yaml *node)
{
	return config_location_errorf(
		err, location, "%s must be %s, not %s", key, wanted, yaml_kind_name(node));
}

static int config_file_read_list(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];
	AUTO_STRV struct strv list = {0};

	if (node->kind != YAML_LIST)
		return config_wrong_kind(err, location, config_keys[i].name, "a list", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);

		if (item->kind != YAML_SCALAR)
			return config_location_errorf(err, &here,
				"an item of %s must be a single value, not %s", config_keys[i].name,
				yaml_kind_name(item));
		strv_add(&list, item->text);
	}
	strv_done(&value->list);
	value->list = list;
	list = (struct strv){0};
	config_value_mark(value, location);
	return 0;
}

static int check_ports(
	const struct yaml *node, const struct config_location *location, struct err *err)
{
	struct ports ports = {0};

	for (const struct yaml *item = node->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);
		AUTO_ERR struct err cause = {0};

		if (item->kind == YAML_SCALAR && ports_add(&ports, item->text, &cause) < 0)
			return config_location_errorf(err, &here, "ports: %s", cause.message);
	}
	return 0;
}

static int read_ports(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	int r = check_ports(node, location, err);

	return r < 0 ? r : config_file_read_list(config, i, node, location, err);
}

static int config_file_read_names(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	AUTO_STRV struct strv names = {0};

	if (node->kind == YAML_SCALAR)
		return config_set_scalar(config, i, node->text, location, err);
	if (node->kind != YAML_LIST)
		return config_wrong_kind(
			err, location, config_keys[i].name, "a name or a list of names", node);
	if (!node->first)
		return config_location_errorf(err, location, "%s is empty", config_keys[i].name);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);
		if (item->kind != YAML_SCALAR)
			return config_wrong_kind(
				err, &here, config_keys[i].name, "a list of names", item);
		if (!*item->text)
			return config_location_errorf(
				err, &here, "an item of %s is empty", config_keys[i].name);
		/* In the text it would take those behind it for hosts of its own. */
		if (item->next && str_starts(item->text, TARGET_NAMES_SSH))
			return config_location_errorf(err, &here,
				"%s: %s has to be the last of the list", config_keys[i].name,
				item->text);
		strv_add(&names, item->text);
	}
	AUTO_FREE char *text = strv_join(&names, ",");
	return config_set_scalar(config, i, text, location, err);
}

static int read_command(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind == YAML_MAP)
		return config_wrong_kind(err, location, config_keys[i].name,
			"a list of arguments or a string", node);
	if (node->kind == YAML_LIST) {
		value->shell = false;
		return config_file_read_list(config, i, node, location, err);
	}
	if (!*node->text)
		return config_location_errorf(err, location, "%s is empty", config_keys[i].name);
	strv_done(&value->list);
	strv_add(&value->list, node->text);
	value->shell = true;
	config_value_mark(value, location);
	return 0;
}

static int bad_name(const char *name, struct yaml_mark at, const struct config_location *location,
	struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);

	return config_location_errorf(err,
		&(struct config_location){location->source, location->file, at},
		"'%s' is not a valid variable name", shown);
}

/* A later (higher) layer's value of the same name wins. */
static void env_put(struct strv *list, const char *name, const char *text)
{
	size_t len = strlen(name);
	char *item = text ? mem_printf("%s=%s", name, text) : mem_strdup(name);

	for (size_t i = 0; i < list->n; i++) {
		if (strncmp(list->v[i], name, len) == 0 && strchr("=", list->v[i][len])) {
			REPLACE(list->v[i], item);
			return;
		}
	}
	strv_add_take(list, item);
}

static int read_env(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind != YAML_MAP)
		return config_wrong_kind(
			err, location, config_keys[i].name, "a map of names to values", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);

		if (!env_name_is_valid(item->key, strlen(item->key)))
			return bad_name(item->key, item->key_mark, location, err);
		if (item->kind != YAML_SCALAR)
			return config_wrong_kind(err, &here, item->key, "a single value", item);
		env_put(&value->list, item->key, yaml_is_null(item) ? NULL : item->text);
	}
	config_value_mark(value, location);
	return 0;
}

/* Whether a secret of that origin may be had: from this shell, or a file of the tree. */
static bool may_read(struct config *config, const struct config_location *location,
	enum config_setter by, const char *name, const char *from)
{
	AUTO_FREE char *key = mem_printf("secrets.%s", name);
	AUTO_FREE char *file = from ? config_file_named(config, location->file, from + 1) : NULL;

	return !from || config_claim(config, location, by, key, from, file);
}

/* A list of names, or a map in which a name without a value is from this shell, too. */
static int config_file_read_secrets(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind == YAML_SCALAR)
		return config_wrong_kind(err, location, "secrets", "a list of names", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		bool named = node->kind == YAML_MAP;
		struct config_location here = config_location_of(location, item);
		const char *name = named ? item->key : item->text, *from = NULL;

		if (item->kind != YAML_SCALAR)
			return config_wrong_kind(err, &here, "an item of secrets", "a name", item);
		if (named && !yaml_is_null(item))
			from = item->text;
		if (!env_name_is_valid(name, strlen(name)))
			return bad_name(name, named ? item->key_mark : item->mark, location, err);
		/* A value in a file that git tracks is what secrets are there to avoid. */
		if (from && (from[0] != '@' || !from[1]))
			return config_location_errorf(err, &here,
				"%s: a secret comes from this shell or from \"@FILE\"", name);
		if (may_read(config, &here, config_keys[i].by, name, from))
			env_put(&value->list, name, from);
	}
	config_value_mark(value, location);
	return 0;
}

static int config_file_read_registry(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];
	int r = config_read_registry(
		config, config_keys[i].name, node, location, &value->json, err);

	if (r == 0)
		config_value_mark(value, location);
	return r;
}

static int config_file_check_known(const struct yaml *item, const char *what,
	const char *const *known, size_t n, const struct config_location *location, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(item->key, known[i]))
			return 0;
	return config_unknown_key(err, location, what, item, known, n, NULL);
}

/*
 * sweep.over: axes of a study. Here only their shape is checked; core/study reads the values.
 */

/* {log: [1e-4, 1e-1], n: 12} */
static int check_axis_map(const struct yaml *map, const char *what,
	const struct config_location *location, struct err *err)
{
	static const char *const known[] = {"lin", "log", "uniform", "loguniform", "n"};

	for (const struct yaml *item = map->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);
		enum yaml_kind kind = str_eq(item->key, "n") ? YAML_SCALAR : YAML_LIST;
		AUTO_FREE char *name = mem_printf("%s.%s", what, item->key);

		int r = config_file_check_known(item, what, known, ARRAY_LEN(known), &here, err);
		if (r < 0)
			return r;
		if (item->kind != kind)
			return config_wrong_kind(err, &here, name,
				kind == YAML_LIST ? "a list of two numbers" : "a number", item);
	}
	return 0;
}

/* Scalars are kept as they are written: 1e-4 is not 0.0001 for a program. */
static struct json *axis_item_json(const struct yaml *node)
{
	return node->kind == YAML_SCALAR ? json_string(node->text) : yaml_to_json(node);
}

static int read_axis_list(const struct yaml *list, const char *what,
	const struct config_location *location, struct json *to, struct err *err)
{
	for (const struct yaml *item = list->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);

		if (yaml_is_null(item) && !*item->text)
			return config_location_errorf(
				err, &here, "an item of %s has no value", what);
		json_add(to, axis_item_json(item));
	}
	return 0;
}

static int read_axis(const struct yaml *node, const struct config_location *location,
	struct json *to, struct err *err)
{
	AUTO_FREE char *shown = str_shown(node->key), *what = mem_printf("sweep.over.%s", shown);
	int r = 0;

	if (yaml_is_null(node))
		return config_location_errorf(err, location, "%s has no value", what);
	if (node->kind == YAML_MAP) {
		r = check_axis_map(node, what, location, err);
		json_set(to, node->key, yaml_to_json_text(node));
	} else if (node->kind == YAML_LIST) {
		struct json *list = json_array();
		json_set(to, node->key, list);
		r = read_axis_list(node, what, location, list, err);
	} else {
		json_set(to, node->key, axis_item_json(node));
	}
	return r;
}

static int config_file_read_axes(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];
	AUTO_JSON struct json *axes = json_object();

	if (node->kind != YAML_MAP)
		return config_wrong_kind(
			err, location, config_keys[i].name, "a map of names to values", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);
		int r = read_axis(item, &here, axes, err);
		if (r < 0)
			return r;
	}
	json_free(value->json);
	value->json = TAKE(axes);
	config_value_mark(value, location);
	return 0;
}

/*
 * roles: the parts of a run. Here only their shape is checked; core/record/roles.h reads the
 * values.
 */

static int config_file_check_role_words(const struct yaml *list, const char *what,
	const struct config_location *location, struct err *err)
{
	for (const struct yaml *item = list->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);

		if (item->kind != YAML_SCALAR)
			return config_wrong_kind(err, &here, what, "a list of arguments", item);
	}
	return 0;
}

static int config_file_check_role_env(const struct yaml *map, const char *what,
	const struct config_location *location, struct err *err)
{
	for (const struct yaml *item = map->first; item; item = item->next) {
		struct config_location here = config_location_of(location, item);

		if (item->kind != YAML_SCALAR || yaml_is_null(item))
			return config_location_errorf(
				err, &here, "%s: each variable has a single value", what);
		if (!env_name_is_valid(item->key, strlen(item->key))) {
			AUTO_FREE char *shown = str_shown(item->key);
			return config_location_errorf(
				err, &here, "'%s' is not a valid variable name", shown);
		}
	}
	return 0;
}

static int config_file_check_role_key(const struct yaml *item, const char *what,
	const struct config_location *location, struct err *err)
{
	bool is_command = str_eq(item->key, "command"), is_env = str_eq(item->key, "env");

	if (is_env && item->kind == YAML_MAP)
		return config_file_check_role_env(item, what, location, err);
	if (is_env)
		return config_wrong_kind(err, location, what, "a map of names to values", item);
	if (is_command && item->kind == YAML_LIST && item->first)
		return config_file_check_role_words(item, what, location, err);
	if (item->kind == YAML_SCALAR && *item->text && !yaml_is_null(item))
		return 0;
	if (item->kind == YAML_SCALAR || (is_command && item->kind == YAML_LIST))
		return config_location_errorf(err, location, "%s is empty", what);
	return config_wrong_kind(err, location, what,
		is_command ? "a list of arguments or a string" : "a single value", item);
}

static int config_file_check_role(
	const struct yaml *role, const struct config_location *location, struct err *err)
{
	static const char *const known[] = {"nodes", "gpus", "cpus", "memory", "command", "env"};
	AUTO_FREE char *shown = str_shown(role->key), *what = mem_printf("roles.%s", shown);
	int r = 0;

	if (yaml_is_null(role))
		return 0;
	if (role->kind != YAML_MAP)
		return config_wrong_kind(err, location, what, "a map", role);
	for (const struct yaml *item = role->first; r == 0 && item; item = item->next) {
		struct config_location here = config_location_of(location, item);
		AUTO_FREE char *name = mem_printf("%s.%s", what, item->key);

		r = config_file_check_known(item, what, known, ARRAY_LEN(known), &here, err);
		if (r == 0)
			r = config_file_check_role_key(item, name, &here, err);
	}
	return r;
}

static int config_file_read_roles(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];

	if (node->kind != YAML_MAP || !node->first)
		return config_wrong_kind(
			err, location, config_keys[i].name, "a map of names to roles", node);
	for (const struct yaml *role = node->first; role; role = role->next) {
		struct config_location here = config_location_of(location, role);
		int r = config_file_check_role(role, &here, err);
		if (r < 0)
			return r;
	}
	json_free(value->json);
	value->json = yaml_to_json_text(node);
	config_value_mark(value, location);
	return 0;
}

/*
 * Maps
 */

/* The part of a key's name below prefix, or NULL if it does not lie directly there. */
static const char *name_below(const char *name, const char *prefix)
{
	size_t len = strlen(prefix);

	if (len) {
		if (strncmp(name, prefix, len) != 0 || name[len] != '.')
			return NULL;
		name += len + 1;
	}
	return strchr(name, '.') ? NULL : name;
}

static bool has_keys_below(const char *name)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (name_below(config_keys[i].name, name))
			return true;
	return false;
}

static int read_map(struct config *config, const struct yaml *map, const char *prefix,
	const struct config_location *location, struct err *err);

/* A map instead of a word means the default, with these details. */
static int read_choice_map(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	int r = config_set_scalar(config, i, config_keys[i].fallback, location, err);

	return r < 0 ? r : read_map(config, node, config_keys[i].name, location, err);
}

/* The text of a node if it can stand in a hint as it is, or NULL. */
static const char *plain_text(const struct yaml *node)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				    "_-./=@~ ";

	if (node->kind != YAML_SCALAR || yaml_is_null(node) || !*node->text ||
		strlen(node->text) > PLAIN_MAX || node->text[strspn(node->text, plain)])
		return NULL;
	return node->text;
}

/* A line in the shape that the key wants, with the value that was given where that fits. */
static int hint_shape(struct err *err, const struct config_key *key, const struct yaml *node)
{
	const char *text = plain_text(node), *dot = strchr(key->name, '.');
	bool is_list = key->type == CONFIG_LIST || key->type == CONFIG_SECRETS;
	int top = dot ? (int)(dot - key->name) : 0;

	if (err->hint)
		return -(int)err->code;
	if (text && is_list && dot)
		return err_hint(err, "%.*s: {%s: [%s]}", top, key->name, dot + 1, text);
	if (text && is_list)
		return err_hint(err, "%s: [%s]", key->name, text);
	if (text && str_eq(key->name, "setup"))
		return err_hint(err, "setup: {run: %s}", text);
	return key->example ? err_hint(err, "%s", key->example) : -(int)err->code;
}

static int read_typed(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err);

/* 1: it counts; 0: not before it is confirmed. */
static int may_set(struct config *config, const struct config_key *key, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	AUTO_FREE char *file = NULL;

	if (location->source == CONFIG_FROM_PROJECT && key->by == CONFIG_BY_USER) {
		config_location_errorf(err, location,
			"%s cannot be set by a project; set it in your own configuration",
			key->name);
		return err_hint(err, "dlrun help dlrun.yaml");
	}
	if (key->by != CONFIG_BY_CONFIRMED || node->kind != YAML_SCALAR)
		return 1;
	file = config_file_named(config, location->file, node->text);
	return config_claim(config, location, key->by, key->name, node->text, file);
}

static int config_file_read_value(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	int r = may_set(config, &config_keys[i], node, location, err);

	if (r <= 0)
		return r;
	r = read_typed(config, i, node, location, err);
	return r < 0 && err->id == E_CONFIG ? hint_shape(err, &config_keys[i], node) : r;
}

static int read_typed(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	const struct config_key *key = &config_keys[i];

	if (yaml_is_null(node))
		return config_location_errorf(err, location, "%s has no value", key->name);
	switch (key->type) {
	case CONFIG_LIST:
		return config_file_read_list(config, i, node, location, err);
	case CONFIG_PORTS:
		return read_ports(config, i, node, location, err);
	case CONFIG_COMMAND:
		return read_command(config, i, node, location, err);
	case CONFIG_ENV:
		return read_env(config, i, node, location, err);
	case CONFIG_SECRETS:
		return config_file_read_secrets(config, i, node, location, err);
	case CONFIG_TARGETS:
		return config_read_targets(config, i, node, location, err);
	case CONFIG_AXES:
		return config_file_read_axes(config, i, node, location, err);
	case CONFIG_ROLES:
		return config_file_read_roles(config, i, node, location, err);
	case CONFIG_REGISTRY:
		return config_file_read_registry(config, i, node, location, err);
	case CONFIG_NAMES:
		return config_file_read_names(config, i, node, location, err);
	case CONFIG_MAP:
		if (node->kind != YAML_MAP)
			return config_wrong_kind(err, location, key->name, "a map", node);
		return read_map(config, node, key->name, location, err);
	default:
		if (node->kind == YAML_MAP && has_keys_below(key->name))
			return read_choice_map(config, i, node, location, err);
		if (node->kind != YAML_SCALAR)
			return config_wrong_kind(err, location, key->name, "a single value", node);
		return config_set_scalar(config, i, node->text, location, err);
	}
}

/* The location where a key of that name is valid, with the value that was given: `gpus: 1` and
 * `resources.gpus: 1` belong into `resources:`. NULL: nowhere; the caller frees. */
static char *right_place(const struct yaml *item)
{
	const char *text = plain_text(item);

	for (size_t i = 0; text && i < config_keys_n; i++) {
		const char *name = config_keys[i].name, *dot = strchr(name, '.');

		if (dot && (str_eq(dot + 1, item->key) || str_eq(name, item->key)))
			return mem_printf("%.*s: {%s: %s}", (int)(dot - name), name, dot + 1, text);
	}
	return config_place_hint(item->key);
}

static int config_file_unknown_key(struct err *err, const struct config_location *location,
	const char *prefix, const struct yaml *item)
{
	AUTO_FREE char *right = *prefix ? NULL : right_place(item);
	const char *known[CONFIG_KEYS_MAX];
	size_t n = 0;

	for (size_t i = 0; i < config_keys_n; i++) {
		const char *below = name_below(config_keys[i].name, prefix);

		if (below)
			known[n++] = below;
	}
	return config_unknown_key(err, location, prefix, item, known, n, right);
}

static int read_map(struct config *config, const struct yaml *map, const char *prefix,
	const struct config_location *location, struct err *err)
{
	int r = 0;

	for (const struct yaml *item = map->first; item && r == 0; item = item->next) {
		struct config_location here = config_location_of(location, item);
		AUTO_FREE char *name =
			*prefix ? mem_printf("%s.%s", prefix, item->key) : mem_strdup(item->key);
		size_t i = config_key_index(name);

		if (i == config_keys_n || !name_below(name, prefix))
			return config_file_unknown_key(err, &here, prefix, item);
		r = config_file_read_value(config, i, item, &here, err);
	}
	return r;
}

int config_read_text(struct config *config, enum config_source source, const char *path,
	const struct buf *text, struct err *err)
{
	AUTO_YAML struct yaml *root = NULL;
	int r = yaml_parse(text->data, text->len, path, &root, err);

	if (r < 0)
		return r;
	struct config_location location = {source, path, root->mark};
	if (root->kind == YAML_MAP)
		return read_map(config, root, "", &location, err);
	config_location_errorf(
		err, &location, "the file must be a map of keys, not %s", yaml_kind_name(root));
	return err_hint(err, "target: local");
}

int config_read_file(
	struct config *config, enum config_source source, const char *path, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err error = {0};
	bool missing = false;

	if (fs_read_regular(path, YAML_SIZE_MAX, &text, NULL, &missing, &error) == 0)
		return config_read_text(config, source, path, &text, err);
	return missing ? 0 : err_move(err, &error);
}

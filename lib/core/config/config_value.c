/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"

/*
 * Values, and errors that name their place.
 */

size_t config_key_index(const char *name)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (str_eq(config_keys[i].name, name))
			return i;
	return config_keys_n;
}

int config_place_prefix(struct err *err, const struct config_place *place)
{
	if (place->at.line)
		return err_prefix(err, "%s:%u:%u", place->file, place->at.line, place->at.column);
	return err_prefix(err, "%s", place->file);
}

struct config_place config_place_of(const struct config_place *outer, const struct yaml *item)
{
	bool is_apart = item->key_mark.line && item->key_mark.line != item->mark.line;

	return (struct config_place){
		outer->source, outer->file, is_apart ? item->key_mark : item->mark};
}

int config_place_error(
	struct err *err, enum err_id id, const struct config_place *place, const char *text)
{
	err_set(err, id, "%s", text);
	return config_place_prefix(err, place);
}

int config_place_errorf(struct err *err, const struct config_place *place, const char *fmt, ...)
{
	AUTO_FREE char *text = NULL;
	va_list args;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	return config_place_error(err, E_CONFIG, place, text);
}

int config_unknown_key(struct err *err, const struct config_place *place, const char *where,
	const struct yaml *item, const char *const *known, size_t n, const char *right)
{
	const char *near = str_suggest(item->key, known, n);
	AUTO_FREE char *shown = str_shown(item->key);

	err_set(err, E_CONFIG_KEY, "unknown key '%s'%s%s", shown, *where ? " in " : "", where);
	config_place_prefix(
		err, &(struct config_place){place->source, place->file, item->key_mark});
	if (right)
		return err_hint(err, "%s", right);
	if (near)
		return err_hint(err, "did you mean '%s'?", near);
	return err_hint(err, "dlrun help dlrun.yaml");
}

void config_value_done(struct config_value *value)
{
	free(value->origin.file);
	free(value->text);
	strv_done(&value->list);
	json_free(value->json);
	*value = (struct config_value){0};
}

void config_value_mark(struct config_value *value, const struct config_place *place)
{
	char *file = mem_strdup(place->file);

	free(value->origin.file);
	value->origin =
		(struct config_origin){place->source, file, place->at.line, place->at.column};
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
	const struct config_place *place, struct err *err)
{
	const struct config_key *key = &config_keys[i];
	struct config_value *value = &config->values[i];
	AUTO_ERR struct err cause = {0};

	if (key->type == CONFIG_REGISTRY) {
		if (config_set_registry(key->name, text, &value->json, &cause) < 0) {
			config_place_prefix(&cause, place);
			return err_move(err, &cause);
		}
		config_value_mark(value, place);
		return 0;
	}
	if (config_check_scalar(key, text, &cause) < 0) {
		if (!str_starts(cause.message, key->name))
			err_prefix(&cause, "%s", key->name);
		return config_place_error(err, E_CONFIG, place, cause.message);
	}
	free(value->text);
	value->text = mem_strdup(text);
	config_value_mark(value, place);
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
	return config_place_prefix(err, &(struct config_place){origin->source, origin->file,
						{origin->line, origin->column}});
}

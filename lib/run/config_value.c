#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "run/config_impl.h"

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

int config_place_error(
	struct err *err, enum err_id id, const struct config_place *place, const char *text)
{
	if (place->line)
		return err_set(err, id, "%s:%u: %s", place->file, place->line, text);
	return err_set(err, id, "%s: %s", place->file, text);
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
	const char *name, const char *const *known, size_t n, const char *right)
{
	const char *near = str_suggest(name, known, n);
	AUTO_BUF struct buf shown;

	buf_init(&shown, 256);
	str_escape(&shown, name, strlen(name));
	err_set(err, E_CONFIG_KEY, "%s:%u: there is no key '%s'%s%s", place->file, place->line,
		shown.data, *where ? " in " : "", where);
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
	value->origin = (struct config_origin){place->source, file, place->line};
	value->set = true;
}

/*
 * Scalars
 */

static bool word_in(const char *words, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = words; p && *p;) {
		size_t n = strcspn(p, " ");

		if (n == len && memcmp(p, word, n) == 0)
			return true;
		p += n + strspn(p + n, " ");
	}
	return false;
}

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
		if (!word_in(key->choices, text))
			return err_set(err, E_CONFIG, "'%s' is none of: %s", text, key->choices);
		return 0;
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
			err_prefix(&cause, "%s", place->file);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/yaml_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/str.h"

static bool is_digits(const char *s)
{
	return *s && !s[strspn(s, "0123456789")];
}

/* [-+]?(0|[1-9][0-9]*), of those that a double holds exactly. */
static bool is_int(const char *text)
{
	const char *digits = text + (*text == '-' || *text == '+');

	return is_digits(digits) && strlen(digits) <= 15 && (digits[0] != '0' || !digits[1]);
}

static bool is_fraction(const char *text)
{
	const char *s = text + (*text == '-' || *text == '+');
	size_t whole = strspn(s, "0123456789");

	return whole > 0 && s[whole] == '.' && is_digits(s + whole + 1) && strlen(s) < 32;
}

static struct json *scalar(const struct yaml *yaml, bool typed)
{
	struct json *holder = json_object(), *value;

	if (!typed || !yaml->plain)
		json_set_str(holder, "v", yaml_is_null(yaml) && !typed ? "" : yaml->text);
	else if (yaml_is_null(yaml))
		json_set(holder, "v", json_null());
	else if (str_eq(yaml->text, "true") || str_eq(yaml->text, "false"))
		json_set_bool(holder, "v", yaml->text[0] == 't');
	else if (is_int(yaml->text))
		json_set_int(holder, "v", strtoll(yaml->text, NULL, 10));
	else if (is_fraction(yaml->text))
		json_set_num(holder, "v", strtod(yaml->text, NULL));
	else
		json_set_str(holder, "v", yaml->text);
	value = json_clone(json_get(holder, "v"));
	json_free(holder);
	return value;
}

static struct json *convert(const struct yaml *yaml, bool typed)
{
	struct json *json;

	if (yaml->kind == YAML_SCALAR)
		return scalar(yaml, typed);
	json = yaml->kind == YAML_MAP ? json_object() : json_array();
	for (const struct yaml *item = yaml->first; item; item = item->next) {
		if (item->foreign)
			continue;
		if (yaml->kind == YAML_MAP)
			json_set(json, item->key, convert(item, typed));
		else
			json_add(json, convert(item, typed));
	}
	return json;
}

struct json *yaml_to_json(const struct yaml *yaml)
{
	return convert(yaml, true);
}

struct json *yaml_to_json_text(const struct yaml *yaml)
{
	return convert(yaml, false);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "app/init/init_parse.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/unicode.h"

/*
 * TOML, one line after the other
 */

enum { PATH_MAX_BYTES = 512, VALUE_MAX_BYTES = 4096 };

struct toml {
	const char *at, *end;
	struct buf table; /* dotted */
	struct buf path;  /* table.key */
	struct buf value;
};

/* value: NULL for what is no string of one line; key: NULL for the start of a table. Returns false
 * to stop. */
typedef bool toml_fn(void *ctx, const struct toml *toml, const char *key, const char *value);

static bool ends(const struct toml *toml)
{
	return toml->at == toml->end;
}

static bool ends_line(const struct toml *toml)
{
	return ends(toml) || *toml->at == '\n';
}

static void skip_blanks(struct toml *toml)
{
	while (!ends(toml) && strchr(" \t\r", *toml->at))
		toml->at++;
}

static void skip_line(struct toml *toml)
{
	while (!ends_line(toml))
		toml->at++;
}

static bool starts(const struct toml *toml, const char *word)
{
	size_t len = strlen(word);

	return (size_t)(toml->end - toml->at) >= len && memcmp(toml->at, word, len) == 0;
}

/* Behind \u or \U. */
static bool read_hex(struct toml *toml, size_t digits)
{
	uint32_t cp = 0;

	for (size_t i = 0; i < digits; i++, toml->at++) {
		int digit = ends(toml) ? -1 : hex_digit((unsigned char)*toml->at);
		if (digit < 0)
			return false;
		cp = cp << 4 | (uint32_t)digit;
	}
	if (cp == 0 || cp > 0x10ffff)
		return false;
	unicode_add(&toml->value, cp);
	return true;
}

static bool read_escape(struct toml *toml)
{
	static const char names[] = "btnfr\"\\", bytes[] = "\b\t\n\f\r\"\\";
	char c = ends(toml) ? '\0' : *toml->at++;
	const char *name = c ? strchr(names, c) : NULL;

	if (name)
		buf_addc(&toml->value, bytes[name - names]);
	else if (c == 'u' || c == 'U')
		return read_hex(toml, c == 'u' ? 4 : 8);
	return name != NULL;
}

/* A string of one line; the quote is next. false: none that is understood. */
static bool read_string(struct toml *toml)
{
	char quote = *toml->at++;
	bool ok = true;

	buf_reset(&toml->value);
	while (!ends_line(toml) && *toml->at != quote) {
		char c = *toml->at++;
		if (c == '\\' && quote == '"')
			ok &= read_escape(toml);
		else
			buf_addc(&toml->value, c);
	}
	if (ends_line(toml))
		return false;
	toml->at++;
	return ok && !toml->value.full && !memchr(toml->value.data, '\0', toml->value.len) &&
	       str_is_utf8(toml->value.data, toml->value.len);
}

/* A string of several lines: its three quotes are next. */
static void skip_block(struct toml *toml)
{
	char quotes[4] = {0};

	memcpy(quotes, toml->at, 3);
	for (toml->at += 3; !ends(toml) && !starts(toml, quotes); toml->at++)
		if (*quotes == '"' && *toml->at == '\\' && toml->at + 1 < toml->end)
			toml->at++;
	toml->at += ends(toml) ? 0 : 3;
}

/* Anything that is no single string: to the end of the line outside of all brackets. */
static void skip_value(struct toml *toml)
{
	size_t depth = 0;

	while (!ends(toml) && (depth > 0 || *toml->at != '\n')) {
		char c = *toml->at;
		if (starts(toml, "\"\"\"") || starts(toml, "'''")) {
			skip_block(toml);
			continue;
		}
		if (c == '"' || c == '\'') {
			read_string(toml);
			continue;
		}
		if (c == '#') {
			skip_line(toml);
			continue;
		}
		if (c == '[' || c == '{')
			depth++;
		else if ((c == ']' || c == '}') && depth > 0)
			depth--;
		toml->at++;
	}
}

/* Dotted words up to one of the bytes of stop, without blanks and quotes. false: none. */
static bool read_path(struct toml *toml, char stop, struct buf *out)
{
	while (!ends_line(toml) && *toml->at != stop) {
		char c = *toml->at++;
		if (!strchr(" \t\r\"'", c))
			buf_addc(out, c);
	}
	return !ends_line(toml) && !out->full && out->len > 0;
}

static bool read_table(struct toml *toml, toml_fn *fn, void *ctx)
{
	buf_reset(&toml->table);
	toml->at++;
	if (!ends(toml) && *toml->at == '[')
		toml->at++;
	/* Put the keys of a table that is not understood under a name that is never looked up. */
	if (!read_path(toml, ']', &toml->table)) {
		buf_reset(&toml->table);
		buf_addc(&toml->table, '?');
	}
	skip_line(toml);
	return fn(ctx, toml, NULL, NULL);
}

static bool read_pair(struct toml *toml, toml_fn *fn, void *ctx)
{
	const char *value = NULL;

	buf_reset(&toml->path);
	if (toml->table.len)
		buf_addf(&toml->path, "%s.", toml->table.data);
	size_t key_at = toml->path.len;
	if (!read_path(toml, '=', &toml->path)) {
		skip_line(toml);
		return true;
	}
	toml->at++;
	skip_blanks(toml);
	bool block = starts(toml, "\"\"\"") || starts(toml, "'''");
	if (!ends(toml) && !block && strchr("\"'", *toml->at) && read_string(toml))
		value = toml->value.data;
	if (value)
		skip_line(toml);
	else
		skip_value(toml);
	return fn(ctx, toml, toml->path.data + key_at, value);
}

static void toml_read(const char *text, size_t len, toml_fn *fn, void *ctx)
{
	struct toml toml = {.at = text, .end = text + len};
	bool more = true;

	buf_init(&toml.table, PATH_MAX_BYTES);
	buf_init(&toml.path, (size_t)2 * PATH_MAX_BYTES);
	buf_init(&toml.value, VALUE_MAX_BYTES);
	while (more && !ends(&toml)) {
		skip_blanks(&toml);
		if (ends_line(&toml))
			toml.at += !ends(&toml);
		else if (*toml.at == '#')
			skip_line(&toml);
		else if (*toml.at == '[')
			more = read_table(&toml, fn, ctx);
		else
			more = read_pair(&toml, fn, ctx);
	}
	buf_done(&toml.table);
	buf_done(&toml.path);
	buf_done(&toml.value);
}

struct lookup {
	const char *path;
	char *value;
	bool found;
	struct strv *keys;
};

static bool on_string(void *ctx, const struct toml *toml, const char *key, const char *value)
{
	struct lookup *lookup = ctx;

	if (!key || !value || !str_eq(toml->path.data, lookup->path))
		return true;
	lookup->value = mem_strdup(value);
	return false;
}

char *init_toml_string(const char *text, size_t len, const char *path)
{
	struct lookup lookup = {.path = path};

	toml_read(text, len, on_string, &lookup);
	return lookup.value;
}

static bool is_at_or_below(const char *table, const char *wanted)
{
	size_t len = strlen(wanted);

	return strncmp(table, wanted, len) == 0 && (table[len] == '\0' || table[len] == '.');
}

static bool on_table(void *ctx, const struct toml *toml, const char *key, const char *value)
{
	struct lookup *lookup = ctx;

	(void)value;
	if (!key && is_at_or_below(toml->table.data, lookup->path))
		lookup->found = true;
	return !lookup->found;
}

bool init_toml_has_table(const char *text, size_t len, const char *table)
{
	struct lookup lookup = {.path = table};

	toml_read(text, len, on_table, &lookup);
	return lookup.found;
}

static bool on_key(void *ctx, const struct toml *toml, const char *key, const char *value)
{
	struct lookup *lookup = ctx;

	if (key && value && str_eq(toml->table.data, lookup->path) && str_is_utf8(key, strlen(key)))
		strv_add(lookup->keys, key);
	return lookup->keys->n < INIT_NAMES_MAX;
}

void init_toml_keys(const char *text, size_t len, const char *table, struct strv *ret)
{
	struct lookup lookup = {.path = table, .keys = ret};

	toml_read(text, len, on_key, &lookup);
}

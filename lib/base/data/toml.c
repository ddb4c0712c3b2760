/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/toml.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { TOML_WORD_MAX = 1024, TOML_PATH_MAX = 512 };

static const char toml_blanks[] = " \t\r";

/* As a string of ours; NULL when it is empty, too long, or no text. */
static char *toml_take_text(const char *s, size_t len)
{
	if (len == 0 || len > TOML_WORD_MAX || memchr(s, '\0', len) || !str_is_utf8(s, len))
		return NULL;
	return mem_strndup(s, len);
}

static const char *toml_skip(const char *at, const char *end, const char *set)
{
	while (at < end && *at && strchr(set, *at))
		at++;
	return at;
}

/* State of a reader and the line that was found last: a table unless has_key; value: NULL for what
 * is not a string of one line without escapes. */
struct toml {
	const char *at, *end;
	struct buf table, key; /* dotted */
	char *value;
	bool has_key;
};

static bool toml_ends_line(const struct toml *toml)
{
	return toml->at == toml->end || *toml->at == '\n';
}

static void toml_skip_line(struct toml *toml)
{
	while (!toml_ends_line(toml))
		toml->at++;
}

/* A string of one line or of several, its quote is next: to its end, or that of the line or text.
 * Its text goes into value if it is taken. */
static void toml_read_string(struct toml *toml, bool taken)
{
	size_t left = (size_t)(toml->end - toml->at);
	char quote[] = {*toml->at, *toml->at, *toml->at, '\0'};
	bool block = left >= 3 && memcmp(toml->at, quote, 3) == 0, plain = true;
	size_t n = block ? 3 : 1;
	const char *begin = toml->at += n;

	for (; block ? toml->at < toml->end : !toml_ends_line(toml); toml->at++) {
		if ((size_t)(toml->end - toml->at) >= n && memcmp(toml->at, quote, n) == 0) {
			if (taken && !block && plain)
				toml->value = toml_take_text(begin, (size_t)(toml->at - begin));
			toml->at += n;
			return;
		}
		if (*quote != '"' || *toml->at != '\\')
			continue;
		plain = false;
		toml->at += toml->at + 1 < toml->end;
	}
}

/* To the end of the line outside of all brackets. */
static void toml_read_value(struct toml *toml)
{
	size_t depth = 0;

	toml->at = toml_skip(toml->at, toml->end, toml_blanks);
	for (bool first = true; toml->at < toml->end; first = false) {
		char c = *toml->at;
		if (c == '"' || c == '\'') {
			toml_read_string(toml, first);
			continue;
		}
		if (c == '#') {
			toml_skip_line(toml);
			continue;
		}
		if (c == '\n' && depth == 0)
			return;
		if (c == '[' || c == '{')
			depth++;
		else if ((c == ']' || c == '}') && depth > 0)
			depth--;
		toml->at++;
	}
}

/* Dotted words up to stop, without blanks and quotes. false: none. */
static bool toml_read_path(struct toml *toml, char stop, struct buf *out)
{
	buf_reset(out);
	for (; !toml_ends_line(toml) && *toml->at != stop; toml->at++)
		if (!strchr(" \t\r\"'", *toml->at))
			buf_addc(out, *toml->at);
	return !toml_ends_line(toml) && !out->full && out->len > 0;
}

/* The next table or pair; false: there is none. */
static bool toml_next(struct toml *toml)
{
	free(TAKE(toml->value));
	for (; toml->at < toml->end; toml_skip_line(toml)) {
		toml->at = toml_skip(toml->at, toml->end, " \t\r\n");
		if (toml->at == toml->end || *toml->at == '#')
			continue;
		toml->has_key = *toml->at != '[';
		if (toml->has_key && toml_read_path(toml, '=', &toml->key)) {
			toml->at++;
			toml_read_value(toml);
			return true;
		}
		if (toml->has_key)
			continue;
		while (toml->at < toml->end && *toml->at == '[')
			toml->at++;
		/* Keys of a table that is not understood belong to none that is looked up. */
		if (!toml_read_path(toml, ']', &toml->table)) {
			buf_reset(&toml->table);
			buf_addc(&toml->table, '?');
		}
		toml_skip_line(toml);
		return true;
	}
	return false;
}

static struct toml toml_open(const char *text, size_t len)
{
	struct toml toml = {.at = text, .end = text + len};

	buf_init(&toml.table, TOML_PATH_MAX);
	buf_init(&toml.key, TOML_PATH_MAX);
	return toml;
}

static void toml_done(struct toml *toml)
{
	buf_done(&toml->table);
	buf_done(&toml->key);
	free(toml->value);
}
#define AUTO_TOML AUTO(toml_done)

char *toml_find_string(const char *text, size_t len, const char *path)
{
	AUTO_TOML struct toml toml = toml_open(text, len);

	while (toml_next(&toml)) {
		const char *key = path;
		if (toml.table.len)
			key = str_starts(path, toml.table.data) && path[toml.table.len] == '.'
				      ? path + toml.table.len + 1
				      : NULL;
		if (toml.has_key && toml.value && key && str_eq(toml.key.data, key))
			return TAKE(toml.value);
	}
	return NULL;
}

bool toml_has_table(const char *text, size_t len, const char *table)
{
	AUTO_TOML struct toml toml = toml_open(text, len);
	size_t n = strlen(table);

	while (toml_next(&toml))
		if (!toml.has_key && str_starts(toml.table.data, table) &&
			(toml.table.data[n] == '\0' || toml.table.data[n] == '.'))
			return true;
	return false;
}

void toml_table_keys(const char *text, size_t len, const char *table, struct strv *ret)
{
	AUTO_TOML struct toml toml = toml_open(text, len);

	while (ret->n < TOML_KEYS_MAX && toml_next(&toml))
		if (toml.has_key && toml.value && str_eq(toml.table.data, table) &&
			str_is_utf8(toml.key.data, toml.key.len))
			strv_add(ret, toml.key.data);
}

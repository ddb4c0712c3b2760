/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/yaml_print.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	STEP = 2,
	PLAIN_KEY_MAX = 1024, /* characters, as it is written: YAML 1.2.2, 7.4.2, "implicit keys" */
};

/*
 * Characters
 */

/* The character at s, which is UTF-8. */
static uint32_t decode(const char *s, size_t len)
{
	const uint8_t *u = (const uint8_t *)s;
	uint32_t c = len == 1 ? u[0] : u[0] & (0xffU >> (len + 1));

	for (size_t i = 1; i < len; i++)
		c = c << 6 | (u[i] & 0x3fU);
	return c;
}

/* Characters that may stand in a document as they are. YAML 1.1 takes some of the others for line
 * breaks. */
static bool is_printable(uint32_t c)
{
	if (c < 0x20 || (c >= 0x7f && c < 0xa0))
		return false;
	return c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

/* Whether all of it can stand as it is; breaks: with newlines and tabs. */
static bool all_printable(const char *text, bool breaks)
{
	size_t left = strlen(text);

	while (left) {
		size_t len = str_utf8_len(text, left);
		if (len == 0)
			return false;
		if (!is_printable(decode(text, len)) && !(breaks && strchr("\n\t", *text)))
			return false;
		text += len;
		left -= len;
	}
	return true;
}

/*
 * Scalars
 */

static bool is_word(const char *text)
{
	static const char *const words[] = {
		"null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strcasecmp(text, words[i]) == 0)
			return true;
	return false;
}

/* Everything that a reader may take for a number, a time or a date, and more. */
static bool is_like_number(const char *text)
{
	return str_is_digit(*text) &&
	       strspn(text, "0123456789abcdefABCDEFxXoO_+-.:tTzZ ") == strlen(text);
}

static bool is_plain(const char *text)
{
	size_t len = strlen(text);
	char c = *text;

	if (len == 0 || is_word(text) || is_like_number(text) || !all_printable(text, false))
		return false;
	if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !str_is_digit(c) &&
		!strchr("/_$(", c))
		return false;
	return text[len - 1] != ' ' && text[len - 1] != ':' && !strstr(text, ": ") &&
	       !strstr(text, " #");
}

static void add_quoted(const char *text, struct buf *out)
{
	size_t left = strlen(text);

	buf_addc(out, '"');
	while (left) {
		size_t len = str_utf8_len(text, left), n = len ? len : 1;
		uint32_t c = len ? decode(text, len) : 0xfffd;
		if (c == '"' || c == '\\')
			buf_addf(out, "\\%c", (int)c);
		else if (c == '\n')
			buf_adds(out, "\\n");
		else if (c == '\t')
			buf_adds(out, "\\t");
		else if (!is_printable(c))
			buf_addf(out, "\\u%04x", c);
		else
			buf_add(out, text, n);
		text += n;
		left -= n;
	}
	buf_addc(out, '"');
}

static void add_text(const char *text, struct buf *out)
{
	bool plain = is_plain(text);

	if (plain)
		buf_adds(out, text);
	else if (strpbrk(text, "\"\\") && !strchr(text, '\'') && all_printable(text, false))
		buf_addf(out, "'%s'", text);
	else
		add_quoted(text, out);
}

/* 1e+21 is a text in YAML 1.1: floats have a point, exponents a sign. */
static void add_number(const struct json *json, struct buf *out)
{
	AUTO_BUF struct buf text;
	const char *e;

	buf_init(&text, 4096);
	json_print(json, &text);
	e = strpbrk(text.data, "eE");
	if (!e) {
		buf_adds(out, text.data);
		return;
	}
	buf_add(out, text.data, (size_t)(e - text.data));
	if (!memchr(text.data, '.', (size_t)(e - text.data)))
		buf_adds(out, ".0");
	buf_addc(out, 'e');
	if (e[1] != '+' && e[1] != '-')
		buf_addc(out, '+');
	buf_adds(out, e + 1);
}

/*
 * Blocks
 */

static void pad(size_t n, struct buf *out)
{
	for (size_t i = 0; i < n; i++)
		buf_addc(out, ' ');
}

/* Texts whose lines are shown as lines: nothing in them that only quotes could keep. */
static bool is_literal(const char *text)
{
	size_t len = strlen(text);
	const char *newline = strchr(text, '\n');

	if (!newline || strchr(" \t\n", *text) || !all_printable(text, true))
		return false;
	return len < 2 || text[len - 1] != '\n' || text[len - 2] != '\n';
}

static void add_literal(const char *text, size_t indent, struct buf *out)
{
	size_t len = strlen(text);

	buf_adds(out, text[len - 1] == '\n' ? "|\n" : "|-\n");
	while (*text) {
		size_t line = strcspn(text, "\n");
		if (line)
			pad(indent, out);
		buf_add(out, text, line);
		buf_addc(out, '\n');
		text += line + (text[line] == '\n');
	}
}

static void add_scalar(const struct json *json, size_t indent, struct buf *out)
{
	const char *text = json_str(json);

	if (text && is_literal(text)) {
		add_literal(text, indent, out);
		return;
	}
	if (text)
		add_text(text, out);
	else if (json_kind(json) == JSON_NUMBER)
		add_number(json, out);
	else
		json_print(json, out); /* null, true, {}, [] */
	buf_addc(out, '\n');
}

static bool is_block(const struct json *json)
{
	enum json_kind kind = json_kind(json);

	return (kind == JSON_ARRAY || kind == JSON_OBJECT) && json_first(json);
}

static void add_list(const struct json *list, size_t indent, bool started, struct buf *out);

/* Print a key with its colon. Readers search only so far ahead for the colon, unless the key is
 * marked with "?". */
static void add_key(const char *key, size_t indent, struct buf *out)
{
	AUTO_BUF struct buf text;

	buf_init(&text, PLAIN_KEY_MAX - 1);
	add_text(key, &text);
	if (!text.full) {
		buf_addf(out, "%s:", text.data);
		return;
	}
	buf_adds(out, "? ");
	add_text(key, out);
	buf_addc(out, '\n');
	pad(indent, out);
	buf_addc(out, ':');
}

/* started: the first line is indented already. */
static void add_map(const struct json *map, size_t indent, bool started, struct buf *out)
{
	for (const struct json *item = json_first(map); item; item = json_next(item)) {
		pad(started ? 0 : indent, out);
		started = false;
		add_key(json_key(item), indent, out);
		buf_addc(out, is_block(item) ? '\n' : ' ');
		if (!is_block(item))
			add_scalar(item, indent + STEP, out);
		else if (json_kind(item) == JSON_OBJECT)
			add_map(item, indent + STEP, false, out);
		else
			add_list(item, indent, false, out);
	}
}

static void add_list(const struct json *list, size_t indent, bool started, struct buf *out)
{
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		pad(started ? 0 : indent, out);
		started = false;
		buf_adds(out, "- ");
		if (!is_block(item))
			add_scalar(item, indent + STEP, out);
		else if (json_kind(item) == JSON_OBJECT)
			add_map(item, indent + STEP, true, out);
		else
			add_list(item, indent + STEP, true, out);
	}
}

void yaml_print(const struct json *json, struct buf *out)
{
	if (!is_block(json))
		add_scalar(json, STEP, out);
	else if (json_kind(json) == JSON_OBJECT)
		add_map(json, 0, false, out);
	else
		add_list(json, 0, false, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/yaml.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { TAG_DIRECTIVES_MAX = 100 };

struct parse {
	yaml_parser_t parser;
	const char *text;
	size_t len;
	const char *name;
	struct err *err;
	unsigned n_events;
	unsigned depth;
	struct yaml *root;
	struct yaml *at;                   /* the list or map that is open, NULL outside */
	struct yaml *last[YAML_DEPTH_MAX]; /* of each open one: its newest member */
	struct map keys[YAML_DEPTH_MAX];   /* of each open map: key to member */
	char *key;                         /* of the member that comes next */
	struct yaml_mark key_mark;
	bool is_foreign; /* yaml_parse_foreign */
	bool ended;      /* the first document is over */
};

static struct yaml_mark mark_of(const yaml_mark_t *mark)
{
	return (struct yaml_mark){(unsigned)mark->line + 1, (unsigned)mark->column + 1};
}

static int yaml_fail(struct parse *parse, struct yaml_mark at, const char *text)
{
	return err_set(
		parse->err, E_CONFIG_SYNTAX, "%s:%u:%u: %s", parse->name, at.line, at.column, text);
}

static int fail_here(struct parse *parse, const yaml_event_t *event, const char *text)
{
	return yaml_fail(parse, mark_of(&event->start_mark), text);
}

/* Where libyaml has no mark: columns are counted in bytes. */
static struct yaml_mark mark_at(const struct parse *parse, size_t offset)
{
	struct yaml_mark at = {1, 1};

	for (size_t i = 0; i < offset && i < parse->len; i++) {
		bool is_break = parse->text[i] == '\n';

		at.line += is_break;
		at.column = is_break ? 1 : at.column + 1;
	}
	return at;
}

static const char *yaml_line_start(const struct parse *parse, size_t line)
{
	const char *s = parse->text, *end = s + parse->len;

	while (s && --line > 0) {
		s = memchr(s, '\n', (size_t)(end - s));
		s = s ? s + 1 : NULL;
	}
	return s;
}

/* The most common mistake, which libyaml reports as a token that cannot start. */
static bool is_tab_indented(const struct parse *parse, size_t line)
{
	const char *s = yaml_line_start(parse, line), *end = parse->text + parse->len;

	while (s && s < end && *s == ' ')
		s++;
	return s && s < end && *s == '\t';
}

/* Report the error of libyaml in one sentence. */
static int fail_parser(struct parse *parse)
{
	const yaml_parser_t *parser = &parse->parser;
	const char *problem = parser->problem ? parser->problem : "not readable";
	struct yaml_mark at = mark_of(&parser->problem_mark);

	if (parser->error == YAML_MEMORY_ERROR)
		mem_out(parse->len);
	if (parser->error == YAML_READER_ERROR)
		return yaml_fail(parse, mark_at(parse, parser->problem_offset), problem);
	if (is_tab_indented(parse, at.line)) {
		yaml_fail(parse, at, "a tab in the indentation");
		return err_hint(parse->err, "indent with spaces");
	}
	if (!parser->context)
		return yaml_fail(parse, at, problem);
	AUTO_FREE char *text = mem_printf("%s %s", parser->context, problem);
	return yaml_fail(parse, at, text);
}

/*
 * Building the tree
 */

static struct yaml *yaml_new_node(
	struct parse *parse, enum yaml_kind kind, const yaml_event_t *event)
{
	struct yaml *node = mem_alloc(1, sizeof(*node));

	node->kind = kind;
	node->mark = mark_of(&event->start_mark);
	node->parent = parse->at;
	node->key = TAKE(parse->key);
	node->key_mark = parse->key_mark;
	parse->key_mark = (struct yaml_mark){0};
	if (!parse->at) {
		parse->root = node;
		return node;
	}
	struct yaml **last = &parse->last[parse->depth - 1];
	if (*last)
		(*last)->next = node;
	else
		parse->at->first = node;
	*last = node;
	return node;
}

static bool wants_key(const struct parse *parse)
{
	return parse->at && parse->at->kind == YAML_MAP && !parse->key;
}

/* Every key of a map passes here before its value, so duplicates are found at once. The value of
 * the map stores the line as a pointer, never NULL: lines count from 1. */
static int take_key(struct parse *parse, const yaml_event_t *event)
{
	const char *key = (const char *)event->data.scalar.value;
	bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	struct yaml_mark at = mark_of(&event->start_mark);

	if (plain && !*key)
		return yaml_fail(parse, at, "a key is missing before \":\"");
	if (plain && str_eq(key, "<<") && !parse->is_foreign)
		return yaml_fail(parse, at, "merge keys (<<) are not accepted");
	uintptr_t first =
		(uintptr_t)map_put(&parse->keys[parse->depth - 1], key, (void *)(uintptr_t)at.line);
	if (first != 0) {
		AUTO_FREE char *shown = str_shown(key);
		AUTO_FREE char *text = mem_printf(
			"the key '%s' is set twice, first on line %u", shown, (unsigned)first);
		return yaml_fail(parse, at, text);
	}
	parse->key = mem_strdup(key);
	parse->key_mark = at;
	return 0;
}

/* The types that YAML and Python's own writer have names for are texts, numbers and the like; other
 * names stand for objects of a program. */
static bool is_foreign_tag(const char *tag)
{
	static const char common[] = "tag:yaml.org,2002:";

	if (!tag || str_eq(tag, "!"))
		return false;
	return !str_starts(tag, common) || strchr(tag + strlen(common), ':');
}

static int on_alias(struct parse *parse, const yaml_event_t *event)
{
	if (wants_key(parse))
		return fail_here(parse, event, "an alias is not a key");
	struct yaml *node = yaml_new_node(parse, YAML_SCALAR, event);
	node->text = mem_strdup("");
	node->plain = true;
	node->foreign = true;
	return 0;
}

static int yaml_on_scalar(struct parse *parse, const yaml_event_t *event)
{
	const char *text = (const char *)event->data.scalar.value;

	if (memchr(text, '\0', event->data.scalar.length))
		return fail_here(parse, event, "a NUL character in a text");
	if (wants_key(parse))
		return take_key(parse, event);
	struct yaml *node = yaml_new_node(parse, YAML_SCALAR, event);
	node->text = mem_strdup(text);
	node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	node->foreign = is_foreign_tag((const char *)event->data.scalar.tag);
	return 0;
}

static int on_start(struct parse *parse, const yaml_event_t *event)
{
	if (wants_key(parse))
		return fail_here(parse, event, "a key must be a single word or text");
	if (parse->depth == YAML_DEPTH_MAX)
		return fail_here(parse, event, "nested deeper than 64 levels");
	parse->at = yaml_new_node(
		parse, event->type == YAML_MAPPING_START_EVENT ? YAML_MAP : YAML_LIST, event);
	parse->last[parse->depth++] = NULL;
	return 0;
}

static int yaml_on_end(struct parse *parse)
{
	map_done(&parse->keys[--parse->depth]);
	parse->at = parse->at->parent;
	return 0;
}

static int on_document(struct parse *parse, const yaml_event_t *event)
{
	if (parse->ended)
		return fail_here(
			parse, event, "a second document starts here, only one is accepted");
	return 0;
}

/* Anchors and tags may stand at each node. */
static int check_properties(struct parse *parse, const yaml_event_t *event)
{
	const yaml_char_t *anchor = NULL, *tag = NULL;

	if (event->type == YAML_ALIAS_EVENT)
		return fail_here(parse, event, "aliases (*name) are not accepted");
	if (event->type == YAML_SCALAR_EVENT) {
		anchor = event->data.scalar.anchor;
		tag = event->data.scalar.tag;
	} else if (event->type == YAML_SEQUENCE_START_EVENT) {
		anchor = event->data.sequence_start.anchor;
		tag = event->data.sequence_start.tag;
	} else if (event->type == YAML_MAPPING_START_EVENT) {
		anchor = event->data.mapping_start.anchor;
		tag = event->data.mapping_start.tag;
	}
	if (anchor)
		return fail_here(parse, event, "anchors (&name) are not accepted");
	if (tag)
		return fail_here(parse, event, "tags (!name) are not accepted");
	return 0;
}

static int on_event(struct parse *parse, const yaml_event_t *event)
{
	if (++parse->n_events > YAML_EVENTS_MAX)
		return fail_here(parse, event, "more than 10,000 keys and values");
	int r = parse->is_foreign ? 0 : check_properties(parse, event);
	if (r < 0)
		return r;
	switch (event->type) {
	case YAML_DOCUMENT_START_EVENT:
		return on_document(parse, event);
	case YAML_DOCUMENT_END_EVENT:
		parse->ended = true;
		return 0;
	case YAML_ALIAS_EVENT:
		return on_alias(parse, event);
	case YAML_SCALAR_EVENT:
		return yaml_on_scalar(parse, event);
	case YAML_SEQUENCE_START_EVENT:
	case YAML_MAPPING_START_EVENT:
		return on_start(parse, event);
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		return yaml_on_end(parse);
	default:
		return 0;
	}
}

static int run_events(struct parse *parse)
{
	for (;;) {
		yaml_event_t event;

		if (!yaml_parser_parse(&parse->parser, &event))
			return fail_parser(parse);
		bool end = event.type == YAML_STREAM_END_EVENT;
		int r = on_event(parse, &event);
		yaml_event_delete(&event);
		if (r < 0 || end)
			return r;
	}
}

/* No document, or one with nothing but its markers, is a configuration that sets nothing. */
static void fill_empty(struct parse *parse)
{
	struct yaml *root = parse->root;

	if (root && (root->kind != YAML_SCALAR || !root->plain || *root->text))
		return;
	if (!root) {
		root = parse->root = mem_alloc(1, sizeof(*root));
		root->mark = (struct yaml_mark){1, 1};
	}
	free(TAKE(root->text));
	root->kind = YAML_MAP;
	root->plain = false;
}

/* libyaml compares each %TAG directive with all before it, and reports none of them. Directives
 * stand at the beginning of a line, and every kind of line break ends in one of these bytes; a text
 * that only resembles one counts as well. Returns the first directive over the limit, or NULL. */
static const char *find_excess_tag(const char *text, size_t len)
{
	static const char breaks[] = "\n\r\x85\xa8\xa9", word[] = "%TAG";
	const char *end = text + len;
	unsigned n = 0;

	for (const char *s = text; (s = memmem(s, (size_t)(end - s), word, strlen(word))); s++)
		if ((s == text || memchr(breaks, s[-1], strlen(breaks))) &&
			++n > TAG_DIRECTIVES_MAX)
			return s;
	return NULL;
}

static int parse_text(const char *text, size_t len, const char *name, bool is_foreign,
	struct yaml **ret, struct err *err)
{
	/* libyaml takes no NULL. */
	if (!text)
		text = "";
	struct parse parse = {
		.text = text, .len = len, .name = name, .err = err, .is_foreign = is_foreign};

	if (len > YAML_SIZE_MAX)
		return err_set(err, E_CONFIG_SYNTAX, "%s is larger than 1 MiB", name);
	const char *tag = find_excess_tag(text, len);
	if (tag)
		return yaml_fail(&parse, mark_at(&parse, (size_t)(tag - text)),
			"more than 100 %TAG directives");
	if (!yaml_parser_initialize(&parse.parser))
		mem_out(len);
	/* Without this libyaml guesses UTF-16 from the first bytes. */
	yaml_parser_set_encoding(&parse.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parse.parser, (const unsigned char *)text, len);

	int r = run_events(&parse);

	yaml_parser_delete(&parse.parser);
	for (unsigned i = 0; i < YAML_DEPTH_MAX; i++)
		map_done(&parse.keys[i]);
	free(parse.key);
	if (r < 0) {
		yaml_tree_free(parse.root);
		return r;
	}
	fill_empty(&parse);
	*ret = parse.root;
	return 0;
}

int yaml_parse(const char *text, size_t len, const char *name, struct yaml **ret, struct err *err)
{
	return parse_text(text, len, name, false, ret, err);
}

int yaml_parse_foreign(
	const char *text, size_t len, const char *name, struct yaml **ret, struct err *err)
{
	return parse_text(text, len, name, true, ret, err);
}

/* As deep as YAML_DEPTH_MAX at most. */
void yaml_tree_free(struct yaml *yaml)
{
	while (yaml) {
		struct yaml *next = yaml->next;
		yaml_tree_free(yaml->first);
		free(yaml->key);
		free(yaml->text);
		REPLACE(yaml, next);
	}
}

const struct yaml *yaml_get(const struct yaml *map, const char *key)
{
	if (!map || map->kind != YAML_MAP)
		return NULL;
	for (const struct yaml *member = map->first; member; member = member->next)
		if (str_eq(member->key, key))
			return member;
	return NULL;
}

struct yaml_mark yaml_place(const struct yaml *yaml)
{
	bool is_apart = yaml->key_mark.line && yaml->key_mark.line != yaml->mark.line;

	return is_apart ? yaml->key_mark : yaml->mark;
}

const char *yaml_kind_name(const struct yaml *yaml)
{
	static const char *const names[] = {"a single value", "a list", "a map"};
	static const char *const empty[] = {"a single value", "an empty list", "an empty map"};

	return (yaml->first ? names : empty)[yaml->kind];
}

bool yaml_is_null(const struct yaml *yaml)
{
	static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};

	if (!yaml)
		return true;
	if (yaml->kind != YAML_SCALAR || !yaml->plain)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(nulls); i++)
		if (str_eq(yaml->text, nulls[i]))
			return true;
	return false;
}

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

enum {
	STEP = 2,
	PLAIN_KEY_MAX = 1024, /* characters, as it is written: YAML 1.2.2, 7.4.2, "implicit keys" */
};

/*
 * Characters
 */

/* The character at s, which is UTF-8. */
static uint32_t yaml_decode(const char *s, size_t len)
{
	const uint8_t *u = (const uint8_t *)s;
	uint32_t c = len == 1 ? u[0] : u[0] & (0xffU >> (len + 1));

	for (size_t i = 1; i < len; i++)
		c = c << 6 | (u[i] & 0x3fU);
	return c;
}

/* Characters that may stand in a document as they are. YAML 1.1 takes some of the others for line
 * breaks. */
static bool yaml_is_printable(uint32_t c)
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
		if (!yaml_is_printable(yaml_decode(text, len)) &&
			!(breaks && strchr("\n\t", *text)))
			return false;
		text += len;
		left -= len;
	}
	return true;
}

/*
 * Scalars
 */

static bool yaml_is_word(const char *text)
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

static bool yaml_is_plain(const char *text)
{
	size_t len = strlen(text);
	char c = *text;

	if (len == 0 || yaml_is_word(text) || is_like_number(text) || !all_printable(text, false))
		return false;
	if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !str_is_digit(c) &&
		!strchr("/_$(", c))
		return false;
	return text[len - 1] != ' ' && text[len - 1] != ':' && !strstr(text, ": ") &&
	       !strstr(text, " #");
}

static void yaml_add_quoted(const char *text, struct buf *out)
{
	size_t left = strlen(text);

	buf_addc(out, '"');
	while (left) {
		size_t len = str_utf8_len(text, left), n = len ? len : 1;
		uint32_t c = len ? yaml_decode(text, len) : 0xfffd;
		if (c == '"' || c == '\\')
			buf_addf(out, "\\%c", (int)c);
		else if (c == '\n')
			buf_adds(out, "\\n");
		else if (c == '\t')
			buf_adds(out, "\\t");
		else if (!yaml_is_printable(c))
			buf_addf(out, "\\u%04x", c);
		else
			buf_add(out, text, n);
		text += n;
		left -= n;
	}
	buf_addc(out, '"');
}

static void yaml_add_text(const char *text, struct buf *out)
{
	bool plain = yaml_is_plain(text);

	if (plain)
		buf_adds(out, text);
	else if (strpbrk(text, "\"\\") && !strchr(text, '\'') && all_printable(text, false))
		buf_addf(out, "'%s'", text);
	else
		yaml_add_quoted(text, out);
}

/* 1e+21 is a text in YAML 1.1: floats have a point, exponents a sign. */
static void yaml_add_number(const struct json *json, struct buf *out)
{
	AUTO_BUF struct buf text = buf_with(4096);
	const char *e;

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

static void yaml_add_scalar(const struct json *json, size_t indent, struct buf *out)
{
	const char *text = json_str(json);

	if (text && is_literal(text)) {
		add_literal(text, indent, out);
		return;
	}
	if (text)
		yaml_add_text(text, out);
	else if (json_kind(json) == JSON_NUMBER)
		yaml_add_number(json, out);
	else
		json_print(json, out); /* null, true, {}, [] */
	buf_addc(out, '\n');
}

static bool is_block(const struct json *json)
{
	enum json_kind kind = json_kind(json);

	return (kind == JSON_ARRAY || kind == JSON_OBJECT) && json_first(json);
}

static void yaml_add_list(const struct json *list, size_t indent, bool started, struct buf *out);

/* Print a key with its colon. Readers search only so far ahead for the colon, unless the key is
 * marked with "?". */
static void yaml_add_key(const char *key, size_t indent, struct buf *out)
{
	AUTO_BUF struct buf text = buf_with(PLAIN_KEY_MAX - 1);

	yaml_add_text(key, &text);
	if (!text.full) {
		buf_addf(out, "%s:", text.data);
		return;
	}
	buf_adds(out, "? ");
	yaml_add_text(key, out);
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
		yaml_add_key(json_key(item), indent, out);
		buf_addc(out, is_block(item) ? '\n' : ' ');
		if (!is_block(item))
			yaml_add_scalar(item, indent + STEP, out);
		else if (json_kind(item) == JSON_OBJECT)
			add_map(item, indent + STEP, false, out);
		else
			yaml_add_list(item, indent, false, out);
	}
}

static void yaml_add_list(const struct json *list, size_t indent, bool started, struct buf *out)
{
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		pad(started ? 0 : indent, out);
		started = false;
		buf_adds(out, "- ");
		if (!is_block(item))
			yaml_add_scalar(item, indent + STEP, out);
		else if (json_kind(item) == JSON_OBJECT)
			add_map(item, indent + STEP, true, out);
		else
			yaml_add_list(item, indent + STEP, true, out);
	}
}

void yaml_print(const struct json *json, struct buf *out)
{
	if (!is_block(json))
		yaml_add_scalar(json, STEP, out);
	else if (json_kind(json) == JSON_OBJECT)
		add_map(json, 0, false, out);
	else
		yaml_add_list(json, 0, false, out);
}

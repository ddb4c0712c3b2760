/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/yaml.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

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

static int fail(struct parse *parse, struct yaml_mark at, const char *text)
{
	return err_set(
		parse->err, E_CONFIG_SYNTAX, "%s:%u:%u: %s", parse->name, at.line, at.column, text);
}

static int fail_here(struct parse *parse, const yaml_event_t *event, const char *text)
{
	return fail(parse, mark_of(&event->start_mark), text);
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

static const char *line_start(const struct parse *parse, size_t line)
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
	const char *s = line_start(parse, line), *end = parse->text + parse->len;

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
		return fail(parse, mark_at(parse, parser->problem_offset), problem);
	if (is_tab_indented(parse, at.line)) {
		fail(parse, at, "a tab in the indentation");
		return err_hint(parse->err, "indent with spaces");
	}
	if (!parser->context)
		return fail(parse, at, problem);
	AUTO_FREE char *text = mem_printf("%s %s", parser->context, problem);
	return fail(parse, at, text);
}

/*
 * Building the tree
 */

static struct yaml *new_node(struct parse *parse, enum yaml_kind kind, const yaml_event_t *event)
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
		return fail(parse, at, "a key is missing before \":\"");
	if (plain && str_eq(key, "<<") && !parse->is_foreign)
		return fail(parse, at, "merge keys (<<) are not accepted");
	uintptr_t first =
		(uintptr_t)map_put(&parse->keys[parse->depth - 1], key, (void *)(uintptr_t)at.line);
	if (first != 0) {
		AUTO_FREE char *shown = str_shown(key);
		AUTO_FREE char *text = mem_printf(
			"the key '%s' is set twice, first on line %u", shown, (unsigned)first);
		return fail(parse, at, text);
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
	struct yaml *node = new_node(parse, YAML_SCALAR, event);
	node->text = mem_strdup("");
	node->plain = true;
	node->foreign = true;
	return 0;
}

static int on_scalar(struct parse *parse, const yaml_event_t *event)
{
	const char *text = (const char *)event->data.scalar.value;

	if (memchr(text, '\0', event->data.scalar.length))
		return fail_here(parse, event, "a NUL character in a text");
	if (wants_key(parse))
		return take_key(parse, event);
	struct yaml *node = new_node(parse, YAML_SCALAR, event);
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
	parse->at = new_node(
		parse, event->type == YAML_MAPPING_START_EVENT ? YAML_MAP : YAML_LIST, event);
	parse->last[parse->depth++] = NULL;
	return 0;
}

static int on_end(struct parse *parse)
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
		return on_scalar(parse, event);
	case YAML_SEQUENCE_START_EVENT:
	case YAML_MAPPING_START_EVENT:
		return on_start(parse, event);
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		return on_end(parse);
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
		return fail(&parse, mark_at(&parse, (size_t)(tag - text)),
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
		free(yaml);
		yaml = next;
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

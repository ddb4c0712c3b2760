/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YAML 1.1 as configuration: a tree of nodes with their places, read from libyaml's events with
 * limits: YAML_SIZE_MAX bytes, YAML_DEPTH_MAX levels, YAML_EVENTS_MAX events, 100 %TAG directives;
 * one document; no aliases, no duplicate or non-scalar keys, no tags. Scalars stay text; `plain`
 * says whether they were written without quotes, which is what types go by.
 */
#ifndef DLRUN_BASE_DATA_YAML_H
#define DLRUN_BASE_DATA_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

enum { YAML_SIZE_MAX = 1 << 20, YAML_DEPTH_MAX = 64, YAML_EVENTS_MAX = 10000 };

enum yaml_kind { YAML_SCALAR, YAML_LIST, YAML_MAP };

/* Both from 1; a column is a character. */
struct yaml_mark {
	unsigned line, column;
};

struct yaml {
	enum yaml_kind kind;
	struct yaml_mark mark;
	char *key; /* in a map: the key of this value, else NULL */
	struct yaml_mark key_mark;
	char *text; /* scalar: UTF-8 without NUL */
	bool plain;
	bool foreign;       /* its text is not its value: see yaml_parse_foreign */
	struct yaml *first; /* list, map: members in order */
	struct yaml *next;
	struct yaml *parent;
};

/* name: the file, for errors "name:line:column: …" (E_CONFIG_SYNTAX). An empty text gives an empty
 * map. */
int yaml_parse(const char *text, size_t len, const char *name, struct yaml **ret, struct err *err);
/* The same for what other programs write for themselves: anchors and tags are read over, an alias
 * is an empty scalar. What an alias stands for, and a scalar with a tag of a program's own
 * (!!python/name:…), is `foreign`. */
int yaml_parse_foreign(
	const char *text, size_t len, const char *name, struct yaml **ret, struct err *err);
/* Not yaml_free, which is libyaml's own. */
void yaml_tree_free(struct yaml *yaml);
AUTO_POINTER(struct yaml, yaml_tree_free)
#define AUTO_YAML AUTO(yaml_tree_free_auto)

const struct yaml *yaml_get(const struct yaml *map, const char *key);
/* Where a member is for a reader: its value, or its key where that stands on another line. */
struct yaml_mark yaml_place(const struct yaml *yaml);
/* "a single value", "an empty list", … */
const char *yaml_kind_name(const struct yaml *yaml);
/* A plain ~, null or nothing at all. */
bool yaml_is_null(const struct yaml *yaml);

/*
 * YAML as JSON, by the core schema of YAML 1.2 (section 10.3), which is what people mean when they
 * write Kubernetes objects: plain null, ~, true, false, decimal integers and decimal fractions have
 * their types, everything else is text (yes, on, 0x1, 1_000, dates too).
 */

/* The caller owns it. What is foreign is left out. */
struct json *yaml_to_json(const struct yaml *yaml);
/* The same, but every scalar is text, and null is "". */
struct json *yaml_to_json_text(const struct yaml *yaml);

/*
 * JSON as YAML for people, as kubectl prints it: blocks, lists as far in as their key, texts of
 * several lines as "|". Read as YAML 1.1 or 1.2 it is the same value again: what a reader would
 * take for another type (yes, null, 1e3, 0x1, 12:30, a date) or for syntax is in quotes.
 */

/* Print a document without "---", ended by a newline; members in their order. Keys of more than
 * 1,000 bytes exceed what most readers accept. */
void yaml_print(const struct json *json, struct buf *out);

#endif

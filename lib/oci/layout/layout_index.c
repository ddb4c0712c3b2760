/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layout/layout_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/data/json_scan.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/manifest.h"

#define REF_NAME "org.opencontainers.image.ref.name"
#define OWN      "dev.dlrun.image"

static const char empty_index[] =
	"{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\","
	"\"manifests\":[]}";

/*
 * Finding the entries. The text was scanned and is valid JSON, so that strings and brackets are all
 * that must be told apart.
 */

/* Behind the string that starts at *at (a quote). */
static void skip_string(const char *text, size_t *at)
{
	for (++*at; text[*at] != '"'; ++*at)
		if (text[*at] == '\\')
			++*at;
	++*at;
}

static void skip_blanks(const char *text, size_t *at)
{
	while (strchr(" \t\r\n", text[*at]) && text[*at])
		++*at;
}

/* Behind the value that starts at *at. */
static void skip_value(const char *text, size_t *at)
{
	size_t depth = 0;

	do {
		char c = text[*at];
		if (c == '"') {
			skip_string(text, at);
			continue;
		}
		depth += c == '[' || c == '{';
		depth -= c == ']' || c == '}';
		++*at;
	} while (depth > 0);
	/* A number or a word goes on. */
	while (!strchr(" \t\r\n,]}", text[*at]))
		++*at;
}

/* The value of a key of the object that text is: *ret_at. */
static bool find_key(const char *text, const char *key, size_t *ret_at)
{
	size_t at = 0, len = strlen(key);

	skip_blanks(text, &at);
	if (text[at++] != '{')
		return false;
	for (;;) {
		skip_blanks(text, &at);
		if (text[at] != '"')
			return false;
		size_t start = at + 1;
		skip_string(text, &at);
		bool found = at - 1 - start == len && memcmp(text + start, key, len) == 0;
		skip_blanks(text, &at);
		at++;
		skip_blanks(text, &at);
		if (found) {
			*ret_at = at;
			return true;
		}
		skip_value(text, &at);
		skip_blanks(text, &at);
		if (text[at++] != ',')
			return false;
	}
}

static void split_entries(struct layout_index *index)
{
	const char *text = index->text;
	size_t at = index->first + 1;

	skip_blanks(text, &at);
	while (text[at] != ']') {
		struct layout_entry *entry = vec_push(&index->entries);
		entry->text = text + at;
		skip_value(text, &at);
		entry->len = (size_t)(text + at - entry->text);
		skip_blanks(text, &at);
		if (text[at] == ',')
			at++;
		skip_blanks(text, &at);
	}
}

static bool is_blank(const char *text, size_t len)
{
	return len == 0 || (text[0] == '\0' && memcmp(text, text + 1, len - 1) == 0);
}

static int check_json(const char *text, size_t len, const char *what, struct err *err)
{
	struct json_scan scan = {.text = text, .len = len};
	bool ok = json_scan(&scan);

	json_scan_done(&scan);
	if (ok)
		return 0;
	return err_set(err, scan.over ? E_DATA_LIMIT : E_DATA,
		"%s is not valid JSON: %s (byte %zu)", what, scan.fault, scan.pos + 1);
}

int layout_index_parse(
	const char *text, size_t len, const char *what, struct layout_index *ret, struct err *err)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {.text = text, .len = len};

	if (is_blank(text, len)) {
		index.text = empty_index;
		index.len = sizeof(empty_index) - 1;
	}
	if (len > LAYOUT_INDEX_MAX)
		return err_set(err, E_DATA_LIMIT, "%s is larger than %d MiB", what,
			LAYOUT_INDEX_MAX >> 20);
	int r = check_json(index.text, index.len, what, err);
	if (r < 0)
		return r;
	if (!find_key(index.text, "manifests", &index.first))
		return err_set(err, E_DATA, "%s has no list of manifests", what);
	index.last = index.first;
	skip_value(index.text, &index.last);
	/* Programs in Go write null for an empty list. */
	if (index.text[index.first] == '[')
		split_entries(&index);
	else if (memcmp(index.text + index.first, "null", 4) != 0)
		return err_set(err, E_DATA, "the manifests of %s are no list", what);
	*ret = index;
	index = (struct layout_index){0};
	return 0;
}

void layout_index_done(struct layout_index *index)
{
	if (index)
		vec_done(&index->entries);
}

/*
 * Entries
 */

int layout_entry_read(
	const struct layout_entry *entry, const char *what, struct layout_row *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_FREE char *name = mem_printf("an entry of %s", what);
	struct layout_row row = {0};

	int r = json_parse(entry->text, entry->len, MANIFEST_SIZE_MAX, name, &json, err);
	if (r == 0)
		r = descriptor_parse(json, name, &row.blob, err);
	if (r < 0)
		return r;
	row.name = mem_strdup(json_get_str(json_get(json, "annotations"), REF_NAME));
	*ret = row;
	return 0;
}

void layout_row_done(struct layout_row *row)
{
	if (row)
		free(row->name);
}

bool layout_entry_may_have(const struct layout_entry *entry, const char *text)
{
	/* A backslash may hide any character. */
	return memchr(entry->text, '\\', entry->len) ||
	       memmem(entry->text, entry->len, text, strlen(text));
}

bool layout_entry_is_own(const struct layout_entry *entry)
{
	return memmem(entry->text, entry->len, "\"" OWN "\"", sizeof(OWN) + 1);
}

static void print_entry(const struct descriptor *blob, const char *name, struct buf *out)
{
	AUTO_JSON struct json *json = descriptor_json(blob);
	struct json *annotations = json_sub(json, "annotations");

	if (name)
		json_set_str(annotations, REF_NAME, name);
	json_set_str(annotations, OWN, "1");
	json_print(json, out);
}

void layout_index_write(const struct layout_index *index, const struct descriptor *add,
	const char *name, struct buf *out)
{
	const char *before = "[";

	buf_add(out, index->text, index->first);
	vec_foreach (const struct layout_entry, entry, &index->entries) {
		if (entry->drop)
			continue;
		buf_adds(out, before);
		buf_add(out, entry->text, entry->len);
		before = ",";
	}
	if (add) {
		buf_adds(out, before);
		print_entry(add, name, out);
	}
	buf_adds(out, *before == '[' && !add ? "[]" : "]");
	buf_add(out, index->text + index->last, index->len - index->last);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "net/s3/s3_xml.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"

enum { S3_XML_PATH_MAX = 1024, S3_XML_NAME_MAX = 128, S3_XML_ENTITY_MAX = 10 };

void s3_xml_init(struct s3_xml *xml, const char *text, size_t len)
{
	*xml = (struct s3_xml){.at = text, .end = text + len, .pop = SIZE_MAX};
	buf_init(&xml->path, S3_XML_PATH_MAX);
	buf_init(&xml->text, S3_XML_TEXT_MAX);
}

void s3_xml_done(struct s3_xml *xml)
{
	buf_done(&xml->path);
	buf_done(&xml->text);
}

static int s3_xml_fail(const char *what, struct err *err)
{
	return err_set(err, E_S3_RESPONSE, "the response is not XML as S3 sends it: %s", what);
}

static uint32_t s3_xml_entity_value(const char *name, size_t len)
{
	static const struct {
		const char *name;
		char value;
	} known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
	bool is_hex = len > 2 && name[1] == 'x';
	uint32_t value = 0;

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strlen(known[i].name) == len && memcmp(known[i].name, name, len) == 0)
			return (unsigned char)known[i].value;
	if (len < 2 || name[0] != '#')
		return 0;
	for (size_t i = is_hex ? 2 : 1; i < len; i++) {
		int digit = hex_digit((unsigned char)name[i]);

		if (digit < 0 || (!is_hex && digit > 9))
			return 0;
		value = value * (is_hex ? 16 : 10) + (uint32_t)digit;
	}
	return value <= 0x10ffff ? value : 0;
}

static int s3_xml_entity(struct s3_xml *xml, struct err *err)
{
	const char *name = xml->at + 1;
	size_t left = (size_t)(xml->end - name);
	const char *end = memchr(name, ';', left < S3_XML_ENTITY_MAX ? left : S3_XML_ENTITY_MAX);
	uint32_t value = end ? s3_xml_entity_value(name, (size_t)(end - name)) : 0;

	if (!value)
		return s3_xml_fail("an entity that it does not use", err);
	unicode_add(&xml->text, value);
	xml->at = end + 1;
	return 0;
}

/* Whether text begins at xml->at, which is moved behind it. */
static bool s3_xml_take(struct s3_xml *xml, const char *text)
{
	size_t len = strlen(text);

	if ((size_t)(xml->end - xml->at) < len || memcmp(xml->at, text, len) != 0)
		return false;
	xml->at += len;
	return true;
}

/* Behind the next occurrence of text. */
static int s3_xml_skip(struct s3_xml *xml, const char *text, struct err *err)
{
	const char *found = memmem(xml->at, (size_t)(xml->end - xml->at), text, strlen(text));

	if (!found)
		return s3_xml_fail("it ends too early", err);
	xml->at = found + strlen(text);
	return 0;
}

/* The name at xml->at without its prefix; xml->at is moved behind it. */
static int s3_xml_name(struct s3_xml *xml, const char **ret, size_t *ret_len, struct err *err)
{
	const char *from = xml->at;

	while (xml->at < xml->end && !strchr(" \t\r\n/><=\"'&", *xml->at)) {
		if (*xml->at == ':')
			from = xml->at + 1;
		xml->at++;
	}
	*ret = from;
	*ret_len = (size_t)(xml->at - from);
	if (*ret_len == 0 || *ret_len > S3_XML_NAME_MAX)
		return s3_xml_fail("an element has no name", err);
	return 0;
}

/* Behind "<". 1: the element is empty. */
static int s3_xml_open(struct s3_xml *xml, struct err *err)
{
	const char *name;
	size_t len;
	int r = s3_xml_name(xml, &name, &len, err);

	if (r < 0)
		return r;
	if (xml->depth == S3_XML_DEPTH_MAX)
		return s3_xml_fail("too many levels", err);
	xml->depth++;
	if (xml->path.len)
		buf_addc(&xml->path, '/');
	buf_add(&xml->path, name, len);
	buf_reset(&xml->text);
	for (char quote = 0; xml->at < xml->end; xml->at++) {
		if (quote ? *xml->at == quote : *xml->at == '"' || *xml->at == '\'')
			quote = quote ? 0 : *xml->at;
		else if (!quote && *xml->at == '>')
			break;
	}
	if (xml->at == xml->end)
		return s3_xml_fail("it ends too early", err);
	return *xml->at++ == '>' && xml->at[-2] == '/';
}

static void s3_xml_report(struct s3_xml *xml)
{
	const char *slash = strrchr(xml->path.data, '/');

	xml->pop = slash ? (size_t)(slash - xml->path.data) : 0;
	xml->depth--;
}

/* Behind "</". */
static int s3_xml_close(struct s3_xml *xml, struct err *err)
{
	const char *slash = strrchr(xml->path.data, '/'), *name;
	const char *open = slash ? slash + 1 : xml->path.data;
	size_t len;
	int r = s3_xml_name(xml, &name, &len, err);

	if (r < 0)
		return r;
	if (xml->depth == 0 || strlen(open) != len || memcmp(open, name, len) != 0)
		return s3_xml_fail("an element ends that has not begun", err);
	s3_xml_report(xml);
	return s3_xml_skip(xml, ">", err);
}

/* Markup, which begins with "<". 1: an element has ended. */
static int s3_xml_markup(struct s3_xml *xml, struct err *err)
{
	if (s3_xml_take(xml, "<?"))
		return s3_xml_skip(xml, "?>", err);
	if (s3_xml_take(xml, "<!--"))
		return s3_xml_skip(xml, "-->", err);
	if (s3_xml_take(xml, "<!"))
		return s3_xml_fail("a declaration", err);
	if (s3_xml_take(xml, "</")) {
		int r = s3_xml_close(xml, err);
		return r < 0 ? r : 1;
	}
	xml->at++;
	int r = s3_xml_open(xml, err);
	if (r == 1)
		s3_xml_report(xml);
	return r;
}

int s3_xml_next(struct s3_xml *xml, struct err *err)
{
	int r = 0;

	if (xml->pop != SIZE_MAX) {
		buf_truncate(&xml->path, xml->pop);
		buf_reset(&xml->text);
		xml->pop = SIZE_MAX;
	}
	while (r == 0 && xml->at < xml->end) {
		if (*xml->at == '<')
			r = s3_xml_markup(xml, err);
		else if (*xml->at == '&')
			r = s3_xml_entity(xml, err);
		else if (!*xml->at)
			r = s3_xml_fail("a NUL", err);
		else
			buf_addc(&xml->text, *xml->at++);
		if (xml->text.full || xml->path.full)
			r = s3_xml_fail("a text is too long", err);
	}
	if (r == 0 && xml->depth > 0)
		return s3_xml_fail("it ends too early", err);
	return r;
}

char *s3_xml_find(const char *text, size_t len, const char *path)
{
	AUTO_ERR struct err ignored = {0};
	AUTO_S3_XML struct s3_xml xml;

	s3_xml_init(&xml, text, len);
	while (s3_xml_next(&xml, &ignored) > 0) {
		const char *found = *path == '*' ? strchr(xml.path.data, '/') : xml.path.data;
		if (str_eq(found, *path == '*' ? path + 1 : path))
			return buf_take(&xml.text);
	}
	return NULL;
}

/*
 * Objects
 */

void s3_object_done(struct s3_object *object)
{
	free(object->key);
	free(object->etag);
	*object = (struct s3_object){0};
}

void s3_objects_done(struct s3_objects *objects)
{
	vec_foreach (struct s3_object, object, objects)
		s3_object_done(object);
	vec_done(objects);
}

/* With encoding-type=url, which keeps what XML cannot hold; NULL: it holds a NUL. */
static char *s3_xml_decode(const char *text)
{
	AUTO_BUF struct buf out = buf_with(S3_XML_TEXT_MAX);

	for (const char *at = text; *at; at++) {
		uint8_t byte = 0;

		if (*at == '%' && at[1] && at[2] && hex_decode(at + 1, 1, &byte)) {
			buf_addc(&out, (char)byte);
			at += 2;
		} else {
			buf_addc(&out, *at == '+' ? ' ' : *at);
		}
	}
	return strlen(out.data) == out.len ? buf_take(&out) : NULL;
}

static void s3_xml_object(struct s3_object *object, const char *name, const char *text)
{
	AUTO_ERR struct err ignored = {0};

	if (str_eq(name, "Key")) {
		REPLACE(object->key, mem_strdup(text));
	} else if (str_eq(name, "ETag")) {
		REPLACE(object->etag, mem_strdup(text));
	} else if (str_eq(name, "Size")) {
		field_number(text, &object->size);
	} else if (str_eq(name, "LastModified")) {
		if (clock_parse(text, &object->mtime_ms, &ignored) < 0)
			object->mtime_ms = -1;
	}
}

/* Keys come encoded where the server says so, which it may do behind them. */
static int s3_xml_decode_keys(struct s3_objects *objects, size_t from, struct err *err)
{
	for (size_t i = from; i < objects->n; i++) {
		char *key = s3_xml_decode(objects->v[i].key);

		if (!key)
			return s3_xml_fail("a key with a NUL", err);
		REPLACE(objects->v[i].key, key);
	}
	return 0;
}

static int s3_xml_check_rest(const char *text, size_t len, const char *token, struct err *err)
{
	AUTO_FREE char *is_cut = s3_xml_find(text, len, "ListBucketResult/IsTruncated");

	return str_eq(is_cut, "true") && str_empty(token)
		       ? err_set(err, E_S3_RESPONSE, "the server's list cannot be continued")
		       : 0;
}

int s3_xml_page(
	const char *text, size_t len, struct s3_objects *objects, char **ret_token, struct err *err)
{
	static const char contents[] = "ListBucketResult/Contents";
	AUTO_FREE char *token = NULL;
	AUTO_S3_XML struct s3_xml xml;
	struct s3_object object = {.mtime_ms = -1};
	bool is_encoded = false, is_page = false;
	size_t from = objects->n;
	int r;

	s3_xml_init(&xml, text, len);
	while ((r = s3_xml_next(&xml, err)) > 0) {
		const char *path = xml.path.data, *rest = path + sizeof(contents) - 1;

		if (str_eq(path, contents) && object.key) {
			*vec_push(objects) = object;
			object = (struct s3_object){.mtime_ms = -1};
		} else if (str_starts(path, contents) && *rest == '/') {
			s3_xml_object(&object, rest + 1, xml.text.data);
		} else if (str_eq(path, "ListBucketResult/EncodingType")) {
			is_encoded = str_eq(xml.text.data, "url");
		} else if (str_eq(path, "ListBucketResult/NextContinuationToken")) {
			REPLACE(token, mem_strdup(xml.text.data));
		} else if (str_eq(path, "ListBucketResult")) {
			is_page = true;
		}
	}
	s3_object_done(&object);
	if (r == 0)
		r = is_page ? s3_xml_check_rest(text, len, token, err)
			    : s3_xml_fail("it is no list of objects", err);
	if (r == 0 && is_encoded)
		r = s3_xml_decode_keys(objects, from, err);
	if (r == 0)
		*ret_token = TAKE(token);
	return r;
}

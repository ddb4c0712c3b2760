/* SPDX-License-Identifier: Apache-2.0 */
#include "base/data/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"

/*
 * The strict scanner for RFC 8259 in front of cJSON: it decides what json_parse accepts, cJSON only
 * builds the tree
 */

/* A number that a double would change: its text, and its place among all numbers of the text. */
struct json_exact {
	size_t ordinal;
	size_t at, len;
};

struct json_scan {
	/* in */
	const char *text;
	size_t len, max_values;
	/* out */
	struct VEC_OF(struct json_exact) exact;
	size_t pos;        /* on failure: where */
	const char *error; /* on failure: what is wrong there */
	bool over;         /* on failure: a limit was exceeded */
	/* own use */
	size_t n_values, n_numbers;
	char words[48]; /* for error */
};

/* cJSON reads a number into a buffer of 64; every integer of 15 digits is exact in a double. */
enum { NUMBER_MAX = 63, EXACT_DIGITS = 15 };

static bool error(struct json_scan *scan, const char *what)
{
	scan->error = what;
	return false;
}

static bool json_over(struct json_scan *scan, const char *what)
{
	scan->over = true;
	return error(scan, what);
}

static bool json_over_values(struct json_scan *scan)
{
	snprintf(scan->words, sizeof(scan->words), "more than %zu values", scan->max_values);
	return json_over(scan, scan->words);
}

/* The byte at the position, or -1 at the end. */
static int peek(const struct json_scan *scan)
{
	return scan->pos < scan->len ? (unsigned char)scan->text[scan->pos] : -1;
}

static bool accept(struct json_scan *scan, char c)
{
	if (peek(scan) != c)
		return false;
	scan->pos++;
	return true;
}

static void json_skip_blanks(struct json_scan *scan)
{
	for (;;) {
		int c = peek(scan);

		if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
			return;
		scan->pos++;
	}
}

/* Four hex digits; -1 if there are none. */
static int scan_hex4(struct json_scan *scan)
{
	int value = 0;

	for (int i = 0; i < 4; i++) {
		int digit = hex_digit(peek(scan));

		if (digit < 0)
			return -1;
		value = value << 4 | digit;
		scan->pos++;
	}
	return value;
}

/* Scan the four hex digits that follow \u, and the second half of a surrogate pair. */
static bool scan_unicode(struct json_scan *scan)
{
	int code = scan_hex4(scan);

	if (code < 0)
		return error(scan, "\\u without four hex digits");
	if (code == 0)
		return error(scan, "a NUL character in a string");
	if (code < 0xd800 || code > 0xdfff)
		return true;
	if (code > 0xdbff || !accept(scan, '\\') || !accept(scan, 'u'))
		return error(scan, "half of a surrogate pair");
	code = scan_hex4(scan);
	if (code < 0xdc00 || code > 0xdfff)
		return error(scan, "half of a surrogate pair");
	return true;
}

static bool json_scan_escape(struct json_scan *scan)
{
	int c = peek(scan);

	if (c < 0)
		return error(scan, "a string without its end");
	if (!c || !strchr("\"\\/bfnrtu", c))
		return error(scan, "an unknown escape in a string");
	scan->pos++;
	return c != 'u' || scan_unicode(scan);
}

/* Scan a string behind its opening quote. */
static bool scan_string(struct json_scan *scan)
{
	for (;;) {
		int c = peek(scan);

		if (c < 0)
			return error(scan, "a string without its end");
		if (c < 0x20)
			return error(scan, "a control character in a string");
		if (c >= 0x80) {
			size_t n = str_utf8_len(scan->text + scan->pos, scan->len - scan->pos);
			if (n == 0)
				return error(scan, "bytes that are not UTF-8");
			scan->pos += n;
			continue;
		}
		scan->pos++;
		if (c == '"')
			return true;
		if (c == '\\' && !json_scan_escape(scan))
			return false;
	}
}

static size_t scan_digits(struct json_scan *scan)
{
	size_t start = scan->pos;

	while (peek(scan) >= '0' && peek(scan) <= '9')
		scan->pos++;
	return scan->pos - start;
}

/* Whether the number from at to the position, which has an exponent, is beyond every double, or
 * nearer to zero than any. */
static bool is_out_of_range(const struct json_scan *scan, size_t at)
{
	char text[NUMBER_MAX + 1] = {0};

	memcpy(text, scan->text + at, scan->pos - at);
	double value = strtod(text, NULL);
	return isinf(value) || (value == 0 && strcspn(text, "123456789") < strcspn(text, "eE"));
}

/* [.digits][e[+-]digits] behind the integer part. */
static bool scan_fraction(struct json_scan *scan, bool *ret_has_exponent)
{
	if (accept(scan, '.') && scan_digits(scan) == 0)
		return error(scan, "a number without digits behind its point");
	*ret_has_exponent = accept(scan, 'e') || accept(scan, 'E');
	if (!*ret_has_exponent)
		return true;
	if (!accept(scan, '+'))
		accept(scan, '-');
	if (scan_digits(scan) == 0)
		return error(scan, "a number without digits in its exponent");
	return true;
}

static bool scan_number(struct json_scan *scan)
{
	size_t start = scan->pos;
	bool has_exponent;

	accept(scan, '-');
	bool zero = peek(scan) == '0';
	size_t digits = scan_digits(scan);
	size_t end = scan->pos;
	if (digits == 0)
		return error(scan, end == start ? "no value" : "a number without digits");
	if (zero && digits > 1)
		return error(scan, "a number with a leading zero");
	if (!scan_fraction(scan, &has_exponent))
		return false;
	if (scan->pos - start > NUMBER_MAX)
		return json_over(scan, "a number of more than 63 characters");
	if ((scan->pos == end && digits > EXACT_DIGITS) ||
		(has_exponent && is_out_of_range(scan, start)))
		*vec_push(&scan->exact) = (struct json_exact){
			.ordinal = scan->n_numbers, .at = start, .len = scan->pos - start};
	scan->n_numbers++;
	return true;
}

static bool scan_word(struct json_scan *scan, const char *word)
{
	size_t len = strlen(word);

	if (scan->len - scan->pos < len || memcmp(scan->text + scan->pos, word, len) != 0)
		return error(scan, "no value");
	scan->pos += len;
	return true;
}

static bool json_scan_value(struct json_scan *scan, unsigned depth);

/* Scan an array behind its [. */
static bool scan_array(struct json_scan *scan, unsigned depth)
{
	json_skip_blanks(scan);
	if (accept(scan, ']'))
		return true;
	for (;;) {
		if (!json_scan_value(scan, depth))
			return false;
		if (accept(scan, ']'))
			return true;
		if (!accept(scan, ','))
			return error(scan, "neither , nor ] behind a value");
	}
}

/* Scan an object behind its {. */
static bool scan_object(struct json_scan *scan, unsigned depth)
{
	json_skip_blanks(scan);
	if (accept(scan, '}'))
		return true;
	for (;;) {
		json_skip_blanks(scan);
		if (!accept(scan, '"'))
			return error(scan, "no key in quotes");
		if (!scan_string(scan))
			return false;
		json_skip_blanks(scan);
		if (!accept(scan, ':'))
			return error(scan, "no : behind a key");
		if (!json_scan_value(scan, depth))
			return false;
		if (accept(scan, '}'))
			return true;
		if (!accept(scan, ','))
			return error(scan, "neither , nor } behind a value");
	}
}

static bool scan_some_value(struct json_scan *scan, unsigned depth)
{
	int c = peek(scan);

	if ((c == '[' || c == '{') && depth == JSON_DEPTH_MAX)
		return json_over(scan, "more than 64 levels");
	if (accept(scan, '['))
		return scan_array(scan, depth + 1);
	if (accept(scan, '{'))
		return scan_object(scan, depth + 1);
	if (accept(scan, '"'))
		return scan_string(scan);
	if (c == 't')
		return scan_word(scan, "true");
	if (c == 'f')
		return scan_word(scan, "false");
	if (c == 'n')
		return scan_word(scan, "null");
	return scan_number(scan);
}

/* A value with the blanks around it. */
static bool json_scan_value(struct json_scan *scan, unsigned depth)
{
	if (++scan->n_values > scan->max_values)
		return json_over_values(scan);
	json_skip_blanks(scan);
	if (!scan_some_value(scan, depth))
		return false;
	json_skip_blanks(scan);
	return true;
}

/* Whether text is one JSON value and nothing else, within the limits of json.h. */
static bool json_scan(struct json_scan *scan)
{
	if (!json_scan_value(scan, 0))
		return false;
	if (scan->pos < scan->len)
		return error(scan, "more text behind the value");
	return true;
}

static void json_scan_done(struct json_scan *scan)
{
	vec_done(&scan->exact);
}

/* A struct json is a cJSON. Numbers that a double would change are cJSON_Raw: valuestring is the
 * text, valuedouble what is nearest to it. Nothing else is ever raw. */

#define EXACT_MAX 9007199254740992.0 /* 2^53: integers up to here are exact in a double */

/* Every way to a new value goes through here, so that none is allocated by another malloc. Values
 * belong to the one thread of dlrun, and so does this. */
static void use_cjson(void)
{
	static bool is_ready;

	if (is_ready)
		return;
	is_ready = true;
	cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = mem_hook_malloc, .free_fn = free});
}

static cJSON *json_inside(struct json *json)
{
	return (cJSON *)json;
}

static const cJSON *inside_const(const struct json *json)
{
	return (const cJSON *)json;
}

static struct json *outside(cJSON *item)
{
	BUG_ON(!item);
	return (struct json *)item;
}

static int kind_bits(const cJSON *item)
{
	return item ? item->type & 0xff : cJSON_Invalid;
}

/*
 * Parsing
 */

static int fail_at(const struct json_scan *scan, const char *what, struct err *err)
{
	size_t line = 1, column = 1;

	for (size_t i = 0; i < scan->pos; i++) {
		column++;
		if (scan->text[i] == '\n') {
			line++;
			column = 1;
		}
	}
	if (scan->over)
		return err_set(err, E_DATA_LIMIT, "%s has %s (line %zu, column %zu)", what,
			scan->error, line, column);
	return err_set(err, E_DATA, "%s is not valid JSON: %s (line %zu, column %zu)", what,
		scan->error, line, column);
}

/* The pass over the parsed tree. */
struct finish {
	const struct json_scan *scan;
	const char *what;
	struct VEC_OF(const char *) keys; /* of one object at a time */
	size_t n_numbers, n_exact;
	struct err *err;
};

static int compare_keys(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted, because pairwise comparison of a large object would take hours. */
static int check_keys(struct finish *finish, const cJSON *object)
{
	finish->keys.n = 0;
	for (const cJSON *child = object->child; child; child = child->next)
		*vec_push(&finish->keys) = child->string;
	vec_sort(&finish->keys, compare_keys);
	for (size_t i = 1; i < finish->keys.n; i++) {
		if (strcmp(finish->keys.v[i - 1], finish->keys.v[i]) != 0)
			continue;
		AUTO_FREE char *shown = str_shown(finish->keys.v[i]);
		return err_set(
			finish->err, E_DATA, "%s has the key \"%s\" twice", finish->what, shown);
	}
	return 0;
}

/* Numbers come in the order of the text, so counting them finds those whose text is kept. */
static void keep_text(struct finish *finish, cJSON *number)
{
	const struct json_scan *scan = finish->scan;
	size_t ordinal = finish->n_numbers++;

	if (finish->n_exact == scan->exact.n || scan->exact.v[finish->n_exact].ordinal != ordinal)
		return;
	const struct json_exact *exact = &scan->exact.v[finish->n_exact++];
	number->type = cJSON_Raw;
	number->valuestring = mem_strndup(scan->text + exact->at, exact->len);
}

static int finish_tree(struct finish *finish, cJSON *item)
{
	int r = 0;

	if (cJSON_IsNumber(item))
		keep_text(finish, item);
	if (cJSON_IsObject(item))
		r = check_keys(finish, item);
	for (cJSON *child = item->child; child && r == 0; child = child->next)
		r = finish_tree(finish, child);
	return r;
}

static int parse_scanned(
	const struct json_scan *scan, const char *what, struct json **ret, struct err *err)
{
	use_cjson();
	AUTO_JSON struct json *json =
		(struct json *)cJSON_ParseWithLengthOpts(scan->text, scan->len, NULL, false);
	if (!json)
		return err_set(err, E_DATA, "%s is not valid JSON", what);

	struct finish finish = {.scan = scan, .what = what, .err = err};
	int r = finish_tree(&finish, json_inside(json));
	vec_done(&finish.keys);
	if (r < 0)
		return r;
	*ret = TAKE(json);
	return 0;
}

int json_parse(const char *text, size_t len, size_t max, const char *what, struct json **ret,
	struct err *err)
{
	struct json_scan scan = {.text = text,
		.len = len,
		.max_values = max / 16 > JSON_VALUES_MAX ? max / 16 : JSON_VALUES_MAX};
	char size[16];

	if (len > max)
		return err_set(
			err, E_DATA_LIMIT, "%s is larger than %s", what, str_size(max, size));
	int r = json_scan(&scan) ? parse_scanned(&scan, what, ret, err) : fail_at(&scan, what, err);
	json_scan_done(&scan);
	return r;
}

void json_free(struct json *json)
{
	cJSON_Delete(json_inside(json));
}

/*
 * Reading
 */

enum json_kind json_kind(const struct json *json)
{
	switch (kind_bits(inside_const(json))) {
	case cJSON_True:
	case cJSON_False:
		return JSON_BOOL;
	case cJSON_Number:
	case cJSON_Raw:
		return JSON_NUMBER;
	case cJSON_String:
		return JSON_STRING;
	case cJSON_Array:
		return JSON_ARRAY;
	case cJSON_Object:
		return JSON_OBJECT;
	default:
		return JSON_NULL;
	}
}

static cJSON *json_find(const struct json *object, const char *key)
{
	if (!cJSON_IsObject(inside_const(object)))
		return NULL;
	for (cJSON *child = inside_const(object)->child; child; child = child->next)
		if (strcmp(child->string, key) == 0)
			return child;
	return NULL;
}

const struct json *json_get(const struct json *object, const char *key)
{
	return (const struct json *)json_find(object, key);
}

const char *json_get_str(const struct json *object, const char *key)
{
	return json_str(json_get(object, key));
}

int64_t json_get_int(const struct json *object, const char *key, int64_t fallback)
{
	return json_int(json_get(object, key), fallback);
}

double json_get_num(const struct json *object, const char *key, double fallback)
{
	const cJSON *item = json_find(object, key);

	return cJSON_IsNumber(item) || cJSON_IsRaw(item) ? item->valuedouble : fallback;
}

bool json_get_bool(const struct json *object, const char *key, bool fallback)
{
	const cJSON *item = json_find(object, key);

	return cJSON_IsBool(item) ? cJSON_IsTrue(item) : fallback;
}

const char *json_str(const struct json *json)
{
	return cJSON_IsString(inside_const(json)) ? inside_const(json)->valuestring : NULL;
}

static int64_t int_of_text(const char *text, int64_t fallback)
{
	char *end;

	errno = 0;
	intmax_t value = strtoimax(text, &end, 10);
	return errno == 0 && *end == '\0' ? value : fallback;
}

int64_t json_int(const struct json *json, int64_t fallback)
{
	const cJSON *item = inside_const(json);

	if (cJSON_IsRaw(item))
		return int_of_text(item->valuestring, fallback);
	/* 2^63 is a double, 2^63 - 1 is not; the comparison is false for NaN. */
	const double limit = 9223372036854775808.0;
	if (!cJSON_IsNumber(item) || !(item->valuedouble >= -limit && item->valuedouble < limit))
		return fallback;
	int64_t value = (int64_t)item->valuedouble;
	return (double)value == item->valuedouble ? value : fallback;
}

const struct json *json_first(const struct json *json)
{
	return json ? (const struct json *)inside_const(json)->child : NULL;
}

const struct json *json_next(const struct json *member)
{
	return member ? (const struct json *)inside_const(member)->next : NULL;
}

const char *json_key(const struct json *member)
{
	return member ? inside_const(member)->string : NULL;
}

size_t json_count(const struct json *json)
{
	size_t n = 0;

	for (const struct json *member = json_first(json); member; member = json_next(member))
		n++;
	return n;
}

/*
 * Making
 */

struct json *json_object(void)
{
	use_cjson();
	return outside(cJSON_CreateObject());
}

struct json *json_array(void)
{
	use_cjson();
	return outside(cJSON_CreateArray());
}

struct json *json_null(void)
{
	use_cjson();
	return outside(cJSON_CreateNull());
}

struct json *json_clone(const struct json *json)
{
	use_cjson();
	cJSON *clone = cJSON_Duplicate(inside_const(json), true);

	BUG_ON(!clone);
	/* The copy of a member is a root. */
	if (!(clone->type & cJSON_StringIsConst))
		free(clone->string);
	clone->string = NULL;
	return outside(clone);
}

/* Length of the longest prefix that may stand in a string of ours. */
static size_t clean_len(const char *s, size_t len)
{
	size_t at = 0;

	while (at < len && s[at]) {
		size_t n = str_utf8_len(s + at, len - at);
		if (n == 0)
			break;
		at += n;
	}
	return at;
}

static char *clean_text(const char *s, size_t len)
{
	AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);

	while (len > 0) {
		size_t n = clean_len(s, len);
		buf_add(&out, s, n);
		if (n < len) {
			buf_adds(&out, "\xef\xbf\xbd");
			n++;
		}
		s += n;
		len -= n;
	}
	return buf_take(&out);
}

struct json *json_string(const char *s)
{
	if (!s)
		return json_null();
	use_cjson();
	size_t len = strlen(s);
	if (clean_len(s, len) == len)
		return outside(cJSON_CreateString(s));
	AUTO_FREE char *clean = clean_text(s, len);
	return outside(cJSON_CreateString(clean));
}

static struct json *make_int(int64_t value)
{
	char text[24];

	use_cjson();
	if (value >= -(int64_t)EXACT_MAX && value <= (int64_t)EXACT_MAX)
		return outside(cJSON_CreateNumber((double)value));
	snprintf(text, sizeof(text), "%" PRId64, value);
	cJSON *item = cJSON_CreateRaw(text);
	item->valuedouble = (double)value;
	return outside(item);
}

void json_set(struct json *object, const char *key, struct json *take)
{
	AUTO_FREE char *clean = NULL;
	size_t len = strlen(key);

	BUG_ON(!cJSON_IsObject(json_inside(object)) || !take);
	if (clean_len(key, len) < len)
		key = clean = clean_text(key, len);
	if (json_find(object, key))
		cJSON_ReplaceItemInObjectCaseSensitive(json_inside(object), key, json_inside(take));
	else
		cJSON_AddItemToObject(json_inside(object), key, json_inside(take));
}

void json_set_str(struct json *object, const char *key, const char *value)
{
	json_set_bytes(object, key, value, value ? strlen(value) : 0);
}

void json_set_bytes(struct json *object, const char *key, const char *value, size_t len)
{
	AUTO_FREE char *exact_key = NULL;

	if (!value || clean_len(value, len) == len) {
		AUTO_FREE char *text = value ? mem_strndup(value, len) : NULL;
		json_set(object, key, json_string(text));
		return;
	}
	AUTO_BUF struct buf exact = buf_with(SIZE_MAX / 2);
	AUTO_FREE char *clean = clean_text(value, len);
	base64_encode(value, len, &exact);
	exact_key = mem_printf("%s_b64", key);
	json_set(object, key, json_string(clean));
	json_set(object, exact_key, json_string(exact.data));
}

void json_set_int(struct json *object, const char *key, int64_t value)
{
	json_set(object, key, make_int(value));
}

void json_set_num(struct json *object, const char *key, double value)
{
	use_cjson();
	json_set(object, key, outside(cJSON_CreateNumber(value)));
}

void json_set_bool(struct json *object, const char *key, bool value)
{
	use_cjson();
	json_set(object, key, outside(cJSON_CreateBool(value)));
}

void json_remove(struct json *object, const char *key)
{
	cJSON *item = json_find(object, key);

	if (item)
		cJSON_Delete(cJSON_DetachItemViaPointer(json_inside(object), item));
}

void json_add(struct json *array, struct json *take)
{
	BUG_ON(!cJSON_IsArray(json_inside(array)) || !take);
	cJSON_AddItemToArray(json_inside(array), json_inside(take));
}

struct json *json_same_array(struct json *array)
{
	BUG_ON(!cJSON_IsArray(json_inside(array)));
	return outside(cJSON_CreateArrayReference(json_inside(array)->child));
}

void json_add_str(struct json *array, const char *value)
{
	json_add(array, json_string(value));
}

void json_add_int(struct json *array, int64_t value)
{
	json_add(array, make_int(value));
}

void json_add_strv(struct json *array, const struct strv *strv)
{
	for (size_t i = 0; i < strv->n; i++)
		json_add_str(array, strv->v[i]);
}

struct json *json_sub(struct json *object, const char *key)
{
	cJSON *item = json_find(object, key);

	if (cJSON_IsObject(item))
		return outside(item);
	struct json *sub = json_object();
	json_set(object, key, sub);
	return sub;
}

/*
 * Templates
 */

struct json_template {
	const char *at;
	va_list args;
};

static bool template_accept(struct json_template *template, const char *word)
{
	template->at += strspn(template->at, " ");
	if (!str_starts(template->at, word))
		return false;
	template->at += strlen(word);
	return true;
}

static struct json *template_value(struct json_template *template);

/* Members or elements, up to the bracket that closes. */
static struct json *template_inside(struct json_template *template, bool is_object)
{
	struct json *all = is_object ? json_object() : json_array();

	while (!template_accept(template, is_object ? "}" : "]")) {
		AUTO_JSON struct json *key = is_object ? template_value(template) : NULL;
		BUG_ON(is_object && (!json_str(key) || !template_accept(template, ":")));
		struct json *value = template_value(template);
		if (value && is_object)
			json_set(all, json_str(key), value);
		else if (value)
			json_add(all, value);
		template_accept(template, ",");
	}
	return all;
}

/* NULL: it is to be left out. */
static struct json *template_value(struct json_template *template)
{
	if (template_accept(template, "{"))
		return template_inside(template, true);
	if (template_accept(template, "["))
		return template_inside(template, false);
	if (template_accept(template, "%s")) {
		const char *given = va_arg(template->args, const char *);
		return given ? json_string(given) : NULL;
	}
	if (template_accept(template, "%p"))
		return va_arg(template->args, void *);
	if (template_accept(template, "%lld"))
		return make_int(va_arg(template->args, long long));
	if (template_accept(template, "%d"))
		return make_int(va_arg(template->args, int));
	if (template_accept(template, "'")) {
		size_t len = strcspn(template->at, "'");
		AUTO_FREE char *text = mem_strndup(template->at, len);
		BUG_ON(template->at[len] != '\'');
		template->at += len + 1;
		return json_string(text);
	}
	use_cjson();
	if (template_accept(template, "true"))
		return outside(cJSON_CreateTrue());
	if (template_accept(template, "false"))
		return outside(cJSON_CreateFalse());
	char *end;
	int64_t number = strtoll(template->at, &end, 10);
	BUG_ON(end == template->at);
	template->at = end;
	return make_int(number);
}

struct json *json_make(const char *text, ...)
{
	struct json_template template = {.at = text};

	va_start(template.args, text);
	struct json *json = template_value(&template);
	va_end(template.args);
	BUG_ON(!json || *template.at);
	return json;
}

/*
 * Printing
 */

/* The shortest text that reads back as the same double. */
static void print_number(double value, struct buf *out)
{
	char text[32];

	if (!isfinite(value)) {
		buf_adds(out, "null");
		return;
	}
	if (fabs(value) <= EXACT_MAX && value == (double)(int64_t)value) {
		snprintf(text, sizeof(text), "%.0f", value);
		buf_adds(out, text);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	buf_adds(out, text);
}

static void print_special(unsigned char c, struct buf *out)
{
	static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";

	for (size_t i = 0; names[i]; i += 2) {
		if ((unsigned char)names[i] == c) {
			buf_addc(out, '\\');
			buf_addc(out, names[i + 1]);
			return;
		}
	}
	buf_addf(out, "\\u%04x", c);
}

static void print_string(const char *s, struct buf *out)
{
	buf_addc(out, '"');
	while (*s) {
		const char *end = s;
		while ((unsigned char)*end >= 0x20 && *end != '"' && *end != '\\')
			end++;
		buf_add(out, s, (size_t)(end - s));
		s = end;
		if (*s)
			print_special((unsigned char)*s++, out);
	}
	buf_addc(out, '"');
}

/* indent: of the line that the value stands on, -1 for no lines at all. */
static void json_print_value(const cJSON *item, int indent, struct buf *out);

static void print_break(int indent, struct buf *out)
{
	if (indent < 0)
		return;
	buf_addc(out, '\n');
	for (int i = 0; i < indent; i++)
		buf_addc(out, ' ');
}

static void print_members(const cJSON *parent, int indent, struct buf *out)
{
	bool is_object = cJSON_IsObject(parent);
	int inner = indent < 0 ? -1 : indent + 2;

	buf_addc(out, is_object ? '{' : '[');
	for (const cJSON *child = parent->child; child; child = child->next) {
		print_break(inner, out);
		if (is_object) {
			print_string(child->string, out);
			buf_adds(out, indent < 0 ? ":" : ": ");
		}
		json_print_value(child, inner, out);
		if (child->next)
			buf_addc(out, ',');
	}
	if (parent->child)
		print_break(indent, out);
	buf_addc(out, is_object ? '}' : ']');
}

static void json_print_value(const cJSON *item, int indent, struct buf *out)
{
	switch (kind_bits(item)) {
	case cJSON_True:
		buf_adds(out, "true");
		return;
	case cJSON_False:
		buf_adds(out, "false");
		return;
	case cJSON_Number:
		print_number(item->valuedouble, out);
		return;
	case cJSON_Raw:
		buf_adds(out, item->valuestring);
		return;
	case cJSON_String:
		print_string(item->valuestring, out);
		return;
	case cJSON_Array:
	case cJSON_Object:
		print_members(item, indent, out);
		return;
	default:
		buf_adds(out, "null");
		return;
	}
}

void json_print(const struct json *json, struct buf *out)
{
	json_print_value(inside_const(json), -1, out);
}
void json_print_pretty(const struct json *json, struct buf *out)
{
	json_print_value(inside_const(json), 0, out);
}

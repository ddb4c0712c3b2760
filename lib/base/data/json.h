/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON (RFC 8259), strictly: cJSON behind checks for what it lets pass (bad UTF-8, NUL in strings,
 * trailing bytes, control characters, malformed numbers, duplicate keys, deep nesting).
 * Lookups distinguish case and are linear. Integers of more than 15 digits, and numbers beyond the
 * range of a double, are kept as their text.
 */
#ifndef DLRUN_BASE_DATA_JSON_H
#define DLRUN_BASE_DATA_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

/* Values count, because each takes some 80 bytes and may be written in two: where a larger text
 * than JSON_SIZE_MAX may be read, one for 16 bytes of that. */
enum { JSON_DEPTH_MAX = 64, JSON_VALUES_MAX = 1000 * 1000, JSON_SIZE_MAX = 8 << 20 };

/* A value. The root is owned by the caller that parsed or made it; members belong to their
 * parent. */
struct json;

/* what names the text in errors ("the manifest of oci:out"). E_DATA, or E_DATA_LIMIT over max or
 * another limit (levels, values, 63 characters in one number). */
int json_parse(const char *text, size_t len, size_t max, const char *what, struct json **ret,
	struct err *err);
void json_free(struct json *json);
AUTO_POINTER(struct json, json_free)
#define AUTO_JSON AUTO(json_free_auto)

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
enum json_kind json_kind(const struct json *json);

/* Lenient readers: NULL or the fallback when json is NULL, the key is missing, the kind is
 * another. Strings live as long as the root. */
const struct json *json_get(const struct json *object, const char *key);
const char *json_get_str(const struct json *object, const char *key);
int64_t json_get_int(const struct json *object, const char *key, int64_t fallback);
double json_get_num(const struct json *object, const char *key, double fallback);
bool json_get_bool(const struct json *object, const char *key, bool fallback);
const char *json_str(const struct json *json);
int64_t json_int(const struct json *json, int64_t fallback);
/* Members of an array or object in order: json_first, then json_next until NULL. */
const struct json *json_first(const struct json *json);
const struct json *json_next(const struct json *member);
/* json_foreach (item, list) { … } */
#define json_foreach(item, list)                                                                   \
	for (const struct json *item = json_first(list); item; item = json_next(item))
const char *json_key(const struct json *member);
size_t json_count(const struct json *json);

/* Makers. json_set_* on an object (a member that has the key is replaced where it stands),
 * json_add_* on an array. NULL strings become null. Bytes that are not UTF-8, and NUL, become
 * U+FFFD and, in an object, a second member key_b64 holds them exactly. */
struct json *json_object(void);
struct json *json_array(void);
struct json *json_null(void);
struct json *json_string(const char *value);
struct json *json_clone(const struct json *json);
void json_set(struct json *object, const char *key, struct json *take);
void json_set_str(struct json *object, const char *key, const char *value);
void json_set_bytes(struct json *object, const char *key, const char *value, size_t len);
void json_set_int(struct json *object, const char *key, int64_t value);
/* NaN and infinities are printed as null. */
void json_set_num(struct json *object, const char *key, double value);
void json_set_bool(struct json *object, const char *key, bool value);
void json_remove(struct json *object, const char *key);
void json_add(struct json *array, struct json *take);
/* An array with the same elements, which stay the first one's: for one value in many places of a
 * tree, which is freed whole. Not to be changed. */
struct json *json_same_array(struct json *array);
void json_add_str(struct json *array, const char *value);
void json_add_int(struct json *array, int64_t value);
void json_add_strv(struct json *array, const struct strv *strv);
/* The object at key, made if it is missing. */
struct json *json_sub(struct json *object, const char *key);
/* A value from a template: JSON with ' for " and without escapes, whose numbers are digits, with %s
 * for a string (a key, too), %d and %lld for a number, and %p for a value, which is taken. A member
 * or element whose %s or %p is NULL is left out. Another text is a bug of the caller. */
struct json *json_make(const char *text, ...) ERR_PRINTF(1, 2);

/* Print one line without blanks, members in their order; equal values give equal bytes. */
void json_print(const struct json *json, struct buf *out);
/* For people: two blanks of indentation. */
void json_print_pretty(const struct json *json, struct buf *out);

#endif

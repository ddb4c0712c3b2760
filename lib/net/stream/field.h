/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of HTTP fields (RFC 9110): an engine on text from the network.
 */
#ifndef DLRUN_NET_STREAM_FIELD_H
#define DLRUN_NET_STREAM_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/vec.h"

/* Section 5.6.2. */
bool field_is_token(const char *text, size_t len);
/* Whether there is a control character but a tab. */
bool field_has_control(const char *text, size_t len);

/* The first value of a field in headers ("name: value", names in lower case), or NULL. */
const char *field_find(const struct strv *headers, const char *name);

/* A challenge of WWW-Authenticate (section 11.3): `Bearer realm="…",service="…"`. */
struct challenge {
	char *scheme;       /* lower case: "bearer", "basic" */
	struct strv keys;   /* lower case */
	struct strv values; /* quotes and backslashes removed; same length as keys */
};
struct challenge_list VEC_OF(struct challenge);
enum { CHALLENGES_MAX = 16, CHALLENGE_PARAMS_MAX = 16 };
/* All challenges of all WWW-Authenticate fields, in order; what does not parse is left out, what is
 * over the limits dropped. */
void challenges_parse(const struct strv *headers, struct challenge_list *ret);
void challenges_done(struct challenge_list *list);
#define AUTO_CHALLENGES AUTO(challenges_done)
/* The first of that scheme, or NULL. */
const struct challenge *challenge_find(const struct challenge_list *list, const char *scheme);
const char *challenge_param(const struct challenge *challenge, const char *key);

/* Retry-After (section 10.2.3): seconds or an HTTP date, seen at wall-clock time now_ms. The wait
 * in ms, 0 for a time that is past, RETRY_AFTER_MAX_MS for a later one, -1 if text is neither. */
#define RETRY_AFTER_MAX_MS (INT64_C(365) * 24 * 3600 * 1000)
int64_t field_retry_after(const char *text, int64_t now_ms);
/* An HTTP date (section 5.6.7) in all three forms; milliseconds since 1970, 0 for a time before, -1
 * if text is none. Two digits of a year from 70 on are of the 20th century. */
int64_t field_date(const char *text);
/* The Range of an upload (OCI distribution-spec, "Pushing a blob in chunks"): "0-99" or
 * "bytes=0-99" to the number of bytes that are there; false otherwise. "0-0" is none, because that
 * is what registries say of an empty upload, and no client sends one byte. */
bool field_upload_range(const char *text, uint64_t *ret_bytes);
/* The whole of text as a decimal number under 2^64 - 1, without sign and blanks. */
bool field_number(const char *text, uint64_t *ret);

#endif

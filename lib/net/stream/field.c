/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/field.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/mem.h"
#include "base/util/str.h"

static const char token_chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				  "!#$%&'*+-.^_`|~";
static const char token68_chars[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/";
static const char blanks[] = " \t";

bool field_is_token(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!text[i] || !strchr(token_chars, text[i]))
			return false;
	return len > 0;
}

bool field_has_control(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return true;
	}
	return false;
}

/* The value if header is called name, or NULL. */
static const char *field_value_of(const char *header, const char *name)
{
	size_t len = strlen(name);

	if (strncmp(header, name, len) != 0 || header[len] != ':')
		return NULL;
	header += len + 1;
	return header + strspn(header, blanks);
}

const char *field_find(const struct strv *headers, const char *name)
{
	vec_foreach (char *, header, headers) {
		const char *value = field_value_of(*header, name);

		if (value)
			return value;
	}
	return NULL;
}

/* From the quote at *at to behind the one that ends it. NULL if none does. */
static char *take_quoted(const char **at)
{
	const char *start = *at + 1;
	const char *end = start;
	char *value, *out;

	while (*end && *end != '"')
		end += *end == '\\' && end[1] ? 2 : 1;
	*at = *end ? end + 1 : end;
	if (!*end)
		return NULL;
	value = out = mem_alloc((size_t)(end - start) + 1, 1);
	while (start < end) {
		if (*start == '\\')
			start++;
		*out++ = *start++;
	}
	return value;
}

/* A value without quotes may hold more than a token: some servers forget the quotes of a URL. */
static char *take_value(const char **at)
{
	size_t len = strcspn(*at, " \t,\"");
	char *value;

	if (**at == '"')
		return take_quoted(at);
	value = len ? mem_strndup(*at, len) : NULL;
	*at += len;
	return value;
}

/* A parameter at *at, into challenge if there is room; false and nothing done if there is none. */
static bool field_take_param(const char **at, struct challenge *challenge)
{
	const char *key = *at;
	size_t len = strspn(key, token_chars);
	const char *equals = key + len + strspn(key + len, blanks);
	AUTO_FREE char *value = NULL;

	if (len == 0 || *equals != '=')
		return false;
	*at = equals + 1 + strspn(equals + 1, blanks);
	value = take_value(at);
	if (value && challenge && challenge->keys.n < CHALLENGE_PARAMS_MAX) {
		strv_add_take(&challenge->keys, str_lower(key, len));
		strv_add_take(&challenge->values, TAKE(value));
	}
	return true;
}

static void skip_token68(const char **at)
{
	const char *end = *at + strspn(*at, blanks);

	end += strspn(end, token68_chars);
	end += strspn(end, "=");
	end += strspn(end, blanks);
	if (!*end || *end == ',')
		*at = end;
}

static void skip_garbage(const char **at)
{
	while (**at && !strchr(" \t,", **at)) {
		if (**at == '"')
			free(take_quoted(at));
		else
			++*at;
	}
}

static void skip_separators(const char **at)
{
	*at += strspn(*at, " \t,");
}

/* Take the word at *at, which is neither blank nor comma, into the list if it is a challenge. */
static void field_take_challenge(const char **at, struct challenge_list *list)
{
	size_t len = strspn(*at, token_chars);
	const char *next = *at + len;
	struct challenge *challenge;

	if (field_take_param(at, NULL))
		return;
	if (len == 0 || !strchr(" \t,", *next)) { /* finds the end of text, too */
		skip_garbage(at);
		return;
	}
	challenge = vec_push(list);
	challenge->scheme = str_lower(*at, len);
	*at = next;
	skip_token68(at);
	do {
		skip_separators(at);
	} while (field_take_param(at, challenge));
}

void challenges_parse(const struct strv *headers, struct challenge_list *ret)
{
	*ret = (struct challenge_list){0};
	vec_foreach (char *, header, headers) {
		const char *at = field_value_of(*header, "www-authenticate");

		while (at && ret->n < CHALLENGES_MAX) {
			skip_separators(&at);
			if (!*at)
				break;
			field_take_challenge(&at, ret);
		}
	}
}

void challenges_done(struct challenge_list *list)
{
	if (!list)
		return;
	vec_foreach (struct challenge, challenge, list) {
		free(challenge->scheme);
		strv_done(&challenge->keys);
		strv_done(&challenge->values);
	}
	vec_done(list);
}

const struct challenge *challenge_find(const struct challenge_list *list, const char *scheme)
{
	vec_foreach (struct challenge, challenge, list) {
		if (str_eq(challenge->scheme, scheme))
			return challenge;
	}
	return NULL;
}

const char *challenge_param(const struct challenge *challenge, const char *key)
{
	ptrdiff_t at = strv_find(&challenge->keys, key);

	return at >= 0 ? challenge->values.v[at] : NULL;
}

static bool take_word(const char **at, const char *const *words, int n, int *ret)
{
	for (int i = 0; i < n; i++) {
		if (str_starts(*at, words[i])) {
			*ret = i;
			*at += strlen(words[i]);
			return true;
		}
	}
	return false;
}

static bool take_digits(const char **at, int n, int *ret)
{
	*ret = 0;
	for (int i = 0; i < n; i++, ++*at) {
		if (!str_is_digit(**at))
			return false;
		*ret = *ret * 10 + (**at - '0');
	}
	return true;
}

static const char *const months[] = {
	"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
static const char *const days[] = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
static const char *const long_days[] = {
	"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};

/* Parse a part of a date. strptime would do, but for the words of the locale. */
static bool field_take_part(const char **at, char part, struct tm *tm)
{
	int ignored;

	switch (part) {
	case 'a':
		return take_word(at, days, ARRAY_LEN(days), &ignored);
	case 'A':
		return take_word(at, long_days, ARRAY_LEN(long_days), &ignored);
	case 'b':
		return take_word(at, months, ARRAY_LEN(months), &tm->tm_mon);
	case 'd':
		return take_digits(at, 2, &tm->tm_mday);
	case 'e': /* padded with a blank */
		if (**at != ' ')
			return take_digits(at, 2, &tm->tm_mday);
		++*at;
		return take_digits(at, 1, &tm->tm_mday);
	case 'H':
		return take_digits(at, 2, &tm->tm_hour);
	case 'M':
		return take_digits(at, 2, &tm->tm_min);
	case 'S':
		return take_digits(at, 2, &tm->tm_sec);
	case 'Y':
		return take_digits(at, 4, &tm->tm_year) && (tm->tm_year -= 1900, true);
	default: /* 'y' */
		return take_digits(at, 2, &tm->tm_year) &&
		       (tm->tm_year += tm->tm_year < 70 ? 100 : 0, true);
	}
}

static bool field_matches(const char *text, const char *form, struct tm *tm)
{
	for (; *form; form++) {
		if (*form == '%') {
			if (!field_take_part(&text, *++form, tm))
				return false;
		} else if (*text++ != *form) {
			return false;
		}
	}
	return text[strspn(text, blanks)] == '\0';
}

/* -1 where the numbers are no date. */
static int64_t ms_of(struct tm tm)
{
	int day = tm.tm_mday;
	int64_t s;

	if (tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
		return -1;
	if (tm.tm_sec == 60)
		tm.tm_sec = 59;
	s = timegm(&tm);
	if (tm.tm_mday != day)
		return -1;
	return s < 0 ? 0 : s * 1000;
}

int64_t field_date(const char *text)
{
	static const char *const forms[] = {
		"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"};

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		struct tm tm = {0};

		if (field_matches(text, forms[i], &tm))
			return ms_of(tm);
	}
	return -1;
}

/* The digits at *at; UINT64_MAX for more than that. False if there is none. */
static bool field_take_number(const char **at, uint64_t *ret)
{
	const char *start = *at;

	*ret = 0;
	for (; str_is_digit(**at); ++*at) {
		uint64_t digit = (uint64_t)(**at - '0');

		*ret = *ret > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *ret * 10 + digit;
	}
	return *at > start;
}

int64_t field_retry_after(const char *text, int64_t now_ms)
{
	uint64_t s;
	int64_t date_ms;

	text += strspn(text, blanks);
	if (str_is_digit(*text)) {
		field_take_number(&text, &s);
		if (text[strspn(text, blanks)])
			return -1;
		return s > RETRY_AFTER_MAX_MS / 1000 ? RETRY_AFTER_MAX_MS : (int64_t)s * 1000;
	}
	date_ms = field_date(text);
	if (date_ms < 0)
		return -1;
	if (date_ms <= now_ms)
		return 0;
	return now_ms < date_ms - RETRY_AFTER_MAX_MS ? RETRY_AFTER_MAX_MS : date_ms - now_ms;
}

bool field_upload_range(const char *text, uint64_t *ret_bytes)
{
	uint64_t last;

	if (str_starts(text, "bytes="))
		text += strlen("bytes=");
	if (!str_starts(text, "0-") || !field_number(text + 2, &last))
		return false;
	*ret_bytes = last == 0 ? 0 : last + 1;
	return true;
}

bool field_number(const char *text, uint64_t *ret)
{
	uint64_t value;

	if (!field_take_number(&text, &value) || *text || value == UINT64_MAX)
		return false;
	*ret = value;
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/logs/podlog_impl.h"

enum { SECOND_NS = 1000000000 };

uint64_t podlog_hash(uint64_t hash, const char *data, size_t len)
{
	/* FNV-1a: the same however the bytes are cut up. */
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)data[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/*
 * Timestamps (RFC 3339)
 */

/* n digits; -1: they are none. */
static int64_t digits(const char *s, size_t n)
{
	int64_t value = 0;

	for (size_t i = 0; i < n; i++) {
		if (!str_is_digit(s[i]))
			return -1;
		value = value * 10 + (s[i] - '0');
	}
	return value;
}

/* Days since 1970-01-01 in the proleptic Gregorian calendar; the year begins in March, so that leap
 * days come last. */
static int64_t days_of(int64_t year, int64_t month, int64_t day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	int64_t m = month <= 2 ? month + 9 : month - 3;
	int64_t era = y / 400, of_era = y % 400;
	int64_t of_year = (153 * m + 2) / 5 + day - 1;

	return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* "2026-11-21T08:21:00" to seconds; -1: it is none. */
static int64_t date_time(const char *s)
{
	static const char shape[] = "0000-00-00T00:00:00";
	int64_t year = digits(s, 4), month = digits(s + 5, 2), day = digits(s + 8, 2);
	int64_t hour = digits(s + 11, 2), minute = digits(s + 14, 2), second = digits(s + 17, 2);

	for (size_t i = 0; shape[i]; i++)
		if (shape[i] == '0' ? !str_is_digit(s[i]) : s[i] != shape[i])
			return -1;
	if (year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > 31 ||
		hour > 23 || minute > 59 || second > 60)
		return -1;
	return days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
}

/* ".123456789", or nothing; returns its length, -1: it is none. */
static int fraction(const char *s, size_t len, int64_t *ret_ns)
{
	int64_t ns = 0, unit = SECOND_NS / 10;
	size_t i = 1;

	*ret_ns = 0;
	if (len == 0 || s[0] != '.')
		return 0;
	for (; i < len && i <= 9 && str_is_digit(s[i]); i++, unit /= 10)
		ns += (s[i] - '0') * unit;
	*ret_ns = ns;
	return i > 1 ? (int)i : -1;
}

/* "Z" or "+02:00"; returns its length, -1: it is none. */
static int zone(const char *s, size_t len, int64_t *ret_seconds)
{
	int64_t hours, minutes;

	*ret_seconds = 0;
	if (len >= 1 && s[0] == 'Z')
		return 1;
	if (len < 6 || (s[0] != '+' && s[0] != '-') || s[3] != ':')
		return -1;
	hours = digits(s + 1, 2);
	minutes = digits(s + 4, 2);
	if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
		return -1;
	*ret_seconds = (hours * 3600 + minutes * 60) * (s[0] == '+' ? 1 : -1);
	return 6;
}

size_t podlog_stamp(const char *data, size_t len, int64_t *ret_ns)
{
	int64_t seconds, ns, offset;
	size_t at = 19;
	int n;

	if (len < 21 || (seconds = date_time(data)) < 0)
		return 0;
	n = fraction(data + at, len - at, &ns);
	if (n < 0)
		return 0;
	at += (size_t)n;
	n = zone(data + at, len - at, &offset);
	if (n < 0)
		return 0;
	at += (size_t)n;
	if (at >= len || data[at] != ' ')
		return 0;
	*ret_ns = (seconds - offset) * SECOND_NS + ns;
	return at + 1;
}

/*
 * Points as text: 1:ID:TIME:MAX-TIME:ORDINAL:LENGTH:HASH, numbers in base 16
 */

void podlog_point_format(const struct podlog_point *point, char out[static PODLOG_TOKEN_SIZE])
{
	snprintf(out, PODLOG_TOKEN_SIZE,
		"1:%s:%" PRIx64 ":%" PRIx64 ":%" PRIx32 ":%" PRIx64 ":%" PRIx64, point->id,
		(uint64_t)point->time_ns, (uint64_t)(point->max_ns - point->time_ns),
		point->ordinal, point->len, point->hash);
}

/* The next number, up to 16 digits and the ':' or end behind them. */
static bool next_hex(const char **at, uint64_t *ret)
{
	const char *s = *at;
	uint64_t value = 0;
	size_t n = 0;

	for (; n < 16; n++) {
		char c = s[n];
		if (str_is_digit(c))
			value = value << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (uint64_t)(c - 'a' + 10);
		else
			break;
	}
	if (n == 0 || (s[n] != ':' && s[n] != '\0'))
		return false;
	*at = s + n + (s[n] == ':');
	*ret = value;
	return true;
}

bool podlog_point_parse(const char *text, struct podlog_point *ret)
{
	struct podlog_point point = {0};
	uint64_t v[5];
	const char *colon, *at;

	if (!str_starts(text, "1:") || !(colon = strchr(text + 2, ':')) ||
		(size_t)(colon - text - 2) >= sizeof(point.id))
		return false;
	memcpy(point.id, text + 2, (size_t)(colon - text - 2));
	at = colon + 1;
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		if (!next_hex(&at, &v[i]))
			return false;
	if (*at || at[-1] == ':' || v[0] > INT64_MAX || v[1] > INT64_MAX - v[0] ||
		v[2] > UINT32_MAX)
		return false;
	if (v[0] > 0 && (v[2] == 0 || v[3] == 0))
		return false;
	point.time_ns = (int64_t)v[0];
	point.max_ns = (int64_t)(v[0] + v[1]);
	point.ordinal = (uint32_t)v[2];
	point.len = v[3];
	point.hash = v[4];
	*ret = point;
	return true;
}

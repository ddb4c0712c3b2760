/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/unicode.h"

bool str_is_secret(const char *s, const char *secret, size_t len)
{
	unsigned char differs = 0;

	for (size_t i = 0; i < len; i++)
		differs |= (unsigned char)(s[i] ^ secret[i]);
	return differs == 0;
}

bool str_starts(const char *s, const char *prefix)
{
	return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
	size_t len = strlen(s), suffix_len = strlen(suffix);

	return len >= suffix_len && strcmp(s + len - suffix_len, suffix) == 0;
}

char *str_lower(const char *s, size_t len)
{
	char *out = mem_strndup(s, len);

	for (char *c = out; *c; c++) {
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
	}
	return out;
}

static bool parse_int(const char *s, int64_t *ret)
{
	bool negative = *s == '-';
	int64_t value = 0;

	s += negative;
	if (!*s)
		return false;
	for (; str_is_digit(*s); s++)
		if (__builtin_mul_overflow(value, 10, &value) ||
			__builtin_sub_overflow(value, *s - '0', &value))
			return false;
	/* Counted downwards, because the range goes one further there. */
	if (*s || (!negative && value == INT64_MIN))
		return false;
	*ret = negative ? value : -value;
	return true;
}

int str_to_int(
	const char *s, int64_t min, int64_t max, const char *what, int64_t *ret, struct err *err)
{
	int64_t value;

	if (parse_int(s, &value) && value >= min && value <= max) {
		*ret = value;
		return 0;
	}
	AUTO_FREE char *given = str_shown(s);
	if (max == INT64_MAX)
		return err_set(err, E_USAGE,
			"%s must be a whole number of at least %lld, not \"%s\"", what,
			(long long)min, given);
	return err_set(err, E_USAGE, "%s must be a whole number from %lld to %lld, not \"%s\"",
		what, (long long)min, (long long)max, given);
}

bool str_is_before(const char *s, const char *text, size_t len, unsigned char tail)
{
	int d = strncmp(s, text, len);

	return d < 0 || (d == 0 && (unsigned char)s[len] < tail);
}

bool str_is_word_of(const char *s, const char *words)
{
	size_t len = strlen(s);

	for (const char *p = words; p && *p;) {
		size_t n = strcspn(p, " ");

		if (n == len && memcmp(p, s, n) == 0)
			return true;
		p += n + strspn(p + n, " ");
	}
	return false;
}

int str_choose(const char *s, const char *words, const char *what, struct err *err)
{
	if (str_is_word_of(s, words))
		return 0;
	AUTO_FREE char *given = str_shown(s), *list = mem_strdup("");

	for (const char *p = words; *p;) {
		size_t n = strcspn(p, " ");
		const char *next = p + n + strspn(p + n, " ");
		const char *between = p == words ? "" : *next ? ", " : " or ";
		char *longer = mem_printf("%s%s%.*s", list, between, (int)n, p);

		free(list);
		list = longer;
		p = next;
	}
	return err_set(err, E_USAGE, "%s must be %s, not '%s'", what, list, given);
}

static const struct unit {
	const char *name;
	uint64_t bytes;
} units[] = {
	{"", 1},
	{"k", 1000},
	{"K", 1000},
	{"M", 1000000},
	{"G", 1000000000},
	{"T", 1000000000000},
	{"P", 1000000000000000},
	{"E", 1000000000000000000},
	{"Ki", 1ull << 10},
	{"Mi", 1ull << 20},
	{"Gi", 1ull << 30},
	{"Ti", 1ull << 40},
	{"Pi", 1ull << 50},
	{"Ei", 1ull << 60},
};

static const struct unit *find_unit(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (strcmp(name, units[i].name) == 0)
			return &units[i];
	return NULL;
}

/* Together less than 10^38, and with that less than 128 bits. */
enum { SIZE_WHOLE_DIGITS = 20, SIZE_FRACTION_DIGITS = 18 };

static bool parse_size(const char *s, uint64_t *ret)
{
	static const char digits[] = "0123456789";
	unsigned __int128 value = 0, scale = 1;
	size_t whole = strspn(s, digits);
	bool point = s[whole] == '.';
	size_t fraction = point ? strspn(s + whole + 1, digits) : 0;
	const char *end = s + whole + point + fraction;

	if (whole == 0 || whole > SIZE_WHOLE_DIGITS || fraction > SIZE_FRACTION_DIGITS ||
		(point && fraction == 0))
		return false;
	for (; s < end; s++)
		if (*s != '.')
			value = value * 10 + (unsigned)(*s - '0');
	for (size_t i = 0; i < fraction; i++)
		scale *= 10;
	const struct unit *unit = find_unit(end);
	if (!unit || (point && unit->bytes == 1))
		return false;
	if (value > ((unsigned __int128)UINT64_MAX * scale + scale - 1) / unit->bytes)
		return false;
	*ret = (uint64_t)(value * unit->bytes / scale);
	return true;
}

int str_to_size(const char *s, uint64_t *ret, struct err *err)
{
	if (parse_size(s, ret))
		return 0;
	AUTO_FREE char *given = str_shown(s);
	return err_set(err, E_USAGE, "\"%s\" is not a size like 4096, 500Mi, 1.5Gi or 10M", given);
}

const char *str_size(uint64_t bytes, char out[static 16])
{
	static const char prefixes[] = " KMGTPE";
	unsigned step = 0;

	if (bytes < 1024) {
		snprintf(out, 16, "%u B", (unsigned)bytes);
		return out;
	}
	/* 1023.5 of a unit would be rounded to 1024. */
	while (step < 6 && bytes >> 10 * step >= 1024)
		step++;
	if (step < 6 && ((bytes >> (10 * step - 1)) + 1) >> 1 >= 1024)
		step++;
	uint64_t half = 1ull << (10 * step - 1);
	uint64_t tenths = (uint64_t)(((unsigned __int128)bytes * 10 + half) >> 10 * step);
	if (tenths < 100)
		snprintf(out, 16, "%u.%u %ciB", (unsigned)tenths / 10, (unsigned)tenths % 10,
			prefixes[step]);
	else
		snprintf(out, 16, "%u %ciB", (unsigned)(((bytes >> (10 * step - 1)) + 1) >> 1),
			prefixes[step]);
	return out;
}

size_t str_utf8_len(const char *s, size_t len)
{
	uint32_t cp;

	return unicode_decode(s, len, &cp);
}

bool str_is_utf8(const char *s, size_t len)
{
	while (len) {
		size_t n = *(const uint8_t *)s < 0x80 ? 1 : str_utf8_len(s, len);
		if (n == 0)
			return false;
		s += n;
		len -= n;
	}
	return true;
}

bool str_is_plain(const char *s)
{
	uint32_t cp;

	for (size_t len = strlen(s); len;) {
		size_t n = unicode_decode(s, len, &cp);
		if (n == 0 || unicode_is_control(cp) || unicode_is_hidden(cp))
			return false;
		s += n;
		len -= n;
	}
	return true;
}

size_t str_columns(const char *s)
{
	size_t columns = 0, len = strlen(s);

	while (len) {
		uint32_t cp;
		size_t n = unicode_decode(s, len, &cp);
		columns += n ? unicode_width(cp) : 1;
		n += n == 0;
		s += n;
		len -= n;
	}
	return columns;
}

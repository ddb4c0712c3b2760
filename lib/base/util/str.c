/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/str.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
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

enum { WORD_MAX = 255 };

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned ab = a < b ? a : b;

	return ab < c ? ab : c;
}

/* Optimal string alignment: three rows of the table are enough. */
static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	unsigned rows[3][WORD_MAX + 1];
	unsigned *before = rows[0], *last = rows[1], *row = rows[2];

	for (unsigned j = 0; j <= b_len; j++)
		last[j] = j;
	for (unsigned i = 1; i <= a_len; i++) {
		row[0] = i;
		for (size_t j = 1; j <= b_len; j++) {
			unsigned differs = a[i - 1] != b[j - 1];
			row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + differs);
			bool swapped =
				i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
			if (swapped && before[j - 2] + 1 < row[j])
				row[j] = before[j - 2] + 1;
		}
		unsigned *oldest = before;
		before = last;
		last = row;
		row = oldest;
	}
	return last[b_len];
}

unsigned str_distance(const char *a, const char *b)
{
	size_t a_len = strnlen(a, WORD_MAX + 1), b_len = strnlen(b, WORD_MAX + 1);

	if (a_len > WORD_MAX || b_len > WORD_MAX)
		return strcmp(a, b) == 0 ? 0 : WORD_MAX;
	return distance(a, a_len, b, b_len);
}

/* The only candidate that word is the beginning of, or NULL. */
static const char *only_completion(const char *word, const char *const *candidates, size_t n)
{
	const char *found = NULL;

	for (size_t i = 0; i < n; i++) {
		if (!str_starts(candidates[i], word))
			continue;
		if (found)
			return NULL;
		found = candidates[i];
	}
	return found;
}

const char *str_suggest(const char *word, const char *const *candidates, size_t n)
{
	size_t len = strlen(word);
	const char *best = NULL;

	if (len == 0 || len > WORD_MAX)
		return NULL;
	best = only_completion(word, candidates, n);
	if (best)
		return best;
	size_t limit = len / 3 < 1 ? 1 : len / 3 > 3 ? 3 : len / 3;
	for (size_t i = 0; i < n; i++) {
		unsigned d = str_distance(word, candidates[i]);
		/* Replacing the whole word is no correction. */
		if (d > limit || d >= len)
			continue;
		best = candidates[i];
		if (d == 0)
			break;
		limit = d - 1;
	}
	return best;
}

static bool str_is_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool str_is_shell_plain(const char *s)
{
	for (; *s; s++)
		if (!str_is_alnum(*s) && !strchr("_@%+=:,./-", *s))
			return false;
	return true;
}

/* Whether s would be read as an assignment or a reserved word where a command may begin. */
static bool is_special_first(const char *s)
{
	static const char *const reserved[] = {"case", "do", "done", "elif", "else", "esac", "fi",
		"for", "function", "if", "in", "select", "then", "time", "until", "while"};
	const char *p = s;

	for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
		if (strcmp(s, reserved[i]) == 0)
			return true;
	while (str_is_alnum(*p) || *p == '_')
		p++;
	return *p == '=' || (*p == '+' && p[1] == '=');
}

static void str_quote(struct buf *out, const char *s, bool first)
{
	if (*s && str_is_shell_plain(s) && !(first && is_special_first(s))) {
		buf_adds(out, s);
		return;
	}
	buf_addc(out, '\'');
	for (const char *end; (end = strchr(s, '\'')); s = end + 1) {
		buf_add(out, s, (size_t)(end - s));
		buf_adds(out, "'\\''");
	}
	buf_adds(out, s);
	buf_addc(out, '\'');
}

void str_shell_quote(struct buf *out, const char *s)
{
	str_quote(out, s, true);
}

void str_shell_join(struct buf *out, char *const *words)
{
	for (size_t i = 0; words[i]; i++) {
		if (i)
			buf_addc(out, ' ');
		str_quote(out, words[i], i == 0);
	}
}

/* Bytes at s that are shown as they are: 0, or the length of one character. */
static size_t visible_len(const char *s, size_t len)
{
	uint32_t cp;
	size_t n = unicode_decode(s, len, &cp);

	return n && cp != '\\' && !unicode_is_control(cp) && !unicode_is_hidden(cp) ? n : 0;
}

static void escape_byte(struct buf *out, char c)
{
	if (c == '\n')
		buf_adds(out, "\\n");
	else if (c == '\t')
		buf_adds(out, "\\t");
	else if (c == '\\')
		buf_adds(out, "\\\\");
	else
		buf_addf(out, "\\x%02x", (unsigned)(uint8_t)c);
}

void str_escape(struct buf *out, const char *s, size_t len)
{
	while (len) {
		uint32_t cp;
		size_t run = 0, n;
		while (run < len && (n = visible_len(s + run, len - run)))
			run += n;
		buf_add(out, s, run);
		s += run;
		len -= run;
		/* Escape all bytes of a character that is not shown, or one byte that is no
		 * character. */
		n = unicode_decode(s, len, &cp);
		for (n += len && !n; n; n--, s++, len--)
			escape_byte(out, *s);
	}
}

char *str_escaped(const char *s)
{
	struct buf out;
	size_t len = strlen(s);

	buf_init(&out, 4 * len);
	str_escape(&out, s, len);
	return out.data;
}

char *str_shown(const char *s)
{
	enum { MAX = 64 };
	struct buf out;
	size_t len = strnlen(s, MAX + 1);
	bool cut = len > MAX;

	if (cut)
		for (len = MAX; len > MAX - 4 && (s[len] & 0xc0) == 0x80;)
			len--;
	buf_init(&out, 4 * MAX + 3);
	str_escape(&out, s, len);
	if (cut)
		buf_adds(&out, "…");
	return out.data;
}

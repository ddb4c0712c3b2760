/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/str.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

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

bool str_to_decimal(const char *s, double *ret)
{
	char *end;

	if (!s[strcspn(s, "0123456789")] || s[strspn(s, "0123456789.")])
		return false;
	double value = strtod(s, &end);
	if (*end || !isfinite(value))
		return false;
	*ret = value;
	return true;
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

		REPLACE(list, longer);
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

size_t str_fit(const char *s, size_t max)
{
	size_t len = strlen(s);

	if (len <= max)
		return len;
	while (max > 0 && ((unsigned char)s[max] & 0xc0) == 0x80)
		max--;
	return max;
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

void str_csv_quote(struct buf *out, const char *s)
{
	if (!strpbrk(s, ",\"\r\n")) {
		buf_adds(out, s);
		return;
	}
	buf_addc(out, '"');
	for (; *s; s++) {
		if (*s == '"')
			buf_addc(out, '"');
		buf_addc(out, *s);
	}
	buf_addc(out, '"');
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

/*
 * Code points
 */

struct range {
	uint32_t first, last;
};

/* clang-format off */
/* Categories Mn, Me and Cf and the later Hangul jamo, without the scripts of antiquity
 * (DerivedGeneralCategory.txt of Unicode 14). */
static const struct range zero_width[] = {
	{0x300, 0x36f}, {0x483, 0x489}, {0x591, 0x5bd}, {0x5bf, 0x5bf}, {0x5c1, 0x5c2},
	{0x5c4, 0x5c5}, {0x5c7, 0x5c7}, {0x610, 0x61a}, {0x61c, 0x61c}, {0x64b, 0x65f},
	{0x670, 0x670}, {0x6d6, 0x6dc}, {0x6df, 0x6e4}, {0x6e7, 0x6e8}, {0x6ea, 0x6ed},
	{0x711, 0x711}, {0x730, 0x74a}, {0x7a6, 0x7b0}, {0x7eb, 0x7f3}, {0x7fd, 0x7fd},
	{0x816, 0x819}, {0x81b, 0x823}, {0x825, 0x827}, {0x829, 0x82d}, {0x859, 0x85b},
	{0x898, 0x89f}, {0x8ca, 0x8e1}, {0x8e3, 0x902}, {0x93a, 0x93a}, {0x93c, 0x93c},
	{0x941, 0x948}, {0x94d, 0x94d}, {0x951, 0x957}, {0x962, 0x963}, {0x981, 0x981},
	{0x9bc, 0x9bc}, {0x9c1, 0x9c4}, {0x9cd, 0x9cd}, {0x9e2, 0x9e3}, {0x9fe, 0xa02},
	{0xa3c, 0xa3c}, {0xa41, 0xa51}, {0xa70, 0xa71}, {0xa75, 0xa75}, {0xa81, 0xa82},
	{0xabc, 0xabc}, {0xac1, 0xac8}, {0xacd, 0xacd}, {0xae2, 0xae3}, {0xafa, 0xb01},
	{0xb3c, 0xb3c}, {0xb3f, 0xb3f}, {0xb41, 0xb44}, {0xb4d, 0xb56}, {0xb62, 0xb63},
	{0xb82, 0xb82}, {0xbc0, 0xbc0}, {0xbcd, 0xbcd}, {0xc00, 0xc00}, {0xc04, 0xc04},
	{0xc3c, 0xc3c}, {0xc3e, 0xc40}, {0xc46, 0xc56}, {0xc62, 0xc63}, {0xc81, 0xc81},
	{0xcbc, 0xcbc}, {0xcbf, 0xcbf}, {0xcc6, 0xcc6}, {0xccc, 0xccd}, {0xce2, 0xce3},
	{0xd00, 0xd01}, {0xd3b, 0xd3c}, {0xd41, 0xd44}, {0xd4d, 0xd4d}, {0xd62, 0xd63},
	{0xd81, 0xd81}, {0xdca, 0xdca}, {0xdd2, 0xdd6}, {0xe31, 0xe31}, {0xe34, 0xe3a},
	{0xe47, 0xe4e}, {0xeb1, 0xeb1}, {0xeb4, 0xebc}, {0xec8, 0xecd}, {0xf18, 0xf19},
	{0xf35, 0xf35}, {0xf37, 0xf37}, {0xf39, 0xf39}, {0xf71, 0xf7e}, {0xf80, 0xf84},
	{0xf86, 0xf87}, {0xf8d, 0xfbc}, {0xfc6, 0xfc6}, {0x102d, 0x1030}, {0x1032, 0x1037},
	{0x1039, 0x103a}, {0x103d, 0x103e}, {0x1058, 0x1059}, {0x105e, 0x1060}, {0x1071, 0x1074},
	{0x1082, 0x1082}, {0x1085, 0x1086}, {0x108d, 0x108d}, {0x109d, 0x109d}, {0x1160, 0x11ff},
	{0x135d, 0x135f}, {0x1712, 0x1714}, {0x1732, 0x1733}, {0x1752, 0x1753}, {0x1772, 0x1773},
	{0x17b4, 0x17b5}, {0x17b7, 0x17bd}, {0x17c6, 0x17c6}, {0x17c9, 0x17d3}, {0x17dd, 0x17dd},
	{0x180b, 0x180f}, {0x1885, 0x1886}, {0x18a9, 0x18a9}, {0x1920, 0x1922}, {0x1927, 0x1928},
	{0x1932, 0x1932}, {0x1939, 0x193b}, {0x1a17, 0x1a18}, {0x1a1b, 0x1a1b}, {0x1a56, 0x1a56},
	{0x1a58, 0x1a60}, {0x1a62, 0x1a62}, {0x1a65, 0x1a6c}, {0x1a73, 0x1a7f}, {0x1ab0, 0x1ace},
	{0x1b00, 0x1b03}, {0x1b34, 0x1b34}, {0x1b36, 0x1b3a}, {0x1b3c, 0x1b3c}, {0x1b42, 0x1b42},
	{0x1b6b, 0x1b73}, {0x1b80, 0x1b81}, {0x1ba2, 0x1ba5}, {0x1ba8, 0x1ba9}, {0x1bab, 0x1bad},
	{0x1be6, 0x1be6}, {0x1be8, 0x1be9}, {0x1bed, 0x1bed}, {0x1bef, 0x1bf1}, {0x1c2c, 0x1c33},
	{0x1c36, 0x1c37}, {0x1cd0, 0x1cd2}, {0x1cd4, 0x1ce0}, {0x1ce2, 0x1ce8}, {0x1ced, 0x1ced},
	{0x1cf4, 0x1cf4}, {0x1cf8, 0x1cf9}, {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x202a, 0x202e},
	{0x2060, 0x206f}, {0x20d0, 0x20f0}, {0x2cef, 0x2cf1}, {0x2d7f, 0x2d7f}, {0x2de0, 0x2dff},
	{0x302a, 0x302d}, {0x3099, 0x309a}, {0xa66f, 0xa672}, {0xa674, 0xa67d}, {0xa69e, 0xa69f},
	{0xa6f0, 0xa6f1}, {0xa802, 0xa802}, {0xa806, 0xa806}, {0xa80b, 0xa80b}, {0xa825, 0xa826},
	{0xa82c, 0xa82c}, {0xa8c4, 0xa8c5}, {0xa8e0, 0xa8f1}, {0xa8ff, 0xa8ff}, {0xa926, 0xa92d},
	{0xa947, 0xa951}, {0xa980, 0xa982}, {0xa9b3, 0xa9b3}, {0xa9b6, 0xa9b9}, {0xa9bc, 0xa9bd},
	{0xa9e5, 0xa9e5}, {0xaa29, 0xaa2e}, {0xaa31, 0xaa32}, {0xaa35, 0xaa36}, {0xaa43, 0xaa43},
	{0xaa4c, 0xaa4c}, {0xaa7c, 0xaa7c}, {0xaab0, 0xaab0}, {0xaab2, 0xaab4}, {0xaab7, 0xaab8},
	{0xaabe, 0xaabf}, {0xaac1, 0xaac1}, {0xaaec, 0xaaed}, {0xaaf6, 0xaaf6}, {0xabe5, 0xabe5},
	{0xabe8, 0xabe8}, {0xabed, 0xabed}, {0xfb1e, 0xfb1e}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
	{0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0x1d167, 0x1d169}, {0x1d173, 0x1d182},
	{0x1d185, 0x1d18b}, {0x1d1aa, 0x1d1ad}, {0xe0001, 0xe007f}, {0xe0100, 0xe01ef},
};

/* East_Asian_Width W and F, unassigned gaps closed (EastAsianWidth.txt of Unicode 14). */
static const struct range double_width[] = {
	{0x1100, 0x115f}, {0x231a, 0x231b}, {0x2329, 0x232a}, {0x23e9, 0x23ec}, {0x23f0, 0x23f0},
	{0x23f3, 0x23f3}, {0x25fd, 0x25fe}, {0x2614, 0x2615}, {0x2648, 0x2653}, {0x267f, 0x267f},
	{0x2693, 0x2693}, {0x26a1, 0x26a1}, {0x26aa, 0x26ab}, {0x26bd, 0x26be}, {0x26c4, 0x26c5},
	{0x26ce, 0x26ce}, {0x26d4, 0x26d4}, {0x26ea, 0x26ea}, {0x26f2, 0x26f3}, {0x26f5, 0x26f5},
	{0x26fa, 0x26fa}, {0x26fd, 0x26fd}, {0x2705, 0x2705}, {0x270a, 0x270b}, {0x2728, 0x2728},
	{0x274c, 0x274c}, {0x274e, 0x274e}, {0x2753, 0x2755}, {0x2757, 0x2757}, {0x2795, 0x2797},
	{0x27b0, 0x27b0}, {0x27bf, 0x27bf}, {0x2b1b, 0x2b1c}, {0x2b50, 0x2b50}, {0x2b55, 0x2b55},
	{0x2e80, 0x3029}, {0x302e, 0x303e}, {0x3041, 0x3096}, {0x309b, 0x3247}, {0x3250, 0x4dbf},
	{0x4e00, 0xa4c6}, {0xa960, 0xa97c}, {0xac00, 0xd7a3}, {0xf900, 0xfad9}, {0xfe10, 0xfe19},
	{0xfe30, 0xfe6b}, {0xff01, 0xff60}, {0xffe0, 0xffe6}, {0x16fe0, 0x16fe3},
	{0x16ff0, 0x18cd5}, {0x18d00, 0x18d08}, {0x1aff0, 0x1b122}, {0x1b150, 0x1b2fb},
	{0x1f004, 0x1f004}, {0x1f0cf, 0x1f0cf}, {0x1f18e, 0x1f18e}, {0x1f191, 0x1f19a},
	{0x1f200, 0x1f265}, {0x1f300, 0x1f320}, {0x1f32d, 0x1f335}, {0x1f337, 0x1f37c},
	{0x1f37e, 0x1f393}, {0x1f3a0, 0x1f3ca}, {0x1f3cf, 0x1f3d3}, {0x1f3e0, 0x1f3f0},
	{0x1f3f4, 0x1f3f4}, {0x1f3f8, 0x1f43e}, {0x1f440, 0x1f440}, {0x1f442, 0x1f4fc},
	{0x1f4ff, 0x1f53d}, {0x1f54b, 0x1f54e}, {0x1f550, 0x1f567}, {0x1f57a, 0x1f57a},
	{0x1f595, 0x1f596}, {0x1f5a4, 0x1f5a4}, {0x1f5fb, 0x1f64f}, {0x1f680, 0x1f6c5},
	{0x1f6cc, 0x1f6cc}, {0x1f6d0, 0x1f6d2}, {0x1f6d5, 0x1f6df}, {0x1f6eb, 0x1f6ec},
	{0x1f6f4, 0x1f6fc}, {0x1f7e0, 0x1f7f0}, {0x1f90c, 0x1f93a}, {0x1f93c, 0x1f945},
	{0x1f947, 0x1f9ff}, {0x1fa70, 0x1faf6}, {0x20000, 0x2a6df}, {0x2a700, 0x2ebe0},
	{0x2f800, 0x2fa1d}, {0x30000, 0x3134a},
};

static const struct range hidden[] = {
	{0x061c, 0x061c}, /* Arabic letter mark */
	{0x180e, 0x180e}, /* Mongolian vowel separator */
	{0x200b, 0x200b}, /* zero width space; the joiners behind it are part of words and emoji */
	{0x200e, 0x200f}, /* left-to-right and right-to-left mark */
	{0x2028, 0x202e}, /* line and paragraph separator, embeddings and overrides */
	{0x2060, 0x206f}, /* word joiner, invisible operators, isolates */
	{0xfeff, 0xfeff}, /* byte order mark */
	{0xfff9, 0xfffb}, /* interlinear annotation */
	{0xe0000, 0xe007f}, /* tags */
};
/* clang-format on */

/* The second byte decides about overlong forms, surrogates and what is above U+10FFFF. */
static const struct lead {
	uint8_t first, last;       /* the first byte */
	uint8_t len;               /* of the sequence */
	uint8_t second, second_to; /* what the second byte may be */
} leads[] = {
	{0xc2, 0xdf, 2, 0x80, 0xbf},
	{0xe0, 0xe0, 3, 0xa0, 0xbf},
	{0xe1, 0xec, 3, 0x80, 0xbf},
	{0xed, 0xed, 3, 0x80, 0x9f},
	{0xee, 0xef, 3, 0x80, 0xbf},
	{0xf0, 0xf0, 4, 0x90, 0xbf},
	{0xf1, 0xf3, 4, 0x80, 0xbf},
	{0xf4, 0xf4, 4, 0x80, 0x8f},
};

static const struct lead *find_lead(uint8_t c)
{
	for (size_t i = 0; i < ARRAY_LEN(leads); i++)
		if (c >= leads[i].first && c <= leads[i].last)
			return &leads[i];
	return NULL;
}

/* How many bytes at s fit the sequence that lead begins. */
static size_t fitting(const struct lead *lead, const uint8_t *s, size_t len)
{
	size_t n = 1;

	if (len > 1 && s[1] >= lead->second && s[1] <= lead->second_to)
		for (n = 2; n < lead->len && n < len && (s[n] & 0xc0) == 0x80;)
			n++;
	return n;
}

size_t unicode_decode(const char *s, size_t len, uint32_t *ret_cp)
{
	const uint8_t *u = (const uint8_t *)s;

	if (len == 0)
		return 0;
	if (u[0] < 0x80) {
		*ret_cp = u[0];
		return 1;
	}
	const struct lead *lead = find_lead(u[0]);
	if (!lead || fitting(lead, u, len) < lead->len)
		return 0;
	uint32_t cp = u[0] & (0x7fu >> lead->len);
	for (size_t i = 1; i < lead->len; i++)
		cp = cp << 6 | (u[i] & 0x3f);
	*ret_cp = cp;
	return lead->len;
}

void unicode_add(struct buf *out, uint32_t cp)
{
	if (cp < 0x80) {
		buf_addc(out, (char)cp);
	} else if (cp < 0x800) {
		buf_addc(out, (char)(0xc0 | cp >> 6));
		buf_addc(out, (char)(0x80 | (cp & 0x3f)));
	} else if (cp < 0x10000) {
		buf_addc(out, (char)(0xe0 | cp >> 12));
		buf_addc(out, (char)(0x80 | (cp >> 6 & 0x3f)));
		buf_addc(out, (char)(0x80 | (cp & 0x3f)));
	} else {
		buf_addc(out, (char)(0xf0 | cp >> 18));
		buf_addc(out, (char)(0x80 | (cp >> 12 & 0x3f)));
		buf_addc(out, (char)(0x80 | (cp >> 6 & 0x3f)));
		buf_addc(out, (char)(0x80 | (cp & 0x3f)));
	}
}

bool unicode_is_partial(const char *s, size_t len)
{
	if (len == 0)
		return false;
	const struct lead *lead = find_lead((uint8_t)s[0]);
	return lead && len < lead->len && fitting(lead, (const uint8_t *)s, len) == len;
}

static bool in_ranges(const struct range *ranges, size_t n, uint32_t cp)
{
	size_t low = 0, high = n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		if (cp > ranges[mid].last)
			low = mid + 1;
		else
			high = mid;
	}
	return low < n && cp >= ranges[low].first;
}

bool unicode_is_control(uint32_t cp)
{
	return cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
}

bool unicode_is_hidden(uint32_t cp)
{
	return cp >= hidden[0].first && in_ranges(hidden, ARRAY_LEN(hidden), cp);
}

unsigned unicode_width(uint32_t cp)
{
	if (unicode_is_control(cp))
		return 0;
	if (cp < zero_width[0].first)
		return 1;
	if (in_ranges(zero_width, ARRAY_LEN(zero_width), cp))
		return 0;
	return in_ranges(double_width, ARRAY_LEN(double_width), cp) ? 2 : 1;
}

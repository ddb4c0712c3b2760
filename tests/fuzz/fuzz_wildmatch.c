/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wildmatch against a matcher that is slow and simple: every way to match is tried, by recursion on
 * the pattern as it is written. Input: a byte of flags, the pattern, NUL, the text.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "snap/ignore/ignore.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PATTERN_MAX = 16, TEXT_MAX = 12 };

struct flags {
	bool pathname, fold;
};

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static char upper(char c)
{
	return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static bool in_class(const char *name, size_t len, char ch, bool fold)
{
	static const struct {
		const char *name, *members;
	} classes[] = {
		{"digit", "0123456789"},
		{"xdigit", "0123456789abcdefABCDEF"},
		{"blank", " \t"},
		{"space", " \t\r\n"},
		{"lower", "abcdefghijklmnopqrstuvwxyz"},
		{"upper", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"},
		{"punct", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"},
	};
	bool is_upper = len == 5 && memcmp(name, "upper", 5) == 0;

	for (size_t i = 0; i < ARRAY_LEN(classes); i++)
		if (strlen(classes[i].name) == len && memcmp(classes[i].name, name, len) == 0)
			return strchr(classes[i].members, fold && is_upper ? upper(ch) : ch);
	unsigned char c = (unsigned char)ch;
	bool alnum = (c >= '0' && c <= '9') || (lower(ch) >= 'a' && lower(ch) <= 'z');
	if (len == 5 && memcmp(name, "alnum", 5) == 0)
		return alnum;
	if (len == 5 && memcmp(name, "alpha", 5) == 0)
		return alnum && c > '9';
	if (len == 5 && memcmp(name, "cntrl", 5) == 0)
		return c < 32 || c == 127;
	if (len == 5 && memcmp(name, "graph", 5) == 0)
		return c > 32 && c < 127;
	return len == 5 && memcmp(name, "print", 5) == 0 && c >= 32 && c < 127;
}

static bool is_class_name(const char *name, size_t len)
{
	static const char *const names[] = {"alnum", "alpha", "blank", "cntrl", "digit", "graph",
		"lower", "print", "punct", "space", "upper", "xdigit"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
			return true;
	return false;
}

/* p: behind the bracket. Returns what follows the expression, NULL if malformed. */
static const char *bracket(const char *p, char ch, bool fold, bool *ret_in)
{
	bool negated = *p == '!' || *p == '^', in = false, first = true;
	char before = 0;

	for (p += negated; first || *p != ']'; first = false) {
		const char *close = p[0] == '[' && p[1] == ':' ? strchr(p + 2, ']') : NULL;
		if (!*p || (p[0] == '[' && p[1] == ':' && !close))
			return NULL;
		if (close && close > p + 2 && close[-1] == ':') {
			if (!is_class_name(p + 2, (size_t)(close - 1 - p - 2)))
				return NULL;
			in |= in_class(p + 2, (size_t)(close - 1 - p - 2), ch, fold);
			before = 0;
			p = close + 1;
			continue;
		}
		if (*p == '-' && before && p[1] && p[1] != ']') {
			p += p[1] == '\\' ? 2 : 1;
			if (!*p)
				return NULL;
			unsigned char c = (unsigned char)ch, u = (unsigned char)upper(ch);
			unsigned char lo = (unsigned char)before, hi = (unsigned char)*p++;
			in |= (lo <= c && c <= hi) || (fold && lo <= u && u <= hi);
			before = 0;
			continue;
		}
		if (*p == '\\' && !*++p)
			return NULL;
		in |= *p == ch;
		before = *p++;
	}
	*ret_in = in != negated;
	return p + 1;
}

static bool slow_match(const char *start, const char *p, const char *t, struct flags flags);

static bool after_star(
	const char *start, const char *p, const char *t, bool crosses, struct flags flags)
{
	for (;; t++) {
		if (slow_match(start, p, t, flags))
			return true;
		if (!*t || (!crosses && *t == '/'))
			return false;
	}
}

static bool slow_match(const char *start, const char *p, const char *t, struct flags flags)
{
	char ch = flags.fold ? lower(*t) : *t;
	bool in;

	if (!*p)
		return !*t;
	if (*p == '*') {
		const char *stars = p;
		while (*p == '*')
			p++;
		bool whole = p - stars > 1 && (stars == start || stars[-1] == '/') &&
			     (!*p || *p == '/' || (p[0] == '\\' && p[1] == '/'));
		if (flags.pathname && whole && *p == '/' && slow_match(start, p + 1, t, flags))
			return true;
		return after_star(start, p, t, !flags.pathname || whole, flags);
	}
	if (!*t)
		return false;
	if (*p == '?')
		return !(flags.pathname && ch == '/') && slow_match(start, p + 1, t + 1, flags);
	if (*p == '[') {
		p = bracket(p + 1, ch, flags.fold, &in);
		return p && in && !(flags.pathname && ch == '/') &&
		       slow_match(start, p, t + 1, flags);
	}
	if (*p == '\\')
		return p[1] == ch && slow_match(start, p + 2, t + 1, flags);
	return (flags.fold ? lower(*p) : *p) == ch && slow_match(start, p + 1, t + 1, flags);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	struct flags flags = {data[0] & 1, data[0] & 2};
	AUTO_FREE char *pattern = mem_strndup((const char *)data + 1, size - 1);
	size_t len = strlen(pattern);
	AUTO_FREE char *text = len + 2 < size
				       ? mem_strndup((const char *)data + len + 2, size - len - 2)
				       : mem_strdup("");

	bool matches = wildmatch(pattern, text, flags.pathname, flags.fold);
	if (len <= PATTERN_MAX && strlen(text) <= TEXT_MAX &&
		matches != slow_match(pattern, pattern, text, flags))
		abort();
	return 0;
}

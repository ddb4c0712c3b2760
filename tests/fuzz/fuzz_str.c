/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strings of people and peers: UTF-8, quoting, and all that is parsed from one word. What was
 * quoted reads back as it was, what was parsed is within its range and prints as it was read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t encode(uint32_t cp, char out[static 4])
{
	static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
	size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

	for (size_t i = n - 1; i > 0; i--, cp >>= 6)
		out[i] = (char)(0x80 | (cp & 0x3f));
	out[0] = (char)(first[n] | cp);
	return n;
}

static void check_utf8(const char *s, size_t len)
{
	bool all_valid = true;

	for (size_t at = 0, n; at < len; at += n) {
		uint32_t cp;
		char again[4];
		n = unicode_decode(s + at, len - at, &cp);
		BUG_ON(n != str_utf8_len(s + at, len - at));
		if (n) {
			BUG_ON(cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000));
			BUG_ON(encode(cp, again) != n || memcmp(again, s + at, n) != 0);
			BUG_ON(unicode_is_partial(s + at, n) || unicode_width(cp) > 2);
		}
		all_valid = all_valid && n;
		n += n == 0;
	}
	BUG_ON(str_is_utf8(s, len) != all_valid);
}

/* The byte that the escape sequence at *s stands for. */
static char unescape_byte(const char **s)
{
	const char *p = *s + 1;
	char hex[3] = {0};

	*s += 2;
	if (*p != 'x')
		return *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
	memcpy(hex, p + 1, 2);
	*s += 2;
	return (char)strtoul(hex, NULL, 16);
}

static void check_escape(const char *s, size_t len)
{
	AUTO_BUF struct buf out;
	size_t n = 0;

	buf_init(&out, 4 * len);
	str_escape(&out, s, len);
	BUG_ON(out.full || !str_is_utf8(out.data, out.len));
	for (const char *p = out.data; *p; n++) {
		BUG_ON((uint8_t)*p < 0x20 || *p == 0x7f || n >= len);
		BUG_ON((*p == '\\' ? unescape_byte(&p) : *p++) != s[n]);
	}
	BUG_ON(n != len);
}

/* As a shell reads one word that is only plain or single-quoted. */
static void check_shell_quote(const char *s)
{
	AUTO_BUF struct buf out;
	bool quoted = false;

	buf_init(&out, 4 * strlen(s) + 2);
	str_shell_quote(&out, s);
	BUG_ON(out.full || out.len == 0);
	for (const char *p = out.data; *p; p++) {
		if (*p == '\'') {
			quoted = !quoted;
			continue;
		}
		if (!quoted && *p == '\\')
			p++;
		else
			BUG_ON(!quoted && strchr(" \t\n\"$`*?[]{}()<>|&;~#!", *p));
		BUG_ON(*p != *s++);
	}
	BUG_ON(quoted || *s);
}

static void check_numbers(const char *s)
{
	int64_t value, again;
	uint64_t bytes;
	char size[16], text[32];

	if (str_to_int(s, INT64_MIN, INT64_MAX, "n", &value, NULL) == 0) {
		snprintf(text, sizeof(text), "%lld", (long long)value);
		BUG_ON(str_to_int(text, value, value, "n", &again, NULL) || again != value);
	}
	if (str_to_size(s, &bytes, NULL) == 0)
		BUG_ON(strlen(str_size(bytes, size)) > 8);
	if (duration_parse(s, &value, NULL) == 0) {
		BUG_ON(value < 0 || value > 36500ll * 86400000);
		snprintf(text, sizeof(text), "%lldms", (long long)value);
		BUG_ON(duration_parse(text, &again, NULL) || again != value);
		BUG_ON(strlen(duration_text(value, text)) >= sizeof(text));
	}
}

static void check_digest_and_time(const char *s)
{
	uint8_t sha256[SHA256_SIZE];
	char digest[DIGEST_TEXT_SIZE], time[CLOCK_TEXT_SIZE];
	int64_t ms, again;

	if (digest_parse(s, sha256)) {
		digest_text(sha256, digest);
		BUG_ON(strcmp(digest, s) != 0);
	}
	if (clock_parse(s, &ms, NULL) == 0) {
		clock_format(ms, time);
		BUG_ON(clock_parse(time, &again, NULL));
		/* An offset may lead out of the years that can be written. */
		bool in_range = ms >= -62167219200000 && ms <= 253402300799999;
		BUG_ON(in_range && again != ms);
	}
}

static void check_near(const char *s, const char *other)
{
	const char *const candidates[] = {"submit", "show", other};
	const char *found = str_suggest(s, candidates, ARRAY_LEN(candidates));

	BUG_ON(str_distance(s, other) != str_distance(other, s));
	BUG_ON((str_distance(s, other) == 0) != str_eq(s, other));
	BUG_ON(found && !str_starts(found, s) && str_distance(s, found) > 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *s = mem_alloc(size + 1, 1);

	if (size)
		memcpy(s, data, size);
	check_utf8(s, size);
	check_escape(s, size);
	check_shell_quote(s);
	check_numbers(s);
	check_digest_and_time(s);
	check_near(s, s + strlen(s) / 2);
	BUG_ON(str_columns(s) > strlen(s));
	AUTO_FREE char *shown = str_shown(s);
	BUG_ON(strlen(shown) > 64 * 4 + strlen("…"));
	return 0;
}

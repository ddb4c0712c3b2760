/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/unicode.h"

static bool is_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_plain(const char *s)
{
	for (; *s; s++)
		if (!is_alnum(*s) && !strchr("_@%+=:,./-", *s))
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
	while (is_alnum(*p) || *p == '_')
		p++;
	return *p == '=' || (*p == '+' && p[1] == '=');
}

static void quote(struct buf *out, const char *s, bool first)
{
	if (*s && is_plain(s) && !(first && is_special_first(s))) {
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
	quote(out, s, true);
}

void str_shell_join(struct buf *out, char *const *words)
{
	for (size_t i = 0; words[i]; i++) {
		if (i)
			buf_addc(out, ' ');
		quote(out, words[i], i == 0);
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

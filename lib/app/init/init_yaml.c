/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init_yaml.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/unicode.h"

/* Characters that libyaml's reader accepts, except for those that change how the text around them
 * looks. */
static bool is_printable(uint32_t cp)
{
	return !unicode_is_control(cp) && !unicode_is_hidden(cp) && cp != 0xfffe && cp != 0xffff;
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Words that YAML 1.1 takes for null or a truth value. */
static bool is_keyword(const char *s)
{
	static const char *const words[] = {
		"null", "true", "false", "yes", "no", "on", "off", "y", "n"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strcasecmp(s, words[i]) == 0)
			return true;
	return false;
}

/* Fewer than YAML would allow: no sign of it stands in the set, and numbers start otherwise. */
static bool is_plain(const char *s)
{
	static const char inside[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				     "0123456789_./+=@-";
	const char *p = str_starts(s, "./") ? s + 2 : s;

	if (!is_letter(*p) && *p != '_' && *p != '/')
		return false;
	for (; *p; p++)
		if (!strchr(inside, *p) && (*p != ' ' || p[1] == ' ' || p[1] == '\0'))
			return false;
	return !is_keyword(s);
}

static void add_escape(struct buf *out, uint32_t cp)
{
	if (cp == '"' || cp == '\\')
		buf_addf(out, "\\%c", (char)cp);
	else if (cp == '\n')
		buf_adds(out, "\\n");
	else if (cp == '\t')
		buf_adds(out, "\\t");
	else if (cp <= 0xff)
		buf_addf(out, "\\x%02X", (unsigned)cp);
	else if (cp <= 0xffff)
		buf_addf(out, "\\u%04X", (unsigned)cp);
	else
		buf_addf(out, "\\U%08X", (unsigned)cp);
}

static void add_quoted(struct buf *out, const char *s, size_t len)
{
	buf_addc(out, '"');
	for (size_t n; len; s += n, len -= n) {
		uint32_t cp;

		n = unicode_decode(s, len, &cp);
		if (cp != '"' && cp != '\\' && is_printable(cp))
			buf_add(out, s, n);
		else
			add_escape(out, cp);
	}
	buf_addc(out, '"');
}

bool init_yaml_scalar(struct buf *out, const char *s)
{
	size_t len = strlen(s);

	if (!str_is_utf8(s, len))
		return false;
	if (is_plain(s))
		buf_add(out, s, len);
	else
		add_quoted(out, s, len);
	return true;
}

bool init_yaml_list(struct buf *out, const struct strv *words)
{
	size_t before = out->len;
	bool ok = true;

	buf_addc(out, '[');
	for (size_t i = 0; ok && i < words->n; i++) {
		buf_adds(out, i ? ", " : "");
		ok = init_yaml_scalar(out, words->v[i]);
	}
	buf_addc(out, ']');
	if (!ok)
		buf_truncate(out, before);
	return ok;
}

void init_yaml_comment(struct buf *out, const char *s, size_t max)
{
	size_t len = strlen(s), used = 0;

	while (used < len) {
		uint32_t cp;
		size_t n = unicode_decode(s + used, len - used, &cp);
		bool shown = n && is_printable(cp);

		n += n == 0;
		if (used + n > max) {
			buf_adds(out, "...");
			return;
		}
		if (shown)
			buf_add(out, s + used, n);
		for (size_t i = 0; !shown && i < n; i++)
			buf_addf(out, "\\x%02x", (unsigned)(uint8_t)s[used + i]);
		used += n;
	}
}

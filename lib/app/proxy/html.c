/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/html.h"

#include <stdarg.h>
#include <string.h>

#include "app/proxy/proxy_text.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "net/stream/url.h"

enum { REPLACEMENT = 0xfffd };

static const char *entity(char c)
{
	switch (c) {
	case '&':
		return "&amp;";
	case '<':
		return "&lt;";
	case '>':
		return "&gt;";
	case '"':
		return "&quot;";
	case '\'':
		return "&#39;";
	default:
		return NULL;
	}
}

static bool is_shown(uint32_t cp)
{
	return cp == '\n' || cp == '\t' || (!unicode_is_control(cp) && !unicode_is_hidden(cp));
}

void html_text(struct buf *out, const char *s, size_t len)
{
	while (len) {
		uint32_t cp = 0;
		size_t n = unicode_decode(s, len, &cp);

		if (n == 0 || !is_shown(cp))
			unicode_add(out, REPLACEMENT);
		else if (entity(*s))
			buf_adds(out, entity(*s));
		else
			buf_add(out, s, n);
		s += n ? n : 1;
		len -= n ? n : 1;
	}
}

void html_adds(struct buf *out, const char *s)
{
	html_text(out, s, strlen(s));
}

void html_path(struct buf *out, const char *path)
{
	url_add_escaped(out, path, strlen(path), "/");
}

/* Add what a terminal shows of a line in the end. */
static void html_add_line(struct buf *out, const char *line, size_t len)
{
	struct term_filter filter;
	AUTO_BUF struct buf clean = buf_with(out->max);
	size_t at;

	while (len && line[len - 1] == '\r')
		len--;
	for (at = len; at && line[at - 1] != '\r'; at--)
		;
	term_filter_init(&filter, TERM_CR_SHOW, false);
	term_filter_add(&filter, line + at, len - at, &clean);
	term_filter_end(&filter, &clean);
	html_text(out, clean.data, clean.len);
}

void html_log(struct buf *out, const char *data, size_t len)
{
	while (len) {
		const char *end = memchr(data, '\n', len);
		size_t n = end ? (size_t)(end - data) : len;

		html_add_line(out, data, n);
		if (end)
			buf_addc(out, '\n');
		n += end != NULL;
		data += n;
		len -= n;
	}
}

void html_addf(struct buf *out, const char *markup, ...)
{
	va_list args;

	va_start(args, markup);
	for (const char *at; (at = strchr(markup, '%')); markup = at + 2) {
		buf_add(out, markup, (size_t)(at - markup));
		BUG_ON(at[1] != 's' && at[1] != '%');
		if (at[1] == 's')
			html_adds(out, va_arg(args, const char *));
		else
			buf_addc(out, '%');
	}
	va_end(args);
	buf_adds(out, markup);
}

void html_begin(struct buf *out, const char *title, unsigned live_s, unsigned refresh_s)
{
	buf_adds(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
		      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
		      "<meta name=\"color-scheme\" content=\"light dark\">\n");
	if (refresh_s)
		buf_addf(out, "%s<meta http-equiv=\"refresh\" content=\"%u\">%s\n",
			live_s ? "<noscript>" : "", refresh_s, live_s ? "</noscript>" : "");
	if (live_s)
		buf_adds(out, "<script src=\"" HTML_SCRIPT_PATH "\" defer></script>\n");
	html_addf(out,
		"<title>%s</title>\n<link rel=\"stylesheet\" href=\"" HTML_STYLE_PATH
		"\">\n</head>\n<body>\n",
		title);
	if (live_s)
		buf_addf(out, "<p id=\"stale\" role=\"status\"></p>\n<main data-live=\"%u\">\n",
			live_s);
	else
		buf_adds(out, "<main>\n");
}

void html_end(struct buf *out)
{
	buf_adds(out, "</main>\n</body>\n</html>\n");
}

const char html_style[] = PROXY_STYLE;
const char html_script[] = PROXY_SCRIPT;

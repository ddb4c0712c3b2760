/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/html.h"

#include <stdarg.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "base/util/term.h"

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

static bool html_is_unreserved(char c)
{
	return str_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       (c && strchr("-._~/", c));
}

void html_path(struct buf *out, const char *path)
{
	for (; *path; path++) {
		if (html_is_unreserved(*path))
			buf_addc(out, *path);
		else
			buf_addf(out, "%%%02X", (unsigned char)*path);
	}
}

/* Add what a terminal shows of a line in the end. */
static void html_add_line(struct buf *out, const char *line, size_t len)
{
	struct term_filter filter;
	AUTO_BUF struct buf clean = {0};
	size_t at;

	while (len && line[len - 1] == '\r')
		len--;
	for (at = len; at && line[at - 1] != '\r'; at--)
		;
	buf_init(&clean, out->max);
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

void html_begin(struct buf *out, const char *title, unsigned refresh_s)
{
	buf_adds(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
		      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
		      "<meta name=\"color-scheme\" content=\"light dark\">\n");
	if (refresh_s)
		buf_addf(out, "<meta http-equiv=\"refresh\" content=\"%u\">\n", refresh_s);
	html_addf(out,
		"<title>%s</title>\n<link rel=\"stylesheet\" href=\"" HTML_STYLE_PATH
		"\">\n</head>\n<body>\n<main>\n",
		title);
}

void html_end(struct buf *out)
{
	buf_adds(out, "</main>\n</body>\n</html>\n");
}

const char html_style[] =
	":root{color-scheme:light dark;--line:#8884;--soft:#8882;--live:#0a6ebd;--good:#1a7f37;"
	"--bad:#c5221f;--odd:#9a6700}\n"
	"@media(prefers-color-scheme:dark){:root{--live:#6cb6ff;--good:#57c46b;--bad:#ff7b72;"
	"--odd:#d9a521}}\n"
	"*{box-sizing:border-box}\n"
	"body{margin:0;font:15px/1.45 system-ui,sans-serif}\n"
	"main{max-width:90rem;margin:0 auto;padding:1rem}\n"
	"h1{font-size:1.4rem;margin:.2rem 0 .6rem}\n"
	"h2{font-size:1.05rem;margin:1.4rem 0 .4rem}\n"
	"p{margin:.4rem 0}\n"
	"a{color:var(--live)}\n"
	".scroll{overflow-x:auto}\n"
	"table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
	"th,td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line);"
	"vertical-align:top;white-space:nowrap}\n"
	"th{font-weight:600}\n"
	"td.n{text-align:right}\n"
	"td.wrap{white-space:normal;overflow-wrap:anywhere;min-width:14rem}\n"
	"code,pre{font:13px/1.4 ui-monospace,monospace}\n"
	"pre{background:var(--soft);padding:.7rem;overflow-x:auto;max-height:32rem;margin:0}\n"
	".running,.starting,.queued,.preparing,.cancelling{color:var(--live)}\n"
	".succeeded{color:var(--good)}\n"
	".failed,.lost{color:var(--bad)}\n"
	".cancelled,.unknown{color:var(--odd)}\n"
	".note{opacity:.75}\n"
	".shown{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:1rem}\n"
	"figure{margin:0;min-width:0}\n"
	"figcaption{font-size:.85rem;overflow-wrap:anywhere}\n"
	"img,video{max-width:100%;max-height:24rem;background:var(--soft)}\n"
	"audio{width:100%}\n"
	"iframe{width:100%;height:20rem;border:1px solid var(--line);"
	"color-scheme:light;background:#fff}\n"
	"details{margin:.3rem 0}\n"
	"summary{cursor:pointer;overflow-wrap:anywhere}\n";

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/html.h"

#include <stdarg.h>
#include <string.h>

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

static void html_begin_head(struct buf *out)
{
	buf_adds(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
		      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
		      "<meta name=\"color-scheme\" content=\"light dark\">\n");
}

static void html_end_head(struct buf *out, const char *title)
{
	html_addf(out,
		"<title>%s</title>\n<link rel=\"stylesheet\" href=\"" HTML_STYLE_PATH
		"\">\n</head>\n<body>\n",
		title);
}

void html_begin(struct buf *out, const char *title, unsigned refresh_s)
{
	html_begin_head(out);
	if (refresh_s)
		buf_addf(out, "<meta http-equiv=\"refresh\" content=\"%u\">\n", refresh_s);
	html_end_head(out, title);
	buf_adds(out, "<main>\n");
}

void html_begin_live(struct buf *out, const char *title, unsigned live_s, unsigned refresh_s)
{
	html_begin_head(out);
	if (refresh_s)
		buf_addf(out, "<noscript><meta http-equiv=\"refresh\" content=\"%u\"></noscript>\n",
			refresh_s);
	buf_adds(out, "<script src=\"" HTML_SCRIPT_PATH "\" defer></script>\n");
	html_end_head(out, title);
	buf_addf(out, "<p id=\"stale\" role=\"status\"></p>\n<main data-live=\"%u\">\n", live_s);
}

void html_end(struct buf *out)
{
	buf_adds(out, "</main>\n</body>\n</html>\n");
}

const char html_style[] =
	":root{color-scheme:light dark;--line:#8884;--soft:#8882;--live:#0a6ebd;--good:#1a7f37;"
	"--bad:#c5221f;--odd:#9a6700;--page:#fff;--text:#1c1c1e;--grid:#ddd;--axis:#777}\n"
	"@media(prefers-color-scheme:dark){:root{--live:#6cb6ff;--good:#57c46b;--bad:#ff7b72;"
	"--odd:#d9a521;--page:#16181d;--text:#e6e6e8;--grid:#3a3d44;--axis:#9a9da4}}\n"
	"*{box-sizing:border-box}\n"
	"body{margin:0;font:15px/1.45 system-ui,sans-serif;background:var(--page);color:var(--text)}\n"
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
	"summary{cursor:pointer;overflow-wrap:anywhere}\n"
	":focus-visible{outline:3px solid var(--live);outline-offset:2px}\n"
	"#stale:empty{display:none}\n"
	"#stale{margin:0;padding:.4rem 1rem;background:var(--odd);color:#fff}\n"
	"@media(prefers-color-scheme:dark){#stale{color:#000}}\n"
	/* Several runs: names and titles stay while the others move. */
	".bar{display:flex;flex-wrap:wrap;gap:.5rem .9rem;align-items:end;margin:.4rem 0 .8rem}\n"
	".bar label{display:flex;flex-direction:column;font-size:.85rem}\n"
	"input,select,button{font:inherit;color:inherit;background:var(--page);"
	"border:1px solid var(--axis);border-radius:4px;padding:.25rem .5rem;max-width:100%}\n"
	"button{cursor:pointer;background:var(--soft)}\n"
	"input[type=checkbox]{width:1.1rem;height:1.1rem;vertical-align:-.2rem;margin:0 .4rem 0 0;"
	"accent-color:var(--live)}\n"
	"fieldset{border:1px solid var(--line);display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:0;"
	"max-height:14rem;overflow:auto}\n"
	".bar fieldset label{flex-direction:row}\n"
	".runs{overflow:auto;max-height:85vh;position:relative}\n"
	".runs th,.runs td{padding:.25rem .7rem .25rem .2rem}\n"
	".runs table{border-collapse:separate;border-spacing:0}\n"
	".runs thead th{position:sticky;top:0;background:var(--page);z-index:1}\n"
	".runs th:first-child{position:sticky;left:0;background:var(--page);z-index:1;"
	"max-width:18rem;overflow:hidden;text-overflow:ellipsis}\n"
	".runs thead th:first-child{z-index:2}\n"
	".runs tbody th{font-weight:400}\n"
	".runs tr:hover td{background:var(--soft)}\n"
	".runs td{max-width:22rem;overflow:hidden;text-overflow:ellipsis}\n"
	"th.n{text-align:right}\n"
	"td.best{font-weight:700;color:var(--good)}\n"
	".sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}\n"
	".plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(26rem,100%),1fr));"
	"gap:1rem;margin:.6rem 0}\n"
	".media{max-height:none}.media td{max-width:none;white-space:normal}\n"
	".media tr:hover td{background:none}\n"
	".steps{display:flex;flex-wrap:wrap;gap:.5rem;min-width:10rem}\n"
	".steps figure{width:14rem;max-width:100%}.steps img,.steps video{max-height:14rem}\n"
	"@media(max-width:30rem){main{padding:.5rem}.runs th:first-child{max-width:45vw}}\n"
	/* Charts (core/plot): colours of Paul Tol and Cividis, which all can tell apart. */
	"svg.plot{width:100%;height:auto;display:block}\n"
	".plot text{font:12px system-ui,sans-serif;fill:var(--text)}\n"
	".plot .t{font-weight:600;font-size:13px}\n"
	".plot .h{paint-order:stroke;stroke:var(--page);stroke-width:3px}\n"
	".plot .g{stroke:var(--grid)}.plot .a{stroke:var(--axis)}"
	".plot .s{stroke:var(--axis);stroke-dasharray:3 4}\n"
	".plot .c{fill:none;stroke-width:1.5;stroke-linejoin:round}.plot .r{stroke-opacity:.3}\n"
	".plot a .c{stroke-width:1.8}.plot a:hover .c,.plot a:focus .c,.plot g:hover .c"
	"{stroke-width:4}\n"
	".plot .p{stroke:var(--page)}.plot a:hover .p,.plot a:focus .p{stroke:var(--text);"
	"stroke-width:3}\n"
	".k0{stroke:#0077bb}.k1{stroke:#c75a11}.k2{stroke:#00806f}.k3{stroke:#cc3311}"
	".k4{stroke:#aa3377}.k5{stroke:#4477aa}.k6{stroke:#997700}.k7{stroke:#228833}"
	".k8{stroke:#ee3377}.k9{stroke:#2b8fb3}.k10{stroke:#882255}.k11{stroke:#a87b00}"
	".k12{stroke:#332288}.k13{stroke:#2f8576}.k14{stroke:#994455}.k15{stroke:#555}\n"
	".plot a .p{fill:var(--shade)}.plot a .c{stroke:var(--shade)}\n"
	".v{--shade:var(--axis)}.v0{--shade:#00224e}.v1{--shade:#123570}.v2{--shade:#3b496c}"
	".v3{--shade:#575d6d}.v4{--shade:#707173}.v5{--shade:#8a8678}.v6{--shade:#a59c74}"
	".v7{--shade:#b3a24b}\n"
	"@media(prefers-color-scheme:dark){"
	".k0{stroke:#4db8ff}.k1{stroke:#ee8844}.k2{stroke:#33c9b5}.k3{stroke:#ff7a5c}"
	".k4{stroke:#e37ab3}.k5{stroke:#88b4e0}.k6{stroke:#d6b84a}.k7{stroke:#6fcf7f}"
	".k8{stroke:#ff7aa8}.k9{stroke:#66ccee}.k10{stroke:#d47aa5}.k11{stroke:#ddaa33}"
	".k12{stroke:#a598f0}.k13{stroke:#66c4b2}.k14{stroke:#d98a98}.k15{stroke:#bbb}"
	".v0{--shade:#6f86b9}.v1{--shade:#7c8cae}.v2{--shade:#8c93a3}.v3{--shade:#a09d90}"
	".v4{--shade:#b8ad7d}.v5{--shade:#cfbd68}.v6{--shade:#e5cf52}.v7{--shade:#fee838}"
	"}\n";

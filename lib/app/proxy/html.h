/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little HTML that dlrun writes itself (`dlrun proxy`): whole pages, and text
 * from elsewhere made harmless wherever it stands. An engine.
 */
#ifndef DLRUN_APP_PROXY_HTML_H
#define DLRUN_APP_PROXY_HTML_H

#include <stddef.h>

#include "base/util/buf.h"

/* Text, also within a quoted attribute: markup is escaped; bytes that are not UTF-8, controls (but
 * LF and TAB) and characters that change how text looks unseen become U+FFFD. */
void html_text(struct buf *out, const char *s, size_t len);
void html_adds(struct buf *out, const char *s);
/* A path as part of a URL in a quoted attribute: all but unreserved characters and "/" in percent
 * signs (RFC 3986, 2.3). */
void html_path(struct buf *out, const char *path);
/* A program's output: colours are dropped, lines that were drawn anew (CR) are shown as they are at
 * their ends, other controls visibly (term.h). */
void html_log(struct buf *out, const char *data, size_t len);

/* Markup with text in it: "%s" stands for html_adds of an argument, "%%" for "%"; nothing else. */
void html_addf(struct buf *out, const char *markup, ...);

/* From the doctype to <main>. title is text. live_s: the script (live.js) loads the page again in
 * place so often; 0: it has none. refresh_s: so often the browser does, where scripts are off; 0:
 * never. */
void html_begin(struct buf *out, const char *title, unsigned live_s, unsigned refresh_s);
void html_end(struct buf *out);
/* The style sheet that pages name as HTML_STYLE_PATH, because no style may stand in them. */
#define HTML_STYLE_PATH "/style.css"
extern const char html_style[];
/* The script of pages that are live. */
#define HTML_SCRIPT_PATH "/live.js"
extern const char html_script[];

#endif

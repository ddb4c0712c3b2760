/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/term.h"
#include "base/util/str.h"

enum { ESC = 0x1b, SGR_MAX = 24 };

void term_filter_init(struct term_filter *filter, enum term_cr cr, bool color)
{
	*filter = (struct term_filter){.cr = cr, .color = color};
}

static void show_bytes(struct buf *out, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		buf_addf(out, "\\x%02x", (unsigned)(uint8_t)s[i]);
}

/* At an escape character: the length of a complete SGR sequence, or 1 for any other; 0 if more
 * bytes are needed to tell. */
static size_t sgr_len(const char *s, size_t len, bool at_end)
{
	size_t i = 2;

	if (len > 1 && s[1] != '[')
		return 1;
	while (i < len && i < 2 + SGR_MAX &&
		((s[i] >= '0' && s[i] <= '9') || s[i] == ';' || s[i] == ':'))
		i++;
	if (i < len)
		return s[i] == 'm' ? i + 1 : 1;
	return at_end ? 1 : 0;
}

static size_t take_escape(
	struct term_filter *filter, const char *s, size_t len, bool at_end, struct buf *out)
{
	size_t n = sgr_len(s, len, at_end);

	if (n == 1)
		buf_adds(out, "^[");
	if (n <= 1 || !filter->color)
		return n;
	buf_add(out, s, n);
	filter->colored = strspn(s + 2, "0;") < n - 3;
	return n;
}

/* Restart the line only when something follows: until then, and for ever at the end of the input,
 * its last state stays visible. Several CRs in a row count as one; before LF they are ignored. */
static size_t take_return(
	const struct term_filter *filter, const char *s, size_t len, bool at_end, struct buf *out)
{
	if (filter->cr == TERM_CR_SHOW)
		buf_adds(out, "^M");
	else if (len == 1)
		return at_end;
	else if (s[1] != '\r' && s[1] != '\n')
		buf_adds(out, "\r\033[K");
	return 1;
}

static size_t take_character(const char *s, size_t len, bool at_end, struct buf *out)
{
	uint32_t cp;
	size_t n = unicode_decode(s, len, &cp);

	if (n == 0) {
		if (!at_end && unicode_is_partial(s, len))
			return 0;
		show_bytes(out, s, 1);
		return 1;
	}
	if (unicode_is_control(cp) && n > 1)
		show_bytes(out, s, n);
	else if (unicode_is_control(cp))
		buf_addf(out, "^%c", (char)(cp ^ 0x40));
	else if (unicode_is_hidden(cp))
		buf_addf(out, "<U+%04X>", (unsigned)cp);
	else
		buf_add(out, s, n);
	return n;
}

static size_t plain_run(const char *s, size_t len)
{
	size_t n = 0;

	while (n < len && ((s[n] >= 0x20 && s[n] < 0x7f) || s[n] == '\n' || s[n] == '\t'))
		n++;
	return n;
}

/* Write the beginning of s to out. Returns the number of bytes used; 0 if s starts with an
 * incomplete sequence. */
static size_t term_take(
	struct term_filter *filter, const char *s, size_t len, bool at_end, struct buf *out)
{
	size_t n = plain_run(s, len);

	if (n) {
		buf_add(out, s, n);
		return n;
	}
	if (s[0] == ESC)
		return take_escape(filter, s, len, at_end, out);
	if (s[0] == '\r')
		return take_return(filter, s, len, at_end, out);
	return take_character(s, len, at_end, out);
}

static void take_pending(struct term_filter *filter, bool at_end, struct buf *out)
{
	while (filter->n_pending) {
		char *pending = (char *)filter->pending;
		size_t n = term_take(filter, pending, filter->n_pending, at_end, out);
		if (n == 0)
			return;
		filter->n_pending -= n;
		memmove(pending, pending + n, filter->n_pending);
	}
}

void term_filter_add(struct term_filter *filter, const char *data, size_t len, struct buf *out)
{
	for (; filter->n_pending && len; data++, len--) {
		BUG_ON(filter->n_pending == sizeof(filter->pending));
		filter->pending[filter->n_pending++] = (uint8_t)*data;
		take_pending(filter, false, out);
	}
	while (len) {
		size_t n = term_take(filter, data, len, false, out);
		if (n == 0)
			break;
		data += n;
		len -= n;
	}
	if (len == 0)
		return;
	BUG_ON(len > sizeof(filter->pending) - filter->n_pending);
	memcpy(filter->pending + filter->n_pending, data, len);
	filter->n_pending += len;
}

void term_filter_end(struct term_filter *filter, struct buf *out)
{
	take_pending(filter, true, out);
	if (filter->colored)
		buf_adds(out, "\033[0m");
	filter->colored = false;
}

void term_clean(const char *s, size_t len, bool one_line, struct buf *out)
{
	struct term_filter filter;
	size_t start = out->len;

	term_filter_init(&filter, TERM_CR_SHOW, false);
	term_filter_add(&filter, s, len, out);
	term_filter_end(&filter, out);
	if (!one_line)
		return;
	for (size_t i = start; i < out->len; i++)
		if (out->data[i] == '\n' || out->data[i] == '\t')
			out->data[i] = ' ';
}

char *term_plain(const char *s, size_t len)
{
	char *out = mem_alloc(len + 1, 1);
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (s[i] == ESC && i + 1 < len && s[i + 1] == '[') {
			for (i += 2; i < len && !(s[i] >= '@' && s[i] <= '~');)
				i++;
		} else {
			out[n++] = (char)((unsigned char)s[i] < ' ' ? ' ' : s[i]);
		}
	}
	return out;
}

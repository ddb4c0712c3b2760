/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/logview.h"

#include <string.h>

#include "base/data/json.h"
#include "base/util/clock.h"
#include "base/util/str.h"

enum { HELD_MAX = 16 << 20, CHUNK = 64 << 10 };

/* Sequence that term.c writes for a CR. */
static const char restart[] = "\r\033[K";

void logview_init(struct logview *view, enum logview_kind kind, bool color, bool stamped)
{
	*view = (struct logview){.kind = kind, .stamped = stamped};
	term_filter_init(&view->filter, TERM_CR_REDRAW, color);
	buf_init(&view->held, HELD_MAX);
}

void logview_done(struct logview *view)
{
	buf_done(&view->held);
}

/*
 * Prefixes of lines: time and rank
 */

static void add_stamp(int64_t time_ms, struct buf *out)
{
	char text[CLOCK_TEXT_SIZE] = "-";

	if (time_ms)
		clock_format(time_ms, text);
	buf_addf(out, "%s ", text);
}

static bool has_prefix(const struct logview *view)
{
	return view->stamped || view->ranked;
}

static void logview_add_prefix(const struct logview *view, int64_t time_ms, struct buf *out)
{
	if (view->stamped)
		add_stamp(time_ms, out);
	if (view->ranked && view->role)
		buf_addf(out, "[%s.%d] ", view->role, view->role_rank);
	else if (view->ranked)
		buf_addf(out, "[%d] ", view->rank);
}

/* On a terminal a line also begins where a CR restarts it. */
static void logview_add_prefixed(
	struct logview *view, const char *data, size_t len, int64_t time_ms, struct buf *out)
{
	for (size_t i = 0; i < len; i++) {
		bool restarts = view->after_cr && view->kind == LOGVIEW_TERMINAL &&
				data[i] != '\n' && data[i] != '\r';

		if (!view->in_line || restarts)
			logview_add_prefix(view, time_ms, out);
		buf_addc(out, data[i]);
		view->in_line = data[i] != '\n';
		view->after_cr = data[i] == '\r';
	}
}

/*
 * Terminal
 */

/* The last restart within len bytes, or NULL. */
static const char *last_restart(const char *s, size_t len)
{
	const char *found = NULL, *end = s + len;
	const size_t size = sizeof(restart) - 1;

	for (const char *p = s; (p = memchr(p, '\r', (size_t)(end - p))); p++)
		if ((size_t)(end - p) >= size && memcmp(p, restart, size) == 0)
			found = p;
	return found;
}

/* Text is dropped, but not the colours that it set. */
static void add_colors(const char *s, const char *end, struct buf *out)
{
	const char *stop;

	while ((s = memchr(s, '\033', (size_t)(end - s)))) {
		for (stop = s + 2; stop < end && (str_is_digit(*stop) || strchr(";:", *stop));)
			stop++;
		if (stop < end && *stop == 'm')
			buf_add(out, s, (size_t)(stop + 1 - s));
		s = stop < end ? stop : end;
	}
}

/* Of all the states of a line only the last one is drawn. */
static void logview_draw_line(const char *s, size_t len, struct buf *out)
{
	const char *from = last_restart(s, len);

	if (from)
		add_colors(s, from, out);
	else
		from = s;
	buf_add(out, from, (size_t)(s + len - from));
}

static void draw_held(struct logview *view, int64_t now_ms, struct buf *out)
{
	logview_draw_line(view->held.data, view->held.len, out);
	buf_reset(&view->held);
	view->drawn_ms = now_ms;
}

static void draw(struct logview *view, int64_t now_ms, struct buf *out)
{
	const char *at = view->held.data, *end = at + view->held.len, *lf;

	/* Remove all lines at once: a chunk of empty lines has 65,536 of them. */
	for (; at < end && (lf = memchr(at, '\n', (size_t)(end - at))); at = lf + 1)
		logview_draw_line(at, (size_t)(lf + 1 - at), out);
	buf_consume(&view->held, (size_t)(at - view->held.data));
	if (view->held.len == 0)
		return;
	bool waits = last_restart(view->held.data, view->held.len) &&
		     now_ms - view->drawn_ms < LOGVIEW_REDRAW_MS &&
		     view->held.len < LOGVIEW_LINE_MAX;
	if (!waits)
		draw_held(view, now_ms, out);
}

static void add_terminal(struct logview *view, const char *data, size_t len, int64_t time_ms,
	int64_t now_ms, struct buf *out)
{
	struct buf stamped;

	if (!has_prefix(view)) {
		term_filter_add(&view->filter, data, len, &view->held);
	} else {
		buf_init(&stamped, HELD_MAX);
		logview_add_prefixed(view, data, len, time_ms, &stamped);
		term_filter_add(&view->filter, stamped.data, stamped.len, &view->held);
		buf_done(&stamped);
	}
	draw(view, now_ms, out);
}

/*
 * JSON
 */

static void logview_add_json(struct logview *view, size_t len, struct buf *out)
{
	AUTO_JSON struct json *json = json_object();
	char time[CLOCK_TEXT_SIZE];

	json_set_str(json, "schema", "dlrun/log/v1");
	json_set_int(json, "rank", view->rank);
	if (view->role) {
		json_set_str(json, "role", view->role);
		json_set_int(json, "role_rank", view->role_rank);
	}
	if (view->line_ms)
		clock_format(view->line_ms, time);
	json_set_str(json, "time", view->line_ms ? time : NULL);
	json_set_bytes(json, "text", view->held.data, len);
	if (view->partial)
		json_set_bool(json, "partial", true);
	json_print(json, out);
	buf_addc(out, '\n');
	buf_consume(&view->held, len);
	view->partial = false;
}

/* Where a line that is too long can be cut without breaking a character. */
static size_t cut_at(const char *s, size_t len)
{
	size_t at = len;

	while (at > len - 4 && ((unsigned char)s[at - 1] & 0xc0) == 0x80)
		at--;
	if (((unsigned char)s[at - 1] & 0xc0) == 0xc0 && at > len - 4)
		at--;
	return str_utf8_len(s + at, len - at) ? len : at;
}

static void logview_add_lines(
	struct logview *view, const char *data, size_t len, int64_t time_ms, struct buf *out)
{
	while (len) {
		const char *lf = memchr(data, '\n', len);
		size_t n = lf ? (size_t)(lf - data) : len;
		size_t space = LOGVIEW_LINE_MAX - view->held.len;

		if (view->held.len == 0)
			view->line_ms = time_ms;
		buf_add(&view->held, data, n < space ? n : space);
		if (n > space) {
			data += space;
			len -= space;
			view->partial = true;
			logview_add_json(view, cut_at(view->held.data, view->held.len), out);
			continue;
		}
		data += n + (lf != NULL);
		len -= n + (lf != NULL);
		if (lf)
			logview_add_json(view, view->held.len, out);
	}
}

/*
 * All
 */

static void add_chunk(struct logview *view, const char *data, size_t len, int64_t time_ms,
	int64_t now_ms, struct buf *out)
{
	if (view->kind == LOGVIEW_JSON)
		logview_add_lines(view, data, len, time_ms, out);
	else if (view->kind == LOGVIEW_TERMINAL)
		add_terminal(view, data, len, time_ms, now_ms, out);
	else if (has_prefix(view))
		logview_add_prefixed(view, data, len, time_ms, out);
	else
		buf_add(out, data, len);
}

void logview_add(struct logview *view, const char *data, size_t len, int64_t time_ms,
	int64_t now_ms, struct buf *out)
{
	while (len) {
		size_t n = len < CHUNK ? len : CHUNK;

		add_chunk(view, data, n, time_ms, now_ms, out);
		data += n;
		len -= n;
	}
}

int64_t logview_due(const struct logview *view)
{
	if (view->kind != LOGVIEW_TERMINAL || view->held.len == 0)
		return -1;
	return view->drawn_ms + LOGVIEW_REDRAW_MS;
}

void logview_tick(struct logview *view, int64_t now_ms, struct buf *out)
{
	if (view->kind == LOGVIEW_TERMINAL)
		draw(view, now_ms, out);
}

void logview_end(struct logview *view, struct buf *out)
{
	if (view->kind == LOGVIEW_TERMINAL) {
		term_filter_end(&view->filter, &view->held);
		draw_held(view, 0, out);
	} else if (view->kind == LOGVIEW_JSON && view->held.len) {
		logview_add_json(view, view->held.len, out);
	}
}

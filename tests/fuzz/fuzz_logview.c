/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's log on its way out, in pieces (the first byte is their size) with a clock that jumps: as
 * JSON the exact bytes can be had back; on a terminal the screen shows at the end what it would
 * show if every redraw had been drawn.
 */
#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/term.h"
#include "cli/term/logview.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void feed(enum logview_kind kind, const char *s, size_t len, size_t piece, struct buf *out)
{
	struct logview view;

	logview_init(&view, kind, false, false);
	for (size_t at = 0, n = 0; at < len; at += n) {
		n = piece < len - at ? piece : len - at;
		logview_add(&view, s + at, n, 1, (int64_t)(at * 7), out);
		if (at % 3 == 0 && logview_due(&view) >= 0)
			logview_tick(&view, (int64_t)(at * 7), out);
	}
	logview_end(&view, out);
	logview_done(&view);
	BUG_ON(out->full);
}

/* The bytes of one line of JSON; true: a LF belongs behind them. */
static bool add_exact(const char *line, size_t len, struct buf *out)
{
	AUTO_JSON struct json *json = NULL;
	const char *exact;

	BUG_ON(json_parse(line, len, JSON_SIZE_MAX, "a line", &json, NULL) < 0);
	exact = json_get_str(json, "text_b64");
	if (exact)
		BUG_ON(!base64_decode(exact, strlen(exact), out));
	else
		buf_adds(out, json_get_str(json, "text"));
	return !json_get_bool(json, "partial", false);
}

static void check_json(const char *s, size_t len, size_t piece)
{
	AUTO_BUF struct buf out, exact;

	buf_init(&out, 256 * len + 1024);
	buf_init(&exact, 4 * len + 1024);
	feed(LOGVIEW_JSON, s, len, piece, &out);
	for (const char *p = out.data, *lf; (lf = strchr(p, '\n')); p = lf + 1)
		if (add_exact(p, (size_t)(lf - p), &exact))
			buf_addc(&exact, '\n');
	/* The last line may have had no LF. */
	BUG_ON(exact.len != len && exact.len != len + 1);
	BUG_ON(memcmp(exact.data, s, len) != 0);
}

/* What a terminal makes of it: restarts clear the line. */
static void show(const char *s, struct buf *screen)
{
	size_t line = 0;

	for (; *s; s++) {
		if (strncmp(s, "\r\033[K", 4) == 0) {
			buf_truncate(screen, line);
			s += 3;
			continue;
		}
		buf_addc(screen, *s);
		if (*s == '\n')
			line = screen->len;
	}
}

static void check_terminal(const char *s, size_t len, size_t piece)
{
	struct term_filter filter;
	AUTO_BUF struct buf out, all, screen, want;

	buf_init(&out, 16 * len + 1024);
	buf_init(&all, 16 * len + 1024);
	buf_init(&screen, 16 * len + 1024);
	buf_init(&want, 16 * len + 1024);
	feed(LOGVIEW_TERMINAL, s, len, piece, &out);
	term_filter_init(&filter, TERM_CR_REDRAW, false);
	term_filter_add(&filter, s, len, &all);
	term_filter_end(&filter, &all);
	show(out.data, &screen);
	show(all.data, &want);
	BUG_ON(screen.len != want.len || memcmp(screen.data, want.data, want.len) != 0);
	BUG_ON(out.len > all.len);
}

static void check_raw(const char *s, size_t len, size_t piece)
{
	AUTO_BUF struct buf out;

	buf_init(&out, len + 1);
	feed(LOGVIEW_RAW, s, len, piece, &out);
	BUG_ON(out.len != len || memcmp(out.data, s, len) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t piece = size && data[0] ? data[0] : 1000;
	const char *s = (const char *)data + (size ? 1 : 0);
	size_t len = size ? size - 1 : 0;

	check_json(s, len, piece);
	check_terminal(s, len, piece);
	check_raw(s, len, piece);
	return 0;
}

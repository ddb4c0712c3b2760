/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stamped bytes of a server (the first two bytes say how they are cut up): the same comes out
 * however they arrive; a point survives its text; and where times rise, a stream that was cut and
 * served again brings the rest, nothing twice.
 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "kube/logs/podlog_lines.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	struct buf out;
	size_t n_gaps, n_remarks;
};

static int on_data(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct seen *seen = ctx;

	BUG_ON(len == 0 || len > PODLOG_BATCH);
	buf_add(&seen->out, data, len);
	return 0;
}

static void on_gap(void *ctx, const struct podlog_gap *gap)
{
	((struct seen *)ctx)->n_gaps++;
}

static void on_remark(void *ctx, const char *text, size_t len)
{
	BUG_ON(len == 0 || len > 256);
	((struct seen *)ctx)->n_remarks++;
}

/* What comes of the next stream: s up to len. */
static int stream(struct podlog_lines *lines, const char *s, size_t len, size_t piece)
{
	struct podlog_plan plan;
	int r = 0;

	podlog_lines_plan(lines, true, &plan);
	podlog_lines_begin(lines);
	for (size_t at = 0, n; r == 0 && at < len; at += n) {
		n = piece < len - at ? piece : len - at;
		r = podlog_lines_feed(lines, s + at, n, NULL);
	}
	return r;
}

static struct podlog_lines *start(struct seen *seen, const struct podlog_point *point, size_t size)
{
	struct podlog_lines_events events = {on_data, on_gap, on_remark, seen};

	if (!seen->out.data)
		buf_init(&seen->out, 2 * size + 16);
	return podlog_lines_new(&events, point, !point);
}

/* All lines have times, and they rise. */
static bool rises(const char *s, size_t len)
{
	int64_t last = 0;

	for (size_t at = 0; at < len;) {
		const char *lf = memchr(s + at, '\n', len - at);
		int64_t ns;
		if (!lf || podlog_stamp(s + at, len - at, &ns) == 0 || ns <= last)
			return false;
		last = ns;
		at = (size_t)(lf - s) + 1;
	}
	return true;
}

static void check_cut(const char *s, size_t len, size_t cut, const struct seen *whole)
{
	struct seen seen = {0};
	struct podlog_lines *lines = start(&seen, NULL, len);
	char token[PODLOG_TOKEN_SIZE];
	struct podlog_point point;

	BUG_ON(stream(lines, s, cut, 7) != 0);
	if (cut % 2)
		podlog_lines_flush(lines, NULL);
	podlog_point_format(podlog_lines_point(lines), token);
	podlog_lines_free(lines);
	BUG_ON(!podlog_point_parse(token, &point));
	lines = start(&seen, point.time_ns ? &point : NULL, len);
	BUG_ON(stream(lines, s, len, len) != 0);
	podlog_lines_flush(lines, NULL);
	podlog_lines_free(lines);
	BUG_ON(seen.n_gaps > 0 || seen.out.len != whole->out.len ||
		memcmp(seen.out.data, whole->out.data, whole->out.len) != 0);
	buf_done(&seen.out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen whole = {0}, parts = {0};
	struct podlog_point point;

	if (size < 3 || size > 64 << 10)
		return 0;
	const char *s = (const char *)data + 2;
	size_t len = size - 2, piece = (size_t)data[0] % 61 + 1;
	struct podlog_lines *a = start(&whole, NULL, len), *b = start(&parts, NULL, len);
	int ra = stream(a, s, len, len), rb = stream(b, s, len, piece);
	podlog_lines_flush(a, NULL);
	podlog_lines_flush(b, NULL);
	BUG_ON(ra != rb || whole.out.len != parts.out.len || whole.n_remarks != parts.n_remarks ||
		memcmp(whole.out.data, parts.out.data, whole.out.len) != 0);
	podlog_lines_head(a, s, len);
	podlog_lines_is_behind(a, s, len);
	podlog_lines_finish(a);
	podlog_lines_free(a);
	podlog_lines_free(b);
	if (rises(s, len))
		check_cut(s, len, data[1] * len / 256, &whole);
	AUTO_FREE char *text = mem_strndup(s, len);
	podlog_point_parse(text, &point);
	buf_done(&whole.out);
	buf_done(&parts.out);
	return 0;
}

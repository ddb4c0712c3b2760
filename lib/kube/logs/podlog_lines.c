/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/logs/podlog_impl.h"

enum { SECOND_NS = 1000000000, MS_NS = 1000000 };
/* How far back a stream is asked for before its point, at least: as far as the clock of a node may
 * be set back without lines being hidden. */
static const int64_t MARGIN_NS = 10 * (int64_t)SECOND_NS;
static const int64_t FALL_NS = SECOND_NS / 20;

struct podlog_lines *podlog_lines_new(
	const struct podlog_lines_events *events, const struct podlog_point *point, bool from_start)
{
	struct podlog_lines *lines = mem_alloc(1, sizeof(*lines));

	lines->events = *events;
	lines->fall_max_ns = FALL_NS;
	lines->overlap = (PODLOG_MARKS - 1) * PODLOG_MARK_BYTES;
	lines->is_short = from_start;
	if (point)
		lines->point = *point;
	return lines;
}

void podlog_lines_free(struct podlog_lines *lines)
{
	free(lines);
}

const struct podlog_point *podlog_lines_point(const struct podlog_lines *lines)
{
	return &lines->point;
}

void podlog_lines_doubt(struct podlog_lines *lines)
{
	lines->doubts = true;
	lines->scanned = false;
}

/*
 * Streams
 */

static void since_text(int64_t ns, char out[static PODLOG_SINCE_SIZE])
{
	time_t seconds = (time_t)(ns / SECOND_NS);
	struct tm tm;

	gmtime_r(&seconds, &tm);
	strftime(out, PODLOG_SINCE_SIZE, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

/* From when on to ask: some of what is known costs little, and hides little. 0: from the start. */
static int64_t since_ns(const struct podlog_lines *lines)
{
	int64_t ns = lines->point.time_ns - MARGIN_NS;

	if (lines->overlap > 0 && lines->n_marks == PODLOG_MARKS)
		return ns < lines->marks[0].ns ? ns : lines->marks[0].ns;
	return lines->overlap > 0 && lines->is_short ? 0 : ns;
}

static void set_mark(struct podlog_lines *lines)
{
	struct podlog_mark *last = &lines->marks[PODLOG_MARKS - 1];

	if (lines->n_marks == PODLOG_MARKS) {
		if (lines->n_bytes - last->bytes < PODLOG_MARK_BYTES)
			return;
		memmove(lines->marks, lines->marks + 1, sizeof(lines->marks) - sizeof(*last));
	} else {
		last = &lines->marks[lines->n_marks];
		if (lines->n_marks > 0 && lines->n_bytes - last[-1].bytes < PODLOG_MARK_BYTES)
			return;
		lines->n_marks++;
	}
	*last = (struct podlog_mark){lines->point.time_ns, lines->n_bytes};
}

void podlog_lines_plan(struct podlog_lines *lines, bool wants_follow, struct podlog_plan *ret)
{
	const struct podlog_point *point = &lines->point;
	bool is_new = point->time_ns == 0 || lines->all;
	/* The clock was set back: lines later than the point may be old. */
	bool shadowed = point->max_ns - point->time_ns > MARGIN_NS;
	int64_t since = since_ns(lines);

	*ret = (struct podlog_plan){.follow = wants_follow};
	lines->has_since = !is_new && !lines->doubts && !shadowed && since > 0;
	if (lines->has_since)
		since_text(since, ret->since);
	if (!is_new && (lines->doubts || shadowed) && !lines->scanned)
		ret->follow = false;
}

void podlog_lines_begin(struct podlog_lines *lines)
{
	lines->seeking = lines->point.time_ns > 0 && !lines->all;
	lines->seek = (struct podlog_seek){0};
	/* A line that had begun, and was not delivered, comes again. */
	lines->ns = lines->point.time_ns;
	lines->max_ns = lines->point.max_ns;
	lines->just_found = !lines->seeking;
	lines->is_first = true;
	lines->place = PODLOG_AT_START;
	lines->n_pending = lines->n_remark = 0;
	lines->out_len = lines->line_off = 0;
	lines->goes_on = false;
	lines->has_long = lines->point.len >= PODLOG_LONG;
	/* A scan for lines that a time may have hidden counts once. */
	lines->scanned = false;
}

static void end_remark(struct podlog_lines *lines)
{
	if (lines->n_remark > 0 && lines->events.remark)
		lines->events.remark(lines->events.ctx, lines->remark, lines->n_remark);
	lines->n_remark = 0;
}

int podlog_lines_end(struct podlog_lines *lines, bool is_whole, struct err *err)
{
	/* Bytes held back at the end of a stream that was cut are served again. */
	int r = is_whole ? podlog_flush(lines, err) : 0;

	if (r < 0)
		return r;
	end_remark(lines);
	if (!is_whole)
		return 0;
	if (lines->seeking)
		return podlog_seek_failed(lines);
	lines->scanned = true;
	lines->doubts = false;
	podlog_lines_finish(lines);
	return 0;
}

/*
 * Delivering
 */

static void move_point(struct podlog_lines *lines)
{
	struct podlog_point *point = &lines->point;
	size_t from = lines->goes_on ? 0 : lines->line_off;

	if (!lines->goes_on) {
		point->time_ns = lines->ns;
		point->ordinal = lines->ordinal;
		point->len = 0;
		point->hash = PODLOG_HASH_START;
	}
	if (lines->max_ns > point->max_ns)
		point->max_ns = lines->max_ns;
	point->hash = podlog_hash(point->hash, lines->out + from, lines->out_len - from);
	point->len += lines->out_len - from;
	lines->has_long = lines->has_long || point->len >= PODLOG_LONG;
}

int podlog_flush(struct podlog_lines *lines, struct err *err)
{
	int r = 0;

	if (lines->out_len == 0)
		return 0;
	podlog_begin_batch(lines);
	if (lines->events.data)
		r = lines->events.data(
			lines->events.ctx, lines->out, lines->out_len, lines->ns / MS_NS, err);
	if (r < 0)
		return r;
	move_point(lines);
	lines->n_bytes += lines->out_len;
	set_mark(lines);
	lines->all = false;
	lines->out_len = lines->line_off = 0;
	lines->goes_on = true;
	return 0;
}

/* Bytes of the present line. */
static int add_bytes(struct podlog_lines *lines, const char *data, size_t len, struct err *err)
{
	while (len > 0) {
		size_t room = PODLOG_BATCH - lines->out_len;
		size_t n = room < len ? room : len;
		memcpy(lines->out + lines->out_len, data, n);
		lines->out_len += n;
		data += n;
		len -= n;
		int r = lines->out_len == PODLOG_BATCH ? podlog_flush(lines, err) : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* A line begins of which there are len bytes so far. What is in out is delivered first where it
 * would not go with it; each later point is of this line. */
static int start_line(
	struct podlog_lines *lines, int64_t ns, size_t len, bool ends, struct err *err)
{
	bool apart =
		!ends || ns / MS_NS != lines->ns / MS_NS || len > PODLOG_BATCH - lines->out_len;
	int r;

	if (ns <= lines->ns && (r = podlog_check_order(lines, ns)) != 0)
		return r;
	if (apart) {
		r = podlog_flush(lines, err);
		if (r < 0)
			return r;
	}
	if (lines->head_ahead)
		podlog_pass_heads(lines, ns);
	if (ns > lines->max_ns)
		lines->max_ns = ns;
	lines->ordinal = ns == lines->ns ? lines->ordinal + 1 : 1;
	lines->ns = ns;
	lines->line_off = lines->out_len;
	lines->goes_on = false;
	lines->just_found = false;
	podlog_note_recent(lines, ns);
	return 0;
}

int podlog_lines_flush(struct podlog_lines *lines, struct err *err)
{
	return podlog_flush(lines, err);
}

/*
 * Splitting
 */

/* Eight digits at s (first one lowest) as a number; -1: they are none. */
static int64_t eight_digits(const char *s)
{
	uint64_t v, over;

	memcpy(&v, s, 8);
	if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
		v = __builtin_bswap64(v);
	over = v + UINT64_C(0x0606060606060606);
	if (((v & UINT64_C(0xf0f0f0f0f0f0f0f0)) | (over & UINT64_C(0xf0f0f0f0f0f0f0f0)) >> 4) !=
		UINT64_C(0x3333333333333333))
		return -1;
	v = (v & UINT64_C(0x0f0f0f0f0f0f0f0f)) * 2561 >> 8;
	v = (v & UINT64_C(0x00ff00ff00ff00ff)) * 6553601 >> 16;
	return (int64_t)((v & UINT64_C(0x0000ffff0000ffff)) * UINT64_C(42949672960001) >> 32);
}

static bool same_zone(const struct podlog_lines *lines, const char *zone)
{
	if (lines->n_zone == 2)
		return zone[0] == lines->zone[0] && zone[1] == lines->zone[1];
	return memcmp(zone, lines->zone, lines->n_zone) == 0;
}

/* podlog_stamp for those of nine digits, most of them in the second of the last one. */
static size_t read_stamp(struct podlog_lines *lines, const char *s, size_t len, int64_t *ret_ns)
{
	int64_t most;
	size_t n;

	if (lines->n_zone > 0 && len >= 29 + lines->n_zone && memcmp(s, lines->second, 20) == 0 &&
		str_is_digit(s[28]) && same_zone(lines, s + 29) &&
		(most = eight_digits(s + 20)) >= 0) {
		*ret_ns = lines->second_ns + most * 10 + (s[28] - '0');
		return 29 + lines->n_zone;
	}
	n = podlog_stamp(s, len, ret_ns);
	if (n > 29 && n <= 29 + sizeof(lines->zone) && str_is_digit(s[28])) {
		memcpy(lines->second, s, 20);
		lines->n_zone = n - 29;
		memcpy(lines->zone, s + 29, lines->n_zone);
		lines->second_ns = *ret_ns - *ret_ns % SECOND_NS;
	}
	return n;
}

/* A line that has no time: the rest of one whose beginning sinceTime has hidden, where a stream
 * begins; else the server speaks. */
static void start_untimed(struct podlog_lines *lines)
{
	bool hidden = lines->has_since && (lines->is_first || lines->seeking);

	lines->place = hidden ? PODLOG_IN_REST : PODLOG_IN_REMARK;
	lines->is_first = false;
}

static void skip_untimed(struct podlog_lines *lines, const char *data, size_t len)
{
	bool ends = data[len - 1] == '\n';
	size_t room = sizeof(lines->remark) - lines->n_remark;
	size_t n = len - ends;

	if (lines->place == PODLOG_IN_REMARK) {
		n = n < room ? n : room;
		memcpy(lines->remark + lines->n_remark, data, n);
		lines->n_remark += n;
	}
	if (!ends)
		return;
	end_remark(lines);
	lines->place = PODLOG_AT_START;
}

/* len: of what is there of the line, up to its LF. */
static size_t line_len(const char *data, size_t len)
{
	const char *lf = memchr(data, '\n', len);

	return lf ? (size_t)(lf - data) + 1 : len;
}

static int begin_line(
	struct podlog_lines *lines, int64_t ns, size_t len, bool ends, struct err *err)
{
	int r = 0;

	lines->is_first = false;
	if (lines->seeking)
		r = podlog_seek_line(lines, ns);
	if (r == 0 && !lines->seeking)
		r = start_line(lines, ns, len, ends, err);
	if (r == 0)
		lines->place = PODLOG_IN_LINE;
	return r;
}

/* Bytes of a line, its LF at most at their end. */
static int line_bytes(struct podlog_lines *lines, const char *data, size_t len, struct err *err)
{
	size_t used = 0;
	int r = 0;

	if (lines->place == PODLOG_IN_REMARK || lines->place == PODLOG_IN_REST) {
		skip_untimed(lines, data, len);
		return 0;
	}
	if (lines->seeking)
		r = podlog_seek_bytes(lines, data, len, &used);
	if (r != 0 || used == len)
		return r;
	r = add_bytes(lines, data + used, len - used, err);
	lines->place = data[len - 1] == '\n' ? PODLOG_AT_START : PODLOG_IN_LINE;
	return r;
}

/* 1: wait for more of it. A timestamp counts once a byte of its line is there. */
static bool is_unfinished(const char *data, size_t len)
{
	return len < PODLOG_STAMP_MAX && !memchr(data, '\n', len) &&
	       (len < 5 || (str_is_digit(data[0]) && data[4] == '-'));
}

/* The line that begins at data; used: how far it was read, 0: wait for more. */
static int take_line(
	struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	int64_t ns;
	size_t n = read_stamp(lines, data, len, &ns);
	int r = 0;

	*ret_used = 0;
	if (n == len || (n == 0 && is_unfinished(data, len)))
		return 0;
	size_t n_line = line_len(data + n, len - n);
	if (n > 0)
		r = begin_line(lines, ns, n_line, data[n + n_line - 1] == '\n', err);
	else
		start_untimed(lines);
	if (r == 0)
		r = line_bytes(lines, data + n, n_line, err);
	*ret_used = n + n_line;
	return r;
}

/* The beginning of a line whose timestamp came in pieces: those, and as much of data as can be. */
static int take_pending(
	struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	size_t old = lines->n_pending, used;
	size_t room = sizeof(lines->pending) - old;
	size_t n = len < room ? len : room;
	int r;

	memcpy(lines->pending + old, data, n);
	r = take_line(lines, lines->pending, old + n, &used, err);
	lines->n_pending = used > 0 ? 0 : old + n;
	*ret_used = used > 0 ? used - old : n;
	return r;
}

static int feed_some(
	struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	if (lines->place != PODLOG_AT_START) {
		*ret_used = line_len(data, len);
		return line_bytes(lines, data, *ret_used, err);
	}
	if (lines->n_pending > 0)
		return take_pending(lines, data, len, ret_used, err);
	int r = take_line(lines, data, len, ret_used, err);
	if (r == 0 && *ret_used == 0) {
		memcpy(lines->pending, data, len);
		lines->n_pending = len;
		*ret_used = len;
	}
	return r;
}

int podlog_lines_feed(struct podlog_lines *lines, const char *data, size_t len, struct err *err)
{
	int r = 0;

	for (size_t at = 0, used = 0; r == 0 && at < len; at += used)
		r = feed_some(lines, data + at, len - at, &used, err);
	if (r < 0)
		return r;
	/* A line without its end waits for it, or for podlog_lines_flush. */
	int flushed =
		lines->place == PODLOG_IN_LINE && !lines->goes_on ? 0 : podlog_flush(lines, err);
	return flushed < 0 ? flushed : r;
}

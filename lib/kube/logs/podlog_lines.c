/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/logs/podlog_lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/mem.h"
#include "base/util/str.h"

enum { SECOND_NS = 1000000000, MS_NS = 1000000, FALLS_MAX = 8 };
/* Of the program's bytes: files are rotated at 1 MiB or more, times included. */
enum { FILE_BYTES = 512 << 10 };

/* How far back a stream is requested before its point, at least: as far as the clock of a node may
 * be set back without lines being hidden. */
static const int64_t MARGIN_NS = 10 * (int64_t)SECOND_NS;
static const int64_t FALL_NS = SECOND_NS / 20;
static const int64_t SLACK_NS = SECOND_NS;
static const int64_t ROTATION_NS = 3 * (int64_t)SECOND_NS; /* the least between two of a kubelet */
static const uint64_t HASH_START = UINT64_C(0xcbf29ce484222325);

static uint64_t point_hash(uint64_t hash, const char *data, size_t len)
{
	/* FNV-1a: the same however the bytes are cut up. */
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)data[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/*
 * Timestamps (RFC 3339)
 */

/* n digits; -1: they are none. */
static int64_t stamp_digits(const char *s, size_t n)
{
	int64_t value = 0;

	for (size_t i = 0; i < n; i++) {
		if (!str_is_digit(s[i]))
			return -1;
		value = value * 10 + (s[i] - '0');
	}
	return value;
}

/* Days since 1970-01-01 in the proleptic Gregorian calendar; the year begins in March, so that leap
 * days come last. */
static int64_t stamp_days_of(int64_t year, int64_t month, int64_t day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	int64_t m = month <= 2 ? month + 9 : month - 3;
	int64_t era = y / 400, of_era = y % 400;
	int64_t of_year = (153 * m + 2) / 5 + day - 1;

	return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* "2026-11-21T08:21:00" to seconds; -1: it is none. */
static int64_t stamp_date_time(const char *s)
{
	static const char shape[] = "0000-00-00T00:00:00";
	int64_t year = stamp_digits(s, 4), month = stamp_digits(s + 5, 2),
		day = stamp_digits(s + 8, 2);
	int64_t hour = stamp_digits(s + 11, 2), minute = stamp_digits(s + 14, 2),
		second = stamp_digits(s + 17, 2);

	for (size_t i = 0; shape[i]; i++)
		if (shape[i] == '0' ? !str_is_digit(s[i]) : s[i] != shape[i])
			return -1;
	if (year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > 31 ||
		hour > 23 || minute > 59 || second > 60)
		return -1;
	return stamp_days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
}

/* ".123456789", or nothing; returns its length, -1: it is none. */
static int stamp_fraction(const char *s, size_t len, int64_t *ret_ns)
{
	int64_t ns = 0;
	size_t i = 1;

	*ret_ns = 0;
	if (len == 0 || s[0] != '.')
		return 0;
	for (; i < len && i <= 9 && str_is_digit(s[i]); i++)
		ns = ns * 10 + (s[i] - '0');
	for (size_t n = i; n <= 9; n++)
		ns *= 10;
	*ret_ns = ns;
	return i > 1 ? (int)i : -1;
}

/* "Z" or "+02:00"; returns its length, -1: it is none. */
static int stamp_zone(const char *s, size_t len, int64_t *ret_seconds)
{
	int64_t hours, minutes;

	*ret_seconds = 0;
	if (len >= 1 && s[0] == 'Z')
		return 1;
	if (len < 6 || (s[0] != '+' && s[0] != '-') || s[3] != ':')
		return -1;
	hours = stamp_digits(s + 1, 2);
	minutes = stamp_digits(s + 4, 2);
	if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
		return -1;
	*ret_seconds = (hours * 3600 + minutes * 60) * (s[0] == '+' ? 1 : -1);
	return 6;
}

/* The time behind the whole seconds, as podlog_stamp. */
static size_t stamp_end(const char *data, size_t len, int64_t seconds, int64_t *ret_ns)
{
	int64_t ns, offset;
	size_t at = 19;
	int n = stamp_fraction(data + at, len - at, &ns);

	if (n < 0)
		return 0;
	at += (size_t)n;
	n = stamp_zone(data + at, len - at, &offset);
	if (n < 0)
		return 0;
	at += (size_t)n;
	if (at >= len || data[at] != ' ')
		return 0;
	*ret_ns = (seconds - offset) * SECOND_NS + ns;
	return at + 1;
}

size_t podlog_stamp(const char *data, size_t len, int64_t *ret_ns)
{
	int64_t seconds = len < 21 ? -1 : stamp_date_time(data);

	return seconds < 0 ? 0 : stamp_end(data, len, seconds, ret_ns);
}

/* As podlog_stamp; most are in the second of the last one. */
static size_t stamp_read_stamp(
	struct podlog_lines *lines, const char *data, size_t len, int64_t *ret_ns)
{
	if (len < 21)
		return 0;
	/* Until one was read, second has zeros, which data may have, too. */
	if (lines->second_s == 0 || memcmp(data, lines->second, 19) != 0) {
		int64_t seconds = stamp_date_time(data);

		if (seconds < 0)
			return 0;
		memcpy(lines->second, data, 19);
		lines->second_s = seconds;
	}
	return stamp_end(data, len, lines->second_s, ret_ns);
}

/*
 * Points as text: 1:ID:TIME:MAX-TIME:ORDINAL:LENGTH:HASH, numbers in base 16
 */

void podlog_point_format(const struct podlog_point *point, char out[static PODLOG_TOKEN_SIZE])
{
	snprintf(out, PODLOG_TOKEN_SIZE,
		"1:%s:%" PRIx64 ":%" PRIx64 ":%" PRIx32 ":%" PRIx64 ":%" PRIx64, point->id,
		(uint64_t)point->time_ns, (uint64_t)(point->max_ns - point->time_ns),
		point->ordinal, point->len, point->hash);
}

/* The next number, up to 16 digits and the ':' or end behind them. */
static bool point_next_hex(const char **at, uint64_t *ret)
{
	const char *s = *at;
	uint64_t value = 0;
	size_t n = 0;

	for (; n < 16; n++) {
		char c = s[n];
		if (str_is_digit(c))
			value = value << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (uint64_t)(c - 'a' + 10);
		else
			break;
	}
	if (n == 0 || (s[n] != ':' && s[n] != '\0'))
		return false;
	*at = s + n + (s[n] == ':');
	*ret = value;
	return true;
}

bool podlog_point_parse(const char *text, struct podlog_point *ret)
{
	struct podlog_point point = {0};
	uint64_t v[5];
	const char *colon, *at;

	if (!str_starts(text, "1:") || !(colon = strchr(text + 2, ':')) ||
		(size_t)(colon - text - 2) >= sizeof(point.id))
		return false;
	memcpy(point.id, text + 2, (size_t)(colon - text - 2));
	at = colon + 1;
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		if (!point_next_hex(&at, &v[i]))
			return false;
	if (*at || at[-1] == ':' || v[0] > INT64_MAX || v[1] > INT64_MAX - v[0] ||
		v[2] > UINT32_MAX)
		return false;
	if (v[0] > 0 && (v[2] == 0 || v[3] == 0))
		return false;
	point.time_ns = (int64_t)v[0];
	point.max_ns = (int64_t)(v[0] + v[1]);
	point.ordinal = (uint32_t)v[2];
	point.len = v[3];
	point.hash = v[4];
	*ret = point;
	return true;
}
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

static void lines_notify_gap(
	struct podlog_lines *lines, enum podlog_gap_kind kind, int64_t after_ns, int64_t before_ns)
{
	struct podlog_gap gap = {.after_ns = after_ns, .before_ns = before_ns, .kind = kind};

	/* Lines are missing between the last one and the next. */
	lines->begin.bytes = 0;
	if (lines->events.gap)
		lines->events.gap(lines->events.ctx, &gap);
}

/*
 * Whether the beginning was read. No server says so: what is served is the newest file, be it the
 * first or not. Two things tell that files may have been before it: nothing could be read while the
 * container ran for as long as a kubelet needs for a rotation; and the first line comes later after
 * the container's start, or after its log was seen to be empty, than such a program takes to fill a
 * file.
 */

void podlog_lines_started(struct podlog_lines *lines, int64_t started_ms)
{
	bool is_known = started_ms > 0 && started_ms < INT64_MAX / MS_NS;

	lines->begin.started_ns = lines->is_short && is_known ? started_ms * MS_NS : 0;
}

void podlog_lines_unread(struct podlog_lines *lines, int64_t unread_ms, bool was_empty)
{
	lines->begin.unread_ns = unread_ms * MS_NS;
	lines->begin.was_empty = was_empty;
}

bool podlog_lines_lacks_first(const struct podlog_lines *lines)
{
	return lines->begin.started_ns > 0 && lines->begin.first_ns == 0;
}

/* The program began to write after its log was seen to be empty: by the time of its node, whose
 * clock is another. */
static void lines_note_empty(struct podlog_begin *begin)
{
	int64_t empty_ns = begin->first_ns - begin->unread_ns;

	if (begin->was_empty && empty_ns > begin->started_ns)
		begin->started_ns = empty_ns;
}

static bool lines_may_lack_first(const struct podlog_begin *begin)
{
	return begin->unread_ns >= ROTATION_NS &&
	       begin->first_ns - begin->started_ns >= ROTATION_NS;
}

static bool lines_fills_files(const struct podlog_begin *begin, int64_t ns)
{
	return begin->bytes >= FILE_BYTES &&
	       begin->first_ns - begin->started_ns > ns - begin->from_ns;
}

/* Note what is in out, and is to be delivered. */
static void begin_batch(struct podlog_lines *lines)
{
	struct podlog_begin *begin = &lines->begin;
	bool is_first = begin->first_ns == 0;
	bool lacks;

	if (begin->started_ns == 0)
		return;
	if (is_first) {
		begin->first_ns = lines->ns;
		lines_note_empty(begin);
	}
	if (begin->bytes == 0)
		begin->from_ns = lines->ns;
	begin->bytes += lines->out_len;
	lacks = is_first ? lines_may_lack_first(begin) : lines_fills_files(begin, lines->ns);
	if (lacks)
		lines_notify_gap(lines, PODLOG_BEGINNING, 0, begin->first_ns);
	if (lacks || begin->bytes >= FILE_BYTES)
		begin->started_ns = 0;
}

/*
 * Order of times within a stream. Lines of stdout and stderr overtake each other by little, clocks
 * are set; but a kubelet that fell behind two rotations serves the newest file from its start
 * again. What looks like that is cut, and the next stream tells by the point.
 */

static bool lines_is_recent(const struct podlog_lines *lines, int64_t ns)
{
	for (size_t i = 0; i < PODLOG_RECENT; i++)
		if (lines->recent[i] == (uint32_t)ns)
			return true;
	return false;
}

static bool lines_is_passed_head(const struct podlog_lines *lines, int64_t ns)
{
	for (size_t i = 0; i < lines->n_heads; i++)
		if (lines->heads[i].passed && lines->heads[i].ns == ns)
			return true;
	return false;
}

/* The line that followed the point in its file does so in any case. */
static void lines_learn_fall(struct podlog_lines *lines, int64_t fall_ns)
{
	lines->n_falls++;
	if (fall_ns < INT64_MAX / 4 && fall_ns * 4 > lines->fall_max_ns)
		lines->fall_max_ns = fall_ns * 4;
}

static bool lines_is_suspect(const struct podlog_lines *lines, int64_t ns)
{
	bool has_learned = lines->n_falls > FALLS_MAX;

	if (lines->ns - ns > lines->fall_max_ns)
		return true;
	if (lines_is_passed_head(lines, ns))
		return ns < lines->ns || !has_learned;
	return ns < lines->ns && !has_learned && lines_is_recent(lines, ns);
}

/* May a line of this time follow the present one? 0, PODLOG_AGAIN. */
static int lines_check_order(struct podlog_lines *lines, int64_t ns)
{
	if (lines->just_found) {
		lines_learn_fall(lines, lines->ns - ns);
		return 0;
	}
	if (!lines_is_suspect(lines, ns))
		return 0;
	lines->doubts = true;
	return PODLOG_AGAIN;
}

/* A line of this time is delivered, and it is not the head itself. */
static bool lines_overtakes(const struct podlog_lines *lines, struct podlog_head *head, int64_t ns)
{
	if (ns < head->ns)
		return false;
	if (head->after_ns == 0)
		head->after_ns = lines->ns;
	return ns > head->ns + SLACK_NS;
}

static void lines_notify_skipped(
	struct podlog_lines *lines, const struct podlog_head *head, int64_t before_ns)
{
	if (head && !lines->has_long)
		lines_notify_gap(lines, PODLOG_SKIPPED, head->after_ns, before_ns);
}

/* A line of this time is delivered: does it pass the start of a file? */
static void lines_pass_heads(struct podlog_lines *lines, int64_t ns)
{
	struct podlog_head *skipped = NULL;

	lines->head_ahead = false;
	for (size_t i = 0; i < lines->n_heads; i++) {
		struct podlog_head *head = &lines->heads[i];
		if (head->passed)
			continue;
		head->passed = ns == head->ns || lines_overtakes(lines, head, ns);
		if (head->passed && ns != head->ns && !skipped)
			skipped = head;
		lines->head_ahead = lines->head_ahead || !head->passed;
	}
	lines_notify_skipped(lines, skipped, ns);
}

void podlog_lines_finish(struct podlog_lines *lines)
{
	struct podlog_head *skipped = NULL;

	for (size_t i = 0; i < lines->n_heads; i++) {
		struct podlog_head *head = &lines->heads[i];
		if (!head->passed && head->after_ns > 0 && !skipped)
			skipped = head;
		head->passed = true;
	}
	lines->head_ahead = false;
	lines_notify_skipped(lines, skipped, lines->ns);
}

void podlog_lines_head(struct podlog_lines *lines, const char *data, size_t len)
{
	struct podlog_head head = {0};

	if (podlog_stamp(data, len, &head.ns) == 0)
		return;
	if (lines->n_heads > 0 && lines->heads[lines->n_heads - 1].ns == head.ns)
		return;
	if (lines->n_heads == PODLOG_HEADS) {
		lines->n_heads--;
		memmove(lines->heads, lines->heads + 1, lines->n_heads * sizeof(head));
	}
	head.passed = lines->n_heads == 0 || head.ns <= lines->point.max_ns;
	lines->head_ahead = lines->head_ahead || !head.passed;
	lines->heads[lines->n_heads++] = head;
}

static bool lines_same_point(const struct podlog_point *a, const struct podlog_point *b)
{
	return a->time_ns == b->time_ns && a->ordinal == b->ordinal && a->len == b->len &&
	       a->hash == b->hash;
}

bool podlog_lines_is_behind(struct podlog_lines *lines, const char *data, size_t len)
{
	const struct podlog_point *point = &lines->point;
	uint64_t hash = point_hash(HASH_START, data, len);
	int64_t ns;
	size_t n = podlog_stamp(data, len, &ns);

	if (n == 0)
		return false;
	if (ns == point->time_ns && len - n == point->len &&
		point_hash(HASH_START, data + n, len - n) == point->hash)
		return false;
	/* The last part of a long line has a time of its own there: said once, that is enough. */
	if (lines->has_tail && lines->tail_hash == hash &&
		lines_same_point(&lines->tail_point, point))
		return false;
	lines->has_tail = true;
	lines->tail_hash = hash;
	lines->tail_point = *point;
	return true;
}
/*
 * A stream is read up to the point. Lines later than all that were delivered come behind it, so the
 * first of them tells that the point is not there, nor its file.
 */

static void lines_notify_rotated(struct podlog_lines *lines, int64_t before_ns)
{
	podlog_lines_finish(lines);
	lines_notify_gap(lines, PODLOG_ROTATED, lines->point.time_ns, before_ns);
}

/* Rotation within lines of one time: the file begins with those, the point's is an earlier one of
 * them than it was. */
static int seek_candidate(struct podlog_lines *lines)
{
	lines->point.ordinal = lines->seek.candidate;
	return PODLOG_AGAIN;
}

/* The point is not in the stream. */
static int seek_failed(struct podlog_lines *lines)
{
	if (lines->seek.candidate > 0)
		return seek_candidate(lines);
	if (lines->has_since && lines->seek.n_dropped == 0) {
		lines->doubts = true;
		return PODLOG_AGAIN;
	}
	lines_notify_rotated(lines, 0);
	lines->all = true;
	return PODLOG_AGAIN;
}

/* A line that is later than all: 0 if it is the first one of the stream, which goes on as new. */
static int seek_passed(struct podlog_lines *lines, int64_t ns)
{
	if (lines->seek.candidate > 0)
		return seek_candidate(lines);
	lines_notify_rotated(lines, ns);
	if (lines->seek.n_dropped > 0 || lines->has_since) {
		lines->all = true;
		return PODLOG_AGAIN;
	}
	lines->seeking = false;
	lines->just_found = true;
	return 0;
}

/* A line begins in a stream whose point was not found yet. */
static int seek_line(struct podlog_lines *lines, int64_t ns)
{
	struct podlog_seek *seek = &lines->seek;

	seek->compares = false;
	if (ns > lines->point.max_ns)
		return seek_passed(lines, ns);
	if (ns != lines->point.time_ns) {
		seek->ordinal = 0;
		seek->n_dropped++;
		return 0;
	}
	seek->ordinal++;
	seek->compares = true;
	seek->len = 0;
	seek->hash = HASH_START;
	return 0;
}

static void seek_found(struct podlog_lines *lines, bool at_end)
{
	lines->seeking = false;
	lines->just_found = true;
	lines->ordinal = lines->point.ordinal;
	lines->ns = lines->point.time_ns;
	lines->goes_on = true;
	lines->place = at_end ? PODLOG_AT_START : PODLOG_IN_LINE;
}

/* The point's line it should be, and is not. */
static int seek_mismatch(struct podlog_lines *lines)
{
	struct podlog_seek *seek = &lines->seek;

	seek->compares = false;
	if (seek->ordinal >= lines->point.ordinal && seek->candidate > 0)
		return seek_candidate(lines);
	seek->n_dropped++;
	return 0;
}

/* Bytes of the present line; used: all, or up to the point. */
static int seek_bytes(struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used)
{
	struct podlog_seek *seek = &lines->seek;
	const struct podlog_point *point = &lines->point;
	bool ends = data[len - 1] == '\n';

	*ret_used = len;
	if (ends)
		lines->place = PODLOG_AT_START;
	if (!seek->compares)
		return 0;
	size_t n = point->len - seek->len < len ? (size_t)(point->len - seek->len) : len;
	seek->hash = point_hash(seek->hash, data, n);
	seek->len += n;
	if (seek->len < point->len)
		return ends ? seek_mismatch(lines) : 0;
	if (seek->hash != point->hash)
		return seek_mismatch(lines);
	if (seek->ordinal < point->ordinal) {
		seek->compares = false;
		seek->candidate = seek->ordinal;
		seek->n_dropped++;
		return 0;
	}
	*ret_used = n;
	seek_found(lines, ends && n == len);
	return 0;
}
/*
 * Streams
 */

static void lines_since_text(int64_t ns, char out[static PODLOG_SINCE_SIZE])
{
	time_t seconds = (time_t)(ns / SECOND_NS);
	struct tm tm;

	gmtime_r(&seconds, &tm);
	strftime(out, PODLOG_SINCE_SIZE, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

/* From when on to request: some of what is known costs little, and hides little. 0: from the start.
 * */
static int64_t lines_since_ns(const struct podlog_lines *lines)
{
	int64_t ns = lines->point.time_ns - MARGIN_NS;

	if (lines->overlap > 0 && lines->n_marks == PODLOG_MARKS)
		return ns < lines->marks[0].ns ? ns : lines->marks[0].ns;
	return lines->overlap > 0 && lines->is_short ? 0 : ns;
}

static void lines_set_mark(struct podlog_lines *lines)
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
	int64_t since = lines_since_ns(lines);

	*ret = (struct podlog_plan){.follow = wants_follow};
	lines->has_since = !is_new && !lines->doubts && !shadowed && since > 0;
	if (lines->has_since)
		lines_since_text(since, ret->since);
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

/*
 * Delivering
 */

static void lines_move_point(struct podlog_lines *lines)
{
	struct podlog_point *point = &lines->point;
	size_t from = lines->goes_on ? 0 : lines->line_off;

	if (!lines->goes_on) {
		point->time_ns = lines->ns;
		point->ordinal = lines->ordinal;
		point->len = 0;
		point->hash = HASH_START;
	}
	if (lines->max_ns > point->max_ns)
		point->max_ns = lines->max_ns;
	point->hash = point_hash(point->hash, lines->out + from, lines->out_len - from);
	point->len += lines->out_len - from;
	lines->has_long = lines->has_long || point->len >= PODLOG_LONG;
}

int podlog_lines_flush(struct podlog_lines *lines, struct err *err)
{
	int r = 0;

	if (lines->out_len == 0)
		return 0;
	begin_batch(lines);
	if (lines->events.data)
		r = lines->events.data(
			lines->events.ctx, lines->out, lines->out_len, lines->ns / MS_NS, err);
	if (r < 0)
		return r;
	lines_move_point(lines);
	lines->n_bytes += lines->out_len;
	lines_set_mark(lines);
	lines->all = false;
	lines->out_len = lines->line_off = 0;
	lines->goes_on = true;
	return 0;
}

/* Bytes of the present line. */
static int lines_add_bytes(
	struct podlog_lines *lines, const char *data, size_t len, struct err *err)
{
	while (len > 0) {
		size_t space = PODLOG_BATCH - lines->out_len;
		size_t n = space < len ? space : len;
		memcpy(lines->out + lines->out_len, data, n);
		lines->out_len += n;
		data += n;
		len -= n;
		int r = lines->out_len == PODLOG_BATCH ? podlog_lines_flush(lines, err) : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* A line begins of which there are len bytes so far. What is in out is delivered first where it
 * would not go with it; each later point is of this line. */
static int lines_start_line(
	struct podlog_lines *lines, int64_t ns, size_t len, bool ends, struct err *err)
{
	bool apart =
		!ends || ns / MS_NS != lines->ns / MS_NS || len > PODLOG_BATCH - lines->out_len;
	int r;

	if (ns <= lines->ns && (r = lines_check_order(lines, ns)) != 0)
		return r;
	if (apart) {
		r = podlog_lines_flush(lines, err);
		if (r < 0)
			return r;
	}
	if (lines->head_ahead)
		lines_pass_heads(lines, ns);
	if (ns > lines->max_ns)
		lines->max_ns = ns;
	lines->ordinal = ns == lines->ns ? lines->ordinal + 1 : 1;
	lines->ns = ns;
	lines->line_off = lines->out_len;
	lines->goes_on = false;
	lines->just_found = false;
	lines->recent[lines->n_recent++ % PODLOG_RECENT] = (uint32_t)ns;
	return 0;
}

/*
 * Splitting
 */

/* A line that has no time: the rest of one whose beginning sinceTime has hidden, where a stream
 * begins; else the server speaks. */
static void lines_start_untimed(struct podlog_lines *lines)
{
	bool hidden = lines->has_since && (lines->is_first || lines->seeking);

	lines->place = hidden ? PODLOG_IN_REST : PODLOG_IN_REMARK;
	lines->is_first = false;
}

static void lines_end_remark(struct podlog_lines *lines)
{
	if (lines->n_remark > 0 && lines->events.remark)
		lines->events.remark(lines->events.ctx, lines->remark, lines->n_remark);
	lines->n_remark = 0;
}

static void lines_skip_untimed(struct podlog_lines *lines, const char *data, size_t len)
{
	bool ends = data[len - 1] == '\n';
	size_t space = sizeof(lines->remark) - lines->n_remark;
	size_t n = len - ends;

	if (lines->place == PODLOG_IN_REMARK) {
		n = n < space ? n : space;
		memcpy(lines->remark + lines->n_remark, data, n);
		lines->n_remark += n;
	}
	if (!ends)
		return;
	lines_end_remark(lines);
	lines->place = PODLOG_AT_START;
}

/* len: of what is there of the line, up to its LF. */
static size_t lines_line_len(const char *data, size_t len)
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
		r = seek_line(lines, ns);
	if (r == 0 && !lines->seeking)
		r = lines_start_line(lines, ns, len, ends, err);
	if (r == 0)
		lines->place = PODLOG_IN_LINE;
	return r;
}

/* Bytes of a line, its LF at most at their end. */
static int lines_line_bytes(
	struct podlog_lines *lines, const char *data, size_t len, struct err *err)
{
	size_t used = 0;
	int r = 0;

	if (lines->place == PODLOG_IN_REMARK || lines->place == PODLOG_IN_REST) {
		lines_skip_untimed(lines, data, len);
		return 0;
	}
	if (lines->seeking)
		r = seek_bytes(lines, data, len, &used);
	if (r != 0 || used == len)
		return r;
	r = lines_add_bytes(lines, data + used, len - used, err);
	lines->place = data[len - 1] == '\n' ? PODLOG_AT_START : PODLOG_IN_LINE;
	return r;
}

/* 1: wait for more of it. A timestamp counts once a byte of its line is there. */
static bool lines_is_unfinished(const char *data, size_t len)
{
	return len < PODLOG_STAMP_MAX && !memchr(data, '\n', len) &&
	       (len < 5 || (str_is_digit(data[0]) && data[4] == '-'));
}

/* The line that begins at data; used: how far it was read, 0: wait for more. */
static int lines_take_line(
	struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	int64_t ns;
	size_t n = stamp_read_stamp(lines, data, len, &ns);
	int r = 0;

	*ret_used = 0;
	if (n == len || (n == 0 && lines_is_unfinished(data, len)))
		return 0;
	size_t n_line = lines_line_len(data + n, len - n);
	if (n > 0)
		r = begin_line(lines, ns, n_line, data[n + n_line - 1] == '\n', err);
	else
		lines_start_untimed(lines);
	if (r == 0)
		r = lines_line_bytes(lines, data + n, n_line, err);
	*ret_used = n + n_line;
	return r;
}

/* The beginning of a line whose timestamp came in pieces: those, and as much of data as can be. */
static int lines_take_pending(
	struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	size_t old = lines->n_pending, used;
	size_t space = sizeof(lines->pending) - old;
	size_t n = len < space ? len : space;
	int r;

	memcpy(lines->pending + old, data, n);
	r = lines_take_line(lines, lines->pending, old + n, &used, err);
	lines->n_pending = used > 0 ? 0 : old + n;
	*ret_used = used > 0 ? used - old : n;
	return r;
}

static int lines_feed_some(
	struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	if (lines->place != PODLOG_AT_START) {
		*ret_used = lines_line_len(data, len);
		return lines_line_bytes(lines, data, *ret_used, err);
	}
	if (lines->n_pending > 0)
		return lines_take_pending(lines, data, len, ret_used, err);
	int r = lines_take_line(lines, data, len, ret_used, err);
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
		r = lines_feed_some(lines, data + at, len - at, &used, err);
	if (r < 0)
		return r;
	/* A line without its end waits for it, or for podlog_lines_flush. */
	int flushed = lines->place == PODLOG_IN_LINE && !lines->goes_on
			      ? 0
			      : podlog_lines_flush(lines, err);
	return flushed < 0 ? flushed : r;
}

int podlog_lines_end(struct podlog_lines *lines, bool is_whole, struct err *err)
{
	/* Bytes held back at the end of a stream that was cut are served again. */
	int r = is_whole ? podlog_lines_flush(lines, err) : 0;

	if (r < 0)
		return r;
	lines_end_remark(lines);
	if (!is_whole)
		return 0;
	if (lines->seeking)
		return seek_failed(lines);
	lines->scanned = true;
	lines->doubts = false;
	podlog_lines_finish(lines);
	return 0;
}

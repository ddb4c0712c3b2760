/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kube/logs/podlog_impl.h"

/*
 * A stream is read up to the point. Lines later than all that were delivered come behind it, so the
 * first of them tells that the point is not there, nor its file.
 */

void podlog_tell_gap(
	struct podlog_lines *lines, enum podlog_gap_kind kind, int64_t after_ns, int64_t before_ns)
{
	struct podlog_gap gap = {.after_ns = after_ns, .before_ns = before_ns, .kind = kind};

	podlog_begin_gap(lines);
	if (lines->events.gap)
		lines->events.gap(lines->events.ctx, &gap);
}

static void tell_rotated(struct podlog_lines *lines, int64_t before_ns)
{
	podlog_lines_finish(lines);
	podlog_tell_gap(lines, PODLOG_ROTATED, lines->point.time_ns, before_ns);
}

/* Rotation within lines of one time: the file begins with those, the point's is an earlier one of
 * them than it was. */
static int seek_candidate(struct podlog_lines *lines)
{
	lines->point.ordinal = lines->seek.candidate;
	return PODLOG_AGAIN;
}

int podlog_seek_failed(struct podlog_lines *lines)
{
	if (lines->seek.candidate > 0)
		return seek_candidate(lines);
	if (lines->has_since && lines->seek.n_dropped == 0) {
		lines->doubts = true;
		return PODLOG_AGAIN;
	}
	tell_rotated(lines, 0);
	lines->all = true;
	return PODLOG_AGAIN;
}

/* A line that is later than all: 0 if it is the first one of the stream, which goes on as new. */
static int seek_passed(struct podlog_lines *lines, int64_t ns)
{
	if (lines->seek.candidate > 0)
		return seek_candidate(lines);
	tell_rotated(lines, ns);
	if (lines->seek.n_dropped > 0 || lines->has_since) {
		lines->all = true;
		return PODLOG_AGAIN;
	}
	lines->seeking = false;
	lines->just_found = true;
	return 0;
}

int podlog_seek_line(struct podlog_lines *lines, int64_t ns)
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
	seek->hash = PODLOG_HASH_START;
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
int podlog_seek_bytes(struct podlog_lines *lines, const char *data, size_t len, size_t *ret_used)
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
	seek->hash = podlog_hash(seek->hash, data, n);
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

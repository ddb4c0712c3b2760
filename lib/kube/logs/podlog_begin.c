/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/logs/podlog_impl.h"

/*
 * Whether the beginning was read. No server says so: what is served is the newest file, be it the
 * first or not. Two things tell that files may have been before it: nothing could be read while the
 * container ran for as long as a kubelet needs for a rotation; and the first line comes later after
 * the container's start, or after its log was seen to be empty, than such a program takes to fill a
 * file.
 */

static const int64_t MS_NS = 1000000;
static const int64_t ROTATION_NS = INT64_C(3000000000); /* the least between two of a kubelet */
/* Of the program's bytes: files are rotated at 1 MiB or more, times included. */
enum { FILE_BYTES = 512 << 10 };

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
static void note_empty(struct podlog_begin *begin)
{
	int64_t empty_ns = begin->first_ns - begin->unread_ns;

	if (begin->was_empty && empty_ns > begin->started_ns)
		begin->started_ns = empty_ns;
}

static bool may_lack_first(const struct podlog_begin *begin)
{
	return begin->unread_ns >= ROTATION_NS &&
	       begin->first_ns - begin->started_ns >= ROTATION_NS;
}

static bool fills_files(const struct podlog_begin *begin, int64_t ns)
{
	return begin->bytes >= FILE_BYTES &&
	       begin->first_ns - begin->started_ns > ns - begin->from_ns;
}

void podlog_begin_batch(struct podlog_lines *lines)
{
	struct podlog_begin *begin = &lines->begin;
	bool is_first = begin->first_ns == 0;
	bool lacks;

	if (begin->started_ns == 0)
		return;
	if (is_first) {
		begin->first_ns = lines->ns;
		note_empty(begin);
	}
	if (begin->bytes == 0)
		begin->from_ns = lines->ns;
	begin->bytes += lines->out_len;
	lacks = is_first ? may_lack_first(begin) : fills_files(begin, lines->ns);
	if (lacks)
		podlog_tell_gap(lines, PODLOG_BEGINNING, 0, begin->first_ns);
	if (lacks || begin->bytes >= FILE_BYTES)
		begin->started_ns = 0;
}

void podlog_begin_gap(struct podlog_lines *lines)
{
	lines->begin.bytes = 0;
}

#include "kube/podlog_impl.h"

/*
 * Whether the beginning was read. No server says so: what is served is the newest file, be it the
 * first or not. Two things tell that files may have been before it: nothing could be read while the
 * container ran for as long as a kubelet needs for a rotation; and the first line comes later after
 * the container's start than such a program takes to fill a file.
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

void podlog_lines_looked(struct podlog_lines *lines, bool is_late)
{
	if (lines->point.time_ns == 0)
		lines->begin.look = is_late ? PODLOG_LOOK_LATE : PODLOG_LOOK_EMPTY;
}

bool podlog_lines_lacks_first(const struct podlog_lines *lines)
{
	return lines->begin.started_ns > 0 && lines->begin.first_ns == 0;
}

static bool may_lack_first(const struct podlog_begin *begin)
{
	return begin->look == PODLOG_LOOK_LATE &&
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
	if (is_first)
		begin->first_ns = lines->ns;
	if (begin->bytes == 0)
		begin->from_ns = lines->ns;
	begin->bytes += lines->out_len;
	lacks = is_first ? may_lack_first(begin) : fills_files(begin, lines->ns);
	if (lacks)
		podlog_tell_gap(lines, PODLOG_BEGINNING, 0, begin->first_ns);
	if (lacks || begin->look == PODLOG_LOOK_EMPTY || begin->bytes >= FILE_BYTES)
		begin->started_ns = 0;
}

void podlog_begin_gap(struct podlog_lines *lines)
{
	lines->begin.bytes = 0;
}

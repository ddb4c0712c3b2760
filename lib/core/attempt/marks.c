/* SPDX-License-Identifier: Apache-2.0 */
#include "core/attempt/marks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util/auto.h"

size_t mark_format(const struct mark *mark, char out[static MARK_SIZE])
{
	return (size_t)snprintf(
		out, MARK_SIZE, "%lld %lld\n", (long long)mark->time_ms, (long long)mark->offset);
}

/* Decimal digits up to end; false without any, or beyond 63 bits. */
static bool parse_number(const char **s, const char *end, int64_t *ret)
{
	const char *start = *s;
	int64_t n = 0;

	for (; *s < end && **s >= '0' && **s <= '9'; ++*s)
		if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, **s - '0', &n))
			return false;
	*ret = n;
	return *s > start;
}

size_t mark_parse(const char *s, size_t len, struct mark *ret, bool *ret_ok)
{
	const char *end = memchr(s, '\n', len), *at = s;
	struct mark mark;

	*ret_ok = false;
	if (!end)
		return 0;
	if (parse_number(&at, end, &mark.time_ms) && at < end && *at++ == ' ' &&
		parse_number(&at, end, &mark.offset) && at == end) {
		*ret = mark;
		*ret_ok = true;
	}
	return (size_t)(end - s) + 1;
}

void marks_reader_init(struct marks_reader *reader, const char *path)
{
	*reader = (struct marks_reader){.fd = open(path, O_RDONLY | O_CLOEXEC)};
}

void marks_reader_done(struct marks_reader *reader)
{
	auto_fd(&reader->fd);
	reader->fd = -1;
}

/* Read more bytes behind the pending ones; false: none. */
static bool fill(struct marks_reader *reader)
{
	ssize_t n;

	memmove(reader->pending, reader->pending + reader->at, reader->len - reader->at);
	reader->len -= reader->at;
	reader->at = 0;
	/* No line is that long: these are not marks. */
	if (reader->len == sizeof(reader->pending))
		reader->len = 0;
	do
		n = read(reader->fd, reader->pending + reader->len,
			sizeof(reader->pending) - reader->len);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return false;
	reader->len += (size_t)n;
	return true;
}

static bool parse_pending(struct marks_reader *reader, struct mark *ret)
{
	for (;;) {
		bool ok;
		size_t n = mark_parse(
			reader->pending + reader->at, reader->len - reader->at, ret, &ok);

		if (n == 0)
			return false;
		reader->at += n;
		if (ok)
			return true;
	}
}

bool marks_reader_next(struct marks_reader *reader, struct mark *ret)
{
	struct mark mark;

	if (reader->fd < 0)
		return false;
	while (!parse_pending(reader, &mark))
		if (!fill(reader))
			return false;
	/* The clock may have been set back. */
	if (mark.time_ms < reader->last.time_ms)
		mark.time_ms = reader->last.time_ms;
	if (mark.offset < reader->last.offset)
		mark.offset = reader->last.offset;
	reader->last = mark;
	*ret = mark;
	return true;
}

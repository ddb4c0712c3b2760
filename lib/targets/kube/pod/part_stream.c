/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/pod/part_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

enum { LINE_MAX = 64 };

enum state { AT_PART, IN_DATA, AT_SIZE };

struct part_stream {
	struct part_events events;
	enum state state;
	uint64_t left;
	char line[LINE_MAX];
	size_t n; /* of line */
};

struct part_stream *part_stream_new(const struct part_events *events)
{
	struct part_stream *stream = mem_alloc(1, sizeof(*stream));

	*stream = (struct part_stream){.events = *events};
	return stream;
}

void part_stream_free(struct part_stream *stream)
{
	free(stream);
}

static int refuse(const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	return err_set(err, E_DATA, "'%s' is not a part of a file", shown);
}

/* A decimal number up to end; its length, 0: none. */
static size_t take_number(const char *at, char end, uint64_t *ret)
{
	size_t len = strspn(at, "0123456789");
	AUTO_FREE char *digits = mem_strndup(at, len);
	int64_t value;

	if (at[len] != end || str_to_int(digits, 0, INT64_MAX, "size", &value, NULL) < 0)
		return 0;
	*ret = (uint64_t)value;
	return len;
}

static int take_part(struct part_stream *stream, struct err *err)
{
	const char *at = stream->line;
	uint64_t offset, len;
	size_t n;

	if (str_eq(at, "gone"))
		return stream->events.gone(stream->events.ctx, err);
	if (!str_starts(at, "part "))
		return refuse(at, err);
	at += strlen("part ");
	n = take_number(at, ' ', &offset);
	if (!n || !take_number(at + n + 1, '\0', &len))
		return refuse(stream->line, err);
	stream->left = len;
	stream->state = len ? IN_DATA : AT_SIZE;
	return stream->events.begin(stream->events.ctx, offset, len, err);
}

static int take_size(struct part_stream *stream, struct err *err)
{
	uint64_t size;

	if (!str_starts(stream->line, "size ") ||
		!take_number(stream->line + strlen("size "), '\0', &size))
		return refuse(stream->line, err);
	stream->state = AT_PART;
	return stream->events.end(stream->events.ctx, size, err);
}

static int take_byte(struct part_stream *stream, char byte, struct err *err)
{
	if (byte != '\n' && byte != '\0' && stream->n < LINE_MAX - 1) {
		stream->line[stream->n++] = byte;
		return 0;
	}
	stream->line[stream->n] = '\0';
	stream->n = 0;
	if (byte != '\n')
		return refuse(stream->line, err);
	return stream->state == AT_PART ? take_part(stream, err) : take_size(stream, err);
}

int part_stream_add(struct part_stream *stream, const char *data, size_t len, struct err *err)
{
	int r = 0;

	while (r == 0 && len) {
		size_t n = 1;

		if (stream->state == IN_DATA) {
			n = len < stream->left ? len : (size_t)stream->left;
			stream->left -= n;
			if (stream->left == 0)
				stream->state = AT_SIZE;
			r = stream->events.data(stream->events.ctx, data, n, err);
		} else {
			r = take_byte(stream, *data, err);
		}
		data += n;
		len -= n;
	}
	return r;
}

int part_stream_finish(const struct part_stream *stream, struct err *err)
{
	if (stream->state == AT_PART && stream->n == 0)
		return 0;
	return err_set(err, E_DATA, "the parts of files end too early");
}

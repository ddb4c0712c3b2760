/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/tar_stream.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/entry.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	BLOCK = 512,
	EXTRA_MAX = 64 << 10, /* of a long name, or of a pax header */
	NS_DIGITS = 9,
};
#define NS_PER_S    INT64_C(1000000000)
#define SECONDS_MAX (INT64_MAX / NS_PER_S - 1)

/* Where a field is in a header. */
struct field {
	size_t at, len;
};
static const struct field name_field = {0, 100}, mode_field = {100, 8}, uid_field = {108, 8},
			  size_field = {124, 12}, mtime_field = {136, 12}, sum_field = {148, 8},
			  target_field = {157, 100}, prefix_field = {345, 155};
enum { TYPE_AT = 156, MAGIC_AT = 257 };

/* Extra headers in front of a member. */
struct extra {
	char *path, *target;
	bool has_size, has_mtime;
	uint64_t size;
	int64_t mtime_ns;
};

struct tar_stream {
	struct tar_events events;
	unsigned char block[BLOCK];
	size_t n;        /* of block */
	uint64_t left;   /* of the content, or of extra's */
	size_t padding;  /* behind it */
	char extra_type; /* whose content comes; 0: none */
	bool in_file;    /* events want the content */
	struct buf text; /* of the extra */
	struct extra extra;
	bool any, ended; /* something came; an end of an archive was the last */
};

struct tar_stream *tar_stream_new(const struct tar_events *events)
{
	struct tar_stream *stream = mem_alloc(1, sizeof(*stream));

	*stream = (struct tar_stream){.events = *events};
	buf_init(&stream->text, EXTRA_MAX);
	return stream;
}

static void drop_extra(struct tar_stream *stream)
{
	free(stream->extra.path);
	free(stream->extra.target);
	stream->extra = (struct extra){0};
}

void tar_stream_free(struct tar_stream *stream)
{
	if (!stream)
		return;
	drop_extra(stream);
	buf_done(&stream->text);
	free(stream);
}

static int tar_stream_refuse(const char *why, struct err *err)
{
	return err_set(err, E_DATA, "this is not a tar archive that can be read: %s", why);
}

/*
 * Fields
 */

/* Octal, or base-256 with the highest bit set. */
static bool read_number(const unsigned char *block, struct field field, uint64_t *ret)
{
	const unsigned char *at = block + field.at, *end = at + field.len;
	uint64_t value = 0;

	if (*at & 0x80) {
		/* A negative one, or one of more than 63 bits. */
		if (*at != 0x80)
			return false;
		for (at++; at < end; at++) {
			if (value >> 55)
				return false;
			value = value << 8 | *at;
		}
		*ret = value;
		return true;
	}
	while (at < end && *at == ' ')
		at++;
	for (; at < end && *at >= '0' && *at <= '7'; at++)
		value = value << 3 | (uint64_t)(*at - '0');
	if (at < end && *at != ' ' && *at != '\0')
		return false;
	*ret = value;
	return true;
}

/* A time before 1970 is the only negative number that programs write. */
static int64_t tar_stream_read_time(const unsigned char *block)
{
	uint64_t value;

	if (!read_number(block, mtime_field, &value) || value > (uint64_t)SECONDS_MAX)
		return 0;
	return (int64_t)value * NS_PER_S;
}

static char *read_text(const unsigned char *block, struct field field)
{
	return mem_strndup(
		(const char *)block + field.at, strnlen((const char *)block + field.at, field.len));
}

static bool is_zero(const unsigned char *block)
{
	for (size_t i = 0; i < BLOCK; i++)
		if (block[i])
			return false;
	return true;
}

static bool has_sum(const unsigned char *block)
{
	uint64_t wanted, sum = 0;

	for (size_t i = 0; i < BLOCK; i++)
		sum += i >= sum_field.at && i < sum_field.at + sum_field.len ? ' ' : block[i];
	return read_number(block, sum_field, &wanted) && wanted == sum;
}

/*
 * Extra headers in front of a member
 */

/* "1700000000.25", maybe with a sign. */
static int64_t parse_time(const char *text, size_t len)
{
	bool negative = len && *text == '-';
	int64_t seconds = 0, ns = 0;
	size_t i = negative, digits = 0;

	for (; i < len && str_is_digit(text[i]) && seconds <= SECONDS_MAX / 10 - 1; i++)
		seconds = seconds * 10 + (text[i] - '0');
	if (i < len && text[i] == '.')
		for (i++; digits < NS_DIGITS; digits++, i++)
			ns = ns * 10 + (i < len && str_is_digit(text[i]) ? text[i] - '0' : 0);
	return negative ? -(seconds * NS_PER_S + ns) : seconds * NS_PER_S + ns;
}

static int set_pax(struct extra *extra, const char *key, size_t key_len, const char *value,
	size_t len, struct err *err)
{
	AUTO_FREE char *name = mem_strndup(key, key_len), *text = mem_strndup(value, len);
	int64_t size;

	if (str_starts(name, "GNU.sparse"))
		return tar_stream_refuse("it has a sparse file", err);
	if (str_eq(name, "path")) {
		REPLACE(extra->path, TAKE(text));
	} else if (str_eq(name, "linkpath")) {
		REPLACE(extra->target, TAKE(text));
	} else if (str_eq(name, "mtime")) {
		extra->has_mtime = true;
		extra->mtime_ns = parse_time(value, len);
	} else if (str_eq(name, "size")) {
		if (str_to_int(text, 0, INT64_MAX, "size", &size, NULL) < 0)
			return tar_stream_refuse("a pax header has a bad size", err);
		extra->has_size = true;
		extra->size = (uint64_t)size;
	}
	return 0;
}

/* Records "LEN KEY=VALUE\n", where LEN counts all of it. */
static int parse_pax(struct tar_stream *stream, struct err *err)
{
	const char *at = stream->text.data, *end = at + stream->text.len;
	int r = 0;

	while (r == 0 && at < end) {
		const char *key = at, *equals;
		size_t len = 0;

		while (key < end && str_is_digit(*key) && len <= EXTRA_MAX)
			len = len * 10 + (size_t)(*key++ - '0');
		if (key == at || key == end || *key != ' ' || len > (size_t)(end - at) ||
			len < (size_t)(key - at) + 3 || at[len - 1] != '\n')
			return tar_stream_refuse("a pax header is broken", err);
		key++;
		equals = memchr(key, '=', (size_t)(at + len - key));
		if (!equals)
			return tar_stream_refuse("a pax header is broken", err);
		r = set_pax(&stream->extra, key, (size_t)(equals - key), equals + 1,
			(size_t)(at + len - 1 - equals - 1), err);
		at += len;
	}
	return r;
}

static int end_extra(struct tar_stream *stream, struct err *err)
{
	char type = stream->extra_type;
	char **out = type == 'L' ? &stream->extra.path : &stream->extra.target;

	stream->extra_type = 0;
	/* Global pax headers hold comments and the like: ignored. */
	if (type == 'x')
		return parse_pax(stream, err);
	if (type == 'g')
		return 0;
	free(*out);
	*out = mem_strndup(stream->text.data, strlen(stream->text.data));
	return 0;
}

static int begin_extra(struct tar_stream *stream, char type, uint64_t size, struct err *err)
{
	if (size > EXTRA_MAX)
		return tar_stream_refuse("a name in it is too long", err);
	buf_reset(&stream->text);
	stream->extra_type = type;
	return size ? 0 : end_extra(stream, err);
}

/*
 * Members
 */

static char *tar_stream_path_of(struct tar_stream *stream)
{
	const unsigned char *block = stream->block;
	AUTO_FREE char *name = NULL, *prefix = NULL;

	if (stream->extra.path)
		return TAKE(stream->extra.path);
	name = read_text(block, name_field);
	/* GNU's old format has other things there. */
	if (memcmp(block + MAGIC_AT, "ustar\0", 6) == 0 && block[prefix_field.at]) {
		prefix = read_text(block, prefix_field);
		return mem_printf("%s/%s", prefix, name);
	}
	return TAKE(name);
}

static int tar_stream_kind_of(char type, enum tar_kind *ret, struct err *err)
{
	static const struct {
		char type;
		enum tar_kind kind;
	} kinds[] = {{'0', TAR_FILE}, {'\0', TAR_FILE}, {'7', TAR_FILE}, {'1', TAR_HARDLINK},
		{'2', TAR_LINK}, {'3', TAR_OTHER}, {'4', TAR_OTHER}, {'5', TAR_DIR},
		{'6', TAR_OTHER}};

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		if (kinds[i].type == type) {
			*ret = kinds[i].kind;
			return 0;
		}
	}
	return tar_stream_refuse(
		type == 'S' ? "it has a sparse file" : "it has something unknown", err);
}

static int end_content(struct tar_stream *stream, struct err *err)
{
	if (stream->extra_type)
		return end_extra(stream, err);
	if (!stream->in_file)
		return 0;
	stream->in_file = false;
	return stream->events.end(stream->events.ctx, err);
}

static int tar_stream_take_member(struct tar_stream *stream, uint64_t size, struct err *err)
{
	const struct extra *extra = &stream->extra;
	struct tar_member member = {.size = extra->has_size ? extra->size : size};
	AUTO_FREE char *path = NULL, *target = NULL;
	uint64_t mode = 0, uid = 0;

	int r = tar_stream_kind_of((char)stream->block[TYPE_AT], &member.kind, err);
	if (r < 0)
		return r;
	path = tar_stream_path_of(stream);
	target =
		extra->target ? TAKE(stream->extra.target) : read_text(stream->block, target_field);
	if (!read_number(stream->block, mode_field, &mode))
		mode = 0;
	member.path = path;
	member.target = target;
	member.mode = (unsigned)mode & 07777;
	member.is_root = read_number(stream->block, uid_field, &uid) && uid == 0;
	member.mtime_ns = extra->has_mtime ? extra->mtime_ns : tar_stream_read_time(stream->block);
	if (member.kind != TAR_FILE)
		member.size = 0;
	stream->left = member.size;
	stream->padding = (size_t)(-member.size % BLOCK);
	stream->in_file = member.kind == TAR_FILE;
	drop_extra(stream);
	r = stream->events.member(stream->events.ctx, &member, err);
	return r == 0 && stream->left == 0 ? end_content(stream, err) : r;
}

static int take_header(struct tar_stream *stream, struct err *err)
{
	char type = (char)stream->block[TYPE_AT];
	uint64_t size;

	stream->n = 0;
	stream->any = true;
	stream->ended = is_zero(stream->block);
	if (stream->ended)
		return stream->extra.path || stream->extra.target
			       ? tar_stream_refuse("it ends where a file should follow", err)
			       : 0;
	if (!has_sum(stream->block))
		return tar_stream_refuse("a checksum is wrong", err);
	if (!read_number(stream->block, size_field, &size) || size > INT64_MAX)
		return tar_stream_refuse("a size is wrong", err);
	if (!strchr("LKxg", type) || type == '\0')
		return tar_stream_take_member(stream, size, err);
	stream->left = size;
	stream->padding = (size_t)(-size % BLOCK);
	return begin_extra(stream, type, size, err);
}

/* Returns how much of it was used. */
static size_t take_content(
	struct tar_stream *stream, const char *data, size_t len, int *ret_r, struct err *err)
{
	size_t n = len < stream->left ? len : (size_t)stream->left;

	stream->left -= n;
	if (stream->extra_type)
		buf_add(&stream->text, data, n);
	else if (stream->in_file)
		*ret_r = stream->events.data(stream->events.ctx, data, n, err);
	if (*ret_r == 0 && stream->left == 0)
		*ret_r = end_content(stream, err);
	return n;
}

int tar_stream_add(struct tar_stream *stream, const void *data, size_t len, struct err *err)
{
	const char *at = data;
	int r = 0;

	while (r == 0 && len) {
		size_t n;

		if (stream->left) {
			n = take_content(stream, at, len, &r, err);
		} else if (stream->padding) {
			n = len < stream->padding ? len : stream->padding;
			stream->padding -= n;
		} else {
			n = BLOCK - stream->n < len ? BLOCK - stream->n : len;
			memcpy(stream->block + stream->n, at, n);
			stream->n += n;
			if (stream->n == BLOCK)
				r = take_header(stream, err);
		}
		at += n;
		len -= n;
	}
	return r;
}

int tar_stream_finish(const struct tar_stream *stream, struct err *err)
{
	if (!stream->any && stream->n == 0)
		return 0;
	return stream->ended && stream->n == 0 ? 0 : tar_stream_refuse("it ends too early", err);
}

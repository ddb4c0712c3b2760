/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files: what is read does not depend on where the input is cut; places never go back or
 * beyond the end; and an event of any bytes in a right frame is taken or counted as malformed.
 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "events/tfevents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECORD_MAX = 4096, TAGS_MAX = 8, SEEN_MAX = 64 << 20 };

static void on_scalar(void *ctx, const struct tfevents_scalar *scalar)
{
	size_t len = strlen(scalar->tag);

	BUG_ON(len == 0 || len > TFEVENT_TAG_MAX || !str_is_utf8(scalar->tag, len));
	buf_add(ctx, scalar->tag, len + 1);
	buf_add(ctx, &scalar->value, sizeof(scalar->value));
	buf_add(ctx, &scalar->step, sizeof(scalar->step));
	buf_add(ctx, &scalar->wall_time_s, sizeof(scalar->wall_time_s));
}

static void on_restart(void *ctx, int64_t step)
{
	buf_add(ctx, &step, sizeof(step));
}

static void on_plugin(
	void *ctx, const char *tag, const char *plugin, const void *content, size_t len)
{
	buf_adds(ctx, tag);
	buf_adds(ctx, plugin);
	buf_add(ctx, content, len);
}

/* As a reader of a growing file does it: what is not OK is read again. */
static struct tfevents *read_all(const uint8_t *data, size_t size, size_t piece, struct buf *seen)
{
	static const struct tfevents_ops ops = {on_scalar, on_restart, on_plugin};
	const struct tfevents_spec spec = {&ops, seen, RECORD_MAX, TAGS_MAX};
	struct tfevents *reader = tfevents_new(&spec);
	size_t end = 0;

	while (end < size) {
		uint64_t before = tfevents_next(reader);

		end = piece < size - end ? end + piece : size;
		tfevents_feed(reader, data + before, end - (size_t)before);
		BUG_ON(tfevents_next(reader) > end);
	}
	/* One that was read in parts has a second chance. */
	for (uint64_t before = 0; tfevents_next(reader) < size;) {
		uint64_t at = tfevents_next(reader);

		tfevents_feed(reader, data + at, size - (size_t)at);
		if (tfevents_next(reader) <= before)
			break;
		before = tfevents_next(reader);
	}
	return reader;
}

static void check_cuts(const uint8_t *data, size_t size, size_t piece)
{
	AUTO_BUF struct buf whole, parts;
	struct tfevents_counts a, b;

	buf_init(&whole, SEEN_MAX);
	buf_init(&parts, SEEN_MAX);
	AUTO(tfevents_free_auto) struct tfevents *first = read_all(data, size, size, &whole);
	AUTO(tfevents_free_auto) struct tfevents *second = read_all(data, size, piece, &parts);
	BUG_ON(whole.full || parts.full);
	BUG_ON(whole.len != parts.len || memcmp(whole.data, parts.data, whole.len) != 0);
	tfevents_get_counts(first, &a);
	tfevents_get_counts(second, &b);
	BUG_ON(a.records != b.records || a.malformed != b.malformed || a.skipped != b.skipped);
}

/* The input as the data of one event. */
static void check_event(const uint8_t *data, size_t size, size_t piece)
{
	AUTO_BUF struct buf file;
	uint8_t header[12], sum[4];

	buf_init(&file, size + 64);
	put_le64(header, size);
	put_le32(header + 8, crc32c_masked(header, 8));
	put_le32(sum, crc32c_masked(data, size));
	buf_add(&file, header, sizeof(header));
	buf_add(&file, data, size);
	buf_add(&file, sum, sizeof(sum));
	check_cuts((const uint8_t *)file.data, file.len, piece);
	if (get_le32(sum) == 0)
		return;
	struct tfevents_counts counts;
	AUTO_BUF struct buf seen;
	buf_init(&seen, SEEN_MAX);
	AUTO(tfevents_free_auto)
	struct tfevents *reader = read_all((const uint8_t *)file.data, file.len, file.len, &seen);
	tfevents_get_counts(reader, &counts);
	BUG_ON(tfevents_next(reader) != file.len || counts.records + counts.skipped != 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t piece = size && data[0] ? data[0] : 1000;

	crc32c_init();
	if (size) {
		data++;
		size--;
	}
	check_cuts(data, size, piece);
	check_event(data, size, piece);
	return 0;
}

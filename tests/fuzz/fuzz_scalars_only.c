/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalars only: what is kept does not depend on where the input is cut, nor on where the walk is
 * left and begun again; it is whole records of the input in their order; and a reader finds in it
 * the same scalars and restarts as in the input without what was passed over.
 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "base/util/str.h"
#include "events/scalars_only.h"
#include "events/tfevents.h"
#include "tests/unit/tfeventsfix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECORD_MAX = 2048, TAGS_MAX = 1 << 20, MAX = 64 << 20 };

/* What a reader told, but of the tags that are others. */
struct notified {
	struct buf text;
	const struct map *others;
};

static void on_scalar(void *ctx, const struct tfevents_scalar *scalar)
{
	struct notified *notified = ctx;

	if (map_get(notified->others, scalar->tag))
		return;
	buf_add(&notified->text, scalar->tag, strlen(scalar->tag) + 1);
	buf_add(&notified->text, &scalar->value, sizeof(scalar->value));
	buf_add(&notified->text, &scalar->step, sizeof(scalar->step));
	buf_add(&notified->text, &scalar->wall_time_s, sizeof(scalar->wall_time_s));
}

static void on_restart(void *ctx, int64_t step)
{
	struct notified *notified = ctx;

	buf_add(&notified->text, &step, sizeof(step));
}

static void on_plugin(
	void *ctx, const char *tag, const char *plugin, const void *content, size_t len)
{
	if (!str_eq(plugin, "scalars"))
		map_put(ctx, tag, ctx);
}

static void read_events(const struct buf *file, const struct tfevents_ops *ops, void *ctx)
{
	const struct tfevents_spec spec = {ops, ctx, RECORD_MAX, TAGS_MAX};
	AUTO(tfevents_free_auto) struct tfevents *reader = tfevents_new(&spec);

	tfevents_feed(reader, file->data, file->len);
}

static void read_scalars(const struct buf *file, const struct map *others, struct buf *out)
{
	static const struct tfevents_ops ops = {on_scalar, on_restart, NULL};
	struct notified notified = {.others = others};

	buf_init(&notified.text, MAX);
	read_events(file, &ops, &notified);
	BUG_ON(notified.text.full);
	*out = notified.text;
}

struct walked {
	struct buf out;
	struct buf rest; /* the input without what was passed over; with pieces of one byte */
	enum scalars_only_state state;
};

static void walked_done(struct walked *walked)
{
	buf_done(&walked->out);
	buf_done(&walked->rest);
}

static void walk_range(struct walked *walked, struct scalars_only *walk, const uint8_t *data,
	size_t len, size_t piece, uint64_t from)
{
	for (size_t at = 0; at < len && walked->state == SCALARS_ONLY_OK; at += piece) {
		struct scalars_only_passed was, is;
		struct scalars_place before, next;

		scalars_only_place(walk, &before);
		scalars_only_passed(walk, &was);
		walked->state = scalars_only_feed(
			walk, data + at, len - at < piece ? len - at : piece, &walked->out);
		scalars_only_place(walk, &next);
		scalars_only_passed(walk, &is);
		BUG_ON(next.at < before.at);
		if (is.bytes == was.bytes && next.at <= from + len)
			buf_add(&walked->rest, data + (before.at - from),
				(size_t)(next.at - before.at));
	}
}

/* Every window bytes it is left and begun again at its place, as looks do it. */
static void walk_all(
	struct walked *walked, const uint8_t *data, size_t size, size_t piece, size_t window)
{
	const struct scalars_only_spec spec = {.large_min = 64, .record_max = RECORD_MAX};
	AUTO(scalars_only_free_auto) struct scalars_only *walk = scalars_only_new(&spec);
	struct scalars_place place = {0}, next;
	bool is_at_end = false;

	*walked = (struct walked){.state = SCALARS_ONLY_OK};
	buf_init(&walked->out, MAX);
	buf_init(&walked->rest, MAX);
	while (walked->state == SCALARS_ONLY_OK && !is_at_end && place.at <= size) {
		uint64_t from = scalars_only_from(&place);
		size_t len = size - from < window ? (size_t)(size - from) : window;

		scalars_only_begin(walk, &place);
		walk_range(walked, walk, data + from, len, piece, from);
		scalars_only_place(walk, &next);
		is_at_end = from + len == size;
		BUG_ON(walked->state == SCALARS_ONLY_OTHER && place.has_sum);
		window *= next.at == place.at ? 2 : 1;
		place = next;
	}
}

/* Whether its records are records of the input, in their order. */
static bool is_part_of(const struct buf *part, const uint8_t *data, size_t size)
{
	size_t at = 0;

	for (size_t i = 0, len; i < part->len; i += len) {
		len = (size_t)get_le64((const uint8_t *)part->data + i) + 16;
		if (len > part->len - i)
			return false;
		const uint8_t *found = memmem(data + at, size - at, part->data + i, len);
		if (!found)
			return false;
		at = (size_t)(found - data) + len;
	}
	return true;
}

static bool is_same(const struct buf *a, const struct buf *b)
{
	return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void check_scalars(const struct walked *walked)
{
	static const struct tfevents_ops ops = {NULL, NULL, on_plugin};
	AUTO(map_done) struct map others = {0};
	AUTO_BUF struct buf wanted = {0}, got = {0};

	/* What says first that a tag is no scalar may have been dropped. */
	read_events(&walked->rest, &ops, &others);
	read_scalars(&walked->rest, &others, &wanted);
	read_scalars(&walked->out, &others, &got);
	BUG_ON(!is_same(&wanted, &got));
}

static void check(const uint8_t *data, size_t size, size_t piece)
{
	AUTO(walked_done) struct walked one, cut, left;

	walk_all(&one, data, size, 1, size + 1);
	walk_all(&cut, data, size, piece, size + 1);
	walk_all(&left, data, size, piece, 16 + 3 * piece);
	BUG_ON(one.state == SCALARS_ONLY_OTHER || cut.state != one.state);
	BUG_ON(!is_same(&one.out, &cut.out));
	/* Behind what was passed over there may be no record: then it is not known why. */
	if (left.state == one.state)
		BUG_ON(!is_same(&one.out, &left.out));
	else
		BUG_ON(left.state != SCALARS_ONLY_OTHER || one.state != SCALARS_ONLY_BAD);
	BUG_ON(!is_part_of(&one.out, data, size));
	check_scalars(&one);
}

/* The input as the data of one event; and of several, each with its length before it. */
static void check_events(const uint8_t *data, size_t size, size_t piece)
{
	AUTO_BUF struct buf one, some;

	buf_init(&one, MAX);
	buf_init(&some, MAX);
	put_record(&one, data, size);
	check((const uint8_t *)one.data, one.len, piece);
	for (size_t at = 0; at < size;) {
		size_t len = data[at++];

		len = len < size - at ? len : size - at;
		put_record(&some, data + at, len);
		at += len;
	}
	if (some.len)
		check((const uint8_t *)some.data, some.len, piece);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t piece = size && data[0] ? data[0] : 1000;

	crc32c_init();
	if (size) {
		data++;
		size--;
	}
	check(data, size, piece);
	check_events(data, size, piece);
	return 0;
}

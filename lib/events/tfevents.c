/* SPDX-License-Identifier: Apache-2.0 */
#include "events/tfevents.h"

#include "base/util/buf.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/crc32c.h"
#include "events/protobuf.h"
#include "events/tfevent.h"
#include "events/tftensor.h"

enum { SESSION_STATUS = 1, SESSION_START = 1 };

/* Values in a map of tags. */
static char is_scalar, is_other;

struct tfevents {
	struct tfevents_spec spec;
	uint64_t offset;  /* in the file, of the record that comes next */
	uint64_t failed;  /* offset + 1 of one that was held and wrong */
	uint64_t to_skip; /* bytes of that record, a large one, that are still to come */
	struct buf held;  /* the start of it; may be empty */
	struct map tags;
	struct tfevents_counts counts;
};

struct tfevents *tfevents_new(const struct tfevents_spec *spec)
{
	struct tfevents *reader = mem_alloc(1, sizeof(*reader));

	crc32c_init();
	reader->spec = *spec;
	buf_init(&reader->held, spec->record_max + TFRECORD_HEADER + TFRECORD_TRAILER);
	return reader;
}

uint64_t tfevents_next(const struct tfevents *reader)
{
	return reader->offset + reader->held.len;
}

void tfevents_get_counts(const struct tfevents *reader, struct tfevents_counts *ret)
{
	*ret = reader->counts;
}

void tfevents_free(struct tfevents *reader)
{
	if (!reader)
		return;
	buf_done(&reader->held);
	map_done(&reader->tags);
	free(reader);
}

/*
 * Events
 */

/* The first metadata of a tag holds for all of its values. */
static void add_metadata(struct tfevents *reader, const char *tag, struct protobuf bytes)
{
	struct tfevent_metadata metadata;

	tfevent_metadata(bytes, &metadata);
	if (metadata.plugin[0] && reader->spec.ops->plugin)
		reader->spec.ops->plugin(reader->spec.ctx, tag, metadata.plugin, metadata.content.p,
			protobuf_len(&metadata.content));
	if ((!metadata.plugin[0] && !metadata.data_class) || map_get(&reader->tags, tag) ||
		reader->tags.n >= reader->spec.tags_max)
		return;
	map_put(&reader->tags, tag, tfevent_is_scalar(&metadata) ? &is_scalar : &is_other);
}

static void add_value(struct tfevents *reader, const struct tfevent *event, struct protobuf bytes)
{
	struct tfevent_value value;

	if (!tfevent_value(bytes, &value))
		return;
	if (value.metadata.p)
		add_metadata(reader, value.tag, value.metadata);
	bool found = value.has_simple;
	if (!found && value.has_tensor && map_get(&reader->tags, value.tag) == &is_scalar)
		found = tftensor_scalar(value.tensor, &value.simple);
	if (!found || !reader->spec.ops->scalar)
		return;
	const struct tfevents_scalar scalar = {
		.tag = value.tag,
		.value = value.simple,
		.step = event->step,
		.wall_time_s = event->wall_time_s,
	};
	reader->spec.ops->scalar(reader->spec.ctx, &scalar);
}

static void add_summary(struct tfevents *reader, const struct tfevent *event, struct protobuf bytes)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field))
		if (field.number == TFEVENT_SUMMARY_VALUE && field.wire == PB_BYTES)
			add_value(reader, event, field.sub);
}

static void add_session_log(
	struct tfevents *reader, const struct tfevent *event, struct protobuf bytes)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field))
		if (field.number == SESSION_STATUS && field.wire == PB_VARINT &&
			field.value == SESSION_START && reader->spec.ops->restart)
			reader->spec.ops->restart(reader->spec.ctx, event->step);
}

static void add_event(struct tfevents *reader, const uint8_t *data, size_t len)
{
	struct protobuf bytes = protobuf_of(data, len);
	struct tfevent event;
	struct protobuf_field field;

	reader->counts.records++;
	if (!tfevent_read(bytes, &event)) {
		reader->counts.malformed++;
		return;
	}
	while (protobuf_next(&bytes, &field)) {
		if (field.wire != PB_BYTES)
			continue;
		if (field.number == TFEVENT_SUMMARY)
			add_summary(reader, &event, field.sub);
		if (field.number == TFEVENT_SESSION_LOG)
			add_session_log(reader, &event, field.sub);
	}
}

/*
 * Records
 */

/* Read a whole record of len bytes of data at p. held: its parts were read at different times, and
 * the first ones may be out of date, once. */
static enum tfrecord_state read_record(
	struct tfevents *reader, const uint8_t *p, size_t len, bool held)
{
	enum tfrecord_state state = tfrecord_data(p, len);

	if (state == TFRECORD_OK) {
		add_event(reader, p + TFRECORD_HEADER, len);
	} else if (state == TFRECORD_UNFILLED || (held && reader->failed != reader->offset + 1)) {
		reader->failed = reader->offset + 1;
		return TFRECORD_UNFILLED;
	} else {
		reader->counts.skipped++;
	}
	reader->offset += TFRECORD_HEADER + len + TFRECORD_TRAILER;
	return TFRECORD_OK;
}

/* Hold more of the input, until there are wanted bytes; false: it has not so many. */
static bool hold(struct tfevents *reader, struct tfrecord_input *input, size_t wanted)
{
	size_t missing = wanted > reader->held.len ? wanted - reader->held.len : 0;
	size_t n = input->len < missing ? input->len : missing;

	buf_add(&reader->held, input->p, n);
	tfrecord_consume(input, n);
	return reader->held.len >= wanted;
}

static void begin_skip(struct tfevents *reader, uint64_t len, size_t n_read)
{
	reader->counts.skipped++;
	reader->offset += n_read;
	reader->to_skip = TFRECORD_HEADER + len + TFRECORD_TRAILER - n_read;
}

/* Go on with a record whose start is held. Returns OK also when the input is at its end. */
static enum tfrecord_state feed_held(struct tfevents *reader, struct tfrecord_input *input)
{
	uint64_t len;

	if (!hold(reader, input, TFRECORD_HEADER))
		return TFRECORD_OK;
	enum tfrecord_state state = tfrecord_header((const uint8_t *)reader->held.data, &len);
	if (state == TFRECORD_OK && len > reader->spec.record_max) {
		begin_skip(reader, len, reader->held.len);
	} else if (state == TFRECORD_OK) {
		if (!hold(reader, input, TFRECORD_HEADER + (size_t)len + TFRECORD_TRAILER))
			return TFRECORD_OK;
		state = read_record(reader, (const uint8_t *)reader->held.data, (size_t)len, true);
	} else {
		/* The half that was read before may be out of date. */
		state = TFRECORD_UNFILLED;
	}
	buf_reset(&reader->held);
	return state;
}

/* A record that begins in the input. */
static enum tfrecord_state feed_new(struct tfevents *reader, struct tfrecord_input *input)
{
	uint64_t len;

	if (input->len < TFRECORD_HEADER) {
		hold(reader, input, TFRECORD_HEADER);
		return TFRECORD_OK;
	}
	enum tfrecord_state state = tfrecord_header(input->p, &len);
	if (state != TFRECORD_OK)
		return state;
	if (len > reader->spec.record_max) {
		begin_skip(reader, len, TFRECORD_HEADER);
		tfrecord_consume(input, TFRECORD_HEADER);
		return TFRECORD_OK;
	}
	size_t size = TFRECORD_HEADER + (size_t)len + TFRECORD_TRAILER;
	if (input->len < size) {
		hold(reader, input, size);
		return TFRECORD_OK;
	}
	state = read_record(reader, input->p, (size_t)len, false);
	if (state == TFRECORD_OK)
		tfrecord_consume(input, size);
	return state;
}

enum tfrecord_state tfevents_feed(struct tfevents *reader, const void *data, size_t len)
{
	struct tfrecord_input input = {data, len};
	enum tfrecord_state state = TFRECORD_OK;

	while (state == TFRECORD_OK && input.len > 0) {
		if (reader->to_skip)
			reader->offset += tfrecord_skip(&input, &reader->to_skip);
		else if (reader->held.len)
			state = feed_held(reader, &input);
		else
			state = feed_new(reader, &input);
	}
	return state;
}

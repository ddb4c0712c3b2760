#include "events/tfevents.h"

#include "base/buf.h"
#include "base/enc.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "events/crc32c.h"
#include "events/protobuf.h"
#include "events/tftensor.h"

enum { HEADER_SIZE = 12, TRAILER_SIZE = 4, PLUGIN_NAME_MAX = 128 };

/* Field numbers of the messages. */
enum {
	EVENT_WALL_TIME = 1,
	EVENT_STEP = 2,
	EVENT_SUMMARY = 5,
	EVENT_SESSION_LOG = 7,
	SESSION_STATUS = 1,
	SESSION_START = 1,
	SUMMARY_VALUE = 1,
	VALUE_TAG = 1,
	VALUE_SIMPLE = 2,
	VALUE_TENSOR = 8,
	VALUE_METADATA = 9,
	METADATA_PLUGIN = 1,
	METADATA_CLASS = 4,
	CLASS_SCALAR = 1,
	PLUGIN_NAME = 1,
	PLUGIN_CONTENT = 2,
};

/* What a map of tags points to. */
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
	buf_init(&reader->held, spec->record_max + HEADER_SIZE + TRAILER_SIZE);
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

struct event {
	double wall_time_s;
	int64_t step;
};

struct value {
	char tag[TFEVENTS_TAG_MAX + 1];
	bool has_simple, has_tensor;
	double simple;
	struct protobuf tensor;
	struct protobuf metadata;
};

/* Text of a message as a string; false: empty, too long or no text. */
static bool copy_text(const struct protobuf *bytes, char *out, size_t max)
{
	size_t len = protobuf_len(bytes);

	if (len == 0 || len > max || memchr(bytes->p, 0, len) ||
		!str_is_utf8((const char *)bytes->p, len))
		return false;
	memcpy(out, bytes->p, len);
	out[len] = '\0';
	return true;
}

static void add_plugin(struct tfevents *reader, const char *tag, struct protobuf data, char *name)
{
	struct protobuf content = {0};
	struct protobuf_field field;

	while (protobuf_next(&data, &field)) {
		if (field.wire != PB_BYTES)
			continue;
		if (field.number == PLUGIN_NAME && !copy_text(&field.sub, name, PLUGIN_NAME_MAX))
			name[0] = '\0';
		if (field.number == PLUGIN_CONTENT)
			content = field.sub;
	}
	if (name[0] && reader->spec.ops->plugin)
		reader->spec.ops->plugin(
			reader->spec.ctx, tag, name, content.p, protobuf_len(&content));
}

/* The first metadata of a tag holds for all of its values. */
static void add_metadata(struct tfevents *reader, const char *tag, struct protobuf metadata)
{
	char plugin[PLUGIN_NAME_MAX + 1] = "";
	struct protobuf_field field;
	uint64_t data_class = 0;

	while (protobuf_next(&metadata, &field)) {
		if (field.number == METADATA_PLUGIN && field.wire == PB_BYTES)
			add_plugin(reader, tag, field.sub, plugin);
		if (field.number == METADATA_CLASS && field.wire == PB_VARINT)
			data_class = field.value;
	}
	if ((!plugin[0] && !data_class) || map_get(&reader->tags, tag) ||
		reader->tags.n >= reader->spec.tags_max)
		return;
	bool scalar = data_class == CLASS_SCALAR || str_eq(plugin, "scalars");
	map_put(&reader->tags, tag, scalar ? &is_scalar : &is_other);
}

static bool parse_value(struct protobuf bytes, struct value *ret)
{
	struct protobuf_field field;

	ret->tag[0] = '\0';
	ret->has_simple = ret->has_tensor = false;
	ret->metadata = (struct protobuf){0};
	while (protobuf_next(&bytes, &field)) {
		if (field.number == VALUE_TAG && field.wire == PB_BYTES) {
			if (!copy_text(&field.sub, ret->tag, TFEVENTS_TAG_MAX))
				return false;
		} else if (field.number == VALUE_SIMPLE && field.wire == PB_FIXED32) {
			ret->has_simple = true;
			ret->simple = protobuf_float(field.value);
		} else if (field.number == VALUE_TENSOR && field.wire == PB_BYTES) {
			ret->has_tensor = true;
			ret->tensor = field.sub;
		} else if (field.number == VALUE_METADATA && field.wire == PB_BYTES) {
			ret->metadata = field.sub;
		}
	}
	return !bytes.bad && ret->tag[0];
}

static void add_value(struct tfevents *reader, const struct event *event, struct protobuf bytes)
{
	struct value value;

	if (!parse_value(bytes, &value))
		return;
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

static void add_summary(struct tfevents *reader, const struct event *event, struct protobuf bytes)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field))
		if (field.number == SUMMARY_VALUE && field.wire == PB_BYTES)
			add_value(reader, event, field.sub);
}

static void add_session_log(
	struct tfevents *reader, const struct event *event, struct protobuf bytes)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field))
		if (field.number == SESSION_STATUS && field.wire == PB_VARINT &&
			field.value == SESSION_START && reader->spec.ops->restart)
			reader->spec.ops->restart(reader->spec.ctx, event->step);
}

/* Time and step may stand behind what they belong to. false: no event. */
static bool parse_event(struct protobuf bytes, struct event *ret)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field)) {
		if (field.number == EVENT_WALL_TIME && field.wire == PB_FIXED64)
			ret->wall_time_s = protobuf_double(field.value);
		if (field.number == EVENT_STEP && field.wire == PB_VARINT)
			ret->step = (int64_t)field.value;
	}
	return !bytes.bad;
}

static void add_event(struct tfevents *reader, const uint8_t *data, size_t len)
{
	struct protobuf bytes = protobuf_of(data, len);
	struct event event = {0};
	struct protobuf_field field;

	reader->counts.records++;
	if (!parse_event(bytes, &event)) {
		reader->counts.malformed++;
		return;
	}
	while (protobuf_next(&bytes, &field)) {
		if (field.wire != PB_BYTES)
			continue;
		if (field.number == EVENT_SUMMARY)
			add_summary(reader, &event, field.sub);
		if (field.number == EVENT_SESSION_LOG)
			add_session_log(reader, &event, field.sub);
	}
}

/*
 * Records
 */

static bool is_good(const uint8_t *data, size_t len, const uint8_t *sum)
{
	return get_le32(sum) == crc32c_masked(data, len);
}

/* The header at p. *ret_len: of the data. A sum of zeros has not been written yet: of zeros alone,
 * too, it would be another one. */
static enum tfevents_state read_header(const uint8_t *p, uint64_t *ret_len)
{
	*ret_len = get_le64(p);
	if (!is_good(p, 8, p + 8))
		return get_le32(p + 8) == 0 ? TFEVENTS_UNFILLED : TFEVENTS_BAD;
	return *ret_len > INT64_MAX / 2 ? TFEVENTS_BAD : TFEVENTS_OK;
}

/* One whole record of len bytes of data at p. held: its parts were read at different times, and the
 * first ones may be out of date, once. */
static enum tfevents_state read_record(
	struct tfevents *reader, const uint8_t *p, size_t len, bool held)
{
	const uint8_t *sum = p + HEADER_SIZE + len;

	if (is_good(p + HEADER_SIZE, len, sum)) {
		add_event(reader, p + HEADER_SIZE, len);
	} else if (get_le32(sum) == 0 || (held && reader->failed != reader->offset + 1)) {
		reader->failed = reader->offset + 1;
		return TFEVENTS_UNFILLED;
	} else {
		reader->counts.skipped++;
	}
	reader->offset += HEADER_SIZE + len + TRAILER_SIZE;
	return TFEVENTS_OK;
}

struct input {
	const uint8_t *p;
	size_t len;
};

static void consume(struct input *input, size_t n)
{
	input->p += n;
	input->len -= n;
}

static void skip_large(struct tfevents *reader, struct input *input)
{
	size_t n = input->len < reader->to_skip ? input->len : (size_t)reader->to_skip;

	reader->to_skip -= n;
	reader->offset += n;
	consume(input, n);
}

/* Hold more of the input, until there are wanted bytes; false: it has not so many. */
static bool hold(struct tfevents *reader, struct input *input, size_t wanted)
{
	size_t missing = wanted > reader->held.len ? wanted - reader->held.len : 0;
	size_t n = input->len < missing ? input->len : missing;

	buf_add(&reader->held, input->p, n);
	consume(input, n);
	return reader->held.len >= wanted;
}

static void begin_skip(struct tfevents *reader, uint64_t len, size_t n_read)
{
	reader->counts.skipped++;
	reader->offset += n_read;
	reader->to_skip = HEADER_SIZE + len + TRAILER_SIZE - n_read;
}

/* Go on with a record whose start is held. Returns OK also when the input is at its end. */
static enum tfevents_state feed_held(struct tfevents *reader, struct input *input)
{
	uint64_t len;

	if (!hold(reader, input, HEADER_SIZE))
		return TFEVENTS_OK;
	enum tfevents_state state = read_header((const uint8_t *)reader->held.data, &len);
	if (state == TFEVENTS_OK && len > reader->spec.record_max) {
		begin_skip(reader, len, reader->held.len);
	} else if (state == TFEVENTS_OK) {
		if (!hold(reader, input, HEADER_SIZE + (size_t)len + TRAILER_SIZE))
			return TFEVENTS_OK;
		state = read_record(reader, (const uint8_t *)reader->held.data, (size_t)len, true);
	} else {
		/* The half that was read before may be out of date. */
		state = TFEVENTS_UNFILLED;
	}
	buf_reset(&reader->held);
	return state;
}

/* A record that begins in the input. */
static enum tfevents_state feed_new(struct tfevents *reader, struct input *input)
{
	uint64_t len;

	if (input->len < HEADER_SIZE) {
		hold(reader, input, HEADER_SIZE);
		return TFEVENTS_OK;
	}
	enum tfevents_state state = read_header(input->p, &len);
	if (state != TFEVENTS_OK)
		return state;
	if (len > reader->spec.record_max) {
		begin_skip(reader, len, HEADER_SIZE);
		consume(input, HEADER_SIZE);
		return TFEVENTS_OK;
	}
	size_t size = HEADER_SIZE + (size_t)len + TRAILER_SIZE;
	if (input->len < size) {
		hold(reader, input, size);
		return TFEVENTS_OK;
	}
	state = read_record(reader, input->p, (size_t)len, false);
	if (state == TFEVENTS_OK)
		consume(input, size);
	return state;
}

enum tfevents_state tfevents_feed(struct tfevents *reader, const void *data, size_t len)
{
	struct input input = {data, len};
	enum tfevents_state state = TFEVENTS_OK;

	while (state == TFEVENTS_OK && input.len > 0) {
		if (reader->to_skip)
			skip_large(reader, &input);
		else if (reader->held.len)
			state = feed_held(reader, &input);
		else
			state = feed_new(reader, &input);
	}
	return state;
}

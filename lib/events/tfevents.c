/* SPDX-License-Identifier: Apache-2.0 */
#include "events/tfevents.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * Sums
 */

#define POLYNOMIAL 0x82f63b78u /* bits in reverse */

/* table[k][b]: what byte b does to the sum when k bytes follow it. */
static uint32_t table[8][256];

void crc32c_init(void)
{
	if (table[0][1])
		return;
	for (uint32_t b = 0; b < 256; b++) {
		uint32_t sum = b;
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? POLYNOMIAL : 0);
		table[0][b] = sum;
	}
	for (int k = 1; k < 8; k++)
		for (uint32_t b = 0; b < 256; b++)
			table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
}

uint32_t crc32c(const void *data, size_t len)
{
	const uint8_t *p = data;
	uint32_t sum = ~0u;

	for (; len >= 8; p += 8, len -= 8) {
		uint32_t low = get_le32(p) ^ sum;

		sum = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^
		      table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^ table[3][p[4]] ^
		      table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
	}
	for (; len > 0; p++, len--)
		sum = sum >> 8 ^ table[0][(sum ^ *p) & 0xff];
	return ~sum;
}

uint32_t crc32c_masked(const void *data, size_t len)
{
	uint32_t sum = crc32c(data, len);

	return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

/*
 * Records
 */

static bool tfevents_is_good(const uint8_t *data, size_t len, const uint8_t *sum)
{
	return get_le32(sum) == crc32c_masked(data, len);
}

/* A sum of zeros has not been written yet: of zeros alone, too, it would be another one. */
static enum tfrecord_state tfevents_state_of(const uint8_t *data, size_t len, const uint8_t *sum)
{
	if (tfevents_is_good(data, len, sum))
		return TFRECORD_OK;
	return get_le32(sum) == 0 ? TFRECORD_UNFILLED : TFRECORD_BAD;
}

enum tfrecord_state tfrecord_header(const uint8_t *p, uint64_t *ret_len)
{
	enum tfrecord_state state = tfevents_state_of(p, 8, p + 8);

	*ret_len = get_le64(p);
	return state == TFRECORD_OK && *ret_len > INT64_MAX / 2 ? TFRECORD_BAD : state;
}

enum tfrecord_state tfrecord_data(const uint8_t *p, size_t len)
{
	return tfevents_state_of(p + TFRECORD_HEADER, len, p + TFRECORD_HEADER + len);
}

/*
 * Fields of messages
 */

enum { VARINT_BYTES = 10, NUMBER_MAX = (1 << 29) - 1 };

static size_t protobuf_len(const struct protobuf *bytes)
{
	return (size_t)(bytes->end - bytes->p);
}

static double protobuf_double(uint64_t bits)
{
	double value;

	__builtin_memcpy(&value, &bits, sizeof(value));
	return value;
}

static double protobuf_float(uint64_t bits)
{
	uint32_t low = (uint32_t)bits;
	float value;

	__builtin_memcpy(&value, &low, sizeof(value));
	return (double)value;
}

bool protobuf_varint(struct protobuf *message, uint64_t *ret)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < VARINT_BYTES && message->p < message->end; i++) {
		uint8_t byte = *message->p++;

		value |= (uint64_t)(byte & 0x7f) << 7 * i;
		if (!(byte & 0x80)) {
			*ret = value;
			return true;
		}
	}
	message->bad = true;
	return false;
}

static bool tfevents_take(struct protobuf *message, uint64_t len, const uint8_t **ret)
{
	if (len > protobuf_len(message)) {
		message->bad = true;
		return false;
	}
	*ret = message->p;
	message->p += len;
	return true;
}

static bool read_content(struct protobuf *message, struct protobuf_field *field)
{
	const uint8_t *data;
	uint64_t len;

	switch (field->wire) {
	case PB_VARINT:
		return protobuf_varint(message, &field->value);
	case PB_FIXED64:
		if (!tfevents_take(message, 8, &data))
			return false;
		field->value = get_le64(data);
		return true;
	case PB_FIXED32:
		if (!tfevents_take(message, 4, &data))
			return false;
		field->value = get_le32(data);
		return true;
	case PB_BYTES:
		if (!protobuf_varint(message, &len) || !tfevents_take(message, len, &data))
			return false;
		field->sub = protobuf_of(data, (size_t)len);
		return true;
	default: /* groups are not used by what is read here */
		message->bad = true;
		return false;
	}
}

bool protobuf_next(struct protobuf *message, struct protobuf_field *ret)
{
	uint64_t key;

	if (message->bad || message->p == message->end || !protobuf_varint(message, &key))
		return false;
	if (key >> 3 == 0 || key >> 3 > NUMBER_MAX) {
		message->bad = true;
		return false;
	}
	*ret = (struct protobuf_field){
		.number = (uint32_t)(key >> 3), .wire = (enum protobuf_wire)(key & 7)};
	return read_content(message, ret);
}

/*
 * Tensors
 */

enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_CONTENT = 4, SHAPE_DIM = 2, DIM_SIZE = 1 };

enum kind { KIND_SIGNED, KIND_UNSIGNED, KIND_FLOAT, KIND_DOUBLE, KIND_HALF, KIND_BFLOAT };

struct dtype {
	unsigned number; /* tensorflow.DataType */
	unsigned field;  /* of TensorProto, where values stand unless in tensor_content */
	enum kind kind;
	unsigned size; /* in tensor_content, little endian */
};

static const struct dtype dtypes[] = {
	{1, 5, KIND_FLOAT, 4},
	{2, 6, KIND_DOUBLE, 8},
	{3, 7, KIND_SIGNED, 4},
	{4, 7, KIND_UNSIGNED, 1},
	{5, 7, KIND_SIGNED, 2},
	{6, 7, KIND_SIGNED, 1},
	{9, 10, KIND_SIGNED, 8},
	{10, 11, KIND_UNSIGNED, 1},
	{14, 13, KIND_BFLOAT, 2},
	{17, 7, KIND_UNSIGNED, 2},
	{19, 13, KIND_HALF, 2},
	{22, 16, KIND_UNSIGNED, 4},
	{23, 17, KIND_UNSIGNED, 8},
};

static const struct dtype *find_dtype(uint64_t number)
{
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		if (dtypes[i].number == number)
			return &dtypes[i];
	return NULL;
}

/* IEEE 754 binary16. */
static double from_half(unsigned bits)
{
	unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
	double value = fraction; /* in units of 2^-24 while the exponent is 0 or 1 */

	if (exponent == 31)
		value = fraction ? (double)NAN : (double)INFINITY;
	else if (exponent > 0)
		value = (double)((1024 + (uint64_t)fraction) << (exponent - 1));
	return (bits & 0x8000 ? -value : value) / (1 << 24);
}

static double from_bits(const struct dtype *dtype, uint64_t bits)
{
	unsigned unused = 64 - 8 * dtype->size;

	bits = bits << unused >> unused;
	switch (dtype->kind) {
	case KIND_SIGNED:
		return (double)((int64_t)(bits << unused) >> unused);
	case KIND_UNSIGNED:
		return (double)bits;
	case KIND_FLOAT:
		return protobuf_float(bits);
	case KIND_DOUBLE:
		return protobuf_double(bits);
	case KIND_HALF:
		return from_half((unsigned)bits);
	case KIND_BFLOAT:
		return protobuf_float(bits << 16);
	}
	return (double)NAN;
}

static uint64_t little_endian(const uint8_t *p, unsigned size)
{
	uint64_t bits = 0;

	for (unsigned i = 0; i < size; i++)
		bits |= (uint64_t)p[i] << 8 * i;
	return bits;
}

static bool has_one_element(struct protobuf shape)
{
	struct protobuf_field dim, size;

	while (protobuf_next(&shape, &dim)) {
		if (dim.number != SHAPE_DIM || dim.wire != PB_BYTES)
			continue;
		uint64_t n = 0;
		while (protobuf_next(&dim.sub, &size))
			if (size.number == DIM_SIZE && size.wire == PB_VARINT)
				n = size.value;
		if (n != 1)
			return false;
	}
	return !shape.bad;
}

/* A value of its own field: alone, or the first of packed ones. */
static bool field_bits(const struct dtype *dtype, struct protobuf_field *field, uint64_t *ret)
{
	unsigned size = dtype->kind == KIND_FLOAT ? 4 : 8;

	*ret = field->value;
	if (field->wire != PB_BYTES)
		return true;
	if (dtype->kind != KIND_FLOAT && dtype->kind != KIND_DOUBLE)
		return protobuf_varint(&field->sub, ret);
	if (protobuf_len(&field->sub) < size)
		return false;
	*ret = little_endian(field->sub.p, size);
	return true;
}

/* NULL: it has more than one element, or is no number. */
static const struct dtype *read_type(struct protobuf tensor)
{
	const struct dtype *dtype = NULL;
	struct protobuf_field field;

	while (protobuf_next(&tensor, &field)) {
		if (field.number == TENSOR_DTYPE && field.wire == PB_VARINT)
			dtype = find_dtype(field.value);
		if (field.number == TENSOR_SHAPE && field.wire == PB_BYTES &&
			!has_one_element(field.sub))
			return NULL;
	}
	return tensor.bad ? NULL : dtype;
}

static bool content_bits(
	const struct dtype *dtype, const struct protobuf_field *field, uint64_t *ret)
{
	if (field->wire != PB_BYTES || protobuf_len(&field->sub) != dtype->size)
		return false;
	*ret = little_endian(field->sub.p, dtype->size);
	return true;
}

bool tftensor_scalar(struct protobuf tensor, double *ret)
{
	const struct dtype *dtype = read_type(tensor);
	struct protobuf_field field;
	uint64_t bits;
	bool found = false;

	while (dtype && !found && protobuf_next(&tensor, &field)) {
		if (field.number == dtype->field)
			found = field_bits(dtype, &field, &bits);
		else if (field.number == TENSOR_CONTENT)
			found = content_bits(dtype, &field, &bits);
	}
	if (found)
		*ret = from_bits(dtype, bits);
	return found;
}

/*
 * Events
 */

enum {
	METADATA_PLUGIN = 1,
	METADATA_CLASS = 4,
	CLASS_SCALAR = 1,
	PLUGIN_NAME = 1,
	PLUGIN_CONTENT = 2,
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

/* Time and step may follow the fields that they belong to. */
bool tfevent_read(struct protobuf bytes, struct tfevent *ret)
{
	struct protobuf_field field;

	*ret = (struct tfevent){0};
	while (protobuf_next(&bytes, &field)) {
		if (field.number == TFEVENT_WALL_TIME && field.wire == PB_FIXED64)
			ret->wall_time_s = protobuf_double(field.value);
		if (field.number == TFEVENT_STEP && field.wire == PB_VARINT)
			ret->step = (int64_t)field.value;
	}
	return !bytes.bad;
}

bool tfevent_value(struct protobuf bytes, struct tfevent_value *ret)
{
	struct protobuf_field field;

	ret->tag[0] = '\0';
	ret->has_simple = ret->has_tensor = false;
	ret->metadata = (struct protobuf){0};
	while (protobuf_next(&bytes, &field)) {
		if (field.number == TFEVENT_VALUE_TAG && field.wire == PB_BYTES) {
			if (!copy_text(&field.sub, ret->tag, TFEVENT_TAG_MAX))
				return false;
		} else if (field.number == TFEVENT_VALUE_SIMPLE && field.wire == PB_FIXED32) {
			ret->has_simple = true;
			ret->simple = protobuf_float(field.value);
		} else if (field.number == TFEVENT_VALUE_TENSOR && field.wire == PB_BYTES) {
			ret->has_tensor = true;
			ret->tensor = field.sub;
		} else if (field.number == TFEVENT_VALUE_METADATA && field.wire == PB_BYTES) {
			ret->metadata = field.sub;
		}
	}
	return !bytes.bad && ret->tag[0];
}

static void read_plugin(struct protobuf bytes, struct tfevent_metadata *ret)
{
	struct protobuf_field field;

	ret->content = (struct protobuf){0};
	while (protobuf_next(&bytes, &field)) {
		if (field.wire != PB_BYTES)
			continue;
		if (field.number == PLUGIN_NAME &&
			!copy_text(&field.sub, ret->plugin, TFEVENT_PLUGIN_MAX))
			ret->plugin[0] = '\0';
		if (field.number == PLUGIN_CONTENT)
			ret->content = field.sub;
	}
}

void tfevent_metadata(struct protobuf bytes, struct tfevent_metadata *ret)
{
	struct protobuf_field field;

	*ret = (struct tfevent_metadata){0};
	while (protobuf_next(&bytes, &field)) {
		if (field.number == METADATA_PLUGIN && field.wire == PB_BYTES)
			read_plugin(field.sub, ret);
		if (field.number == METADATA_CLASS && field.wire == PB_VARINT)
			ret->data_class = field.value;
	}
}

bool tfevent_is_scalar(const struct tfevent_metadata *metadata)
{
	return metadata->data_class == CLASS_SCALAR || str_eq(metadata->plugin, "scalars");
}

/*
 * The reader of a file
 */

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

static void tfevents_add_value(
	struct tfevents *reader, const struct tfevent *event, struct protobuf bytes)
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

static void tfevents_add_summary(
	struct tfevents *reader, const struct tfevent *event, struct protobuf bytes)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field))
		if (field.number == TFEVENT_SUMMARY_VALUE && field.wire == PB_BYTES)
			tfevents_add_value(reader, event, field.sub);
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
			tfevents_add_summary(reader, &event, field.sub);
		if (field.number == TFEVENT_SESSION_LOG)
			add_session_log(reader, &event, field.sub);
	}
}

/*
 * Records
 */

/* Read a whole record of len bytes of data at p. held: its parts were read at different times, and
 * the first ones may be out of date, once. */
static enum tfrecord_state tfevents_read_record(
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
static bool tfevents_hold(struct tfevents *reader, struct tfrecord_input *input, size_t wanted)
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

	if (!tfevents_hold(reader, input, TFRECORD_HEADER))
		return TFRECORD_OK;
	enum tfrecord_state state = tfrecord_header((const uint8_t *)reader->held.data, &len);
	if (state == TFRECORD_OK && len > reader->spec.record_max) {
		begin_skip(reader, len, reader->held.len);
	} else if (state == TFRECORD_OK) {
		if (!tfevents_hold(reader, input, TFRECORD_HEADER + (size_t)len + TFRECORD_TRAILER))
			return TFRECORD_OK;
		state = tfevents_read_record(
			reader, (const uint8_t *)reader->held.data, (size_t)len, true);
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
		tfevents_hold(reader, input, TFRECORD_HEADER);
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
		tfevents_hold(reader, input, size);
		return TFRECORD_OK;
	}
	state = tfevents_read_record(reader, input->p, (size_t)len, false);
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

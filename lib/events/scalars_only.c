/* SPDX-License-Identifier: Apache-2.0 */
#include "events/scalars_only.h"

#include <stdlib.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/tfevents.h"

enum {
	SUM_SIZE = TFRECORD_TRAILER,
	PEEK_MAX = 1024,   /* bytes of the data of a large record that tell what it is */
	PIECE = 64 * 1024, /* of the input, at one time */
};

struct scalars_only {
	struct scalars_only_spec spec;
	struct scalars_place place;
	bool is_sum_next; /* what is next are the bytes before the place */
	bool is_sure;     /* the place is known to be one where a record ends */
	uint64_t to_skip;
	size_t needs;
	struct buf held; /* the start of what is next; may be empty */
	enum scalars_only_state state;
	struct scalars_only_passed passed;
};

struct scalars_only *scalars_only_new(const struct scalars_only_spec *spec)
{
	struct scalars_only *walk = mem_alloc(1, sizeof(*walk));

	crc32c_init();
	walk->spec = *spec;
	buf_init(&walk->held, spec->record_max + TFRECORD_HEADER + TFRECORD_TRAILER + PIECE);
	return walk;
}

void scalars_only_free(struct scalars_only *walk)
{
	if (!walk)
		return;
	buf_done(&walk->held);
	free(walk);
}

void scalars_only_begin(struct scalars_only *walk, const struct scalars_place *place)
{
	walk->place = *place;
	walk->is_sum_next = place->at > 0;
	walk->is_sure = place->at == 0 || place->has_sum;
	walk->to_skip = 0;
	walk->needs = 0;
	walk->state = SCALARS_ONLY_OK;
	walk->passed = (struct scalars_only_passed){0};
	buf_reset(&walk->held);
}

enum scalars_only_state scalars_only_state(const struct scalars_only *walk)
{
	return walk->state;
}

void scalars_only_place(const struct scalars_only *walk, struct scalars_place *ret)
{
	*ret = walk->place;
}

size_t scalars_only_needs(const struct scalars_only *walk)
{
	return walk->needs;
}

void scalars_only_passed(const struct scalars_only *walk, struct scalars_only_passed *ret)
{
	*ret = walk->passed;
}

/*
 * Records that are kept
 */

static bool is_kept_metadata(struct protobuf bytes)
{
	static const char *const plugins[] = {"scalars", "hparams", "custom_scalars"};
	struct tfevent_metadata metadata;

	tfevent_metadata(bytes, &metadata);
	if (tfevent_is_scalar(&metadata))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(plugins); i++)
		if (str_eq(metadata.plugin, plugins[i]))
			return true;
	/* A data class without a plugin says that tensors of the tag are not scalars. */
	return !metadata.plugin[0] && metadata.data_class;
}

/* Of a tensor with one element nobody knows here what the first value of its tag has said. */
static bool is_kept_value(struct protobuf bytes)
{
	struct tfevent_value value;

	if (!tfevent_value(bytes, &value))
		return false;
	if (value.has_simple || (value.metadata.p && is_kept_metadata(value.metadata)))
		return true;
	return value.has_tensor && tftensor_scalar(value.tensor, &value.simple);
}

static bool is_kept_summary(struct protobuf bytes)
{
	struct protobuf_field field;

	while (protobuf_next(&bytes, &field))
		if (field.number == TFEVENT_SUMMARY_VALUE && field.wire == PB_BYTES &&
			is_kept_value(field.sub))
			return true;
	return false;
}

static bool scalars_only_is_kept(const uint8_t *data, size_t len)
{
	struct protobuf bytes = protobuf_of(data, len);
	struct tfevent event;
	struct protobuf_field field;

	if (!tfevent_read(bytes, &event))
		return false;
	while (protobuf_next(&bytes, &field)) {
		if (field.wire != PB_BYTES)
			continue;
		if (field.number == TFEVENT_FILE_VERSION || field.number == TFEVENT_SESSION_LOG)
			return true;
		if (field.number == TFEVENT_SUMMARY && is_kept_summary(field.sub))
			return true;
	}
	return false;
}

/*
 * Records that are passed over, by the beginning of their data
 */

/* The start of a message of len bytes. */
struct start {
	struct protobuf bytes;
	uint64_t len;
};

#define FIELD(n) (UINT32_C(1) << (n))

/* Goes into the field that does not end in the start. may_precede: fields that may stand before;
 * is_last: nothing may stand behind. Returns its number; 0: there is none such. */
static uint32_t scalars_only_enter(struct start *start, uint32_t may_precede, bool is_last)
{
	const uint8_t *begin = start->bytes.p;
	struct protobuf at = start->bytes;
	struct protobuf_field field;
	uint64_t key, len;

	while (protobuf_next(&at, &field)) {
		if (field.number >= 32 || !(FIELD(field.number) & may_precede))
			return 0;
		start->bytes = at;
	}
	at = start->bytes;
	if (!protobuf_varint(&at, &key) || (key & 7) != PB_BYTES || key >> 3 >= 32 ||
		!protobuf_varint(&at, &len))
		return 0;
	uint64_t rest = start->len - (uint64_t)(at.p - begin);
	*start = (struct start){.bytes = at, .len = len};
	return len == rest || (len < rest && !is_last) ? (uint32_t)(key >> 3) : 0;
}

/* Whether it is one thing that no curve is made of. Metadata may follow a value's content. */
static bool is_one_thing(const uint8_t *data, size_t n, uint64_t len, size_t large_min)
{
	enum {
		THINGS = FIELD(TFEVENT_GRAPH) | FIELD(TFEVENT_RUN_METADATA) |
			 FIELD(TFEVENT_META_GRAPH),
		CONTENTS = FIELD(TFEVENT_VALUE_IMAGE) | FIELD(TFEVENT_VALUE_HISTOGRAM) |
			   FIELD(TFEVENT_VALUE_AUDIO) | FIELD(TFEVENT_VALUE_TENSOR),
	};
	struct start start = {.bytes = protobuf_of(data, n), .len = len};
	uint32_t number =
		scalars_only_enter(&start, FIELD(TFEVENT_WALL_TIME) | FIELD(TFEVENT_STEP), true);

	if (number != TFEVENT_SUMMARY)
		return FIELD(number) & THINGS;
	if (scalars_only_enter(&start, 0, true) != TFEVENT_SUMMARY_VALUE)
		return false;
	number = scalars_only_enter(&start, FIELD(TFEVENT_VALUE_TAG), false);
	return (FIELD(number) & CONTENTS) && start.len > large_min / 2;
}

/*
 * Records
 */

/* false, as below: nothing more can be taken now. */
static bool take_sum(struct scalars_only *walk, struct tfrecord_input *input)
{
	if (input->len < SUM_SIZE)
		return false;
	uint32_t sum = get_le32(input->p);
	if (walk->place.has_sum && walk->place.sum != sum) {
		walk->state = SCALARS_ONLY_OTHER;
		return false;
	}
	walk->place.sum = sum;
	walk->place.has_sum = true;
	walk->is_sum_next = false;
	tfrecord_consume(input, SUM_SIZE);
	return true;
}

/* Pass over a record that will not come whole. Its last bytes are those before the next place. */
static void pass_over(struct scalars_only *walk, uint64_t size)
{
	walk->passed.records++;
	walk->passed.bytes += size;
	walk->place = (struct scalars_place){.at = walk->place.at + size};
	walk->to_skip = size - SUM_SIZE;
	walk->is_sum_next = true;
	walk->needs = 0;
}

/* Whether the record is passed over; *ret_needs: of its bytes to know that. */
static bool scalars_only_is_passed_over(const struct scalars_only *walk,
	const struct tfrecord_input *input, uint64_t len, size_t *ret_needs)
{
	size_t peek = walk->spec.large_min < PEEK_MAX ? walk->spec.large_min : PEEK_MAX;

	*ret_needs = TFRECORD_HEADER + peek;
	if (len > walk->spec.record_max)
		return true;
	if (len <= walk->spec.large_min || input->len < *ret_needs)
		return false;
	return is_one_thing(input->p + TFRECORD_HEADER, peek, len, walk->spec.large_min);
}

/* A header behind what was passed over may be no header because the file is another one now. */
static void fail_header(struct scalars_only *walk, enum tfrecord_state state)
{
	if (state == TFRECORD_UNFILLED)
		walk->state = SCALARS_ONLY_UNFILLED;
	else
		walk->state = walk->is_sure ? SCALARS_ONLY_BAD : SCALARS_ONLY_OTHER;
}

/* A whole record of len bytes of data. */
static bool take_whole(
	struct scalars_only *walk, struct tfrecord_input *input, size_t len, struct buf *out)
{
	size_t size = TFRECORD_HEADER + len + TFRECORD_TRAILER;
	enum tfrecord_state state = tfrecord_data(input->p, len);

	if (state == TFRECORD_UNFILLED) {
		walk->state = SCALARS_ONLY_UNFILLED;
		return false;
	}
	if (state == TFRECORD_OK && scalars_only_is_kept(input->p + TFRECORD_HEADER, len))
		buf_add(out, input->p, size);
	walk->place.at += size;
	walk->place.sum = get_le32(input->p + size - SUM_SIZE);
	walk->place.has_sum = true;
	walk->needs = 0;
	tfrecord_consume(input, size);
	return true;
}

static bool scalars_only_take_record(
	struct scalars_only *walk, struct tfrecord_input *input, struct buf *out)
{
	size_t needs;
	uint64_t len;

	walk->needs = TFRECORD_HEADER;
	if (input->len < TFRECORD_HEADER)
		return false;
	enum tfrecord_state state = tfrecord_header(input->p, &len);
	if (state != TFRECORD_OK) {
		fail_header(walk, state);
		return false;
	}
	walk->is_sure = true;
	uint64_t size = TFRECORD_HEADER + len + TFRECORD_TRAILER;
	if (scalars_only_is_passed_over(walk, input, len, &needs)) {
		pass_over(walk, size);
		return true;
	}
	/* A large record is needed only as far as its type can be told. */
	walk->needs = len > walk->spec.large_min && input->len < needs ? needs : (size_t)size;
	return input->len >= walk->needs && take_whole(walk, input, (size_t)len, out);
}

static bool scalars_only_take(
	struct scalars_only *walk, struct tfrecord_input *input, struct buf *out)
{
	if (input->len == 0)
		return false;
	if (walk->to_skip) {
		tfrecord_skip(input, &walk->to_skip);
		return true;
	}
	return walk->is_sum_next ? take_sum(walk, input)
				 : scalars_only_take_record(walk, input, out);
}

static void feed_piece(struct scalars_only *walk, struct tfrecord_input input, struct buf *out)
{
	struct buf *held = &walk->held;
	bool was_held = held->len > 0;

	if (was_held) {
		buf_add(held, input.p, input.len);
		input = (struct tfrecord_input){(const uint8_t *)held->data, held->len};
	}
	while (walk->state == SCALARS_ONLY_OK && scalars_only_take(walk, &input, out))
		;
	if (walk->state != SCALARS_ONLY_OK)
		buf_reset(held);
	else if (was_held)
		buf_consume(held, held->len - input.len);
	else
		buf_add(held, input.p, input.len);
}

enum scalars_only_state scalars_only_feed(
	struct scalars_only *walk, const void *data, size_t len, struct buf *out)
{
	const uint8_t *p = data;

	for (size_t n; len > 0 && walk->state == SCALARS_ONLY_OK; p += n, len -= n) {
		n = len < PIECE ? len : PIECE;
		feed_piece(walk, (struct tfrecord_input){p, n}, out);
	}
	return walk->state;
}

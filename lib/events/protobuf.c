/* SPDX-License-Identifier: Apache-2.0 */
#include "events/protobuf.h"

#include "base/util/enc.h"

enum { VARINT_BYTES = 10, NUMBER_MAX = (1 << 29) - 1 };

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

static bool take(struct protobuf *message, uint64_t len, const uint8_t **ret)
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
		if (!take(message, 8, &data))
			return false;
		field->value = get_le64(data);
		return true;
	case PB_FIXED32:
		if (!take(message, 4, &data))
			return false;
		field->value = get_le32(data);
		return true;
	case PB_BYTES:
		if (!protobuf_varint(message, &len) || !take(message, len, &data))
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "events/tfevent.h"

#include <string.h>

#include "base/util/str.h"

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

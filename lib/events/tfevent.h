/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of event files: tensorboard.Event and what scalars need of those in it (tensorflow:
 * core/util/event.proto, core/framework/summary.proto). Over bytes in memory; nothing is copied but
 * names.
 */
#ifndef DLRUN_EVENTS_TFEVENT_H
#define DLRUN_EVENTS_TFEVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "events/protobuf.h"

enum { TFEVENT_TAG_MAX = 512, TFEVENT_PLUGIN_MAX = 128 };

/* Field numbers of the messages. */
enum {
	TFEVENT_WALL_TIME = 1,
	TFEVENT_STEP = 2,
	TFEVENT_FILE_VERSION = 3,
	TFEVENT_GRAPH = 4,
	TFEVENT_SUMMARY = 5,
	TFEVENT_SESSION_LOG = 7,
	TFEVENT_RUN_METADATA = 8,
	TFEVENT_META_GRAPH = 9,
	TFEVENT_SUMMARY_VALUE = 1,
	TFEVENT_VALUE_TAG = 1,
	TFEVENT_VALUE_SIMPLE = 2,
	TFEVENT_VALUE_IMAGE = 4,
	TFEVENT_VALUE_HISTOGRAM = 5,
	TFEVENT_VALUE_AUDIO = 6,
	TFEVENT_VALUE_TENSOR = 8,
	TFEVENT_VALUE_METADATA = 9,
};

struct tfevent {
	double wall_time_s;
	int64_t step;
};

/* Summary.Value */
struct tfevent_value {
	char tag[TFEVENT_TAG_MAX + 1];
	bool has_simple, has_tensor;
	double simple;
	struct protobuf tensor, metadata;
};

/* SummaryMetadata */
struct tfevent_metadata {
	char plugin[TFEVENT_PLUGIN_MAX + 1]; /* "": none, or no name */
	struct protobuf content;             /* of the plugin */
	uint64_t data_class;                 /* 0: not said */
};

/* false: the bytes are no event. */
bool tfevent_read(struct protobuf bytes, struct tfevent *ret);
/* false: it is none, or has no tag of UTF-8 and TFEVENT_TAG_MAX bytes at most. */
bool tfevent_value(struct protobuf bytes, struct tfevent_value *ret);
void tfevent_metadata(struct protobuf bytes, struct tfevent_metadata *ret);
/* Whether tensors of the tag are scalars. */
bool tfevent_is_scalar(const struct tfevent_metadata *metadata);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorBoard event files: bytes in memory in, scalars out; nothing is copied but names.
 *
 * A file is a row of records (below). The data of each is a protobuf message
 * tensorboard.Event (tensorflow: core/util/event.proto, core/framework/summary.proto,
 * tensor.proto). Taken are scalars in both of their forms: simple_value, and a tensor with one
 * element of a tag whose metadata, which only its first value has, names the plugin "scalars" or
 * the data class scalar.
 *
 * A file that grows is read by feeding what is new. A record that is not there as a whole waits;
 * one that some file systems show as zeros until its bytes arrive is read again later.
 */
#ifndef DLRUN_EVENTS_TFEVENTS_H
#define DLRUN_EVENTS_TFEVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"

/*
 * CRC-32C (Castagnoli; RFC 3720, appendix B.4), and the masked form of it that TFRecord files hold.
 */

/* Call it once before the others: it fills their table. More often does no harm. */
void crc32c_init(void);
uint32_t crc32c(const void *data, size_t len);
/* Turned right by 15 bits, and 0xa282ead8 added: so that a sum over data with sums in it is none
 * of them. */
uint32_t crc32c_masked(const void *data, size_t len);

/*
 * The frame of a record in TFRecord files (tensorflow: core/lib/io/record_writer.h): length u64le,
 * masked CRC-32C of these 8 bytes u32le, data, masked CRC-32C of the data u32le. Call crc32c_init
 * before.
 */

enum { TFRECORD_HEADER = 12, TFRECORD_TRAILER = 4 };

enum tfrecord_state {
	TFRECORD_OK,
	/* The record is not written yet though the file has bytes there: some file systems show
	 * zeros until the bytes arrive. Read again when some time has passed or the file has
	 * changed. */
	TFRECORD_UNFILLED,
	/* No record is there: the file is damaged, or is not a file of records. */
	TFRECORD_BAD,
};

/* The header at p. *ret_len: of the data; only with OK, and then no overflow of what is around it
 * or of places in files. */
enum tfrecord_state tfrecord_header(const uint8_t *p, uint64_t *ret_len);
/* Whether the data, of len bytes, of the whole record at p is what its sum says. */
enum tfrecord_state tfrecord_data(const uint8_t *p, size_t len);

/* Rest of a piece of a file. */
struct tfrecord_input {
	const uint8_t *p;
	size_t len;
};

static inline void tfrecord_consume(struct tfrecord_input *input, size_t n)
{
	input->p += n;
	input->len -= n;
}

/* Of *to_skip bytes what is here, taken off it. Returns how many these are. */
static inline size_t tfrecord_skip(struct tfrecord_input *input, uint64_t *to_skip)
{
	size_t n = input->len < *to_skip ? input->len : (size_t)*to_skip;

	*to_skip -= n;
	tfrecord_consume(input, n);
	return n;
}

/*
 * Reading protobuf messages field by field (Protocol Buffers documentation, "Encoding").
 */

enum protobuf_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

struct protobuf {
	const uint8_t *p, *end;
	bool bad; /* what follows is no field */
};

struct protobuf_field {
	uint32_t number;
	enum protobuf_wire wire;
	uint64_t value;      /* of numbers, as bits */
	struct protobuf sub; /* of bytes */
};

static inline struct protobuf protobuf_of(const void *data, size_t len)
{
	return (struct protobuf){data, (const uint8_t *)data + len, false};
}

/* false at the end, or where message->bad. */
bool protobuf_next(struct protobuf *message, struct protobuf_field *ret);
/* A bare varint, as packed fields have them. */
bool protobuf_varint(struct protobuf *message, uint64_t *ret);

/*
 * Messages of event files: tensorboard.Event and what scalars need of those in it (tensorflow:
 * core/util/event.proto, core/framework/summary.proto).
 */

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

/* The one element of a small tensorflow.TensorProto (core/framework/tensor.proto). false: it has
 * not exactly one, or one that is no number. */
bool tftensor_scalar(struct protobuf tensor, double *ret);

/*
 * The reader of a file
 */

struct tfevents_scalar {
	const char *tag; /* UTF-8, 1 to TFEVENT_TAG_MAX bytes */
	double value;    /* may be NaN or infinite */
	int64_t step;
	double wall_time_s; /* since 1970; may be NaN */
};

/* Callbacks that are not wanted are NULL. Pointers are valid during the call only. */
struct tfevents_ops {
	void (*scalar)(void *ctx, const struct tfevents_scalar *scalar);
	/* The program went on from an earlier state: its values at this step and later are void.
	 * (Writers that do not say so are seen by a step that falls.) */
	void (*restart)(void *ctx, int64_t step);
	/* Content of a plugin, hparams for one. */
	void (*plugin)(
		void *ctx, const char *tag, const char *plugin, const void *content, size_t len);
};

struct tfevents_spec {
	const struct tfevents_ops *ops;
	void *ctx;
	size_t record_max; /* larger ones, of images and graphs, are passed over */
	size_t tags_max;   /* with metadata; those of later ones is not kept */
};

struct tfevents;
struct tfevents *tfevents_new(const struct tfevents_spec *spec);
/* The bytes of the file from tfevents_next on. What follows a record that is not OK is dropped;
 * feeding again from tfevents_next does no harm. */
enum tfrecord_state tfevents_feed(struct tfevents *reader, const void *data, size_t len);
/* The place in the file of the byte that is wanted next. */
uint64_t tfevents_next(const struct tfevents *reader);
/* Records that were read; passed over for their size or a wrong sum of their data; and those whose
 * data was no event. */
struct tfevents_counts {
	uint64_t records, skipped, malformed;
};
void tfevents_get_counts(const struct tfevents *reader, struct tfevents_counts *ret);
void tfevents_free(struct tfevents *reader);
AUTO_POINTER(struct tfevents, tfevents_free)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorBoard event files: an engine, bytes in, scalars out.
 *
 * A file is a row of records (tfrecord.h). The data of each is a protobuf message
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

#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "events/tfevent.h"
#include "events/tfrecord.h"

enum { TFEVENTS_TAG_MAX = TFEVENT_TAG_MAX };

struct tfevents_scalar {
	const char *tag; /* UTF-8, 1 to TFEVENTS_TAG_MAX bytes */
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

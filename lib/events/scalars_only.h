/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of an event file (tfevents.h) the records that curves need, byte for byte: an engine, the
 * file's bytes in, these records out. They make an event file of their own, in which a reader finds
 * the same scalars.
 *
 * Kept are events that hold the file's version, a scalar in one of its forms, what says that a tag
 * is one, hyperparameters, or a restart. Anything else is dropped: images, audio, graphs,
 * histograms, text. Dropped, too, is a record with a wrong sum of its data.
 *
 * A record of more than large_min bytes of which the beginning tells that it is one single graph,
 * image, audio, histogram or tensor is passed over, and so is each of more than record_max: its
 * bytes need not come, the place moves behind it at once, even beyond what the file has yet.
 * Others are wanted whole (one event may hold an image and scalars).
 *
 * A place is remembered with the last four bytes before it, the sum of the data of a record: by
 * these a file is known again. They come first, and are learned where a record was passed over.
 */
#ifndef DLRUN_EVENTS_SCALARS_ONLY_H
#define DLRUN_EVENTS_SCALARS_ONLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"

struct scalars_only_spec {
	size_t large_min, record_max;
};

/* In the file; zero: its begin. */
struct scalars_place {
	uint64_t at; /* where a record ends */
	uint32_t sum;
	bool has_sum;
};

enum scalars_only_state {
	SCALARS_ONLY_OK,
	/* As TFRECORD_UNFILLED and TFRECORD_BAD, at the place: go on there later. */
	SCALARS_ONLY_UNFILLED,
	SCALARS_ONLY_BAD,
	/* The bytes there do not belong to the place. */
	SCALARS_ONLY_OTHER,
};

/* Of the records since begin that were passed over. */
struct scalars_only_passed {
	uint64_t records, bytes;
};

struct scalars_only;
struct scalars_only *scalars_only_new(const struct scalars_only_spec *spec);
void scalars_only_free(struct scalars_only *walk);
AUTO_POINTER(struct scalars_only, scalars_only_free)

/* The first byte that is wanted of a file to go on at place. */
static inline uint64_t scalars_only_from(const struct scalars_place *place)
{
	return place->at > 0 ? place->at - 4 : 0;
}

/* The bytes come from scalars_only_from(place) on. */
void scalars_only_begin(struct scalars_only *walk, const struct scalars_place *place);
/* Adds what is kept, whole records, to out: len + record_max + 16 bytes at most. What follows a
 * state that is not OK is dropped. */
enum scalars_only_state scalars_only_feed(
	struct scalars_only *walk, const void *data, size_t len, struct buf *out);
/* State that the last feed returned; OK before the first one. */
enum scalars_only_state scalars_only_state(const struct scalars_only *walk);
/* Place behind what out has got: to go on there with another begin. */
void scalars_only_place(const struct scalars_only *walk, struct scalars_place *ret);
/* How many bytes from the place on have to come in one go, as far as that is known now: more than
 * came since it. 0: nothing was begun. */
size_t scalars_only_needs(const struct scalars_only *walk);
void scalars_only_passed(const struct scalars_only *walk, struct scalars_only_passed *ret);

#endif

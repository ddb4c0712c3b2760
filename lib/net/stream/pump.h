/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves bytes between two streams, both ways, until both have ended: what one side sends the other
 * one gets, in order, and the end of each direction by itself (half-close). What cannot be written
 * is not read: PUMP_BUFFER_SIZE for each direction, and only while it holds something.
 */
#ifndef DLRUN_NET_STREAM_PUMP_H
#define DLRUN_NET_STREAM_PUMP_H

#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "net/stream/stream.h"

enum { PUMP_BUFFER_SIZE = 128 << 10 };

struct pump_end {
	uint64_t bytes_ab, bytes_ba; /* written to the other side */
	/* Set when a side failed before both ends had come; the other side then sees no orderly
	 * end, if its transport can tell (stream_reset). What had been read was written first. */
	struct err error;
	char faulty; /* 'a' or 'b': that side; 0 without an error */
};

struct pump_options {
	struct loop *loop;
	struct stream *a, *b; /* taken over, freed before done */
	/* From the loop, once; end is the pump's. A negative return ends loop_run. */
	int (*done)(void *ctx, struct pump_end *end, struct err *err);
	void *ctx;
};

struct pump;
struct pump *pump_start(const struct pump_options *options);
/* Give up; no done. Both sides are reset. NULL is accepted. */
void pump_cancel(struct pump *pump);
/* Bytes written so far. */
void pump_count(const struct pump *pump, uint64_t *ret_ab, uint64_t *ret_ba);
/* A stream without a descriptor (fd -1), which is one of several on one connection, can go on: it
 * has something to read, an end, or room. Cheap; the work is done from the loop. */
void pump_wake(struct pump *pump);

#endif

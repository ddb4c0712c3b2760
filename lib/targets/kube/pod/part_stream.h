/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of files from elsewhere, one after the other, as the commands of pod_copy_words.h send
 * them. An engine: bytes are put in. Each part is one of
 *
 *	"part OFFSET LENGTH\n", LENGTH bytes, "size SIZE\n"    SIZE: of the file, afterwards. What
 *	                                                       was not there any more is zeros
 *	"gone\n"                                               it is no file that can be read
 */
#ifndef DLRUN_TARGETS_KUBE_POD_PART_STREAM_H
#define DLRUN_TARGETS_KUBE_POD_PART_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"

/* A negative return ends the reading with err. */
struct part_events {
	int (*begin)(void *ctx, uint64_t offset, uint64_t len, struct err *err);
	int (*data)(void *ctx, const void *data, size_t len, struct err *err);
	int (*end)(void *ctx, uint64_t size, struct err *err);
	int (*gone)(void *ctx, struct err *err);
	void *ctx;
};

struct part_stream;
struct part_stream *part_stream_new(const struct part_events *events);
void part_stream_free(struct part_stream *stream);
AUTO_POINTER(struct part_stream, part_stream_free)
/* E_DATA: something else. */
int part_stream_add(struct part_stream *stream, const char *data, size_t len, struct err *err);
/* Nothing more comes. E_DATA in the middle of a part. */
int part_stream_finish(const struct part_stream *stream, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of one of several ranks, handed over in whole lines, so that lines of different ranks
 * do not mix. A line that does not end is handed over without its end when it is long, or after
 * about a second. An engine.
 */
#ifndef DLRUN_CORE_TARGET_RANK_LINE_H
#define DLRUN_CORE_TARGET_RANK_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"

/* time_ms: when the bytes came, or the first of a line that had not ended. < 0 ends the reading. */
typedef int rank_line_fn(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err);

struct rank_line {
	struct buf line; /* that has not ended */
	int64_t time_ms, since_ms;
	rank_line_fn *hand_over;
	void *ctx;
};

/* How often rank_line_flush_late is to be called. */
enum { RANK_LINE_TURN_MS = 500 };

void rank_line_init(struct rank_line *line, rank_line_fn *hand_over, void *ctx);
void rank_line_done(struct rank_line *line);
/* Bytes of any length, as they come. */
int rank_line_add(
	struct rank_line *line, const char *data, size_t len, int64_t time_ms, struct err *err);
/* At the end, and of a line that has not ended for long. */
int rank_line_flush(struct rank_line *line, struct err *err);
int rank_line_flush_late(struct rank_line *line, struct err *err);

#endif

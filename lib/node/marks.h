/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When pieces of a log arrived (at a time the log had so many bytes): an engine. Of
 * more marks than NODE_MARKS_MAX ahead of the log every second one is forgotten.
 */
#ifndef DLRUN_NODE_MARKS_H
#define DLRUN_NODE_MARKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/vec.h"

enum { NODE_MARKS_MAX = 64 << 10 };

struct node_log_mark {
	int64_t time_ms;
	uint64_t bytes;
};
struct node_marks {
	struct VEC_OF(struct node_log_mark) v;
	size_t at; /* of the first that counts still */
	struct node_log_mark last;
};
void node_marks_done(struct node_marks *marks);
/* Numbers that go down are raised to the one before. */
void node_marks_add(struct node_marks *marks, int64_t time_ms, uint64_t bytes);
/* How many of len bytes from offset on arrived at one time, and that; 0: not known (all of len). */
size_t node_marks_piece(
	struct node_marks *marks, uint64_t offset, size_t len, int64_t *ret_time_ms);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why many runs are in their states: runs with the same cause are counted together.
 */
#ifndef DLRUN_APP_LIFECYCLE_CAUSES_H
#define DLRUN_APP_LIFECYCLE_CAUSES_H

#include <stdbool.h>

#include "base/util/buf.h"
#include "core/context/session.h"
#include "core/record/run.h"

struct cause {
	enum run_state state;
	char *text;           /* of the first run; NULL: the state says it */
	char *key;            /* text without its numbers, or text */
	struct run_list runs; /* borrowed */
};
struct causes VEC_OF(struct cause);
void causes_done(struct causes *causes);
#define AUTO_CAUSES AUTO(causes_done)

/* Count a run. Causes that differ in numbers only are the same, unless is_exact. text may be
 * NULL. */
void causes_add(struct causes *causes, struct run *run, const char *text, bool is_exact);
/* Sort by state, ends first, then by how many runs there are. */
void causes_sort(struct causes *causes);
/* "2 failed: CUDA out of memory (tiger-3, tiger-9)" */
void cause_text(const struct cause *cause, struct buf *out);
/* All of them with commas between. */
void causes_text(const struct causes *causes, struct buf *out);

/* The causes of all runs, sorted. Reads the ends of logs of failed runs, many at once; what cannot
 * be read is told by the exit. Blocks. */
void runs_causes(struct session *session, const struct run_list *runs, struct causes *ret);

#endif

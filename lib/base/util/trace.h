/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace for debugging (DLRUN_TRACE): a line for each thing that a category does, with the
 * milliseconds since the start. Off, a trace point costs one branch; on, it blocks for the write.
 * From any thread; a child that was forked goes on with it.
 *
 * A line holds no secrets: trace points pass none, and in the finished message the values of
 * Authorization and Cookie headers, bearer tokens, and user information and queries of URLs are
 * replaced. Controls are escaped (term.h), and what is longer than TRACE_LINE_MAX is cut.
 */
#ifndef DLRUN_BASE_UTIL_TRACE_H
#define DLRUN_BASE_UTIL_TRACE_H

#include <stdbool.h>

#include "base/util/err.h"

enum { TRACE_LINE_MAX = 1024 };

enum trace_category {
	TRACE_HTTP,
	TRACE_KUBE,
	TRACE_SSH,
	TRACE_OCI,
	TRACE_LOOP,
	TRACE_STORE,
};

/* A bit for each category that is on; only trace.c writes it. */
extern unsigned trace_mask;

/* setting: "CATEGORY,…[:FILE]", "all" for every category; NULL or "": off. Without FILE lines go to
 * stderr. E_USAGE names an unknown category, E_IO says why FILE cannot be appended to; then nothing
 * is traced. FILE is created for its owner only. */
int trace_start(const char *setting, struct err *err);
void trace_stop(void);

static inline bool trace_is_on(enum trace_category category)
{
	return (trace_mask & 1U << category) != 0;
}

void trace_write(enum trace_category category, const char *fmt, ...) ERR_PRINTF(2, 3);
/* The arguments are evaluated only where the category is on. */
#define trace_note(category, ...)                                                                  \
	do {                                                                                       \
		if (trace_is_on(category))                                                         \
			trace_write(category, __VA_ARGS__);                                        \
	} while (0)

#endif

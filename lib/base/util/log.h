/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes shown by -v, for debugging. The library does not decide where they go; without a sink they
 * cost one branch.
 */
#ifndef DLRUN_BASE_UTIL_LOG_H
#define DLRUN_BASE_UTIL_LOG_H

#include <stdbool.h>

typedef void log_sink_fn(void *ctx, const char *line);

void log_set_sink(log_sink_fn *fn, void *ctx);
bool log_is_on(void);
void log_write(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define log_note(...)                                                                              \
	do {                                                                                       \
		if (log_is_on())                                                                   \
			log_write(__VA_ARGS__);                                                    \
	} while (0)

#endif

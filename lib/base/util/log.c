/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>

#include "base/util/auto.h"
#include "base/util/log.h"
#include "base/util/mem.h"

static log_sink_fn *sink;
static void *sink_ctx;

void log_set_sink(log_sink_fn *fn, void *ctx)
{
	sink = fn;
	sink_ctx = ctx;
}

bool log_is_on(void)
{
	return sink != NULL;
}

void log_write(const char *fmt, ...)
{
	va_list args;

	if (!sink)
		return;
	va_start(args, fmt);
	AUTO_FREE char *line = mem_vprintf(fmt, args);
	va_end(args);
	sink(sink_ctx, line);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's log on its way to stdout, an engine: bytes in, bytes out, the clock is given.
 *
 *	LOGVIEW_RAW       the program's exact bytes (a pipe)
 *	LOGVIEW_TERMINAL  through term.c; a line that is drawn again and again (CR) is shown at
 *	                  most every LOGVIEW_REDRAW_MS, its last state always
 *	LOGVIEW_JSON      one object a line: {"schema":"dlrun/log/v1","rank","time","text"},
 *	                  with "role" and "role_rank" where the run has roles; a line over
 *	                  LOGVIEW_LINE_MAX comes in parts, all but the last with "partial":true
 */
#ifndef DLRUN_CLI_TERM_LOGVIEW_H
#define DLRUN_CLI_TERM_LOGVIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/term.h"

enum { LOGVIEW_REDRAW_MS = 100, LOGVIEW_LINE_MAX = 64 << 10 };

enum logview_kind { LOGVIEW_RAW, LOGVIEW_TERMINAL, LOGVIEW_JSON };

struct logview {
	enum logview_kind kind;
	bool stamped;     /* each line begins with its time (not in JSON) */
	bool ranked;      /* each line begins with "[rank]" (not in JSON) */
	int rank;         /* of what is added next */
	const char *role; /* of that rank, or NULL: the prefix is "[role.role_rank]" */
	int role_rank;
	struct term_filter filter;
	struct buf held; /* terminal: what waits to be drawn; JSON: the line so far */
	bool in_line, after_cr, partial;
	int64_t line_ms;  /* wall clock: when the present line began; 0: unknown */
	int64_t drawn_ms; /* clock_ms() of the last redraw */
};

void logview_init(struct logview *view, enum logview_kind kind, bool color, bool stamped);
void logview_done(struct logview *view);
/* time_ms: when the bytes were written there (wall clock, 0: unknown); now_ms: clock_ms(). */
void logview_add(struct logview *view, const char *data, size_t len, int64_t time_ms,
	int64_t now_ms, struct buf *out);
/* When logview_tick shall be called, or -1: nothing waits. */
int64_t logview_due(const struct logview *view);
void logview_tick(struct logview *view, int64_t now_ms, struct buf *out);
/* The log is at its end. */
void logview_end(struct logview *view, struct buf *out);

#endif

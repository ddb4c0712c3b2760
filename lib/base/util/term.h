/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terminal filter: text from elsewhere (names, logs, servers' messages) on its way to a
 * terminal. An engine: bytes in, bytes out, state in the struct, so sequences may be cut anywhere.
 *
 * LF, TAB, printable UTF-8 and SGR colour sequences (ESC [ digits ; : m) pass. Everything else is
 * shown escaped: C0 and C1 controls as ^X or \xNN, ESC as ^[, bad UTF-8 as \xNN, bidirectional and
 * other invisible format controls as <U+NNNN>. CR restarts the line (cr = TERM_CR_REDRAW) or is
 * shown (TERM_CR_SHOW).
 */
#ifndef DLRUN_BASE_UTIL_TERM_H
#define DLRUN_BASE_UTIL_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"

enum term_cr {
	TERM_CR_SHOW, /* ^M */
	/* CR LF is LF; a lone CR passes as CR, ESC [ K once something follows it, so that the line
	 * restarts */
	TERM_CR_REDRAW,
};

struct term_filter {
	enum term_cr cr;
	bool color;          /* let SGR pass; else it is dropped */
	uint8_t pending[32]; /* the start of a sequence that is not complete */
	size_t n_pending;
	bool colored; /* an SGR is in force: term_filter_end resets it */
};

void term_filter_init(struct term_filter *filter, enum term_cr cr, bool color);
void term_filter_add(struct term_filter *filter, const char *data, size_t len, struct buf *out);
/* The input is at its end: what is pending is shown, colours are reset. */
void term_filter_end(struct term_filter *filter, struct buf *out);
/* A whole string at once, without colours; LF and TAB shown as blanks if one_line. */
void term_clean(const char *s, size_t len, bool one_line, struct buf *out);
/* Returns s as one line without escape sequences, other controls replaced by blanks: for searching,
 * not for a terminal. The caller frees. */
char *term_plain(const char *s, size_t len);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code points: UTF-8 (RFC 3629) and what a terminal does with them. For texts of any kind use
 * str.c and term.c.
 */
#ifndef DLRUN_BASE_UTIL_UNICODE_H
#define DLRUN_BASE_UTIL_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"

/* Length (1 to 4) of the valid sequence at s, its code point in *ret_cp; 0 if there is none. */
size_t unicode_decode(const char *s, size_t len, uint32_t *ret_cp);
/* Append cp (at most 0x10ffff) as UTF-8. */
void unicode_add(struct buf *out, uint32_t cp);
/* Whether the len bytes at s are the start of a valid sequence that more bytes could complete. */
bool unicode_is_partial(const char *s, size_t len);
/* Controls C0, DEL and C1. */
bool unicode_is_control(uint32_t cp);
/* Format characters that change how text around them looks without being seen: bidirectional
 * controls, separators, zero-width space, tags. Not among them: joiners, variation selectors. */
bool unicode_is_hidden(uint32_t cp);
/* Columns on a terminal: 0, 1 or 2; controls 0. */
unsigned unicode_width(uint32_t cp);

#endif

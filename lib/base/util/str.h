/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strings: tests, numbers, sizes, quoting, near matches, and the code points in them. The locale is
 * ignored.
 */
#ifndef DLRUN_BASE_UTIL_STR_H
#define DLRUN_BASE_UTIL_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/err.h"

static inline bool str_eq(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

static inline bool str_empty(const char *s)
{
	return !s || !*s;
}

static inline bool str_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline bool str_is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

/* Whether the first len bytes of s are those of a secret, in the same time whatever they are. */
bool str_is_secret(const char *s, const char *secret, size_t len);
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
/* The first len bytes of s with a to z for A to Z. The caller frees. */
char *str_lower(const char *s, size_t len);

/* Whether s sorts, by bytes, before the len bytes at text with tail behind them. */
bool str_is_before(const char *s, const char *text, size_t len, unsigned char tail);
/* Whether s is one of words, which are separated by blanks. */
bool str_is_word_of(const char *s, const char *words);
/* The same as a check: "WHAT must be A, B or C, not 'S'" (ERR_USAGE). */
int str_choose(const char *s, const char *words, const char *what, struct err *err);
/* The whole of s as a decimal number within [min, max]; ERR_USAGE naming what otherwise. */
int str_to_int(
	const char *s, int64_t min, int64_t max, const char *what, int64_t *ret, struct err *err);
/* The whole of s as decimal digits with at most one point, "3.14", and nothing else that strtod
 * takes; finite. */
bool str_to_decimal(const char *s, double *ret);
/* Bytes: 4096, 500Mi, 2Gi, 10M (powers of ten without i), 1.5Gi; k to E. Parts of a byte are cut
 * off. ERR_USAGE otherwise. */
int str_to_size(const char *s, uint64_t *ret, struct err *err);
/* The number of bytes in at most 8 characters for people: "812 B", "3.1 MiB". */
const char *str_size(uint64_t bytes, char out[static 16]);

/* Whether len bytes are valid UTF-8 (no surrogates, nothing over U+10FFFF, NUL allowed). */
bool str_is_utf8(const char *s, size_t len);
/* Whether s is UTF-8 without controls and without characters that change how text looks unseen. */
bool str_is_plain(const char *s);
/* How many bytes of s, which is UTF-8, whole characters of it take, at most max. */
size_t str_fit(const char *s, size_t max);
/* Length in bytes (1 to 4) of the valid UTF-8 sequence at s, 0 if there is none. */
size_t str_utf8_len(const char *s, size_t len);

/* Append s as a field of comma-separated values (RFC 4180, section 2), quoted where needed. */
void str_csv_quote(struct buf *out, const char *s);
/* Append s as a word of a POSIX shell that expands to s in any position; quoted only where
 * needed. */
void str_shell_quote(struct buf *out, const char *s);
/* Append all words, separated by blanks. */
void str_shell_join(struct buf *out, char *const *words);
/* Names and paths for people: printable UTF-8 as it is, everything else as \n, \t, \\, \xNN. */
void str_escape(struct buf *out, const char *s, size_t len);
char *str_escaped(const char *s);
/* The same for messages, cut behind 64 bytes of s with "…". */
char *str_shown(const char *s);

/* Edit distance in bytes (insert, delete, replace, swap); 255 as well for different strings of
 * which one is longer than that. */
unsigned str_distance(const char *a, const char *b);
/* The candidate that was probably meant: the only one that begins with word, or else the nearest
 * (the first of several) within max(1, length / 3) edits, 3 at most. NULL if there is none. */
const char *str_suggest(const char *word, const char *const *candidates, size_t n);

/* Columns on a terminal of one UTF-8 string (wide and combining characters counted as such,
 * controls as 0, each bad byte as 1). */
size_t str_columns(const char *s);

/*
 * Code points: UTF-8 (RFC 3629) and what a terminal does with them. Texts of any
 * kind are for the functions above and for term.h.
 */

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

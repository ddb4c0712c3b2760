/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte buffer with a limit, always NUL-terminated. The limit is set at init. Exceeding it sets
 * `full` for good and drops the bytes that do not fit, so that a run of additions is checked once,
 * by buf_check.
 */
#ifndef DLRUN_BASE_UTIL_BUF_H
#define DLRUN_BASE_UTIL_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/err.h"

struct buf {
	char *data; /* never NULL after buf_init; data[len] is NUL */
	size_t len;
	size_t cap;
	size_t max;
	bool full;
};

/* max: the most bytes that may be held, not counting the NUL. */
void buf_init(struct buf *buf, size_t max);
/* The same as an initializer: AUTO_BUF struct buf text = buf_with(TEXT_MAX); */
struct buf buf_with(size_t max);
void buf_done(struct buf *buf);
/* The same for a secret: overwritten first. */
void buf_wipe(struct buf *buf);
#define AUTO_BUF AUTO(buf_done)

void buf_add(struct buf *buf, const void *data, size_t len);
void buf_adds(struct buf *buf, const char *s);
void buf_addc(struct buf *buf, char c);
void buf_addf(struct buf *buf, const char *fmt, ...) ERR_PRINTF(2, 3);
void buf_addv(struct buf *buf, const char *fmt, va_list args) ERR_PRINTF(2, 0);
/* Reserve len more bytes at the end, to be filled by the caller, who then calls buf_added. NULL
 * (and full) when that exceeds the limit. */
char *buf_reserve(struct buf *buf, size_t len);
void buf_added(struct buf *buf, size_t len);
/* Drop len bytes at the front. */
void buf_consume(struct buf *buf, size_t len);
void buf_truncate(struct buf *buf, size_t len);
static inline void buf_reset(struct buf *buf)
{
	buf_truncate(buf, 0);
	buf->full = false;
}
/* The content as a string of the caller's (free); the buffer is empty again. */
char *buf_take(struct buf *buf);
/* 0, or ERR_LIMIT naming what ("the index of the layout"). */
int buf_check(const struct buf *buf, const char *what, struct err *err);

#endif

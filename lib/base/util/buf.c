/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { FIRST_CAP = 64 };

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

struct buf buf_with(size_t max)
{
	struct buf buf = {.max = min_size(max, PTRDIFF_MAX - 1)};

	buf.cap = min_size(FIRST_CAP, buf.max + 1);
	buf.data = mem_grow(NULL, buf.cap, 1);
	buf.data[0] = '\0';
	return buf;
}

void buf_init(struct buf *buf, size_t max)
{
	*buf = buf_with(max);
}

void buf_done(struct buf *buf)
{
	if (!buf)
		return;
	free(buf->data);
	*buf = (struct buf){0};
}

void buf_wipe(struct buf *buf)
{
	if (buf->data)
		explicit_bzero(buf->data, buf->cap);
	buf_done(buf);
}

/* Make room for len more bytes and the NUL; len must be within the limit. */
static void reserve(struct buf *buf, size_t len)
{
	size_t want = buf->len + len + 1;

	if (want <= buf->cap)
		return;
	size_t twice = buf->cap > buf->max / 2 ? buf->max + 1 : 2 * buf->cap;
	buf->cap = want > twice ? want : twice;
	buf->data = mem_grow(buf->data, buf->cap, 1);
}

/* The number of bytes of len that fit. Nothing may follow bytes that were dropped. */
static size_t admit(struct buf *buf, size_t len)
{
	size_t left = buf->full ? 0 : buf->max - buf->len;

	if (len <= left)
		return len;
	buf->full = true;
	return left;
}

void buf_add(struct buf *buf, const void *data, size_t len)
{
	len = admit(buf, len);
	if (len == 0)
		return;
	reserve(buf, len);
	memcpy(buf->data + buf->len, data, len);
	buf_added(buf, len);
}

void buf_adds(struct buf *buf, const char *s)
{
	buf_add(buf, s, strlen(s));
}

void buf_addc(struct buf *buf, char c)
{
	buf_add(buf, &c, 1);
}

void buf_addf(struct buf *buf, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	buf_addv(buf, fmt, args);
	va_end(args);
}

void buf_addv(struct buf *buf, const char *fmt, va_list args)
{
	va_list again;

	if (buf->full)
		return;
	va_copy(again, args);
	int wanted = vsnprintf(buf->data + buf->len, buf->cap - buf->len, fmt, args);
	BUG_ON(wanted < 0);
	size_t len = admit(buf, (size_t)wanted);
	if (buf->len + len >= buf->cap) {
		reserve(buf, len);
		vsnprintf(buf->data + buf->len, buf->cap - buf->len, fmt, again);
	}
	va_end(again);
	buf_added(buf, len);
}

char *buf_reserve(struct buf *buf, size_t len)
{
	if (buf->full || len > buf->max - buf->len) {
		buf->full = true;
		return NULL;
	}
	reserve(buf, len);
	return buf->data + buf->len;
}

void buf_added(struct buf *buf, size_t len)
{
	if (len == 0 && !buf->data)
		return;
	BUG_ON(len >= buf->cap - buf->len);
	buf->len += len;
	buf->data[buf->len] = '\0';
}

void buf_consume(struct buf *buf, size_t len)
{
	BUG_ON(len > buf->len);
	if (len == 0)
		return;
	buf->len -= len;
	memmove(buf->data, buf->data + len, buf->len + 1);
}

void buf_truncate(struct buf *buf, size_t len)
{
	BUG_ON(len > buf->len);
	if (!buf->data)
		return;
	buf->len = len;
	buf->data[len] = '\0';
}

char *buf_take(struct buf *buf)
{
	char *data = buf->data ? buf->data : mem_strdup("");

	buf_init(buf, buf->max);
	return data;
}

int buf_check(const struct buf *buf, const char *what, struct err *err)
{
	char size[16];

	if (!buf->full)
		return 0;
	return err_set(err, E_DATA_LIMIT, "%s is larger than %s", what, str_size(buf->max, size));
}

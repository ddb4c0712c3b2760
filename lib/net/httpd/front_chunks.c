/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/enc.h"
#include "net/httpd/front_head.h"

enum {
	SIZE,     /* digits of a size */
	SIZE_END, /* the LF behind them */
	DATA,
	DATA_CR,
	DATA_LF,
	LAST_CR, /* behind the size 0: no trailers, so an empty line */
	LAST_LF,
	OVER,
	BROKEN, /* for good */
};

enum { DIGITS_MAX = 15 };

static int refuse(struct err *err)
{
	return err_set(err, E_FRONT_HEAD, "a chunked body is broken or has extensions");
}

static int feed_size(struct front_chunks *chunks, char c, struct err *err)
{
	int digit = hex_digit(c);

	if (digit >= 0) {
		if (chunks->digits++ >= DIGITS_MAX)
			return refuse(err);
		chunks->left = chunks->left << 4 | (unsigned)digit;
		return 0;
	}
	if (c != '\r' || chunks->digits == 0)
		return refuse(err);
	chunks->digits = 0;
	chunks->state = SIZE_END;
	return 0;
}

/* Check a character of the end of a line or chunk, and go on to the next state. */
static int feed_end(struct front_chunks *chunks, char c, struct err *err)
{
	static const struct {
		char c;
		int next;
	} ends[] = {
		[DATA_CR] = {'\r', DATA_LF},
		[DATA_LF] = {'\n', SIZE},
		[LAST_CR] = {'\r', LAST_LF},
		[LAST_LF] = {'\n', OVER},
	};

	if (chunks->state == SIZE_END) {
		chunks->state = chunks->left > 0 ? DATA : LAST_CR;
		return c == '\n' ? 0 : refuse(err);
	}
	if (c != ends[chunks->state].c)
		return refuse(err);
	chunks->state = ends[chunks->state].next;
	return 0;
}

static size_t feed_data(struct front_chunks *chunks, size_t len)
{
	size_t n = chunks->left < len ? (size_t)chunks->left : len;

	chunks->left -= n;
	if (chunks->left == 0)
		chunks->state = DATA_CR;
	return n;
}

int front_chunks_feed(struct front_chunks *chunks, const char *data, size_t len, size_t *ret_used,
	struct err *err)
{
	size_t used = 0;
	int r = 0;

	if (chunks->state == BROKEN)
		return refuse(err);
	while (used < len && chunks->state != OVER && r == 0) {
		if (chunks->state == DATA)
			used += feed_data(chunks, len - used);
		else if (chunks->state == SIZE)
			r = feed_size(chunks, data[used++], err);
		else
			r = feed_end(chunks, data[used++], err);
	}
	if (r < 0) {
		chunks->state = BROKEN;
		return r;
	}
	*ret_used = used;
	return chunks->state == OVER;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/websocket/spdy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STREAMS = 4, SEEN_MAX = 1 << 20 };

/* What the events told, as text, so that two ways of feeding can be compared. */
static int on_reply(void *ctx, uint32_t id, const struct spdy_field *fields, size_t n, bool is_end,
	struct err *err)
{
	BUG_ON(id % 2 == 0 || id >= 2 * STREAMS || n > SPDY_FIELDS_MAX);
	buf_addf(ctx, "r%u,%d", id, is_end);
	for (size_t i = 0; i < n; i++)
		buf_addf(ctx, "%s=%s;", fields[i].name, fields[i].value);
	return 0;
}

static int on_data(
	void *ctx, uint32_t id, const void *data, size_t len, bool is_end, struct err *err)
{
	BUG_ON(id % 2 == 0 || id >= 2 * STREAMS);
	/* The pieces differ, their bytes and their end do not. */
	for (size_t i = 0; i < len; i++)
		buf_addf(ctx, "d%u:%02x", id, ((const uint8_t *)data)[i]);
	if (is_end)
		buf_addf(ctx, "e%u", id);
	return 0;
}

static int on_reset(void *ctx, uint32_t id, uint32_t status, struct err *err)
{
	buf_addf(ctx, "x%u,%u", id, status);
	return 0;
}

static int on_goaway(void *ctx, uint32_t last_id, struct err *err)
{
	buf_addf(ctx, "g%u", last_id);
	return 0;
}

static void on_pong(void *ctx)
{
	buf_addc(ctx, 'p');
}

static int feed(const uint8_t *data, size_t size, size_t step, struct buf *seen, struct buf *sent)
{
	struct spdy *spdy = spdy_new(
		&(struct spdy_events){on_reply, on_data, on_reset, on_goaway, on_pong, seen});
	int r = 0;

	for (size_t i = 0; i < STREAMS; i++)
		spdy_open(spdy, &(struct spdy_field){"port", "1"}, 1, i % 2);
	for (size_t at = 0; at < size && r == 0; at += step)
		r = spdy_receive(spdy, data + at, size - at < step ? size - at : step, NULL);
	buf_add(sent, spdy_output(spdy)->data, spdy_output(spdy)->len);
	spdy_free(spdy);
	return r;
}

/* How the bytes were cut changes nothing. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_BUF struct buf whole = {0}, whole_sent = {0}, cut = {0}, cut_sent = {0};

	if (size > 1 << 16)
		return 0;
	buf_init(&whole, SEEN_MAX);
	buf_init(&whole_sent, SEEN_MAX);
	buf_init(&cut, SEEN_MAX);
	buf_init(&cut_sent, SEEN_MAX);
	int r = feed(data, size, size + 1, &whole, &whole_sent);
	int other = feed(data, size, 1 + size % 5, &cut, &cut_sent);
	BUG_ON(r != other);
	BUG_ON(!str_eq(whole.data, cut.data));
	BUG_ON(whole_sent.len != cut_sent.len ||
		memcmp(whole_sent.data, cut_sent.data, cut_sent.len) != 0);
	return 0;
}

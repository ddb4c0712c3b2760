/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte says in which pieces the rest comes, and whether it is: what a server sends, or
 * what both sides say to each other and must hear. */
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/websocket/ws.h"
#include "tests/unit/wspeer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OUTPUT_MAX = (64 << 10) + 2 * 131 };

struct heard {
	uint64_t bytes;
	unsigned sum;
	int n_messages, n_closes;
	bool in_message;
};

static unsigned add(unsigned sum, const void *data, size_t len)
{
	for (size_t i = 0; i < len; i++)
		sum = sum * 31 + ((const uint8_t *)data)[i];
	return sum;
}

static int on_data(void *ctx, int opcode, const void *data, size_t len, bool is_start, bool is_end,
	struct err *err)
{
	struct heard *heard = ctx;

	BUG_ON(opcode != 1 && opcode != 2);
	BUG_ON(is_start == heard->in_message || heard->n_closes > 0);
	heard->in_message = !is_end;
	heard->n_messages += is_end;
	heard->bytes += len;
	heard->sum = add(heard->sum, data, len);
	return 0;
}

static void on_close(void *ctx, unsigned code, const char *reason, size_t len)
{
	struct heard *heard = ctx;

	BUG_ON(code > 0xffff || len > 123);
	heard->n_closes++;
	heard->sum = add(heard->sum, reason, len);
}

static struct ws *make(struct heard *heard)
{
	const struct ws_events events = {.data = on_data, .close = on_close, .ctx = heard};

	return ws_new(&events);
}

static int feed(struct ws *ws, const void *data, size_t size, size_t piece)
{
	int r = 0;

	for (size_t at = 0; r == 0 && at < size; at += piece) {
		size_t len = size - at < piece ? size - at : piece;
		char *copy = mem_dup((const char *)data + at, len);
		r = ws_receive(ws, copy, len, NULL);
		free(copy);
	}
	return r;
}

static void hostile(const uint8_t *data, size_t size, size_t piece)
{
	struct heard whole = {0}, pieces = {0};
	AUTO_WS struct ws *a = make(&whole), *b = make(&pieces);
	struct peer_got got;
	size_t at = 0;

	BUG_ON(feed(a, data, size, SIZE_MAX / 2) != feed(b, data, size, piece));
	BUG_ON(whole.bytes != pieces.bytes || whole.sum != pieces.sum || whole.bytes > size);
	BUG_ON(whole.n_messages != pieces.n_messages || whole.n_closes != pieces.n_closes);
	BUG_ON(ws_output(a)->len > OUTPUT_MAX || ws_output(a)->len != ws_output(b)->len);
	/* What is said is made of frames. */
	while (peer_next(ws_output(a), &at, &got))
		BUG_ON(got.first != 0x8a && got.first != 0x88);
}

/* Cuts the input into messages of up to 300 bytes: from here to there, and back in two frames. */
static void round_trip(const uint8_t *data, size_t size, size_t piece)
{
	struct heard heard = {0};
	AUTO_WS struct ws *ws = make(&heard);
	AUTO_BUF struct buf back;
	unsigned sum = 0;
	struct peer_got got;
	size_t at = 0, seen = 0;

	buf_init(&back, 5 * size + 1024); /* of one byte: two heads of two */
	while (at < size) {
		size_t len = (size_t)data[at] * 2 < size - at ? (size_t)data[at] * 2 : size - at;
		len += len == 0;
		const struct ws_part parts[] = {
			{data + at, len / 3}, {data + at + len / 3, len - len / 3}};
		ws_send(ws, 2, parts, ARRAY_LEN(parts));
		BUG_ON(!peer_next(ws_output(ws), &seen, &got));
		BUG_ON(got.first != 0x82 || got.len != len ||
			memcmp(got.data, data + at, len) != 0);
		peer_frame(&back, 0x02, data + at, len / 2);
		peer_frame(&back, 0x80, data + at + len / 2, len - len / 2);
		at += len;
	}
	sum = add(sum, data, size);
	BUG_ON(feed(ws, back.data, back.len, piece) < 0);
	BUG_ON(heard.bytes != size || heard.sum != sum || heard.in_message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	size_t piece = (size_t)(data[0] & 0x7f) + 1;
	if (data[0] & 0x80)
		round_trip(data + 1, size - 1, piece);
	else
		hostile(data + 1, size - 1, piece);
	return 0;
}

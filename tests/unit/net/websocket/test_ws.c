/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/websocket/ws.h"
#include "tests/unit/wspeer.h"

/*
 * What was received: "2<abc" begins a binary message, ">" ends it; "P" a pong; "C1000 reason"
 */

struct heard {
	struct buf text;
	uint64_t bytes;
	int fail_at; /* data callbacks until one fails; 0: none */
};

static int on_data(void *ctx, int opcode, const void *data, size_t len, bool is_start, bool is_end,
	struct err *err)
{
	struct heard *heard = ctx;

	if (heard->fail_at > 0 && --heard->fail_at == 0)
		return err_set(err, E_IO, "no room");
	heard->bytes += len;
	if (is_start)
		buf_addf(&heard->text, "%d<", opcode);
	buf_add(&heard->text, data, len);
	if (is_end)
		buf_adds(&heard->text, ">");
	return 0;
}

static void on_pong(void *ctx)
{
	buf_adds(&((struct heard *)ctx)->text, "P");
}

static void on_close(void *ctx, unsigned code, const char *reason, size_t len)
{
	buf_addf(&((struct heard *)ctx)->text, "C%u %.*s", code, (int)len, reason);
}

static struct ws *open_ws(struct heard *heard)
{
	const struct ws_events events = {
		.data = on_data, .pong = on_pong, .close = on_close, .ctx = heard};

	*heard = (struct heard){0};
	buf_init(&heard->text, 16 << 20);
	return ws_new(&events);
}

/* In pieces, each of which is in memory of its own size. */
static int feed(struct ws *ws, const struct buf *in, size_t piece, struct err *err)
{
	int r = 0;

	for (size_t at = 0; r == 0 && at < in->len; at += piece) {
		size_t len = in->len - at < piece ? in->len - at : piece;
		char *copy = mem_dup(in->data + at, len);
		r = ws_receive(ws, copy, len, err);
		free(copy);
	}
	return r;
}

/* Frames of the client: "opcode:data " */
static char *sent(struct ws *ws)
{
	struct buf *out = ws_output(ws);
	AUTO_BUF struct buf text;
	struct peer_got got;
	size_t at = 0;

	buf_init(&text, 1 << 20);
	while (peer_next(out, &at, &got)) {
		assert_int_equal(got.first & 0xf0, 0x80);
		buf_addf(&text, "%u:", got.first & 0xf);
		buf_add(&text, got.data, got.len);
		buf_adds(&text, " ");
	}
	buf_consume(out, at);
	return buf_take(&text);
}

static void sends(struct ws *ws, const char *wanted)
{
	AUTO_FREE char *text = sent(ws);

	assert_string_equal(text, wanted);
}

/*
 * Handshake
 */

static void test_handshake_headers(void **state)
{
	static const char *const protocols[] = {"v5.channel.k8s.io", "v4.channel.k8s.io", NULL};
	AUTO_STRV struct strv headers = {0}, other = {0};
	char key[WS_KEY_SIZE], second[WS_KEY_SIZE];

	ws_handshake_headers(protocols, key, &headers);
	ws_handshake_headers(NULL, second, &other);
	assert_int_equal(strlen(key), 24);
	assert_string_not_equal(key, second);
	AUTO_FREE char *line = mem_printf("Sec-WebSocket-Key: %s", key);
	assert_int_equal(headers.n, 3);
	assert_string_equal(headers.v[0], line);
	assert_string_equal(headers.v[1], "Sec-WebSocket-Version: 13");
	assert_string_equal(
		headers.v[2], "Sec-WebSocket-Protocol: v5.channel.k8s.io, v4.channel.k8s.io");
	assert_int_equal(other.n, 2);
}

/* The key and its answer are those of RFC 6455 section 1.3. */
static void test_handshake_check(void **state)
{
	static const char key[] = "dGhlIHNhbXBsZSBub25jZQ==";
	static const char *const offered[] = {"chat", "superchat", NULL};
	static const struct {
		const char *upgrade, *connection, *accept, *more;
		const char *const *offered;
		const char *protocol; /* NULL: a fault */
	} rows[] = {
		{"websocket", "Upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "x: y", NULL, ""},
		{"WebSocket", "keep-alive, upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
			"sec-websocket-protocol: superchat", offered, "superchat"},
		{"websocket", "Upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "x: y", offered, ""},
		{"websocket", "Upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOO=", "x: y", NULL, NULL},
		{"h2c", "Upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "x: y", NULL, NULL},
		{"websocket", "close", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "x: y", NULL, NULL},
		{"websocket", "Upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
			"sec-websocket-protocol: super", offered, NULL},
		{"websocket", "Upgrade",
			"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "sec-websocket-protocol: chat", NULL, NULL},
		{"websocket", "Upgrade", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
			"sec-websocket-extensions: permessage-deflate", NULL, NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_STRV struct strv headers = {0};
		AUTO_ERR struct err err = {0};
		const char *protocol = NULL;
		strv_addf(&headers, "upgrade: %s", rows[i].upgrade);
		strv_addf(&headers, "connection: %s", rows[i].connection);
		strv_addf(&headers, "sec-websocket-accept: %s", rows[i].accept);
		strv_add(&headers, rows[i].more);
		int r = ws_handshake_check(&headers, key, rows[i].offered, &protocol, &err);
		assert_int_equal(r < 0, !rows[i].protocol);
		assert_int_equal(err.id, rows[i].protocol ? E_NONE : E_HTTP_PROTOCOL);
		if (rows[i].protocol)
			assert_string_equal(protocol, rows[i].protocol);
	}
	AUTO_STRV struct strv none = {0};
	const char *protocol = NULL;
	assert_true(ws_handshake_check(&none, key, NULL, &protocol, NULL) < 0);
}

/*
 * Receiving
 */

static void test_messages(void **state)
{
	static const size_t pieces[] = {1, 2, 3, 7, 64, 5000, SIZE_MAX / 2};
	AUTO_FREE char *big = mem_alloc(1, 70001);
	AUTO_BUF struct buf in, wanted;

	buf_init(&in, 1 << 20);
	buf_init(&wanted, 1 << 20);
	memset(big, 'b', 70000);
	peer_frame(&in, 0x81, "text", 4);
	peer_frame(&in, 0x02, "be", 2);
	peer_frame(&in, 0x89, "ping", 4);
	peer_frame(&in, 0x00, "", 0);
	peer_frame(&in, 0x8a, "", 0);
	peer_frame(&in, 0x80, "gun", 3);
	peer_frame(&in, 0x82, "", 0);
	peer_frame(&in, 0x01, "", 0);
	peer_frame(&in, 0x80, "", 0);
	peer_frame(&in, 0x82, big, 126);
	peer_frame(&in, 0x82, big, 70000);
	peer_frame(&in, 0x88, "\x03\xe8goodbye", 9);
	peer_frame(&in, 0x81, "behind", 6);
	buf_addf(&wanted, "1<text>2<bePgun>2<>1<>2<%.126s>2<%s>C1000 goodbye", big, big);
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		struct heard heard;
		AUTO_WS struct ws *ws = open_ws(&heard);
		assert_true(ws_wants_input(ws));
		assert_int_equal(feed(ws, &in, pieces[i], NULL), 0);
		assert_string_equal(heard.text.data, wanted.data);
		assert_false(ws_wants_input(ws));
		/* The pong, and the answer to the close; nothing behind it. */
		ws_ping(ws);
		ws_send(ws, 2, &(struct ws_part){"x", 1}, 1);
		ws_close(ws, 1000);
		sends(ws, "10:ping 8:\x03\xe8 ");
		buf_done(&heard.text);
	}
}

static void test_bad_frames(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
		const char *said;
	} rows[] = {
#define ROW(bytes, said) {bytes, sizeof(bytes) - 1, said}
		ROW("\x82\x81mask!", "masks a frame"),
		ROW("\x82\x80mask", "masks a frame"),
		ROW("\xc2\x01x", "uses a reserved bit"),
		ROW("\x92\x01x", "uses a reserved bit"),
		ROW("\x83\x01x", "uses an unknown kind of frame"),
		ROW("\x87\x01x", "uses an unknown kind of frame"),
		ROW("\x8b\x01x", "uses an unknown kind of frame"),
		ROW("\x8f\x01x", "uses an unknown kind of frame"),
		ROW("\x80\x01x", "goes on with a message that has not begun"),
		ROW("\x02\x01x\x82\x01y", "begins a message within another"),
		ROW("\x02\x01x\x81\x01y", "begins a message within another"),
		ROW("\x09\x01x", NULL),        /* a ping in pieces */
		ROW("\x89\x7e\x00\x7e", NULL), /* a long ping */
		ROW("\x82\x7e\x00\x7d", NULL), /* a length with more bytes than */
		ROW("\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xff", NULL), /* it takes */
		ROW("\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x00", NULL), /* a negative one */
		ROW("\x88\x01x", "closes with half a code"),
#undef ROW
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_BUF struct buf in;
		AUTO_ERR struct err err = {0};
		struct heard heard;
		AUTO_WS struct ws *ws = open_ws(&heard);
		buf_init(&in, 1000);
		buf_add(&in, rows[i].bytes, rows[i].len);
		assert_int_equal(feed(ws, &in, 1 + i % 3, &err), -ERR_REMOTE);
		assert_int_equal(err.id, E_HTTP_PROTOCOL);
		assert_true(!rows[i].said || strstr(err.message, rows[i].said));
		/* It says so to the server, once, and takes nothing more. */
		assert_false(ws_wants_input(ws));
		assert_true(ws_receive(ws, "\x81\x01x", 3, NULL) < 0);
		sends(ws, "8:\x03\xea ");
		buf_done(&heard.text);
	}
}

static void test_close_without_code(void **state)
{
	struct heard heard;
	AUTO_WS struct ws *ws = open_ws(&heard);

	ws_close(ws, 1001);
	sends(ws, "8:\x03\xe9 ");
	assert_int_equal(ws_receive(ws, "\x82\x01y\x88\x00", 5, NULL), 0);
	assert_string_equal(heard.text.data, "2<y>C1005 ");
	sends(ws, "");
	buf_done(&heard.text);
	AUTO_WS struct ws *other = open_ws(&heard);
	assert_int_equal(ws_receive(other, "\x88\x00", 2, NULL), 0);
	sends(other, "8: ");
	buf_done(&heard.text);
}

static void test_callback_fails(void **state)
{
	AUTO_ERR struct err err = {0};
	struct heard heard;
	AUTO_WS struct ws *ws = open_ws(&heard);

	heard.fail_at = 2;
	assert_int_equal(ws_receive(ws, "\x82\x01x\x82\x01y\x82\x01z", 9, &err), -ERR_IO);
	assert_string_equal(heard.text.data, "2<x>");
	assert_true(ws_receive(ws, "\x82\x01z", 3, &err) < 0);
	assert_string_equal(heard.text.data, "2<x>");
	buf_done(&heard.text);
}

/* A million pings: what waits to be sent stays small, and the newest is answered. */
static void test_pings_without_end(void **state)
{
	struct heard heard;
	AUTO_WS struct ws *ws = open_ws(&heard);
	AUTO_BUF struct buf in;
	struct peer_got got = {0};
	size_t at = 0;

	buf_init(&in, 8 << 20);
	for (uint32_t i = 0; i < 1000000; i++)
		peer_frame(&in, 0x89, &i, sizeof(i));
	assert_int_equal(feed(ws, &in, SIZE_MAX / 2, NULL), 0);
	assert_true(ws_output(ws)->len < (64 << 10) + 131);
	buf_reset(ws_output(ws));
	assert_true(peer_next(ws_output(ws), &at, &got));
	uint32_t last;
	assert_int_equal(got.len, sizeof(last));
	memcpy(&last, got.data, sizeof(last));
	assert_int_equal(last, 999999);
	assert_false(peer_next(ws_output(ws), &at, &got));
	buf_done(&heard.text);
}

/*
 * Sending
 */

static void check_sent(struct ws *ws, const char *data, size_t len, size_t first, size_t second)
{
	const struct ws_part parts[] = {{data, first}, {data + first, second},
		{data + first + second, len - first - second}};
	struct buf *out = ws_output(ws);
	struct peer_got got;
	size_t at = 0;

	ws_send(ws, 2, parts, ARRAY_LEN(parts));
	assert_true(peer_next(out, &at, &got));
	assert_int_equal(got.first, 0x82);
	assert_int_equal(got.len, len);
	assert_memory_equal(got.data, data, len);
	assert_int_equal(at, out->len);
	buf_reset(out);
}

static void test_send(void **state)
{
	static const size_t sizes[] = {0, 1, 7, 8, 9, 125, 126, 127, 65535, 65536, 100000};
	AUTO_FREE char *data = mem_alloc(1, 100000);
	struct heard heard;
	AUTO_WS struct ws *ws = open_ws(&heard);

	for (size_t i = 0; i < 100000; i++)
		data[i] = (char)(i * 7 + i / 256);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (size_t first = 0; first < 20 && first <= sizes[i]; first++)
			check_sent(ws, data, sizes[i], first, (sizes[i] - first) / 2);
	buf_done(&heard.text);
}

static void test_masks_differ(void **state)
{
	struct heard heard;
	AUTO_WS struct ws *ws = open_ws(&heard);
	uint8_t last[4] = {0};
	struct peer_got got;
	size_t at = 0, same = 0, n = 0;

	for (int i = 0; i < 1000; i++)
		ws_ping(ws);
	while (peer_next(ws_output(ws), &at, &got)) {
		same += memcmp(last, got.mask, 4) == 0;
		memcpy(last, got.mask, 4);
		assert_int_equal(got.first, 0x89);
		n++;
	}
	assert_int_equal(n, 1000);
	assert_true(same < 3);
	buf_done(&heard.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handshake_headers),
		cmocka_unit_test(test_handshake_check),
		cmocka_unit_test(test_messages),
		cmocka_unit_test(test_bad_frames),
		cmocka_unit_test(test_close_without_code),
		cmocka_unit_test(test_callback_fails),
		cmocka_unit_test(test_pings_without_end),
		cmocka_unit_test(test_send),
		cmocka_unit_test(test_masks_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

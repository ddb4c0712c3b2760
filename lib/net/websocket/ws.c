/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/ws.h"

#include <string.h>
#include <strings.h>
#include <wslay/wslay.h>

#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/stream/field.h"

enum {
	NONCE_SIZE = 16,
	PONGS_MAX = 64 << 10,
	CONTROL_MAX = 125, /* section 5.5 */
	HEAD_MAX = 14,     /* of a frame, with its mask */
	MASK_SIZE = 4,
	N_MASKS = 64,
	CODE_PROTOCOL = 1002,
	CODE_NONE = 1005,
};
enum { CONTINUATION, TEXT, BINARY, CLOSE = 8, PING, PONG };

/* Callers send no more than they can afford to wait; this is far beyond. */
#define OUTPUT_MAX ((size_t)1 << 30)

struct ws {
	struct ws_events events;
	wslay_frame_context_ptr frames;
	const uint8_t *in; /* of the present ws_receive */
	size_t n_in;
	/* The frame that is being received */
	bool in_frame;
	uint8_t opcode;
	bool fin;
	uint64_t got;
	uint8_t control[CONTROL_MAX];
	/* The message */
	int message; /* its opcode; 0: none has begun */
	bool is_start;
	bool closed; /* by the other side */
	bool failed;
	/* Out */
	struct buf out;
	bool has_closed; /* this side */
	bool owes_pong;
	uint8_t pong[CONTROL_MAX];
	size_t n_pong;
	uint8_t masks[N_MASKS][MASK_SIZE];
	size_t n_masks;
};

/*
 * Handshake
 */

static void accept_of(const char *key, struct buf *out)
{
	static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
	AUTO_DIGEST struct digest digest = {0};
	uint8_t hash[SHA1_SIZE];

	digest_begin(&digest, DIGEST_SHA1);
	digest_add(&digest, key, strlen(key));
	digest_add(&digest, guid, strlen(guid));
	digest_end(&digest, hash);
	base64_encode(hash, sizeof(hash), out);
}

void ws_handshake_headers(
	const char *const *protocols, char key[static WS_KEY_SIZE], struct strv *ret_headers)
{
	uint8_t nonce[NONCE_SIZE];
	AUTO_BUF struct buf text = buf_with(WS_KEY_SIZE - 1), offered = buf_with(4096);

	random_bytes(nonce, sizeof(nonce));
	base64_encode(nonce, sizeof(nonce), &text);
	memcpy(key, text.data, WS_KEY_SIZE);
	for (; protocols && *protocols; protocols++)
		buf_addf(&offered, "%s%s", offered.len > 0 ? ", " : "", *protocols);
	BUG_ON(offered.full);
	strv_addf(ret_headers, "Sec-WebSocket-Key: %s", key);
	strv_add(ret_headers, "Sec-WebSocket-Version: 13");
	if (offered.len > 0)
		strv_addf(ret_headers, "Sec-WebSocket-Protocol: %s", offered.data);
}

static bool ws_has_value(const struct strv *headers, const char *name, const char *value)
{
	const char *found = field_find(headers, name);

	return found && strcasecmp(found, value) == 0;
}

static bool has_upgrade(const struct strv *headers)
{
	static const char prefix[] = "connection: ";

	vec_foreach (char *, header, headers)
		if (str_starts(*header, prefix) && strcasestr(*header + strlen(prefix), "upgrade"))
			return true;
	return false;
}

static bool is_offered(const char *const *protocols, const char *chosen)
{
	while (protocols && *protocols && !str_eq(*protocols, chosen))
		protocols++;
	return protocols && *protocols;
}

int ws_handshake_check(const struct strv *headers, const char *key, const char *const *protocols,
	const char **ret_protocol, struct err *err)
{
	const char *accept = field_find(headers, "sec-websocket-accept");
	const char *chosen = field_find(headers, "sec-websocket-protocol");
	AUTO_BUF struct buf wanted = buf_with(64);

	accept_of(key, &wanted);
	if (!ws_has_value(headers, "upgrade", "websocket") || !has_upgrade(headers))
		return err_set(err, E_HTTP_PROTOCOL, "the server does not change to WebSocket");
	if (!accept || !str_eq(accept, wanted.data))
		return err_set(err, E_HTTP_PROTOCOL,
			"the server's answer is not to this WebSocket handshake");
	/* No extension was requested (section 9.1). */
	if (field_find(headers, "sec-websocket-extensions"))
		return err_set(err, E_HTTP_PROTOCOL,
			"the server uses a WebSocket extension that nobody has asked for");
	if (chosen && !is_offered(protocols, chosen)) {
		AUTO_FREE char *shown = str_shown(chosen);
		return err_set(err, E_HTTP_PROTOCOL,
			"the server chooses the WebSocket protocol %s, which was not offered",
			shown);
	}
	*ret_protocol = chosen ? chosen : "";
	return 0;
}

/*
 * Sending
 */

static const uint8_t *next_mask(struct ws *ws)
{
	if (ws->n_masks == 0) {
		random_bytes(ws->masks, sizeof(ws->masks));
		ws->n_masks = N_MASKS;
	}
	return ws->masks[--ws->n_masks];
}

static void put_be(uint8_t *out, uint64_t value, size_t size)
{
	for (size_t i = size; i-- > 0; value >>= 8)
		out[i] = (uint8_t)value;
}

static size_t make_head(uint8_t *head, int opcode, size_t len, const uint8_t *mask)
{
	size_t n = 2;

	head[0] = (uint8_t)(0x80 | opcode);
	if (len <= CONTROL_MAX) {
		head[1] = (uint8_t)len;
	} else if (len <= UINT16_MAX) {
		head[1] = 126;
		put_be(head + n, len, 2);
		n += 2;
	} else {
		head[1] = 127;
		put_be(head + n, len, 8);
		n += 8;
	}
	head[1] |= 0x80;
	memcpy(head + n, mask, MASK_SIZE);
	return n + MASK_SIZE;
}

/* Section 5.3, eight bytes at a time; at: where in the payload the first byte stands. */
static void copy_masked(
	uint8_t *to, const uint8_t *from, size_t len, const uint8_t *mask, size_t at)
{
	uint8_t turned[2 * MASK_SIZE] = {0};
	uint64_t word, mask8;
	size_t i = 0;

	for (size_t k = 0; k < sizeof(turned); k++)
		turned[k] = mask[(at + k) % MASK_SIZE];
	memcpy(&mask8, turned, sizeof(mask8));
	for (; i + sizeof(word) <= len; i += sizeof(word)) {
		memcpy(&word, from + i, sizeof(word));
		word ^= mask8;
		memcpy(to + i, &word, sizeof(word));
	}
	for (; i < len; i++)
		to[i] = from[i] ^ turned[i % sizeof(turned)];
}

static void add_frame(struct ws *ws, int opcode, const struct ws_part *parts, size_t n)
{
	const uint8_t *mask = next_mask(ws);
	size_t len = 0, at = 0;
	uint8_t head[HEAD_MAX];

	for (size_t i = 0; i < n; i++)
		len += parts[i].len;
	size_t n_head = make_head(head, opcode, len, mask);
	uint8_t *to = (uint8_t *)buf_reserve(&ws->out, n_head + len);
	BUG_ON(!to);
	memcpy(to, head, n_head);
	for (size_t i = 0; i < n; at += parts[i].len, i++)
		copy_masked(to + n_head + at, parts[i].data, parts[i].len, mask, at);
	buf_added(&ws->out, n_head + len);
}

static void ws_add_control(struct ws *ws, int opcode, const void *data, size_t len)
{
	const struct ws_part part = {data, len};

	if (!ws->has_closed)
		add_frame(ws, opcode, &part, 1);
}

void ws_send(struct ws *ws, int opcode, const struct ws_part *parts, size_t n)
{
	if (!ws->has_closed)
		add_frame(ws, opcode, parts, n);
}

void ws_ping(struct ws *ws)
{
	ws_add_control(ws, PING, "", 0);
}

void ws_close(struct ws *ws, unsigned code)
{
	uint8_t data[2];

	put_be(data, code, sizeof(data));
	ws_add_control(ws, CLOSE, data, code == CODE_NONE ? 0 : sizeof(data));
	ws->has_closed = true;
}

static void send_pong(struct ws *ws)
{
	if (!ws->owes_pong || ws->out.len >= PONGS_MAX)
		return;
	ws->owes_pong = false;
	ws_add_control(ws, PONG, ws->pong, ws->n_pong);
}

struct buf *ws_output(struct ws *ws)
{
	send_pong(ws);
	return &ws->out;
}

bool ws_wants_input(const struct ws *ws)
{
	return !ws->closed && !ws->failed;
}

/*
 * Receiving
 */

static int ws_fail(struct ws *ws, struct err *err, const char *what)
{
	ws->failed = true;
	ws_close(ws, CODE_PROTOCOL);
	return err_set(err, E_HTTP_PROTOCOL, "the server %s in a WebSocket connection", what);
}

static int check_frame(struct ws *ws, const struct wslay_frame_iocb *frame, struct err *err)
{
	uint8_t opcode = frame->opcode;

	if (frame->mask)
		return ws_fail(ws, err, "masks a frame");
	if (frame->rsv)
		return ws_fail(ws, err, "uses a reserved bit");
	if (opcode > PONG || (opcode > BINARY && opcode < CLOSE))
		return ws_fail(ws, err, "uses an unknown kind of frame");
	if (opcode >= CLOSE && (frame->payload_length > CONTROL_MAX || !frame->fin))
		return ws_fail(ws, err, "sends a control frame that is too long");
	if (opcode == CONTINUATION && !ws->message)
		return ws_fail(ws, err, "goes on with a message that has not begun");
	if ((opcode == TEXT || opcode == BINARY) && ws->message)
		return ws_fail(ws, err, "begins a message within another");
	return 0;
}

static int ws_begin_frame(struct ws *ws, const struct wslay_frame_iocb *frame, struct err *err)
{
	int r = check_frame(ws, frame, err);

	if (r < 0)
		return r;
	ws->in_frame = true;
	ws->opcode = frame->opcode;
	ws->fin = frame->fin != 0;
	ws->got = 0;
	if (ws->opcode == TEXT || ws->opcode == BINARY) {
		ws->message = ws->opcode;
		ws->is_start = true;
	}
	return 0;
}

static int pass_data(struct ws *ws, const void *data, size_t len, bool is_last, struct err *err)
{
	bool is_start = ws->is_start, is_end = is_last && ws->fin;
	int opcode = ws->message;

	if (is_end)
		ws->message = 0;
	if (len == 0 && !is_end)
		return 0;
	ws->is_start = false;
	int r = ws->events.data(ws->events.ctx, opcode, data, len, is_start, is_end, err);
	ws->failed = ws->failed || r < 0;
	return r;
}

static int end_close(struct ws *ws, struct err *err)
{
	const char *reason = (const char *)ws->control + 2;
	unsigned code = CODE_NONE;
	size_t len = 0;

	if (ws->got == 1)
		return ws_fail(ws, err, "closes with half a code");
	if (ws->got >= 2) {
		code = (unsigned)ws->control[0] << 8 | ws->control[1];
		len = (size_t)ws->got - 2;
	}
	ws->closed = true;
	ws_close(ws, code);
	if (ws->events.close)
		ws->events.close(ws->events.ctx, code, reason, len);
	return 0;
}

static int end_control(struct ws *ws, struct err *err)
{
	if (ws->opcode == CLOSE)
		return end_close(ws, err);
	if (ws->opcode == PONG) {
		if (ws->events.pong)
			ws->events.pong(ws->events.ctx);
		return 0;
	}
	/* Of those that cannot be sent yet the newest is enough (section 5.5.3). */
	ws->owes_pong = !ws->has_closed;
	ws->n_pong = (size_t)ws->got;
	memcpy(ws->pong, ws->control, ws->n_pong);
	send_pong(ws);
	return 0;
}

static int ws_take_piece(
	struct ws *ws, const struct wslay_frame_iocb *frame, size_t len, struct err *err)
{
	int r = ws->in_frame ? 0 : ws_begin_frame(ws, frame, err);

	if (r < 0)
		return r;
	bool is_last = ws->got + len == frame->payload_length;
	if (ws->opcode >= CLOSE && len > 0)
		memcpy(ws->control + ws->got, frame->data, len);
	ws->got += len;
	ws->in_frame = !is_last;
	if (ws->opcode < CLOSE)
		return pass_data(ws, frame->data, len, is_last, err);
	return is_last ? end_control(ws, err) : 0;
}

int ws_receive(struct ws *ws, const void *data, size_t len, struct err *err)
{
	int r = 0;

	if (ws->failed)
		return ws_fail(ws, err, "has broken the rules");
	ws->in = data;
	ws->n_in = len;
	/* Data after a close is ignored. */
	while (r == 0 && !ws->closed) {
		struct wslay_frame_iocb frame = {0};

		ssize_t n = wslay_frame_recv(ws->frames, &frame);
		if (n == WSLAY_ERR_WANT_READ)
			break;
		r = n < 0 ? ws_fail(ws, err, "sends a frame that is none")
			  : ws_take_piece(ws, &frame, (size_t)n, err);
	}
	ws->in = NULL;
	ws->n_in = 0;
	return r;
}

static ssize_t on_recv(uint8_t *out, size_t len, int flags UNUSED, void *ctx)
{
	struct ws *ws = ctx;

	if (len > ws->n_in)
		len = ws->n_in;
	if (len == 0)
		return -1;
	memcpy(out, ws->in, len);
	ws->in += len;
	ws->n_in -= len;
	return (ssize_t)len;
}

struct ws *ws_new(const struct ws_events *events)
{
	static const struct wslay_frame_callbacks callbacks = {.recv_callback = on_recv};
	struct ws *ws = mem_alloc(1, sizeof(*ws));

	ws->events = *events;
	buf_init(&ws->out, OUTPUT_MAX);
	if (wslay_frame_context_init(&ws->frames, &callbacks, ws) != 0)
		mem_out(sizeof(*ws));
	return ws;
}

void ws_free(struct ws *ws)
{
	if (!ws)
		return;
	wslay_frame_context_free(ws->frames);
	buf_done(&ws->out);
	free(ws);
}

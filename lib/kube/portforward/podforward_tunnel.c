/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podforward_impl.h"

#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"

enum {
	WINDOW_MS = 1000,
	BUSY_MS = 2000, /* it stays so after its last busy second */
};

/*
 * State
 */

void tunnel_kill(struct podforward_tunnel *tunnel, struct err *fault)
{
	if (tunnel->is_dead) {
		err_clear(fault);
		return;
	}
	tunnel->is_dead = true;
	err_move(&tunnel->fault, fault);
	forward_wake(tunnel->forward);
}

void tunnel_leave(struct podforward_tunnel *tunnel)
{
	tunnel->is_closing = true;
	forward_forget_pod(tunnel->forward);
	forward_wake(tunnel->forward);
}

bool tunnel_takes(const struct podforward_tunnel *tunnel)
{
	return tunnel->is_open && !tunnel->is_dead && !tunnel->is_closing;
}

bool tunnel_is_busy(const struct podforward_tunnel *tunnel, int64_t now_ms)
{
	if (tunnel->busy_ms && now_ms - tunnel->busy_ms < BUSY_MS)
		return true;
	for (size_t i = 0; i < tunnel->conns.n; i++)
		if (conn_is_bulk(tunnel->conns.v[i], now_ms))
			return true;
	return false;
}

void tunnel_count(struct podforward_tunnel *tunnel, size_t bytes)
{
	tunnel->window_bytes += bytes;
	if (tunnel->window_bytes < FORWARD_BUSY_BYTES)
		return;
	int64_t now_ms = clock_ms();
	bool is_new = now_ms - tunnel->busy_ms >= BUSY_MS;
	if (now_ms - tunnel->window_ms <= WINDOW_MS) {
		tunnel->busy_ms = now_ms;
		if (is_new)
			forward_tunnel_busy(tunnel);
	}
	tunnel->window_ms = now_ms;
	tunnel->window_bytes = 0;
}

/* A small request may have come here before it was seen that another one's reader stands still. */
bool tunnel_is_held(const struct podforward_tunnel *tunnel)
{
	enum conn_room least = ROOM_FREE;
	int64_t now_ms = clock_ms();
	bool is_asked = false;

	for (size_t i = 0; i < tunnel->conns.n; i++) {
		enum conn_room room = conn_room(tunnel->conns.v[i]);

		if (room < least)
			least = room;
		is_asked = is_asked || (room == ROOM_FREE && conn_asks(tunnel->conns.v[i], now_ms));
	}
	return least == ROOM_NONE || (least == ROOM_FOR_OTHERS && !is_asked);
}

static bool wants_input(void *ctx)
{
	const struct podforward_tunnel *tunnel = ctx;

	return spdy_wants_input(tunnel->spdy) && !tunnel_is_held(tunnel);
}

/*
 * Writing
 */

bool tunnel_has_room(const struct podforward_tunnel *tunnel)
{
	return podwire_has_room(&tunnel->wire);
}

/* Control frames stand in front of the data that is made after them. */
static void send_control(void *ctx)
{
	struct podforward_tunnel *tunnel = ctx;
	struct buf *control = spdy_output(tunnel->spdy);

	if (control->len == 0)
		return;
	podwire_send(&tunnel->wire, &(struct ws_part){control->data, control->len}, 1);
	buf_reset(control);
}

static bool has_control(void *ctx)
{
	const struct podforward_tunnel *tunnel = ctx;

	return spdy_output(tunnel->spdy)->len > 0;
}

void tunnel_send(
	struct podforward_tunnel *tunnel, uint32_t id, const void *data, size_t len, bool is_end)
{
	unsigned char head[SPDY_HEAD_SIZE];

	send_control(tunnel);
	spdy_data_head(head, id, len, is_end);
	podwire_send(&tunnel->wire, (const struct ws_part[]){{head, sizeof(head)}, {data, len}}, 2);
}

void tunnel_flush(struct podforward_tunnel *tunnel)
{
	if (!tunnel->is_dead)
		podwire_flush(&tunnel->wire);
}

/*
 * Events
 */

static struct podforward_conn *find(const struct podforward_tunnel *tunnel, uint32_t id)
{
	size_t low = 0, high = tunnel->conns.n;

	while (low < high) {
		size_t middle = (low + high) / 2;
		struct podforward_conn *conn = tunnel->conns.v[middle];

		if (id >= conn->error_id && id <= conn->data_id)
			return conn;
		if (id > conn->data_id)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/* Data for streams that were given up is dropped. */
static int on_data(
	void *ctx, uint32_t id, const void *data, size_t len, bool is_end, struct err *err)
{
	struct podforward_tunnel *tunnel = ctx;
	struct podforward_conn *conn = find(tunnel, id);

	(void)err;
	tunnel_count(tunnel, len);
	tunnel->came_ms = clock_ms();
	if (!conn)
		return 0;
	if (id == conn->error_id) {
		conn_error(conn, data, len, is_end);
		return 0;
	}
	conn_data(conn, data, len, is_end);
	if (!conn->is_touched) {
		conn->is_touched = true;
		*vec_push(&tunnel->touched) = conn;
	}
	return 0;
}

static int on_reply(void *ctx, uint32_t id, const struct spdy_field *fields, size_t n, bool is_end,
	struct err *err)
{
	struct podforward_conn *conn = find(ctx, id);

	(void)fields;
	(void)n;
	if (conn && id == conn->data_id)
		conn_reply(conn);
	return is_end ? on_data(ctx, id, "", 0, true, err) : 0;
}

static int on_reset(void *ctx, uint32_t id, uint32_t status, struct err *err)
{
	struct podforward_conn *conn = find(ctx, id);

	(void)status;
	(void)err;
	if (conn)
		conn_reset(conn, id == conn->data_id);
	return 0;
}

static int on_goaway(void *ctx, uint32_t last_id, struct err *err)
{
	struct podforward_tunnel *tunnel = ctx;

	(void)last_id;
	(void)err;
	tunnel->is_closing = true;
	forward_wake(tunnel->forward);
	return 0;
}

static void flush_touched(void *ctx)
{
	struct podforward_tunnel *tunnel = ctx;

	for (size_t i = 0; i < tunnel->touched.n; i++) {
		tunnel->touched.v[i]->is_touched = false;
		conn_flush(tunnel->touched.v[i]);
	}
	tunnel->touched.n = 0;
}

static int on_bytes(void *ctx, const void *data, size_t len, bool is_start, struct err *err)
{
	struct podforward_tunnel *tunnel = ctx;

	(void)is_start;
	return spdy_receive(tunnel->spdy, data, len, err);
}

static void on_ping(void *ctx)
{
	struct podforward_tunnel *tunnel = ctx;

	spdy_ping(tunnel->spdy);
}

static void on_dead(void *ctx, struct err *fault)
{
	tunnel_kill(ctx, fault);
}

/*
 * Beginning and end
 */

static void on_dialled(void *ctx, struct stream *stream, bool is_websocket, struct err *fault)
{
	struct podforward_tunnel *tunnel = ctx;
	const struct podwire_events events = {
		.data = on_bytes,
		.wants_input = wants_input,
		.after_input = flush_touched,
		.before_output = send_control,
		.has_output = has_control,
		.ping = on_ping,
		.dead = on_dead,
		.ctx = tunnel,
	};

	tunnel->dial = NULL;
	if (!stream) {
		tunnel_kill(tunnel, fault);
		return;
	}
	podwire_init(&tunnel->wire, tunnel->forward->options.loop, stream, is_websocket,
		tunnel->forward->scratch, tunnel->forward->options.ping_ms, &events);
	tunnel->is_open = true;
	tunnel->idle_ms = tunnel->opened_ms = clock_ms();
	forward_tunnel_opened(tunnel);
}

struct podforward_tunnel *tunnel_new(struct podforward *forward)
{
	const struct podforward_transport *transport = &forward->options.transport;
	struct podforward_tunnel *tunnel = mem_alloc(1, sizeof(*tunnel));
	const struct spdy_events events = {
		.reply = on_reply,
		.data = on_data,
		.reset = on_reset,
		.goaway = on_goaway,
		.ctx = tunnel,
	};

	tunnel->forward = forward;
	tunnel->pod = mem_strdup(forward->pod);
	tunnel->spdy = spdy_new(&events);
	tunnel->dial = transport->dial(
		transport->ctx, forward->kube_namespace, forward->pod, on_dialled, tunnel);
	return tunnel;
}

void tunnel_forget(struct podforward_tunnel *tunnel, struct podforward_conn *conn)
{
	size_t kept = 0;

	for (size_t i = 0; i < tunnel->conns.n; i++)
		if (tunnel->conns.v[i] != conn)
			tunnel->conns.v[kept++] = tunnel->conns.v[i];
	tunnel->conns.n = kept;
	if (tunnel->conns.n == 0)
		tunnel->idle_ms = clock_ms();
}

void tunnel_free(struct podforward_tunnel *tunnel)
{
	if (!tunnel)
		return;
	if (tunnel->dial)
		tunnel->forward->options.transport.cancel(tunnel->dial);
	podwire_done(&tunnel->wire);
	spdy_free(tunnel->spdy);
	err_clear(&tunnel->fault);
	free(tunnel->pod);
	vec_done(&tunnel->conns);
	vec_done(&tunnel->touched);
	free(tunnel);
}

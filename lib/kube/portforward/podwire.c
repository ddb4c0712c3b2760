/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podwire.h"

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	READ_BUDGET = 1 << 20, /* in one dispatch */
	OPCODE_BINARY = 2,
	CLOSE_NORMAL = 1000,
	REASON_MAX = 125,
	ASLEEP_MS = 5 * 1000, /* a timer that is so late: the machine was asleep */
	ASLEEP_PONG_MS = 3 * 1000,
};

/* Takes the error. */
static void podwire_kill(struct podwire *wire, struct err *error)
{
	if (wire->is_dead) {
		err_clear(error);
		return;
	}
	wire->is_dead = true;
	wire->events.dead(wire->events.ctx, error);
}

static bool podwire_wants_input(const struct podwire *wire)
{
	if (wire->is_dead || (wire->ws && !ws_wants_input(wire->ws)))
		return false;
	return !wire->events.wants_input || wire->events.wants_input(wire->events.ctx);
}

/*
 * Writing
 */

static struct buf *podwire_output(const struct podwire *wire)
{
	return wire->ws ? ws_output(wire->ws) : (struct buf *)&wire->plain;
}

bool podwire_is_writable(const struct podwire *wire)
{
	return !wire->is_dead && podwire_output(wire)->len < PODWIRE_OUT_MAX;
}

void podwire_send(struct podwire *wire, const struct ws_part *parts, size_t n)
{
	if (wire->ws) {
		ws_send(wire->ws, OPCODE_BINARY, parts, n);
		return;
	}
	for (size_t i = 0; i < n; i++)
		buf_add(&wire->plain, parts[i].data, parts[i].len);
}

void podwire_flush(struct podwire *wire)
{
	AUTO_ERR struct err err = {0};
	struct buf *out = podwire_output(wire);
	size_t at = 0;

	if (wire->is_dead)
		return;
	if (wire->events.before_output)
		wire->events.before_output(wire->events.ctx);
	while (at < out->len) {
		ssize_t n =
			wire->stream->ops->write(wire->stream, out->data + at, out->len - at, &err);

		if (n == STREAM_AGAIN)
			break;
		if (n <= 0) {
			podwire_kill(wire, &err);
			return;
		}
		at += (size_t)n;
	}
	/* Once for all that has left: what stays is moved. */
	if (at)
		buf_consume(out, at);
}

/*
 * Reading
 */

static int podwire_on_message(void *ctx, int opcode, const void *data, size_t len, bool is_start,
	bool is_end UNUSED, struct err *err)
{
	struct podwire *wire = ctx;

	if (opcode != OPCODE_BINARY)
		return err_set(err, E_HTTP_PROTOCOL, "the server sends text where bytes should be");
	return wire->events.data(wire->events.ctx, data, len, is_start, err);
}

static void podwire_on_close(void *ctx, unsigned code, const char *reason, size_t len)
{
	struct podwire *wire = ctx;
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *text =
		mem_strndup(reason ? reason : "", len < REASON_MAX ? len : REASON_MAX);
	AUTO_FREE char *shown = str_escaped(text);

	err_set(&err, E_HTTP_CLOSED, "the server closed the connection (%u%s%s)", code,
		*shown ? ": " : "", shown);
	podwire_kill(wire, &err);
}

static int podwire_take(struct podwire *wire, size_t len, struct err *err)
{
	if (wire->ws)
		return ws_receive(wire->ws, wire->scratch, len, err);
	return wire->events.data(wire->events.ctx, wire->scratch, len, false, err);
}

static void podwire_read_all(struct podwire *wire)
{
	AUTO_ERR struct err err = {0};
	size_t budget = READ_BUDGET;

	while (budget && podwire_wants_input(wire)) {
		ssize_t n =
			wire->stream->ops->read(wire->stream, wire->scratch, PODWIRE_SCRATCH, &err);

		if (n == STREAM_AGAIN)
			break;
		if (n == 0)
			err_set(&err, E_HTTP_CLOSED, "the server ended the connection");
		if (n <= 0 || podwire_take(wire, (size_t)n, &err) < 0) {
			podwire_kill(wire, &err);
			break;
		}
		wire->is_silent = false;
		budget -= (size_t)n < budget ? (size_t)n : budget;
	}
	if (wire->events.after_input)
		wire->events.after_input(wire->events.ctx);
}

static void podwire_turn(struct podwire *wire)
{
	if (wire->is_dead)
		return;
	podwire_read_all(wire);
	podwire_flush(wire);
}

static int podwire_on_kick(void *ctx, struct err *err UNUSED)
{
	struct podwire *wire = ctx;

	wire->kick = NULL;
	podwire_turn(wire);
	return 0;
}

static short podwire_prepare(void *ctx)
{
	struct podwire *wire = ctx;

	if (wire->is_dead)
		return 0;
	bool want_read = podwire_wants_input(wire);
	bool want_write = podwire_output(wire)->len > 0 ||
			  (wire->events.has_output && wire->events.has_output(wire->events.ctx));
	/* Bytes already buffered in the stream are not seen by poll. */
	if (want_read && !wire->kick && wire->stream->ops->pending(wire->stream))
		wire->kick = loop_add_timer(wire->loop, 0, podwire_on_kick, wire);
	return wire->stream->ops->events(wire->stream, want_read, want_write);
}

static int podwire_dispatch(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	podwire_turn(ctx);
	return 0;
}

/*
 * Pings
 */

static int podwire_on_ping(void *ctx, struct err *err);

static void podwire_set_ping(struct podwire *wire, int64_t wait_ms)
{
	wire->due_ms = clock_ms() + wait_ms;
	wire->ping = loop_add_timer(wire->loop, wire->due_ms, podwire_on_ping, wire);
}

static void podwire_send_ping(struct podwire *wire)
{
	if (wire->ws)
		ws_ping(wire->ws);
	else if (wire->events.ping)
		wire->events.ping(wire->events.ctx);
	wire->is_pinging = wire->is_silent = true;
	podwire_flush(wire);
}

static int podwire_on_ping(void *ctx, struct err *err UNUSED)
{
	struct podwire *wire = ctx;
	AUTO_ERR struct err error = {0};
	int64_t pong_ms = wire->ping_ms * 2 / 3;
	bool was_asleep = clock_ms() - wire->due_ms > ASLEEP_MS;

	wire->ping = NULL;
	if (wire->is_dead)
		return 0;
	/* Input that came while this process slept has not been read yet. */
	if (!wire->is_pinging || was_asleep) {
		podwire_send_ping(wire);
		podwire_set_ping(wire, was_asleep ? ASLEEP_PONG_MS : pong_ms);
		return 0;
	}
	/* While input is not read, silence means nothing. */
	if (wire->is_silent && podwire_wants_input(wire)) {
		err_set(&error, E_HTTP_TIMEOUT, "the server does not answer any more");
		podwire_kill(wire, &error);
		return 0;
	}
	wire->is_pinging = false;
	podwire_set_ping(wire, wire->ping_ms - pong_ms);
	return 0;
}

/*
 * Beginning and end
 */

void podwire_init(struct podwire *wire, struct loop *loop, struct stream *stream, bool is_websocket,
	unsigned char *scratch, int64_t ping_ms, const struct podwire_events *events)
{
	static const struct loop_fd_ops ops = {podwire_prepare, podwire_dispatch};
	const struct ws_events ws_events = {
		.data = podwire_on_message, .close = podwire_on_close, .ctx = wire};

	*wire = (struct podwire){
		.loop = loop,
		.events = *events,
		.stream = stream,
		.ws = is_websocket ? ws_new(&ws_events) : NULL,
		.scratch = scratch,
		.ping_ms = ping_ms ? ping_ms : PODWIRE_PING_MS,
	};
	/* Bounded by podwire_is_writable. */
	buf_init(&wire->plain, SIZE_MAX / 2);
	wire->source = loop_add_fd(loop, stream->fd, &ops, wire);
	podwire_set_ping(wire, wire->ping_ms);
}

void podwire_done(struct podwire *wire)
{
	if (!wire->stream)
		return;
	if (wire->ws && !wire->is_dead) {
		ws_close(wire->ws, CLOSE_NORMAL);
		podwire_flush(wire);
	}
	wire->is_dead = true;
	loop_remove_timer(wire->loop, wire->kick);
	loop_remove_timer(wire->loop, wire->ping);
	loop_remove_fd(wire->loop, wire->source);
	stream_free(wire->stream);
	ws_free(wire->ws);
	buf_done(&wire->plain);
	*wire = (struct podwire){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd_impl.h"
#include "net/stream/field.h"

/*
 * A stream of which the first bytes are here already
 */

struct early {
	struct stream stream;
	struct stream *inner;
	char *data;
	size_t at, len;
};

static ssize_t early_read(struct stream *stream, void *out, size_t len, struct err *err)
{
	struct early *early = (struct early *)stream;
	size_t left = early->len - early->at;

	if (left == 0)
		return early->inner->ops->read(early->inner, out, len, err);
	len = len < left ? len : left;
	memcpy(out, early->data + early->at, len);
	early->at += len;
	return (ssize_t)len;
}

static ssize_t early_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	struct stream *inner = ((struct early *)stream)->inner;

	return inner->ops->write(inner, data, len, err);
}

static int early_shutdown(struct stream *stream, struct err *err)
{
	struct stream *inner = ((struct early *)stream)->inner;

	return inner->ops->shutdown(inner, err);
}

static short early_events(struct stream *stream, bool want_read, bool want_write)
{
	struct stream *inner = ((struct early *)stream)->inner;

	return inner->ops->events(inner, want_read, want_write);
}

static bool early_pending(const struct stream *stream)
{
	const struct early *early = (const struct early *)stream;

	return early->at < early->len || early->inner->ops->pending(early->inner);
}

static void end_early(struct stream *stream, void (*end)(struct stream *stream))
{
	struct early *early = (struct early *)stream;

	end(early->inner);
	free(early->data);
	free(early);
}

static void early_free(struct stream *stream)
{
	end_early(stream, stream_free);
}

static void early_reset(struct stream *stream)
{
	end_early(stream, stream_reset);
}

static const struct stream_ops early_ops = {
	.read = early_read,
	.write = early_write,
	.shutdown = early_shutdown,
	.events = early_events,
	.pending = early_pending,
	.free = early_free,
	.reset = early_reset,
};

/* Data of this side that waits for the other one comes before the input still unread. */
static struct stream *stream_of(
	struct httpd_wire *wire, const struct httpd_wire *other, struct loop *loop)
{
	struct early *early = mem_alloc(1, sizeof(*early));
	size_t waiting = httpd_wire_pending(other);

	early->len = waiting + wire->in.len;
	early->data = mem_alloc(early->len + 1, 1);
	memcpy(early->data, other->out.data + other->out_at, waiting);
	memcpy(early->data + waiting, wire->in.data, wire->in.len);
	loop_remove_fd(loop, TAKE(wire->source));
	early->inner = stream_from_fd(wire->fd);
	early->stream = (struct stream){.ops = &early_ops, .fd = wire->fd};
	return &early->stream;
}

/*
 * The tunnel
 */

void httpd_tunnel_free(struct httpd_tunnel *tunnel)
{
	struct httpd *httpd = tunnel->httpd;

	if (tunnel->next)
		tunnel->next->before = tunnel->before;
	if (tunnel->before)
		tunnel->before->next = tunnel->next;
	else
		httpd->tunnels = tunnel->next;
	free(tunnel);
	httpd_release(httpd);
}

static int httpd_relay_on_done(void *ctx, struct pump_end *end UNUSED, struct err *err UNUSED)
{
	httpd_tunnel_free(ctx);
	return 0;
}

/* Both sides become a tunnel's, the connection is dead. */
static void httpd_tunnel_start(struct httpd_conn *conn)
{
	struct httpd *httpd = conn->httpd;
	struct loop *loop = httpd->options.loop;
	struct httpd_tunnel *tunnel = mem_alloc(1, sizeof(*tunnel));
	struct stream *a = stream_of(&conn->client, &conn->program, loop);
	struct stream *b = stream_of(&conn->program, &conn->client, loop);
	const struct pump_options options = {
		.loop = loop, .a = a, .b = b, .done = httpd_relay_on_done, .ctx = tunnel};

	(void)httpd_wire_take(&conn->client, loop);
	(void)httpd_wire_take(&conn->program, loop);
	conn->is_dead = true;
	*tunnel = (struct httpd_tunnel){.httpd = httpd, .next = httpd->tunnels};
	if (httpd->tunnels)
		httpd->tunnels->before = tunnel;
	httpd->tunnels = tunnel;
	httpd->n++;
	tunnel->pump = pump_start(&options);
}

enum phase {
	PHASE_START,
	PHASE_HEAD, /* of the response: awaited */
	PHASE_BODY,
};

struct httpd_relay {
	struct httpd_route route; /* key, strip and host are its own */
	char *key, *strip, *host;
	char *original_host; /* of the request, before it was renamed; NULL: no other name */
	enum phase phase;
	struct httpd_head response;
	struct httpd_meter body; /* of the response */
	bool makes_chunks;       /* of a response that ends with its connection */
	bool was_tried;          /* on a connection that was there before */
};

void httpd_relay_free(struct httpd_relay *relay)
{
	if (!relay)
		return;
	if (relay->route.free)
		relay->route.free(relay->route.ctx);
	httpd_head_done(&relay->response);
	free(relay->key);
	free(relay->strip);
	free(relay->host);
	free(relay->original_host);
	free(relay);
}

static void rename_request(struct httpd_exchange *exchange, struct httpd_relay *relay)
{
	const char *requested = field_find(&exchange->head.headers, "host");

	if (!relay->host || !requested)
		return;
	relay->original_host = mem_strdup(requested);
	httpd_head_rename(&exchange->head, relay->original_host, relay->host);
}

void httpd_relay(struct httpd_exchange *exchange, const struct httpd_route *route)
{
	struct httpd_relay *relay = mem_alloc(1, sizeof(*relay));

	BUG_ON(exchange->conn->httpd->is_public);
	relay->route = *route;
	relay->key = mem_strdup(route->key);
	relay->strip = mem_strdup(route->strip);
	relay->host = mem_strdup(route->host);
	exchange->relay = relay;
	exchange->is_released = true;
	rename_request(exchange, relay);
	if (exchange->is_origin_right || route->any_origin)
		httpd_conn_wake(exchange->conn);
	else
		httpd_refuse(exchange, 403, "a page of another origin has asked for this", NULL);
}

/*
 * The connection to the program
 */

static void drop_program(struct httpd_conn *conn)
{
	httpd_wire_close(&conn->program, conn->httpd->options.loop, true);
	free(TAKE(conn->key));
	conn->was_answered = false;
}

/* The program is read while the client takes what it sends. */
static bool httpd_relay_may_read(const struct httpd_conn *conn)
{
	return conn->state != HTTPD_WORKS || httpd_wire_pending(&conn->client) < HTTPD_PIECE;
}

static short prepare_program(void *ctx)
{
	const struct httpd_conn *conn = ctx;

	return httpd_wire_events(&conn->program, httpd_relay_may_read(conn));
}

/* Between requests nothing may come from it. */
static int dispatch_program(void *ctx, short revents, struct err *err UNUSED)
{
	struct httpd_conn *conn = ctx;
	struct httpd_wire *wire = &conn->program;

	if (revents & ~POLLOUT)
		httpd_wire_read(wire);
	httpd_wire_flush(wire);
	if (conn->state != HTTPD_WORKS && (wire->ended || wire->in.len > 0))
		drop_program(conn);
	httpd_conn_turn(conn);
	return 0;
}

static const struct loop_fd_ops program_ops = {
	.prepare = prepare_program, .dispatch = dispatch_program};

static int connect_program(struct httpd_conn *conn, struct httpd_relay *relay, struct err *err)
{
	int fds[2];

	drop_program(conn);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0)
		return fs_error(err, errno, "cannot make a connection to the program");
	fcntl(fds[1], F_SETFD, FD_CLOEXEC);
	fcntl(fds[1], F_SETFL, fcntl(fds[1], F_GETFL) | O_NONBLOCK);
	httpd_wire_open(&conn->program, conn->httpd->options.loop, fds[0], &program_ops, conn);
	int r = relay->route.connect(relay->route.ctx, fds[1], err);
	if (r < 0) {
		drop_program(conn);
		return r;
	}
	conn->key = mem_strdup(relay->key);
	return 0;
}

/* Data that the program has sent since its last response is no response to this request. */
static bool is_reusable(struct httpd_conn *conn, const struct httpd_relay *relay)
{
	if (!conn->was_answered || !str_eq(conn->key, relay->key))
		return false;
	httpd_wire_read(&conn->program);
	return !conn->program.ended && conn->program.in.len == 0;
}

void httpd_relay_settle(struct httpd_conn *conn)
{
	const struct httpd_exchange *exchange = &conn->exchange;
	const struct httpd_relay *relay = exchange->relay;
	const struct httpd_wire *wire = &conn->program;

	if (!relay || wire->fd < 0)
		return;
	bool stays = relay->phase == PHASE_BODY && relay->response.keeps_open && relay->body.over &&
		     exchange->body.over && !exchange->closes && !wire->ended &&
		     wire->in.len == 0 && httpd_wire_pending(wire) == 0;
	if (stays)
		conn->was_answered = true;
	else
		drop_program(conn);
}

/*
 * Errors
 */

static void httpd_relay_refuse(
	struct httpd_conn *conn, int status, const char *what, const char *hint)
{
	drop_program(conn);
	httpd_refuse(&conn->exchange, status, what, hint);
}

/* A response that has begun can only be broken off. */
static void httpd_relay_fail(struct httpd_conn *conn, int status, const struct err *err)
{
	struct httpd_exchange *exchange = &conn->exchange;

	httpd_notice(conn->httpd, "%s", err->message);
	if (exchange->relay->phase != PHASE_BODY) {
		httpd_relay_refuse(conn, status, err->message, err->hint);
		return;
	}
	drop_program(conn);
	httpd_exchange_end(exchange, true);
}

static void httpd_relay_fail_response(struct httpd_conn *conn, const char *what)
{
	AUTO_ERR struct err err = {0};

	err_set(&err, E_HTTPD_HEAD, "the program's answer is broken: %s", what);
	httpd_relay_fail(conn, 502, &err);
}

/* The program has closed a connection that was there before, while the request was on its way: it
 * may come again where it changes nothing. */
static bool may_try_again(const struct httpd_conn *conn)
{
	const struct httpd_head *head = &conn->exchange.head;

	return conn->was_answered && conn->program.in.len == 0 &&
	       !conn->exchange.relay->was_tried && head->body == HTTPD_BODY_NONE &&
	       !head->is_upgrade && (str_eq(head->method, "GET") || str_eq(head->method, "HEAD"));
}

static void explain_silence(struct httpd_conn *conn)
{
	const struct httpd_route *route = &conn->exchange.relay->route;
	AUTO_FREE char *what = NULL, *hint = NULL;

	if (route->why)
		route->why(route->ctx, &what, &hint);
	httpd_relay_refuse(conn, 502,
		what ? what : "the program has ended the connection without an answer", hint);
}

/* There is no more to read of the program than what is here. */
static bool httpd_relay_take_end(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;
	struct httpd_relay *relay = exchange->relay;

	if (relay->phase == PHASE_HEAD && may_try_again(conn)) {
		relay->was_tried = true;
		relay->phase = PHASE_START;
		drop_program(conn);
	} else if (relay->phase == PHASE_HEAD) {
		explain_silence(conn);
	} else if (relay->body.body == HTTPD_BODY_TO_END && !conn->program.failed) {
		relay->body.over = true;
		if (relay->makes_chunks)
			buf_adds(&conn->client.out, "0\r\n\r\n");
		httpd_exchange_end(exchange, false);
	} else {
		httpd_notice(conn->httpd, "the program has broken an answer off");
		httpd_exchange_end(exchange, true);
	}
	return true;
}

/*
 * The request
 */

static bool httpd_relay_start(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;
	struct httpd_relay *relay = exchange->relay;
	AUTO_ERR struct err err = {0};

	if (!is_reusable(conn, relay) && connect_program(conn, relay, &err) < 0) {
		httpd_relay_fail(conn, 502, &err);
		return true;
	}
	relay->phase = PHASE_HEAD;
	if (str_eq(exchange->head.method, "CONNECT")) {
		buf_adds(&conn->client.out, "HTTP/1.1 200 Connected\r\n\r\n");
		httpd_tunnel_start(conn);
		return false;
	}
	httpd_head_write(&exchange->head, relay->strip, true, &conn->program.out);
	return true;
}

/* A body that the program does not take any more is dropped: it may have responded already. */
static bool send_body(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;
	struct buf *in = &conn->client.in;
	AUTO_ERR struct err err = {0};
	size_t used = 0;

	httpd_wire_flush(&conn->program);
	if (in->len > 0 && httpd_wire_pending(&conn->program) < HTTPD_PIECE) {
		if (httpd_meter_feed(&exchange->body, in->data, in->len, &used, &err) < 0) {
			exchange->closes = true;
			httpd_relay_fail(conn, 400, &err);
			return true;
		}
		buf_add(&conn->program.out, in->data, used);
		buf_consume(in, used);
		httpd_wire_flush(&conn->program);
	}
	return used > 0;
}

/*
 * The response
 */

static bool switch_protocol(struct httpd_conn *conn, const struct httpd_head *response)
{
	if (!conn->exchange.head.is_upgrade || !response->is_upgrade) {
		httpd_relay_fail_response(
			conn, "it changes to another protocol that nobody has asked for");
		return true;
	}
	httpd_head_write(response, NULL, true, &conn->client.out);
	httpd_tunnel_start(conn);
	return false;
}

static bool begin_response(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;
	struct httpd_relay *relay = exchange->relay;
	struct httpd_head *response = &relay->response;
	bool is_to_end = response->body == HTTPD_BODY_TO_END;

	if (exchange->head.is_http_1_0 && response->body == HTTPD_BODY_CHUNKED) {
		httpd_relay_fail_response(conn, "HTTP/1.0 has no Transfer-Encoding");
		return true;
	}
	relay->phase = PHASE_BODY;
	relay->makes_chunks = is_to_end && !exchange->head.is_http_1_0;
	if (relay->makes_chunks)
		strv_add(&response->headers, "transfer-encoding: chunked");
	exchange->mode = is_to_end && !relay->makes_chunks ? HTTPD_MODE_TO_END : HTTPD_MODE_NONE;
	exchange->closes = !exchange->head.keeps_open || exchange->mode == HTTPD_MODE_TO_END;
	httpd_meter_start(&relay->body, response);
	httpd_head_write(response, NULL, !exchange->closes, &conn->client.out);
	if (relay->body.over)
		httpd_exchange_end(exchange, false);
	return true;
}

static bool httpd_relay_take_response(struct httpd_conn *conn)
{
	struct httpd_exchange *exchange = &conn->exchange;
	struct buf *in = &conn->program.in;
	AUTO_HTTPD_HEAD struct httpd_head response = {0};
	AUTO_ERR struct err err = {0};
	size_t used = 0;

	int r = httpd_response_parse(
		in->data, in->len, exchange->head.method, &response, &used, &err);
	if (r < 0) {
		httpd_relay_fail_response(conn, err.message);
		return true;
	}
	if (r == 0)
		return conn->program.ended ? httpd_relay_take_end(conn) : false;
	buf_consume(in, used);
	if (response.status == 101)
		return switch_protocol(conn, &response);
	if (response.status < 200) {
		if (!exchange->head.is_http_1_0)
			httpd_head_write(&response, NULL, true, &conn->client.out);
		return true;
	}
	if (exchange->relay->original_host)
		httpd_head_rename(&response, exchange->relay->host, exchange->relay->original_host);
	exchange->relay->response = response;
	response = (struct httpd_head){0};
	return begin_response(conn);
}

static bool httpd_relay_take_body(struct httpd_conn *conn)
{
	struct httpd_relay *relay = conn->exchange.relay;
	struct buf *in = &conn->program.in;
	AUTO_ERR struct err err = {0};
	size_t used;

	if (in->len == 0)
		return conn->program.ended ? httpd_relay_take_end(conn) : false;
	if (httpd_meter_feed(&relay->body, in->data, in->len, &used, &err) < 0) {
		httpd_relay_fail_response(conn, err.message);
		return true;
	}
	if (used > 0)
		httpd_wire_add(&conn->client, in->data, used, relay->makes_chunks);
	buf_consume(in, used);
	if (relay->body.over)
		httpd_exchange_end(&conn->exchange, false);
	return true;
}

bool httpd_relay_step(struct httpd_conn *conn)
{
	const struct httpd_relay *relay = conn->exchange.relay;

	if (relay->phase == PHASE_START)
		return httpd_relay_start(conn);
	bool was_sent = send_body(conn);
	if (conn->exchange.is_over || httpd_wire_pending(&conn->client) >= HTTPD_PIECE)
		return was_sent;
	bool was_taken = relay->phase == PHASE_HEAD ? httpd_relay_take_response(conn)
						    : httpd_relay_take_body(conn);
	return was_sent || was_taken;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/httpd/front_impl.h"

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* it is noticed when the answer comes */
#endif

/*
 * Time
 */

static int64_t deadline_of(const struct front_conn *conn)
{
	if (conn->state == FRONT_LINGERS)
		return conn->since_ms + FRONT_LINGER_MS;
	if (conn->state == FRONT_WORKS)
		return INT64_MAX;
	return conn->since_ms + (conn->client.in.len > 0 ? FRONT_HEAD_MS : FRONT_IDLE_MS);
}

static int timer_due(void *ctx, struct err *err);

/* A timer that is too early is kept: timer_due checks the deadline, and sets it again. */
static void set_timer(struct front_conn *conn)
{
	int64_t at_ms = deadline_of(conn);

	if (at_ms == INT64_MAX || (conn->timer && conn->timer_ms <= at_ms))
		return;
	loop_remove_timer(conn->front->options.loop, conn->timer);
	conn->timer = loop_add_timer(conn->front->options.loop, at_ms, timer_due, conn);
	conn->timer_ms = at_ms;
}

static int timer_due(void *ctx, struct err *err)
{
	struct front_conn *conn = ctx;

	(void)err;
	conn->timer = NULL;
	if (clock_ms() >= deadline_of(conn)) {
		if (conn->state == FRONT_WAITS && conn->client.in.len > 0) {
			conn->state = FRONT_WORKS;
			conn->exchange = (struct front_exchange){.conn = conn};
			front_page(&conn->exchange, 408, "the request did not come in time", NULL);
		} else {
			conn->is_dead = true;
		}
	}
	front_conn_turn(conn);
	return 0;
}

static int wake_due(void *ctx, struct err *err)
{
	struct front_conn *conn = ctx;

	(void)err;
	conn->wake = NULL;
	front_conn_turn(conn);
	return 0;
}

void front_conn_wake(struct front_conn *conn)
{
	conn->goes_on = true;
	if (!conn->is_turning && !conn->wake)
		conn->wake = loop_add_timer(conn->front->options.loop, clock_ms(), wake_due, conn);
}

/*
 * States of a connection
 */

static void enter(struct front_conn *conn, enum front_state state)
{
	conn->state = state;
	conn->since_ms = clock_ms();
}

/* The answer was written. What the other side still sends is read, or it would be told of a reset
 * before it has read the answer. */
static void linger(struct front_conn *conn)
{
	bool needs_reset = conn->exchange.is_cut && conn->exchange.mode == FRONT_MODE_TO_END;

	front_exchange_done(&conn->exchange);
	if (needs_reset || shutdown(conn->client.fd, SHUT_WR) < 0)
		conn->is_dead = true;
	if (needs_reset)
		front_wire_close(&conn->client, conn->front->options.loop, true);
	enter(conn, FRONT_LINGERS);
}

static bool end_exchange(struct front_conn *conn)
{
	struct front_exchange *exchange = &conn->exchange;

	front_carry_settle(conn);
	if (exchange->closes || exchange->is_cut || !front_body_drop(exchange)) {
		linger(conn);
		return true;
	}
	front_exchange_done(exchange);
	enter(conn, FRONT_WAITS);
	return true;
}

/* A client that has ended its direction does not wait for a response. */
static bool has_left(const struct front_conn *conn)
{
	return conn->client.deaf || (conn->client.ended && !conn->exchange.is_over);
}

static void leave(struct front_conn *conn)
{
	struct front_exchange *exchange = &conn->exchange;

	conn->is_dead = true;
	if (!exchange->is_told && exchange->gone)
		exchange->gone(exchange->gone_ctx);
	exchange->is_told = true;
}

static void tell_room(struct front_exchange *exchange)
{
	if (!exchange->wants_room || exchange->is_told || !exchange->room ||
		front_wire_pending(&exchange->conn->client) > FRONT_PENDING / 2)
		return;
	exchange->wants_room = false;
	exchange->room(exchange->room_ctx);
}

static bool work(struct front_conn *conn)
{
	struct front_exchange *exchange = &conn->exchange;
	bool goes_on = false;

	if (has_left(conn)) {
		leave(conn);
		return false;
	}
	if (exchange->carry && !exchange->is_over)
		goes_on = front_carry_step(conn);
	else
		tell_room(exchange);
	if (conn->is_dead)
		return false;
	size_t waiting = front_wire_pending(&conn->client);
	front_wire_flush(&conn->client);
	if (exchange->is_over && front_wire_pending(&conn->client) == 0)
		return end_exchange(conn);
	/* Room that the flush has made may be announced by no event. */
	return goes_on || front_wire_pending(&conn->client) < waiting;
}

static bool step(struct front_conn *conn)
{
	front_wire_flush(&conn->client);
	if (conn->state == FRONT_WORKS)
		return work(conn);
	if (conn->state == FRONT_WAITS && !conn->client.deaf)
		return front_request_take(conn);
	buf_reset(&conn->client.in);
	conn->is_dead = conn->is_dead || conn->client.ended || conn->client.deaf;
	return false;
}

/* Memory that may not be needed for long. */
static void rest(struct front_conn *conn)
{
	front_wire_trim(&conn->client);
	front_wire_trim(&conn->program);
	if (front_conn_is_idle(conn))
		front_has_idle(conn->front);
	set_timer(conn);
}

void front_conn_turn(struct front_conn *conn)
{
	bool goes_on = true;

	conn->is_turning = true;
	for (int i = 0; goes_on && !conn->is_dead && i < FRONT_TURNS_MAX; i++) {
		conn->goes_on = false;
		goes_on = step(conn) || conn->goes_on;
	}
	conn->is_turning = false;
	if (conn->is_dead) {
		front_conn_free(conn);
		return;
	}
	if (goes_on)
		front_conn_wake(conn);
	rest(conn);
}

/*
 * The loop
 */

static short events_of(const struct front_wire *wire, bool reads)
{
	bool wants_read = reads && !wire->ended && wire->in.len < wire->in.max;
	bool wants_write = front_wire_pending(wire) > 0 && !wire->deaf;

	return (short)((wants_read ? POLLIN : 0) | (wants_write ? POLLOUT : 0));
}

/* Where it has sent more than is read ahead of its answer, its end cannot be read. */
static bool is_full(const struct front_conn *conn)
{
	const struct front_wire *wire = &conn->client;

	return wire->in.len == wire->in.max && !wire->ended && conn->state == FRONT_WORKS &&
	       !conn->exchange.is_over;
}

static short prepare_client(void *ctx)
{
	const struct front_conn *conn = ctx;

	return (short)(events_of(&conn->client, true) | (is_full(conn) ? POLLRDHUP : 0));
}

static int dispatch_client(void *ctx, short revents, struct err *err)
{
	struct front_conn *conn = ctx;
	bool was_empty = conn->client.in.len == 0;

	(void)err;
	if (is_full(conn) && (revents & (POLLRDHUP | POLLHUP | POLLERR)))
		conn->client.ended = true;
	if (revents & ~POLLOUT)
		front_wire_read(&conn->client);
	if (conn->state == FRONT_WAITS && was_empty && conn->client.in.len > 0)
		conn->since_ms = clock_ms();
	front_conn_turn(conn);
	return 0;
}

static const struct loop_fd_ops client_ops = {
	.prepare = prepare_client, .dispatch = dispatch_client};

/*
 * Connections
 */

bool front_conn_is_idle(const struct front_conn *conn)
{
	return conn->state == FRONT_WAITS && conn->client.in.len == 0 &&
	       front_wire_pending(&conn->client) == 0;
}

void front_conn_new(struct front *front, int fd)
{
	struct front_conn *conn = mem_alloc(1, sizeof(*conn));

	conn->front = front;
	conn->program.fd = -1;
	front_wire_open(&conn->client, front->options.loop, fd, &client_ops, conn);
	conn->next = front->conns;
	if (front->conns)
		front->conns->before = conn;
	front->conns = conn;
	front->n++;
	enter(conn, FRONT_WAITS);
	set_timer(conn);
}

void front_conn_free(struct front_conn *conn)
{
	struct front *front = conn->front;
	struct loop *loop = front->options.loop;
	bool is_reset = conn->state == FRONT_WORKS;

	if (conn->next)
		conn->next->before = conn->before;
	if (conn->before)
		conn->before->next = conn->next;
	else
		front->conns = conn->next;
	loop_remove_timer(loop, conn->timer);
	loop_remove_timer(loop, conn->wake);
	front_exchange_done(&conn->exchange);
	front_wire_close(&conn->client, loop, is_reset);
	front_wire_close(&conn->program, loop, is_reset);
	free(conn->key);
	free(conn);
	front_count_less(front);
}

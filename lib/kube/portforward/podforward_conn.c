/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podforward_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"

enum {
	RETRY_MIN_MS = 50,
	RETRY_MAX_MS = 500,
	REPLY_MS = 2000,
	SETTLE_MS = 50,
	ERROR_WAIT_MS = 1000,
	LINGER_MS = 2000,
	ANSWER_MS = 200, /* more of an answer may come behind its beginning */
	BULK_QUIET_MS = 10 * 1000,
	SLOW_BYTES = 256 << 10, /* left behind by a write: the reader is slow */
	DIRECT_MIN = 16 << 10,  /* is written as it comes, if nothing waits */
	READ_ROUNDS = 4,
	LOSSES_MAX = 3, /* it may itself be what ends them */
	REASON_MAX = 300,
};

static int on_timer(void *ctx, struct err *err);

static void set_timer(struct podforward_conn *conn, enum conn_wait wait, int64_t wait_ms)
{
	struct loop *loop = conn->forward->options.loop;

	loop_remove_timer(loop, conn->timer);
	conn->wait = wait;
	conn->timer = wait ? loop_add_timer(loop, clock_ms() + wait_ms, on_timer, conn) : NULL;
}

static size_t pending(const struct podforward_conn *conn)
{
	return conn->pending.len - conn->pending_at;
}

enum conn_room conn_room(const struct podforward_conn *conn)
{
	if (pending(conn) > FORWARD_DOWN_ASKED)
		return ROOM_NONE;
	return pending(conn) > FORWARD_DOWN_MAX ? ROOM_FOR_OTHERS : ROOM_FREE;
}

bool conn_asks(const struct podforward_conn *conn, int64_t now_ms)
{
	if (conn->is_over || conn->remote_end || !conn->has_asked)
		return false;
	return !conn->is_answered || now_ms - conn->came_ms < ANSWER_MS;
}

bool conn_is_bulk(const struct podforward_conn *conn, int64_t now_ms)
{
	uint64_t bytes = conn->end.bytes_up + conn->end.bytes_down;

	return (conn->was_slow || bytes > FORWARD_BULK_BYTES) &&
	       now_ms - conn->last_ms < BULK_QUIET_MS;
}

bool conn_waits(const struct podforward_conn *conn)
{
	return !conn->is_over && conn->wait == WAIT_TUNNEL;
}

/*
 * Ends
 */

static void leave_tunnel(struct podforward_conn *conn)
{
	struct podforward_tunnel *tunnel = conn->tunnel;

	conn->tunnel = NULL;
	if (!tunnel)
		return;
	if (!tunnel->is_dead && (!conn->remote_end || !conn->local_end))
		spdy_reset(tunnel->spdy, conn->data_id, SPDY_CANCEL);
	if (!tunnel->is_dead && !conn->error_end)
		spdy_reset(tunnel->spdy, conn->error_id, SPDY_CANCEL);
	tunnel_forget(tunnel, conn);
}

static void close_local(struct podforward_conn *conn, bool reset)
{
	const struct linger linger = {.l_onoff = 1};

	loop_remove_fd(conn->forward->options.loop, conn->source);
	conn->source = NULL;
	/* A local side that is cut off must not take this for an orderly end. */
	if (reset && conn->fd >= 0)
		setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	if (conn->fd >= 0)
		close(conn->fd);
	conn->fd = -1;
}

static void finish(struct podforward_conn *conn, bool reset)
{
	if (conn->is_over)
		return;
	trace_note(TRACE_KUBE, "forward to port %u: %s after %lld ms", conn->port,
		reset ? "reset" : "ended", (long long)(clock_ms() - conn->begun_ms));
	conn->is_over = true;
	set_timer(conn, WAIT_NOTHING, 0);
	leave_tunnel(conn);
	close_local(conn, reset);
	forward_wake(conn->forward);
}

static void fail(struct podforward_conn *conn, const struct err *fault)
{
	if (conn->is_over)
		return;
	if (err_is_set(fault))
		err_set(&conn->end.fault, fault->id, "%s", fault->message);
	else
		err_set(&conn->end.fault, E_KUBE_FORWARD, "the connection to the pod was lost");
	finish(conn, true);
}

void conn_fail(struct podforward_conn *conn, const struct err *fault)
{
	if (conn->is_over)
		return;
	fail(conn, fault);
	forward_say(conn->forward, "a connection to port %u ended: %s", conn->port,
		conn->end.fault.message);
}

void conn_drop(struct podforward_conn *conn)
{
	finish(conn, true);
}

/* Another tunnel, unless that would send twice what a program may have got. */
static bool move(struct podforward_conn *conn)
{
	if (conn->heard || conn->end.bytes_up || conn->local_end || conn->remote_end ||
		++conn->losses > LOSSES_MAX)
		return false;
	leave_tunnel(conn);
	buf_reset(&conn->error);
	conn->error_end = false;
	set_timer(conn, WAIT_TUNNEL, PODFORWARD_DIAL_MS);
	forward_wake(conn->forward);
	return true;
}

void conn_lost(struct podforward_conn *conn, const struct err *fault)
{
	conn->tunnel = NULL;
	if (!conn->is_over && !move(conn))
		fail(conn, fault);
}

bool conn_is_stuck(const struct podforward_conn *conn, int64_t now_ms)
{
	bool is_waiting = !conn->heard || (conn->has_asked && !conn->is_answered);

	return !conn->is_over && is_waiting && !pending(conn) &&
	       now_ms - conn->waits_ms >= conn->forward->options.look_ms;
}

/* Nothing has come for a while. */
static bool is_quiet(const struct podforward_conn *conn, int64_t now_ms)
{
	int64_t since_ms = now_ms - conn->forward->options.look_ms;

	return conn->came_ms <= since_ms && conn->tunnel->gone_ms <= since_ms;
}

/*
 * Messages of the error stream
 */

static bool is_refused(const struct podforward_conn *conn)
{
	return strstr(conn->error.data, "connection refused") != NULL;
}

/* The tunnel lives on, but leads to a pod that is no more (what containerd and CRI-O say). */
static bool is_pod_gone(const struct podforward_conn *conn)
{
	static const char *const texts[] = {"network namespace for sandbox",
		"failed to find sandbox", "not created or running", "not running"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (strstr(conn->error.data, texts[i]))
			return true;
	return false;
}

/* The port refused the connection or there is none, so that nothing received what was sent. */
static bool may_retry(const struct podforward_conn *conn)
{
	bool is_nobody = is_refused(conn) || is_pod_gone(conn);

	return is_nobody && !conn->heard && conn->kept.len == conn->end.bytes_up &&
	       clock_ms() - conn->begun_ms < conn->forward->options.hold_ms;
}

static void retry(struct podforward_conn *conn)
{
	forward_set_port(conn->forward, conn->port, false);
	if (conn->end.bytes_up && !conn->is_behind)
		conn->tunnel->is_closing = true;
	leave_tunnel(conn);
	conn->error_end = conn->remote_end = false;
	buf_reset(&conn->error);
	conn->retry_ms = conn->retry_ms ? 2 * conn->retry_ms : RETRY_MIN_MS;
	if (conn->retry_ms > RETRY_MAX_MS)
		conn->retry_ms = RETRY_MAX_MS;
	set_timer(conn, WAIT_RETRY, conn->retry_ms);
}

static void fail_with_error(struct podforward_conn *conn)
{
	AUTO_ERR struct err fault = {0};

	if (is_refused(conn)) {
		err_set(&fault, E_KUBE_FORWARD, "nothing listens on port %u of pod %s", conn->port,
			conn->tunnel->pod);
	} else {
		buf_truncate(
			&conn->error, conn->error.len < REASON_MAX ? conn->error.len : REASON_MAX);
		AUTO_FREE char *shown = str_escaped(conn->error.data);
		err_set(&fault, E_KUBE_FORWARD, "%s", shown);
	}
	conn_fail(conn, &fault);
}

/* Bytes for a stream whose port refuses are read by nobody there, and the frames of other streams
 * wait behind them for ever (spdystream's frame workers). So none are sent until a port that has
 * not answered yet has had the time to say so. */
static bool is_settled(const struct podforward_conn *conn)
{
	bool is_waiting =
		conn->wait == WAIT_REPLY || conn->wait == WAIT_SETTLE || conn->wait == WAIT_SETTLED;

	return conn->heard || !is_waiting || forward_port_is_open(conn->forward, conn->port);
}

/*
 * To the local side
 */

/* All that came has been written, and the pod sends no more. */
static void end_local(struct podforward_conn *conn)
{
	bool is_whole = conn->error_end || conn->local_end;

	shutdown(conn->fd, SHUT_WR);
	if (conn->local_end) {
		finish(conn, false);
		return;
	}
	/* The pod's side is over as a whole: closing now could reset what the local side has not
	 * read yet. */
	if (is_whole) {
		leave_tunnel(conn);
		set_timer(conn, WAIT_LOCAL, LINGER_MS);
	}
}

static void check_end(struct podforward_conn *conn)
{
	if (conn->is_over || !conn->tunnel)
		return;
	if (conn->error.len && (conn->error_end || conn->remote_end)) {
		/* The error may come from a pod that is ending or has ended. */
		if (!is_refused(conn) && (!conn->heard || is_pod_gone(conn)))
			tunnel_leave(conn->tunnel);
		if (may_retry(conn))
			retry(conn);
		else
			fail_with_error(conn);
		return;
	}
	if (!conn->remote_end || pending(conn))
		return;
	if (!conn->error_end && conn->wait != WAIT_ERROR)
		set_timer(conn, WAIT_ERROR, ERROR_WAIT_MS);
	else if (conn->error_end)
		end_local(conn);
}

void conn_pod_gone(struct podforward_conn *conn, bool may_end, int64_t now_ms)
{
	AUTO_ERR struct err fault = {0};

	if (conn->is_over || pending(conn) || move(conn) || !may_end)
		return;
	/* A reset would take from the local side what it has not got yet. */
	if (os_unsent(conn->fd) > 0 || (!conn_is_stuck(conn, now_ms) && !is_quiet(conn, now_ms)))
		return;
	if (conn->remote_end) {
		/* All has come, but for the end of the error stream. */
		conn->error_end = true;
		check_end(conn);
		return;
	}
	err_set(&fault, E_KUBE_FORWARD, "pod %s has ended", conn->tunnel->pod);
	conn_fail(conn, &fault);
}

/* Bytes that the local side has taken; -1: it is gone. */
static ssize_t write_local(struct podforward_conn *conn, const void *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = send(conn->fd, (const char *)data + done, len - done, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0)
			return -1;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static void drop_written(struct podforward_conn *conn)
{
	if (pending(conn) == 0) {
		conn->pending_at = 0;
		/* Hundreds of connections must not each keep what one bulk moment took. */
		if (conn->pending.cap > 2 * FORWARD_DOWN_PIECE) {
			buf_done(&conn->pending);
			buf_init(&conn->pending, SIZE_MAX / 2);
		}
		buf_reset(&conn->pending);
	} else if (conn->pending_at > conn->pending.len / 2) {
		buf_consume(&conn->pending, conn->pending_at);
		conn->pending_at = 0;
	}
}

void conn_flush(struct podforward_conn *conn)
{
	if (conn->is_over)
		return;
	if (pending(conn) && !conn->is_blocked) {
		ssize_t n = write_local(conn, conn->pending.data + conn->pending_at, pending(conn));

		if (n < 0) {
			finish(conn, true);
			return;
		}
		conn->pending_at += (size_t)n;
		drop_written(conn);
		conn->is_blocked = pending(conn) > 0;
		conn->was_slow = conn->was_slow || pending(conn) > SLOW_BYTES;
	}
	conn->last_ms = clock_ms();
	check_end(conn);
}

static void take_data(struct podforward_conn *conn, const void *data, size_t len)
{
	if (!conn->heard) {
		conn->heard = true;
		buf_done(&conn->kept);
		forward_set_port(conn->forward, conn->port, true);
	}
	conn->is_answered = true;
	conn->came_ms = clock_ms();
	conn->end.bytes_down += len;
	if (pending(conn) == 0 && len >= DIRECT_MIN) {
		ssize_t n = write_local(conn, data, len);

		if (n < 0) {
			finish(conn, true);
			return;
		}
		data = (const char *)data + n;
		len -= (size_t)n;
	}
	buf_add(&conn->pending, data, len);
}

void conn_data(struct podforward_conn *conn, const void *data, size_t len, bool is_end)
{
	if (conn->is_over || conn->remote_end)
		return;
	if (len)
		take_data(conn, data, len);
	conn->remote_end = conn->remote_end || is_end;
	if (pending(conn) >= FORWARD_DOWN_PIECE)
		conn_flush(conn);
}

/* Resend the bytes that an earlier try had sent. */
static void send_again(struct podforward_conn *conn)
{
	if (!conn->is_behind || !conn->tunnel || !is_settled(conn))
		return;
	conn->is_behind = false;
	if (conn->kept.len)
		tunnel_send(conn->tunnel, conn->data_id, conn->kept.data, conn->kept.len, false);
	if (conn->local_end)
		tunnel_send(conn->tunnel, conn->data_id, "", 0, true);
	tunnel_flush(conn->tunnel);
}

void conn_reply(struct podforward_conn *conn)
{
	if (conn->is_over || conn->wait != WAIT_REPLY)
		return;
	if (forward_port_is_open(conn->forward, conn->port))
		set_timer(conn, WAIT_NOTHING, 0);
	else
		set_timer(conn, WAIT_SETTLE, SETTLE_MS);
	send_again(conn);
}

void conn_error(struct podforward_conn *conn, const void *data, size_t len, bool is_end)
{
	if (conn->is_over)
		return;
	buf_add(&conn->error, data, len);
	conn->error_end = conn->error_end || is_end;
	if (conn->error_end)
		conn_flush(conn);
}

void conn_reset(struct podforward_conn *conn, bool is_data)
{
	AUTO_ERR struct err fault = {0};

	if (conn->is_over)
		return;
	conn->error_end = true;
	if (is_data && conn->error.len == 0) {
		conn->remote_end = conn->local_end = true;
		err_set(&fault, E_KUBE_FORWARD, "the node cut it");
		conn_fail(conn, &fault);
		return;
	}
	conn_flush(conn);
}

/*
 * From the local side
 */

static bool wants_local(const struct podforward_conn *conn)
{
	if (conn->is_over || conn->local_end)
		return false;
	if (conn->wait == WAIT_LOCAL)
		return true;
	return conn->tunnel && !conn->is_behind && tunnel_has_room(conn->tunnel) &&
	       is_settled(conn);
}

static void send_up(struct podforward_conn *conn, const void *data, size_t len)
{
	if (!conn->heard && conn->kept.len == conn->end.bytes_up &&
		conn->kept.len < FORWARD_KEPT_MAX)
		buf_add(&conn->kept, data, len);
	tunnel_send(conn->tunnel, conn->data_id, data, len, false);
	tunnel_count(conn->tunnel, len);
	conn->end.bytes_up += len;
	conn->last_ms = clock_ms();
	if (!conn->has_asked || conn->is_answered)
		conn->waits_ms = conn->last_ms;
	conn->has_asked = true;
	conn->is_answered = false;
}

static void end_up(struct podforward_conn *conn)
{
	conn->local_end = true;
	if (conn->wait == WAIT_LOCAL) {
		finish(conn, false);
		return;
	}
	tunnel_send(conn->tunnel, conn->data_id, "", 0, true);
	/* The pod had ended before, and its error stream may never. */
	if (conn->remote_end && !pending(conn) && conn->wait == WAIT_NOTHING)
		finish(conn, false);
}

static void read_local(struct podforward_conn *conn)
{
	unsigned char *scratch = conn->forward->scratch;

	for (int i = 0; i < READ_ROUNDS && wants_local(conn); i++) {
		ssize_t n = recv(conn->fd, scratch, FORWARD_UP_PIECE, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n < 0)
			finish(conn, true);
		else if (n == 0)
			end_up(conn);
		else if (conn->wait != WAIT_LOCAL)
			send_up(conn, scratch, (size_t)n);
		if (n < FORWARD_UP_PIECE)
			return;
	}
}

static short prepare(void *ctx)
{
	struct podforward_conn *conn = ctx;

	if (conn->is_over)
		return 0;
	return (short)((wants_local(conn) ? POLLIN : 0) | (pending(conn) ? POLLOUT : 0));
}

static int dispatch(void *ctx, short revents, struct err *err)
{
	struct podforward_conn *conn = ctx;
	struct podforward_tunnel *tunnel = conn->tunnel;

	(void)err;
	if (revents & (POLLIN | POLLHUP | POLLERR))
		read_local(conn);
	if (pending(conn) && (revents & (POLLOUT | POLLHUP | POLLERR))) {
		conn->is_blocked = false;
		conn_flush(conn);
	}
	if (tunnel)
		tunnel_flush(tunnel);
	return 0;
}

static const struct loop_fd_ops conn_ops = {prepare, dispatch};

static int on_timer(void *ctx, struct err *err)
{
	struct podforward_conn *conn = ctx;
	enum conn_wait wait = conn->wait;

	(void)err;
	conn->timer = NULL;
	conn->wait = WAIT_NOTHING;
	if (wait == WAIT_TUNNEL) {
		conn_fail(conn, &conn->forward->fault);
	} else if (wait == WAIT_RETRY) {
		set_timer(conn, WAIT_TUNNEL, PODFORWARD_DIAL_MS);
		forward_wake(conn->forward);
	} else if (wait == WAIT_REPLY) {
		/* The tunnel is stuck behind another stream. */
		conn->tunnel->is_closing = true;
		move(conn);
	} else if (wait == WAIT_SETTLE) {
		/* When the machine is busy the refusal may be here, and only not have been read. */
		set_timer(conn, WAIT_SETTLED, 0);
	} else if (wait == WAIT_SETTLED) {
		forward_set_port(conn->forward, conn->port, true);
		send_again(conn);
	} else if (wait == WAIT_ERROR) {
		end_local(conn);
	} else if (wait == WAIT_LOCAL) {
		finish(conn, false);
	}
	return 0;
}

/*
 * Beginning
 */

void conn_open(struct podforward_conn *conn, struct podforward_tunnel *tunnel)
{
	char port[8], request[16];
	struct spdy_field fields[] = {
		{"streamtype", "error"}, {"port", port}, {"requestid", request}};

	snprintf(port, sizeof(port), "%u", conn->port);
	snprintf(request, sizeof(request), "%u", ++tunnel->requests);
	conn->error_id = spdy_open(tunnel->spdy, fields, ARRAY_LEN(fields), true);
	fields[0].value = "data";
	conn->data_id = spdy_open(tunnel->spdy, fields, ARRAY_LEN(fields), false);
	if (!conn->data_id) {
		tunnel->is_closing = true;
		return;
	}
	conn->tunnel = tunnel;
	*vec_push(&tunnel->conns) = conn;
	conn->waits_ms = conn->last_ms = clock_ms();
	set_timer(conn, WAIT_REPLY, REPLY_MS);
	conn->is_behind = conn->kept.len || conn->local_end;
}

struct podforward_conn *conn_new(struct podforward *forward, int fd, uint16_t port)
{
	struct podforward_conn *conn = mem_alloc(1, sizeof(*conn));

	conn->forward = forward;
	conn->fd = fd;
	conn->port = port;
	conn->begun_ms = clock_ms();
	trace_note(TRACE_KUBE, "forward to port %u: begins", port);
	buf_init(&conn->kept, FORWARD_KEPT_MAX + FORWARD_UP_PIECE);
	/* Bounded by conn_room and one read of a tunnel. */
	buf_init(&conn->pending, SIZE_MAX / 2);
	buf_init(&conn->error, FORWARD_ERROR_MAX);
	conn->source = loop_add_fd(forward->options.loop, fd, &conn_ops, conn);
	set_timer(conn, WAIT_TUNNEL, PODFORWARD_DIAL_MS);
	return conn;
}

void conn_free(struct podforward_conn *conn)
{
	if (!conn)
		return;
	loop_remove_timer(conn->forward->options.loop, conn->timer);
	leave_tunnel(conn);
	close_local(conn, true);
	buf_done(&conn->kept);
	buf_done(&conn->pending);
	buf_done(&conn->error);
	err_clear(&conn->end.fault);
	free(conn);
}

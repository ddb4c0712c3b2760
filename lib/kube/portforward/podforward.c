/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podforward.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "base/util/vec.h"
#include "kube/portforward/podwire.h"
#include "net/websocket/spdy.h"

/*
 * Tunnels (one upgraded connection each), connections (one TCP connection each), and their
 * assignment. Objects that have ended are only marked, and freed by the forward's own turn of the
 * loop, so that nothing disappears below an event.
 */

enum {
	REDIAL_MIN_MS = 100,
	REDIAL_MAX_MS = 5000,
	REDIAL_WANTED_MS = 500, /* while somebody waits */
	NOTICE_AGAIN_MS = 5000, /* the same notice not more often */
	OPEN_PORTS_MAX = 64,
	SHORT_LIFE_MS = 2000, /* a tunnel that ends so early is no success */
	IDLE_MS = 60 * 1000,  /* a tunnel that is not needed is kept so long */
	POLL_MAX_MS = 30 * 1000,
	RETRY_MIN_MS = 50,
	RETRY_MAX_MS = 500,
	REPLY_MS = 2000,
	SETTLE_MS = 50,
	ERROR_WAIT_MS = 1000,
	LINGER_MS = 2000,
	RESPONSE_MS = 200, /* more of a response may come behind its beginning */
	BULK_QUIET_MS = 10 * 1000,
	SLOW_BYTES = 256 << 10, /* left behind by a write: the reader is slow */
	DIRECT_MIN = 16 << 10,  /* is written as it comes, if nothing waits */
	READ_ROUNDS = 4,
	LOSSES_MAX = 3, /* it may itself be what ends them */
	REASON_MAX = 300,
	WINDOW_MS = 1000,
	BUSY_MS = 2000, /* it stays so after its last busy second */

	FORWARD_UP_PIECE = 128 << 10,   /* one read of a local side, one data frame */
	FORWARD_DOWN_PIECE = 128 << 10, /* is collected before it is written to a local side */
	FORWARD_DOWN_MAX = 4 << 20,     /* waits for one local side before its tunnel is not read */
	FORWARD_DOWN_REQUESTED = 32 << 20, /* the same while others there wait for answers */
	FORWARD_KEPT_MAX = 128 << 10,      /* of what was sent, for a new try */
	FORWARD_ERROR_MAX = 4 << 10,       /* of what the error stream says */
	FORWARD_BULK_BYTES = 4 << 20,      /* moved: a bulk connection */
	FORWARD_BUSY_BYTES = 1 << 20,      /* moved by a tunnel in a second */
};

struct podforward_tunnel;
struct tunnel_list VEC_OF(struct podforward_tunnel *);
struct conn_list VEC_OF(struct podforward_conn *);

struct podforward {
	struct podforward_options options;
	char *kube_namespace, *pod; /* NULL: not known */
	bool resolving;
	bool is_wanted; /* a tunnel is kept ready */
	struct tunnel_list tunnels;
	struct conn_list conns; /* all, in the order of their coming */
	struct VEC_OF(uint16_t) open_ports;
	struct loop_timer *turn; /* of the loop */
	struct loop_timer *redial;
	struct loop_timer *poll; /* while there are connections */
	int64_t poll_due_ms;
	bool is_polling;
	int64_t redial_ms; /* the backoff; 0: the last dial was good */
	bool was_lost;     /* a tunnel, and there has been none since */
	struct err error;  /* of the last dial */
	char *last_notice;
	int64_t last_notice_ms;
	unsigned char scratch[PODWIRE_SCRATCH];
};

struct podforward_tunnel {
	struct podforward *forward;
	char *pod;
	void *dial; /* of the transport, while it lasts */
	struct podwire wire;
	struct spdy *spdy;
	struct conn_list conns;   /* by the ids of their streams, which rise */
	struct conn_list touched; /* have something to be written since the last flush */
	bool is_open, is_dead;
	bool is_closing;   /* takes no more connections */
	int64_t came_ms;   /* bytes for a connection */
	int64_t gone_ms;   /* its pod was found gone: what waits, waits in vain. 0: it was not */
	struct err error;  /* why it is dead */
	int64_t busy_ms;   /* when it was seen to move much; 0: never */
	int64_t window_ms; /* a second in which bytes are counted */
	uint64_t window_bytes;
	unsigned requests; /* numbers of its connections */
	int64_t opened_ms;
	int64_t idle_ms; /* without a connection since then */
	/* Of the pod, in a row; the wait before the next one doubles. */
	unsigned n_polls;
	int64_t polled_ms;
};

/* Purpose of the timer. */
enum conn_wait {
	WAIT_NOTHING,
	WAIT_TUNNEL,
	WAIT_RETRY,  /* the port was not open */
	WAIT_REPLY,  /* the first sign of life of its streams */
	WAIT_SETTLE, /* the port may still be reported as not open */
	WAIT_SETTLED,
	WAIT_ERROR, /* the error stream's end behind the data's */
	WAIT_LOCAL, /* the local side's end behind the pod's */
};

struct podforward_conn {
	struct podforward *forward;
	struct podforward_tunnel *tunnel; /* NULL: none yet, or no more */
	uint32_t error_id, data_id;
	uint16_t port;
	int fd;
	struct loop_fd *source;
	struct buf kept;    /* all that was sent, as long as nothing has come back and it fits */
	struct buf pending; /* for the local side; from pending_at on */
	size_t pending_at;
	struct buf error;   /* text of the error stream */
	bool is_behind;     /* kept has not been sent to these streams yet */
	bool heard;         /* something has come back: no new try */
	bool has_requested; /* it has sent something */
	bool is_answered;   /* and something has come since, the last at came_ms */
	int64_t came_ms;
	bool local_end, remote_end, error_end;
	bool is_touched, is_blocked, was_slow, is_over;
	int64_t begun_ms, last_ms;
	int64_t waits_ms; /* for a response, since then */
	int losses;       /* tunnels that ended below it */
	unsigned retries; /* of a port that was not open */
	enum conn_wait wait;
	struct loop_timer *timer;
	struct podforward_end end;
	int (*done)(void *ctx, struct podforward_end *end, struct err *err);
	void *ctx;
};

static int forward_on_turn(void *ctx, struct err *err);
static void forward_tunnel_busy(struct podforward_tunnel *tunnel);
static int conn_on_timer(void *ctx, struct err *err);
static void forward_watch_pods(struct podforward *forward, int64_t wait_ms);

/*
 * The whole
 */

/* To be freed and placed in the next turn. */
static void forward_wake(struct podforward *forward)
{
	if (!forward->turn)
		forward->turn = loop_add_timer(forward->options.loop, 0, forward_on_turn, forward);
}

ERR_PRINTF(2, 3)
static void podforward_notify(struct podforward *forward, const char *fmt, ...)
{
	int64_t now_ms = clock_ms();
	va_list args;
	char *text;

	if (!forward->options.notice)
		return;
	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	if (!str_eq(text, forward->last_notice) ||
		now_ms - forward->last_notice_ms > NOTICE_AGAIN_MS)
		forward->options.notice(forward->options.ctx, text);
	REPLACE(forward->last_notice, text);
	forward->last_notice_ms = now_ms;
}

static size_t forward_find_port(const struct podforward *forward, uint16_t port)
{
	size_t i = 0;

	while (i < forward->open_ports.n && forward->open_ports.v[i] != port)
		i++;
	return i;
}

static bool forward_port_is_open(const struct podforward *forward, uint16_t port)
{
	return forward_find_port(forward, port) < forward->open_ports.n;
}

static void forward_set_port(struct podforward *forward, uint16_t port, bool is_open)
{
	size_t i = forward_find_port(forward, port);

	if (is_open && i == forward->open_ports.n && i < OPEN_PORTS_MAX)
		*vec_push(&forward->open_ports) = port;
	else if (!is_open && i < forward->open_ports.n)
		forward->open_ports.v[i] = forward->open_ports.v[--forward->open_ports.n];
}

/* The next tunnel asks again. */
static void forward_forget_pod(struct podforward *forward)
{
	free(TAKE(forward->pod));
	free(TAKE(forward->kube_namespace));
}

/*
 * Tunnels
 */

/* No more connections over it; the next tunnel asks again which pod it is. */
static void tunnel_leave(struct podforward_tunnel *tunnel)
{
	tunnel->is_closing = true;
	forward_forget_pod(tunnel->forward);
	forward_wake(tunnel->forward);
}

static bool tunnel_takes(const struct podforward_tunnel *tunnel)
{
	return tunnel->is_open && !tunnel->is_dead && !tunnel->is_closing;
}

static void tunnel_count(struct podforward_tunnel *tunnel, size_t bytes)
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

/* Control frames stand in front of the data that is made after them. */
static void tunnel_send_control(void *ctx)
{
	struct podforward_tunnel *tunnel = ctx;
	struct buf *control = spdy_output(tunnel->spdy);

	if (control->len == 0)
		return;
	podwire_send(&tunnel->wire, &(struct ws_part){control->data, control->len}, 1);
	buf_reset(control);
}

static bool tunnel_has_control(void *ctx)
{
	const struct podforward_tunnel *tunnel = ctx;

	return spdy_output(tunnel->spdy)->len > 0;
}

/* A data frame, or with len 0 and is_end the stream's end alone. */
static void tunnel_send(
	struct podforward_tunnel *tunnel, uint32_t id, const void *data, size_t len, bool is_end)
{
	unsigned char head[SPDY_HEAD_SIZE];

	tunnel_send_control(tunnel);
	spdy_data_head(head, id, len, is_end);
	podwire_send(&tunnel->wire, (const struct ws_part[]){{head, sizeof(head)}, {data, len}}, 2);
}

static void tunnel_forget(struct podforward_tunnel *tunnel, struct podforward_conn *conn)
{
	size_t kept = 0;

	for (size_t i = 0; i < tunnel->conns.n; i++)
		if (tunnel->conns.v[i] != conn)
			tunnel->conns.v[kept++] = tunnel->conns.v[i];
	tunnel->conns.n = kept;
	if (tunnel->conns.n == 0)
		tunnel->idle_ms = clock_ms();
}

/*
 * Connections: state and end
 */

static size_t conn_pending(const struct podforward_conn *conn)
{
	return conn->pending.len - conn->pending_at;
}

/* Whether a response to the connection is expected, behind data for others. */
static bool conn_awaits_response(const struct podforward_conn *conn, int64_t now_ms)
{
	if (conn->is_over || conn->remote_end || !conn->has_requested)
		return false;
	return !conn->is_answered || now_ms - conn->came_ms < RESPONSE_MS;
}

static bool conn_is_bulk(const struct podforward_conn *conn, int64_t now_ms)
{
	uint64_t bytes = conn->end.bytes_up + conn->end.bytes_down;

	return (conn->was_slow || bytes > FORWARD_BULK_BYTES) &&
	       now_ms - conn->last_ms < BULK_QUIET_MS;
}

/* Without a tunnel, and one would be of use now. */
static bool conn_waits(const struct podforward_conn *conn)
{
	return !conn->is_over && conn->wait == WAIT_TUNNEL;
}

/* Whether the data that the connection waits for may never come. */
static bool conn_is_stuck(const struct podforward_conn *conn, int64_t now_ms)
{
	bool is_waiting = !conn->heard || (conn->has_requested && !conn->is_answered);

	return !conn->is_over && is_waiting && !conn_pending(conn) &&
	       now_ms - conn->waits_ms >= conn->forward->options.poll_ms;
}

static void conn_set_timer(struct podforward_conn *conn, enum conn_wait wait, int64_t wait_ms)
{
	struct loop *loop = conn->forward->options.loop;

	loop_remove_timer(loop, conn->timer);
	conn->wait = wait;
	conn->timer = wait ? loop_add_timer(loop, clock_ms() + wait_ms, conn_on_timer, conn) : NULL;
}

static void conn_leave_tunnel(struct podforward_conn *conn)
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

static void conn_close_local(struct podforward_conn *conn, bool reset)
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

static void conn_finish(struct podforward_conn *conn, bool reset)
{
	if (conn->is_over)
		return;
	trace_note(TRACE_KUBE, "forward to port %u: %s after %lld ms", conn->port,
		reset ? "reset" : "ended", (long long)(clock_ms() - conn->begun_ms));
	conn->is_over = true;
	conn_set_timer(conn, WAIT_NOTHING, 0);
	conn_leave_tunnel(conn);
	conn_close_local(conn, reset);
	forward_wake(conn->forward);
}

static void conn_end_failed(struct podforward_conn *conn, const struct err *error)
{
	if (conn->is_over)
		return;
	if (err_is_set(error))
		err_set(&conn->end.error, error->id, "%s", error->message);
	else
		err_set(&conn->end.error, E_KUBE_FORWARD, "the connection to the pod was lost");
	conn_finish(conn, true);
}

/* Reset the local side; the error is copied. */
static void conn_fail(struct podforward_conn *conn, const struct err *error)
{
	if (conn->is_over)
		return;
	conn_end_failed(conn, error);
	podforward_notify(conn->forward, "a connection to port %u ended: %s", conn->port,
		conn->end.error.message);
}

/* Another tunnel, unless that would send twice what a program may have got. */
static bool conn_move(struct podforward_conn *conn)
{
	if (conn->heard || conn->end.bytes_up || conn->local_end || conn->remote_end ||
		++conn->losses > LOSSES_MAX)
		return false;
	conn_leave_tunnel(conn);
	buf_reset(&conn->error);
	conn->error_end = false;
	conn_set_timer(conn, WAIT_TUNNEL, PODFORWARD_DIAL_MS);
	forward_wake(conn->forward);
	return true;
}

/* Nothing has come for a while. */
static bool conn_is_quiet(const struct podforward_conn *conn, int64_t now_ms)
{
	int64_t since_ms = now_ms - conn->forward->options.poll_ms;

	return conn->came_ms <= since_ms && conn->tunnel->gone_ms <= since_ms;
}

/*
 * Messages of the error stream
 */

static bool conn_is_refused(const struct podforward_conn *conn)
{
	return strstr(conn->error.data, "connection refused") != NULL;
}

/* The tunnel lives on, but leads to a pod that is no more (what containerd and CRI-O say). */
static bool conn_is_pod_gone(const struct podforward_conn *conn)
{
	static const char *const texts[] = {"network namespace for sandbox",
		"failed to find sandbox", "not created or running", "not running"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (strstr(conn->error.data, texts[i]))
			return true;
	return false;
}

/* The port refused the connection or there is none, so that nothing received what was sent. */
static bool conn_may_retry(const struct podforward_conn *conn)
{
	bool is_nobody = conn_is_refused(conn) || conn_is_pod_gone(conn);

	return is_nobody && !conn->heard && conn->kept.len == conn->end.bytes_up &&
	       clock_ms() - conn->begun_ms < conn->forward->options.hold_ms;
}

static void conn_retry(struct podforward_conn *conn)
{
	forward_set_port(conn->forward, conn->port, false);
	if (conn->end.bytes_up && !conn->is_behind)
		conn->tunnel->is_closing = true;
	conn_leave_tunnel(conn);
	conn->error_end = conn->remote_end = false;
	buf_reset(&conn->error);
	conn_set_timer(conn, WAIT_RETRY, backoff_ms(++conn->retries, RETRY_MIN_MS, RETRY_MAX_MS));
}

static void conn_fail_with_error(struct podforward_conn *conn)
{
	AUTO_ERR struct err error = {0};

	if (conn_is_refused(conn)) {
		err_set(&error, E_KUBE_FORWARD, "nothing listens on port %u of pod %s", conn->port,
			conn->tunnel->pod);
	} else {
		buf_truncate(
			&conn->error, conn->error.len < REASON_MAX ? conn->error.len : REASON_MAX);
		AUTO_FREE char *shown = str_escaped(conn->error.data);
		err_set(&error, E_KUBE_FORWARD, "%s", shown);
	}
	conn_fail(conn, &error);
}

/* Bytes for a stream whose port refuses are read by nobody there, and the frames of other streams
 * wait behind them for ever (spdystream's frame workers). So none are sent until a port that has
 * not answered yet has had the time to say so. */
static bool conn_is_settled(const struct podforward_conn *conn)
{
	bool is_waiting =
		conn->wait == WAIT_REPLY || conn->wait == WAIT_SETTLE || conn->wait == WAIT_SETTLED;

	return conn->heard || !is_waiting || forward_port_is_open(conn->forward, conn->port);
}

/*
 * To the local side
 */

/* All that came has been written, and the pod sends no more. */
static void conn_end_local(struct podforward_conn *conn)
{
	bool is_whole = conn->error_end || conn->local_end;

	shutdown(conn->fd, SHUT_WR);
	if (conn->local_end) {
		conn_finish(conn, false);
		return;
	}
	/* The pod's side is over as a whole: closing now could reset what the local side has not
	 * read yet. */
	if (is_whole) {
		conn_leave_tunnel(conn);
		conn_set_timer(conn, WAIT_LOCAL, LINGER_MS);
	}
}

static void conn_check_end(struct podforward_conn *conn)
{
	if (conn->is_over || !conn->tunnel)
		return;
	if (conn->error.len && (conn->error_end || conn->remote_end)) {
		/* The error may come from a pod that is ending or has ended. */
		if (!conn_is_refused(conn) && (!conn->heard || conn_is_pod_gone(conn)))
			tunnel_leave(conn->tunnel);
		if (conn_may_retry(conn))
			conn_retry(conn);
		else
			conn_fail_with_error(conn);
		return;
	}
	if (!conn->remote_end || conn_pending(conn))
		return;
	if (!conn->error_end && conn->wait != WAIT_ERROR)
		conn_set_timer(conn, WAIT_ERROR, ERROR_WAIT_MS);
	else if (conn->error_end)
		conn_end_local(conn);
}

/* The pod is gone, whatever the tunnel says: a connection that has sent nothing moves to another
 * tunnel; any other one may end, unless bytes for it still come or wait. */
static void conn_pod_gone(struct podforward_conn *conn, bool may_end, int64_t now_ms)
{
	AUTO_ERR struct err error = {0};

	if (conn->is_over || conn_pending(conn) || conn_move(conn) || !may_end)
		return;
	/* A reset would take from the local side what it has not got yet. */
	if (os_unsent(conn->fd) > 0 ||
		(!conn_is_stuck(conn, now_ms) && !conn_is_quiet(conn, now_ms)))
		return;
	if (conn->remote_end) {
		/* All has come, but for the end of the error stream. */
		conn->error_end = true;
		conn_check_end(conn);
		return;
	}
	err_set(&error, E_KUBE_FORWARD, "pod %s has ended", conn->tunnel->pod);
	conn_fail(conn, &error);
}

/* Bytes that the local side has taken; -1: it is gone. */
static ssize_t conn_write_local(struct podforward_conn *conn, const void *data, size_t len)
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

static void conn_drop_written(struct podforward_conn *conn)
{
	if (conn_pending(conn) == 0) {
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

/* Write what has come, as far as it goes now, and see whether it was all. */
static void conn_flush(struct podforward_conn *conn)
{
	if (conn->is_over)
		return;
	if (conn_pending(conn) && !conn->is_blocked) {
		ssize_t n = conn_write_local(
			conn, conn->pending.data + conn->pending_at, conn_pending(conn));

		if (n < 0) {
			conn_finish(conn, true);
			return;
		}
		conn->pending_at += (size_t)n;
		conn_drop_written(conn);
		conn->is_blocked = conn_pending(conn) > 0;
		conn->was_slow = conn->was_slow || conn_pending(conn) > SLOW_BYTES;
	}
	conn->last_ms = clock_ms();
	conn_check_end(conn);
}

static void conn_take_data(struct podforward_conn *conn, const void *data, size_t len)
{
	if (!conn->heard) {
		conn->heard = true;
		buf_done(&conn->kept);
		forward_set_port(conn->forward, conn->port, true);
	}
	conn->is_answered = true;
	conn->came_ms = clock_ms();
	conn->end.bytes_down += len;
	if (conn_pending(conn) == 0 && len >= DIRECT_MIN) {
		ssize_t n = conn_write_local(conn, data, len);

		if (n < 0) {
			conn_finish(conn, true);
			return;
		}
		data = (const char *)data + n;
		len -= (size_t)n;
	}
	buf_add(&conn->pending, data, len);
}

/* Events of its streams. */
static void conn_data(struct podforward_conn *conn, const void *data, size_t len, bool is_end)
{
	if (conn->is_over || conn->remote_end)
		return;
	if (len)
		conn_take_data(conn, data, len);
	conn->remote_end = conn->remote_end || is_end;
	if (conn_pending(conn) >= FORWARD_DOWN_PIECE)
		conn_flush(conn);
}

/* Resend the bytes that an earlier try had sent. */
static void conn_send_again(struct podforward_conn *conn)
{
	if (!conn->is_behind || !conn->tunnel || !conn_is_settled(conn))
		return;
	conn->is_behind = false;
	if (conn->kept.len)
		tunnel_send(conn->tunnel, conn->data_id, conn->kept.data, conn->kept.len, false);
	if (conn->local_end)
		tunnel_send(conn->tunnel, conn->data_id, "", 0, true);
	podwire_flush(&conn->tunnel->wire);
}

static void conn_reply(struct podforward_conn *conn)
{
	if (conn->is_over || conn->wait != WAIT_REPLY)
		return;
	if (forward_port_is_open(conn->forward, conn->port))
		conn_set_timer(conn, WAIT_NOTHING, 0);
	else
		conn_set_timer(conn, WAIT_SETTLE, SETTLE_MS);
	conn_send_again(conn);
}

static void conn_error(struct podforward_conn *conn, const void *data, size_t len, bool is_end)
{
	if (conn->is_over)
		return;
	buf_add(&conn->error, data, len);
	conn->error_end = conn->error_end || is_end;
	if (conn->error_end)
		conn_flush(conn);
}

static void conn_reset(struct podforward_conn *conn, bool is_data)
{
	AUTO_ERR struct err error = {0};

	if (conn->is_over)
		return;
	conn->error_end = true;
	if (is_data && conn->error.len == 0) {
		conn->remote_end = conn->local_end = true;
		err_set(&error, E_KUBE_FORWARD, "the node cut it");
		conn_fail(conn, &error);
		return;
	}
	conn_flush(conn);
}

/*
 * From the local side
 */

static bool conn_wants_local(const struct podforward_conn *conn)
{
	if (conn->is_over || conn->local_end)
		return false;
	if (conn->wait == WAIT_LOCAL)
		return true;
	return conn->tunnel && !conn->is_behind && podwire_is_writable(&conn->tunnel->wire) &&
	       conn_is_settled(conn);
}

static void conn_send_up(struct podforward_conn *conn, const void *data, size_t len)
{
	if (!conn->heard && conn->kept.len == conn->end.bytes_up &&
		conn->kept.len < FORWARD_KEPT_MAX)
		buf_add(&conn->kept, data, len);
	tunnel_send(conn->tunnel, conn->data_id, data, len, false);
	tunnel_count(conn->tunnel, len);
	conn->end.bytes_up += len;
	conn->last_ms = clock_ms();
	if (!conn->has_requested || conn->is_answered)
		conn->waits_ms = conn->last_ms;
	conn->has_requested = true;
	conn->is_answered = false;
}

static void conn_end_up(struct podforward_conn *conn)
{
	conn->local_end = true;
	if (conn->wait == WAIT_LOCAL) {
		conn_finish(conn, false);
		return;
	}
	tunnel_send(conn->tunnel, conn->data_id, "", 0, true);
	/* The pod had ended before, and its error stream may never. */
	if (conn->remote_end && !conn_pending(conn) && conn->wait == WAIT_NOTHING)
		conn_finish(conn, false);
}

static void conn_read_local(struct podforward_conn *conn)
{
	unsigned char *scratch = conn->forward->scratch;

	for (int i = 0; i < READ_ROUNDS && conn_wants_local(conn); i++) {
		ssize_t n = recv(conn->fd, scratch, FORWARD_UP_PIECE, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n < 0)
			conn_finish(conn, true);
		else if (n == 0)
			conn_end_up(conn);
		else if (conn->wait != WAIT_LOCAL)
			conn_send_up(conn, scratch, (size_t)n);
		if (n < FORWARD_UP_PIECE)
			return;
	}
}

static short conn_prepare(void *ctx)
{
	struct podforward_conn *conn = ctx;

	if (conn->is_over)
		return 0;
	return (short)((conn_wants_local(conn) ? POLLIN : 0) | (conn_pending(conn) ? POLLOUT : 0));
}

static int conn_dispatch(void *ctx, short revents, struct err *err UNUSED)
{
	struct podforward_conn *conn = ctx;
	struct podforward_tunnel *tunnel = conn->tunnel;

	if (revents & (POLLIN | POLLHUP | POLLERR))
		conn_read_local(conn);
	if (conn_pending(conn) && (revents & (POLLOUT | POLLHUP | POLLERR))) {
		conn->is_blocked = false;
		conn_flush(conn);
	}
	if (tunnel)
		podwire_flush(&tunnel->wire);
	return 0;
}

static const struct loop_fd_ops conn_ops = {conn_prepare, conn_dispatch};

static int conn_on_timer(void *ctx, struct err *err UNUSED)
{
	struct podforward_conn *conn = ctx;
	enum conn_wait wait = conn->wait;

	conn->timer = NULL;
	conn->wait = WAIT_NOTHING;
	if (wait == WAIT_TUNNEL) {
		conn_fail(conn, &conn->forward->error);
	} else if (wait == WAIT_RETRY) {
		conn_set_timer(conn, WAIT_TUNNEL, PODFORWARD_DIAL_MS);
		forward_wake(conn->forward);
	} else if (wait == WAIT_REPLY) {
		/* The tunnel is stuck behind another stream. */
		conn->tunnel->is_closing = true;
		conn_move(conn);
	} else if (wait == WAIT_SETTLE) {
		/* When the machine is busy the refusal may be here, and only not have been read. */
		conn_set_timer(conn, WAIT_SETTLED, 0);
	} else if (wait == WAIT_SETTLED) {
		forward_set_port(conn->forward, conn->port, true);
		conn_send_again(conn);
	} else if (wait == WAIT_ERROR) {
		conn_end_local(conn);
	} else if (wait == WAIT_LOCAL) {
		conn_finish(conn, false);
	}
	return 0;
}

/* Give it streams of the tunnel. */
static void conn_open(struct podforward_conn *conn, struct podforward_tunnel *tunnel)
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
	conn_set_timer(conn, WAIT_REPLY, REPLY_MS);
	conn->is_behind = conn->kept.len || conn->local_end;
}

static struct podforward_conn *conn_new(struct podforward *forward, int fd, uint16_t port)
{
	struct podforward_conn *conn = mem_alloc(1, sizeof(*conn));

	conn->forward = forward;
	conn->fd = fd;
	conn->port = port;
	conn->begun_ms = clock_ms();
	trace_note(TRACE_KUBE, "forward to port %u: begins", port);
	buf_init(&conn->kept, FORWARD_KEPT_MAX + FORWARD_UP_PIECE);
	/* Bounded by tunnel_is_held and one read of a tunnel. */
	buf_init(&conn->pending, SIZE_MAX / 2);
	buf_init(&conn->error, FORWARD_ERROR_MAX);
	conn->source = loop_add_fd(forward->options.loop, fd, &conn_ops, conn);
	conn_set_timer(conn, WAIT_TUNNEL, PODFORWARD_DIAL_MS);
	return conn;
}

static void conn_free(struct podforward_conn *conn)
{
	if (!conn)
		return;
	loop_remove_timer(conn->forward->options.loop, conn->timer);
	conn_leave_tunnel(conn);
	conn_close_local(conn, true);
	buf_done(&conn->kept);
	buf_done(&conn->pending);
	buf_done(&conn->error);
	err_clear(&conn->end.error);
	free(conn);
}

/*
 * Events of tunnels
 */

/* Whether something on it would hold up a small request. */
static bool tunnel_is_busy(const struct podforward_tunnel *tunnel, int64_t now_ms)
{
	if (tunnel->busy_ms && now_ms - tunnel->busy_ms < BUSY_MS)
		return true;
	for (size_t i = 0; i < tunnel->conns.n; i++)
		if (conn_is_bulk(tunnel->conns.v[i], now_ms))
			return true;
	return false;
}

/* Whether the tunnel is not read, until local sides take the data that is pending for them: in any
 * case with very much of it; with much unless others there wait for responses, as a small request
 * may have come here before it was seen that another one's reader stands still. */
static bool tunnel_is_held(const struct podforward_tunnel *tunnel)
{
	int64_t now_ms = clock_ms();
	bool is_requested = false;
	size_t most = 0;

	for (size_t i = 0; i < tunnel->conns.n; i++) {
		size_t n = conn_pending(tunnel->conns.v[i]);

		most = n > most ? n : most;
		is_requested =
			is_requested ||
			(n <= FORWARD_DOWN_MAX && conn_awaits_response(tunnel->conns.v[i], now_ms));
	}
	return most > FORWARD_DOWN_REQUESTED || (most > FORWARD_DOWN_MAX && !is_requested);
}

static bool tunnel_wants_input(void *ctx)
{
	const struct podforward_tunnel *tunnel = ctx;

	return spdy_wants_input(tunnel->spdy) && !tunnel_is_held(tunnel);
}

static struct podforward_conn *tunnel_find(const struct podforward_tunnel *tunnel, uint32_t id)
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
static int tunnel_on_data(
	void *ctx, uint32_t id, const void *data, size_t len, bool is_end, struct err *err UNUSED)
{
	struct podforward_tunnel *tunnel = ctx;
	struct podforward_conn *conn = tunnel_find(tunnel, id);

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

static int tunnel_on_reply(void *ctx, uint32_t id, const struct spdy_field *fields UNUSED,
	size_t n UNUSED, bool is_end, struct err *err)
{
	struct podforward_conn *conn = tunnel_find(ctx, id);

	if (conn && id == conn->data_id)
		conn_reply(conn);
	return is_end ? tunnel_on_data(ctx, id, "", 0, true, err) : 0;
}

static int tunnel_on_reset(void *ctx, uint32_t id, uint32_t status UNUSED, struct err *err UNUSED)
{
	struct podforward_conn *conn = tunnel_find(ctx, id);

	if (conn)
		conn_reset(conn, id == conn->data_id);
	return 0;
}

static int tunnel_on_goaway(void *ctx, uint32_t last_id UNUSED, struct err *err UNUSED)
{
	struct podforward_tunnel *tunnel = ctx;

	tunnel->is_closing = true;
	forward_wake(tunnel->forward);
	return 0;
}

static void tunnel_flush_touched(void *ctx)
{
	struct podforward_tunnel *tunnel = ctx;

	for (size_t i = 0; i < tunnel->touched.n; i++) {
		tunnel->touched.v[i]->is_touched = false;
		conn_flush(tunnel->touched.v[i]);
	}
	tunnel->touched.n = 0;
}

static int tunnel_on_bytes(
	void *ctx, const void *data, size_t len, bool is_start UNUSED, struct err *err)
{
	struct podforward_tunnel *tunnel = ctx;

	return spdy_receive(tunnel->spdy, data, len, err);
}

static void tunnel_on_ping(void *ctx)
{
	struct podforward_tunnel *tunnel = ctx;

	spdy_ping(tunnel->spdy);
}

static void tunnel_on_dead(void *ctx, struct err *error)
{
	struct podforward_tunnel *tunnel = ctx;

	tunnel->is_dead = true;
	err_move(&tunnel->error, error);
	forward_wake(tunnel->forward);
}

static void tunnel_on_dialled(
	void *ctx, struct stream *stream, bool is_websocket, struct err *error)
{
	struct podforward_tunnel *tunnel = ctx;
	struct podforward *forward = tunnel->forward;
	const struct podwire_events events = {
		.data = tunnel_on_bytes,
		.wants_input = tunnel_wants_input,
		.after_input = tunnel_flush_touched,
		.before_output = tunnel_send_control,
		.has_output = tunnel_has_control,
		.ping = tunnel_on_ping,
		.dead = tunnel_on_dead,
		.ctx = tunnel,
	};

	tunnel->dial = NULL;
	if (!stream) {
		tunnel_on_dead(tunnel, error);
		return;
	}
	podwire_init(&tunnel->wire, forward->options.loop, stream, is_websocket,
		tunnel->forward->scratch, forward->options.ping_ms, &events);
	tunnel->is_open = true;
	tunnel->idle_ms = tunnel->opened_ms = clock_ms();
	err_clear(&forward->error);
	if (forward->was_lost)
		podforward_notify(forward, "connected again, to pod %s", tunnel->pod);
	forward->was_lost = false;
	forward->is_wanted = true;
	forward_wake(forward);
}

/* Begins to dial the forward's pod. */
static struct podforward_tunnel *tunnel_new(struct podforward *forward)
{
	const struct podforward_transport *transport = &forward->options.transport;
	struct podforward_tunnel *tunnel = mem_alloc(1, sizeof(*tunnel));
	const struct spdy_events events = {
		.reply = tunnel_on_reply,
		.data = tunnel_on_data,
		.reset = tunnel_on_reset,
		.goaway = tunnel_on_goaway,
		.ctx = tunnel,
	};

	tunnel->forward = forward;
	tunnel->pod = mem_strdup(forward->pod);
	tunnel->spdy = spdy_new(&events);
	tunnel->dial = transport->dial(
		transport->ctx, forward->kube_namespace, forward->pod, tunnel_on_dialled, tunnel);
	return tunnel;
}

static void tunnel_free(struct podforward_tunnel *tunnel)
{
	if (!tunnel)
		return;
	if (tunnel->dial)
		tunnel->forward->options.transport.cancel(tunnel->dial);
	podwire_done(&tunnel->wire);
	spdy_free(tunnel->spdy);
	err_clear(&tunnel->error);
	free(tunnel->pod);
	vec_done(&tunnel->conns);
	vec_done(&tunnel->touched);
	free(tunnel);
}

/*
 * The pod, and the number of tunnels
 */

static size_t forward_count_waiting(const struct podforward *forward)
{
	size_t n = 0;

	for (size_t i = 0; i < forward->conns.n; i++)
		n += conn_waits(forward->conns.v[i]);
	return n;
}

static bool forward_is_dialling(const struct podforward *forward)
{
	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (forward->tunnels.v[i]->dial)
			return true;
	return forward->resolving || forward->redial;
}

static bool forward_has_tunnel(const struct podforward *forward)
{
	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (tunnel_takes(forward->tunnels.v[i]))
			return true;
	return false;
}

/* Dial another tunnel, as soon as the pod is known. */
static void forward_dial(struct podforward *forward)
{
	if (forward_is_dialling(forward) || forward->tunnels.n >= PODFORWARD_TUNNELS_MAX)
		return;
	if (forward->pod) {
		*vec_push(&forward->tunnels) = tunnel_new(forward);
		return;
	}
	forward->resolving = true;
	forward->options.resolve(forward->options.ctx, forward);
}

static void forward_ensure_tunnel(struct podforward *forward)
{
	if (!forward_has_tunnel(forward) && (forward->is_wanted || forward_count_waiting(forward)))
		forward_dial(forward);
}

static int forward_on_redial(void *ctx, struct err *err UNUSED)
{
	struct podforward *forward = ctx;

	forward->redial = NULL;
	forward_ensure_tunnel(forward);
	return 0;
}

static void forward_redial_later(struct podforward *forward, const struct err *error)
{
	int64_t most_ms = forward_count_waiting(forward) ? REDIAL_WANTED_MS : REDIAL_MAX_MS;

	err_set(&forward->error, error->id ? error->id : E_KUBE_FORWARD, "%s",
		error->message ? error->message : "the pod cannot be reached");
	forward->redial_ms = forward->redial_ms ? 2 * forward->redial_ms : REDIAL_MIN_MS;
	if (forward->redial_ms > most_ms)
		forward->redial_ms = most_ms;
	forward_forget_pod(forward);
	loop_remove_timer(forward->options.loop, forward->redial);
	forward->redial = loop_add_timer(
		forward->options.loop, clock_ms() + forward->redial_ms, forward_on_redial, forward);
}

void podforward_pod(struct podforward *forward, const char *kube_namespace, const char *pod)
{
	forward_forget_pod(forward);
	forward->kube_namespace = mem_strdup(kube_namespace);
	forward->pod = mem_strdup(pod);
	forward->resolving = false;
	forward_dial(forward);
}

void podforward_no_pod(struct podforward *forward, const struct err *error, bool is_final)
{
	forward->resolving = false;
	if (!is_final) {
		forward_redial_later(forward, error);
		return;
	}
	forward->is_wanted = false;
	for (size_t i = 0; i < forward->conns.n; i++)
		if (conn_waits(forward->conns.v[i]))
			conn_fail(forward->conns.v[i], error);
}

/* A spare one, so that the next small request need not wait for its dial. */
static void forward_tunnel_busy(struct podforward_tunnel *tunnel)
{
	struct podforward *forward = tunnel->forward;
	int64_t now_ms = clock_ms();

	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (tunnel_takes(forward->tunnels.v[i]) &&
			!tunnel_is_busy(forward->tunnels.v[i], now_ms))
			return;
	forward_dial(forward);
}

static void forward_notify_lost(struct podforward *forward, const struct podforward_tunnel *tunnel)
{
	if (forward_has_tunnel(forward) && tunnel->conns.n == 0)
		return;
	if (!forward_has_tunnel(forward))
		forward->was_lost = true;
	podforward_notify(forward, "the connection to pod %s was lost (%s); connecting again",
		tunnel->pod, tunnel->error.message ? tunnel->error.message : "no reason given");
}

static void forward_bury(struct podforward *forward, struct podforward_tunnel *tunnel)
{
	while (tunnel->conns.n) {
		struct podforward_conn *conn = tunnel->conns.v[--tunnel->conns.n];

		conn->tunnel = NULL;
		if (!conn->is_over && !conn_move(conn))
			conn_end_failed(conn, &tunnel->error);
	}
	if (!tunnel->is_open || clock_ms() - tunnel->opened_ms < SHORT_LIFE_MS)
		forward_redial_later(forward, &tunnel->error);
	else
		forward->redial_ms = 0;
	tunnel_free(tunnel);
}

/* The dead ones, those that the server wants to end, and idle ones beside another. */
static void forward_reap_tunnels(struct podforward *forward)
{
	int64_t now_ms = clock_ms();
	size_t kept = 0, usable = 0;

	for (size_t i = 0; i < forward->tunnels.n; i++)
		usable += tunnel_takes(forward->tunnels.v[i]);
	for (size_t i = 0; i < forward->tunnels.n; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];
		bool is_idle = tunnel->is_open && tunnel->conns.n == 0;

		if (tunnel->is_dead) {
			if (tunnel->is_open) {
				forward_notify_lost(forward, tunnel);
				/* The run may have another pod by now. */
				forward_forget_pod(forward);
			}
			forward_bury(forward, tunnel);
		} else if (is_idle && (tunnel->is_closing ||
					      (usable > 1 && now_ms - tunnel->idle_ms > IDLE_MS))) {
			usable -= tunnel_takes(tunnel);
			tunnel_free(tunnel);
		} else {
			forward->tunnels.v[kept++] = tunnel;
		}
	}
	forward->tunnels.n = kept;
}

/*
 * Connections on tunnels
 */

/* The one with the fewest connections; *ret_busy: even that would hold up a small request. */
static struct podforward_tunnel *forward_best_tunnel(struct podforward *forward, bool *ret_busy)
{
	struct podforward_tunnel *best = NULL;
	int64_t now_ms = clock_ms();
	bool best_busy = true;

	for (size_t i = 0; i < forward->tunnels.n; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];

		if (!tunnel_takes(tunnel))
			continue;
		bool busy = tunnel_is_busy(tunnel, now_ms);
		bool fewer = !best || tunnel->conns.n < best->conns.n;
		if (!best || (best_busy && !busy) || (busy == best_busy && fewer)) {
			best = tunnel;
			best_busy = busy;
		}
	}
	*ret_busy = best_busy;
	return best;
}

static void forward_place(struct podforward *forward, struct podforward_conn *conn)
{
	bool is_busy;
	struct podforward_tunnel *tunnel = forward_best_tunnel(forward, &is_busy);

	if (!tunnel || is_busy)
		forward_dial(forward);
	/* Better behind a bulk one than behind a dial that has failed. */
	if (tunnel && is_busy && forward_is_dialling(forward) && !forward->redial)
		return;
	if (!tunnel)
		return;
	conn_open(conn, tunnel);
	podwire_flush(&tunnel->wire);
}

static int forward_reap_conns(struct podforward *forward, struct err *err)
{
	size_t kept = 0;
	int r = 0;

	/* done may begin new ones, which stand behind these. */
	for (size_t i = 0; i < forward->conns.n; i++) {
		struct podforward_conn *conn = forward->conns.v[i];

		if (!conn->is_over) {
			forward->conns.v[kept++] = conn;
			continue;
		}
		if (r == 0 && conn->done)
			r = conn->done(conn->ctx, &conn->end, err);
		conn_free(conn);
	}
	forward->conns.n = kept;
	return r;
}

/*
 * Pods that end without their tunnels
 */

/* The interval doubles each time, for as long as something waits. */
static bool tunnel_poll_is_due(struct podforward_tunnel *tunnel, int64_t now_ms)
{
	bool has_stuck = false;

	for (size_t i = 0; i < tunnel->conns.n && !has_stuck; i++)
		has_stuck = conn_is_stuck(tunnel->conns.v[i], now_ms);
	if (tunnel->is_dead || tunnel->gone_ms || !has_stuck) {
		tunnel->polled_ms = tunnel->n_polls = 0;
		return false;
	}
	return now_ms >= tunnel->polled_ms + backoff_ms(tunnel->n_polls,
						     tunnel->forward->options.poll_ms, POLL_MAX_MS);
}

/* Leave connections that still receive data for the next check. A reader that stands still does not
 * hold up the others for ever. */
static void tunnel_drop_quiet(struct podforward_tunnel *tunnel, int64_t now_ms)
{
	int64_t since_ms = tunnel->came_ms > tunnel->gone_ms ? tunnel->came_ms : tunnel->gone_ms;
	bool may_end = !tunnel_is_held(tunnel) || now_ms - since_ms >= POLL_MAX_MS;

	for (size_t i = tunnel->conns.n; i-- > 0;)
		conn_pod_gone(tunnel->conns.v[i], may_end, now_ms);
}

static int forward_on_poll(void *ctx, struct err *err UNUSED)
{
	struct podforward *forward = ctx;
	struct podforward_options *options = &forward->options;
	int64_t now_ms = clock_ms();
	/* Not after a standstill: data that came meanwhile was not read yet. */
	bool is_late = now_ms - forward->poll_due_ms >= options->poll_ms / 2;

	forward->poll = NULL;
	for (size_t i = 0; !is_late && i < forward->tunnels.n; i++)
		if (forward->tunnels.v[i]->gone_ms && !forward->tunnels.v[i]->is_dead)
			tunnel_drop_quiet(forward->tunnels.v[i], now_ms);
	forward_watch_pods(forward, options->poll_ms);
	for (size_t i = 0; i < forward->tunnels.n && !forward->is_polling; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];

		if (!tunnel_poll_is_due(tunnel, now_ms))
			continue;
		tunnel->polled_ms = now_ms;
		tunnel->n_polls++;
		forward->is_polling = true;
		options->poll(options->ctx, forward, tunnel->pod);
	}
	return 0;
}

static void forward_watch_pods(struct podforward *forward, int64_t wait_ms)
{
	if (forward->poll || !forward->options.poll || forward->conns.n == 0)
		return;
	forward->poll_due_ms = clock_ms() + wait_ms;
	forward->poll = loop_add_timer(
		forward->options.loop, forward->poll_due_ms, forward_on_poll, forward);
}

void podforward_polled(struct podforward *forward, const char *pod, bool is_gone)
{
	forward->is_polling = false;
	for (size_t i = 0; is_gone && i < forward->tunnels.n; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];

		if (tunnel->is_dead || !tunnel->is_open || !str_eq(tunnel->pod, pod))
			continue;
		if (str_eq(forward->pod, pod))
			tunnel_leave(tunnel);
		tunnel->is_closing = true;
		tunnel->gone_ms = clock_ms();
	}
	if (!is_gone)
		return;
	/* Soon, but behind what is here already and is read in a few turns. */
	loop_remove_timer(forward->options.loop, TAKE(forward->poll));
	forward_watch_pods(forward, forward->options.poll_ms / 4);
}

/*
 * Turns, and the interface
 */

static int forward_on_turn(void *ctx, struct err *err)
{
	struct podforward *forward = ctx;

	forward->turn = NULL;
	forward_reap_tunnels(forward);
	int r = forward_reap_conns(forward, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < forward->conns.n; i++)
		if (conn_waits(forward->conns.v[i]))
			forward_place(forward, forward->conns.v[i]);
	forward_ensure_tunnel(forward);
	return 0;
}

struct podforward_conn *podforward_relay(struct podforward *forward, int fd, uint16_t port,
	int (*done)(void *ctx, struct podforward_end *end, struct err *err), void *ctx)
{
	struct podforward_conn *conn;

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	conn = conn_new(forward, fd, port);
	conn->done = done;
	conn->ctx = ctx;
	*vec_push(&forward->conns) = conn;
	forward_watch_pods(forward, forward->options.poll_ms);
	if (forward->conns.n > PODFORWARD_CONNECTIONS_MAX) {
		AUTO_ERR struct err error = {0};

		err_set(&error, E_KUBE_FORWARD, "there are %d connections already",
			PODFORWARD_CONNECTIONS_MAX);
		conn_fail(conn, &error);
	}
	/* A connection waits now: redial sooner. */
	if (forward->redial && forward->redial_ms > REDIAL_WANTED_MS) {
		loop_remove_timer(forward->options.loop, forward->redial);
		forward->redial_ms = REDIAL_WANTED_MS;
		forward->redial = loop_add_timer(forward->options.loop, clock_ms() + REDIAL_MIN_MS,
			forward_on_redial, forward);
	}
	forward_wake(forward);
	return conn;
}

void podforward_cancel(struct podforward_conn *conn)
{
	if (!conn)
		return;
	conn->done = NULL;
	conn_finish(conn, true);
}

struct podforward *podforward_new(const struct podforward_options *options)
{
	struct podforward *forward = mem_alloc(1, sizeof(*forward));

	forward->options = *options;
	if (!forward->options.hold_ms)
		forward->options.hold_ms = PODFORWARD_HOLD_MS;
	if (!forward->options.poll_ms)
		forward->options.poll_ms = PODFORWARD_POLL_MS;
	return forward;
}

void podforward_free(struct podforward *forward)
{
	if (!forward)
		return;
	loop_remove_timer(forward->options.loop, forward->turn);
	loop_remove_timer(forward->options.loop, forward->redial);
	loop_remove_timer(forward->options.loop, forward->poll);
	for (size_t i = 0; i < forward->conns.n; i++)
		conn_free(forward->conns.v[i]);
	for (size_t i = 0; i < forward->tunnels.n; i++)
		tunnel_free(forward->tunnels.v[i]);
	vec_done(&forward->conns);
	vec_done(&forward->tunnels);
	vec_done(&forward->open_ports);
	forward_forget_pod(forward);
	err_clear(&forward->error);
	free(forward->last_notice);
	free(forward);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server on a loop, with its clients and programs in the same process: each is a socket that is
 * read as it comes. */
#ifndef DLRUN_TESTS_UNIT_HTTPDFIX_H
#define DLRUN_TESTS_UNIT_HTTPDFIX_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd.h"

enum { PEERS_MAX = 8, PEER_MAX = 8 << 20, PIECE = 64 << 10, LIMIT_MS = 60000 };

struct peer {
	struct runtime *runtime;
	int fd;
	struct loop_fd *source;
	struct buf got;
	uint64_t n_got, n_wrong; /* of a flood, which is checked and not kept */
	uint64_t to_send, n_sent;
	bool is_flooded, ended, was_reset, is_paused;
};

struct runtime {
	struct loop *loop;
	struct httpd *httpd;
	struct peer peers[PEERS_MAX]; /* clients */
	size_t n_peers;
	struct peer programs[PEERS_MAX];
	size_t n_programs;
	void (*query)(struct runtime *runtime, struct httpd_exchange *exchange,
		const struct httpd_request *request);
	struct httpd_exchange *exchange; /* the one that waits */
	struct strv seen;                /* METHOD HOST:PORT TARGET of each request */
	struct strv notices;
	bool refuses; /* connect */
	const char *key, *strip;
	bool any_origin;
	int n_gone, n_writable, n_freed;
	bool too_late, is_settled;
};

/*
 * Peers
 */

/* What stands at `at` of every flood. */
static inline char flood_byte(uint64_t at)
{
	return (char)((at * 2654435761u) >> 11);
}

static inline void peer_receive(struct peer *peer, const char *data, size_t len)
{
	if (!peer->is_flooded) {
		buf_add(&peer->got, data, len);
		return;
	}
	for (size_t i = 0; i < len; i++)
		peer->n_wrong += data[i] != flood_byte(peer->n_got + i);
	peer->n_got += len;
}

static inline void peer_read(struct peer *peer)
{
	static char data[PIECE];

	ssize_t n = recv(peer->fd, data, sizeof(data), 0);
	if (n > 0)
		peer_receive(peer, data, (size_t)n);
	peer->ended = n == 0 || (n < 0 && errno != EAGAIN);
	peer->was_reset = n < 0 && errno == ECONNRESET;
}

static inline void peer_write(struct peer *peer)
{
	static char data[PIECE];
	size_t len = peer->to_send < PIECE ? (size_t)peer->to_send : PIECE;

	for (size_t i = 0; i < len; i++)
		data[i] = flood_byte(peer->n_sent + i);
	ssize_t n = send(peer->fd, data, len, MSG_NOSIGNAL);
	if (n > 0) {
		peer->n_sent += (uint64_t)n;
		peer->to_send -= (uint64_t)n;
	} else if (n < 0 && errno != EAGAIN) {
		peer->to_send = 0;
	}
}

static inline short peer_prepare(void *ctx)
{
	const struct peer *peer = ctx;

	return (short)((peer->ended || peer->is_paused ? 0 : POLLIN) |
		       (peer->to_send > 0 ? POLLOUT : 0));
}

static inline int peer_dispatch(void *ctx, short revents, struct err *err)
{
	struct peer *peer = ctx;

	if (revents & POLLOUT)
		peer_write(peer);
	if ((revents & ~POLLOUT) && !peer->is_paused)
		peer_read(peer);
	loop_stop(peer->runtime->loop);
	return 0;
}

static const struct loop_fd_ops peer_ops = {.prepare = peer_prepare, .dispatch = peer_dispatch};

static inline void peer_open(struct runtime *runtime, struct peer *peer, int fd)
{
	*peer = (struct peer){.runtime = runtime, .fd = fd};
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	buf_init(&peer->got, PEER_MAX);
	peer->source = loop_add_fd(runtime->loop, fd, &peer_ops, peer);
}

static inline void peer_close(struct peer *peer)
{
	if (!peer->source)
		return;
	loop_remove_fd(peer->runtime->loop, TAKE(peer->source));
	close(peer->fd);
	buf_done(&peer->got);
}

static inline struct peer *client_new(struct runtime *runtime)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(httpd_port(runtime->httpd)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(runtime->n_peers < PEERS_MAX);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	struct peer *peer = &runtime->peers[runtime->n_peers++];
	peer_open(runtime, peer, fd);
	return peer;
}

/* "@" is the server's address. */
static inline void says(struct peer *peer, const char *text)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, PEER_MAX);
	for (; *text; text++)
		if (*text == '@')
			buf_addf(&out, "localhost:%u", httpd_port(peer->runtime->httpd));
		else
			buf_addc(&out, *text);
	assert_int_equal(send(peer->fd, out.data, out.len, MSG_NOSIGNAL), out.len);
}

/*
 * The loop and what is on it
 */

static inline int limit_due(void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->too_late = true;
	loop_stop(runtime->loop);
	return 0;
}

#define RUN_UNTIL(runtime, condition)                                                              \
	do {                                                                                       \
		struct loop_timer *limit_ = loop_add_timer(                                        \
			(runtime)->loop, clock_ms() + LIMIT_MS, limit_due, (runtime));             \
		while (!(condition) && !(runtime)->too_late)                                       \
			assert_int_equal(loop_run((runtime)->loop, NULL), 0);                      \
		loop_remove_timer((runtime)->loop, limit_);                                        \
		if ((runtime)->too_late)                                                           \
			fail_msg("waited in vain: %s", #condition);                                \
	} while (0)

static inline int settle_due(void *ctx, struct err *err)
{
	struct runtime *runtime = ctx;

	runtime->is_settled = true;
	loop_stop(runtime->loop);
	return 0;
}

static inline uint64_t moved(const struct runtime *runtime)
{
	uint64_t n = 0;

	for (size_t i = 0; i < PEERS_MAX; i++) {
		const struct peer *peers[] = {&runtime->peers[i], &runtime->programs[i]};

		for (size_t j = 0; j < 2; j++)
			n += peers[j]->n_got + peers[j]->got.len + peers[j]->n_sent;
	}
	return n;
}

/* In a row: in the one that follows a stall of the machine nothing may have moved yet. */
enum { QUIET_ROUNDS = 3 };

/* Until nothing moves any more. */
static inline void settles(struct runtime *runtime)
{
	for (int quiet = 0; quiet < QUIET_ROUNDS;) {
		uint64_t before = moved(runtime);
		runtime->is_settled = false;
		loop_add_timer(runtime->loop, clock_ms() + 30, settle_due, runtime);
		while (!runtime->is_settled)
			assert_int_equal(loop_run(runtime->loop, NULL), 0);
		quiet = moved(runtime) == before ? quiet + 1 : 0;
	}
}

static inline void on_gone(void *ctx)
{
	struct runtime *runtime = ctx;

	runtime->n_gone++;
	runtime->exchange = NULL;
	loop_stop(runtime->loop);
}

static inline void on_request(
	void *ctx, struct httpd_exchange *exchange, const struct httpd_request *request)
{
	struct runtime *runtime = ctx;

	strv_addf(&runtime->seen, "%s %s:%u %s", request->method, request->host, request->port,
		request->target);
	runtime->exchange = exchange;
	httpd_on_gone(exchange, on_gone, runtime);
	runtime->query(runtime, exchange, request);
	loop_stop(runtime->loop);
}

static inline void on_notice(void *ctx, const char *text)
{
	strv_add(&((struct runtime *)ctx)->notices, text);
}

static inline int on_connect(void *ctx, int fd, struct err *err)
{
	struct runtime *runtime = ctx;

	if (runtime->refuses) {
		close(fd);
		err_set(err, E_IO, "there is no <run>");
		return err_hint(err, "dlrun ps");
	}
	assert_true(runtime->n_programs < PEERS_MAX);
	peer_open(runtime, &runtime->programs[runtime->n_programs++], fd);
	loop_stop(runtime->loop);
	return 0;
}

static inline void on_why(void *ctx, char **ret_what, char **ret_hint)
{
	*ret_what = mem_strdup("nothing listens at <6006>");
	*ret_hint = mem_strdup("wait & see");
}

static inline void on_free(void *ctx)
{
	((struct runtime *)ctx)->n_freed++;
}

static inline void query_handshake(struct runtime *runtime, struct httpd_exchange *exchange,
	const struct httpd_request *request)
{
	httpd_respond(exchange, 200, NULL, "hello", 5);
}

static inline void query_nothing(struct runtime *runtime, struct httpd_exchange *exchange,
	const struct httpd_request *request)
{
}

static inline void query_relay(struct runtime *runtime, struct httpd_exchange *exchange,
	const struct httpd_request *request)
{
	const struct httpd_route route = {.key = runtime->key ? runtime->key : "key",
		.connect = on_connect,
		.why = on_why,
		.free = on_free,
		.ctx = runtime,
		.any_origin = runtime->any_origin,
		.strip = runtime->strip};

	httpd_relay(exchange, &route);
}

/* has_secret: no token is needed, whatever the system tells. */
static inline void runtime_open_as(struct runtime *runtime, struct httpd_options options)
{
	AUTO_ERR struct err err = {0};

	*runtime = (struct runtime){.loop = loop_new(), .query = query_handshake};
	options.request = on_request;
	options.notice = on_notice;
	options.ctx = runtime;
	options.loop = runtime->loop;
	if (httpd_open(&options, &runtime->httpd, &err) < 0)
		fail_msg("%s", err.message);
}

static inline void runtime_open_with(struct runtime *runtime, bool has_secret)
{
	runtime_open_as(runtime, (struct httpd_options){.has_secret = has_secret});
}

static inline void runtime_open(struct runtime *runtime)
{
	runtime_open_with(runtime, true);
}

static inline void runtime_close(struct runtime *runtime)
{
	httpd_free(runtime->httpd);
	for (size_t i = 0; i < PEERS_MAX; i++) {
		peer_close(&runtime->peers[i]);
		peer_close(&runtime->programs[i]);
	}
	strv_done(&runtime->seen);
	strv_done(&runtime->notices);
	loop_free(runtime->loop);
}

#endif

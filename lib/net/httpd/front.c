/* SPDX-License-Identifier: Apache-2.0 */
#include "net/httpd/front.h"

#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util/mem.h"
#include "net/httpd/front_impl.h"

void front_notice(const struct front *front, const char *format, ...)
{
	va_list args;

	if (!front->options.notice)
		return;
	va_start(args, format);
	AUTO_FREE char *text = mem_vprintf(format, args);
	va_end(args);
	front->options.notice(front->options.ctx, text);
}

/*
 * Connections
 */

static void hold(struct front *front, bool is_held)
{
	front->is_held = is_held;
	if (front->listener)
		listener_hold(front->listener, is_held);
}

void front_count_less(struct front *front)
{
	front->n--;
	hold(front, false);
}

void front_has_idle(struct front *front)
{
	if (front->is_held)
		hold(front, false);
}

/* The one but the newest that has waited longest for another request. */
static struct front_conn *find_idle(struct front *front)
{
	struct front_conn *found = NULL;

	for (struct front_conn *conn = front->conns->next; conn; conn = conn->next)
		if (front_conn_is_idle(conn) && (!found || conn->since_ms <= found->since_ms))
			found = conn;
	return found;
}

/* Of a new connection. Where all are at work others wait in the system's queue. */
static void make_room(struct front *front)
{
	if (front->n < FRONT_CONNS_MAX)
		return;
	struct front_conn *idle = find_idle(front);
	if (idle)
		front_conn_free(idle);
	else
		hold(front, true);
}

static int on_accept(void *ctx, int fd, const char *peer, struct err *err)
{
	struct front *front = ctx;

	(void)err;
	if (!front_peer_is_welcome(front, fd, peer)) {
		close(fd);
		return 0;
	}
	front_conn_new(front, fd);
	make_room(front);
	return 0;
}

/*
 * The front
 */

int front_open(const struct front_options *options, struct front **ret, struct err *err)
{
	struct front *front = mem_alloc(1, sizeof(*front));
	const struct listen_options listening = {.loop = options->loop,
		.port = options->port,
		.is_exact = options->is_exact,
		.accept = on_accept,
		.ctx = front};

	front->options = *options;
	front->knows_peers = front_peers_are_known();
	if (!front->knows_peers && !options->has_secret)
		front_token_make(front->token);
	int r = listener_open(&listening, &front->listener, err);
	if (r < 0) {
		free(front);
		return r;
	}
	*ret = front;
	return 0;
}

void front_free(struct front *front)
{
	if (!front)
		return;
	listener_free(TAKE(front->listener));
	while (front->conns)
		front_conn_free(front->conns);
	while (front->tunnels) {
		struct front_tunnel *tunnel = front->tunnels;

		pump_cancel(tunnel->pump);
		front_tunnel_free(tunnel);
	}
	free(front);
}

uint16_t front_port(const struct front *front)
{
	return listener_port(front->listener);
}

const char *front_token(const struct front *front)
{
	return *front->token ? front->token : NULL;
}

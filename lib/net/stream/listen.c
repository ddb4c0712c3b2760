/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	FAMILIES_MAX = 2,
	ACCEPTS_MAX = 16, /* in one dispatch */
	BACKLOG = 128,
	REST_MS = 200, /* without descriptors */
	PEER_SIZE = INET6_ADDRSTRLEN + 16,
};

struct listener {
	struct listen_options options;
	uint16_t port;
	int fds[FAMILIES_MAX]; /* or -1 */
	struct loop_fd *sources[FAMILIES_MAX];
	struct loop_timer *rest;
	bool is_held;
	bool is_accepting;
	bool ended; /* by who was called with a connection */
};

/*
 * Sockets
 */

static int parse_address(const char *text, uint16_t port, struct sockaddr_storage *ret)
{
	struct sockaddr_in *ip4 = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *ip6 = (struct sockaddr_in6 *)ret;

	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, text, &ip4->sin_addr) == 1) {
		ip4->sin_family = AF_INET;
		ip4->sin_port = htons(port);
		return sizeof(*ip4);
	}
	if (inet_pton(AF_INET6, text, &ip6->sin6_addr) == 1) {
		ip6->sin6_family = AF_INET6;
		ip6->sin6_port = htons(port);
		return sizeof(*ip6);
	}
	return -EINVAL;
}

static uint16_t listen_port_of(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *ip4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *ip6 = (const struct sockaddr_in6 *)address;

	return ntohs(address->ss_family == AF_INET ? ip4->sin_port : ip6->sin6_port);
}

static void set_flags(int fd)
{
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* *port becomes the actual port. 0 or a negative errno. */
static int open_socket(const char *text, uint16_t *port, int *ret_fd)
{
	struct sockaddr_storage address;
	const int on = 1;

	int len = parse_address(text, *port, &address);
	if (len < 0)
		return len;
	socklen_t size = (socklen_t)len;
	AUTO_FD int fd = socket(address.ss_family, SOCK_STREAM, 0);
	if (fd < 0)
		return -errno;
	set_flags(fd);
	/* Connections of a listener before this one, which are still closing, are no obstacle. */
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (address.ss_family == AF_INET6)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, BACKLOG) < 0 ||
		getsockname(fd, (struct sockaddr *)&address, &size) < 0)
		return -errno;
	*port = listen_port_of(&address);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static void close_sockets(struct listener *listener)
{
	for (int i = 0; i < FAMILIES_MAX; i++) {
		auto_fd(&listener->fds[i]);
		listener->fds[i] = -1;
	}
}

static bool is_absent(int r)
{
	return r == -EADDRNOTAVAIL || r == -EAFNOSUPPORT || r == -EPROTONOSUPPORT;
}

/* The same port in all families that there are. */
static int open_port(struct listener *listener, uint16_t port)
{
	const char *address = listener->options.address;
	static const char *const here[] = {"127.0.0.1", "::1"}, *const any[] = {"0.0.0.0", "::"};
	const char *const one[FAMILIES_MAX] = {address};
	const char *const *texts = !address ? here : str_eq(address, "*") ? any : one;
	int n = 0, absent = 0;

	for (int i = 0; i < FAMILIES_MAX && texts[i]; i++) {
		int r = open_socket(texts[i], &port, &listener->fds[i]);
		if (is_absent(r)) {
			absent = r;
		} else if (r < 0) {
			close_sockets(listener);
			return r;
		}
		n += r == 0;
	}
	listener->port = port;
	return n > 0 ? 0 : absent;
}

/* Any port is asked for several times: what is free in one family may be taken in the other. */
static int listen_find_port(struct listener *listener)
{
	const struct listen_options *options = &listener->options;
	int r = -EADDRINUSE;

	for (int i = 0; options->port && i < LISTEN_TRIES_MAX && r == -EADDRINUSE; i++) {
		if (options->port + i > UINT16_MAX || (i > 0 && options->is_exact))
			break;
		r = open_port(listener, (uint16_t)(options->port + i));
	}
	if (options->port && options->is_exact)
		return r;
	for (int i = 0; i < LISTEN_TRIES_MAX && r == -EADDRINUSE; i++)
		r = open_port(listener, 0);
	return r;
}

static int open_error(const struct listen_options *options, int errnum, struct err *err)
{
	AUTO_FREE char *where = str_shown(options->address ? options->address : "localhost");

	if (errnum == EADDRINUSE)
		return err_set(err, E_LISTEN_TAKEN, "port %u of %s is taken", options->port, where);
	if (errnum == EINVAL)
		return err_set(err, E_LISTEN, "\"%s\" is not an address", where);
	if (errnum == EADDRNOTAVAIL)
		return err_set(err, E_LISTEN, "%s is not an address of this machine", where);
	err_set_errno(
		err, E_LISTEN, errnum, "cannot listen at port %u of %s", options->port, where);
	if (errnum == EACCES)
		err_hint(err, "take a port from 1024 on");
	return -ERR_IO;
}

/*
 * Connections
 */

static void name_peer(const struct sockaddr_storage *address, char out[static PEER_SIZE])
{
	const struct sockaddr_in *ip4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *ip6 = (const struct sockaddr_in6 *)address;
	bool is_ip4 = address->ss_family == AF_INET;
	char text[INET6_ADDRSTRLEN] = "?";

	inet_ntop(address->ss_family,
		is_ip4 ? (const void *)&ip4->sin_addr : (const void *)&ip6->sin6_addr, text,
		sizeof(text));
	snprintf(out, PEER_SIZE, is_ip4 ? "%s:%u" : "[%s]:%u", text, listen_port_of(address));
}

static int rest_over(void *ctx, struct err *err UNUSED)
{
	struct listener *listener = ctx;

	listener->rest = NULL;
	return 0;
}

/* 1: there may be more; 0: none now. */
static int accept_one(struct listener *listener, int listening, struct err *err)
{
	struct sockaddr_storage address = {0};
	socklen_t len = sizeof(address);
	char peer[PEER_SIZE];
	const int on = 1;

	int fd = accept(listening, (struct sockaddr *)&address, &len);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
		listener->rest = loop_add_timer(
			listener->options.loop, clock_ms() + REST_MS, rest_over, listener);
		return 0;
	}
	/* A peer that has gone again already (ECONNABORTED) is no reason to stop. */
	if (fd < 0)
		return errno != EAGAIN && errno != EWOULDBLOCK;
	set_flags(fd);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	name_peer(&address, peer);
	int r = listener->options.accept(listener->options.ctx, fd, peer, err);
	return r < 0 ? r : 1;
}

static int accept_some(struct listener *listener, int listening, struct err *err)
{
	int r = 1;

	listener->is_accepting = true;
	for (int i = 0; r > 0 && i < ACCEPTS_MAX; i++) {
		r = accept_one(listener, listening, err);
		if (listener->is_held || listener->ended)
			break;
	}
	listener->is_accepting = false;
	if (listener->ended)
		free(listener);
	return r < 0 ? r : 0;
}

static short listen_prepare(void *ctx)
{
	const struct listener *listener = ctx;

	return listener->is_held || listener->rest ? 0 : POLLIN;
}

static int dispatch_first(void *ctx, short revents UNUSED, struct err *err)
{
	return accept_some(ctx, ((struct listener *)ctx)->fds[0], err);
}

static int dispatch_second(void *ctx, short revents UNUSED, struct err *err)
{
	return accept_some(ctx, ((struct listener *)ctx)->fds[1], err);
}

static const struct loop_fd_ops ops[FAMILIES_MAX] = {
	{.prepare = listen_prepare, .dispatch = dispatch_first},
	{.prepare = listen_prepare, .dispatch = dispatch_second},
};

/*
 * The listener
 */

int listener_open(const struct listen_options *options, struct listener **ret, struct err *err)
{
	AUTO_LISTENER struct listener *listener = mem_alloc(1, sizeof(*listener));

	listener->options = *options;
	listener->fds[0] = listener->fds[1] = -1;
	int r = listen_find_port(listener);
	if (r < 0)
		return open_error(options, -r, err);
	listener->options.address = NULL;
	for (int i = 0; i < FAMILIES_MAX; i++)
		if (listener->fds[i] >= 0)
			listener->sources[i] =
				loop_add_fd(options->loop, listener->fds[i], &ops[i], listener);
	*ret = TAKE(listener);
	return 0;
}

void listener_free(struct listener *listener)
{
	if (!listener)
		return;
	loop_remove_timer(listener->options.loop, listener->rest);
	for (int i = 0; i < FAMILIES_MAX; i++)
		loop_remove_fd(listener->options.loop, listener->sources[i]);
	close_sockets(listener);
	if (listener->is_accepting)
		listener->ended = true;
	else
		free(listener);
}

uint16_t listener_port(const struct listener *listener)
{
	return listener->port;
}

void listener_hold(struct listener *listener, bool is_held)
{
	listener->is_held = is_held;
}

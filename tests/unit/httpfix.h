/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server for tests of the HTTP client: threads that read one request after the other and answer
 * each by a function of the test.
 */
#ifndef DLRUN_TESTS_UNIT_HTTPFIX_H
#define DLRUN_TESTS_UNIT_HTTPFIX_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/mem.h"
#include "base/util/vec.h"

enum { FIX_HEAD_MAX = 128 << 10, FIX_CONNS_MAX = 2048 };

struct fix_server;

struct fix_conn {
	struct fix_server *server;
	int fd;
	char head[FIX_HEAD_MAX]; /* request line and headers of the present request */
	char path[1024];
	char method[16];
	size_t size; /* Content-Length */
	char *rest;  /* read already, behind the head */
	size_t n_rest;
	pthread_t thread;
};

/* Answers what is in conn; false: the connection is closed then. */
typedef bool fix_response_fn(struct fix_conn *conn);

struct fix_server {
	int fd;
	uint16_t port;
	fix_response_fn *handshake; /* before the first request, or NULL */
	fix_response_fn *response;
	pthread_t thread;
	pthread_mutex_t lock;
	struct fix_conn *conns[FIX_CONNS_MAX];
	int n_conns; /* ever */
	struct strv heads;
	atomic_int n_open, n_open_max, n_requests, n_bytes;
};

static inline bool fix_send(struct fix_conn *conn, const void *data, size_t len)
{
	const char *at = data;

	while (len > 0) {
		ssize_t n = send(conn->fd, at, len, MSG_NOSIGNAL);
		if (n <= 0)
			return false;
		at += n;
		len -= (size_t)n;
	}
	return true;
}

static inline bool fix_print(struct fix_conn *conn, const char *text)
{
	return fix_send(conn, text, strlen(text));
}

/* Up to len bytes of the body. */
static inline ssize_t fix_recv(struct fix_conn *conn, void *out, size_t len)
{
	if (conn->n_rest == 0)
		return recv(conn->fd, out, len, 0);
	size_t n = len < conn->n_rest ? len : conn->n_rest;
	memcpy(out, conn->rest, n);
	conn->rest += n;
	conn->n_rest -= n;
	return (ssize_t)n;
}

/* The whole body, NUL-terminated, or NULL. */
static inline char *fix_body(struct fix_conn *conn)
{
	char *body = mem_alloc(1, conn->size + 1);

	for (size_t at = 0; at < conn->size;) {
		ssize_t n = fix_recv(conn, body + at, conn->size - at);
		if (n <= 0) {
			free(body);
			return NULL;
		}
		at += (size_t)n;
	}
	return body;
}

/* Until the client has gone. */
static inline void fix_wait_end(struct fix_conn *conn)
{
	char c[4096];

	while (recv(conn->fd, c, sizeof(c), 0) > 0)
		;
}

/* Closed so that the other side sees a reset. */
static inline void fix_reset(struct fix_conn *conn)
{
	struct linger linger = {.l_onoff = 1};

	setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

static inline const char *fix_header(const struct fix_conn *conn, const char *name)
{
	const char *at = strcasestr(conn->head, name);

	return at ? at + strlen(name) : NULL;
}

static inline bool fix_read_head(struct fix_conn *conn)
{
	char *head = conn->head;
	size_t len = conn->n_rest;
	char *end;

	memmove(head, conn->rest, len);
	head[len] = '\0';
	while (!(end = strstr(head, "\r\n\r\n"))) {
		ssize_t n = len < sizeof(conn->head) - 1
				    ? recv(conn->fd, head + len, sizeof(conn->head) - 1 - len, 0)
				    : 0;
		if (n <= 0)
			return false;
		atomic_fetch_add(&conn->server->n_bytes, (int)n);
		len += (size_t)n;
		head[len] = '\0';
	}
	end[2] = '\0';
	conn->rest = end + 4;
	conn->n_rest = len - (size_t)(end + 4 - head);
	const char *length = fix_header(conn, "\r\ncontent-length:");
	conn->size = length ? strtoul(length, NULL, 10) : 0;
	return sscanf(head, "%15s %1023s", conn->method, conn->path) == 2;
}

static inline void *fix_serve(void *ctx)
{
	struct fix_conn *conn = ctx;
	struct fix_server *server = conn->server;
	int open = atomic_fetch_add(&server->n_open, 1) + 1;
	int max = atomic_load(&server->n_open_max);

	while (open > max && !atomic_compare_exchange_weak(&server->n_open_max, &max, open))
		;
	conn->rest = conn->head;
	bool goes_on = !server->handshake || server->handshake(conn);
	while (goes_on && fix_read_head(conn)) {
		atomic_fetch_add(&server->n_requests, 1);
		pthread_mutex_lock(&server->lock);
		strv_add(&server->heads, conn->head);
		pthread_mutex_unlock(&server->lock);
		goes_on = server->response(conn);
	}
	atomic_fetch_sub(&server->n_open, 1);
	pthread_mutex_lock(&server->lock);
	close(conn->fd);
	conn->fd = -1;
	pthread_mutex_unlock(&server->lock);
	return NULL;
}

static inline void *fix_accept(void *ctx)
{
	struct fix_server *server = ctx;

	for (;;) {
		int fd = accept(server->fd, NULL, NULL);
		if (fd < 0)
			return NULL;
		struct fix_conn *conn = mem_alloc(1, sizeof(*conn));
		conn->server = server;
		conn->fd = fd;
		pthread_mutex_lock(&server->lock);
		if (server->n_conns == FIX_CONNS_MAX)
			abort();
		server->conns[server->n_conns++] = conn;
		pthread_create(&conn->thread, NULL, fix_serve, conn);
		pthread_mutex_unlock(&server->lock);
	}
}

static inline int fix_bind(uint16_t *ret_port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) < 0 ||
		getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		abort();
	*ret_port = ntohs(address.sin_port);
	return fd;
}

/* A port that refuses connections, and is nobody else's until the program ends: its socket is
 * kept. */
static inline uint16_t fix_closed_port(void)
{
	uint16_t port;

	fix_bind(&port);
	return port;
}

static inline int fix_listen(uint16_t *ret_port)
{
	int fd = fix_bind(ret_port);

	if (listen(fd, 64) < 0)
		abort();
	return fd;
}

static inline struct fix_server *fix_start(fix_response_fn *response)
{
	struct fix_server *server = mem_alloc(1, sizeof(*server));

	server->response = response;
	server->fd = fix_listen(&server->port);
	pthread_mutex_init(&server->lock, NULL);
	pthread_create(&server->thread, NULL, fix_accept, server);
	return server;
}

static inline void fix_stop(struct fix_server *server)
{
	shutdown(server->fd, SHUT_RDWR);
	pthread_join(server->thread, NULL);
	close(server->fd);
	for (int i = 0; i < server->n_conns; i++) {
		pthread_mutex_lock(&server->lock);
		if (server->conns[i]->fd >= 0)
			shutdown(server->conns[i]->fd, SHUT_RDWR);
		pthread_mutex_unlock(&server->lock);
		pthread_join(server->conns[i]->thread, NULL);
		free(server->conns[i]);
	}
	strv_done(&server->heads);
	pthread_mutex_destroy(&server->lock);
	free(server);
}

#endif

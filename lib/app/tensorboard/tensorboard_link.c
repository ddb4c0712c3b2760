/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "net/httpd/httpd.h"

enum {
	PROBE_MS = 15 * 1000,
	PROBE_EVERY_MS = 100,
	CHUNK = 16 << 10,
	SAID_MAX = 64 << 10,
	LINE_MAX_BYTES = 4096
};

/*
 * Whether it answers
 */

struct tensorboard_probe {
	struct loop *loop;
	struct loop_fd *source;
	struct loop_timer *timer;
	int fd;
	struct buf response;
	tensorboard_probe_fn *done;
	void *ctx;
};

static void close_probe(struct tensorboard_probe *probe)
{
	loop_remove_fd(probe->loop, TAKE(probe->source));
	loop_remove_timer(probe->loop, TAKE(probe->timer));
	if (probe->fd >= 0)
		close(TAKE_FD(probe->fd));
}

void tensorboard_probe_free(struct tensorboard_probe *probe)
{
	if (!probe)
		return;
	close_probe(probe);
	buf_done(&probe->response);
	free(probe);
}

static void tensorboard_link_end_probe(struct tensorboard_probe *probe)
{
	char version[TENSORBOARD_VERSION_SIZE];
	bool is_tensorboard =
		tensorboard_response_read(probe->response.data, probe->response.len, version);

	close_probe(probe);
	probe->done(probe->ctx, is_tensorboard ? version : NULL);
}

static short tensorboard_link_want_read(void *ctx UNUSED)
{
	return POLLIN;
}

static int tensorboard_link_on_response(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct tensorboard_probe *probe = ctx;
	char chunk[CHUNK];
	ssize_t n = read(probe->fd, chunk, sizeof(chunk));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n > 0)
		buf_add(&probe->response, chunk, (size_t)n);
	if (n <= 0 || probe->response.full)
		tensorboard_link_end_probe(probe);
	return 0;
}

static int tensorboard_link_on_late(void *ctx, struct err *err UNUSED)
{
	struct tensorboard_probe *probe = ctx;

	probe->timer = NULL;
	tensorboard_link_end_probe(probe);
	return 0;
}

static bool send_probe(struct tensorboard_probe *probe, const struct tensorboard_link *link,
	const char *prefix, uint16_t port)
{
	AUTO_FREE char *request = mem_printf("GET %s/data/environment HTTP/1.0\r\n"
					     "Host: 127.0.0.1:%u\r\nConnection: close\r\n\r\n",
		prefix, port);
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
		return false;
	probe->fd = fds[0];
	if (write(probe->fd, request, strlen(request)) != (ssize_t)strlen(request)) {
		close(fds[1]);
		return false;
	}
	return link->connect(link->ctx, fds[1], NULL) == 0;
}

struct tensorboard_probe *tensorboard_probe_start(struct loop *loop,
	const struct tensorboard_link *link, const char *prefix, uint16_t port, int64_t timeout_ms,
	tensorboard_probe_fn *done, void *ctx)
{
	static const struct loop_fd_ops ops = {
		tensorboard_link_want_read, tensorboard_link_on_response};
	struct tensorboard_probe *probe = mem_alloc(1, sizeof(*probe));

	*probe = (struct tensorboard_probe){.loop = loop, .fd = -1, .done = done, .ctx = ctx};
	buf_init(&probe->response, TENSORBOARD_RESPONSE_MAX);
	if (send_probe(probe, link, prefix, port)) {
		probe->source = loop_add_fd(loop, probe->fd, &ops, probe);
		timeout_ms = clock_deadline(timeout_ms);
	} else {
		timeout_ms = 0;
	}
	probe->timer = loop_add_timer(loop, timeout_ms, tensorboard_link_on_late, probe);
	return probe;
}

/*
 * The server
 */

static void tensorboard_server_add_line(struct tensorboard_server *server)
{
	struct tensorboard_line line;

	if (!server->port && tensorboard_line_read(server->part.data, &line)) {
		server->port = line.port;
		memcpy(server->version, line.version, sizeof(line.version));
	}
	log_note("tensorboard: %s", server->part.data);
	buf_reset(&server->part);
}

static int tensorboard_link_on_output(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct tensorboard_server *server = ctx;
	char chunk[LINE_MAX_BYTES];
	ssize_t n = read(server->said_fd, chunk, sizeof(chunk));

	if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
		loop_remove_fd(server->loop, TAKE(server->source));
	if (n <= 0)
		return 0;
	if (server->said.len + (size_t)n > SAID_MAX)
		buf_consume(&server->said, server->said.len / 2);
	buf_add(&server->said, chunk, (size_t)n);
	for (ssize_t i = 0; i < n; i++) {
		if (chunk[i] == '\n')
			tensorboard_server_add_line(server);
		else
			buf_addc(&server->part, chunk[i]);
	}
	return 0;
}

void tensorboard_server_read(struct tensorboard_server *server)
{
	static const struct loop_fd_ops ops = {
		tensorboard_link_want_read, tensorboard_link_on_output};

	buf_init(&server->said, SAID_MAX);
	buf_init(&server->part, LINE_MAX_BYTES);
	fcntl(server->said_fd, F_SETFL, O_NONBLOCK);
	server->source = loop_add_fd(server->loop, server->said_fd, &ops, server);
}

static void tensorboard_server_on_probed(void *ctx, const char *version)
{
	struct tensorboard_server *server = ctx;

	server->has_responded = version != NULL;
	if (!str_empty(version))
		memcpy(server->version, version, strlen(version) + 1);
	server->probe_next_ms = clock_ms() + PROBE_EVERY_MS;
}

bool tensorboard_server_probe(struct tensorboard_server *server)
{
	if (server->has_responded || !server->port || clock_ms() < server->probe_next_ms)
		return server->has_responded;
	tensorboard_probe_free(server->probe);
	server->probe_next_ms = INT64_MAX;
	server->probe = tensorboard_probe_start(server->loop, &server->link, server->prefix,
		server->port, PROBE_MS, tensorboard_server_on_probed, server);
	return false;
}

int tensorboard_server_fail(struct tensorboard_server *server, const struct tensorboard_who *who,
	const char *ended, const char *hint, struct err *err)
{
	/* The last output may still be in the pipe. */
	for (size_t before = SIZE_MAX; server->source && server->said.len != before;) {
		before = server->said.len;
		tensorboard_link_on_output(server, POLLIN, NULL);
	}
	if (server->part.len)
		tensorboard_server_add_line(server);
	if (!server->has_responded)
		return tensorboard_explain(server->said.data, server->said.len, who, err);
	AUTO_FREE char *last = tensorboard_last_line(server->said.data, server->said.len);
	err_set(err, E_TENSORBOARD_ENDED, "TensorBoard %s", ended);
	if (last)
		err_evidence(err, "%s", last);
	return err_hint(err, "%s", hint);
}

void tensorboard_server_done(struct tensorboard_server *server)
{
	tensorboard_probe_free(server->probe);
	loop_remove_fd(server->loop, TAKE(server->source));
	buf_done(&server->said);
	buf_done(&server->part);
}

int tensorboard_server_poll(struct tensorboard_server *server, struct err *err)
{
	return server->poll(server, err);
}

void tensorboard_server_free(struct tensorboard_server *server)
{
	if (server)
		server->free(server);
}

/*
 * The reverse proxy
 */

enum { PORT = 6006, FOUND = 302, NOT_FOUND = 404, NOT_ALLOWED = 405 };

static void tensorboard_link_redirect(
	struct httpd_exchange *exchange, const char *secret, const char *target)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: %s%s", secret, target);
	strv_add(&headers, "Cache-Control: no-store");
	httpd_respond(exchange, FOUND, &headers, "", 0);
}

/* TensorBoard's pages request their fonts, and some plugins for more, as if there were no prefix:
 * then the page itself is below it. */
static bool is_requested_by_page(
	const struct tensorboard_httpd *httpd, const struct httpd_request *request)
{
	static const char name[] = "referer: http://";

	if (!str_eq(request->method, "GET") || request->target[0] != '/')
		return false;
	for (size_t i = 0; i < request->headers->n; i++) {
		const char *header = request->headers->v[i];
		const char *path =
			str_starts(header, name) ? strchr(header + sizeof(name) - 1, '/') : NULL;

		if (path && tensorboard_secret_fits(httpd->server->prefix, path))
			return true;
	}
	return false;
}

static void why(void *ctx UNUSED, char **ret_what, char **ret_hint)
{
	*ret_what = mem_strdup("TensorBoard does not answer");
	*ret_hint = mem_strdup("The terminal of dlrun tensorboard says why.");
}

static void tensorboard_link_on_request(
	void *ctx, struct httpd_exchange *exchange, const struct httpd_request *request)
{
	struct tensorboard_httpd *httpd = ctx;
	const struct tensorboard_server *server = httpd->server;
	const char *secret = server->prefix;
	const struct httpd_route route = {.key = "tensorboard",
		.connect = server->link.connect,
		.why = why,
		.ctx = server->link.ctx,
		.strip = server->was_found ? secret : NULL};

	if (request->is_connect) {
		httpd_refuse(exchange, NOT_ALLOWED, "This is not a proxy", NULL);
	} else if (!httpd->was_opened && tensorboard_secret_fits(httpd->once, request->target)) {
		httpd->was_opened = true;
		tensorboard_link_redirect(exchange, secret, "/");
	} else if (!tensorboard_secret_fits(secret, request->target)) {
		if (is_requested_by_page(httpd, request))
			tensorboard_link_redirect(exchange, secret, request->target);
		else
			httpd_refuse(exchange, NOT_FOUND, "There is nothing at this address",
				"Open the whole address that dlrun tensorboard has printed.");
	} else if (str_eq(request->target, secret)) {
		/* Where TensorBoard does not know the path it would lead elsewhere. */
		tensorboard_link_redirect(exchange, secret, "/");
	} else {
		httpd_relay(exchange, &route);
	}
}

static void tensorboard_link_on_notice(void *ctx UNUSED, const char *text)
{
	log_note("%s", text);
}

int tensorboard_httpd_open(struct tensorboard_httpd *httpd, const struct tensorboard_server *server,
	uint16_t port, struct err *err)
{
	const struct httpd_options listen = {.loop = server->loop,
		.port = port ? port : PORT,
		.is_exact = port != 0,
		.request = tensorboard_link_on_request,
		.notice = tensorboard_link_on_notice,
		.ctx = httpd,
		.has_secret = true};

	*httpd = (struct tensorboard_httpd){.server = server};
	tensorboard_secret_make(httpd->once);
	int r = httpd_open(&listen, &httpd->httpd, err);
	if (r < 0)
		return r;
	httpd->port = httpd_port(httpd->httpd);
	httpd->url = mem_printf("http://127.0.0.1:%u%s/", httpd->port, server->prefix);
	httpd->open_url = mem_printf("http://127.0.0.1:%u%s/", httpd->port, httpd->once);
	return 0;
}

void tensorboard_httpd_done(struct tensorboard_httpd *httpd)
{
	httpd_free(httpd->httpd);
	free(httpd->url);
	free(httpd->open_url);
}

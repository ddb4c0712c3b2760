/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "net/httpd/httpd.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"

enum { CONNECT_MS = 1000, CHUNK = 16 << 10, SAID_MAX = 64 << 10, LINE_MAX_BYTES = 4096 };

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
 * Connections
 */

struct piped {
	struct tensorboard_pumps *all;
	struct pump *pump;
	struct piped *next, **at;
};

struct tensorboard_pumps {
	struct loop *loop;
	struct piped *first;
};

struct tensorboard_pumps *tensorboard_pumps_new(struct loop *loop)
{
	struct tensorboard_pumps *pumps = mem_alloc(1, sizeof(*pumps));

	pumps->loop = loop;
	return pumps;
}

static void tensorboard_link_drop(struct piped *piped)
{
	*piped->at = piped->next;
	if (piped->next)
		piped->next->at = piped->at;
	free(piped);
}

void tensorboard_pumps_free(struct tensorboard_pumps *pumps)
{
	if (!pumps)
		return;
	while (pumps->first) {
		pump_cancel(pumps->first->pump);
		tensorboard_link_drop(pumps->first);
	}
	free(pumps);
}

static int tensorboard_link_on_pumped(
	void *ctx, struct pump_end *end UNUSED, struct err *err UNUSED)
{
	tensorboard_link_drop(ctx);
	return 0;
}

/* Loopback answers at once. */
static bool finish_connect(int s)
{
	struct pollfd pollfd = {.fd = s, .events = POLLOUT};
	int error = 0;
	socklen_t size = sizeof(error);

	if (poll(&pollfd, 1, CONNECT_MS) != 1 ||
		getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return false;
	errno = error;
	return error == 0;
}

int tensorboard_pumps_connect(
	struct tensorboard_pumps *pumps, int fd, int s, uint16_t port, struct err *err)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct piped *piped;

	fcntl(s, F_SETFD, FD_CLOEXEC);
	fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
	if (connect(s, (struct sockaddr *)&address, sizeof(address)) < 0 &&
		(errno != EINPROGRESS || !finish_connect(s))) {
		int saved = errno;

		close(s);
		close(fd);
		return err_set_errno(err, E_TENSORBOARD_ENDED, saved,
			"TensorBoard does not answer at its port %u", port);
	}
	piped = mem_alloc(1, sizeof(*piped));
	*piped = (struct piped){.all = pumps, .next = pumps->first, .at = &pumps->first};
	if (piped->next)
		piped->next->at = &piped->next;
	pumps->first = piped;
	const struct pump_options options = {.loop = pumps->loop,
		.a = stream_from_fd(fd),
		.b = stream_from_fd(s),
		.done = tensorboard_link_on_pumped,
		.ctx = piped};
	piped->pump = pump_start(&options);
	return 0;
}

/*
 * Output
 */

static int tensorboard_link_on_output(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct tensorboard_output *output = ctx;
	char chunk[LINE_MAX_BYTES];
	ssize_t n = read(output->fd, chunk, sizeof(chunk));

	if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
		loop_remove_fd(output->loop, TAKE(output->source));
	if (n <= 0)
		return 0;
	if (output->said.len + (size_t)n > SAID_MAX)
		buf_consume(&output->said, output->said.len / 2);
	buf_add(&output->said, chunk, (size_t)n);
	for (ssize_t i = 0; i < n; i++) {
		if (chunk[i] != '\n') {
			buf_addc(&output->part, chunk[i]);
			continue;
		}
		output->line(output->ctx, output->part.data, output->part.len);
		buf_reset(&output->part);
	}
	return 0;
}

void tensorboard_output_start(struct tensorboard_output *output)
{
	static const struct loop_fd_ops ops = {
		tensorboard_link_want_read, tensorboard_link_on_output};

	buf_init(&output->said, SAID_MAX);
	buf_init(&output->part, LINE_MAX_BYTES);
	fcntl(output->fd, F_SETFL, O_NONBLOCK);
	output->source = loop_add_fd(output->loop, output->fd, &ops, output);
}

void tensorboard_output_drain(struct tensorboard_output *output)
{
	for (size_t before = SIZE_MAX; output->source && output->said.len != before;) {
		before = output->said.len;
		tensorboard_link_on_output(output, POLLIN, NULL);
	}
}

void tensorboard_output_done(struct tensorboard_output *output)
{
	loop_remove_fd(output->loop, TAKE(output->source));
	buf_done(&output->said);
	buf_done(&output->part);
}

enum { PORT = 6006, FOUND = 302, NOT_FOUND = 404, NOT_ALLOWED = 405 };

struct tensorboard_httpd {
	struct httpd *httpd;
	struct tensorboard_link link;
	char secret[TENSORBOARD_SECRET_SIZE], once[TENSORBOARD_SECRET_SIZE];
	bool strip, was_opened;
	char *url, *open_url;
};

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

		if (path && tensorboard_secret_fits(httpd->secret, path))
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
	const struct httpd_route route = {.key = "tensorboard",
		.connect = httpd->link.connect,
		.why = why,
		.ctx = httpd->link.ctx,
		.strip = httpd->strip ? httpd->secret : NULL};

	if (request->is_connect) {
		httpd_refuse(exchange, NOT_ALLOWED, "This is not a proxy", NULL);
	} else if (!httpd->was_opened && tensorboard_secret_fits(httpd->once, request->target)) {
		httpd->was_opened = true;
		tensorboard_link_redirect(exchange, httpd->secret, "/");
	} else if (!tensorboard_secret_fits(httpd->secret, request->target)) {
		if (is_requested_by_page(httpd, request))
			tensorboard_link_redirect(exchange, httpd->secret, request->target);
		else
			httpd_refuse(exchange, NOT_FOUND, "There is nothing at this address",
				"Open the whole address that dlrun tensorboard has printed.");
	} else if (str_eq(request->target, httpd->secret)) {
		/* Where TensorBoard does not know the path it would lead elsewhere. */
		tensorboard_link_redirect(exchange, httpd->secret, "/");
	} else {
		httpd_relay(exchange, &route);
	}
}

static void tensorboard_link_on_notice(void *ctx UNUSED, const char *text)
{
	log_note("%s", text);
}

int tensorboard_httpd_open(const struct tensorboard_httpd_options *options,
	struct tensorboard_httpd **ret, struct err *err)
{
	AUTO(tensorboard_httpd_free_auto)
	struct tensorboard_httpd *httpd = mem_alloc(1, sizeof(*httpd));
	const struct httpd_options listen = {.loop = options->loop,
		.port = options->port ? options->port : PORT,
		.is_exact = options->port != 0,
		.request = tensorboard_link_on_request,
		.notice = tensorboard_link_on_notice,
		.ctx = httpd,
		.has_secret = true};

	httpd->link = *options->link;
	httpd->strip = options->strip;
	memcpy(httpd->secret, options->secret, sizeof(httpd->secret));
	tensorboard_secret_make(httpd->once);
	int r = httpd_open(&listen, &httpd->httpd, err);
	if (r < 0)
		return r;
	httpd->url =
		mem_printf("http://127.0.0.1:%u%s/", tensorboard_httpd_port(httpd), httpd->secret);
	httpd->open_url =
		mem_printf("http://127.0.0.1:%u%s/", tensorboard_httpd_port(httpd), httpd->once);
	*ret = TAKE(httpd);
	return 0;
}

void tensorboard_httpd_free(struct tensorboard_httpd *httpd)
{
	if (!httpd)
		return;
	httpd_free(httpd->httpd);
	free(httpd->url);
	free(httpd->open_url);
	free(httpd);
}

const char *tensorboard_httpd_url(const struct tensorboard_httpd *httpd)
{
	return httpd->url;
}

const char *tensorboard_httpd_open_url(const struct tensorboard_httpd *httpd)
{
	return httpd->open_url;
}

uint16_t tensorboard_httpd_port(const struct tensorboard_httpd *httpd)
{
	return httpd_port(httpd->httpd);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"

enum { CONNECT_MS = 1000, CHUNK = 16 << 10 };

/*
 * Whether it answers
 */

struct tensorboard_probe {
	struct loop *loop;
	struct loop_fd *source;
	struct loop_timer *timer;
	int fd;
	struct buf answer;
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
	buf_done(&probe->answer);
	free(probe);
}

static void end_probe(struct tensorboard_probe *probe)
{
	char version[TENSORBOARD_VERSION_SIZE];
	bool is = tensorboard_answer_read(probe->answer.data, probe->answer.len, version);

	close_probe(probe);
	probe->done(probe->ctx, is ? version : NULL);
}

static short want_read(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int on_answer(void *ctx, short revents, struct err *err)
{
	struct tensorboard_probe *probe = ctx;
	char chunk[CHUNK];
	ssize_t n = read(probe->fd, chunk, sizeof(chunk));

	(void)revents;
	(void)err;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n > 0)
		buf_add(&probe->answer, chunk, (size_t)n);
	if (n <= 0 || probe->answer.full)
		end_probe(probe);
	return 0;
}

static int on_late(void *ctx, struct err *err)
{
	struct tensorboard_probe *probe = ctx;

	(void)err;
	probe->timer = NULL;
	end_probe(probe);
	return 0;
}

static bool ask(struct tensorboard_probe *probe, const struct tensorboard_link *link,
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
	static const struct loop_fd_ops ops = {want_read, on_answer};
	struct tensorboard_probe *probe = mem_alloc(1, sizeof(*probe));

	*probe = (struct tensorboard_probe){.loop = loop, .fd = -1, .done = done, .ctx = ctx};
	buf_init(&probe->answer, TENSORBOARD_ANSWER_MAX);
	if (ask(probe, link, prefix, port)) {
		probe->source = loop_add_fd(loop, probe->fd, &ops, probe);
		timeout_ms = clock_deadline(timeout_ms);
	} else {
		timeout_ms = 0;
	}
	probe->timer = loop_add_timer(loop, timeout_ms, on_late, probe);
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

static void drop(struct piped *piped)
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
		drop(pumps->first);
	}
	free(pumps);
}

static int on_pumped(void *ctx, struct pump_end *end, struct err *err)
{
	(void)end;
	(void)err;
	drop(ctx);
	return 0;
}

/* Loopback answers at once. */
static bool finish_connect(int s)
{
	struct pollfd pollfd = {.fd = s, .events = POLLOUT};
	int fault = 0;
	socklen_t size = sizeof(fault);

	if (poll(&pollfd, 1, CONNECT_MS) != 1 ||
		getsockopt(s, SOL_SOCKET, SO_ERROR, &fault, &size) < 0)
		return false;
	errno = fault;
	return fault == 0;
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
		.done = on_pumped,
		.ctx = piped};
	piped->pump = pump_start(&options);
	return 0;
}

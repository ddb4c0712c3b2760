/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"

void stream_free(struct stream *stream)
{
	if (stream)
		stream->ops->free(stream);
}

void stream_reset(struct stream *stream)
{
	if (stream && stream->ops->reset)
		stream->ops->reset(stream);
	else
		stream_free(stream);
}

static ssize_t result(ssize_t n, const char *what, struct err *err)
{
	if (n >= 0)
		return n;
	if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
		return STREAM_AGAIN;
	return fs_error(err, errno, "%s a connection", what);
}

static ssize_t fd_read(struct stream *stream, void *out, size_t len, struct err *err)
{
	return result(read(stream->fd, out, len), "reading from", err);
}

/* A socket whose other side is gone must not end the process. */
static ssize_t fd_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	ssize_t n = send(stream->fd, data, len, MSG_NOSIGNAL);

	if (n < 0 && errno == ENOTSOCK)
		n = write(stream->fd, data, len);
	return result(n, "writing to", err);
}

static int fd_shutdown(struct stream *stream, struct err *err)
{
	if (shutdown(stream->fd, SHUT_WR) == 0 || errno == ENOTSOCK || errno == ENOTCONN)
		return 0;
	return fs_error(err, errno, "closing a connection");
}

static short fd_events(struct stream *stream, bool want_read, bool want_write)
{
	(void)stream;
	return (short)((want_read ? POLLIN : 0) | (want_write ? POLLOUT : 0));
}

static bool fd_pending(const struct stream *stream)
{
	(void)stream;
	return false;
}

static void fd_free(struct stream *stream)
{
	close(stream->fd);
	free(stream);
}

/* Close with a reset, by a linger time of zero. */
static void fd_reset(struct stream *stream)
{
	const struct linger linger = {.l_onoff = 1};

	(void)setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	fd_free(stream);
}

static const struct stream_ops fd_ops = {
	.read = fd_read,
	.write = fd_write,
	.shutdown = fd_shutdown,
	.events = fd_events,
	.pending = fd_pending,
	.free = fd_free,
	.reset = fd_reset,
};

struct stream *stream_from_fd(int fd)
{
	struct stream *stream = mem_alloc(1, sizeof(*stream));

	*stream = (struct stream){.ops = &fd_ops, .fd = fd};
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return stream;
}

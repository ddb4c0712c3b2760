/* SPDX-License-Identifier: Apache-2.0 */
#include "node/fdio.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/stream/channel.h"

static short prepare(void *ctx)
{
	const struct node_fd *io = ctx;

	return io->waits ? io->events : 0;
}

static int dispatch(void *ctx, short revents, struct err *err)
{
	struct node_fd *io = ctx;

	(void)revents;
	(void)err;
	io->waits = false;
	io->woken(io->ctx);
	return 0;
}

void node_fd_init(struct node_fd *io, struct loop *loop, int fd, short events,
	void (*woken)(void *ctx), void *ctx)
{
	static const struct loop_fd_ops ops = {.prepare = prepare, .dispatch = dispatch};
	struct stat st;

	*io = (struct node_fd){
		.loop = loop, .fd = fd, .events = events, .woken = woken, .ctx = ctx};
	if (fd < 0)
		return;
	io->is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
	io->source = loop_add_fd(loop, fd, &ops, io);
}

void node_fd_done(struct node_fd *io)
{
	if (io->source)
		loop_remove_fd(io->loop, io->source);
	io->source = NULL;
	io->fd = -1;
}

static bool is_ready(struct node_fd *io)
{
	struct pollfd wanted = {.fd = io->fd, .events = io->events};

	if (io->is_file || poll(&wanted, 1, 0) > 0)
		return true;
	io->waits = true;
	return false;
}

ssize_t node_fd_read(struct node_fd *io, void *out, size_t len, struct err *err)
{
	if (io->fd < 0)
		return 0;
	if (!is_ready(io))
		return CHANNEL_AGAIN;
	ssize_t n = read(io->fd, out, len);

	if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
		io->waits = true;
		return CHANNEL_AGAIN;
	}
	/* A terminal that is gone. */
	if (n < 0 && errno == EIO)
		return 0;
	return n < 0 ? err_set_errno(err, E_IO, errno, "cannot read the input") : n;
}

ssize_t node_fd_write(struct node_fd *io, const char *data, size_t len, struct err *err)
{
	size_t done = 0;

	if (io->fd < 0)
		return (ssize_t)len;
	while (done < len && is_ready(io)) {
		/* A descriptor that others use, too, is not made non-blocking: so much always
		 * fits when poll says that there is room. */
		size_t piece = io->is_file || len - done < PIPE_BUF ? len - done : PIPE_BUF;
		ssize_t n = write(io->fd, data + done, piece);

		if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
			io->waits = true;
			break;
		}
		if (n < 0)
			return err_set_errno(err, E_IO, errno, "cannot write the output");
		done += (size_t)n;
	}
	return (ssize_t)done;
}

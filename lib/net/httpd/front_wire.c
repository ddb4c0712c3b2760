/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "net/httpd/front_impl.h"

enum { SMALL = 4096 };

void front_wire_open(struct front_wire *wire, struct loop *loop, int fd,
	const struct loop_fd_ops *ops, void *ctx)
{
	*wire = (struct front_wire){.fd = fd};
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	buf_init(&wire->in, FRONT_HEAD_MAX);
	buf_init(&wire->out, PTRDIFF_MAX);
	wire->source = loop_add_fd(loop, fd, ops, ctx);
}

int front_wire_take(struct front_wire *wire, struct loop *loop)
{
	int fd = wire->fd;

	wire->fd = -1;
	front_wire_close(wire, loop, false);
	return fd;
}

void front_wire_close(struct front_wire *wire, struct loop *loop, bool is_reset)
{
	const struct linger linger = {.l_onoff = 1};

	loop_remove_fd(loop, wire->source);
	if (wire->fd >= 0 && is_reset)
		(void)setsockopt(wire->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	auto_fd(&wire->fd);
	buf_done(&wire->in);
	buf_done(&wire->out);
	*wire = (struct front_wire){.fd = -1};
}

void front_wire_read(struct front_wire *wire)
{
	size_t len = wire->in.max - wire->in.len;

	if (wire->ended || len == 0)
		return;
	ssize_t n = recv(wire->fd, buf_room(&wire->in, len), len, 0);
	if (n > 0) {
		buf_added(&wire->in, (size_t)n);
	} else if (n == 0) {
		wire->ended = true;
	} else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
		wire->ended = wire->failed = wire->deaf = true;
	}
}

size_t front_wire_pending(const struct front_wire *wire)
{
	return wire->out.len - wire->out_at;
}

static void drop_out(struct front_wire *wire)
{
	buf_reset(&wire->out);
	wire->out_at = 0;
}

void front_wire_flush(struct front_wire *wire)
{
	while (front_wire_pending(wire) > 0 && !wire->deaf) {
		ssize_t n = send(wire->fd, wire->out.data + wire->out_at, front_wire_pending(wire),
			MSG_NOSIGNAL);
		if (n > 0)
			wire->out_at += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			wire->deaf = true;
	}
	if (wire->deaf || front_wire_pending(wire) == 0)
		drop_out(wire);
	/* Not before it is worth it: each byte is moved once or twice. */
	if (wire->out_at > wire->out.len / 2) {
		buf_consume(&wire->out, wire->out_at);
		wire->out_at = 0;
	}
}

static void trim(struct buf *buf)
{
	size_t max = buf->max;

	if (buf->len > 0 || buf->cap <= SMALL)
		return;
	buf_done(buf);
	buf_init(buf, max);
}

void front_wire_trim(struct front_wire *wire)
{
	if (wire->fd < 0)
		return;
	trim(&wire->in);
	trim(&wire->out);
}

/*
 * Bodies
 */

void front_meter_start(struct front_meter *meter, const struct front_head *head)
{
	*meter = (struct front_meter){
		.body = head->body, .left = head->length, .over = head->body == FRONT_BODY_NONE};
}

int front_meter_feed(
	struct front_meter *meter, const char *data, size_t len, size_t *ret_used, struct err *err)
{
	*ret_used = 0;
	if (meter->over)
		return 0;
	if (meter->body == FRONT_BODY_CHUNKED) {
		int r = front_chunks_feed(&meter->chunks, data, len, ret_used, err);
		meter->over = r > 0;
		return r < 0 ? r : 0;
	}
	if (meter->body == FRONT_BODY_LENGTH) {
		len = meter->left < len ? (size_t)meter->left : len;
		meter->left -= len;
		meter->over = meter->left == 0;
	}
	*ret_used = len;
	return 0;
}

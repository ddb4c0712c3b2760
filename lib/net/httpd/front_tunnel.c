/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "net/httpd/front_impl.h"

/*
 * A stream of which the first bytes are here already
 */

struct early {
	struct stream stream;
	struct stream *inner;
	char *data;
	size_t at, len;
};

static ssize_t early_read(struct stream *stream, void *out, size_t len, struct err *err)
{
	struct early *early = (struct early *)stream;
	size_t left = early->len - early->at;

	if (left == 0)
		return early->inner->ops->read(early->inner, out, len, err);
	len = len < left ? len : left;
	memcpy(out, early->data + early->at, len);
	early->at += len;
	return (ssize_t)len;
}

static ssize_t early_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	struct stream *inner = ((struct early *)stream)->inner;

	return inner->ops->write(inner, data, len, err);
}

static int early_shutdown(struct stream *stream, struct err *err)
{
	struct stream *inner = ((struct early *)stream)->inner;

	return inner->ops->shutdown(inner, err);
}

static short early_events(struct stream *stream, bool want_read, bool want_write)
{
	struct stream *inner = ((struct early *)stream)->inner;

	return inner->ops->events(inner, want_read, want_write);
}

static bool early_pending(const struct stream *stream)
{
	const struct early *early = (const struct early *)stream;

	return early->at < early->len || early->inner->ops->pending(early->inner);
}

static void end_early(struct stream *stream, void (*end)(struct stream *stream))
{
	struct early *early = (struct early *)stream;

	end(early->inner);
	free(early->data);
	free(early);
}

static void early_free(struct stream *stream)
{
	end_early(stream, stream_free);
}

static void early_reset(struct stream *stream)
{
	end_early(stream, stream_reset);
}

static const struct stream_ops early_ops = {
	.read = early_read,
	.write = early_write,
	.shutdown = early_shutdown,
	.events = early_events,
	.pending = early_pending,
	.free = early_free,
	.reset = early_reset,
};

/* Data of this side that waits for the other one comes before the input still unread. */
static struct stream *stream_of(
	struct front_wire *wire, const struct front_wire *other, struct loop *loop)
{
	struct early *early = mem_alloc(1, sizeof(*early));
	size_t waiting = front_wire_pending(other);

	early->len = waiting + wire->in.len;
	early->data = mem_alloc(early->len + 1, 1);
	memcpy(early->data, other->out.data + other->out_at, waiting);
	memcpy(early->data + waiting, wire->in.data, wire->in.len);
	loop_remove_fd(loop, TAKE(wire->source));
	early->inner = stream_from_fd(wire->fd);
	early->stream = (struct stream){.ops = &early_ops, .fd = wire->fd};
	return &early->stream;
}

/*
 * The tunnel
 */

void front_tunnel_free(struct front_tunnel *tunnel)
{
	struct front *front = tunnel->front;

	if (tunnel->next)
		tunnel->next->before = tunnel->before;
	if (tunnel->before)
		tunnel->before->next = tunnel->next;
	else
		front->tunnels = tunnel->next;
	free(tunnel);
	front_count_less(front);
}

static int on_done(void *ctx, struct pump_end *end, struct err *err)
{
	(void)end;
	(void)err;
	front_tunnel_free(ctx);
	return 0;
}

void front_tunnel_start(struct front_conn *conn)
{
	struct front *front = conn->front;
	struct loop *loop = front->options.loop;
	struct front_tunnel *tunnel = mem_alloc(1, sizeof(*tunnel));
	struct stream *a = stream_of(&conn->client, &conn->program, loop);
	struct stream *b = stream_of(&conn->program, &conn->client, loop);
	const struct pump_options options = {
		.loop = loop, .a = a, .b = b, .done = on_done, .ctx = tunnel};

	(void)front_wire_take(&conn->client, loop);
	(void)front_wire_take(&conn->program, loop);
	conn->is_dead = true;
	*tunnel = (struct front_tunnel){.front = front, .next = front->tunnels};
	if (front->tunnels)
		front->tunnels->before = tunnel;
	front->tunnels = tunnel;
	front->n++;
	tunnel->pump = pump_start(&options);
}

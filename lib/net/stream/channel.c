/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/channel.h"

#include <stdlib.h>

#include "base/util/mem.h"

void channel_free(struct channel *channel)
{
	if (channel)
		channel->ops->free(channel);
}

/*
 * As a stream
 */

struct channel_pipe {
	struct stream stream;
	struct channel *channel;
	bool has_more; /* for all that is known: ready comes behind CHANNEL_AGAIN only */
	void (*woken)(void *ctx);
	void *ctx;
};

static struct channel *channel_of(struct stream *stream)
{
	return ((struct channel_pipe *)stream)->channel;
}

static ssize_t pipe_read(struct stream *stream, void *out, size_t len, struct err *err)
{
	struct channel_pipe *pipe = (struct channel_pipe *)stream;
	ssize_t n = pipe->channel->ops->read(pipe->channel, CHANNEL_OUT, out, len, err);

	pipe->has_more = n > 0;
	return n;
}

static ssize_t pipe_write(struct stream *stream, const void *data, size_t len, struct err *err)
{
	struct channel *channel = channel_of(stream);

	return channel->ops->write(channel, data, len, err);
}

static int pipe_shutdown(struct stream *stream, struct err *err)
{
	struct channel *channel = channel_of(stream);

	return channel->ops->send_eof(channel, err);
}

static short pipe_events(struct stream *stream, bool want_read, bool want_write)
{
	(void)stream;
	(void)want_read;
	(void)want_write;
	return 0;
}

static bool pipe_pending(const struct stream *stream)
{
	return ((const struct channel_pipe *)stream)->has_more;
}

static void pipe_free(struct stream *stream)
{
	channel_free(channel_of(stream));
	free(stream);
}

static const struct stream_ops pipe_ops = {
	.read = pipe_read,
	.write = pipe_write,
	.shutdown = pipe_shutdown,
	.events = pipe_events,
	.pending = pipe_pending,
	.free = pipe_free,
};

static int pipe_ready(void *ctx, struct err *err)
{
	const struct channel_pipe *pipe = ctx;

	(void)err;
	pipe->woken(pipe->ctx);
	return 0;
}

struct stream *channel_stream(struct channel *channel, void (*woken)(void *ctx), void *ctx)
{
	struct channel_pipe *pipe = mem_alloc(1, sizeof(*pipe));

	*pipe = (struct channel_pipe){.stream = {.ops = &pipe_ops, .fd = -1},
		.channel = channel,
		.woken = woken,
		.ctx = ctx};
	channel->events = (struct channel_events){.ready = pipe_ready, .ctx = pipe};
	return &pipe->stream;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/stream/stream.h"

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

static short fd_events(struct stream *stream UNUSED, bool want_read, bool want_write)
{
	return (short)((want_read ? POLLIN : 0) | (want_write ? POLLOUT : 0));
}

static bool fd_pending(const struct stream *stream UNUSED)
{
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

enum { WORK_MAX = 1 << 20 }; /* bytes of one direction in one dispatch */

struct flow {
	struct stream *from, *to;
	char from_name, to_name;
	char *data; /* only while it holds something */
	size_t at, len;
	uint64_t bytes;
	bool ended; /* nothing more will be read */
	bool over;  /* and all was written */
};

struct side {
	struct pump *pump;
	int index;
	struct loop_fd *source;
};

struct pump {
	struct pump_options options;
	struct side sides[2];
	struct flow flows[2]; /* by the side that is read */
	struct loop_timer *wake;
	struct pump_end end;
	bool finished;
};

/*
 * Buffers: most pumps are idle most of the time, and the one that is not uses the same memory again
 * and again, which then stays in the cache. The loop is one thread's, and so is this.
 */

static _Thread_local char *spare;

static char *take_buffer(void)
{
	char *data = spare ? spare : mem_grow(NULL, 1, PUMP_BUFFER_SIZE);

	spare = NULL;
	return data;
}

static void give_buffer(char *data)
{
	if (spare)
		free(data);
	else
		spare = data;
}

static void drop_data(struct flow *flow)
{
	if (flow->data)
		give_buffer(TAKE(flow->data));
	flow->at = flow->len = 0;
}

/*
 * Errors
 */

static struct flow *flow_from(struct pump *pump, char name)
{
	return &pump->flows[name == 'b'];
}

static struct flow *flow_to(struct pump *pump, char name)
{
	return &pump->flows[name == 'a'];
}

static void end_flow(struct flow *flow)
{
	drop_data(flow);
	flow->ended = flow->over = true;
}

/* Data to the faulty side is lost, and nothing more is read from the other one. Data from the
 * faulty side is still forwarded: it may say why. */
static void note_error(struct pump *pump, char name, struct err *error)
{
	if (!pump->end.faulty) {
		err_move(&pump->end.error, error);
		pump->end.faulty = name;
		end_flow(flow_to(pump, name));
		return;
	}
	end_flow(flow_to(pump, name));
	if (pump->end.faulty != name)
		end_flow(flow_from(pump, name));
}

/*
 * A direction
 */

/* Whether all was written. */
static bool pump_flush(struct pump *pump, struct flow *flow)
{
	AUTO_ERR struct err error = {0};

	while (flow->len > 0) {
		ssize_t n =
			flow->to->ops->write(flow->to, flow->data + flow->at, flow->len, &error);
		if (n == STREAM_AGAIN)
			return false;
		if (n < 0) {
			note_error(pump, flow->to_name, &error);
			return false;
		}
		flow->at += (size_t)n;
		flow->len -= (size_t)n;
		flow->bytes += (uint64_t)n;
	}
	flow->at = 0;
	return true;
}

static void pass_end(struct pump *pump, struct flow *flow)
{
	AUTO_ERR struct err error = {0};

	drop_data(flow);
	flow->over = true;
	if (!pump->end.faulty && flow->to->ops->shutdown(flow->to, &error) < 0)
		note_error(pump, flow->to_name, &error);
}

/* Into the empty buffer. Whether it is worth trying again at once: it was filled. */
static bool pump_fill(struct pump *pump, struct flow *flow)
{
	struct stream *from = flow->from;
	AUTO_ERR struct err error = {0};
	ssize_t n;

	if (!flow->data)
		flow->data = take_buffer();
	do {
		n = from->ops->read(
			from, flow->data + flow->len, PUMP_BUFFER_SIZE - flow->len, &error);
		if (n > 0)
			flow->len += (size_t)n;
	} while (n > 0 && flow->len < PUMP_BUFFER_SIZE && from->ops->pending(from));
	if (n > 0)
		return flow->len == PUMP_BUFFER_SIZE;
	if (n < 0 && n != STREAM_AGAIN)
		note_error(pump, flow->from_name, &error);
	/* Of a side with an error what is there is all that will come. */
	if (n != STREAM_AGAIN || pump->end.faulty)
		flow->ended = true;
	return false;
}

static void pump_move(struct pump *pump, struct flow *flow)
{
	uint64_t start = flow->bytes;
	bool goes_on = true;

	while (!flow->over && pump_flush(pump, flow)) {
		if (flow->ended) {
			pass_end(pump, flow);
			return;
		}
		if (!goes_on || flow->bytes - start >= WORK_MAX)
			break;
		goes_on = pump_fill(pump, flow);
	}
	if (flow->len == 0)
		drop_data(flow);
}

/*
 * The loop
 */

static bool wants_read(const struct flow *flow)
{
	return !flow->ended && flow->len == 0;
}

static int pump_wake_due(void *ctx, struct err *err);

static void stream_pump_wake(struct pump *pump)
{
	if (!pump->wake)
		pump->wake = loop_add_timer(pump->options.loop, clock_ms(), pump_wake_due, pump);
}

static void free_pump(struct pump *pump, void (*end)(struct stream *stream))
{
	for (int i = 0; i < 2; i++) {
		if (pump->sides[i].source)
			loop_remove_fd(pump->options.loop, pump->sides[i].source);
		pump->sides[i].source = NULL;
		drop_data(&pump->flows[i]);
	}
	loop_remove_timer(pump->options.loop, pump->wake);
	pump->wake = NULL;
	end(TAKE(pump->flows[0].from));
	end(TAKE(pump->flows[1].from));
}

static int pump_finish(struct pump *pump, struct err *err)
{
	pump->finished = true;
	pump->end.bytes_ab = pump->flows[0].bytes;
	pump->end.bytes_ba = pump->flows[1].bytes;
	free_pump(pump, pump->end.faulty ? stream_reset : stream_free);
	int r = pump->options.done(pump->options.ctx, &pump->end, err);
	err_done(&pump->end.error);
	free(pump);
	return r;
}

/* An error of one direction may leave the other with a last read of what is there. */
static int pump_settle(struct pump *pump, struct err *err)
{
	bool must_wake = false;

	for (int i = 0; i < 2; i++) {
		struct flow *flow = &pump->flows[i];

		if (pump->end.faulty && wants_read(flow))
			pump_move(pump, flow);
	}
	if (pump->flows[0].over && pump->flows[1].over)
		return pump_finish(pump, err);
	for (int i = 0; i < 2; i++) {
		const struct flow *flow = &pump->flows[i];

		must_wake = must_wake || (wants_read(flow) && flow->from->ops->pending(flow->from));
	}
	if (must_wake)
		stream_pump_wake(pump);
	return 0;
}

static int pump_wake_due(void *ctx, struct err *err)
{
	struct pump *pump = ctx;

	pump->wake = NULL;
	pump_move(pump, &pump->flows[0]);
	pump_move(pump, &pump->flows[1]);
	return pump_settle(pump, err);
}

static short pump_prepare(void *ctx)
{
	const struct side *side = ctx;
	const struct flow *in = &side->pump->flows[side->index];
	const struct flow *out = &side->pump->flows[!side->index];
	bool want_read = wants_read(in), want_write = out->len > 0;

	return want_read || want_write ? in->from->ops->events(in->from, want_read, want_write) : 0;
}

/* Try both directions: only the stream could tell which of them can go on (TLS). */
static int pump_dispatch(void *ctx, short revents UNUSED, struct err *err)
{
	const struct side *side = ctx;
	struct pump *pump = side->pump;
	struct flow *in = &pump->flows[side->index], *out = &pump->flows[!side->index];

	if (out->len > 0)
		pump_move(pump, out);
	if (wants_read(in))
		pump_move(pump, in);
	return pump_settle(pump, err);
}

static const struct loop_fd_ops ops = {.prepare = pump_prepare, .dispatch = pump_dispatch};

struct pump *pump_start(const struct pump_options *options)
{
	struct pump *pump = mem_alloc(1, sizeof(*pump));
	struct stream *const streams[] = {options->a, options->b};

	pump->options = *options;
	for (int i = 0; i < 2; i++) {
		pump->flows[i] = (struct flow){.from = streams[i],
			.to = streams[!i],
			.from_name = (char)('a' + i),
			.to_name = (char)('b' - i)};
		pump->sides[i] = (struct side){.pump = pump, .index = i};
		if (streams[i]->fd >= 0)
			pump->sides[i].source =
				loop_add_fd(options->loop, streams[i]->fd, &ops, &pump->sides[i]);
	}
	stream_pump_wake(pump);
	return pump;
}

void pump_cancel(struct pump *pump)
{
	if (!pump || pump->finished)
		return;
	free_pump(pump, stream_reset);
	err_done(&pump->end.error);
	free(pump);
}

void pump_count(const struct pump *pump, uint64_t *ret_ab, uint64_t *ret_ba)
{
	*ret_ab = pump->flows[0].bytes;
	*ret_ba = pump->flows[1].bytes;
}

void pump_wake(struct pump *pump)
{
	if (!pump->finished)
		stream_pump_wake(pump);
}

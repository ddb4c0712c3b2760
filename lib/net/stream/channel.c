/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
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

static short pipe_events(
	struct stream *stream UNUSED, bool want_read UNUSED, bool want_write UNUSED)
{
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

static int pipe_ready(void *ctx, struct err *err UNUSED)
{
	const struct channel_pipe *pipe = ctx;

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

enum {
	POLL_MIN_MS = 1, /* the first wait, twice as long each time */
	POLL_MAX_MS = 250,
	GENTLE_MS = 500, /* what a child on the terminal gets to put that right */
};

/*
 * Starting
 */

struct ends {
	int theirs[3], ours[3];
};

static void close_ends(int fds[static 3])
{
	for (int i = 0; i < 3; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

static int channel_make_pipe(struct ends *ends, int i, struct err *err)
{
	int fds[2];
	int r = fs_pipe(fds, 0, err);

	if (r < 0)
		return r;
	ends->theirs[i] = fds[i != 0];
	ends->ours[i] = fds[i == 0];
	return 0;
}

static int channel_make_pipes(struct ends *ends, int first, struct err *err)
{
	int r = 0;

	for (int i = first; i < 3 && r == 0; i++)
		r = channel_make_pipe(ends, i, err);
	return r;
}

static struct winsize channel_size_of(unsigned columns, unsigned rows)
{
	return (struct winsize){.ws_col = columns > 9999 ? 9999 : (unsigned short)columns,
		.ws_row = rows > 9999 ? 9999 : (unsigned short)rows};
}

static int make_terminal(struct ends *ends, const struct channel_pty *pty, struct err *err)
{
	const struct winsize size = channel_size_of(pty->columns, pty->rows);
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

	ends->ours[1] = master;
	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
		return err_set_errno(err, E_IO, errno, "cannot make a pseudo-terminal");
	ends->theirs[0] = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	ends->theirs[1] = fcntl(ends->theirs[0], F_DUPFD_CLOEXEC, 3);
	ends->ours[0] = fcntl(master, F_DUPFD_CLOEXEC, 3);
	if (ends->theirs[0] < 0 || ends->theirs[1] < 0 || ends->ours[0] < 0)
		return err_set_errno(err, E_IO, errno, "cannot open a pseudo-terminal");
	(void)ioctl(master, TIOCSWINSZ, &size);
	return channel_make_pipe(ends, 2, err);
}

static void unblock(const int fds[static 3])
{
	for (int i = 0; i < 3; i++)
		fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK);
}

int child_start(const struct child_spec *spec, struct child *ret, struct err *err)
{
	struct ends ends = {.theirs = {-1, -1, -1}, .ours = {-1, -1, -1}};
	pid_t pid = 0;
	int r = spec->pty ? make_terminal(&ends, spec->pty, err)
			  : channel_make_pipes(&ends, 0, err);

	if (r == 0)
		r = proc_spawn(&(struct proc_spec){.argv = spec->argv,
				       .env = spec->env,
				       .stdin_fd = ends.theirs[0],
				       .stdout_fd = ends.theirs[1],
				       .stderr_fd = ends.theirs[2],
				       .new_session = !spec->keeps_terminal},
			&pid, err);
	close_ends(ends.theirs);
	if (r < 0) {
		close_ends(ends.ours);
		return r;
	}
	unblock(ends.ours);
	*ret = (struct child){.pid = pid,
		.in = ends.ours[0],
		.out = ends.ours[1],
		.err = ends.ours[2],
		.is_pty = spec->pty != NULL,
		.keeps_terminal = spec->keeps_terminal};
	return 0;
}

/*
 * Ending
 */

/* Whether it has ended, by itself, within the time that it gets. */
static bool ends_by_itself(pid_t pid, int64_t timeout_ms)
{
	int64_t deadline_ms = clock_deadline(timeout_ms);

	for (;;) {
		pid_t r = waitpid(pid, NULL, WNOHANG);

		if (r == pid || (r < 0 && errno != EINTR))
			return true;
		if (clock_ms() >= deadline_ms)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
	}
}

static void kill_child(const struct child *child)
{
	if (child->keeps_terminal) {
		kill(child->pid, SIGTERM);
		if (ends_by_itself(child->pid, GENTLE_MS))
			return;
	}
	/* A session of its own makes the group: its children end with it. */
	kill(child->keeps_terminal || child->is_alone ? child->pid : -child->pid, SIGKILL);
	while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
		;
}

void child_end(struct child *child)
{
	int fds[3] = {child->in, child->out, child->err};

	if (child->pid > 0) {
		kill_child(child);
		close_ends(fds);
	}
	*child = (struct child){0};
}

/*
 * The channel
 */

struct child_channel;
struct side {
	struct child_channel *channel;
	int fd; /* -1: closed */
	short events;
	bool waits; /* the last try was too early */
	struct loop_fd *source;
};

enum { SIDE_IN, SIDE_OUT, SIDE_ERR, N_SIDES };

struct child_channel {
	struct channel channel;
	struct loop *loop;
	struct child child; /* descriptors are the sides' */
	struct side sides[N_SIDES];
	struct loop_timer *timer;
	unsigned n_polls; /* with the next one */
	bool is_raw;      /* a terminal that may be written to */
	bool has_ended;
	struct channel_exit end;
	struct err error;
};

static int channel_notify(struct child_channel *self, struct err *err)
{
	/* The channel may be freed in there. */
	return self->channel.events.ready(self->channel.events.ctx, err);
}

static short side_prepare(void *ctx)
{
	const struct side *side = ctx;

	return side->waits ? side->events : 0;
}

static int side_dispatch(void *ctx, short revents UNUSED, struct err *err)
{
	struct side *side = ctx;

	side->waits = false;
	return channel_notify(side->channel, err);
}

static const struct loop_fd_ops side_ops = {.prepare = side_prepare, .dispatch = side_dispatch};

static void channel_close_side(struct side *side)
{
	if (side->fd < 0)
		return;
	loop_remove_fd(side->channel->loop, side->source);
	side->source = NULL;
	close(TAKE_FD(side->fd));
	side->waits = false;
}

static int channel_poll_again(void *ctx, struct err *err);

static void channel_poll_later(struct child_channel *self)
{
	if (self->timer)
		return;
	self->timer = loop_add_timer(self->loop,
		clock_ms() + backoff_ms(self->n_polls++, POLL_MIN_MS, POLL_MAX_MS),
		channel_poll_again, self);
}

static void note_end(struct child_channel *self, int status)
{
	char number[8];

	self->has_ended = self->end.known = true;
	if (WIFEXITED(status))
		self->end.code = WEXITSTATUS(status);
	else
		snprintf(self->end.signal, sizeof(self->end.signal), "%s",
			proc_signal_name(WTERMSIG(status), number));
	self->child.pid = 0;
}

/* There is no descriptor for the end of a process everywhere, and SIGCHLD is not ours. One that has
 * closed its output is about to end, so the first polls are quick. */
static bool channel_poll(struct child_channel *self)
{
	int status;

	if (self->has_ended)
		return true;
	pid_t r = waitpid(self->child.pid, &status, WNOHANG);
	if (r == self->child.pid) {
		note_end(self, status);
	} else if (r < 0 && errno != EINTR) {
		self->has_ended = true;
		self->child.pid = 0;
	}
	return self->has_ended;
}

static bool is_read(const struct child_channel *self)
{
	return self->sides[SIDE_OUT].fd < 0 && self->sides[SIDE_ERR].fd < 0;
}

/* A new terminal echoes, and edits lines, until the child has made it raw. */
static bool can_write(struct child_channel *self)
{
	struct termios modes;

	if (!self->is_raw && self->sides[SIDE_IN].fd >= 0)
		self->is_raw =
			tcgetattr(self->sides[SIDE_IN].fd, &modes) < 0 || !(modes.c_lflag & ICANON);
	if (!self->is_raw)
		channel_poll_later(self);
	return self->is_raw;
}

static int channel_poll_again(void *ctx, struct err *err)
{
	struct child_channel *self = ctx;

	self->timer = NULL;
	if (err_is_set(&self->error))
		return channel_notify(self, err);
	if (!is_read(self)) {
		if (!self->is_raw && !can_write(self))
			return 0;
		return channel_notify(self, err);
	}
	if (channel_poll(self))
		return channel_notify(self, err);
	channel_poll_later(self);
	return 0;
}

static int channel_failed(const struct child_channel *self, struct err *err)
{
	return err_is_set(&self->error) ? err_copy(err, &self->error) : 0;
}

static void side_ended(struct child_channel *self, struct side *side)
{
	channel_close_side(side);
	if (!is_read(self))
		return;
	loop_remove_timer(self->loop, self->timer);
	self->timer = NULL;
	self->n_polls = 1;
	channel_poll_later(self);
}

static ssize_t child_read(
	struct channel *channel, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	struct child_channel *self = (struct child_channel *)channel;
	struct side *side = &self->sides[flow == CHANNEL_OUT ? SIDE_OUT : SIDE_ERR];
	int r = channel_failed(self, err);
	ssize_t n;

	if (r < 0 || side->fd < 0)
		return r;
	do
		n = read(side->fd, out, len);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN) {
		side->waits = true;
		return CHANNEL_AGAIN;
	}
	/* EIO is the end of a terminal that no process has open. */
	if (n == 0 || (n < 0 && errno == EIO && self->child.is_pty)) {
		side_ended(self, side);
		return 0;
	}
	if (n > 0)
		return n;
	fs_error(&self->error, errno, "reading from a process");
	return channel_failed(self, err);
}

static ssize_t child_write(struct channel *channel, const void *data, size_t len, struct err *err)
{
	struct child_channel *self = (struct child_channel *)channel;
	struct side *side = &self->sides[SIDE_IN];
	int r = channel_failed(self, err);
	ssize_t n;

	if (r < 0)
		return r;
	if (!can_write(self))
		return CHANNEL_AGAIN;
	if (side->fd < 0)
		return (ssize_t)len;
	do
		n = write(side->fd, data, len);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		return n;
	if (n < 0 && errno == EAGAIN) {
		side->waits = true;
		return CHANNEL_AGAIN;
	}
	/* The reader is gone; the child's exit status is still to be learnt. */
	channel_close_side(side);
	return (ssize_t)len;
}

static int child_send_eof(struct channel *channel, struct err *err)
{
	struct child_channel *self = (struct child_channel *)channel;
	int r = channel_failed(self, err);

	/* A terminal has no end of one direction. */
	if (r == 0 && !self->child.is_pty)
		channel_close_side(&self->sides[SIDE_IN]);
	return r;
}

static int channel_child_wait(struct channel *channel, struct channel_exit *ret, struct err *err)
{
	struct child_channel *self = (struct child_channel *)channel;
	int r = channel_failed(self, err);

	if (r < 0 || !is_read(self))
		return r;
	if (!channel_poll(self)) {
		channel_poll_later(self);
		return 0;
	}
	*ret = self->end;
	return 1;
}

static void child_resize(struct channel *channel, unsigned columns, unsigned rows)
{
	struct child_channel *self = (struct child_channel *)channel;
	const struct winsize size = channel_size_of(columns, rows);

	if (!self->child.is_pty || self->sides[SIDE_OUT].fd < 0)
		return;
	(void)ioctl(self->sides[SIDE_OUT].fd, TIOCSWINSZ, &size);
	/* The terminal need not be the child's controlling terminal. */
	if (self->child.pid > 0)
		kill(self->child.pid, SIGWINCH);
}

static void child_free(struct channel *channel)
{
	struct child_channel *self = (struct child_channel *)channel;

	loop_remove_timer(self->loop, self->timer);
	if (self->child.pid > 0)
		kill_child(&self->child);
	for (int i = 0; i < N_SIDES; i++)
		channel_close_side(&self->sides[i]);
	err_done(&self->error);
	free(self);
}

static const struct channel_ops child_ops = {
	.read = child_read,
	.write = child_write,
	.send_eof = child_send_eof,
	.wait = channel_child_wait,
	.resize = child_resize,
	.free = child_free,
};

static void add_side(struct child_channel *self, int i, int fd)
{
	struct side *side = &self->sides[i];

	side->fd = fd;
	side->events = i == SIDE_IN ? POLLOUT : POLLIN;
	side->waits = true;
	side->source = loop_add_fd(self->loop, fd, &side_ops, side);
}

struct channel *channel_of_child(
	struct loop *loop, struct child *child, const struct channel_events *events)
{
	struct child_channel *self = mem_alloc(1, sizeof(*self));

	self->channel = (struct channel){.ops = &child_ops, .events = *events};
	self->loop = loop;
	self->n_polls = 1;
	for (int i = 0; i < N_SIDES; i++)
		self->sides[i] = (struct side){.channel = self, .fd = -1};
	self->child = *child;
	self->is_raw = !child->is_pty;
	add_side(self, SIDE_IN, child->in);
	add_side(self, SIDE_OUT, child->out);
	add_side(self, SIDE_ERR, child->err);
	*child = (struct child){0};
	return &self->channel;
}

void channel_child_alone(struct channel *channel)
{
	((struct child_channel *)channel)->child.is_alone = true;
}

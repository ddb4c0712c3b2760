/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "net/stream/channel.h"
#include "node/node_impl.h"

static short node_exec_prepare(void *ctx)
{
	const struct node_fd *io = ctx;

	return io->waits ? io->events : 0;
}

static int node_exec_dispatch(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct node_fd *io = ctx;

	io->waits = false;
	io->woken(io->ctx);
	return 0;
}

void node_fd_init(struct node_fd *io, struct loop *loop, int fd, short events,
	void (*woken)(void *ctx), void *ctx)
{
	static const struct loop_fd_ops ops = {
		.prepare = node_exec_prepare, .dispatch = node_exec_dispatch};
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

static bool node_exec_is_ready(struct node_fd *io)
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
	if (!node_exec_is_ready(io))
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

/* Bytes that were written, 0: none now; all without a descriptor. E_IO: nobody reads any more. */
static ssize_t node_fd_write(struct node_fd *io, const char *data, size_t len, struct err *err)
{
	size_t done = 0;

	if (io->fd < 0)
		return (ssize_t)len;
	while (done < len && node_exec_is_ready(io)) {
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

/* A command beside the program, and the terminal of ad-hoc work. */

enum { PIPE_CLOSED_STATUS = 128 + SIGPIPE };

struct exec {
	struct node_call call;
	struct channel_pty pty;
	char *term;
	struct node_fd fds[3];
	bool is_alone;    /* its stdin tells only that we live */
	bool output_gone; /* nobody reads it any more */
	struct channel_exit *ret;
};

static void exec_free(struct node_call *call)
{
	struct exec *exec = (struct exec *)call;

	for (size_t i = 0; i < ARRAY_LEN(exec->fds); i++)
		node_fd_done(&exec->fds[i]);
	free(exec->term);
}

static int exec_begin(struct node_call *call, struct node_request *request, struct err *err UNUSED)
{
	const struct exec *exec = (const struct exec *)call;

	request->kind = NODE_EXEC;
	request->keeps_stdin = exec->is_alone;
	return 0;
}

static ssize_t exec_payload(struct node_call *call, void *out, size_t len, struct err *err)
{
	struct exec *exec = (struct exec *)call;

	return node_fd_read(&exec->fds[0], out, len, err);
}

static ssize_t exec_raw(struct node_call *call, enum channel_flow flow, const char *data,
	size_t len, struct err *err)
{
	struct exec *exec = (struct exec *)call;
	ssize_t n = node_fd_write(&exec->fds[flow == CHANNEL_OUT ? 1 : 2], data, len, err);

	exec->output_gone = exec->output_gone || n < 0;
	return n;
}

static enum call_next exec_ended(struct node_call *call, struct err *error)
{
	struct exec *exec = (struct exec *)call;

	*exec->ret = node_conn_info(call->conn)->exit;
	if (exec->output_gone) {
		err_clear(error);
		*exec->ret = (struct channel_exit){.known = true, .code = PIPE_CLOSED_STATUS};
	}
	return call_next(call, error);
}

static const struct call_ops exec_ops = {
	.begin = exec_begin,
	.raw = exec_raw,
	.payload = exec_payload,
	.ended = exec_ended,
	.free = exec_free,
};

static void on_fd(void *ctx)
{
	struct exec *exec = ctx;

	if (exec->call.conn)
		node_conn_wake(exec->call.conn);
}

static void node_exec_print_words(struct node_call *call, const struct strv *words)
{
	for (size_t i = 0; i < words->n; i++) {
		call_add_text(call, "word");
		call_word(call, words->v[i]);
		call_line_end(call);
	}
}

static void node_exec_print(struct exec *exec, const struct node_exec_request *request)
{
	struct node_call *call = &exec->call;

	call_attempt(call, request->is_shell ? "shell" : "exec", request->run, request->attempt);
	node_exec_print_words(call, request->command);
	if (exec->is_alone) {
		call_add_text(call, "alone");
		call_line_end(call);
	}
}

static void node_exec_init(struct exec *exec, const int fds[3], struct channel_exit *ret)
{
	*ret = (struct channel_exit){0};
	exec->ret = ret;
	exec->call.is_once = true;
	for (int i = 0; i < 3; i++)
		node_fd_init(&exec->fds[i], exec->call.node->options.loop, fds[i],
			i == 0 ? POLLIN : POLLOUT, on_fd, exec);
}

struct node_call *node_store(struct node *node, const struct strv *words, const int fds[3],
	struct channel_exit *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct exec *exec = call_new(node, sizeof(*exec), &exec_ops, done, ctx);

	node_exec_init(exec, fds, ret);
	call_add_text(&exec->call, "store");
	call_line_end(&exec->call);
	node_exec_print_words(&exec->call, words);
	return call_begin_checked(&exec->call, 0, &error);
}

struct node_call *node_exec(struct node *node, const struct node_exec_request *request,
	struct channel_exit *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct exec *exec = call_new(node, sizeof(*exec), &exec_ops, done, ctx);

	node_exec_init(exec, request->fds, ret);
	exec->is_alone = request->fds[0] < 0 && !request->pty && !request->is_shell;
	if (request->pty) {
		exec->term = mem_strdup(request->pty->term);
		exec->pty = *request->pty;
		exec->pty.term = exec->term;
		exec->call.pty = &exec->pty;
	}
	node_exec_print(exec, request);
	int r = node_check_attempt(request->run, request->attempt, &error);
	return call_begin_checked(&exec->call, r, &error);
}

void node_exec_resize(struct node_call *call, unsigned columns, unsigned rows)
{
	struct exec *exec = (struct exec *)call;

	exec->pty.columns = columns;
	exec->pty.rows = rows;
	if (call->conn)
		node_conn_resize(call->conn, columns, rows);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A command beside the program, and the terminal of ad-hoc work. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "node/fdio.h"
#include "node/node_impl.h"

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

static int exec_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	const struct exec *exec = (const struct exec *)call;

	(void)err;
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

static enum call_next exec_ended(struct node_call *call, struct err *fault)
{
	struct exec *exec = (struct exec *)call;

	*exec->ret = *node_talk_exit(call->talk);
	if (exec->output_gone) {
		err_clear(fault);
		*exec->ret = (struct channel_exit){.known = true, .code = PIPE_CLOSED_STATUS};
	}
	return call_next(call, fault);
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

	if (exec->call.talk)
		node_talk_wake(exec->call.talk);
}

static void say(struct exec *exec, const struct node_exec_request *request)
{
	struct node_call *call = &exec->call;

	call_attempt(call, request->is_shell ? "shell" : "exec", request->run, request->attempt);
	for (size_t i = 0; i < request->command->n; i++) {
		call_say(call, "word");
		call_word(call, request->command->v[i]);
		call_line_end(call);
	}
	if (exec->is_alone) {
		call_say(call, "alone");
		call_line_end(call);
	}
}

struct node_call *node_exec(struct node *node, const struct node_exec_request *request,
	struct channel_exit *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct exec *exec = call_new(node, sizeof(*exec), &exec_ops, done, ctx);

	*ret = (struct channel_exit){0};
	exec->ret = ret;
	exec->call.is_once = true;
	exec->is_alone = request->fds[0] < 0 && !request->pty && !request->is_shell;
	for (int i = 0; i < 3; i++)
		node_fd_init(&exec->fds[i], node->options.loop, request->fds[i],
			i == 0 ? POLLIN : POLLOUT, on_fd, exec);
	if (request->pty) {
		exec->term = mem_strdup(request->pty->term);
		exec->pty = *request->pty;
		exec->pty.term = exec->term;
		exec->call.pty = &exec->pty;
	}
	say(exec, request);
	if (node_check_attempt(request->run, request->attempt, &fault) < 0)
		call_finish(&exec->call, &fault);
	else
		call_begin(&exec->call);
	return &exec->call;
}

void node_exec_resize(struct node_call *call, unsigned columns, unsigned rows)
{
	struct exec *exec = (struct exec *)call;

	exec->pty.columns = columns;
	exec->pty.rows = rows;
	if (call->talk)
		node_talk_resize(call->talk, columns, rows);
}

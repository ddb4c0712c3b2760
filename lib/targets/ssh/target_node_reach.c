/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"
#include "targets/ssh/target_gang.h"

/*
 * Ports of a program on a node, and commands beside it.
 */

/* A port that is not open yet is tried again for so long. */
enum {
	HOLD_MS = 8 * 1000,
	RETRY_MS = 200,
	SAID_AGAIN_MS = 5000,
	SIGNAL_STATUS = 128,
	STATUS_UNKNOWN = 125,
	COLUMNS = 80,
	ROWS = 24,
};

/*
 * Ports
 */

struct carry {
	struct node_work base;
	struct channel *channel; /* until it is open, then the pump's */
	struct pump *pump;
	struct loop_timer *retry;
	int fd; /* the caller's side, until the pump has it */
	uint16_t port;
	int64_t begun_ms;
};

static void release_carry(struct node_work *work)
{
	struct carry *carry = (struct carry *)work;

	if (work->target)
		loop_remove_timer(work->target->target.loop, carry->retry);
	channel_free(carry->channel);
	pump_cancel(carry->pump);
	if (carry->fd >= 0)
		close(carry->fd);
	free(carry);
}

static int on_pumped(void *ctx, struct pump_end *end, struct err *err)
{
	struct carry *carry = ctx;

	(void)err;
	carry->pump = NULL;
	target_call_end_pumped(carry->base.call, end);
	return 0;
}

static void on_woken(void *ctx)
{
	struct carry *carry = ctx;

	if (carry->pump)
		pump_wake(carry->pump);
}

static void start_pump(struct carry *carry)
{
	struct stream *there = channel_stream(TAKE(carry->channel), on_woken, carry);
	const struct pump_options options = {.loop = carry->base.target->target.loop,
		.a = stream_from_fd(TAKE_FD(carry->fd)),
		.b = there,
		.done = on_pumped,
		.ctx = carry};

	carry->pump = pump_start(&options);
}

/* A browser tries again at once: the same words are told now and then. */
static void say(struct target_node *node, const char *text)
{
	int64_t now_ms = clock_ms();

	if (!node->target.notice)
		return;
	if (!str_eq(text, node->said) || now_ms - node->said_ms > SAID_AGAIN_MS)
		node->target.notice(node->target.notice_ctx, text);
	free(node->said);
	node->said = mem_strdup(text);
	node->said_ms = now_ms;
}

static int on_retry(void *ctx, struct err *err);

/* A port that nothing listens on yet may be opened in a moment: retry. */
static void fail_connect(struct carry *carry, struct err *fault)
{
	channel_free(TAKE(carry->channel));
	if (fault->id == E_SSH_PORT && clock_ms() - carry->begun_ms < HOLD_MS) {
		carry->retry = loop_add_timer(
			carry->base.target->target.loop, clock_ms() + RETRY_MS, on_retry, carry);
		return;
	}
	say(carry->base.target, fault->message);
	target_call_end(carry->base.call, -(int)fault->code, fault);
}

/* The channel is open, or has failed to open. */
static int on_ready(void *ctx, struct err *err)
{
	struct carry *carry = ctx;
	struct channel_exit end = {0};
	AUTO_ERR struct err fault = {0};

	(void)err;
	if (carry->channel->ops->wait(carry->channel, &end, &fault) < 0)
		fail_connect(carry, &fault);
	else
		start_pump(carry);
	return 0;
}

static void connect_there(struct carry *carry)
{
	const struct channel_opener *opener = &carry->base.host->opener;
	const struct channel_events events = {on_ready, carry};

	carry->channel = opener->connect(opener->ctx, "127.0.0.1", carry->port, &events);
}

static int on_retry(void *ctx, struct err *err)
{
	struct carry *carry = ctx;

	(void)err;
	carry->retry = NULL;
	connect_there(carry);
	return 0;
}

int target_node_carry(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err)
{
	struct carry *carry = mem_alloc(1, sizeof(*carry));
	AUTO_FREE char *one = NULL;

	*carry = (struct carry){
		.base = {.release = release_carry}, .fd = fd, .port = port, .begun_ms = clock_ms()};
	int r = node_handle_rank(handle, rank, &one, err);
	if (r < 0) {
		release_carry(&carry->base);
		return r;
	}
	r = node_work_begin(target, one, &carry->base, call, err);
	if (r < 0)
		return r;
	if (carry->base.host->opener.connect) {
		connect_there(carry);
		return 0;
	}
	r = err_set(
		err, E_TARGET_UNSUPPORTED, "ports of %s cannot be reached", carry->base.host->name);
	target_call_cancel(call);
	return r;
}

/*
 * Commands
 */

struct exec {
	struct node_work base;
	struct target_exec_request request;
	struct strv command;
	struct channel_pty pty;
	struct channel_exit end;
	bool has_signal;
	int *ret_status;
};

static void release_exec(struct node_work *work)
{
	struct exec *exec = (struct exec *)work;

	if (exec->has_signal)
		loop_remove_signal(work->target->target.loop, SIGWINCH);
	strv_done(&exec->command);
	free(exec);
}

static int status_of(const struct channel_exit *end)
{
	int sig = *end->signal ? proc_signal_number(end->signal) : 0;

	if (sig)
		return SIGNAL_STATUS + sig;
	return end->known && !*end->signal ? end->code : STATUS_UNKNOWN;
}

static int on_executed(void *ctx, int status, struct err *fault, struct err *err)
{
	struct exec *exec = ctx;

	(void)err;
	if (status == 0)
		*exec->ret_status = status_of(&exec->end);
	return node_work_end(&exec->base, status, fault);
}

static void ask_size(struct exec *exec)
{
	exec->pty.columns = COLUMNS;
	exec->pty.rows = ROWS;
	if (exec->request.size)
		exec->request.size(exec->request.ctx, &exec->pty.columns, &exec->pty.rows);
}

static int on_resized(void *ctx, int sig, struct err *err)
{
	struct exec *exec = ctx;

	(void)sig;
	(void)err;
	ask_size(exec);
	node_exec_resize(exec->base.asked, exec->pty.columns, exec->pty.rows);
	return 0;
}

static int prepare_terminal(struct exec *exec, struct err *err)
{
	const char *term = env_get(exec->base.target->session->env.env, "TERM");

	if (!exec->request.tty)
		return 0;
	exec->pty.term = str_empty(term) ? "dumb" : term;
	/* Programs that keep terminals there draw on them: "dumb" will not do. */
	if (exec->request.is_shell && str_eq(exec->pty.term, "dumb"))
		exec->pty.term = "xterm";
	ask_size(exec);
	int r = loop_add_signal(exec->base.target->target.loop, SIGWINCH, on_resized, exec, err);
	exec->has_signal = r == 0;
	if (r == 0 && exec->request.raw)
		exec->request.raw(exec->request.ctx);
	return r;
}

int target_node_exec(struct target *target, const char *handle,
	const struct target_exec_request *request, int *ret_status, struct target_call *call,
	struct err *err)
{
	AUTO_FREE char *one = NULL;
	struct exec *exec;

	int r = node_handle_rank(handle, request->rank, &one, err);
	if (r < 0)
		return r;
	exec = mem_alloc(1, sizeof(*exec));
	*exec = (struct exec){
		.base = {.release = release_exec}, .request = *request, .ret_status = ret_status};
	strv_copy(&exec->command, request->command);
	r = node_work_begin(target, one, &exec->base, call, err);
	if (r < 0)
		return r;
	r = prepare_terminal(exec, err);
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	const struct node_exec_request wanted = {
		.run = exec->base.handle.run_id,
		.attempt = exec->base.handle.attempt,
		.command = &exec->command,
		.is_shell = request->is_shell,
		.pty = request->tty ? &exec->pty : NULL,
		.fds = {request->fds[0], request->fds[1], request->fds[2]},
	};
	exec->base.asked = node_exec(exec->base.host->node, &wanted, &exec->end, on_executed, exec);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A provider that is a program. Each verb is a process of its own, in a session of its own, so that
 * what it started ends with it. SIGPIPE is ignored (app.c): a program need not read its request. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/autoscale/provider_impl.h"
#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "net/stream/channel.h"

enum {
	CHUNK = 64 << 10,
	DRAIN_CHUNKS = 17,     /* more than a pipe holds */
	STDERR_KEPT = 4 << 10, /* of the end of stderr */
	POLL_FIRST_MS = 1,     /* between two polls whether it has ended */
	POLL_MAX_MS = 100,
	GRACE_MS = 2000, /* between TERM and KILL */
	LOST_MS = 1000,  /* a process that KILL does not end is not waited for */
};

struct exec_pipe {
	struct exec_child *child;
	int fd; /* -1: closed */
	struct loop_fd *source;
	struct buf text;
};

struct exec_child {
	struct provider_exec *exec;
	struct provider_call *call; /* NULL: given up; only its end is waited for */
	pid_t pid;                  /* 0: it has not started, because of error */
	struct err error;
	struct exec_pipe in, out, errors;
	struct loop_timer *timer;
	unsigned n_polls;
	int64_t start_ms;
	int stopped_by;  /* the signal that it was sent last, or 0 */
	int64_t stop_ms; /* when it is sent the next one */
	char *why;       /* it was stopped; or NULL */
};

struct provider_exec {
	struct provider base;
	struct loop *loop;
	struct strv argv;
	const char *const *env;
	struct VEC_OF(struct exec_child *) children;
};

/*
 * Pipes
 */

static void provider_exec_close(struct exec_pipe *pipe)
{
	loop_remove_fd(pipe->child->exec->loop, TAKE(pipe->source));
	if (pipe->fd >= 0)
		close(TAKE_FD(pipe->fd));
}

static short provider_exec_prepare_in(void *ctx UNUSED)
{
	return POLLOUT;
}

static int provider_exec_write(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct exec_pipe *pipe = ctx;
	ssize_t n = write(pipe->fd, pipe->text.data, pipe->text.len);

	if (n > 0)
		buf_consume(&pipe->text, (size_t)n);
	else if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n < 0 || pipe->text.len == 0)
		provider_exec_close(pipe);
	return 0;
}

static short provider_exec_prepare_out(void *ctx UNUSED)
{
	return POLLIN;
}

static void provider_exec_stop(struct exec_child *child, int sig, const char *why);
static void provider_exec_poll_soon(struct exec_child *child);
static void provider_exec_poll_later(struct exec_child *child);

/* False: there is no more, for now or for good. */
static bool provider_exec_read_some(struct exec_pipe *pipe)
{
	struct exec_child *child = pipe->child;
	char chunk[CHUNK];
	ssize_t n = pipe->fd < 0 ? 0 : read(pipe->fd, chunk, sizeof(chunk));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return false;
	if (n <= 0) {
		provider_exec_close(pipe);
		return false;
	}
	/* Of stderr the end is kept. */
	size_t len = (size_t)n, skip = 0;
	if (pipe == &child->errors) {
		skip = len > STDERR_KEPT ? len - STDERR_KEPT : 0;
		len -= skip;
		if (pipe->text.len + len > STDERR_KEPT)
			buf_consume(&pipe->text, pipe->text.len + len - STDERR_KEPT);
	}
	buf_add(&pipe->text, chunk + skip, len);
	if (!pipe->text.full)
		return true;
	provider_exec_close(pipe);
	provider_exec_stop(child, SIGKILL, "it printed more than 8 MiB");
	return false;
}

static int provider_exec_read(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct exec_pipe *pipe = ctx;

	provider_exec_read_some(pipe);
	/* A program that has closed its output is about to end. */
	if (pipe->fd < 0)
		provider_exec_poll_soon(pipe->child);
	return 0;
}

/*
 * The end
 */

static void provider_exec_free_child(struct exec_child *child)
{
	struct provider_exec *exec = child->exec;

	for (size_t i = 0; i < exec->children.n; i++)
		if (exec->children.v[i] == child) {
			exec->children.v[i] = exec->children.v[--exec->children.n];
			break;
		}
	provider_exec_close(&child->in);
	provider_exec_close(&child->out);
	provider_exec_close(&child->errors);
	buf_done(&child->in.text);
	buf_done(&child->out.text);
	buf_done(&child->errors.text);
	loop_remove_timer(exec->loop, child->timer);
	err_done(&child->error);
	free(child->why);
	free(child);
}

/* The last line with anything in it. */
static void provider_exec_last_line(const struct buf *text, struct buf *out)
{
	size_t end = text->len;

	while (end > 0 && strchr(" \t\r\n", text->data[end - 1]))
		end--;
	size_t start = end;
	while (start > 0 && text->data[start - 1] != '\n')
		start--;
	if (start < end)
		buf_adds(out, ": ");
	buf_add(out, text->data + start, end - start);
}

/* The last line of stderr is added to how it failed. */
static int provider_exec_fail(struct exec_child *child, const char *how, struct err *err)
{
	struct provider_call *call = TAKE(child->call);
	AUTO_BUF struct buf text = buf_with(2 * STDERR_KEPT);
	AUTO_ERR struct err error = {0};

	buf_adds(&text, how);
	provider_exec_last_line(&child->errors.text, &text);
	err_set(&error, E_SCALE_PROVIDER, "%s", text.data);
	/* A process that is lost stays in the list. */
	if (!child->pid)
		provider_exec_free_child(child);
	return call ? provider_end_failed(call, SCALE_FAILED_OTHER, true, &error, err) : 0;
}

static int provider_exec_respond(struct exec_child *child, struct err *err)
{
	AUTO_JSON struct json *response = NULL;
	AUTO_ERR struct err error = {0};
	struct provider_call *call;

	if (json_parse(child->out.text.data, child->out.text.len, PROVIDER_RESPONSE_MAX,
		    "the response", &response, &error) < 0)
		return provider_exec_fail(child, error.message, err);
	call = TAKE(child->call);
	provider_exec_free_child(child);
	return provider_end(call, TAKE(response), err);
}

/* status: as of waitpid; -1: it is not known how it ended. */
static int provider_exec_ended(struct exec_child *child, int status, struct err *err)
{
	char name[8];
	AUTO_FREE char *how = TAKE(child->why);

	child->pid = 0;
	if (!child->call) {
		provider_exec_free_child(child);
		return 0;
	}
	/* Processes that still hold the pipes are not waited for. */
	for (int i = 0; i < DRAIN_CHUNKS && provider_exec_read_some(&child->errors); i++)
		;
	for (int i = 0; i < DRAIN_CHUNKS && provider_exec_read_some(&child->out); i++)
		;
	if (!how)
		how = TAKE(child->why);
	if (!how && status == 0)
		return provider_exec_respond(child, err);
	if (!how && status < 0)
		how = mem_strdup("it is not known how it ended");
	else if (!how && WIFSIGNALED(status))
		how = mem_printf("killed by SIG%s", proc_signal_name(WTERMSIG(status), name));
	else if (!how)
		how = mem_printf("exit status %d", WEXITSTATUS(status));
	return provider_exec_fail(child, how, err);
}

static int provider_exec_fail_start(struct exec_child *child, struct err *err)
{
	struct provider_call *call = TAKE(child->call);
	enum scale_failure failure =
		child->error.id == E_RUN_EXEC ? SCALE_FAILED_CONFIG : SCALE_FAILED_OTHER;
	AUTO_ERR struct err error = {0};

	if (child->error.n_evidence > 0)
		err_set(&error, E_SCALE_PROVIDER, "%s: %s", child->error.message,
			child->error.evidence[0]);
	else
		err_move(&error, &child->error);
	provider_exec_free_child(child);
	return call ? provider_end_failed(call, failure, false, &error, err) : 0;
}

/* Signal the program and all that it started. */
static void provider_exec_stop(struct exec_child *child, int sig, const char *why)
{
	if (child->pid && child->stopped_by != SIGKILL) {
		kill(-child->pid, sig);
		child->stopped_by = sig;
		child->stop_ms = clock_ms() + (sig == SIGKILL ? LOST_MS : GRACE_MS);
	}
	if (why && !child->why)
		child->why = mem_strdup(why);
}

/* Send the next signal, or give the process up when there is none. */
static int provider_exec_late(struct exec_child *child, struct err *err)
{
	char limit[32];

	if (child->stopped_by == SIGKILL) {
		AUTO_FREE char *how = mem_printf("%s, and cannot be killed", child->why);

		child->stop_ms = INT64_MAX;
		provider_exec_close(&child->out);
		provider_exec_close(&child->errors);
		provider_exec_poll_later(child);
		return provider_exec_fail(child, how, err);
	}
	if (child->stopped_by) {
		provider_exec_stop(child, SIGKILL, NULL);
	} else {
		AUTO_FREE char *why = mem_printf("it took longer than %s",
			duration_text(child->stop_ms - child->start_ms, limit));

		provider_exec_stop(child, SIGTERM, why);
	}
	provider_exec_poll_later(child);
	return 0;
}

static int provider_exec_poll(void *ctx, struct err *err)
{
	struct exec_child *child = ctx;
	siginfo_t info = {0};
	int status = 0;

	child->timer = NULL;
	if (!child->pid)
		return provider_exec_fail_start(child, err);
	if (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 &&
		errno == ECHILD)
		return provider_exec_ended(child, -1, err);
	if (info.si_pid == child->pid) {
		/* Until it is waited for, its number is not used again. */
		kill(-child->pid, SIGKILL);
		waitpid(child->pid, &status, 0);
		return provider_exec_ended(child, status, err);
	}
	if (clock_ms() >= child->stop_ms)
		return provider_exec_late(child, err);
	provider_exec_poll_later(child);
	return 0;
}

static void provider_exec_poll_later(struct exec_child *child)
{
	int64_t at_ms = clock_ms() + backoff_ms(++child->n_polls, POLL_FIRST_MS, POLL_MAX_MS);

	child->timer = loop_add_timer(child->exec->loop,
		at_ms < child->stop_ms ? at_ms : child->stop_ms, provider_exec_poll, child);
}

static void provider_exec_poll_soon(struct exec_child *child)
{
	loop_remove_timer(child->exec->loop, child->timer);
	child->n_polls = 0;
	provider_exec_poll_later(child);
}

/*
 * The start
 */

static void provider_exec_open(struct exec_pipe *pipe, int fd)
{
	static const struct loop_fd_ops in = {
		.prepare = provider_exec_prepare_in, .dispatch = provider_exec_write};
	static const struct loop_fd_ops out = {
		.prepare = provider_exec_prepare_out, .dispatch = provider_exec_read};

	pipe->fd = fd;
	pipe->source = loop_add_fd(
		pipe->child->exec->loop, fd, pipe == &pipe->child->in ? &in : &out, pipe);
}

static int provider_exec_spawn(
	struct exec_child *child, const struct json *request, struct err *err)
{
	struct provider_exec *exec = child->exec;
	struct child process = {0};

	json_print(request, &child->in.text);
	buf_addc(&child->in.text, '\n');
	int r = buf_check(&child->in.text, "the request", err);
	if (r == 0)
		r = child_start(&(struct child_spec){.argv = (const char *const *)exec->argv.v,
					.env = exec->env},
			&process, err);
	if (r < 0)
		return r;
	child->pid = process.pid;
	provider_exec_open(&child->in, process.in);
	provider_exec_open(&child->out, process.out);
	provider_exec_open(&child->errors, process.err);
	return 0;
}

static void provider_exec_start(struct provider *provider, struct provider_call *call,
	const struct json *request, int64_t deadline_ms)
{
	struct provider_exec *exec = (struct provider_exec *)provider;
	struct exec_child *child = mem_alloc(1, sizeof(*child));

	*child = (struct exec_child){.exec = exec,
		.call = call,
		.in = {child, -1, NULL, buf_with(PROVIDER_RESPONSE_MAX)},
		.out = {child, -1, NULL, buf_with(PROVIDER_RESPONSE_MAX)},
		.errors = {child, -1, NULL, buf_with(STDERR_KEPT)},
		.start_ms = clock_ms(),
		.stop_ms = deadline_ms};
	call->own = child;
	*vec_push(&exec->children) = child;
	provider_exec_spawn(child, request, &child->error);
	provider_exec_poll_later(child);
}

/* The program gets time to end in order. */
static void provider_exec_cancel(struct provider *provider UNUSED, struct provider_call *call)
{
	struct exec_child *child = call->own;

	child->call = NULL;
	provider_exec_stop(child, SIGTERM, "canceled");
	provider_exec_close(&child->in);
	provider_exec_close(&child->out);
	provider_exec_close(&child->errors);
	provider_exec_poll_soon(child);
}

static void provider_exec_free(struct provider *provider)
{
	struct provider_exec *exec = (struct provider_exec *)provider;

	while (exec->children.n > 0) {
		struct exec_child *child = exec->children.v[0];

		if (child->pid) {
			kill(-child->pid, SIGKILL);
			/* A process that cannot be killed is left to init. */
			bool is_lost = child->stopped_by == SIGKILL && child->stop_ms == INT64_MAX;
			waitpid(child->pid, NULL, is_lost ? WNOHANG : 0);
		}
		free(child->call);
		provider_exec_free_child(child);
	}
	vec_done(&exec->children);
	strv_done(&exec->argv);
	free(exec);
}

struct provider *provider_exec_new(
	struct loop *loop, const char *const *argv, const char *const *env)
{
	static const struct provider_ops ops = {.start = provider_exec_start,
		.cancel = provider_exec_cancel,
		.free = provider_exec_free};
	struct provider_exec *exec = mem_alloc(1, sizeof(*exec));

	*exec = (struct provider_exec){
		.base = {.ops = &ops, .name = mem_strdup(argv[0])}, .loop = loop, .env = env};
	for (; *argv; argv++)
		strv_add(&exec->argv, *argv);
	return &exec->base;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/loop/proc_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

enum {
	RUN_CHUNK = 64 << 10,
	RUN_DRAIN_CHUNKS = 17, /* more than a pipe holds */
	RUN_POLL_FIRST_MS = 1, /* between two polls whether it has ended */
	RUN_POLL_MAX_MS = 100,
	RUN_STUCK_MS = 1000, /* a process that SIGKILL does not end is not waited for */
	RUN_STUCK_MAX = 64,
};
/* Processes that were left alone as stuck: they are waited for when they have ended after all. */
static pid_t stuck[RUN_STUCK_MAX];

struct proc_pipe {
	struct proc_run *run;
	int fd; /* our end; -1: closed */
	struct loop_fd *source;
	struct buf text;
};

struct proc_run {
	struct loop *loop;
	pid_t pid; /* 0: it has been waited for */
	struct proc_pipe in, out, errors;
	struct loop_timer *timer;
	unsigned n_polls;
	int64_t stop_ms; /* when it is signalled next */
	int64_t grace_ms;
	int stopped_by; /* the signal that it was sent last, or 0 */
	bool has_terminal, kills_rest, is_secret;
	struct proc_run_result result;
	proc_run_fn *fn;
	void *ctx;
};

/*
 * Pipes
 */

static void proc_pipe_close(struct proc_pipe *pipe)
{
	loop_remove_fd(pipe->run->loop, TAKE(pipe->source));
	if (pipe->fd >= 0)
		close(TAKE_FD(pipe->fd));
}

static void proc_run_close(struct proc_run *run)
{
	proc_pipe_close(&run->in);
	proc_pipe_close(&run->out);
	proc_pipe_close(&run->errors);
}

static void proc_pipe_write(struct proc_pipe *pipe)
{
	ssize_t n = write(pipe->fd, pipe->text.data, pipe->text.len);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n > 0)
		buf_consume(&pipe->text, (size_t)n);
	if (n < 0 || pipe->text.len == 0)
		proc_pipe_close(pipe);
}

/* Signal it and all that it started. */
static void proc_run_kill(const struct proc_run *run, int sig)
{
	kill(run->has_terminal ? run->pid : -run->pid, sig);
}

static void proc_run_signal(struct proc_run *run, int sig, enum proc_run_end why)
{
	if (run->pid && run->stopped_by != SIGKILL) {
		proc_run_kill(run, sig);
		run->stopped_by = sig;
		run->stop_ms = clock_ms() + (sig == SIGKILL ? RUN_STUCK_MS : run->grace_ms);
	}
	if (run->result.end == PROC_RUN_ENDED)
		run->result.end = why;
}

/* Add to the text, of which the end is kept if it is that of stderr. False: it is too much. */
static bool proc_pipe_add(struct proc_pipe *pipe, const char *data, size_t len)
{
	struct buf *text = &pipe->text;

	if (pipe == &pipe->run->errors) {
		size_t skip = len > text->max ? len - text->max : 0;
		data += skip;
		len -= skip;
		if (text->len + len > text->max)
			buf_consume(text, text->len + len - text->max);
	}
	buf_add(text, data, len);
	return !text->full;
}

/* False: there is no more, for now or for good. */
static bool proc_pipe_read(struct proc_pipe *pipe)
{
	struct proc_run *run = pipe->run;
	char chunk[RUN_CHUNK];
	ssize_t n = pipe->fd < 0 ? 0 : read(pipe->fd, chunk, sizeof(chunk));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return false;
	if (n <= 0) {
		proc_pipe_close(pipe);
		return false;
	}
	bool is_taken = proc_pipe_add(pipe, chunk, (size_t)n);
	if (run->is_secret)
		explicit_bzero(chunk, (size_t)n);
	if (is_taken)
		return true;
	proc_pipe_close(pipe);
	proc_run_signal(run, SIGKILL, PROC_RUN_TOO_MUCH);
	return false;
}

static void proc_run_poll_soon(struct proc_run *run);

static short proc_pipe_prepare(void *ctx)
{
	const struct proc_pipe *pipe = ctx;

	return pipe == &pipe->run->in ? POLLOUT : POLLIN;
}

static int proc_pipe_dispatch(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct proc_pipe *pipe = ctx;

	if (pipe == &pipe->run->in) {
		proc_pipe_write(pipe);
		return 0;
	}
	proc_pipe_read(pipe);
	/* A program that has closed its output is about to end. */
	if (pipe->fd < 0)
		proc_run_poll_soon(pipe->run);
	return 0;
}

/*
 * The end
 */

static int proc_run_finish(struct proc_run *run, struct err *err)
{
	proc_run_close(run);
	run->result.out = &run->out.text;
	run->result.errors = &run->errors.text;
	/* The run may be freed in there. */
	return run->fn(run->ctx, &run->result, err);
}

/* status: as of wait(2), -1: not known. */
static int proc_run_ended(struct proc_run *run, int status, struct err *err)
{
	run->pid = 0;
	run->result.status = status;
	for (int i = 0; i < RUN_DRAIN_CHUNKS && proc_pipe_read(&run->errors); i++)
		;
	for (int i = 0; i < RUN_DRAIN_CHUNKS && proc_pipe_read(&run->out); i++)
		;
	return proc_run_finish(run, err);
}

static void proc_run_poll_later(struct proc_run *run);

/* Send the next signal, or leave the process alone when there is none. */
static int proc_run_late(struct proc_run *run, struct err *err)
{
	if (run->stopped_by == SIGKILL) {
		run->result.status = -1;
		run->result.is_stuck = true;
		return proc_run_finish(run, err);
	}
	bool is_last = run->stopped_by || !run->grace_ms;
	proc_run_signal(run, is_last ? SIGKILL : SIGTERM, PROC_RUN_LATE);
	proc_run_poll_later(run);
	return 0;
}

/* There is no descriptor for the end of a process everywhere, and SIGCHLD is not ours. */
static int proc_run_poll(void *ctx, struct err *err)
{
	struct proc_run *run = ctx;
	siginfo_t info = {0};
	int status = -1;

	run->timer = NULL;
	if (waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 &&
		errno == ECHILD)
		return proc_run_ended(run, -1, err);
	if (info.si_pid == run->pid) {
		/* Until it is waited for, its number is not used again. */
		if (run->kills_rest)
			proc_run_kill(run, SIGKILL);
		while (waitpid(run->pid, &status, 0) < 0 && errno == EINTR)
			;
		return proc_run_ended(run, status, err);
	}
	if (clock_ms() >= run->stop_ms)
		return proc_run_late(run, err);
	proc_run_poll_later(run);
	return 0;
}

static void proc_run_poll_later(struct proc_run *run)
{
	int64_t at_ms = clock_ms() + backoff_ms(++run->n_polls, RUN_POLL_FIRST_MS, RUN_POLL_MAX_MS);

	run->timer = loop_add_timer(
		run->loop, at_ms < run->stop_ms ? at_ms : run->stop_ms, proc_run_poll, run);
}

static void proc_run_poll_soon(struct proc_run *run)
{
	loop_remove_timer(run->loop, run->timer);
	run->n_polls = 0;
	proc_run_poll_later(run);
}

void proc_run_stop(struct proc_run *run)
{
	if (!run->pid || run->result.is_stuck)
		return;
	if (!run->stopped_by)
		proc_run_signal(run, run->grace_ms ? SIGTERM : SIGKILL, PROC_RUN_STOPPED);
	proc_run_close(run);
	proc_run_poll_soon(run);
}

void proc_run_leave(struct proc_run *run)
{
	struct buf *const texts[] = {&run->in.text, &run->out.text, &run->errors.text};

	proc_run_close(run);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		if (run->is_secret)
			buf_wipe(texts[i]);
		buf_done(texts[i]);
	}
	loop_remove_timer(run->loop, run->timer);
	free(run);
}

static void proc_run_reap_stuck(void)
{
	for (size_t i = 0; i < RUN_STUCK_MAX; i++) {
		pid_t pid = stuck[i] ? waitpid(stuck[i], NULL, WNOHANG) : 0;
		if (pid > 0 || (pid < 0 && errno == ECHILD))
			stuck[i] = 0;
	}
}

/* A process that finds no room stays a zombie until this one ends. */
static void proc_run_abandon(pid_t pid)
{
	size_t i = 0;

	while (i < RUN_STUCK_MAX && stuck[i])
		i++;
	if (i < RUN_STUCK_MAX)
		stuck[i] = pid;
	proc_run_reap_stuck();
}

void proc_run_free(struct proc_run *run)
{
	if (!run)
		return;
	if (run->pid) {
		proc_run_kill(run, SIGKILL);
		if (run->result.is_stuck)
			proc_run_abandon(run->pid);
		else
			while (waitpid(run->pid, NULL, 0) < 0 && errno == EINTR)
				;
	}
	proc_run_leave(run);
}

/*
 * The start
 */

/* The child's end of a new pipe is *theirs. */
static int proc_pipe_open(struct proc_pipe *pipe, size_t max, int *theirs, struct err *err)
{
	bool is_input = pipe == &pipe->run->in;
	int fds[2];

	ERR_TRY(fs_pipe(fds, 0, err));
	pipe->fd = fds[is_input];
	*theirs = fds[!is_input];
	pipe->text = buf_with(max);
	/* A secret is never moved, so that it is wiped as a whole. */
	if (pipe->run->is_secret)
		buf_reserve(&pipe->text, max);
	if (fcntl(pipe->fd, F_SETFL, O_NONBLOCK) < 0)
		return err_set_errno(err, E_IO, errno, "cannot prepare a pipe");
	return 0;
}

static void proc_pipe_add_source(struct proc_pipe *pipe)
{
	static const struct loop_fd_ops ops = {
		.prepare = proc_pipe_prepare, .dispatch = proc_pipe_dispatch};

	if (pipe->fd >= 0)
		pipe->source = loop_add_fd(pipe->run->loop, pipe->fd, &ops, pipe);
}

static int proc_run_spawn(struct proc_run *run, const struct proc_run_spec *spec, struct err *err)
{
	AUTO_FD int in = -1, out = -1, errors = -1;
	size_t len = spec->input ? strlen(spec->input) : 0;

	if (spec->input) {
		ERR_TRY(proc_pipe_open(&run->in, len, &in, err));
		buf_add(&run->in.text, spec->input, len);
		proc_pipe_write(&run->in);
	}
	if (spec->out_max)
		ERR_TRY(proc_pipe_open(&run->out, spec->out_max, &out, err));
	if (spec->errors_max)
		ERR_TRY(proc_pipe_open(&run->errors, spec->errors_max, &errors, err));
	const struct proc_spec child = {.argv = spec->argv,
		.env = spec->env,
		.stdin_fd = spec->input ? in : spec->stdin_fd,
		.stdout_fd = out,
		.stderr_fd = spec->errors_max ? errors : spec->stderr_fd,
		.new_session = !spec->has_terminal};
	return proc_spawn(&child, &run->pid, err);
}

int proc_run_start(struct loop *loop, const struct proc_run_spec *spec, proc_run_fn *fn, void *ctx,
	struct proc_run **ret, struct err *err)
{
	AUTO_PROC_RUN struct proc_run *run = mem_alloc(1, sizeof(*run));

	proc_run_reap_stuck();
	*run = (struct proc_run){.loop = loop,
		.in = {.run = run, .fd = -1},
		.out = {.run = run, .fd = -1},
		.errors = {.run = run, .fd = -1},
		.stop_ms = clock_deadline(spec->timeout_ms),
		.grace_ms = spec->grace_ms,
		.has_terminal = spec->has_terminal,
		.kills_rest = spec->kills_rest,
		.is_secret = spec->is_secret,
		.fn = fn,
		.ctx = ctx};
	ERR_TRY(proc_run_spawn(run, spec, err));
	proc_pipe_add_source(&run->in);
	proc_pipe_add_source(&run->out);
	proc_pipe_add_source(&run->errors);
	proc_run_poll_later(run);
	*ret = TAKE(run);
	return 0;
}

/*
 * Words for it
 */

int proc_run_code(const struct proc_run_result *result)
{
	if (result->status < 0)
		return 127;
	return WIFEXITED(result->status) ? WEXITSTATUS(result->status)
					 : 128 + WTERMSIG(result->status);
}

char *proc_run_text(const struct proc_run_result *result)
{
	char name[8];

	if (result->status < 0)
		return mem_strdup("it is not known how it ended");
	if (WIFSIGNALED(result->status))
		return mem_printf(
			"killed by SIG%s", proc_signal_name(WTERMSIG(result->status), name));
	return mem_printf("exit status %d", WEXITSTATUS(result->status));
}

char *proc_run_code_text(int code)
{
	char name[8];

	return code > 128 ? mem_printf("was killed by SIG%s", proc_signal_name(code - 128, name))
			  : mem_printf("failed with exit status %d", code);
}

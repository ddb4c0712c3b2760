/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/local/program.h"
#include "targets/local/setup.h"

/*
 * The setup of a program (setup.h): the supervisor waits for it, or runs it here as a process of
 * the family, so that a cancel ends it too.
 */

enum { LOG_TAIL_MAX = 64 << 10 };

static int on_look(void *ctx, struct err *err);

static void look_at(struct supervisor *sup, int64_t at_ms)
{
	loop_remove_timer(sup->loop, sup->setup_timer);
	sup->setup_timer = loop_add_timer(sup->loop, at_ms, on_look, sup);
}

static void fail(struct supervisor *sup, const char *text)
{
	AUTO_FREE char *line = mem_printf("dlrun: %s\n", text);

	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	attempt_set_end(&sup->end, RUN_FAILED, 125, 0, "setup", "SetupFailed", text);
	sup_finish(sup);
}

/*
 * Running it
 */

static int fork_line(struct supervisor *sup, struct program *ret, struct err *err)
{
	AUTO_STRV struct strv env = {0}, command = {0};
	struct setup_order order;

	setup_order(sup->setup, &order);
	program_env(sup->job, sup->inherited, sup->tree, &env);
	strv_add(&command, "/bin/sh");
	strv_add(&command, "-c");
	strv_add(&command, order.line);
	sup_make_family(sup);
	struct program_spec spec = {
		.command = &command,
		.env = &env,
		.cwd = order.cwd,
		.output_fd = order.output_fd,
		.lock_fd = sup->lock_fd,
		.family = &sup->state.family,
	};
	sup_note(sup, "setup: %s, output in %s", order.line, order.log);
	return program_fork(&spec, ret, err);
}

static void run_line(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	struct program program;

	if (fork_line(sup, &program, &err) < 0) {
		fail(sup, err.message);
		return;
	}
	sup->phase = PHASE_SETUP_RUNS;
	sup->child = program.pid;
	sup->state.setup = (struct attempt_process){
		.pid = program.pid, .start = os_process_start(program.pid)};
	sup_wait_as(sup, RUN_STARTING, "its setup runs");
	int errnum = program_release(&program);
	if (errnum)
		sup_note(sup, "setup: %s", strerror(errnum));
	sup_check_family(sup);
	sup_look_for_cancel(sup);
}

static void copy_tail(struct supervisor *sup, const char *path)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	AUTO_FREE char *text = mem_alloc(LOG_TAIL_MAX, 1);
	struct stat st;
	off_t at;

	if (fd < 0 || fstat(fd, &st) < 0)
		return;
	at = st.st_size > LOG_TAIL_MAX ? st.st_size - LOG_TAIL_MAX : 0;
	ssize_t n = pread(fd, text, LOG_TAIL_MAX, at);
	if (n <= 0)
		return;
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, text, (size_t)n, NULL);
	if (text[n - 1] != '\n')
		fs_write_fd(sup->log_fd, ATTEMPT_LOG, "\n", 1, NULL);
}

/* Show the reason in the run's own log. */
static void line_failed(struct supervisor *sup)
{
	int status = sup->setup_status, sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	AUTO_FREE char *shown = str_escaped(sup->job->world.setup.run), *text = NULL;
	struct setup_order order;
	char name[8];

	setup_order(sup->setup, &order);
	AUTO_FREE char *begin = mem_printf("dlrun: setup failed, the end of %s:\n", order.log);
	if (sig)
		text = mem_printf("setup failed by signal %d (%s): %s", sig,
			proc_signal_name(sig, name), shown);
	else
		text = mem_printf("setup failed with exit %d: %s", WEXITSTATUS(status), shown);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, begin, strlen(begin), NULL);
	copy_tail(sup, order.log);
	fail(sup, text);
}

static void ready(struct supervisor *sup)
{
	sup->state.setup = (struct attempt_process){0};
	sup_wait_as(sup, RUN_STARTING, "");
	sup_gpus_begin(sup);
}

void sup_setup_over(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	bool failed = sup->setup_status != 0;

	/* None of it is the program's. */
	sup->cpu_s = 0;
	sup->peak_bytes = 0;
	if (sup->stop != STOP_NONE) {
		sup_finish_as(
			sup, RUN_CANCELLED, 143, "Cancelled", "it was cancelled during its setup");
		return;
	}
	int r = setup_end(sup->setup, sup->setup_status, &err);
	if (failed)
		line_failed(sup);
	else if (r < 0)
		fail(sup, err.message);
	else
		ready(sup);
}

/*
 * Waiting for it
 */

static int on_look(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;
	AUTO_ERR struct err failure = {0};
	enum setup_state state;

	(void)err;
	sup->setup_timer = NULL;
	if (sup->phase != PHASE_SETUP)
		return 0;
	int r = setup_look(sup->setup, &state, &failure);
	if (r < 0) {
		fail(sup, failure.message);
	} else if (state == SETUP_READY) {
		ready(sup);
	} else if (state == SETUP_RUN) {
		run_line(sup);
	} else {
		sup_wait_as(sup, RUN_STARTING, setup_why(sup->setup));
		look_at(sup, clock_ms() + setup_wait_ms(sup->setup));
	}
	return 0;
}

void sup_setup_begin(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	sup->phase = PHASE_SETUP;
	if (setup_begin(sup->job, sup->tree, &sup->setup, &err) < 0)
		fail(sup, err.message);
	else if (!sup->setup)
		sup_gpus_begin(sup);
	else
		look_at(sup, clock_ms());
}

void sup_setup_env(const struct supervisor *sup, struct strv *env)
{
	AUTO_STRV struct strv with = {0};

	if (!sup->setup)
		return;
	setup_env(sup->setup, env, &with);
	attempt_setup_env_write(env, &with);
	strv_done(env);
	*env = with;
	with = (struct strv){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/attach.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "app/forward/forward.h"
#include "app/lifecycle/follow.h"
#include "app/runs/refresh.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/runs/runs.h"

enum { EXIT_INTERRUPTED = 130, END_MS = 3000 };

struct terminal {
	struct termios before;
	bool is_raw;
};

static void make_raw(void *ctx)
{
	struct terminal *terminal = ctx;
	struct termios raw;

	if (terminal->is_raw || tcgetattr(STDIN_FILENO, &terminal->before) < 0)
		return;
	raw = terminal->before;
	cfmakeraw(&raw);
	terminal->is_raw = tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

static void restore(struct terminal *terminal)
{
	if (terminal->is_raw)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal->before);
	terminal->is_raw = false;
}

static void attach_get_size(void *ctx UNUSED, unsigned *ret_columns, unsigned *ret_rows)
{
	struct winsize size = {0};

	if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) < 0)
		return;
	*ret_columns = size.ws_col;
	*ret_rows = size.ws_row;
}

static void attach_on_end(int sig UNUSED)
{
	app_interrupted = 1;
}

/* Ctrl-C on a terminal is the command's: as a byte, or as a signal to all that share it. */
static void catch_signals(bool tty)
{
	struct sigaction action = {.sa_handler = attach_on_end};

	app_catch_signals();
	sigemptyset(&action.sa_mask);
	sigaction(SIGHUP, &action, NULL);
	if (!tty)
		return;
	action.sa_handler = SIG_IGN;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGQUIT, &action, NULL);
}

/* A terminal that is kept there leaves the run alive: the user can return to it. */
static int after_terminal(struct app *app, const struct run *run, int status)
{
	struct run_list one = {0};
	AUTO_RUN struct run *now = NULL;

	if (runs_find(&app->session, run_id(run), &now, NULL) < 0)
		return status;
	*vec_push(&one) = now;
	runs_wait(&app->session, &one, END_MS, NULL, NULL);
	vec_done(&one);
	if (run_state_is_final(run_state(now)))
		return run_exit_status(now);
	app_note(app, "it goes on: dlrun ssh %s · stop: dlrun cancel %s", run_id(run), run_id(run));
	return status;
}

int attach_terminal(struct app *app, const struct run *run, bool tty)
{
	AUTO_ERR struct err err = {0};
	struct terminal terminal = {0};
	const struct target_exec_request exec = {
		.fds = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO},
		.tty = tty,
		.raw = make_raw,
		.size = attach_get_size,
		.ctx = &terminal,
	};
	int status = 0;

	catch_signals(tty);
	int r = run_terminal(&app->session, run, &exec, &status, &app_interrupted, &err);
	restore(&terminal);
	if (app_interrupted)
		return EXIT_INTERRUPTED;
	if (r < 0) {
		if (err.code == ERR_NET && !err.hint)
			err_hint(&err, "dlrun ssh %s", run_id(run));
		return app_fail(app, &err);
	}
	return after_terminal(app, run, status);
}

static void attach_on_notice(void *ctx, const char *text)
{
	app_note(ctx, "%s", text);
}

int attach_run(struct app *app, const struct attach_request *request)
{
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *found = NULL, *begun = NULL;
	struct terminal terminal = {0};
	struct target_exec_request exec = {
		.command = request->command,
		.fds = {request->input || request->tty ? STDIN_FILENO : -1, STDOUT_FILENO,
			STDERR_FILENO},
		.tty = request->tty,
		.raw = make_raw,
		.size = attach_get_size,
		.ctx = &terminal,
	};
	int status = 0;

	if (request->tty && !isatty(STDIN_FILENO)) {
		err_set(&err, E_USAGE, "--tty: stdin is not a terminal");
		err_hint(&err, "leave -t out; -i passes stdin on to the command");
		return app_fail(app, &err);
	}
	int r = runs_get(app, request->run, &found, &err);
	if (r == 0)
		r = runs_find_rank(found, request->role, request->rank, &exec.rank, &err);
	if (r < 0)
		return app_fail(app, &err);
	const struct forward_options waiting = {.rank = exec.rank,
		.notice = attach_on_notice,
		.ctx = app,
		.interrupted = &app_interrupted};
	/* Until it has begun, Ctrl-C is dlrun's. */
	app_catch_signals();
	r = run_wait_begun(&app->session, found, &waiting, &begun, &err);
	if (app_interrupted)
		return EXIT_INTERRUPTED;
	if (r < 0)
		return app_fail(app, &err);
	const struct run *run = begun ? begun : found;
	if (run_state_is_final(run_state(run)) && request->tty)
		app_note(app, "%s has ended (%s): this is its tree as it was left", run_id(run),
			run_state_name(run_state(run)));
	catch_signals(request->tty);
	r = run_exec(&app->session, run, &exec, &status, &app_interrupted, &err);
	restore(&terminal);
	if (app_interrupted)
		return EXIT_INTERRUPTED;
	return r < 0 ? app_fail(app, &err) : status;
}

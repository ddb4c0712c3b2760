/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard.h"

#include <stdlib.h>

#include "app/forward/forward.h"
#include "app/tensorboard/tensorboard_local.h"
#include "app/tensorboard/tensorboard_link.h"
#include "app/tensorboard/tensorboard_remote.h"
#include "app/transfer/mirror_files.h"
#include "base/loop/loop.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	TURN_MS = 100,
	FIRST_SOME_MS = 10 * 1000, /* for the first search in all runs, if some have files */
	FIRST_MS = 60 * 1000,
	RESPONSE_MS = 180 * 1000, /* with TensorFlow beside it, from a network home */
	WAIT_SAID_MS = 3000,      /* before it is said that something takes its time */
};

/* A run as it was polled last, and what has been reported about it. */
struct viewed {
	const struct run *run;
	struct mirror_state state;
	bool linked, waits, over, failed, cut;
	int64_t linked_ms; /* grown_ms of then */
};

struct view {
	struct session *session;
	struct VEC_OF(struct viewed) runs;
	struct tensorboard_options options;
	struct loop *loop;
	char secret[TENSORBOARD_SECRET_SIZE];
	struct tensorboard_dir dir;
	struct tensorboard_program program;
	struct mirror *mirror;
	struct tensorboard_server *server;
	struct tensorboard_httpd httpd;
	struct run *begun; /* the run of --remote, if it was waited for; or NULL */
	/* The command waits for this, which is called again and again: 1: it is there. */
	int (*poll)(struct view *view, struct err *err);
	struct loop_wait wait;
	int64_t begun_ms; /* clock_ms(), of the wait */
	bool is_notified; /* that it takes its time */
	struct loop_timer *turn;
};

static void tensorboard_view_done(struct view *view)
{
	loop_remove_timer(view->loop, view->turn);
	tensorboard_httpd_done(&view->httpd);
	tensorboard_server_free(view->server);
	run_free(view->begun);
	mirror_free(view->mirror);
	tensorboard_program_done(&view->program);
	tensorboard_dir_done(&view->dir);
	vec_done(&view->runs);
}

static void tensorboard_print(const struct view *view, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void tensorboard_print(const struct view *view, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	if (view->options.notice)
		view->options.notice(view->options.ctx, text);
}

static const char *tensorboard_first_id(const struct view *view)
{
	return run_id(view->runs.v[0].run);
}

/*
 * Waiting
 */

static int tensorboard_on_turn(void *ctx, struct err *err)
{
	struct view *view = ctx;

	view->turn = loop_add_timer(view->loop, clock_ms() + TURN_MS, tensorboard_on_turn, view);
	int r = view->poll(view, err);
	if (r > 0)
		loop_wait_done(&view->wait);
	return r < 0 ? r : 0;
}

/* Something has come that the command may wait for. */
static void tensorboard_wake(struct view *view)
{
	loop_remove_timer(view->loop, view->turn);
	view->turn = loop_add_timer(view->loop, 0, tensorboard_on_turn, view);
}

static int tensorboard_wait(
	struct view *view, int (*poll)(struct view *view, struct err *err), struct err *err)
{
	view->poll = poll;
	view->wait = (struct loop_wait){
		.loop = view->loop, .n_open = 1, .interrupted = view->options.interrupted};
	view->begun_ms = clock_ms();
	view->is_notified = false;
	tensorboard_wake(view);
	return loop_wait_run(&view->wait, err);
}

static int64_t tensorboard_waited_ms(const struct view *view)
{
	return clock_ms() - view->begun_ms;
}

/* Whether the user is to be told now that it takes long. */
static bool tensorboard_is_slow(struct view *view)
{
	if (view->is_notified || tensorboard_waited_ms(view) < WAIT_SAID_MS)
		return false;
	view->is_notified = true;
	return true;
}

/*
 * Event files
 */

static bool tensorboard_has_any(const struct mirror_state *state)
{
	return state->files || state->plugin_files;
}

static void tensorboard_get_states(struct view *view)
{
	for (size_t i = 0; i < view->runs.n; i++)
		mirror_get(view->mirror, i, &view->runs.v[i].state);
}

/* Each run that has files appears below its id. */
static int link_runs(struct view *view, struct err *err)
{
	vec_foreach (struct viewed, each, &view->runs) {
		const struct mirror_state *state = &each->state;

		if (!tensorboard_has_any(state) ||
			(each->linked && each->linked_ms == state->grown_ms))
			continue;
		int r = tensorboard_dir_link(
			&view->dir, run_id(each->run), state->dir, state->source, err);
		if (r < 0)
			return r;
		each->linked = true;
		each->linked_ms = state->grown_ms;
	}
	return 0;
}

static bool has_files(const struct view *view)
{
	vec_foreach (const struct viewed, each, &view->runs)
		if (each->linked)
			return true;
	return false;
}

/* Whether more of it may come. */
static bool may_grow(const struct viewed *viewed)
{
	bool has_ended = run_state_is_final(run_state(viewed->run));

	return !viewed->state.is_over && !(has_ended && err_is_set(viewed->state.error));
}

static bool nothing_can_come(const struct view *view, const struct err **ret_error)
{
	*ret_error = NULL;
	vec_foreach (const struct viewed, each, &view->runs) {
		if (tensorboard_has_any(&each->state) || may_grow(each))
			return false;
		if (!*ret_error && err_is_set(each->state.error))
			*ret_error = each->state.error;
	}
	return true;
}

static int fail_empty(const struct view *view, struct err *err)
{
	const char *id = tensorboard_first_id(view);

	if (view->runs.n == 1)
		err_set(err, E_TENSORBOARD_EMPTY, "%s has written no event files", id);
	else
		err_set(err, E_TENSORBOARD_EMPTY, "none of %zu runs has written event files",
			view->runs.n);
	err_evidence(err, "looked for *tfevents* in all results: what is in $DLRUN_OUTPUT_DIR, and "
			  "what was written to the tree");
	return err_hint(err, "dlrun fetch --list %s   # what it has written", id);
}

static void print_error(const struct view *view, struct viewed *viewed)
{
	const struct err *error = viewed->state.error;
	bool failed = err_is_set(error);

	if (failed && !viewed->failed)
		tensorboard_print(view, "%s: %s%s", run_id(viewed->run), error->message,
			may_grow(viewed) ? "; trying again" : "");
	else if (!failed && viewed->failed)
		tensorboard_print(view, "%s can be read again", run_id(viewed->run));
	viewed->failed = failed;
}

/* Of one that had ended before nothing has to be said. */
static void print_end(const struct view *view, struct viewed *viewed)
{
	if (!viewed->state.is_over || viewed->over)
		return;
	viewed->over = true;
	if (!tensorboard_has_any(&viewed->state))
		tensorboard_print(view, "%s has ended without event files", run_id(viewed->run));
	else if (!run_state_is_final(run_state(viewed->run)))
		tensorboard_print(
			view, "%s has ended; all of its event files are here", run_id(viewed->run));
}

static void tensorboard_print_excluded(const struct view *view, struct viewed *viewed)
{
	const struct mirror_state *state = &viewed->state;
	char size[16];

	if (!state->n_excluded || viewed->cut)
		return;
	viewed->cut = true;
	AUTO_FREE char *shown = str_shown(state->excluded);
	tensorboard_print(view,
		"%s: %zu files that plugins read are not copied, the first %s: they are over %d "
		"files or %s",
		run_id(viewed->run), state->n_excluded, shown, MIRROR_PLUGIN_FILES_MAX,
		str_size(MIRROR_PLUGIN_BYTES_MAX, size));
}

static int check_runs(struct view *view, struct err *err)
{
	vec_foreach (struct viewed, each, &view->runs) {
		const struct mirror_state *state = &each->state;

		print_error(view, each);
		print_end(view, each);
		tensorboard_print_excluded(view, each);
		if (tensorboard_has_any(state) || state->is_over || each->failed || each->waits ||
			state->polls == 0)
			continue;
		tensorboard_print(view,
			"%s has no event files yet; they appear once it writes some",
			run_id(each->run));
		each->waits = true;
	}
	return link_runs(view, err);
}

static size_t count_unseen(const struct view *view)
{
	size_t n = 0;

	vec_foreach (const struct viewed, each, &view->runs)
		n += each->state.polls == 0 && !each->state.is_over &&
		     !err_is_set(each->state.error);
	return n;
}

/* Runs that take long to respond to the first search are added later, if there are others. */
static int tensorboard_find_files(struct view *view, struct err *err)
{
	const struct err *error;

	tensorboard_get_states(view);
	int r = link_runs(view, err);
	if (r < 0)
		return r;
	if (!mirror_is_polled(view->mirror) &&
		tensorboard_waited_ms(view) < (has_files(view) ? FIRST_SOME_MS : FIRST_MS)) {
		if (tensorboard_is_slow(view))
			tensorboard_print(view, "looking for event files of %zu %s",
				count_unseen(view), count_unseen(view) == 1 ? "run" : "runs");
		return 0;
	}
	/* TensorBoard would look for files missing at its start only five seconds later. */
	if (has_files(view))
		return 1;
	if (nothing_can_come(view, &error))
		return error ? err_copy(err, error) : fail_empty(view, err);
	return check_runs(view, err);
}

static void tensorboard_on_polled(void *ctx, size_t run UNUSED)
{
	tensorboard_wake(ctx);
}

/*
 * Serving
 */

static int open_httpd(struct view *view, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int r = tensorboard_httpd_open(&view->httpd, view->server, view->options.port, &error);

	if (r < 0 && error.id == E_LISTEN_TAKEN)
		err_hint(&error, "dlrun tensorboard %s   # at 6006 or the next free port",
			tensorboard_first_id(view));
	return r < 0 ? err_move(err, &error) : 0;
}

static void notify_shown(const struct view *view)
{
	const struct tensorboard_server *server = view->server;
	const struct tensorboard_shown shown = {.url = view->httpd.url,
		.open_url = view->httpd.open_url,
		.port = view->httpd.port,
		.version = server->version,
		.program = view->program.path,
		.remote = view->options.remote ? server->port : 0,
		.was_found = server->was_found,
		.is_alone = server->is_alone};

	view->options.shown(view->options.ctx, &shown);
	if (server->is_plain)
		tensorboard_print(view,
			"its path can be seen in the list of processes: %s is not a Python script",
			view->program.path);
}

static int tensorboard_serve(struct view *view, struct err *err)
{
	int r = tensorboard_server_poll(view->server, err);

	if (r >= 0 && view->mirror) {
		tensorboard_get_states(view);
		r = check_runs(view, err);
	}
	return r < 0 ? r : 0;
}

static int tensorboard_await_response(struct view *view, struct err *err)
{
	int r = tensorboard_server_poll(view->server, err);

	if (r == 0 && tensorboard_waited_ms(view) > RESPONSE_MS) {
		char time[32];

		err_set(err, E_TENSORBOARD_START, "TensorBoard did not answer within %s",
			duration_text(RESPONSE_MS, time));
		if (view->program.path)
			err_evidence(err, "from %s", view->program.path);
		return err_hint(err, "dlrun tensorboard -v %s   # shows its messages",
			tensorboard_first_id(view));
	}
	if (r == 0 && tensorboard_is_slow(view))
		tensorboard_print(view, "waiting for TensorBoard to answer");
	return r;
}

/*
 * Here
 */

static int start_local(struct view *view, struct err *err)
{
	AUTO_FREE struct mirror_state *states = mem_alloc(view->runs.n, sizeof(*states));
	const struct tensorboard_local_options options = {.loop = view->loop,
		.program = &view->program,
		.env = view->session->env.env,
		.logdir = view->dir.runs,
		.prefix = view->secret,
		.scratch = view->dir.scratch,
		.plot = tensorboard_first_id(view)};

	for (size_t i = 0; i < view->runs.n; i++)
		states[i] = view->runs.v[i].state;
	view->options.mirrored(view->options.ctx, states, view->runs.n);
	return tensorboard_local_start(&options, &view->server, err);
}

static int show_here(struct view *view, struct err *err)
{
	const struct tree_place *place = NULL;

	(void)session_place(view->session, &place, NULL);
	const struct tensorboard_search search = {.env = view->session->env.env,
		.tree = place ? place->root : NULL,
		.home = view->session->dirs.home,
		.plot = tensorboard_first_id(view)};
	int r = tensorboard_find(&search, &view->program, err);
	if (r == 0) {
		const struct mirror_options options = {.scalars_only = view->options.scalars_only,
			.polled = tensorboard_on_polled,
			.ctx = view};
		size_t index;

		r = mirror_open(view->session, &options, &view->mirror, err);
		for (size_t i = 0; r == 0 && i < view->runs.n; i++)
			r = mirror_add(view->mirror, view->runs.v[i].run, &index, err);
	}
	if (r == 0)
		r = tensorboard_dir_make(view->session->dirs.runtime, &view->dir, err);
	if (r == 0)
		r = tensorboard_wait(view, tensorboard_find_files, err);
	return r < 0 ? r : start_local(view, err);
}

/*
 * Beside the program
 */

static int show_remote(struct view *view, struct err *err)
{
	const struct forward_options waiting = {.notice = view->options.notice,
		.ctx = view->options.ctx,
		.interrupted = view->options.interrupted};
	const struct run *run = view->runs.v[0].run;

	if (view->runs.n != 1)
		return err_set(err, E_USAGE, "--remote shows one run at a time");
	if (view->options.scalars_only)
		return err_set(err, E_USAGE, "--scalars is for copies, and --remote makes none");
	int r = run_wait_begun(view->session, run, &waiting, &view->begun, err);
	if (r < 0)
		return r;
	const struct tensorboard_remote_options options = {.session = view->session,
		.run = view->begun ? view->begun : run,
		.secret = view->secret,
		.notice = view->options.notice,
		.ctx = view->options.ctx};
	return tensorboard_remote_open(&options, &view->server, err);
}

int run_tensorboard(struct session *session, const struct run_list *runs,
	const struct tensorboard_options *options, struct err *err)
{
	AUTO(tensorboard_view_done)
	struct view view = {.session = session, .options = *options, .loop = session_loop(session)};

	vec_foreach (struct run *const, run, runs)
		vec_push(&view.runs)->run = *run;
	tensorboard_secret_make(view.secret);
	int r = options->remote ? show_remote(&view, err) : show_here(&view, err);
	if (r == 0)
		r = tensorboard_wait(&view, tensorboard_await_response, err);
	if (r == 0)
		r = open_httpd(&view, err);
	if (r < 0)
		return r;
	notify_shown(&view);
	return tensorboard_wait(&view, tensorboard_serve, err);
}

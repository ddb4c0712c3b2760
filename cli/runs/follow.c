/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/follow.h"

#include <string.h>

#include "app/lifecycle/follow.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "cli/runs/reach.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/logview.h"
#include "cli/term/ui.h"

enum { EXIT_INTERRUPTED = 130, OUT_MAX = 64 << 20 };

struct follower {
	struct app *app;
	struct loop *loop;
	struct logview view;
	struct loop_timer *timer;
};

static int runs_follow_write_out(struct follower *follower, struct buf *out, struct err *err)
{
	if (ui_write(follower->app, out->data, out->len) < 0)
		return err_set(err, E_CANCELED, "the output was closed");
	return 0;
}

static void runs_follow_set_timer(struct follower *follower);

static int runs_follow_on_timer(void *ctx, struct err *err)
{
	struct follower *follower = ctx;
	AUTO_BUF struct buf out = {0};
	int r;

	buf_init(&out, OUT_MAX);
	follower->timer = NULL;
	logview_tick(&follower->view, clock_ms(), &out);
	r = runs_follow_write_out(follower, &out, err);
	runs_follow_set_timer(follower);
	return r;
}

static void runs_follow_set_timer(struct follower *follower)
{
	int64_t due = logview_due(&follower->view);

	if (due >= 0 && !follower->timer)
		follower->timer =
			loop_add_timer(follower->loop, due, runs_follow_on_timer, follower);
}

static int runs_follow_on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct follower *follower = ctx;
	AUTO_BUF struct buf out = {0};

	buf_init(&out, OUT_MAX);
	follower->view.rank = rank;
	logview_add(&follower->view, data, len, time_ms, clock_ms(), &out);
	runs_follow_set_timer(follower);
	return runs_follow_write_out(follower, &out, err);
}

static void runs_follow_on_notice(void *ctx, const char *text)
{
	struct follower *follower = ctx;

	app_note(follower->app, "[%s]", text);
}

static int runs_follow_read_log(struct follower *follower, struct session *session, struct run *run,
	const struct follow_request *request, struct err *err)
{
	const struct follow_options options = {.tail_lines = request->tail_lines,
		.since_ms = request->since_ms,
		.rank = request->rank,
		.attempt = request->attempt,
		.follow = request->follow,
		.interrupted = &app_interrupted};
	const struct target_log_events events = {
		.data = runs_follow_on_data, .notice = runs_follow_on_notice, .ctx = follower};
	AUTO_BUF struct buf out = {0};
	int r = run_follow(session, run, &options, &events, err);

	buf_init(&out, OUT_MAX);
	if (follower->timer)
		loop_remove_timer(follower->loop, follower->timer);
	logview_end(&follower->view, &out);
	if (!follower->app->out_lost)
		ui_write(follower->app, out.data, out.len);
	/* The shell's prompt, or the end of the run, begins a line of its own. */
	if (follower->app->out_tty && follower->app->out_in_line)
		ui_write(follower->app, "\n", 1);
	return r;
}

static enum logview_kind runs_follow_kind_of(const struct app *app)
{
	if (app->options.json)
		return LOGVIEW_JSON;
	return app->out_tty ? LOGVIEW_TERMINAL : LOGVIEW_RAW;
}

static bool has_ranks(const struct run *run)
{
	return json_get_int(json_get(run->doc, "resources"), "nodes", 1) > 1;
}

static int detached(struct app *app, const struct run *run)
{
	const char *id = run_id(run);

	app_note_interrupted(app, "detached: %s keeps running.  dlrun logs -f %s", id, id);
	return EXIT_INTERRUPTED;
}

int follow_log(struct app *app, struct run *run, const struct follow_request *request)
{
	AUTO_ERR struct err err = {0};
	struct follower follower = {.app = app};
	struct session *session;
	int r = app_session(app, &session, &err);

	if (r < 0)
		return app_fail(app, &err);
	app_catch_signals();
	app->accepted |= request->follow;
	follower.loop = session_loop(session);
	logview_init(&follower.view, runs_follow_kind_of(app), app->out_color, request->timestamps);
	follower.view.ranked = request->rank < 0 && has_ranks(run);
	struct forward *ports = request->follow ? reach_open(app, run, request->rank) : NULL;
	r = runs_follow_read_log(&follower, session, run, request, &err);
	forward_free(ports);
	logview_done(&follower.view);
	if (app->out_lost) {
		if (request->follow && !run_state_is_final(run_state(run)))
			app_note(app, "the output was closed; %s goes on", run_id(run));
		return 1;
	}
	if (app_interrupted && !run_state_is_final(run_state(run)))
		return detached(app, run);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json) {
		app->json_done = true;
		app_print_json_line(app, json_clone(run->doc));
	}
	return request->follow ? runs_say_end(app, run) : 0;
}

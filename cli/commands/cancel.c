/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/follow.h"
#include "app/runs/refresh.h"
#include "app/transfer/fetch.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

enum { TIMEOUT_MS = 5000, STATE_MS = 3000 };

struct cancel_values {
	bool no_wait;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "no-wait", struct cancel_values, no_wait),
		.help = "Ask the runs to end, and do not wait"},
	{OPT_END},
};

/* Fetch what the program has written before it goes with the pods, where the target keeps nothing.
 * Returns whether that is here now; fails only when interrupted. */
static int take_before(struct app *app, struct run *run, struct err *err)
{
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	AUTO_ERR struct err error = {0};

	if (run_state_is_final(run_state(run)) || run_keeps_results(&app->session, run))
		return 0;
	if (runs_refresh(&app->session, &one, STATE_MS, NULL) < 0 || run_state(run) != RUN_RUNNING)
		return 0;
	app_note(app, "%s: taking what it has written, which ends with its pods", run_id(run));
	if (take_run(&app->session, run, &app_interrupted, &error) == 0)
		return 1;
	if (error.id == E_CANCELED)
		return err_move(err, &error);
	app_warn(app, "%s: what it has written cannot be taken: %s", run_id(run), error.message);
	return 0;
}

struct ending {
	struct app *app;
	bool is_whole; /* all that the program has written is here */
};

/* Fetch what the program has written since its end was requested; its pods wait for this. Fails
 * only when interrupted. */
static int take_rest(void *ctx, struct run *run, struct err *err)
{
	struct ending *ending = ctx;
	struct app *app = ending->app;
	AUTO_ERR struct err error = {0};

	if (take_ending(&app->session, run, &app_interrupted, &error) == 0) {
		ending->is_whole = true;
		return 0;
	}
	if (error.id == E_CANCELED)
		return err_move(err, &error);
	app_warn(app, "%s: what it has written since cannot be taken: %s", run_id(run),
		error.message);
	return 0;
}

/* wait_ms: 0: do not wait. */
static int cancel_stop(
	struct app *app, struct run *run, int64_t wait_ms, bool *ended_before, struct err *err)
{
	struct ending ending = {.app = app};
	int r = wait_ms ? take_before(app, run, err) : 0;
	bool taken = r > 0;

	if (r >= 0)
		r = run_cancel(&app->session, run, wait_ms, taken ? take_rest : NULL, &ending,
			ended_before, err);
	if (taken && !ending.is_whole && !run_state_is_final(run_state(run)))
		take_undo(&app->session, run);
	return r;
}

/* Returns 0 when the run has ended (or with no_wait), 1 when it has not ended yet. */
static int cmd_cancel_one(struct app *app, struct run *run, bool no_wait, struct err *err)
{
	int64_t wait_ms = no_wait ? 0 : runs_grace(run) + TIMEOUT_MS;
	bool ended_before = false;
	const char *text;
	char took[32];
	int r = adopt_own(&app->session, run, err);

	if (r == 0)
		r = cancel_stop(app, run, wait_ms, &ended_before, err);
	if (r < 0)
		return err_prefix(err, "%s", run_id(run));
	if (ended_before)
		app_note(app, "%s already finished: %s", run_id(run),
			run_state_name(run_state(run)));
	else if (run_state_is_final(run_state(run)))
		app_note(app, "%s: %s after %s", run_id(run), run_state_name(run_state(run)),
			duration_text(runs_duration(run), took));
	else if (no_wait)
		app_note(app, "%s is being stopped", run_id(run));
	else if ((text = json_get_str(run->doc, "text")))
		app_warn(app, "%s has not ended after %s: %s", run_id(run),
			duration_text(wait_ms, took), text);
	else
		app_warn(app, "%s has not ended after %s; dlrun why %s", run_id(run),
			duration_text(wait_ms, took), run_id(run));
	return !no_wait && !run_state_is_final(run_state(run));
}

static int cancel_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct cancel_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	int status = 0;

	if (runs_get_all(app, words, &runs, &err) < 0)
		return app_fail(app, &err);
	vec_foreach (struct run *, run, &runs) {
		int r = cmd_cancel_one(app, *run, values->no_wait, &err);

		if (r < 0)
			return app_fail(app, &err);
		status |= r;
	}
	if (app->options.json)
		runs_print_json(app, &runs);
	return status;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun cancel @ # stop the newest run and wait for its end",
	"dlrun cancel a-3k2f9 b-77xyz # stop two runs",
	"dlrun cancel --no-wait @ # only ask for it",
};

const struct cmd cmd_cancel = {
	.name = "cancel",
	.summary = "Stop runs: TERM, and KILL after the grace period",
	.synopsis = "[options] RUN...",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct cancel_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_LIVE,
	.run = cancel_run,
};

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/lifecycle/cancel.h"
#include "app/runs/refresh.h"
#include "app/transfer/fetch.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/record/group.h"

enum { TIMEOUT_MS = 5000, STATE_MS = 3000, OPEN_SHOWN = 5, LINES_MAX = 20 };

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

/* State of a command. */
struct cancel_work {
	struct app *app;
	bool no_wait;
	struct ending *endings;
	bool *taken, *is_whole; /* what the program has written is here: until then; all of it */
	size_t n;
};

static void cancel_work_done(struct cancel_work *work)
{
	for (size_t i = 0; i < work->n; i++)
		err_done(&work->endings[i].err);
	free(work->endings);
	free(work->taken);
	free(work->is_whole);
}

static void cancel_work_init(
	struct cancel_work *work, struct app *app, const struct run_list *runs, bool no_wait)
{
	*work = (struct cancel_work){.app = app, .no_wait = no_wait, .n = runs->n};
	work->endings = mem_alloc(runs->n + 1, sizeof(*work->endings));
	work->taken = mem_alloc(runs->n + 1, sizeof(*work->taken));
	work->is_whole = mem_alloc(runs->n + 1, sizeof(*work->is_whole));
	for (size_t i = 0; i < runs->n; i++)
		work->endings[i] = (struct ending){.run = runs->v[i]};
}

/* Fetch what the program has written since its end was requested; its pods wait for this. Fails
 * only when interrupted. */
static int take_rest(void *ctx, struct run *run, struct err *err)
{
	struct cancel_work *work = ctx;
	struct app *app = work->app;
	AUTO_ERR struct err error = {0};
	size_t i = 0;

	while (work->endings[i].run != run)
		i++;
	if (!work->taken[i])
		return 0;
	if (take_ending(&app->session, run, &app_interrupted, &error) == 0) {
		work->is_whole[i] = true;
		return 0;
	}
	if (error.id == E_CANCELED)
		return err_move(err, &error);
	app_warn(app, "%s: what it has written since cannot be taken: %s", run_id(run),
		error.message);
	return 0;
}

/* How long the longest grace period is, and some more. */
static int64_t cancel_wait_ms(const struct cancel_work *work)
{
	int64_t grace_ms = 0;

	for (size_t i = 0; i < work->n; i++) {
		int64_t ms = runs_grace(work->endings[i].run);
		grace_ms = ms > grace_ms ? ms : grace_ms;
	}
	return work->no_wait ? 0 : grace_ms + TIMEOUT_MS;
}

static int cancel_stop(struct cancel_work *work, struct err *err)
{
	struct session *session = &work->app->session;
	bool takes = false;
	int r = 0;

	for (size_t i = 0; r >= 0 && i < work->n && !work->no_wait; i++) {
		r = take_before(work->app, work->endings[i].run, err);
		work->taken[i] = r > 0;
		takes |= r > 0;
	}
	if (r >= 0)
		r = runs_cancel(session, work->endings, work->n, cancel_wait_ms(work),
			takes ? take_rest : NULL, work, err);
	for (size_t i = 0; i < work->n; i++)
		if (work->taken[i] && !work->is_whole[i] &&
			!run_state_is_final(run_state(work->endings[i].run)))
			take_undo(session, work->endings[i].run);
	return r;
}

static void cancel_print_one(const struct cancel_work *work, const struct ending *ending)
{
	const struct run *run = ending->run;
	struct app *app = work->app;
	const char *text;
	char took[32];

	if (err_is_set(&ending->err))
		return;
	if (ending->ended_before)
		app_note(app, "%s already finished: %s", run_id(run),
			run_state_name(run_state(run)));
	else if (run_state_is_final(run_state(run)))
		app_note(app, "%s: %s after %s", run_id(run), run_state_name(run_state(run)),
			duration_text(runs_duration(run), took));
	else if (ending->is_sending)
		app_note(app, "%s is being sent now; it ends as soon as that is over", run_id(run));
	else if (work->no_wait)
		app_note(app, "%s is being stopped", run_id(run));
	else if ((text = json_get_str(run->doc, "text")))
		app_warn(app, "%s has not ended after %s: %s", run_id(run),
			duration_text(cancel_wait_ms(work), took), text);
	else
		app_warn(app, "%s has not ended after %s; dlrun why %s", run_id(run),
			duration_text(cancel_wait_ms(work), took), run_id(run));
}

/* Print a line for many, and what it does not tell. */
static void cancel_print_study(const struct cancel_work *work, const char *study)
{
	AUTO_FREE char *many = mem_printf("%zu runs", work->n);
	size_t before = 0, open = 0;
	struct run_list ended = {0};
	struct group_counts counts;
	AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX);

	for (size_t i = 0; i < work->n; i++) {
		const struct ending *ending = &work->endings[i];
		bool is_final = run_state_is_final(run_state(ending->run));

		before += ending->ended_before;
		if (!ending->ended_before && is_final)
			*vec_push(&ended) = ending->run;
		open += !is_final && !err_is_set(&ending->err);
		if (!is_final && !work->no_wait && open <= OPEN_SHOWN)
			cancel_print_one(work, ending);
	}
	group_count(&ended, &counts);
	group_counts_text(&counts, &text);
	vec_done(&ended);
	if (open)
		buf_addf(&text, "%s%zu %s", text.len ? ", " : "", open,
			work->no_wait ? "being stopped" : "not ended");
	if (before)
		buf_addf(&text, "%s%zu finished before", text.len ? ", " : "", before);
	app_note(work->app, "%s: %s", study ? study : many,
		text.len ? text.data : "nothing was stopped");
}

/* Errors of runs: the first is that of the command. */
static int cancel_errors(struct cancel_work *work, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < work->n; i++) {
		struct ending *ending = &work->endings[i];

		if (!err_is_set(&ending->err))
			continue;
		err_prefix(&ending->err, "%s", run_id(ending->run));
		if (r < 0)
			app_warn(work->app, "%s", ending->err.message);
		else
			r = err_move(err, &ending->err);
	}
	return r;
}

static int cancel_adopt(struct app *app, const struct run_list *runs, struct err *err)
{
	vec_foreach (struct run *, run, runs)
		if (adopt_own(&app->session, *run, err) < 0)
			return err_prefix(err, "%s", run_id(*run));
	return 0;
}

static int cancel_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct cancel_values *values = values_ptr;
	AUTO(cancel_work_done) struct cancel_work work = {0};
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO(runs_held_done) struct runs_held held = {0};
	AUTO_FREE char *study = NULL;
	struct session *session;
	int status = 0;

	if (app_session(app, &session, &err) < 0)
		return app_fail(app, &err);
	session->ends_runs = true;
	if (runs_get_named(app, words, &runs, &study, &err) < 0 ||
		runs_hold_studies(app, words, &runs, &study, &held, &err) < 0 ||
		cancel_adopt(app, &runs, &err) < 0)
		return app_fail(app, &err);
	cancel_work_init(&work, app, &runs, values->no_wait);
	int r = cancel_stop(&work, &err);
	if (r < 0)
		return app_fail(app, &err);
	bool is_study = study && words->n == 1, is_summed = is_study || work.n > LINES_MAX;
	if (is_summed)
		cancel_print_study(&work, is_study ? study : NULL);
	for (size_t i = 0; i < work.n; i++) {
		if (!is_summed)
			cancel_print_one(&work, &work.endings[i]);
		status |= !values->no_wait && !run_state_is_final(run_state(runs.v[i]));
	}
	if (cancel_errors(&work, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		runs_print_json(app, &runs);
	return status;
}

const struct cmd cmd_cancel = {
	.name = "cancel",
	.summary = "Stop runs: TERM, and KILL after the grace period",
	.synopsis = "[options] RUN|STUDY...",
	.examples = {"dlrun cancel @ # stop the newest run and wait for its end",
		"dlrun cancel a-3k2f9 tiger-4k2x9 # stop a run and all runs of a study",
		"dlrun cancel --no-wait @ # only ask for it"},
	.opts = opts,
	.values_size = sizeof(struct cancel_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_LIVE,
	.flags = CMD_STUDIES,
	.run = cancel_run,
};

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/follow.h"
#include "base/util/auto.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

enum { EXIT_TIMEOUT = 124, EXIT_INTERRUPTED = 130 };

struct wait_values {
	int64_t timeout;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_DURATION, 0, "timeout", struct wait_values, timeout), .arg = "TIME",
		.help = "Give up after this time (exit status 124)"},
	{OPT_END},
};

static int print_ends(struct app *app, const struct run_list *runs)
{
	int first = 0;

	vec_foreach (struct run *, run, runs) {
		int status = runs_print_end(app, *run);

		if (first == 0)
			first = status;
	}
	return first;
}

static void cmd_wait_on_notice(void *ctx, const char *text)
{
	app_note(ctx, "%s", text);
}

static int cmd_wait_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct wait_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	int status;

	if (runs_get_all(app, words, &runs, &err) < 0)
		return app_fail(app, &err);
	app_catch_signals();
	app->accepted = true;
	int r = runs_watch(&app->session, &runs,
		&(struct watch_options){
			.timeout_ms = values->timeout == OPT_UNSET ? -1 : values->timeout,
			.interrupted = &app_interrupted,
			.notice = cmd_wait_on_notice,
			.ctx = app,
		},
		&err);
	if (app_interrupted) {
		app_note_interrupted(app, "no longer waiting; the runs go on");
		return EXIT_INTERRUPTED;
	}
	if (r < 0) {
		status = app_fail(app, &err);
		return err.id == E_RUN_TIMEOUT ? EXIT_TIMEOUT : status;
	}
	status = print_ends(app, &runs);
	if (app->options.json)
		runs_print_json(app, &runs);
	return status;
}

const struct cmd cmd_wait = {
	.name = "wait",
	.summary = "Wait until runs have ended",
	.synopsis = "[options] [RUN|STUDY...]",
	.examples = {"dlrun wait @ # until the newest run has ended",
		"dlrun wait a-3k2f9 tiger-4k2x9 # until all have; the exit status is the first non-zero one",
		"dlrun wait --timeout 30m @ # but not longer than half an hour"},
	.opts = opts,
	.values_size = sizeof(struct wait_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_LIVE,
	.flags = CMD_STUDIES,
	.run = cmd_wait_run,
};

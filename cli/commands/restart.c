/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/lifecycle/restart.h"
#include "app/runs/refresh.h"
#include "app/submit/sweep.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

enum { LINES_MAX = 20 }; /* more runs are told of by their number */

struct restart_values {
	bool follow, failed, missing;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'f', "follow", struct restart_values, follow),
		.help = "Follow the output to the end; exit as the program does"},
	{OPT_MEMBER(OPT_FLAG, 0, "failed", struct restart_values, failed),
		.help = "Only those that failed or were lost, of studies and runs"},
	{OPT_MEMBER(OPT_FLAG, 0, "missing", struct restart_values, missing),
		.help = "Make the runs of a study that a stopped sweep did not make"},
	{OPT_END},
};

static void restart_warn_missing(struct app *app, const struct restarted *restarted, size_t n)
{
	AUTO_STRV struct strv said = {0};

	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < restarted[i].missing.n; k++) {
			const char *name = restarted[i].missing.v[k];

			if (strv_find(&said, name) < 0)
				app_warn(app, "%s was set for the run and is not set in this shell",
					name);
			strv_add(&said, name);
		}
}

static void restart_print(struct app *app, const struct restarted *restarted, size_t n)
{
	size_t begun = 0;

	restart_warn_missing(app, restarted, n);
	for (size_t i = 0; i < n; i++) {
		const struct restarted *one = &restarted[i];

		for (size_t k = 0; k < one->notes.n; k++)
			app_note(app, "%s", one->notes.v[k]);
		if (err_is_set(&one->err) || !one->run)
			continue;
		begun++;
		if (n <= LINES_MAX)
			app_phase(app, "run", "%s, attempt %d", run_id(one->run),
				run_attempts(one->run));
	}
	if (n > LINES_MAX)
		app_phase(app, "runs", "%zu of %zu started again", begun, n);
}

static int cmd_restart_make_missing(struct app *app, const char *word, struct err *err)
{
	AUTO_STUDY struct study study = {0};
	AUTO_STRV struct strv missing = {0};
	struct session *session;
	char id[RUN_ID_SIZE];
	size_t made = 0;

	int r = app_session(app, &session, err);
	if (r == 0)
		r = study_find(&session->dirs, word, id, err);
	if (r == 0)
		r = study_read(&session->dirs, id, &study, err);
	if (r == 0)
		r = sweep_make_missing(session, &study, NULL, &made, &missing, err);
	for (size_t i = 0; i < missing.n; i++)
		app_warn(app, "%s was set for the runs and is not set in this shell", missing.v[i]);
	if (made == 0 && r == 0)
		app_phase(app, "study", "%s: none of %zu runs is missing", study.id, study.cases.n);
	else if (made > 0)
		app_phase(app, "study", "%s: %zu of %zu runs made now", study.id, made,
			study.cases.n);
	return r;
}

static int cmd_restart_missing(
	struct app *app, const struct restart_values *values, const struct strv *words)
{
	AUTO_ERR struct err err = {0};

	if (words->n == 0 || values->failed || values->follow) {
		err_set(&err, E_USAGE,
			words->n ? "--missing cannot be used with --failed and --follow"
				 : "--missing requires a study");
		err_hint(&err, "dlrun ps -o id,group");
		return app_fail(app, &err);
	}
	for (size_t i = 0; i < words->n; i++)
		if (cmd_restart_make_missing(app, words->v[i], &err) < 0)
			return app_fail(app, &err);
	if (!app->options.json)
		return 0;
	AUTO(run_list_done) struct run_list runs = {0};
	return runs_get_all(app, words, &runs, &err) < 0 ? app_fail(app, &err)
							 : runs_print_json(app, &runs);
}

/* runs become as they are then. */
static int restart_all(struct app *app, struct run_list *runs, struct err *err)
{
	struct restarted *restarted = mem_alloc(runs->n + 1, sizeof(*restarted));
	int r = 0;

	for (size_t i = 0; r == 0 && i < runs->n; i++)
		r = adopt_own(&app->session, runs->v[i], err);
	if (r == 0)
		r = runs_restart(&app->session, runs, restarted, err);
	if (r == 0) {
		restart_print(app, restarted, runs->n);
		/* Errors of runs: the first is that of the command. */
		for (size_t i = 0; i < runs->n; i++) {
			struct err *own = &restarted[i].err;

			if (err_is_set(own) && r == 0)
				r = err_move(err, own);
			else if (err_is_set(own))
				app_warn(app, "%s: %s", run_id(runs->v[i]), own->message);
		}
	}
	for (size_t i = 0; i < runs->n; i++) {
		if (restarted[i].run) {
			run_free(runs->v[i]);
			runs->v[i] = TAKE(restarted[i].run);
		}
		restarted_done(&restarted[i]);
	}
	free(restarted);
	return r;
}

/* Of a study those that may start again; returns how many there are. */
static size_t restart_keep(struct app *app, const char *study, struct run_list *runs)
{
	size_t before = runs->n;
	size_t n = runs_keep_states(runs, 1u << RUN_FAILED | 1u << RUN_LOST | 1u << RUN_CANCELLED);

	if (n == 0)
		app_note(app, "none of the %zu runs of %s has failed, was cancelled or lost",
			before, study);
	return n;
}

static int cmd_restart_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct follow_request request = {.tail_lines = -1, .rank = -1, .follow = true};
	const struct restart_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;

	if (values->follow && words->n > 1) {
		err_set(&err, E_USAGE, "--follow is for one run");
		return app_fail(app, &err);
	}
	if (values->missing)
		return cmd_restart_missing(app, values, words);
	if (runs_get_named(app, words, &runs, &study, &err) < 0)
		return app_fail(app, &err);
	size_t n = values->failed ? runs_keep_failed(app, study, &runs)
		   : study        ? restart_keep(app, study, &runs)
				  : runs.n;
	if (n == 0)
		return app->options.json ? runs_print_json(app, &runs) : 0;
	if (values->follow && n != 1) {
		err_set(&err, E_USAGE, "--follow is for one run");
		return app_fail(app, &err);
	}
	if (restart_all(app, &runs, &err) < 0)
		return app_fail(app, &err);
	if (values->follow) {
		app->accepted = true;
		return follow_log(app, runs.v[0], &request);
	}
	return app->options.json ? runs_print_json(app, &runs) : 0;
}

const struct cmd cmd_restart = {
	.name = "restart",
	.summary = "Restart runs that failed, were cancelled or lost",
	.synopsis = "[options] [RUN|STUDY...]",
	.examples = {"dlrun restart @ # the newest run again: same code, same results directory",
		"dlrun restart -f resnet-3k2f9 # and follow it",
		"dlrun restart --failed tiger-4k2x9 # of a study only the runs that failed or were lost"},
	.opts = opts,
	.values_size = sizeof(struct restart_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.flags = CMD_STARTS | CMD_STUDIES,
	.run = cmd_restart_run,
};

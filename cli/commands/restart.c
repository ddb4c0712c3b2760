/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/restart.h"
#include "app/runs/refresh.h"
#include "app/submit/sweep.h"
#include "base/util/auto.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

struct restart_values {
	bool follow, missing;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'f', "follow", struct restart_values, follow),
		.help = "Follow the output to the end; exit as the program does"},
	{OPT_MEMBER(OPT_FLAG, 0, "missing", struct restart_values, missing),
		.help = "Make the runs of a study that a stopped sweep did not make"},
	{OPT_END},
};

static void cmd_restart_print(struct app *app, const struct run *run, const struct strv *missing,
	const struct strv *notes)
{
	for (size_t i = 0; i < missing->n; i++)
		app_warn(app, "%s was set for the run and is not set in this shell", missing->v[i]);
	for (size_t i = 0; i < notes->n; i++)
		app_note(app, "%s", notes->v[i]);
	app_phase(app, "run", "%s, attempt %d", run_id(run), run_attempts(run));
}

static int cmd_restart_one(struct app *app, struct run **run, struct err *err)
{
	AUTO_STRV struct strv missing = {0}, notes = {0};
	struct run *now = NULL;
	int r = adopt_own(&app->session, *run, err);

	if (r == 0)
		r = run_restart(&app->session, *run, &missing, &notes, &now, err);

	if (now) {
		run_free(*run);
		*run = now;
	}
	if (r == 0)
		cmd_restart_print(app, *run, &missing, &notes);
	return r;
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
	if (made > 0 || r == 0)
		app_phase(app, "study", "%s: %zu of %zu runs made now", study.id, made,
			study.cases.n);
	return r;
}

static int cmd_restart_missing(struct app *app, const struct strv *words)
{
	AUTO_ERR struct err err = {0};

	if (words->n == 0) {
		err_set(&err, E_USAGE, "--missing requires a study");
		err_hint(&err, "dlrun ps -o id,group");
		return app_fail(app, &err);
	}
	for (size_t i = 0; i < words->n; i++)
		if (cmd_restart_make_missing(app, words->v[i], &err) < 0)
			return app_fail(app, &err);
	return 0;
}

static int cmd_restart_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct follow_request request = {.tail_lines = -1, .rank = -1, .follow = true};
	const struct restart_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};

	if (values->follow && words->n > 1) {
		err_set(&err, E_USAGE, "--follow is for one run");
		return app_fail(app, &err);
	}
	if (values->missing)
		return cmd_restart_missing(app, words);
	if (runs_get_all(app, words, &runs, &err) < 0)
		return app_fail(app, &err);
	vec_foreach (struct run *, each, &runs)
		if (cmd_restart_one(app, each, &err) < 0)
			return app_fail(app, &err);
	if (values->follow) {
		app->accepted = true;
		return follow_log(app, runs.v[0], &request);
	}
	return app->options.json ? runs_print_json(app, &runs) : 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun restart @ # the newest run again: same code, same results directory",
	"dlrun restart -f resnet-3k2f9 # and follow it",
	"dlrun restart a-3k2f9 b-77xyz # two runs that a reboot has ended",
};

const struct cmd cmd_restart = {
	.name = "restart",
	.summary = "Restart runs that failed, were cancelled or lost",
	.synopsis = "[options] [RUN...]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct restart_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.flags = CMD_STARTS,
	.run = cmd_restart_run,
};

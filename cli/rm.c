#include "base/auto.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/runs.h"
#include "run/adopt.h"

enum { PATIENCE_MS = 5000 };

struct rm_values {
	bool force;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'f', "force", struct rm_values, force),
		.help = "Stop a run that has not ended first"},
	{OPT_END},
};

static int remove_run(struct app *app, struct run *run, bool force, struct err *err)
{
	bool ended_before;
	int r = adopt_own(&app->session, run, err);

	if (r == 0 && force && !run_state_is_final(run_state(run)))
		r = run_cancel(
			&app->session, run, runs_grace(run) + PATIENCE_MS, &ended_before, err);
	if (r == 0)
		r = run_remove(&app->session, run, err);
	return r;
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct rm_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_JSON struct json *removed = json_array();

	if (runs_get_all(app, words, &runs, &err) < 0)
		return app_fail(app, &err);
	vec_foreach (struct run *, run, &runs) {
		if (remove_run(app, *run, values->force, &err) < 0)
			return app_fail(app, &err);
		app_note(app, "removed %s: record, log and outputs", run_id(*run));
		json_add_str(removed, run_id(*run));
	}
	if (!app->options.json)
		return 0;
	struct json *json = app_json("removed");
	json_set(json, "removed", TAKE(removed));
	return app_print_json(app, json);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun rm @ # forget the newest run, with its log and outputs",
	"dlrun rm a-3k2f9 b-77xyz # forget two runs",
	"dlrun rm --force @ # stop it first, if it still runs",
};

const struct cmd cmd_rm = {
	.name = "rm",
	.summary = "Remove runs: record, log and outputs here",
	.synopsis = "[options] RUN...",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct rm_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = run,
};

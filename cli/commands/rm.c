/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/cancel.h"
#include "app/lifecycle/remove.h"
#include "app/runs/refresh.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "core/record/dirs.h"
#include "core/record/results.h"
#include "targets/local/tree.h"

/* LARGE_BYTES: results of this size or more are removed only after a question. */
enum { TIMEOUT_MS = 5000, LARGE_BYTES = 100 << 20 };

struct rm_values {
	bool force;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'f', "force", struct rm_values, force),
		.help = "Ask nothing, and stop a run that has not ended first"},
	{OPT_END},
};

/* Size of the results removed with a run. Results collected from its tree lie in its outputs under
 * the same name; for results elsewhere the record has the size. */
static uint64_t results_bytes(const struct app *app, const struct run *run)
{
	const struct json *results = json_get(run->doc, RESULTS_MEMBER);
	AUTO_FREE char *outputs = dirs_outputs(&app->session.dirs, run_id(run));
	uint64_t here = tree_size(outputs);

	if (here || !results_is_valid(results))
		return here;
	return (uint64_t)json_get_int(results, "bytes", 0);
}

/* 1: go on, 0: no. */
static int rm_prompt(
	struct app *app, const struct run_list *runs, const struct strv *words, struct err *err)
{
	uint64_t sum = 0;
	char size[16];
	bool is_yes;

	vec_foreach (struct run *, run, runs)
		sum += results_bytes(app, *run);
	if (sum < LARGE_BYTES)
		return 1;
	str_size(sum, size);
	const char *what = runs->n == 1 ? "run" : "runs";
	if (!app->session.env.prompt) {
		AUTO_FREE char *named = strv_join(words, " ");
		err_set(err, E_USAGE, "%zu %s with %s of results %s not removed without a question",
			runs->n, what, size, runs->n == 1 ? "is" : "are");
		return err_hint(err, "dlrun rm --force %s", named);
	}
	AUTO_FREE char *question =
		mem_printf("remove %zu %s and %s of results?", runs->n, what, size);
	int r = prompt_yes(app, question, false, &is_yes, err);
	return r < 0 ? r : is_yes;
}

static int remove_run(struct app *app, struct run *run, bool force, struct err *err)
{
	bool ended_before;
	int r = adopt_own(&app->session, run, err);

	if (r == 0 && force && !run_state_is_final(run_state(run)))
		r = run_cancel(&app->session, run, runs_grace(run) + TIMEOUT_MS, NULL, NULL,
			&ended_before, err);
	if (r == 0)
		r = run_remove(&app->session, run, err);
	return r;
}

static int rm_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct rm_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_JSON struct json *removed = json_array();

	if (runs_get_all(app, words, &runs, &err) < 0)
		return app_fail(app, &err);
	int r = values->force ? 1 : rm_prompt(app, &runs, words, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (r == 0) {
		app_note(app, "nothing was removed");
		return 1;
	}
	vec_foreach (struct run *, run, &runs) {
		uint64_t bytes = results_bytes(app, *run);
		char size[16];
		if (remove_run(app, *run, values->force, &err) < 0)
			return app_fail(app, &err);
		if (bytes)
			app_note(app, "removed %s: record, log and %s of results", run_id(*run),
				str_size(bytes, size));
		else
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
	"dlrun rm @ # remove the newest run, with its log and results",
	"dlrun rm a-3k2f9 b-77xyz # remove two runs",
	"dlrun rm --force @ # stop it first, if it still runs",
};

const struct cmd cmd_rm = {
	.name = "rm",
	.summary = "Remove runs: record, log and results here",
	.synopsis = "[options] RUN...",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct rm_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = rm_run,
};

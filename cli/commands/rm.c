/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

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
#include "core/study/study.h"
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

/* Stop those that have not ended. */
static int rm_cancel(struct app *app, const struct run_list *runs, struct err *err)
{
	struct ending *endings = mem_alloc(runs->n + 1, sizeof(*endings));
	int64_t wait_ms = 0;
	size_t n = 0;
	int r = 0;

	vec_foreach (struct run *, run, runs) {
		int64_t grace_ms = runs_grace(*run);

		if (run_state_is_final(run_state(*run)))
			continue;
		endings[n++] = (struct ending){.run = *run};
		wait_ms = grace_ms > wait_ms ? grace_ms : wait_ms;
	}
	if (n)
		r = runs_cancel(&app->session, endings, n, wait_ms + TIMEOUT_MS, NULL, NULL, err);
	for (size_t i = 0; i < n; i++) {
		if (r == 0 && err_is_set(&endings[i].err))
			r = err_move(err, &endings[i].err);
		err_done(&endings[i].err);
	}
	free(endings);
	return r;
}

/* The removed runs, and the first error. */
struct rm_report {
	struct json *removed;
	size_t n;
	uint64_t bytes; /* of results */
	struct err err;
};

static void rm_report_one(struct app *app, const struct run *run, uint64_t bytes, bool is_shown,
	struct err *own, struct rm_report *report)
{
	char size[16];

	if (err_is_set(own)) {
		if (err_is_set(&report->err))
			app_warn(app, "%s", own->message);
		else
			err_move(&report->err, own);
		return;
	}
	report->n++;
	report->bytes += bytes;
	json_add_str(report->removed, run_id(run));
	if (is_shown && bytes)
		app_note(app, "removed %s: record, log and %s of results", run_id(run),
			str_size(bytes, size));
	else if (is_shown)
		app_note(app, "removed %s: record, log and outputs", run_id(run));
}

static int rm_remove(struct app *app, const struct run_list *runs, bool force, bool is_shown,
	struct rm_report *report, struct err *err)
{
	AUTO_FREE uint64_t *bytes = mem_alloc(runs->n + 1, sizeof(*bytes));
	struct err *errs = mem_alloc(runs->n + 1, sizeof(*errs));
	int r = 0;

	for (size_t i = 0; r == 0 && i < runs->n; i++) {
		bytes[i] = results_bytes(app, runs->v[i]);
		r = adopt_own(&app->session, runs->v[i], err);
	}
	/* A run that will not be removed is not stopped. */
	if (r == 0 && force)
		r = runs_remove_check(&app->session, runs, err);
	if (r == 0 && force)
		r = rm_cancel(app, runs, err);
	if (r == 0)
		r = runs_remove(&app->session, runs, errs, err);
	for (size_t i = 0; i < runs->n; i++) {
		if (r == 0)
			rm_report_one(app, runs->v[i], bytes[i], is_shown, &errs[i], report);
		err_done(&errs[i]);
	}
	free(errs);
	return r < 0 ? r : err_is_set(&report->err) ? err_move(err, &report->err) : 0;
}

static void rm_print_study(struct app *app, const char *study, const struct rm_report *report)
{
	char size[16];

	if (report->n && report->bytes)
		app_note(app, "removed %s: %zu runs with records, logs and %s of results", study,
			report->n, str_size(report->bytes, size));
	else if (report->n)
		app_note(app, "removed %s: %zu runs with records, logs and outputs", study,
			report->n);
}

/* A study goes as a whole. */
static int rm_check_study(const struct run_list *runs, const char *study, struct err *err)
{
	size_t n = 0;

	vec_foreach (struct run *, run, runs)
		n += !run_state_is_final(run_state(*run));
	if (n == 0)
		return 0;
	err_set(err, E_RUN_RUNNING, "%zu of %zu runs of %s %s not ended", n, runs->n, study,
		n == 1 ? "has" : "have");
	return err_hint(err, "dlrun cancel %s", study);
}

/* Remove what is kept of studies themselves. one: the one that was named; or NULL. */
static int rm_forget_studies(
	struct app *app, const char *one, const struct runs_held *held, struct err *err)
{
	const struct dirs *dirs = &app->session.dirs;
	int r = one ? study_remove(dirs, one, err) : 0;

	for (size_t i = 0; r == 0 && i < held->n; i++)
		r = study_remove(dirs, held->v[i].id, err);
	return r;
}

static int rm_list(struct app *app, const struct rm_values *values, const struct strv *words,
	struct run_list *runs, char **ret_study, struct runs_held *held, struct err *err)
{
	struct session *session;
	int r = app_session(app, &session, err);

	if (r < 0)
		return r;
	session->ends_runs = true;
	r = runs_get_named(app, words, runs, ret_study, err);
	return r == 0 && values->force ? runs_hold_studies(app, words, runs, ret_study, held, err)
				       : r;
}

static int rm_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct rm_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;
	AUTO_JSON struct json *removed = json_array();
	struct rm_report report = {.removed = removed};
	AUTO(runs_held_done) struct runs_held held = {0};

	if (rm_list(app, values, words, &runs, &study, &held, &err) < 0)
		return app_fail(app, &err);
	int r = study && !values->force ? rm_check_study(&runs, study, &err) : 0;
	if (r == 0)
		r = values->force ? 1 : rm_prompt(app, &runs, words, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (r == 0) {
		app_note(app, "nothing was removed");
		return 1;
	}
	bool is_study = study && words->n == 1;
	r = rm_remove(app, &runs, values->force, !is_study, &report, &err);
	if (r == 0)
		r = rm_forget_studies(app, is_study ? study : NULL, &held, &err);
	if (is_study)
		rm_print_study(app, study, &report);
	if (r < 0)
		return app_fail(app, &err);
	if (!app->options.json)
		return 0;
	struct json *json = app_json("removed");
	json_set(json, "removed", TAKE(removed));
	return app_print_json(app, json);
}

const struct cmd cmd_rm = {
	.name = "rm",
	.summary = "Remove runs: record, log and results here",
	.synopsis = "[options] RUN|STUDY...",
	.examples = {"dlrun rm @ # remove the newest run, with its log and results",
		"dlrun rm a-3k2f9 tiger-4k2x9 # remove a run and all runs of a study",
		"dlrun rm --force @ # stop it first, if it still runs"},
	.opts = opts,
	.values_size = sizeof(struct rm_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = rm_run,
};

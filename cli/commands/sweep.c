/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/cmds.h"

#include <poll.h>
#include <stdlib.h>

#include "app/lifecycle/follow.h"
#include "app/lifecycle/study_judge.h"
#include "app/transfer/mirror.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"
#include "core/record/group.h"
#include "core/store/store.h"
#include "core/study/study.h"
#include "core/study/summary.h"

enum {
	WATCH_MS = 2000,
	METRICS_MS = 200,
	EXIT_INTERRUPTED = 130,
	ROWS_MORE = 6,
	FAILED_SHOWN = 3,
	CELL_BYTES = 256,
	SENTENCE_MAX = 64 << 10,
};

#define CLEAR "\033[H\033[J"

struct sweep_view {
	struct session *session;
	struct store *store;
	struct study study; /* doc NULL: the study is a group of runs only */
	char *id;
	struct strv keys;
	struct run_list runs;      /* in the order of the members */
	bool is_made;              /* nobody made members before runs were read: they are all */
	struct study_judge *judge; /* NULL: nothing stops members */
};

static void sweep_view_done(struct sweep_view *view)
{
	study_done(&view->study);
	free(view->id);
	strv_done(&view->keys);
	run_list_done(&view->runs);
	study_judge_free(view->judge);
}

/*
 * The study
 */

/* The group of the newest run that is a member of a study. */
static int sweep_find_newest(struct sweep_view *view, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	int r = store_list(view->store, &(struct store_filter){0}, &runs, err);

	for (size_t i = 0; r == 0 && i < runs.n && !view->id; i++)
		if (json_get(runs.v[i]->doc, "study"))
			view->id = mem_strdup(run_group(runs.v[i]));
	if (r < 0 || view->id)
		return r;
	err_set(err, E_RUN_NOT_FOUND, "there is no study yet");
	return err_hint(err, "dlrun sweep --over lr=0.1,0.03 -- python3 train.py --lr {lr}");
}

static int sweep_find_study(
	struct app *app, struct sweep_view *view, const char *word, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *shown = str_shown(word);
	int r = runs_get_study(app, word, &runs, &view->id, err);

	if (r < 0 && err->id == E_RUN_NOT_FOUND) {
		err_clear(err);
		err_set(err, E_RUN_NOT_FOUND, "there is no study '%s'", shown);
		return err_hint(err, "dlrun ps -o id,group");
	}
	if (r < 0 || view->id)
		return r;
	err_set(err, E_USAGE, "'%s' is no study", shown);
	return err_hint(err, "dlrun show %s", run_id(runs.v[0]));
}

static void sweep_set_keys(struct sweep_view *view)
{
	AUTO_JSON struct json *axes = group_axes(&view->runs);

	if (view->study.doc)
		strv_copy(&view->keys, &view->study.cases.keys);
	for (const struct json *axis = view->study.doc ? NULL : json_first(axes); axis;
		axis = json_next(axis))
		strv_add(&view->keys, json_key(axis));
}

static int sweep_list_runs(struct sweep_view *view, struct err *err)
{
	const struct select_rules rules = {.group = view->id};

	run_list_done(&view->runs);
	view->is_made = !view->study.doc || !study_is_held(&view->session->dirs, view->id);
	int r = runs_select(view->store, &rules, &view->runs, err);
	if (r == 0)
		r = runs_poll(view->session, &view->runs, true, false, err);
	if (r < 0)
		return r;
	metrics_here(view->session, &view->runs, METRICS_MS);
	group_sort(&view->runs);
	return 0;
}

static int sweep_open_view(
	struct app *app, const char *word, struct sweep_view *view, struct err *err)
{
	int r = app_session(app, &view->session, err);

	if (r == 0)
		r = session_store(view->session, &view->store, err);
	if (r == 0)
		r = word ? sweep_find_study(app, view, word, err) : sweep_find_newest(view, err);
	if (r == 0 && run_id_is_valid(view->id))
		r = study_read(&view->session->dirs, view->id, &view->study, err);
	if (r < 0 && view->id && err->id == E_RUN_NOT_FOUND) {
		err_clear(err);
		r = 0;
	}
	if (r == 0 && view->study.doc)
		r = study_judge_open(view->session, &view->study, &view->judge, err);
	return r;
}

/*
 * The table
 */

/* Columns of states that are not those of every row are left out. */
static const struct {
	const char *title;
	enum run_state states[3];
	size_t n;
	const char *style;
} sweep_states[] = {
	{"QUEUED", {RUN_PREPARING, RUN_QUEUED, RUN_STARTING}, 3, ""},
	{"RUNNING", {RUN_RUNNING}, 1, ""},
	{"SUCCEEDED", {RUN_SUCCEEDED}, 1, UI_GREEN},
	{"FAILED", {RUN_FAILED}, 1, UI_RED},
	{"LOST", {RUN_LOST, RUN_UNKNOWN}, 2, UI_RED},
	{"CANCELLED", {RUN_CANCELLED}, 1, ""},
};

static size_t sweep_count(const struct study_row *row, size_t at)
{
	size_t n = 0;

	for (size_t i = 0; i < sweep_states[at].n; i++)
		n += row->counts.states[sweep_states[at].states[i]];
	return n;
}

static size_t sweep_count_ended(const struct study_row *row)
{
	size_t n = 0;

	for (size_t i = 0; i < RUN_STATES; i++)
		if (run_state_is_final((enum run_state)i))
			n += row->counts.states[i];
	return n;
}

/* "0.081 … 0.094", or one number where there is one value. */
static void sweep_add_metric(struct ui_table *table, const struct study_row *row)
{
	AUTO_BUF struct buf out = buf_with(CELL_BYTES);

	if (row->n_values == 0) {
		ui_table_add(table, "", "-");
		return;
	}
	columns_add_double(row->best, &out);
	if (row->n_values > 1) {
		buf_adds(&out, " … ");
		columns_add_double(row->median, &out);
	}
	ui_table_add(table, "", out.data);
}

static void sweep_add_states(
	struct ui_table *table, const struct study_summary *summary, const struct study_row *row)
{
	ui_table_addf(table, "", "%zu", row->n);
	for (size_t i = 0; i < ARRAY_LEN(sweep_states); i++) {
		size_t n = sweep_count(row, i);
		if (sweep_count(&summary->all, i))
			ui_table_addf(table, n ? sweep_states[i].style : "", "%zu", n);
	}
}

/* Each row is one member. */
static bool sweep_has_members(const struct study_summary *summary)
{
	return summary->all.n == summary->rows.n;
}

static void sweep_add_row(
	struct ui_table *table, const struct study_summary *summary, const struct study_row *row)
{
	enum run_state state = run_state(row->first);

	for (size_t i = 0; i < summary->keys.n; i++)
		ui_table_add(table, "", row->values.v[i]);
	if (sweep_has_members(summary)) {
		ui_table_add(table, runs_state_style(state), run_state_name(state));
		ui_table_add(table, "", run_id(row->first));
	} else {
		sweep_add_states(table, summary, row);
	}
	if (summary->metric)
		sweep_add_metric(table, row);
}

static char *sweep_metric_title(const struct study_summary *summary)
{
	const char *what = summary->goal == COMPARE_ANY ? "least" : "best";
	AUTO_FREE char *name = str_escaped(summary->metric);

	return sweep_has_members(summary) ? mem_printf("%s (%s)", name, what)
					  : mem_printf("%s (%s … median)", name, what);
}

/* Returns how many columns there are: of axes, then of members or states, then the metric. */
static size_t sweep_set_columns(
	const struct study_summary *summary, const char *metric, struct ui_column *columns)
{
	size_t n = 0;

	for (size_t i = 0; i < summary->keys.n; i++)
		columns[n++] = (struct ui_column){.title = summary->keys.v[i], .cut = true};
	if (sweep_has_members(summary)) {
		columns[n++] = (struct ui_column){.title = "STATE"};
		columns[n++] = (struct ui_column){.title = "ID", .drop = 2};
	} else {
		columns[n++] = (struct ui_column){.title = "N", .right = true};
	}
	for (size_t i = 0; i < ARRAY_LEN(sweep_states) && !sweep_has_members(summary); i++)
		if (sweep_count(&summary->all, i))
			columns[n++] = (struct ui_column){
				.title = sweep_states[i].title, .right = true, .drop = 1};
	if (metric)
		columns[n++] = (struct ui_column){.title = metric, .right = true, .drop = 1};
	return n;
}

/* Rows that have no room are left out at the end; *ret_cut counts them. */
static void sweep_print_rows(struct app *app, const struct study_summary *summary, size_t *ret_cut)
{
	size_t room = app->out_tty && app->rows > ROWS_MORE ? app->rows - ROWS_MORE : SIZE_MAX;
	size_t n_rows = summary->rows.n < room ? summary->rows.n : room;
	AUTO_FREE struct ui_column *columns =
		mem_alloc(summary->keys.n + ARRAY_LEN(sweep_states) + 3, sizeof(*columns));
	AUTO_FREE char *metric = summary->metric ? sweep_metric_title(summary) : NULL;
	AUTO_TABLE struct ui_table table = {0};

	ui_table_init(&table, columns, sweep_set_columns(summary, metric, columns));
	for (size_t i = 0; i < n_rows; i++)
		sweep_add_row(&table, summary, &summary->rows.v[i]);
	ui_table_print(app, &table);
	*ret_cut = summary->rows.n - n_rows;
}

static char *sweep_left_text(int64_t left_ms)
{
	char text[32];

	if (left_ms <= 0)
		return mem_strdup("");
	return mem_printf(" · about %s left", ui_age(left_ms, text));
}

static void sweep_print_failed(struct app *app, const struct sweep_view *view)
{
	size_t n = 0;

	vec_foreach (struct run *, run, &view->runs) {
		AUTO_BUF struct buf sentence = buf_with(SENTENCE_MAX),
				    hint = buf_with(SENTENCE_MAX);
		if (run_state(*run) != RUN_FAILED && run_state(*run) != RUN_LOST)
			continue;
		if (++n > FAILED_SHOWN)
			continue;
		runs_why(app, *run, &sentence, &hint);
		app_note(app, "%s", sentence.data);
	}
	if (n > 0)
		app_note(app, "%zu failed: dlrun restart --failed %s", n, view->id);
}

static bool sweep_has_ended(const struct sweep_view *view)
{
	if (!view->is_made)
		return false;
	vec_foreach (struct run *, run, &view->runs)
		if (!run_state_is_final(run_state(*run)))
			return false;
	return true;
}

static void sweep_print_summary(
	struct app *app, const struct sweep_view *view, const struct study_summary *summary)
{
	size_t wanted = view->study.doc ? view->study.cases.n : view->runs.n, cut;
	AUTO_FREE char *left = sweep_left_text(summary->left_ms);
	AUTO_FREE char *limit = view->study.parallel && summary->left_ms
					? mem_printf(", %d at a time", view->study.parallel)
					: mem_strdup("");

	sweep_print_rows(app, summary, &cut);
	if (cut)
		app_note(app, "%zu more rows have no room here: dlrun sweep %s | less", cut,
			view->id);
	app_note(app, "%s: %zu of %zu runs have ended%s%s", view->id,
		sweep_count_ended(&summary->all), wanted, limit, left);
	if (summary->all.member)
		app_note(app, "best so far: %s", run_id(summary->all.member));
	sweep_print_failed(app, view);
	if (wanted > view->runs.n && !view->is_made)
		app_note(app, "%zu of %zu runs made", view->runs.n, wanted);
	else if (wanted > view->runs.n)
		app_note(app, "%zu of %zu have no record: dlrun restart --missing %s",
			wanted - view->runs.n, wanted, view->id);
}

static struct json *sweep_row_json(const struct study_summary *summary, const struct study_row *row)
{
	struct json *json = json_object(), *values = json_object();

	for (size_t i = 0; i < row->values.n; i++)
		json_set_str(values, summary->keys.v[i], row->values.v[i]);
	json_set(json, "values", values);
	json_set_int(json, "n", (int64_t)row->n);
	json_set(json, "states", group_counts_json(&row->counts));
	if (row->n_values) {
		json_set_num(json, "best", row->best);
		json_set_num(json, "median", row->median);
		json_set_str(json, "best_run", run_id(row->member));
	}
	return json;
}

static int sweep_print_json(
	struct app *app, const struct sweep_view *view, const struct study_summary *summary)
{
	struct json *json = app_json("sweep"), *rows = json_array(), *runs = json_array();

	json_set_str(json, "id", view->id);
	json_set(json, "study", view->study.doc ? json_clone(view->study.doc) : json_null());
	json_set_str(json, "metric", summary->metric);
	vec_foreach (struct study_row, row, &summary->rows)
		json_add(rows, sweep_row_json(summary, row));
	json_set(json, "rows", rows);
	json_set(json, "all", sweep_row_json(summary, &summary->all));
	if (summary->left_ms < 0)
		json_set(json, "left_ms", json_null());
	else
		json_set_int(json, "left_ms", summary->left_ms);
	vec_foreach (struct run *, run, &view->runs)
		json_add_str(runs, run_id(*run));
	json_set(json, "runs", runs);
	return app_print_json(app, json);
}

static int sweep_stop_members(struct app *app, struct sweep_view *view, struct err *err)
{
	AUTO_STRV struct strv stopped = {0};

	if (!view->judge)
		return 0;
	int r = study_judge_members(view->judge, &view->runs, &stopped, err);
	for (size_t i = 0; i < stopped.n && !app->out_tty; i++)
		app_note(app, "%s", stopped.v[i]);
	return r;
}

/* Read what is known now, and stop members that are left behind. */
static int sweep_look(struct app *app, struct sweep_view *view, struct err *err)
{
	int r = sweep_list_runs(view, err);

	return r < 0 ? r : sweep_stop_members(app, view, err);
}

static int sweep_print(struct app *app, struct sweep_view *view, bool again)
{
	AUTO_STUDY_SUMMARY struct study_summary summary = {0};

	if (!view->keys.n)
		sweep_set_keys(view);
	study_summarise(
		&view->runs, &view->keys, (size_t)view->study.parallel, clock_wall_ms(), &summary);
	if (app->options.json)
		return sweep_print_json(app, view, &summary);
	app_measure(app);
	if (again)
		ui_write(app, CLEAR, sizeof(CLEAR) - 1);
	sweep_print_summary(app, view, &summary);
	return 0;
}

static int sweep_status(const struct sweep_view *view)
{
	vec_foreach (struct run *, run, &view->runs)
		if (run_exit_status(*run) != 0 && !json_get_str((*run)->doc, STUDY_STOPPED))
			return run_exit_status(*run);
	return view->study.doc && view->study.cases.n > view->runs.n;
}

static void sweep_on_notice(void *ctx, const char *text)
{
	app_note(ctx, "%s", text);
}

/* Until something may have changed: of a table that is drawn, or while members are made or stopped,
 * after a while; else when all members have ended. */
static int sweep_pause(struct app *app, struct sweep_view *view, bool draws, struct err *err)
{
	const struct watch_options options = {.timeout_ms = -1,
		.interrupted = &app_interrupted,
		.notice = sweep_on_notice,
		.ctx = app};

	if (!draws && !view->judge && view->is_made)
		return runs_watch(view->session, &view->runs, &options, err);
	poll(NULL, 0, WATCH_MS);
	return 0;
}

/* Where nobody sees a table that changes, it is printed at the end. */
static int sweep_follow(struct app *app, struct sweep_view *view, struct err *err)
{
	bool draws = app->out_tty && !app->options.json, ended = false;
	int r = 0;

	while (r == 0 && !ended && !app_interrupted && !app->out_lost) {
		r = sweep_look(app, view, err);
		if (r < 0)
			break;
		ended = sweep_has_ended(view);
		if (draws || ended)
			r = sweep_print(app, view, draws);
		if (r == 0 && !ended && !app_interrupted)
			r = sweep_pause(app, view, draws, err);
	}
	return app_interrupted ? 0 : r;
}

int sweep_show(struct app *app, const char *word, bool follow)
{
	AUTO(sweep_view_done) struct sweep_view view = {0};
	AUTO_ERR struct err err = {0};

	int r = sweep_open_view(app, word, &view, &err);
	if (r == 0 && follow) {
		app_catch_signals();
		app->accepted = true;
		r = sweep_follow(app, &view, &err);
	} else if (r == 0) {
		r = sweep_look(app, &view, &err);
		if (r == 0)
			r = sweep_print(app, &view, false);
	}
	if (r < 0)
		return app_fail(app, &err);
	if (app_interrupted) {
		app_note_interrupted(app, "the runs go on: dlrun sweep -f %s", view.id);
		return EXIT_INTERRUPTED;
	}
	return follow ? sweep_status(&view) : 0;
}

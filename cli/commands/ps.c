/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "app/runs/refresh.h"
#include "app/transfer/mirror.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/record/columns.h"
#include "core/record/results.h"
#include "core/store/store.h"

enum {
	WATCH_MS = 2000,
	METRICS_MS = 200, /* of reading event files */
	DAY_MS = 24 * 60 * 60 * 1000,
	GAP = 2,          /* between columns */
	COMMAND_MIN = 10, /* of a command that says something */
	AGE_WIDTH = 6,
	ROWS_BESIDE = 4, /* of the terminal: the titles, what is not shown, and a prompt of two */
	LIST_MAX = 1000 * 1000,
	EXIT_INTERRUPTED = 130,
};

#define CLEAR "\033[H\033[J"

struct ps_values {
	bool all, offline, watch;
	int64_t number;
	const char *columns, *sort, *group, *since, *target;
	struct strv tags;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'a', "all", struct ps_values, all),
		.help = "All runs, not only unfinished ones and those of the last 24 hours"},
	{OPT_MEMBER(OPT_INT, 'n', "number", struct ps_values, number), .arg = "N", .min = 1,
		.max = LIST_MAX,
		.help = "The newest N of all runs (default: as many of those as the terminal has "
			"lines)"},
	{OPT_MEMBER(OPT_STRING, 'o', "columns", struct ps_values, columns), .arg = "LIST",
		.help = "Columns with commas: id,state,params.lr,metrics.loss; or wide",
		.values = VALUE_COLUMNS},
	{OPT_MEMBER(OPT_STRING, 0, "sort", struct ps_values, sort), .arg = "COLUMN",
		.help = "Smallest first; -COLUMN: largest first (default: newest first)",
		.values = VALUE_COLUMNS},
	{OPT_MEMBER(OPT_LIST, 0, "tag", struct ps_values, tags), .arg = "K[=V]",
		.help = "Only runs with this tag; may be repeated, then with all of them"},
	{OPT_MEMBER(OPT_STRING, 0, "group", struct ps_values, group), .arg = "NAME",
		.help = "Only runs of this group or study", .values = VALUE_GROUP},
	{OPT_MEMBER(OPT_STRING, 0, "since", struct ps_values, since), .arg = "TIME",
		.help = "Only runs submitted within that time (7d) or since a date (2026-08-01)"},
	{OPT_MEMBER(OPT_STRING, 't', "target", struct ps_values, target), .arg = "T",
		.help = "Only runs of this target; those of yours that only it knows are "
			"found again",
		.values = VALUE_TARGET},
	{OPT_MEMBER(OPT_FLAG, 0, "offline", struct ps_values, offline),
		.help = "Show what is known here and ask no target"},
	{OPT_MEMBER(OPT_FLAG, 0, "watch", struct ps_values, watch),
		.help = "Show it again every 2 seconds, until Ctrl-C"},
	{OPT_END},
};

/* Options of the listing. */
struct view {
	bool all, offline, watch;
	size_t number;      /* at most; 0: what the terminal has room for */
	const char *target; /* or NULL */
	struct select_rules rules;
	struct columns columns, sort; /* sort: one or none */
	struct columns with_metric;   /* instead of columns where it fits; or none */
	bool descending;
	bool with_values, with_files; /* of programs, what their files have: they are shown */
};

static void ps_view_done(struct view *view)
{
	columns_done(&view->columns);
	columns_done(&view->with_metric);
	columns_done(&view->sort);
}

static int parse_view(const struct ps_values *values, struct view *view, struct err *err)
{
	view->number = values->number == OPT_UNSET ? 0 : (size_t)values->number;
	view->all = values->all || view->number;
	view->offline = values->offline;
	view->watch = values->watch;
	view->target = values->target;
	view->rules = (struct select_rules){.tags = &values->tags, .group = values->group};
	int r = columns_parse(
		values->columns ? values->columns : COLUMNS_DEFAULT, &view->columns, err);
	if (r == 0 && !values->columns)
		r = columns_parse(COLUMNS_METRIC, &view->with_metric, err);
	if (r == 0 && values->sort)
		r = columns_parse_sort(values->sort, &view->sort, &view->descending, err);
	if (r == 0 && values->since)
		r = select_parse_since(values->since, clock_wall_ms(), &view->rules.since_ms, err);
	return r;
}

static bool shows(const struct view *view, const char *member)
{
	return columns_show(&view->columns, member) || columns_show(&view->with_metric, member) ||
	       columns_show(&view->sort, member);
}

/* Choose which facts to request for the columns. */
static void choose_questions(struct view *view, bool as_json)
{
	static const char *const of_files[] = {"params", "results", "warnings"};

	view->with_values = as_json || shows(view, "metrics");
	view->with_files = as_json;
	for (size_t i = 0; i < ARRAY_LEN(of_files); i++)
		view->with_files |= shows(view, of_files[i]);
}

/*
 * Runs
 */

/* Runs that go on, from before since_ms. */
static int ps_add_unfinished(
	struct store *store, int64_t since_ms, struct run_list *ret, struct err *err)
{
	const struct store_filter filter = {.unfinished_only = true};
	struct run_list runs = {0};
	int r = store_list(store, &filter, &runs, err);

	vec_foreach (struct run *, run, &runs)
		if (run_submitted_ms(*run) < since_ms)
			*vec_push(ret) = TAKE(*run);
	run_list_done(&runs);
	return r;
}

static int list_recent(
	struct store *store, struct run_list *ret, size_t *ret_hidden, struct err *err)
{
	const struct store_filter filter = {.since_ms = clock_wall_ms() - DAY_MS};
	size_t all = 0;
	int r = store_list(store, &filter, ret, err);

	if (r == 0)
		r = ps_add_unfinished(store, filter.since_ms, ret, err);
	if (r == 0)
		r = store_count(store, &all, err);
	*ret_hidden = all > ret->n ? all - ret->n : 0;
	return r;
}

static void keep_target(const char *name, struct run_list *runs)
{
	size_t n = 0;

	for (size_t i = 0; i < runs->n; i++) {
		if (str_eq(run_target(runs->v[i]), name))
			runs->v[n++] = runs->v[i];
		else
			run_free(runs->v[i]);
	}
	runs->n = n;
}

/* The list is in the order of their submission, the newest first. */
static void keep_newest(size_t number, struct run_list *runs)
{
	for (; runs->n > number; runs->n--)
		run_free(runs->v[runs->n - 1]);
}

/* Drop rows that do not fit on the terminal: the last runs that have ended, then any. Returns how
 * many. */
static size_t cut_rows(const struct app *app, const struct view *view, struct run_list *runs)
{
	size_t before = runs->n, rows_max = app->rows > ROWS_BESIDE ? app->rows - ROWS_BESIDE : 1;

	if (!app->rows || view->number || (view->all && !view->watch))
		return 0;
	for (size_t i = runs->n; !view->sort.n && i-- > 0 && runs->n > rows_max;) {
		if (!run_state_is_final(run_state(runs->v[i])))
			continue;
		run_free(runs->v[i]);
		memmove(runs->v + i, runs->v + i + 1, (runs->n - i - 1) * sizeof(*runs->v));
		runs->n--;
	}
	keep_newest(rows_max, runs);
	return before - runs->n;
}

/* Targets that know no more than the store are not queried. */
static int find_again(struct session *session, const struct view *view, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int r = 0;

	if (view->target && !view->offline)
		r = adopt_all(session, view->target, &error);
	return r < 0 && error.id != E_TARGET_UNSUPPORTED ? err_move(err, &error) : 0;
}

static int ps_list(struct app *app, const struct view *view, struct run_list *ret,
	size_t *ret_hidden, struct err *err)
{
	struct session *session;
	struct store *store;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = session_store(session, &store, err);
	if (r == 0)
		r = find_again(session, view, err);
	if (r < 0)
		return r;
	if (view->all || select_is_set(&view->rules))
		r = runs_select(store, &view->rules, ret, err);
	else
		r = list_recent(store, ret, ret_hidden, err);
	if (view->target)
		keep_target(view->target, ret);
	if (r == 0 && view->number)
		keep_newest(view->number, ret);
	if (r == 0 && !view->offline)
		r = runs_poll(session, ret, view->with_values, view->with_files, err);
	if (r == 0)
		metrics_here(session, ret, METRICS_MS);
	if (r == 0 && view->sort.n)
		columns_sort(ret, &view->sort.v[0], view->descending, clock_wall_ms());
	return r;
}

/*
 * The table
 */

static bool ps_is_named(const struct column *column, const char *name)
{
	return column->kind && str_eq(column->kind->name, name);
}

/* Columns that are short whatever is in them, and what is copied from the screen. */
static bool ps_is_whole(const struct column *column)
{
	static const char *const names[] = {
		"id", "state", "age", "target", "exit", "duration", "step", "metric"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (ps_is_named(column, names[i]))
			return true;
	return false;
}

/* Rank of a column: a narrow terminal drops the last ones first. */
static unsigned importance_of(const struct column *column)
{
	static const char *const names[] = {
		"id", "state", "metric", "command", "age", "exit", "step", "target", "duration"};

	for (unsigned i = 0; i < ARRAY_LEN(names); i++)
		if (ps_is_named(column, names[i]))
			return i;
	return column->kind ? ARRAY_LEN(names) : 1;
}

static const char *ps_style_of(
	const struct column *column, const struct run *run, const struct column_value *value)
{
	if (ps_is_named(column, "state"))
		return runs_state_style(run_state(run));
	if (ps_is_named(column, "exit") && value->number != 0)
		return UI_RED;
	return "";
}

static void add_cell(struct ui_table *table, const struct column *column, const struct run *run,
	const struct column_value *value)
{
	char age[32];

	if (value->kind == COLUMN_MISSING)
		ui_table_add(table, "", "-");
	else if (value->kind == COLUMN_AGE)
		ui_table_add(table, "", ui_age((int64_t)value->number, age));
	else
		ui_table_add(table, ps_style_of(column, run, value), value->text);
}

static size_t width_of(const struct column_value *value)
{
	if (value->kind == COLUMN_AGE)
		return AGE_WIDTH;
	return value->text ? str_columns(value->text) : 1;
}

/* Width of the table if only the last column, the command, is cut. */
static size_t width_needed(const struct columns *columns, const struct column_values *values)
{
	size_t sum = COMMAND_MIN;

	for (size_t i = 0; i + 1 < columns->n; i++) {
		size_t widest = strlen(columns->v[i].name);

		for (size_t at = i; at < values->n; at += columns->n)
			if (width_of(&values->v[at]) > widest)
				widest = width_of(&values->v[at]);
		sum += widest + GAP;
	}
	return sum;
}

static bool has_metric(const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs)
		if (metric_main(json_get((*run)->doc, "metrics")))
			return true;
	return false;
}

/* Metrics have columns where there are any and there is room. */
static const struct columns *choose_columns(struct app *app, const struct view *view,
	const struct run_list *runs, struct column_values *ret)
{
	const struct columns *wide = &view->with_metric;
	int64_t now_ms = clock_wall_ms();

	if (wide->n && has_metric(runs)) {
		columns_get(wide, runs, now_ms, ret);
		if (!app->out_tty || width_needed(wide, ret) <= app->columns)
			return wide;
		column_values_done(ret);
	}
	columns_get(&view->columns, runs, now_ms, ret);
	return &view->columns;
}

static void ps_print_table(struct app *app, const struct view *view, const struct run_list *runs)
{
	AUTO_COLUMN_VALUES struct column_values values = {0};
	const struct columns *chosen = choose_columns(app, view, runs, &values);
	size_t n = chosen->n;
	AUTO_FREE struct ui_column *columns = mem_alloc(n, sizeof(*columns));
	AUTO_TABLE struct ui_table table = {0};
	AUTO_STRV struct strv titles = {0};

	for (size_t i = 0; i < n; i++) {
		strv_add_take(&titles, column_title(&chosen->v[i]));
		columns[i] = (struct ui_column){.title = titles.v[i],
			.right = column_values_are_numbers(&values, i, n),
			.cut = !ps_is_whole(&chosen->v[i]),
			.drop = importance_of(&chosen->v[i])};
	}
	ui_table_init(&table, columns, n);
	for (size_t i = 0; i < values.n; i++)
		add_cell(&table, &chosen->v[i % n], runs->v[i / n], &values.v[i]);
	ui_table_print(app, &table);
}

static void print_rest(
	struct app *app, const struct view *view, size_t n, size_t cut, size_t hidden)
{
	if (cut)
		app_note(app,
			"%zu more %s no room here: dlrun ps -n %zu (newest N), dlrun ps -a (all)",
			cut, cut == 1 ? "has" : "have", n + cut);
	if (n == 0 && select_is_set(&view->rules))
		app_note(app, "no run matches: dlrun ps -a");
	else if (n == 0)
		app_note(app, hidden ? "no run is unfinished or from the last 24 hours"
				     : "no runs yet: dlrun submit -- python3 train.py");
	if (hidden && !cut)
		app_note(app, "%zu older %s not shown: dlrun ps -a", hidden,
			hidden == 1 ? "run is" : "runs are");
}

static void print_waiting(struct app *app, const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs) {
		AUTO_FREE char *waits = taken_text(*run);
		if (*waits)
			app_note(app, "%s: %s: dlrun %s %s", run_id(*run), waits,
				taken_wait_ms(*run) ? "fetch" : "restart", run_id(*run));
	}
}

static int ps_show_once(struct app *app, const struct view *view, bool again)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	size_t hidden = 0, cut;

	if (ps_list(app, view, &runs, &hidden, &err) < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return runs_print_json(app, &runs);
	app_measure(app);
	cut = cut_rows(app, view, &runs);
	if (again && app->out_tty)
		ui_write(app, CLEAR, sizeof(CLEAR) - 1);
	if (runs.n)
		ps_print_table(app, view, &runs);
	print_waiting(app, &runs);
	print_rest(app, view, runs.n, cut, hidden);
	return 0;
}

static int ps_run(struct app *app, void *values_ptr, struct strv *words UNUSED)
{
	const struct ps_values *values = values_ptr;
	AUTO(ps_view_done) struct view view = {0};
	AUTO_ERR struct err err = {0};
	int status = 0;

	if (parse_view(values, &view, &err) < 0)
		return app_fail(app, &err);
	choose_questions(&view, app->options.json);
	if (!values->watch)
		return ps_show_once(app, &view, false);
	app_catch_signals();
	while (status == 0 && !app_interrupted && !app->out_lost) {
		status = ps_show_once(app, &view, true);
		if (status == 0 && !app_interrupted)
			poll(NULL, 0, WATCH_MS);
	}
	return app_interrupted ? EXIT_INTERRUPTED : status;
}

const struct cmd cmd_ps = {
	.name = "ps",
	.summary = "List runs",
	.synopsis = "[options]",
	.examples = {"dlrun ps # what runs, and what ran today",
		"dlrun ps --group sweep -o id,params.lr,metrics.loss --sort metrics.loss # best first",
		"dlrun ps -a --json --tag paper # every run with a tag, for a script"},
	.opts = opts,
	.values_size = sizeof(struct ps_values),
	.run = ps_run,
};

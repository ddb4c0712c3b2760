/* SPDX-License-Identifier: Apache-2.0 */
#include "core/study/compare.h"

#include <string.h>

#include "app/submit/diff.h"
#include "app/transfer/mirror.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/store/store.h"

enum {
	METRICS_MAX_SHOWN = 6,
	METRICS_MS = 5000, /* of reading event files */
	MS_PER_S = 1000,
};

struct compare_values {
	struct strv metrics, tags;
	const char *group, *sort;
	bool csv, md;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_LIST, 0, "metric", struct compare_values, metrics), .arg = "NAME",
		.help = "Only metrics of that name, or matched by a pattern with *; may be "
			"repeated"},
	{OPT_MEMBER(OPT_STRING, 0, "group", struct compare_values, group), .arg = "NAME",
		.help = "The runs of this group", .values = VALUE_GROUP},
	{OPT_MEMBER(OPT_LIST, 0, "tag", struct compare_values, tags), .arg = "K[=V]",
		.help = "The runs with this tag; may be repeated, then with all of them"},
	{OPT_MEMBER(OPT_STRING, 0, "sort", struct compare_values, sort), .arg = "COLUMN",
		.help = "Smallest first; -COLUMN: largest first", .values = VALUE_COLUMNS},
	{OPT_MEMBER(OPT_FLAG, 0, "csv", struct compare_values, csv),
		.help = "Print comma-separated values, all of them exact"},
	{OPT_MEMBER(OPT_FLAG, 0, "md", struct compare_values, md),
		.help = "Print a table in Markdown, the best values bold"},
	{OPT_END},
};

/*
 * Runs
 */

static int compare_select(struct app *app, const struct compare_values *values,
	const struct strv *words, struct run_list *ret, struct err *err)
{
	const struct select_rules rules = {.tags = &values->tags, .group = values->group};
	AUTO(run_list_done) struct run_list found = {0};
	struct store *store;

	if (!select_is_set(&rules))
		return runs_get_all(app, words, ret, err);
	if (words->n)
		return err_set(err, E_USAGE, "--group and --tag choose the runs: name no others");
	int r = session_store(&app->session, &store, err);
	if (r == 0)
		r = runs_select(store, &rules, &found, err);
	while (found.n)
		*vec_push(ret) = found.v[--found.n]; /* the oldest first */
	return r;
}

static int compare_check(
	const struct compare_values *values, const struct run_list *runs, struct err *err)
{
	if (runs->n > COMPARE_RUNS_MAX)
		return err_set(err, E_DATA_LIMIT,
			"%zu runs are more than %d, which can be compared", runs->n,
			COMPARE_RUNS_MAX);
	if (runs->n >= 2)
		return 0;
	if (values->group || values->tags.n) {
		err_set(err, E_USAGE, "%s with that %s: a comparison takes two",
			runs->n ? "there is only one run" : "there is no run",
			values->group ? "group" : "tag");
		return err_hint(err, "dlrun ps -a -o id,group,tags");
	}
	err_set(err, E_USAGE, "a comparison takes at least two runs");
	return err_hint(err, "dlrun compare @-1 @");
}

static int compare_read(struct app *app, const struct compare_values *values,
	const struct strv *words, struct run_list *ret, struct err *err)
{
	AUTO_COLUMNS struct columns sort = {0};
	struct session *session;
	bool descending;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = compare_select(app, values, words, ret, err);
	if (r == 0)
		r = compare_check(values, ret, err);
	if (r == 0)
		r = runs_poll(session, ret, true, true, err);
	if (r < 0)
		return r;
	metrics_here(session, ret, METRICS_MS);
	vec_foreach (struct run *, run, ret) {
		struct json *env = json_object();
		r = run_env_add(*run, env, err);
		json_set((*run)->doc, "env", env);
		if (r < 0)
			return r;
	}
	r = values->sort ? columns_parse_sort(values->sort, &sort, &descending, err) : 0;
	if (r == 0 && values->sort)
		columns_sort(ret, &sort.v[0], descending, clock_wall_ms());
	return r;
}

/*
 * Cells
 */

struct compare_view {
	const struct run_list *runs;
	const struct columns *columns;
	struct column_values values; /* run by run */
};

/* Titles of columns with a name of their own are in capitals, as in `ps`. */
static char *compare_cell_title(const struct column *column)
{
	return column->kind ? column_title(column) : compare_title(column);
}

/*
 * Forms
 */

static void compare_print_table(struct app *app, const struct compare_view *view)
{
	size_t n = view->columns->n;
	AUTO_FREE double *best = compare_find_best(view->columns, &view->values);
	AUTO_FREE struct ui_column *columns = mem_alloc(n, sizeof(*columns));
	AUTO_TABLE struct ui_table table = {0};
	AUTO_STRV struct strv titles = {0};

	for (size_t i = 0; i < n; i++) {
		bool is_numeric = column_values_are_numbers(&view->values, i, n);

		strv_add_take(&titles, compare_cell_title(&view->columns->v[i]));
		columns[i] = (struct ui_column){.title = titles.v[i],
			.right = is_numeric,
			.cut = i > 0 && !is_numeric,
			.drop = i == 0 ? 0 : 1 + compare_member_of(&view->columns->v[i])};
	}
	ui_table_init(&table, columns, n);
	for (size_t at = 0; at < view->values.n; at++) {
		const struct column_value *value = &view->values.v[at];
		ui_table_add(&table, compare_is_best(best[at % n], value) ? UI_GREEN : "",
			value->text ? value->text : "-");
	}
	ui_table_print(app, &table);
}

/* A cell of GitHub's tables: one line, and no bar of its own. */
static void compare_add_md(const char *text, bool bold, struct buf *out)
{
	AUTO_FREE char *line = ui_clean(text);

	buf_addf(out, " %s", bold ? "**" : "");
	for (const char *at = line; *at; at++)
		buf_addf(out, strchr("|\\*_`<", *at) ? "\\%c" : "%c", *at);
	buf_addf(out, "%s |", bold ? "**" : "");
}

static int compare_print_md(struct app *app, const struct compare_view *view)
{
	size_t n = view->columns->n;
	AUTO_FREE double *best = compare_find_best(view->columns, &view->values);
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	buf_addc(&out, '|');
	vec_foreach (const struct column, column, view->columns) {
		AUTO_FREE char *title = compare_cell_title(column);
		compare_add_md(title, false, &out);
	}
	buf_adds(&out, "\n|");
	for (size_t i = 0; i < n; i++)
		buf_adds(&out,
			column_values_are_numbers(&view->values, i, n) ? " ---: |" : " --- |");
	for (size_t at = 0; at < view->values.n; at++) {
		const struct column_value *value = &view->values.v[at];
		buf_adds(&out, at % n ? "" : "\n|");
		compare_add_md(value->text ? value->text : "-",
			compare_is_best(best[at % n], value), &out);
	}
	buf_addc(&out, '\n');
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

/* Columns whose exact values have a unit of their own. */
static const struct exact {
	const char *kind, *name;
	double unit;
} exacts[] = {{"duration", "duration_s", MS_PER_S}, {"energy", "energy_j", 1}};

static const struct exact *compare_exact_of(const struct column *column)
{
	for (size_t i = 0; column->kind && i < ARRAY_LEN(exacts); i++)
		if (str_eq(column->kind->name, exacts[i].kind))
			return &exacts[i];
	return NULL;
}

static const char *compare_exact_name(const struct column *column)
{
	const struct exact *exact = compare_exact_of(column);

	return exact ? exact->name : column->name;
}

/* The exact values of a run, a member for each column, in their order. */
static struct json *compare_exact_row(const struct compare_view *view, size_t run)
{
	struct json *row = json_object();

	for (size_t i = 0; i < view->columns->n; i++) {
		const struct column *column = &view->columns->v[i];
		const struct column_value *value = &view->values.v[run * view->columns->n + i];
		const struct json *member = column_member(column, view->runs->v[run]);
		const struct exact *exact = compare_exact_of(column);

		if (exact && value->kind == COLUMN_NUMBER)
			json_set_num(row, exact->name, value->number / exact->unit);
		else
			json_set(row, compare_exact_name(column),
				member                  ? json_clone(member)
				: value->text && !exact ? json_string(value->text)
							: json_null());
	}
	return row;
}

static int compare_print_csv(struct app *app, const struct compare_view *view)
{
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	vec_foreach (const struct column, column, view->columns) {
		buf_adds(&out, column == view->columns->v ? "" : ",");
		str_csv_quote(&out, compare_exact_name(column));
	}
	buf_addc(&out, '\n');
	for (size_t i = 0; i < view->runs->n; i++) {
		AUTO_JSON struct json *row = compare_exact_row(view, i);

		for (const struct json *value = json_first(row); value; value = json_next(value)) {
			AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX);

			if (json_kind(value) == JSON_STRING)
				buf_adds(&text, json_str(value));
			else if (json_kind(value) != JSON_NULL)
				json_print(value, &text);
			buf_adds(&out, value == json_first(row) ? "" : ",");
			str_csv_quote(&out, text.data);
		}
		buf_addc(&out, '\n');
	}
	return ui_write(app, out.data, out.len) < 0;
}

static int compare_print_json(struct app *app, const struct compare_view *view)
{
	struct json *json = app_json("compare"), *columns = json_array(), *runs = json_array();

	vec_foreach (const struct column, column, view->columns)
		json_add_str(columns, compare_exact_name(column));
	for (size_t i = 0; i < view->runs->n; i++)
		json_add(runs, compare_exact_row(view, i));
	json_set(json, "columns", columns);
	json_set(json, "runs", runs);
	return app_print_json(app, json);
}

static void compare_print_rest(struct app *app, const struct run_list *runs, size_t n_excluded)
{
	const struct run *two[2];

	if (n_excluded)
		app_note(app, "%zu more %s: dlrun compare --metric '*'", n_excluded,
			n_excluded == 1 ? "metric" : "metrics");
	if (compare_differ(runs, "snapshot", "id", two))
		app_note(app, "the code differs: dlrun diff %s %s", run_id(two[0]), run_id(two[1]));
}

static int compare_print(struct app *app, const struct compare_values *values,
	const struct compare_view *view, size_t n_excluded)
{
	if (app->options.json)
		return compare_print_json(app, view);
	if (values->csv)
		return compare_print_csv(app, view);
	if (values->md)
		return compare_print_md(app, view);
	compare_print_table(app, view);
	compare_print_rest(app, view->runs, n_excluded);
	return 0;
}

static int compare_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct compare_values *values = values_ptr;
	bool is_exact = values->csv || app->options.json;
	const struct compare_rules rules = {.metrics = &values->metrics,
		.metrics_max = is_exact || values->md ? 0 : METRICS_MAX_SHOWN};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_ERR struct err err = {0};
	size_t n_excluded = 0;
	int r = 0;

	if (values->csv + values->md + app->options.json > 1)
		r = err_set(&err, E_USAGE, "--csv, --md and --json exclude each other");
	if (r == 0)
		r = compare_read(app, values, words, &runs, &err);
	if (r == 0)
		r = compare_columns(&runs, &rules, &columns, &n_excluded, &err);
	if (r < 0)
		return app_fail(app, &err);
	struct compare_view view = {&runs, &columns, {0}};
	columns_get(&columns, &runs, clock_wall_ms(), &view.values);
	r = compare_print(app, values, &view, n_excluded);
	column_values_done(&view.values);
	return r;
}

const struct cmd cmd_compare = {
	.name = "compare",
	.summary = "Compare parameters and results of runs in a table",
	.synopsis = "[options] RUN|STUDY...",
	.examples = {"dlrun compare @-1 @ # what differs between two runs, and which was better",
		"dlrun compare tiger-4k2x9 --sort metrics.val_loss.min # a study, best first",
		"dlrun compare --tag paper --metric 'val*' --md # a table for a paper"},
	.opts = opts,
	.values_size = sizeof(struct compare_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = compare_run,
};

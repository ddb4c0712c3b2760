/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/compare.h"

#include <ctype.h>
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
		.help = "The runs of this group"},
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
	const struct store_filter all = {0};
	struct store *store;

	if (!select_is_set(&rules))
		return runs_get_all(app, words, ret, err);
	if (words->n)
		return err_set(err, E_USAGE, "--group and --tag choose the runs: name no others");
	int r = session_store(&app->session, &store, err);
	if (r == 0)
		r = store_list(store, &all, &found, err);
	if (r < 0)
		return r;
	select_keep(&rules, &found);
	while (found.n)
		*vec_push(ret) = found.v[--found.n]; /* the oldest first */
	return 0;
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

static int compare_sort(const char *text, struct run_list *runs, struct err *err)
{
	AUTO_COLUMNS struct columns sort = {0};
	bool descending = *text == '-';
	int r = columns_parse(text + descending, &sort, err);

	if (r == 0 && sort.n != 1) {
		err_set(err, E_USAGE, "--sort takes one column");
		return err_hint(err, "--sort metrics.loss");
	}
	if (r == 0)
		columns_sort(runs, &sort.v[0], descending, clock_wall_ms());
	return r;
}

static int compare_read(struct app *app, const struct compare_values *values,
	const struct strv *words, struct run_list *ret, struct err *err)
{
	struct session *session;
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
	return values->sort ? compare_sort(values->sort, ret, err) : 0;
}

/*
 * Cells
 */

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

static struct json *compare_exact_value(
	const struct column *column, const struct run *run, int64_t now_ms)
{
	const struct exact *exact = compare_exact_of(column);
	const struct json *member = exact ? NULL : column_member(column, run);
	AUTO_COLUMN_VALUE struct column_value value = {0};

	if (member)
		return json_clone(member);
	column_get(column, run, now_ms, &value);
	if (exact && value.kind == COLUMN_NUMBER) {
		AUTO_JSON struct json *holder = json_object();
		json_set_num(holder, "v", value.number / exact->unit);
		return json_clone(json_get(holder, "v"));
	}
	return value.text && !exact ? json_string(value.text) : json_null();
}

/* Members whose names are titles enough, the more important ones first. */
static const char *const members[] = {"metrics.", "params.", "env."};

/* Index in members; their number: another one. */
static unsigned compare_member_of(const struct column *column)
{
	unsigned i = 0;

	while (i < ARRAY_LEN(members) && (column->kind || !str_starts(column->name, members[i])))
		i++;
	return i;
}

/* "lr" for params.lr, "loss min" for metrics.loss.min, "ID" for id. */
static char *compare_title(const struct column *column)
{
	unsigned i = compare_member_of(column);
	enum compare_goal goal = compare_column_goal(column);
	char *title = mem_strdup(column->name + (i < ARRAY_LEN(members) ? strlen(members[i]) : 0));

	for (char *c = title; column->kind && *c; c++)
		*c = (char)toupper((unsigned char)*c);
	if (goal != COMPARE_ANY)
		*strrchr(title, '.') = ' ';
	return title;
}

struct compare_view {
	const struct run_list *runs;
	const struct columns *columns;
	int64_t now_ms;
};

static bool compare_number(
	const struct compare_view *view, const struct column *column, size_t at, double *ret)
{
	AUTO_COLUMN_VALUE struct column_value value = {0};

	column_get(column, view->runs->v[at], view->now_ms, &value);
	*ret = value.number;
	return value.kind == COLUMN_NUMBER;
}

/* Whether a run's value in a column of best ones is the best of all runs. */
static bool compare_is_best(const struct compare_view *view, const struct column *column, size_t at)
{
	enum compare_goal goal = compare_column_goal(column);
	double own, other;

	if (goal == COMPARE_ANY || !compare_number(view, column, at, &own))
		return false;
	for (size_t i = 0; i < view->runs->n; i++)
		if (compare_number(view, column, i, &other) &&
			(goal == COMPARE_MIN ? other < own : other > own))
			return false;
	return true;
}

static bool compare_is_numeric(const struct compare_view *view, const struct column *column)
{
	bool any = false;

	vec_foreach (struct run *, run, view->runs) {
		AUTO_COLUMN_VALUE struct column_value value = {0};
		column_get(column, *run, view->now_ms, &value);
		if (value.kind == COLUMN_TEXT)
			return false;
		any |= value.kind != COLUMN_MISSING;
	}
	return any;
}

/*
 * Forms
 */

static void compare_print_table(struct app *app, const struct compare_view *view)
{
	size_t n = view->columns->n;
	AUTO_FREE struct ui_column *columns = mem_alloc(n, sizeof(*columns));
	AUTO_TABLE struct ui_table table = {0};
	AUTO_STRV struct strv titles = {0};

	for (size_t i = 0; i < n; i++) {
		const struct column *column = &view->columns->v[i];
		strv_add_take(&titles, compare_title(column));
		bool is_numeric = compare_is_numeric(view, column);
		columns[i] = (struct ui_column){.title = titles.v[i],
			.right = is_numeric,
			.cut = i > 0 && !is_numeric,
			.drop = i == 0 ? 0 : 1 + compare_member_of(column)};
	}
	ui_table_init(&table, columns, n);
	for (size_t at = 0; at < view->runs->n; at++)
		for (size_t i = 0; i < n; i++) {
			const struct column *column = &view->columns->v[i];
			AUTO_COLUMN_VALUE struct column_value value = {0};

			column_get(column, view->runs->v[at], view->now_ms, &value);
			ui_table_add(&table, compare_is_best(view, column, at) ? UI_GREEN : "",
				value.text ? value.text : "-");
		}
	ui_table_print(app, &table);
}

/* RFC 4180. */
static void compare_add_csv(const char *text, struct buf *out)
{
	if (!strpbrk(text, ",\"\r\n")) {
		buf_adds(out, text);
		return;
	}
	buf_addc(out, '"');
	for (; *text; text++)
		buf_adds(out, *text == '"' ? "\"\"" : (char[]){*text, '\0'});
	buf_addc(out, '"');
}

static void compare_add_text(const struct json *value, struct buf *out)
{
	if (json_kind(value) == JSON_STRING)
		buf_adds(out, json_str(value));
	else if (json_kind(value) != JSON_NULL)
		json_print(value, out);
}

static int compare_print_csv(struct app *app, const struct compare_view *view)
{
	AUTO_BUF struct buf out;

	buf_init(&out, UI_TEXT_MAX);
	vec_foreach (const struct column, column, view->columns) {
		const struct exact *exact = compare_exact_of(column);
		buf_adds(&out, column == view->columns->v ? "" : ",");
		compare_add_csv(exact ? exact->name : column->name, &out);
	}
	buf_addc(&out, '\n');
	vec_foreach (struct run *, run, view->runs) {
		vec_foreach (const struct column, column, view->columns) {
			AUTO_JSON struct json *value =
				compare_exact_value(column, *run, view->now_ms);
			AUTO_BUF struct buf text;

			buf_init(&text, UI_TEXT_MAX);
			compare_add_text(value, &text);
			buf_adds(&out, column == view->columns->v ? "" : ",");
			compare_add_csv(text.data, &out);
		}
		buf_addc(&out, '\n');
	}
	return ui_write(app, out.data, out.len) < 0;
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
	AUTO_BUF struct buf out;

	buf_init(&out, UI_TEXT_MAX);
	buf_addc(&out, '|');
	vec_foreach (const struct column, column, view->columns) {
		AUTO_FREE char *title = compare_title(column);
		compare_add_md(title, false, &out);
	}
	buf_adds(&out, "\n|");
	vec_foreach (const struct column, column, view->columns)
		buf_adds(&out, compare_is_numeric(view, column) ? " ---: |" : " --- |");
	buf_addc(&out, '\n');
	for (size_t at = 0; at < view->runs->n; at++) {
		buf_addc(&out, '|');
		vec_foreach (const struct column, column, view->columns) {
			AUTO_COLUMN_VALUE struct column_value value = {0};

			column_get(column, view->runs->v[at], view->now_ms, &value);
			compare_add_md(value.text ? value.text : "-",
				compare_is_best(view, column, at), &out);
		}
		buf_addc(&out, '\n');
	}
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

static int compare_print_json(struct app *app, const struct compare_view *view)
{
	struct json *json = app_json("compare"), *columns = json_array(), *runs = json_array();

	vec_foreach (const struct column, column, view->columns) {
		const struct exact *exact = compare_exact_of(column);
		json_add_str(columns, exact ? exact->name : column->name);
	}
	vec_foreach (struct run *, run, view->runs) {
		struct json *row = json_object();
		vec_foreach (const struct column, column, view->columns) {
			const struct exact *exact = compare_exact_of(column);
			json_set(row, exact ? exact->name : column->name,
				compare_exact_value(column, *run, view->now_ms));
		}
		json_add(runs, row);
	}
	json_set(json, "columns", columns);
	json_set(json, "runs", runs);
	return app_print_json(app, json);
}

/* The first run whose code is not that of the first one; NULL: none. */
static const struct run *compare_other_code(const struct run_list *runs)
{
	const char *first = json_get_str(json_get(runs->v[0]->doc, "snapshot"), "id");

	vec_foreach (struct run *, run, runs) {
		const char *id = json_get_str(json_get((*run)->doc, "snapshot"), "id");
		if (first && id && !str_eq(id, first))
			return *run;
	}
	return NULL;
}

static void compare_print_rest(struct app *app, const struct compare_view *view, size_t n_excluded)
{
	const struct run *other = compare_other_code(view->runs);

	if (n_excluded)
		app_note(app, "%zu more %s: dlrun compare --metric '*'", n_excluded,
			n_excluded == 1 ? "metric" : "metrics");
	if (other)
		app_note(app, "the code differs: dlrun diff %s %s", run_id(view->runs->v[0]),
			run_id(other));
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
	const struct compare_view view = {&runs, &columns, clock_wall_ms()};
	if (app->options.json)
		return compare_print_json(app, &view);
	if (values->csv)
		return compare_print_csv(app, &view);
	if (values->md)
		return compare_print_md(app, &view);
	compare_print_table(app, &view);
	compare_print_rest(app, &view, n_excluded);
	return 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun compare @-1 @ # what differs between two runs, and which was better",
	"dlrun compare --group sweep --sort metrics.val_loss.min # a study, best first",
	"dlrun compare --tag paper --metric 'val*' --md # a table for a paper",
};

const struct cmd cmd_compare = {
	.name = "compare",
	.summary = "Compare parameters and results of runs in a table",
	.synopsis = "[options] RUN RUN...",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct compare_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = compare_run,
};

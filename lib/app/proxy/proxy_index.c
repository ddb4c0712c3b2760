/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_index.h"

#include <stdlib.h>
#include <string.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_cell.h"
#include "app/proxy/proxy_page.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/plot/points.h"
#include "core/plot/svg.h"
#include "core/record/columns.h"
#include "core/study/compare.h"
#include "core/record/group.h"

#define INDEX_FIRST  "state,age"
#define INDEX_LAST   "tags,note,duration,target,group"
#define INDEX_SEARCH "id,state,target,group,tags,note,user,command,params"
#define METRICS      "metrics."
#define PARAMS       "params."

enum { INDEX_TEXT_MAX = 64 << 10 };

/*
 * Selection of runs
 */

void proxy_page_sort(struct run_list *runs)
{
	struct run_list sorted = {0};

	for (int live = 1; live >= 0; live--)
		vec_foreach (struct run *, run, runs)
			if (!run_state_is_final(run_state(*run)) == live)
				*vec_push(&sorted) = *run;
	vec_done(runs);
	*runs = sorted;
}

static struct run *index_find(const struct run_list *runs, const char *id)
{
	vec_foreach (struct run *, run, runs)
		if (str_eq(run_id(*run), id))
			return *run;
	return NULL;
}

/* Whether each word of the query is somewhere in what `ps` tells of the run. */
static bool index_matches(
	const struct run *run, const struct columns *columns, const char *query, int64_t now_ms)
{
	AUTO_FREE char *words = mem_strdup(query);
	AUTO_BUF struct buf text = buf_with(INDEX_TEXT_MAX);

	vec_foreach (const struct column, column, columns) {
		AUTO_COLUMN_VALUE struct column_value value = {0};

		column_get(column, run, now_ms, &value);
		buf_addf(&text, "%s\n", value.text ? value.text : "");
	}
	for (char *rest = words, *word; (word = strsep(&rest, " "));)
		if (!strcasestr(text.data, word))
			return false;
	return true;
}

static void index_filter(const struct run_list *runs, const struct proxy_view *view, int64_t now_ms,
	struct proxy_runs *ret)
{
	AUTO_COLUMNS struct columns columns = {0};

	columns_parse(INDEX_SEARCH, &columns, NULL);
	vec_foreach (struct run *, run, runs) {
		if (str_eq(view->path, PROXY_COMPARE_PATH) && view->runs.n &&
			strv_find(&view->runs, run_id(*run)) < 0)
			continue;
		if (view->group && !str_eq(run_group(*run), view->group))
			continue;
		if (!view->query || index_matches(*run, &columns, view->query, now_ms))
			*vec_push(ret) = *run;
	}
}

/* The same runs as the list that others take; they are still those of their owner. */
static struct run_list index_borrow(const struct proxy_runs *runs)
{
	return (struct run_list){.v = runs->v, .n = runs->n, .cap = runs->cap};
}

void proxy_index_select(const struct run_list *runs, const struct proxy_view *view, int64_t now_ms,
	struct proxy_runs *ret, struct err *err)
{
	AUTO_COLUMNS struct columns sort = {0};
	bool descending = false;

	index_filter(runs, view, now_ms, ret);
	if (!view->sort || columns_parse_sort(view->sort, &sort, &descending, err) < 0)
		return;
	struct run_list list = index_borrow(ret);
	columns_sort(&list, &sort.v[0], descending, now_ms);
}

void proxy_index_choose(const struct run_list *runs, const struct proxy_runs *shown,
	const struct proxy_view *view, struct proxy_runs *ret)
{
	for (size_t i = 0; i < view->runs.n && ret->n < CHART_LINES_MAX; i++) {
		struct run *run = index_find(runs, view->runs.v[i]);

		if (run)
			*vec_push(ret) = run;
	}
	for (size_t i = 0; !view->runs.n && view->group && i < shown->n; i++)
		if (ret->n < PROXY_GROUP_LINES)
			*vec_push(ret) = shown->v[i];
}

/*
 * Columns
 */

struct index_columns {
	struct columns shown;
	struct strv folded, offered; /* names */
	size_t more_params, more_metrics;
};

static void index_columns_done(struct index_columns *columns)
{
	columns_done(&columns->shown);
	strv_done(&columns->folded);
	strv_done(&columns->offered);
}

static void index_push(struct columns *columns, const char *name)
{
	*vec_push(columns) = (struct column){.name = mem_strdup(name)};
}

/* Take the columns of that member, at most max; returns how many more there are. */
static size_t index_take(const struct columns *from, enum compare_member member, size_t max,
	struct index_columns *ret)
{
	size_t n = 0;

	vec_foreach (const struct column, column, from) {
		if (compare_member_of(column) != member)
			continue;
		strv_add(&ret->offered, column->name);
		if (n++ < max)
			index_push(&ret->shown, column->name);
	}
	return n > max ? n - max : 0;
}

/* Parameters that most runs have come first. */
struct index_ranked {
	struct column column;
	size_t n, at;
};

static int index_compare_ranked(const void *a_ptr, const void *b_ptr)
{
	const struct index_ranked *a = a_ptr, *b = b_ptr;

	if (a->n != b->n)
		return a->n > b->n ? -1 : 1;
	return a->at < b->at ? -1 : a->at > b->at;
}

/* Columns that tell these runs apart, those of at most metrics_max metrics (0: of all). */
static void index_compare(const struct proxy_runs *runs, size_t metrics_max, struct columns *ret)
{
	const struct run_list list = index_borrow(runs);
	const struct strv any = {0};
	const struct compare_rules rules = {.metrics = &any, .metrics_max = metrics_max};
	size_t excluded;

	if (runs->n)
		compare_columns(&list, &rules, ret, &excluded, NULL);
}

/* Columns that tell these runs apart: metrics before parameters. */
static void index_add_own(
	const struct run_list *runs, const struct columns *all, struct index_columns *ret)
{
	AUTO_COLUMNS struct columns params = {0};

	if (!runs->n)
		return;
	vec_foreach (const struct column, column, all)
		if (compare_member_of(column) == COMPARE_PARAMS)
			index_push(&params, column->name);
	const struct json *first = json_first(json_get(runs->v[0]->doc, "params"));
	for (; runs->n == 1 && first; first = json_next(first)) {
		AUTO_FREE char *name = mem_printf(PARAMS "%s", json_key(first));
		index_push(&params, name);
	}
	struct VEC_OF(struct index_ranked) ranked = {0};

	vec_foreach (struct column, column, &params) {
		struct index_ranked *each = vec_push(&ranked);

		*each = (struct index_ranked){.column = *column, .at = ranked.n};
		vec_foreach (struct run *, run, runs)
			each->n += column_member(column, *run) != NULL;
	}
	vec_sort(&ranked, index_compare_ranked);
	for (size_t i = 0; i < ranked.n; i++)
		params.v[i] = ranked.v[i].column;
	vec_done(&ranked);
	ret->more_metrics = index_take(all, COMPARE_METRICS, PROXY_COLUMNS_MAX, ret);
	ret->more_params = index_take(&params, COMPARE_PARAMS, PROXY_COLUMNS_MAX, ret);
}

static bool index_is_empty(const struct run_list *runs, const struct column *column, int64_t now_ms)
{
	vec_foreach (struct run *, run, runs) {
		AUTO_COLUMN_VALUE struct column_value value = {0};

		column_get(column, *run, now_ms, &value);
		if (value.kind != COLUMN_MISSING)
			return false;
	}
	return true;
}

static void index_add_fixed(
	const struct run_list *runs, const char *names, int64_t now_ms, struct index_columns *ret)
{
	AUTO_COLUMNS struct columns fixed = {0};

	columns_parse(names, &fixed, NULL);
	vec_foreach (const struct column, column, &fixed) {
		strv_add(&ret->offered, column->name);
		if (index_is_empty(runs, column, now_ms))
			strv_add(&ret->folded, column->name);
		else
			columns_parse(column->name, &ret->shown, NULL);
	}
}

static void index_columns_make(const struct proxy_runs *shown, const struct columns *all,
	const struct proxy_view *view, int64_t now_ms, struct index_columns *ret, struct err *err)
{
	const struct run_list runs = index_borrow(shown);

	index_add_fixed(&runs, INDEX_FIRST, now_ms, ret);
	index_add_own(&runs, all, ret);
	index_add_fixed(&runs, INDEX_LAST, now_ms, ret);
	if (!view->columns.n)
		return;
	columns_done(&ret->shown);
	ret->shown = (struct columns){0};
	ret->more_params = ret->more_metrics = 0;
	strv_done(&ret->folded);
	ret->folded = (struct strv){0};
	/* Columns of the view; what is none of them is told in *err. */
	for (size_t i = 0; i < view->columns.n; i++) {
		AUTO_ERR struct err failure = {0};

		if (columns_parse(view->columns.v[i], &ret->shown, &failure) < 0 &&
			!err_is_set(err))
			err_move(err, &failure);
	}
}

static void index_add_metric(struct strv *metrics, const char *column)
{
	AUTO_FREE char *name = mem_strdup(column + strlen(METRICS));
	const struct column whole = {.name = (char *)(uintptr_t)column};

	if (compare_column_goal(&whole) != COMPARE_ANY)
		*strrchr(name, '.') = '\0';
	if (metrics->n < PROXY_CHARTS_MAX && strv_find(metrics, name) < 0)
		strv_add(metrics, name);
}

void proxy_index_metrics(
	const struct proxy_runs *chosen, const struct proxy_view *view, struct strv *ret)
{
	AUTO_COLUMNS struct columns all = {0};

	for (size_t i = 0; i < view->columns.n; i++)
		if (str_starts(view->columns.v[i], METRICS))
			index_add_metric(ret, view->columns.v[i]);
	if (ret->n)
		return;
	index_compare(chosen, PROXY_CHARTS_MAX, &all);
	vec_foreach (const struct column, column, &all)
		if (compare_member_of(column) == COMPARE_METRICS)
			index_add_metric(ret, column->name);
}

/*
 * The table
 */

struct index_table {
	const struct proxy_page_index *page;
	const struct proxy_runs *runs;
	const struct columns *columns;
	struct column_values values; /* run by run */
	double *best;                /* of each column: compare_find_best */
};

static bool index_is_numeric(const struct index_table *table, size_t i)
{
	return !table->columns->v[i].kind &&
	       column_values_are_numbers(&table->values, i, table->columns->n);
}

/* A link that sorts by the column, the other way round where it is sorted by it. */
static void index_add_head(struct buf *out, const struct proxy_view *view,
	const struct column *column, bool is_numeric)
{
	AUTO_FREE char *title = compare_title(column);
	AUTO_FREE char *down = mem_printf("-%s", column->name);
	bool is_up = str_eq(view->sort, column->name), is_down = str_eq(view->sort, down);
	bool best_is_high = compare_goal_of(column->name) == COMPARE_MAX;
	AUTO_BUF struct buf url = buf_with(INDEX_TEXT_MAX);

	proxy_view_add_sorted(
		view, is_up || (best_is_high && !is_down) ? down : column->name, &url);
	buf_addf(out, "<th scope=\"col\"%s%s>", is_numeric ? " class=\"n\"" : "",
		is_up     ? " aria-sort=\"ascending\""
		: is_down ? " aria-sort=\"descending\""
			  : "");
	html_addf(out, "<a href=\"%s\" title=\"%s\">", url.data, column->name);
	cell_short(out, title);
	buf_addf(out, "</a>%s</th>", is_up ? " ▲" : is_down ? " ▼" : "");
}

static void index_add_cell(struct buf *out, const struct index_table *table, size_t run, size_t i)
{
	const struct column_value *value = &table->values.v[run * table->columns->n + i];
	const struct column *column = &table->columns->v[i];
	char age[32];

	if (column->kind && str_eq(column->name, "state")) {
		buf_adds(out, "<td>");
		cell_state(out, table->runs->v[run], table->page->now_ms);
		buf_adds(out, "</td>");
		return;
	}
	bool is_best = compare_is_best(table->best[i], value);
	buf_adds(out, is_best                                         ? "<td class=\"n best\">"
		      : !column->kind && value->kind == COLUMN_NUMBER ? "<td class=\"n\">"
								      : "<td>");
	if (value->kind == COLUMN_AGE)
		buf_adds(out, duration_text((int64_t)value->number, age));
	else if (value->text)
		cell_short(out, value->text);
	if (is_best)
		buf_adds(out, "<span class=\"sr\"> best</span>");
	buf_adds(out, "</td>");
}

static void index_add_row(struct buf *out, const struct index_table *table, size_t at)
{
	const struct run *run = table->runs->v[at];
	const struct proxy_here *here = table->page->here;
	AUTO_FREE char *url = cell_url(run, PROXY_RUN, 0, "/", here);
	bool is_chosen = strv_find(&table->page->view->runs, run_id(run)) >= 0;

	html_addf(out,
		"<tr><th scope=\"row\"><input type=\"checkbox\" name=\"run\" value=\"%s\" "
		"aria-label=\"choose %s\"",
		run_id(run), run_id(run));
	buf_adds(out, is_chosen ? " checked>" : ">");
	html_addf(out, "<a href=\"%s\">%s</a></th>", url, run_id(run));
	for (size_t i = 0; i < table->columns->n; i++)
		index_add_cell(out, table, at, i);
	buf_adds(out, "<td>");
	if (!run_state_is_final(run_state(run)))
		cell_ports(out, run, here);
	html_addf(out, "<a href=\"%s#files\" aria-label=\"files of %s\">files</a></td></tr>\n", url,
		run_id(run));
}

static void index_add_table(struct buf *out, struct index_table *table)
{
	const struct proxy_view *view = table->page->view;
	const struct run_list runs = index_borrow(table->runs);
	static char id_name[] = "id";
	const struct column id = {.name = id_name};

	columns_get(table->columns, &runs, table->page->now_ms, &table->values);
	table->best = compare_find_best(table->columns, &table->values);
	buf_adds(out, "<div class=\"runs\" tabindex=\"0\" role=\"region\" aria-label=\"Runs\">"
		      "<table>\n<caption class=\"sr\">Runs; titles sort</caption>\n<thead><tr>");
	index_add_head(out, view, &id, false);
	for (size_t i = 0; i < table->columns->n; i++)
		index_add_head(out, view, &table->columns->v[i], index_is_numeric(table, i));
	buf_adds(out, "<th scope=\"col\">open</th></tr></thead>\n<tbody>\n");
	for (size_t i = 0; i < table->runs->n; i++)
		index_add_row(out, table, i);
	buf_adds(out, "</tbody></table></div>\n");
	column_values_done(&table->values);
	free(table->best);
}

/*
 * The study: what parameters do to a metric
 */

/* A column as a place of points. */
struct index_axis {
	char *title;
	struct column_value *values;
	struct points_value *points;
	size_t n;
	struct points_axis axis; /* not made: at is NULL */
};

static void index_axis_done(struct index_axis *axis)
{
	points_axis_done(&axis->axis);
	for (size_t i = 0; i < axis->n; i++)
		column_value_done(&axis->values[i]);
	free(axis->values);
	free(axis->points);
	free(axis->title);
}

/* false: the column says nothing of these runs. */
static bool index_axis_make(
	const struct proxy_runs *runs, const char *name, int64_t now_ms, struct index_axis *ret)
{
	AUTO_COLUMNS struct columns columns = {0};

	*ret = (struct index_axis){.n = runs->n};
	ret->values = mem_alloc(runs->n + 1, sizeof(*ret->values));
	ret->points = mem_alloc(runs->n + 1, sizeof(*ret->points));
	if (columns_parse(name, &columns, NULL) < 0 || columns.n != 1)
		return false;
	ret->title = compare_title(&columns.v[0]);
	for (size_t i = 0; i < runs->n; i++) {
		struct column_value *value = &ret->values[i];

		column_get(&columns.v[0], runs->v[i], now_ms, value);
		ret->points[i] = (struct points_value){value->kind == COLUMN_AGE ? "" : value->text,
			value->kind == COLUMN_NUMBER || value->kind == COLUMN_AGE, value->number};
	}
	return points_axis_make(ret->title, ret->points, ret->n, &ret->axis);
}

struct index_study {
	struct index_axis
		axes[PROXY_AXES_MAX]; /* of parallel coordinates; the metric is the last */
	size_t n;
	struct index_axis x, y;
	bool has_metric, has_scatter, is_low_better;
	char *x_name, *y_name;
};

static void index_study_done(struct index_study *study)
{
	for (size_t i = 0; i < study->n; i++)
		index_axis_done(&study->axes[i]);
	index_axis_done(&study->x);
	index_axis_done(&study->y);
	free(study->x_name);
	free(study->y_name);
}

/* The best values of the main metric, else its last ones. */
static char *index_main_metric(const struct columns *all)
{
	const char *found = NULL;

	vec_foreach (const struct column, column, all) {
		if (compare_member_of(column) != COMPARE_METRICS)
			continue;
		if (!found)
			found = column->name;
		else if (compare_column_goal(column) != COMPARE_ANY &&
			 str_starts(column->name, found))
			return mem_strdup(column->name);
		else
			break;
	}
	return found ? mem_strdup(found) : NULL;
}

static void index_study_add(
	struct index_study *study, const struct proxy_runs *runs, const char *name, int64_t now_ms)
{
	struct index_axis *axis = &study->axes[study->n];

	if (study->n == PROXY_AXES_MAX)
		return;
	if (index_axis_make(runs, name, now_ms, axis))
		study->n++;
	else
		index_axis_done(axis);
}

/* Parameters as axes; the first one that is a number is drawn across. */
static void index_study_add_params(struct index_study *study, const struct columns *all,
	const struct proxy_runs *runs, int64_t now_ms)
{
	vec_foreach (const struct column, column, all) {
		size_t before = study->n;

		if (compare_member_of(column) != COMPARE_PARAMS || before == PROXY_AXES_MAX - 1)
			continue;
		index_study_add(study, runs, column->name, now_ms);
		if (!study->x_name && study->n > before && study->axes[before].points[0].is_number)
			study->x_name = mem_strdup(column->name);
	}
}

static void index_study_make(const struct proxy_page_index *page, const struct proxy_runs *runs,
	const struct columns *all, struct index_study *ret)
{
	AUTO_FREE char *metric = index_main_metric(all);

	index_study_add_params(ret, all, runs, page->now_ms);
	size_t before = ret->n;
	if (metric)
		index_study_add(ret, runs, metric, page->now_ms);
	ret->has_metric = ret->n > before;
	ret->is_low_better = !metric || compare_goal_of(metric) != COMPARE_MAX;
	if (page->view->x || !ret->x_name)
		REPLACE(ret->x_name, mem_strdup(page->view->x ? page->view->x : "age"));
	ret->y_name = mem_strdup(page->view->y ? page->view->y : metric ? metric : "duration");
	bool has_x = index_axis_make(runs, ret->x_name, page->now_ms, &ret->x);
	bool has_y = index_axis_make(runs, ret->y_name, page->now_ms, &ret->y);
	ret->has_scatter = has_x && has_y;
}

static void index_add_option(struct buf *out, const char *value, const char *chosen)
{
	html_addf(out, "<option value=\"%s\"", value);
	buf_adds(out, str_eq(value, chosen) ? " selected>" : ">");
	html_addf(out, "%s</option>", value);
}

static void index_add_axis_select(struct buf *out, const char *label, const char *name,
	const char *chosen, const struct strv *offered)
{
	html_addf(out, "<label>%s<select name=\"%s\">", label, name);
	if (strv_find(offered, chosen) < 0)
		index_add_option(out, chosen, chosen);
	for (size_t i = 0; i < offered->n; i++)
		index_add_option(out, offered->v[i], chosen);
	buf_adds(out, "</select></label>\n");
}

static void index_add_study(struct buf *out, const struct proxy_page_index *page,
	const struct proxy_runs *runs, const struct columns *all, const struct strv *offered)
{
	AUTO(index_study_done) struct index_study study = {0};
	AUTO_STRV struct strv names = {0};
	AUTO_STRV struct strv urls = {0};
	struct points_axis axes[PROXY_AXES_MAX];

	if (runs->n < 2 || runs->n > POINTS_MAX)
		return;
	index_study_make(page, runs, all, &study);
	for (size_t i = 0; i < runs->n; i++) {
		strv_add(&names, run_id(runs->v[i]));
		strv_add_take(&urls, cell_url(runs->v[i], PROXY_RUN, 0, "/", page->here));
	}
	for (size_t i = 0; i < study.n; i++)
		axes[i] = study.axes[i].axis;
	const struct points points = {runs->n, (const char *const *)names.v,
		(const char *const *)urls.v, study.has_metric ? &axes[study.n - 1] : NULL,
		study.is_low_better};
	buf_adds(out, "<h2>Parameters and results</h2>\n<div class=\"bar\">");
	index_add_axis_select(out, "x axis", "x", study.x_name, offered);
	index_add_axis_select(out, "y axis", "y", study.y_name, offered);
	buf_adds(out, "<button>Draw</button></div>\n<div class=\"plots\">\n");
	if (study.has_scatter)
		points_scatter(&points, &study.x.axis, &study.y.axis, out);
	if (study.n > 1)
		points_parallel(&points, axes, study.n, out);
	buf_adds(out, "</div>\n");
	if (study.has_metric)
		html_addf(out, "<p class=\"note\">colour: %s</p>\n", study.axes[study.n - 1].title);
	if (!study.has_scatter)
		buf_adds(out, "<p class=\"note\">Nothing differs in one of the two columns.</p>\n");
}

/*
 * The form
 */

static void index_add_groups(struct buf *out, const struct proxy_page_index *page)
{
	AUTO_STRV struct strv groups = {0};
	struct map seen = {0};

	if (page->view->group)
		strv_add(&groups, page->view->group);
	vec_foreach (struct run *, run, page->runs) {
		const char *group = run_group(*run);

		if (group && !str_eq(group, page->view->group) && !map_put(&seen, group, *run))
			strv_add(&groups, group);
	}
	map_done(&seen);
	if (!groups.n)
		return;
	buf_adds(out, "<label>Group<select name=\"group\"><option value=\"\">all</option>");
	for (size_t i = 0; i < groups.n; i++)
		index_add_option(out, groups.v[i], page->view->group);
	buf_adds(out, "</select></label>\n");
}

static void index_add_bar(
	struct buf *out, const struct proxy_page_index *page, const struct strv *offered)
{
	const struct proxy_view *view = page->view;

	buf_adds(out, "<div class=\"bar\" role=\"search\">\n");
	html_addf(out,
		"<label>Filter<input type=\"search\" name=\"q\" value=\"%s\" maxlength=\"200\">"
		"</label>\n",
		view->query ? view->query : "");
	index_add_groups(out, page);
	if (view->sort)
		html_addf(out, "<input type=\"hidden\" name=\"sort\" value=\"%s\">\n", view->sort);
	buf_adds(out, "<button>Show</button>\n<button formaction=\"" PROXY_COMPARE_PATH
		      "\">Compare chosen</button>\n<a href=\"/\">all runs</a>\n");
	buf_adds(out, "<details id=\"columns\"><summary>Columns</summary><fieldset>"
		      "<legend>none chosen: those that are not empty, and what differs</legend>\n");
	for (size_t i = 0; i < offered->n; i++) {
		html_addf(out, "<label><input type=\"checkbox\" name=\"columns\" value=\"%s\"",
			offered->v[i]);
		buf_adds(out, strv_find(&view->columns, offered->v[i]) >= 0 ? " checked>" : ">");
		html_addf(out, "%s</label>\n", offered->v[i]);
	}
	buf_adds(out, "</fieldset></details>\n");
	buf_adds(out, "</div>\n");
}

static void index_add_notes(struct buf *out, const struct proxy_page_index *page,
	const struct index_columns *columns, const struct err *problem)
{
	if (err_is_set(problem))
		html_addf(out, "<p class=\"failed\" role=\"alert\">%s</p>\n", problem->message);
	if (columns->folded.n) {
		AUTO_FREE char *names = strv_join(&columns->folded, ", ");
		html_addf(out, "<p class=\"note\">Empty and folded: %s</p>\n", names);
	}
	if (columns->more_metrics)
		buf_addf(out, "<p class=\"note\">%zu more metrics: see Columns.</p>\n",
			columns->more_metrics);
	if (columns->more_params)
		buf_addf(out,
			"<p class=\"note\">%zu more parameters that differ: see Columns.</p>\n",
			columns->more_params);
	if (page->is_cut)
		buf_addf(out,
			"<p class=\"note\">The newest %zu and all that go on; others: "
			"<code>dlrun ps -a</code></p>\n",
			page->runs->n);
}

static void index_add_all(struct buf *out, const struct proxy_page_index *page)
{
	const struct proxy_view *view = page->view;
	struct proxy_runs shown = {0};
	AUTO(index_columns_done) struct index_columns columns = {0};
	AUTO_COLUMNS struct columns all = {0};
	AUTO_ERR struct err problem = {0};
	bool is_study = view->group || view->x || view->y || str_eq(view->path, PROXY_COMPARE_PATH);

	proxy_index_select(page->runs, view, page->now_ms, &shown, &problem);
	index_compare(&shown, 0, &all);
	index_columns_make(&shown, &all, view, page->now_ms, &columns, &problem);
	html_addf(out, "<form method=\"get\" action=\"%s\">\n", view->path);
	index_add_bar(out, page, &columns.offered);
	if (page->n_charts) {
		buf_adds(out, "<h2>Curves</h2>\n<div class=\"plots\">\n");
		for (size_t i = 0; i < page->n_charts; i++)
			svg_draw_part(&page->charts[i], out);
		buf_adds(out, "</div>\n");
	}
	for (size_t i = 0; page->notes && i < page->notes->n; i++)
		html_addf(out, "<p class=\"note\">%s</p>\n", page->notes->v[i]);
	if (page->media)
		proxy_media_add(page->media, out);
	if (is_study)
		index_add_study(out, page, &shown, &all, &columns.offered);
	if (shown.n) {
		struct index_table table = {
			.page = page, .runs = &shown, .columns = &columns.shown};
		index_add_table(out, &table);
	} else {
		buf_adds(out, "<p>No run matches. <a href=\"/\">all runs</a></p>\n");
	}
	buf_adds(out, "</form>\n");
	index_add_notes(out, page, &columns, &problem);
	vec_done(&shown);
}

void proxy_page_index(const struct proxy_page_index *page, struct buf *out)
{
	const char *title =
		str_eq(page->view->path, PROXY_COMPARE_PATH) ? "dlrun: compare" : "dlrun: runs";
	size_t live = 0;

	vec_foreach (struct run *, run, page->runs)
		live += !run_state_is_final(run_state(*run));
	html_begin(out, title, PROXY_REFRESH_S, live ? PROXY_REFRESH_S : 0);
	html_addf(out, "<h1>%s%s</h1>\n", page->view->group ? "Runs of " : "Runs",
		page->view->group ? page->view->group : "");
	if (page->runs->n)
		index_add_all(out, page);
	else
		buf_adds(out, "<p>There is no run yet: <code>dlrun submit -- PROGRAM</code></p>\n");
	buf_adds(out, "<p class=\"note\">Any port of a run that goes on: ");
	cell_form(out, "6006.RUN", page->here);
	buf_adds(out, ", of its rank 1: ");
	cell_form(out, "6006.r1.RUN", page->here);
	buf_adds(out, " &middot; <a href=\"/runs.json\">as JSON</a></p>\n");
	html_end(out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/plot_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"
#include "core/record/columns.h"
#include "core/record/group.h"

enum { TEXT_MAX = 1 << 20, AXES_SHOWN = 8 };

void plot_groups_done(struct plot_groups *groups)
{
	vec_foreach (struct plot_group, group, groups) {
		free(group->value);
		free(group->dir);
		free(group->tag);
		free(group->median);
		free(group->best);
		free(group->counts);
	}
	vec_done(groups);
}

/*
 * Curves that belong together
 */

/* A member with what it is grouped by. */
struct plot_placed {
	const struct plot_member *member;
	const char *dir; /* "": its run has one curve of the tag */
};
struct plot_placeds VEC_OF(struct plot_placed);

/* Runs with several curves of a tag: "run/tag". */
static void plot_group_find_several(
	const struct plot_member *members, size_t n, struct map *several)
{
	struct map seen = {0};

	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *key = mem_printf("%p/%s", members[i].run, members[i].curve.tag);
		if (map_put(&seen, key, &seen))
			map_put(several, members[i].curve.tag, several);
	}
	map_done(&seen);
}

static int plot_group_compare(const struct plot_placed *a, const struct plot_placed *b)
{
	int by_tag = strcmp(a->member->curve.tag, b->member->curve.tag);
	int by_dir = by_tag ? by_tag : strcmp(a->dir, b->dir);

	return by_dir ? by_dir : group_compare_values(a->member->value, b->member->value);
}

static double plot_group_newest_s(const struct series_curve *curve)
{
	return curve->n ? curve->points[curve->n - 1].wall_time_s : -HUGE_VAL;
}

/* Curves of one run stand together, the one with the newest value first. */
static int plot_group_by_all(const void *a, const void *b)
{
	const struct plot_placed *one = a, *other = b;
	int r = plot_group_compare(one, other);

	if (r)
		return r;
	if (one->member->run != other->member->run)
		return (uintptr_t)one->member->run < (uintptr_t)other->member->run ? -1 : 1;
	double x = plot_group_newest_s(&one->member->curve);
	double y = plot_group_newest_s(&other->member->curve);
	return (x < y) - (x > y);
}

/*
 * A curve of many
 */

static int plot_group_by_step(const void *a, const void *b)
{
	int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;

	return (one > other) - (one < other);
}

/* Element i of want that are evenly apart among n, the first and the last included. */
static size_t plot_group_at(size_t i, size_t want, size_t n)
{
	return n <= want || want < 2 ? i : i * (n - 1) / (want - 1);
}

struct plot_steps VEC_OF(int64_t);

/* The steps of all curves, each once; of many those that are evenly apart. */
static void plot_group_steps(const struct plot_placed *placed, size_t n, struct plot_steps *ret)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++) {
		const struct series_curve *curve = &placed[i].member->curve;
		size_t want = curve->n < PLOT_GROUP_STEPS ? curve->n : PLOT_GROUP_STEPS;

		for (size_t k = 0; k < want; k++)
			*vec_push(ret) = curve->points[plot_group_at(k, want, curve->n)].step;
	}
	vec_sort(ret, plot_group_by_step);
	for (size_t i = 0; i < ret->n; i++)
		if (i == 0 || ret->v[i] != ret->v[kept - 1])
			ret->v[kept++] = ret->v[i];
	size_t want = kept < PLOT_GROUP_STEPS ? kept : PLOT_GROUP_STEPS;
	for (size_t i = 0; i < want; i++)
		ret->v[i] = ret->v[plot_group_at(i, want, kept)];
	ret->n = want;
}

/* The value at a step, NaN without one. *at: where the search goes on, for rising steps. */
static double plot_group_value_at(const struct series_curve *curve, int64_t step, size_t *at)
{
	const struct series_point *points = curve->points;

	while (*at < curve->n && points[*at].step < step)
		++*at;
	if (*at == curve->n)
		return (double)NAN;
	if (points[*at].step == step)
		return points[*at].value;
	if (*at == 0)
		return (double)NAN;
	const struct series_point *before = &points[*at - 1], *after = &points[*at];
	double part = ((double)step - (double)before->step) /
		      ((double)after->step - (double)before->step);
	return before->value + part * (after->value - before->value);
}

/* values are finite; n is not 0. */
static void plot_group_add_step(struct plot_group *group, int64_t step, double *values, size_t n)
{
	double median = compare_median(values, n);
	double best = group->goal == COMPARE_MAX ? values[n - 1] : values[0];

	group->median[group->n] = (struct series_point){step, (double)NAN, median};
	group->best[group->n] = (struct series_point){step, (double)NAN, best};
	group->counts[group->n++] = n;
}

static void plot_group_fill(struct plot_group *group, const struct plot_placed *placed, size_t n)
{
	AUTO_FREE size_t *at = mem_alloc(n, sizeof(*at));
	AUTO_FREE double *values = mem_alloc(n, sizeof(*values));
	struct plot_steps steps = {0};

	plot_group_steps(placed, n, &steps);
	group->median = mem_alloc(steps.n + 1, sizeof(*group->median));
	group->best = mem_alloc(steps.n + 1, sizeof(*group->best));
	group->counts = mem_alloc(steps.n + 1, sizeof(*group->counts));
	vec_foreach (int64_t, step, &steps) {
		size_t n_values = 0;

		for (size_t i = 0; i < n; i++) {
			double value = plot_group_value_at(&placed[i].member->curve, *step, &at[i]);
			if (isfinite(value))
				values[n_values++] = value;
		}
		if (n_values)
			plot_group_add_step(group, *step, values, n_values);
	}
	vec_done(&steps);
}

/* placed: all of one group, in their order; of several curves of a run the first counts. */
static void plot_group_add(struct plot_groups *ret, struct plot_placed *placed, size_t n)
{
	const struct plot_member *first = placed[0].member;
	struct plot_group *group = vec_push(ret);
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		if (i == 0 || placed[i].member->run != placed[kept - 1].member->run)
			placed[kept++] = placed[i];
	*group = (struct plot_group){.goal = compare_goal_of(first->curve.tag), .n_runs = kept};
	group->value = first->value ? mem_strdup(first->value) : NULL;
	group->dir = mem_strdup(placed[0].dir);
	group->tag = mem_strdup(first->curve.tag);
	plot_group_fill(group, placed, kept);
}

void plot_groups_make(const struct plot_member *members, size_t n, struct plot_groups *ret)
{
	struct plot_placeds all = {0};
	struct map several = {0};
	size_t begin = 0;

	plot_group_find_several(members, n, &several);
	for (size_t i = 0; i < n; i++) {
		bool is_one = !map_get(&several, members[i].curve.tag);
		*vec_push(&all) = (struct plot_placed){
			&members[i], is_one ? "" : fs_basename(members[i].curve.dir)};
	}
	vec_sort(&all, plot_group_by_all);
	for (size_t i = 1; i <= all.n; i++)
		if (i == all.n || plot_group_compare(&all.v[begin], &all.v[i]) != 0) {
			plot_group_add(ret, all.v + begin, i - begin);
			begin = i;
		}
	vec_done(&all);
	map_done(&several);
}

/*
 * Values of runs
 */

static char *plot_group_column(const struct run *run, const char *by)
{
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_COLUMN_VALUE struct column_value value = {0};

	if (columns_parse(by, &columns, NULL) < 0)
		return NULL;
	column_get(&columns.v[0], run, clock_wall_ms(), &value);
	return TAKE(value.text);
}

/* Each run once. */
static void plot_group_runs(const struct plot_curves *curves, struct run_list *ret)
{
	const struct plot_source *last = NULL;

	vec_foreach (struct plot_curve, curve, curves) {
		if (curve->source != last && curve->source->run)
			*vec_push(ret) = curve->source->run;
		last = curve->source;
	}
}

static int plot_group_fail(const struct plot_curves *curves, const char *by, struct err *err)
{
	AUTO_FREE char *shown = str_shown(by);
	struct run_list runs = {0};
	size_t n = 0;

	plot_group_runs(curves, &runs);
	AUTO_JSON struct json *axes = group_axes(&runs);
	vec_done(&runs);
	err_set(err, E_USAGE, "no run has a parameter %s", shown);
	AUTO_BUF struct buf names = buf_with(TEXT_MAX);
	for (const struct json *axis = json_first(axes); axis && n < AXES_SHOWN;
		axis = json_next(axis), n++) {
		AUTO_FREE char *name = str_shown(json_key(axis));
		buf_addf(&names, "%s%s", n ? ", " : "", name);
	}
	if (n == 0)
		return err_evidence(err, "all have the same parameters");
	err_evidence(err, "they differ in %s", names.data);
	AUTO_BUF struct buf quoted = buf_with(TEXT_MAX);
	str_shell_quote(&quoted, json_key(json_first(axes)));
	return err_hint(err, "--by %s", quoted.data);
}

typedef char *plot_group_value_fn(const struct run *run, const char *by);

/* Values of the sources of curves, one for each curve; false: there is none. */
static bool plot_group_values(const struct plot_curves *curves, const char *by,
	plot_group_value_fn *get, struct plot_member *members, char **ret_values)
{
	bool found = false;

	for (size_t i = 0; i < curves->n; i++) {
		const struct plot_curve *curve = &curves->v[i];

		ret_values[i] = curve->source->run ? get(curve->source->run, by) : NULL;
		members[i] = (struct plot_member){curve->source, ret_values[i], curve->curve};
		found |= ret_values[i] != NULL;
	}
	return found;
}

int plot_groups_of(
	const struct plot_curves *curves, const char *by, struct plot_groups *ret, struct err *err)
{
	AUTO_FREE struct plot_member *members = mem_alloc(curves->n + 1, sizeof(*members));
	char **values = mem_alloc(curves->n + 1, sizeof(*values));
	bool found = plot_group_values(curves, by, columns_param, members, values) ||
		     plot_group_values(curves, by, plot_group_column, members, values);

	if (found)
		plot_groups_make(members, curves->n, ret);
	for (size_t i = 0; i < curves->n; i++)
		free(values[i]);
	free(values);
	return found || curves->n == 0 ? 0 : plot_group_fail(curves, by, err);
}

/*
 * Charts
 */

static void plot_group_add_line(
	const struct plot_group *group, const char *by, bool with_tag, struct plot_chart *chart)
{
	if (chart->lines.n == CHART_LINES_MAX) {
		chart->excluded++;
		return;
	}
	struct chart_line *line = vec_push(&chart->lines);
	line->label = mem_printf("%s=%s%s%s%s%s (%zu %s)", by, group->value ? group->value : "none",
		*group->dir ? " " : "", group->dir, with_tag ? " " : "", with_tag ? group->tag : "",
		group->n_runs, group->n_runs == 1 ? "run" : "runs");
	line->curve = (struct series_curve){
		.dir = group->dir, .tag = group->tag, .points = group->median, .n = group->n};
	if (group->goal == COMPARE_ANY)
		return;
	line->edge = line->curve;
	line->edge.points = group->best;
}

static void plot_group_add_chart(const struct plot_groups *groups, const char *by, const char *name,
	bool is_glob, struct plot_charts *ret)
{
	struct plot_chart chart = {0};
	AUTO_STRV struct strv tags = {0};

	vec_foreach (struct plot_group, group, groups)
		if (is_glob ? plot_is_match(name, group->tag) : str_eq(name, group->tag))
			if (strv_find(&tags, group->tag) < 0)
				strv_add(&tags, group->tag);
	vec_foreach (struct plot_group, group, groups)
		if (strv_find(&tags, group->tag) >= 0)
			plot_group_add_line(group, by, tags.n > 1, &chart);
	if (tags.n == 0)
		return;
	AUTO_FREE char *names = strv_join(&tags, ", ");
	chart.title = mem_printf("%s by %s", names, by);
	*vec_push(ret) = chart;
}

size_t plot_groups_charts(const struct plot_groups *groups, const char *by,
	const struct strv *globs, size_t max, struct plot_charts *ret)
{
	AUTO_STRV struct strv tags = {0};
	const struct strv *titles = globs->n ? globs : &tags;

	/* Groups are in order of their tags. */
	vec_foreach (struct plot_group, group, groups)
		if (tags.n == 0 || !str_eq(tags.v[tags.n - 1], group->tag))
			strv_add(&tags, group->tag);
	for (size_t i = 0; i < titles->n && i < max; i++)
		plot_group_add_chart(groups, by, titles->v[i], globs->n > 0, ret);
	return titles->n > max ? titles->n - max : 0;
}

/*
 * Data
 */

int plot_groups_csv(struct app *app, const struct plot_groups *groups, const char *by)
{
	AUTO_BUF struct buf out = buf_with(PLOT_PIECE_MAX);
	char median[PLOT_NUMBER], best[PLOT_NUMBER];

	str_csv_quote(&out, by);
	buf_adds(&out, ",runs,dir,tag,step,median,best\n");
	vec_foreach (struct plot_group, group, groups)
		for (size_t i = 0; i < group->n; i++) {
			str_csv_quote(&out, group->value ? group->value : "");
			buf_addf(&out, ",%zu,", group->counts[i]);
			str_csv_quote(&out, group->dir);
			buf_addc(&out, ',');
			str_csv_quote(&out, group->tag);
			buf_addf(&out, ",%lld,%s,%s\n", (long long)group->median[i].step,
				plot_number(group->median[i].value, median),
				group->goal == COMPARE_ANY
					? ""
					: plot_number(group->best[i].value, best));
			if (!plot_data_flush(app, &out, PLOT_PIECE))
				return 1;
		}
	return !plot_data_flush(app, &out, 0);
}

/* The members of one text or number each; the object is not closed. */
static void plot_group_add_head(const struct plot_group *group, struct buf *out)
{
	AUTO_JSON struct json *head = json_object();

	json_set_str(head, "value", group->value);
	json_set_int(head, "runs", (int64_t)group->n_runs);
	json_set_bytes(head, "dir", group->dir, strlen(group->dir));
	json_set_str(head, "tag", group->tag);
	json_set_str(head, "better",
		group->goal == COMPARE_MIN   ? "lower"
		: group->goal == COMPARE_MAX ? "higher"
					     : NULL);
	json_print(head, out);
	buf_truncate(out, out->len - 1);
}

static void plot_group_add_points(
	const char *name, const struct series_point *points, size_t n, struct buf *out)
{
	char number[PLOT_NUMBER];

	buf_addf(out, ",\"%s\":[", name);
	for (size_t i = 0; i < n; i++)
		buf_addf(out, "%s%s", i ? "," : "", plot_number(points[i].value, number));
	buf_addc(out, ']');
}

static void plot_group_add_json(const struct plot_group *group, struct buf *out)
{
	plot_group_add_head(group, out);
	buf_adds(out, ",\"step\":[");
	for (size_t i = 0; i < group->n; i++)
		buf_addf(out, "%s%lld", i ? "," : "", (long long)group->median[i].step);
	buf_adds(out, "],\"n\":[");
	for (size_t i = 0; i < group->n; i++)
		buf_addf(out, "%s%zu", i ? "," : "", group->counts[i]);
	buf_addc(out, ']');
	plot_group_add_points("median", group->median, group->n, out);
	if (group->goal == COMPARE_ANY)
		buf_adds(out, ",\"best\":null");
	else
		plot_group_add_points("best", group->best, group->n, out);
	buf_addc(out, '}');
}

int plot_groups_json(struct app *app, const struct plot_groups *groups, const char *by)
{
	AUTO_JSON struct json *head = app_json("plot-groups");
	AUTO_BUF struct buf out = buf_with(PLOT_PIECE_MAX);

	app->json_done = true;
	json_set_str(head, "by", by);
	json_print(head, &out);
	buf_truncate(&out, out.len - 1);
	buf_adds(&out, ",\"groups\":[");
	vec_foreach (struct plot_group, group, groups) {
		buf_adds(&out, group > groups->v ? "," : "");
		/* At most PLOT_GROUP_STEPS steps: it fits. */
		plot_group_add_json(group, &out);
		if (!plot_data_flush(app, &out, PLOT_PIECE))
			return 1;
	}
	buf_adds(&out, "]}\n");
	return !plot_data_flush(app, &out, 0);
}

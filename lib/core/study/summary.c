/* SPDX-License-Identifier: Apache-2.0 */
#include "core/study/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "core/record/columns.h"

/* Values of the metric, in the order of the members. */
struct summary_values VEC_OF(double);

struct summary_work {
	const struct run_list *runs;
	struct study_summary *summary;
	struct summary_values *values; /* of each row, and of all behind them */
	size_t parallel;
	int64_t now_ms;
};

static void study_row_done(struct study_row *row)
{
	strv_done(&row->values);
}

void study_summary_done(struct study_summary *summary)
{
	if (!summary)
		return;
	vec_foreach (struct study_row, row, &summary->rows)
		study_row_done(row);
	vec_done(&summary->rows);
	study_row_done(&summary->all);
	strv_done(&summary->keys);
	*summary = (struct study_summary){0};
}

/*
 * The rows: members with the same values of the keys
 */

enum { LABEL_MAX = 64 << 10 };

static char *summary_value(const struct run *run, const char *key)
{
	char *value = columns_param(run, key);

	return value ? value : mem_strdup("null");
}

/* The values, each behind its length. */
static char *summary_label(const struct run *run, const struct strv *keys, size_t n)
{
	AUTO_BUF struct buf label = buf_with(LABEL_MAX);

	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *value = summary_value(run, keys->v[i]);
		buf_addf(&label, "%zu:%s", strlen(value), value);
	}
	return buf_take(&label);
}

/* firsts[i]: the first member with the values that member i has. Returns how many are such. */
static size_t summary_find_firsts(
	const struct run_list *runs, const struct strv *keys, size_t n_keys, size_t *firsts)
{
	struct map seen = {0};

	for (size_t i = 0; i < runs->n; i++) {
		AUTO_FREE char *label = summary_label(runs->v[i], keys, n_keys);
		const size_t *first = map_get(&seen, label);

		firsts[i] = first ? *first : i;
		if (!first)
			map_put(&seen, label, &firsts[i]);
	}
	size_t n = seen.n;
	map_done(&seen);
	return n;
}

/* rows[i]: the row of member i. */
static void summary_make_rows(const struct run_list *runs, const struct strv *keys,
	struct study_summary *summary, size_t *rows)
{
	size_t n_keys = keys->n > 1 ? 1 : keys->n;

	if (summary_find_firsts(runs, keys, n_keys, rows) == runs->n) {
		n_keys = keys->n;
		summary_find_firsts(runs, keys, n_keys, rows);
	}
	for (size_t i = 0; i < n_keys; i++)
		strv_add(&summary->keys, keys->v[i]);
	for (size_t i = 0; i < runs->n; i++) {
		if (rows[i] != i) {
			rows[i] = rows[rows[i]];
			continue;
		}
		struct study_row *row = vec_push(&summary->rows);
		*row = (struct study_row){0};
		for (size_t k = 0; k < n_keys; k++)
			strv_add_take(&row->values, summary_value(runs->v[i], keys->v[k]));
		rows[i] = summary->rows.n - 1;
	}
}

/*
 * The metric
 */

static void summary_choose_metric(const struct run_list *runs, struct study_summary *summary)
{
	vec_foreach (struct run *, run, runs) {
		const struct json *metric = metric_main(json_get((*run)->doc, "metrics"));
		if (!metric)
			continue;
		summary->metric = json_key(metric);
		summary->goal = compare_goal_of(summary->metric);
		return;
	}
}

/* NaN: it has none. */
static double summary_value_of(const struct study_summary *summary, const struct run *run)
{
	const struct json *metrics = json_get(run->doc, "metrics"), *metric;
	const char *member = summary->goal == COMPARE_MIN   ? "min"
			     : summary->goal == COMPARE_MAX ? "max"
							    : "value";

	if (!summary->metric)
		return NAN;
	metric = json_get(metrics, summary->metric);
	return json_get_num(metric, member, json_get_num(metric, "value", NAN));
}

static bool summary_is_better(const struct study_summary *summary, double value, double than)
{
	return summary->goal == COMPARE_MAX ? value > than : value < than;
}

static void summary_add(struct summary_work *work, size_t at, const struct run *run)
{
	struct study_summary *summary = work->summary;
	struct study_row *row = at < summary->rows.n ? &summary->rows.v[at] : &summary->all;
	double value = summary_value_of(summary, run);

	if (row->n++ == 0)
		row->first = run;
	row->counts.states[run_state(run)]++;
	if (!isfinite(value))
		return;
	if (row->n_values == 0 || summary_is_better(summary, value, row->best)) {
		row->best = value;
		row->member = run;
	}
	row->n_values++;
	*vec_push(&work->values[at]) = value;
}

/*
 * The time that is left
 */

/* Of the members that have succeeded; -1: there is none. */
static int64_t summary_mean_ms(const struct run_list *runs)
{
	int64_t sum = 0, n = 0;

	vec_foreach (struct run *, run, runs) {
		int64_t start_ms = run_started_ms(*run), end_ms = run_ended_ms(*run);
		if (run_state(*run) != RUN_SUCCEEDED || start_ms <= 0 || end_ms < start_ms)
			continue;
		sum += end_ms - start_ms;
		n++;
	}
	return n ? sum / n : -1;
}

static void summary_set_left(struct summary_work *work)
{
	int64_t mean_ms = summary_mean_ms(work->runs), sum_ms = 0, longest_ms = 0;
	size_t n = 0, running = 0, at_once = work->parallel;

	vec_foreach (struct run *, run, work->runs) {
		int64_t start_ms = run_started_ms(*run), left_ms = mean_ms;
		if (run_state_is_final(run_state(*run)))
			continue;
		n++;
		if (run_state(*run) == RUN_RUNNING && start_ms > 0) {
			running++;
			left_ms -= work->now_ms - start_ms;
		}
		left_ms = left_ms > 0 ? left_ms : 0;
		sum_ms += left_ms;
		longest_ms = left_ms > longest_ms ? left_ms : longest_ms;
	}
	if (at_once == 0)
		at_once = running ? running : n;
	work->summary->left_ms = n == 0        ? 0
				 : mean_ms < 0 ? -1
				 : sum_ms / (int64_t)at_once > longest_ms
					 ? sum_ms / (int64_t)at_once
					 : longest_ms;
}

void study_summarise(const struct run_list *runs, const struct strv *keys, size_t parallel,
	int64_t now_ms, struct study_summary *ret)
{
	struct summary_work work = {
		.runs = runs, .summary = ret, .parallel = parallel, .now_ms = now_ms};
	AUTO_FREE size_t *rows = mem_alloc(runs->n + 1, sizeof(*rows));

	*ret = (struct study_summary){0};
	summary_make_rows(runs, keys, ret, rows);
	summary_choose_metric(runs, ret);
	work.values = mem_alloc(ret->rows.n + 1, sizeof(*work.values));
	for (size_t i = 0; i < runs->n; i++) {
		summary_add(&work, rows[i], runs->v[i]);
		summary_add(&work, ret->rows.n, runs->v[i]);
	}
	for (size_t i = 0; i <= ret->rows.n; i++) {
		struct study_row *row = i < ret->rows.n ? &ret->rows.v[i] : &ret->all;
		if (row->n_values)
			row->median = compare_median(work.values[i].v, row->n_values);
		vec_done(&work.values[i]);
	}
	free(work.values);
	summary_set_left(&work);
}

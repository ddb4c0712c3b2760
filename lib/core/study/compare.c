/* SPDX-License-Identifier: Apache-2.0 */
#include "core/study/compare.h"

#include <ctype.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/group.h"

enum { VALUE_MAX = 1 << 20, SHOWN_MAX = 8 };

/*
 * Goals
 */

static bool compare_is_one(const char *word, size_t len, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(words[i]) == len && strncasecmp(word, words[i], len) == 0)
			return true;
	return false;
}

enum compare_goal compare_goal_of(const char *metric)
{
	static const char *const low[] = {"loss", "losses", "error", "errors", "err", "mae", "mse",
		"rmse", "mape", "nll", "ppl", "perplexity", "wer", "cer", "kl", "fid", "bpb",
		"bpc"};
	static const char *const high[] = {"acc", "accuracy", "f1", "auc", "auroc", "map", "miou",
		"iou", "dice", "bleu", "rouge", "psnr", "ssim", "reward", "return", "score",
		"precision", "recall", "r2", "top1", "top5"};
	enum compare_goal goal = COMPARE_ANY;

	for (const char *at = metric; *at;) {
		size_t len = 0;

		while (isalnum((unsigned char)at[len]))
			len++;
		if (compare_is_one(at, len, low, ARRAY_LEN(low)) ||
			(len > 4 && strncasecmp(at + len - 4, "loss", 4) == 0))
			return COMPARE_MIN;
		if (compare_is_one(at, len, high, ARRAY_LEN(high)))
			goal = COMPARE_MAX;
		at += len + (at[len] != '\0');
	}
	return goal;
}

static int compare_numbers(const void *a_ptr, const void *b_ptr)
{
	double a = *(const double *)a_ptr, b = *(const double *)b_ptr;

	return (a > b) - (a < b);
}

double compare_median(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), compare_numbers);
	/* Halves first: the sum of two large ones would overflow. */
	return n % 2 ? values[n / 2] : values[n / 2 - 1] / 2 + values[n / 2] / 2;
}

static const char *const compare_prefixes[] = {
	[COMPARE_METRICS] = "metrics.", [COMPARE_PARAMS] = "params.", [COMPARE_ENV] = "env."};

enum compare_member compare_member_of(const struct column *column)
{
	enum compare_member i = 0;

	while (i < COMPARE_OTHER &&
		(column->kind || !str_starts(column->name, compare_prefixes[i])))
		i++;
	return i;
}

static const char *const compare_goal_members[] = {
	[COMPARE_ANY] = NULL, [COMPARE_MIN] = ".min", [COMPARE_MAX] = ".max"};

enum compare_goal compare_column_goal(const struct column *column)
{
	if (compare_member_of(column) != COMPARE_METRICS)
		return COMPARE_ANY;
	const char *name = column->name + strlen(compare_prefixes[COMPARE_METRICS]);
	AUTO_FREE char *metric = mem_strdup(name);
	char *dot = strrchr(metric, '.');
	if (!dot)
		return COMPARE_ANY;
	*dot = '\0';
	enum compare_goal goal = compare_goal_of(metric);
	return goal && str_eq(name + (dot - metric), compare_goal_members[goal]) ? goal
										 : COMPARE_ANY;
}

char *compare_title(const struct column *column)
{
	enum compare_member member = compare_member_of(column);
	size_t skip = member < COMPARE_OTHER ? strlen(compare_prefixes[member]) : 0;
	char *title = mem_strdup(column->name + skip);

	if (compare_column_goal(column) != COMPARE_ANY)
		*strrchr(title, '.') = ' ';
	return title;
}

double *compare_find_best(const struct columns *columns, const struct column_values *values)
{
	size_t n = columns->n;
	double *best = mem_alloc(n + 1, sizeof(*best));

	for (size_t i = 0; i < n; i++) {
		enum compare_goal goal = compare_column_goal(&columns->v[i]);

		best[i] = (double)NAN;
		for (size_t at = i; goal != COMPARE_ANY && at < values->n; at += n) {
			const struct column_value *value = &values->v[at];

			if (value->kind == COLUMN_NUMBER)
				best[i] = goal == COMPARE_MIN ? fmin(best[i], value->number)
							      : fmax(best[i], value->number);
		}
	}
	return best;
}

bool compare_is_best(double best, const struct column_value *value)
{
	return value->kind == COLUMN_NUMBER && value->number == best;
}

/*
 * Values that differ
 */

struct compared {
	char *name;
	char *value; /* the first one, as JSON */
	size_t n;    /* runs that have one */
	bool differs;
};

struct comparison {
	struct VEC_OF(struct compared *) all; /* in the order of their first appearance */
	struct map by_name;
};

static void comparison_done(struct comparison *comparison)
{
	vec_foreach (struct compared *, each, &comparison->all) {
		free((*each)->name);
		free((*each)->value);
		free(*each);
	}
	vec_done(&comparison->all);
	map_done(&comparison->by_name);
}

static void comparison_add(struct comparison *comparison, const char *name, const char *value)
{
	struct compared *known = map_get(&comparison->by_name, name);

	if (!known) {
		known = mem_alloc(1, sizeof(*known));
		*known = (struct compared){.name = mem_strdup(name), .value = mem_strdup(value)};
		map_put(&comparison->by_name, name, known);
		*vec_push(&comparison->all) = known;
	}
	known->n++;
	known->differs |= !str_eq(known->value, value);
}

static void comparison_add_members(struct comparison *comparison, const struct json *object)
{
	for (const struct json *item = json_first(object); item; item = json_next(item)) {
		AUTO_BUF struct buf text = buf_with(VALUE_MAX);

		json_print(item, &text);
		if (json_key(item))
			comparison_add(comparison, json_key(item), text.data);
	}
}

static void compare_add_path(struct columns *ret, const char *member, const char *name)
{
	*vec_push(ret) = (struct column){mem_printf("%s.%s", member, name), NULL};
}

static void compare_add_differing(
	const struct run_list *runs, const char *member, struct columns *ret)
{
	AUTO(comparison_done) struct comparison comparison = {0};

	vec_foreach (struct run *, run, runs)
		comparison_add_members(&comparison, json_get((*run)->doc, member));
	vec_foreach (struct compared *, each, &comparison.all)
		if ((*each)->differs || (*each)->n < runs->n)
			compare_add_path(ret, member, (*each)->name);
}

/* The words that are no parameters; of a shell line as far as blanks tell words apart. */
static char *compare_program_of(const struct run *run)
{
	AUTO_STRV struct strv words = {0}, split = {0}, others = {0};

	if (words_get(run->doc, "command", &words, NULL) < 0 || words.n == 0)
		return mem_strdup("");
	if (json_get_bool(run->doc, "shell", false)) {
		AUTO_FREE char *line = mem_strdup(words.v[0]);
		for (char *rest = line, *word; (word = strsep(&rest, " \t\n"));)
			if (*word)
				strv_add(&split, word);
	}
	json_free(run_params(split.n ? &split : &words, &others));
	return strv_join(&others, " ");
}

bool compare_differ(
	const struct run_list *runs, const char *member, const char *name, const struct run **ret)
{
	const struct run *first = NULL;
	const char *first_value = NULL;

	vec_foreach (struct run *, run, runs) {
		const char *value = json_get_str(json_get((*run)->doc, member), name);

		if (!value || (first && str_eq(value, first_value)))
			continue;
		if (first && ret) {
			ret[0] = first;
			ret[1] = *run;
		}
		if (first)
			return true;
		first = *run;
		first_value = value;
	}
	return false;
}

static void compare_add_program(const struct run_list *runs, struct columns *ret)
{
	AUTO_FREE char *first = compare_program_of(runs->v[0]);

	for (size_t i = 1; i < runs->n; i++) {
		AUTO_FREE char *other = compare_program_of(runs->v[i]);
		if (!str_eq(first, other)) {
			columns_parse("command", ret, NULL);
			return;
		}
	}
}

/*
 * Metrics
 */

static bool compare_is_wanted(const char *metric, const struct strv *patterns, bool *matched)
{
	bool is_wanted = patterns->n == 0;

	for (size_t i = 0; i < patterns->n; i++)
		if (fnmatch(patterns->v[i], metric, 0) == 0)
			matched[i] = is_wanted = true;
	return is_wanted;
}

static bool compare_has(const struct run_list *runs, const char *metric, const char *member)
{
	vec_foreach (struct run *, run, runs)
		if (json_get(json_get(json_get((*run)->doc, "metrics"), metric), member))
			return true;
	return false;
}

static void compare_add_metric(const struct run_list *runs, const char *metric, struct columns *ret)
{
	enum compare_goal goal = compare_goal_of(metric);
	const char *member = compare_goal_members[goal];

	compare_add_path(ret, "metrics", metric);
	if (member && compare_has(runs, metric, member + 1)) {
		AUTO_FREE char *best = mem_printf("%s%s", metric, member);
		compare_add_path(ret, "metrics", best);
	}
}

static int compare_fail_metric(
	const struct comparison *comparison, const char *pattern, struct err *err)
{
	AUTO_FREE char *shown = str_shown(pattern);

	err_set(err, E_USAGE, "--metric: none of the runs has a metric '%s'", shown);
	for (size_t i = 0; i < comparison->all.n && i < SHOWN_MAX; i++) {
		AUTO_FREE char *name = str_shown(comparison->all.v[i]->name);
		err_evidence(err, "%s", name);
	}
	return -ERR_USAGE;
}

static int compare_add_metrics(const struct run_list *runs, const struct compare_rules *rules,
	struct columns *ret, size_t *ret_excluded, struct err *err)
{
	AUTO(comparison_done) struct comparison comparison = {0};
	AUTO_FREE bool *matched = mem_alloc(rules->metrics->n + 1, sizeof(*matched));
	const struct json *first = metric_main(json_get(runs->v[0]->doc, "metrics"));
	size_t n = 0;

	*ret_excluded = 0;
	if (first)
		comparison_add(&comparison, json_key(first), "");
	vec_foreach (struct run *, run, runs)
		comparison_add_members(&comparison, json_get((*run)->doc, "metrics"));
	vec_foreach (struct compared *, each, &comparison.all) {
		if (!compare_is_wanted((*each)->name, rules->metrics, matched))
			continue;
		if (rules->metrics->n == 0 && rules->metrics_max && n++ >= rules->metrics_max)
			++*ret_excluded;
		else
			compare_add_metric(runs, (*each)->name, ret);
	}
	for (size_t i = 0; i < rules->metrics->n; i++)
		if (!matched[i])
			return compare_fail_metric(&comparison, rules->metrics->v[i], err);
	return 0;
}

static bool compare_has_energy(const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs)
		if (json_get_num(json_get((*run)->doc, "usage"), "energy_j", -1) >= 0)
			return true;
	return false;
}

int compare_columns(const struct run_list *runs, const struct compare_rules *rules,
	struct columns *ret, size_t *ret_excluded, struct err *err)
{
	struct group_counts counts;

	group_count(runs, &counts);
	columns_parse(counts.states[RUN_SUCCEEDED] == runs->n ? "id" : "id,state", ret, NULL);
	compare_add_differing(runs, "params", ret);
	compare_add_differing(runs, "env", ret);
	compare_add_differing(runs, "tags", ret);
	compare_add_program(runs, ret);
	int r = compare_add_metrics(runs, rules, ret, ret_excluded, err);
	if (r < 0)
		return r;
	columns_parse(compare_has_energy(runs) ? "duration,energy" : "duration", ret, NULL);
	if (compare_differ(runs, "target", "name", NULL))
		columns_parse("target", ret, NULL);
	if (compare_differ(runs, "image", "base", NULL))
		columns_parse("image.base", ret, NULL);
	if (compare_differ(runs, "snapshot", "id", NULL))
		columns_parse("code", ret, NULL);
	return 0;
}

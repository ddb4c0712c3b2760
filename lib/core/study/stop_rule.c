/* SPDX-License-Identifier: Apache-2.0 */
#include "core/study/stop_rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/compare.h"

/*
 * The rule as text
 */

static int stop_refuse(const char *part, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(part);

	err_set(err, E_USAGE, "--stop: '%s' %s", shown, why);
	return err_hint(err, "--stop metric=val_loss,goal=min,halving=3,from=100");
}

static int stop_read_number(
	const char *part, const char *text, int64_t min, int64_t max, int64_t *ret, struct err *err)
{
	return str_to_int(text, min, max, "", ret, NULL) < 0
		       ? stop_refuse(part, "is no whole number that is possible there", err)
		       : 0;
}

/* The parts of a rule that have been read. */
struct stop_said {
	bool goal, kind, from;
};

static int stop_read_part(
	const char *part, struct stop_rule *rule, struct stop_said *said, struct err *err)
{
	const char *value = strchr(part, '=');

	if (str_starts(part, "metric=") && part[strlen("metric=")]) {
		free(rule->metric);
		rule->metric = mem_strdup(part + strlen("metric="));
		return 0;
	}
	if (str_eq(part, "goal=min") || str_eq(part, "goal=max")) {
		rule->highest = str_eq(value, "=max");
		said->goal = true;
		return 0;
	}
	if (str_eq(part, "at=step"))
		return 0;
	said->from = said->from || str_starts(part, "from=");
	if (str_starts(part, "from="))
		return stop_read_number(
			part, value + 1, 1, INT64_MAX / STOP_HALVING_MAX, &rule->from, err);
	if (said->kind && (str_eq(part, "median") || str_starts(part, "halving=")))
		return stop_refuse(part, "is a second rule", err);
	said->kind = true;
	if (str_starts(part, "halving="))
		return stop_read_number(part, value + 1, 2, STOP_HALVING_MAX, &rule->keep, err);
	rule->kind = STOP_MEDIAN;
	if (str_eq(part, "median"))
		return 0;
	return stop_refuse(
		part, "is not metric=, goal=min or max, halving=N, median, or from=STEP", err);
}

int stop_rule_parse(const char *text, struct stop_rule *ret, struct err *err)
{
	AUTO_STOP_RULE struct stop_rule rule = {.from = 1};
	struct stop_said said = {0};
	int r = 0;

	for (const char *s = text; r == 0; s++) {
		AUTO_FREE char *part = mem_strndup(s, strcspn(s, ","));
		r = stop_read_part(part, &rule, &said, err);
		s += strlen(part);
		if (!*s)
			break;
	}
	if (r < 0)
		return r;
	if (!rule.metric)
		return stop_refuse(text, "names no metric", err);
	if (!said.kind)
		return stop_refuse(text, "has no rule: halving=N or median", err);
	if (rule.kind == STOP_MEDIAN && !said.from)
		return stop_refuse(text, "needs the step of the first judgement: from=100", err);
	if (!said.goal) {
		enum compare_goal goal = compare_goal_of(rule.metric);
		if (goal == COMPARE_ANY)
			return stop_refuse(
				text, "does not tell what is better: goal=min or max", err);
		rule.highest = goal == COMPARE_MAX;
	}
	*ret = rule;
	rule = (struct stop_rule){0};
	return 0;
}

void stop_rule_done(struct stop_rule *rule)
{
	if (rule)
		free(rule->metric);
}

int64_t stop_rule_step(const struct stop_rule *rule, size_t rung)
{
	int64_t step = rule->from;

	if (rule->kind == STOP_MEDIAN)
		return rung < STOP_RUNGS_MAX ? rule->from * (int64_t)(rung + 1) : INT64_MAX;
	for (size_t i = 0; i < rung; i++) {
		if (step > INT64_MAX / rule->keep)
			return INT64_MAX;
		step *= rule->keep;
	}
	return step;
}

char *stop_rule_describe(const struct stop_rule *rule)
{
	AUTO_FREE char *metric = str_escaped(rule->metric);
	AUTO_FREE char *who = rule->kind == STOP_MEDIAN
				      ? mem_strdup("those not worse than the median")
				      : mem_printf("the best 1 of %lld", (long long)rule->keep);

	return mem_printf("%s by %s %s at steps %lld, %lld, %lld, …", who,
		rule->highest ? "highest" : "lowest", metric, (long long)stop_rule_step(rule, 0),
		(long long)stop_rule_step(rule, 1), (long long)stop_rule_step(rule, 2));
}

/*
 * Judgement
 */

/* A member on its way up the rungs. */
struct stop_climber {
	size_t rung; /* the next one */
	bool stopped;
};

struct stop_work {
	const struct stop_rule *rule;
	const struct stop_curve *curves;
	size_t n;
	struct stop_climber *climbers;
	double **sums; /* of the values of each curve up to each point; NULL: not needed yet */
	struct stop_judgements *judgements;
};

static const struct series_point *stop_point_at(const struct stop_curve *curve, int64_t step)
{
	size_t low = 0, high = curve->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (curve->points[middle].step < step)
			low = middle + 1;
		else
			high = middle;
	}
	return low < curve->n ? &curve->points[low] : NULL;
}

static bool stop_is_better(const struct stop_rule *rule, double a, double b)
{
	if (isnan(a) || isnan(b))
		return !isnan(a) && isnan(b);
	return rule->highest ? a > b : a < b;
}

static bool stop_halves(const struct stop_work *work, size_t rung, double value)
{
	size_t n = 1, better = 0;
	size_t keep = (size_t)work->rule->keep;

	vec_foreach (struct stop_judgement, other, work->judgements) {
		if (other->rung != rung)
			continue;
		n++;
		better += stop_is_better(work->rule, other->value, value);
	}
	return isnan(value) || better >= (n + keep - 1) / keep;
}

/* The mean of a curve's values up to a point; NaN if one of them is none. */
static double stop_mean(
	const struct stop_work *work, size_t member, const struct series_point *last)
{
	const struct stop_curve *curve = &work->curves[member];
	size_t at = (size_t)(last - curve->points);
	double sum = 0;

	if (!work->sums[member]) {
		work->sums[member] = mem_alloc(curve->n, sizeof(double));
		for (size_t i = 0; i < curve->n; i++)
			work->sums[member][i] = sum += curve->points[i].value;
	}
	return work->sums[member][at] / (double)(at + 1);
}

static double stop_best(const struct stop_rule *rule, const struct stop_curve *curve,
	const struct series_point *last)
{
	double best = curve->points->value;

	for (const struct series_point *point = curve->points; point <= last; point++)
		if (stop_is_better(rule, point->value, best))
			best = point->value;
	return best;
}

/* Of the running averages of those that have reached the rung before; NaN: there are too few. */
static double stop_median(const struct stop_work *work, size_t rung)
{
	AUTO_FREE double *means = mem_alloc(work->judgements->n + 1, sizeof(*means));
	int64_t step = stop_rule_step(work->rule, rung);
	size_t n = 0;

	vec_foreach (struct stop_judgement, other, work->judgements) {
		const struct stop_curve *curve = &work->curves[other->member];
		const struct series_point *last = stop_point_at(curve, step);
		double mean =
			other->rung == rung && last ? stop_mean(work, other->member, last) : NAN;
		if (!isnan(mean))
			means[n++] = mean;
	}
	return n < STOP_MEDIAN_LEAST ? NAN : compare_median(means, n);
}

static bool stop_is_below_median(
	const struct stop_work *work, size_t member, size_t rung, const struct series_point *point)
{
	const struct stop_curve *curve = &work->curves[member];
	double median = stop_median(work, rung);

	return !isnan(median) &&
	       stop_is_better(work->rule, median, stop_best(work->rule, curve, point));
}

/* The member that passes its next rung first, with the point; NULL: none does. */
static const struct series_point *stop_next(const struct stop_work *work, size_t *ret_member)
{
	const struct series_point *first = NULL;

	for (size_t i = 0; i < work->n; i++) {
		const struct stop_climber *climber = &work->climbers[i];
		int64_t step = stop_rule_step(work->rule, climber->rung);
		const struct series_point *point = climber->stopped || step == INT64_MAX
							   ? NULL
							   : stop_point_at(&work->curves[i], step);
		if (point && (!first || point->wall_time_s < first->wall_time_s)) {
			first = point;
			*ret_member = i;
		}
	}
	return first;
}

void stop_rule_judge(const struct stop_rule *rule, const struct stop_curve *curves, size_t n,
	struct stop_judgements *judgements)
{
	AUTO_FREE struct stop_climber *climbers = mem_alloc(n + 1, sizeof(*climbers));
	AUTO_FREE double **sums = mem_alloc(n + 1, sizeof(*sums));
	struct stop_work work = {rule, curves, n, climbers, sums, judgements};
	const struct series_point *point;
	size_t member = 0;

	vec_foreach (struct stop_judgement, before, judgements) {
		struct stop_climber *climber = &climbers[before->member];
		if (before->rung >= climber->rung)
			climber->rung = before->rung + 1;
		climber->stopped = climber->stopped || before->stops;
	}
	while ((point = stop_next(&work, &member)) != NULL) {
		struct stop_climber *climber = &climbers[member];
		struct stop_judgement judgement = {
			member, climber->rung, point->wall_time_s, point->value, false};
		judgement.stops =
			rule->kind == STOP_HALVING
				? stop_halves(&work, judgement.rung, point->value)
				: stop_is_below_median(&work, member, judgement.rung, point);
		climber->rung++;
		climber->stopped = judgement.stops;
		*vec_push(judgements) = judgement;
	}
	for (size_t i = 0; i < n; i++)
		free(sums[i]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules that stop members of a study which others have left behind, by a metric of their event
 * files. An engine: curves and earlier judgements in, new judgements out.
 *
 * A member is judged once at each rung, when its curve has a point at that step or behind it: the
 * value of the first such point counts, and the time of that point is when it is judged. So the
 * judgements follow from the event files, whoever looks, and however late. A judgement that was
 * recorded stays, even if a curve that arrives later would have changed it.
 *
 * halving=N: rungs are at from, from·N, from·N², … A member goes on if it is among the best 1/N
 * (rounded up) of those that were judged at that rung until then, itself among them: asynchronous
 * successive halving (Li and others, A System for Massively Parallel Hyperparameter Tuning, 2020),
 * in the form that stops instead of promoting.
 *
 * median: rungs are at from, 2·from, 3·from, … A member goes on unless its best value until then is
 * worse than the median of the running averages of the others that have reached the rung, of which
 * there must be STOP_MEDIAN_LEAST: the median stopping rule (Golovin and others, Google Vizier,
 * 2017).
 *
 * A value that is not a number is the worst of all.
 */
#ifndef DLRUN_CORE_STUDY_STOP_RULE_H
#define DLRUN_CORE_STUDY_STOP_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "events/series.h"

enum { STOP_MEDIAN_LEAST = 3, STOP_RUNGS_MAX = 100, STOP_HALVING_MAX = 100 };

enum stop_kind { STOP_HALVING, STOP_MEDIAN };
struct stop_rule {
	char *metric; /* a tag of event files */
	bool highest; /* is best */
	enum stop_kind kind;
	int64_t keep; /* of halving: one of so many goes on */
	int64_t from; /* the step of the first rung */
};
/* "metric=val_loss,goal=min,halving=3,from=100", "metric=accuracy,median,from=5": goal min or max
 * may be left out where the metric's name tells (compare_goal_of), from with halving: it is 1 then.
 * "at=step" says what is so anyway. E_USAGE. */
int stop_rule_parse(const char *text, struct stop_rule *ret, struct err *err);
void stop_rule_done(struct stop_rule *rule);
#define AUTO_STOP_RULE AUTO(stop_rule_done)
/* The step of a rung, from 0; INT64_MAX beyond what a number can say. */
int64_t stop_rule_step(const struct stop_rule *rule, size_t rung);
/* "the best third at steps 100, 300, 900, …"; the caller frees. */
char *stop_rule_describe(const struct stop_rule *rule);

struct stop_judgement {
	size_t member;
	size_t rung;
	double time_s, value;
	bool stops;
};
struct stop_judgements VEC_OF(struct stop_judgement);

struct stop_curve {
	const struct series_point *points; /* steps rise */
	size_t n;
};
/* Add the judgements that are due to those of before, of any order. A member that was stopped is
 * judged no more. */
void stop_rule_judge(const struct stop_rule *rule, const struct stop_curve *curves, size_t n,
	struct stop_judgements *judgements);

#endif

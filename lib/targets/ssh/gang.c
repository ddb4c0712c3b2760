/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/gang.h"

#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/observed.h"

enum { EXIT_OURS = 125 };

static bool gang_has_ended(const struct gang_rank *rank)
{
	return !rank->is_absent && run_state_is_final(rank->status.state);
}

static bool is_peer(const struct gang_rank *rank)
{
	return str_eq(rank->status.exit.reason, GANG_PEER) ||
	       str_eq(rank->status.exit.reason, GANG_ROLE);
}

bool gang_is_going(const struct gang_rank *ranks, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ranks[i].is_going)
			return true;
	return false;
}

/*
 * The ranks, one by one
 */

static enum run_state gang_state_of(const struct gang_rank *rank, const struct gang_view *view)
{
	if (!rank->is_absent)
		return rank->status.state;
	return view->was_accepted ? RUN_LOST : RUN_PREPARING;
}

static struct json *gang_ranks_json(
	const struct gang_rank *ranks, size_t n, const struct gang_view *view)
{
	struct json *list = json_array();

	for (size_t i = 0; i < n; i++) {
		struct json *item = json_object();
		json_set_int(item, "rank", (int64_t)i);
		json_set_str(item, "state", run_state_name(gang_state_of(&ranks[i], view)));
		json_set_str(item, "host", ranks[i].host);
		json_set_int(item, "attempt", view->attempt);
		json_set(item, "exit",
			gang_has_ended(&ranks[i]) ? run_exit_to_json(&ranks[i].status.exit)
						  : json_null());
		json_add(list, item);
	}
	return list;
}

/*
 * Shared helpers
 */

static struct json *observed_of(const struct gang_rank *ranks, size_t n)
{
	struct json *all = NULL;

	for (size_t i = 0; i < n; i++) {
		const struct json *one = ranks[i].status.observed;

		if (one && all)
			observed_add_rank(all, one);
		else if (one)
			all = json_clone(one);
	}
	return all;
}

/*
 * The whole
 */

static void gang_set_times(const struct gang_rank *ranks, size_t n, struct target_status *ret)
{
	for (size_t i = 0; i < n; i++) {
		const struct target_status *status = &ranks[i].status;
		if (ranks[i].is_absent)
			continue;
		if (status->started_ms &&
			(!ret->started_ms || status->started_ms < ret->started_ms))
			ret->started_ms = status->started_ms;
		if (run_state_is_final(ret->state) && status->ended_ms > ret->ended_ms)
			ret->ended_ms = status->ended_ms;
	}
}

/* When the last rank that the run ends with has succeeded; INT64_MAX: not all have, or it ends with
 * all. */
static int64_t gang_over_ms(const struct gang_rank *ranks, const struct gang_view *view)
{
	int64_t over_ms = 0;

	for (size_t i = 0; i < view->ends_n; i++) {
		const struct gang_rank *rank = &ranks[view->ends_first + i];
		if (rank->is_absent || rank->status.state != RUN_SUCCEEDED)
			return INT64_MAX;
		if (rank->status.ended_ms > over_ms)
			over_ms = rank->status.ended_ms;
	}
	return view->ends_n ? over_ms : INT64_MAX;
}

/* The first that ended as it should not, by itself, while it was needed; n: none did. */
static size_t find_first(const struct gang_rank *ranks, size_t n, int64_t over_ms)
{
	size_t first = n;

	for (size_t i = 0; i < n; i++) {
		const struct gang_rank *rank = &ranks[i];
		if (!gang_has_ended(rank) || rank->status.state == RUN_SUCCEEDED || is_peer(rank) ||
			rank->status.ended_ms >= over_ms - GANG_LATE_MS)
			continue;
		if (first == n || rank->status.ended_ms < ranks[first].status.ended_ms)
			first = i;
	}
	return first;
}

/* A rank that was told to go and is no longer there. */
static size_t gang_find_missing(
	const struct gang_rank *ranks, size_t n, const struct gang_view *view)
{
	size_t i = 0;

	while (i < n && !(ranks[i].is_absent && (view->was_accepted || !view->is_submitting)))
		i++;
	return i;
}

static size_t count_ended(const struct gang_rank *ranks, size_t n)
{
	size_t n_ended = 0;

	for (size_t i = 0; i < n; i++)
		n_ended += gang_has_ended(&ranks[i]) || ranks[i].is_absent;
	return n_ended;
}

char *gang_rank_text(size_t i, const struct gang_rank *rank)
{
	return rank->name ? mem_strdup(rank->name) : mem_printf("rank %zu", i);
}

static char *gang_text_of(size_t i, const struct gang_rank *rank)
{
	AUTO_FREE char *name = gang_rank_text(i, rank);
	const char *text = rank->status.text;

	return mem_printf("%s on %s: %s", name, rank->host,
		str_empty(text) ? run_state_name(rank->status.state) : text);
}

static char *gang_text_gone(size_t i, const struct gang_rank *rank)
{
	AUTO_FREE char *name = gang_rank_text(i, rank);

	return mem_printf("%s no longer knows of %s", rank->host, name);
}

static void gang_take_end(size_t i, const struct gang_rank *rank, struct target_status *ret)
{
	ret->state = rank->status.state;
	ret->exit = rank->status.exit;
	ret->text = gang_text_of(i, rank);
}

static void gang_set_lost(size_t i, const struct gang_rank *ranks, const struct gang_view *view,
	struct target_status *ret)
{
	AUTO_FREE char *name = gang_rank_text(i, &ranks[i]);
	AUTO_FREE char *text = mem_printf("%s: %s no longer knows of it", name, ranks[i].host);

	attempt_set_end(ret, RUN_LOST, EXIT_OURS, 0, "dlrun", "Lost", text);
	ret->ended_ms = view->now_ms;
}

static void end_others(
	const struct gang_rank *ranks, size_t n, enum gang_step step, enum gang_step *steps)
{
	for (size_t i = 0; i < n; i++)
		if (!ranks[i].is_absent && !gang_has_ended(&ranks[i]) &&
			!ranks[i].status.cancelling)
			steps[i] = step;
}

/* A rank has only just failed, and those that the run ends with may do so any moment. */
static bool gang_may_be_over(
	const struct gang_rank *ranks, size_t first, const struct gang_view *view)
{
	return view->ends_n &&
	       (first < view->ends_first || first >= view->ends_first + view->ends_n) &&
	       view->now_ms - ranks[first].status.ended_ms < GANG_LATE_MS;
}

/* A rank is over that should not be, so the run is over when the others are. */
static bool evaluate_failure(const struct gang_rank *ranks, size_t n, const struct gang_view *view,
	struct target_status *ret, enum gang_step *steps)
{
	int64_t over_ms = gang_over_ms(ranks, view);
	size_t first = find_first(ranks, n, over_ms);
	size_t missing = over_ms == INT64_MAX ? gang_find_missing(ranks, n, view) : n;

	if (first == n && missing == n)
		return false;
	if (missing == n && gang_may_be_over(ranks, first, view) && count_ended(ranks, n) < n) {
		ret->state = RUN_RUNNING;
		return true;
	}
	if (!view->is_submitting)
		end_others(ranks, n, GANG_END, steps);
	if (count_ended(ranks, n) < n) {
		ret->state = RUN_RUNNING;
		ret->cancelling = true;
		ret->text = first < n ? gang_text_of(first, &ranks[first])
				      : gang_text_gone(missing, &ranks[missing]);
	} else if (first < n) {
		gang_take_end(first, &ranks[first], ret);
	} else {
		gang_set_lost(missing, ranks, view, ret);
	}
	return true;
}

/* The ranks that the run ends with have succeeded: so has the run when the others are over. */
static bool evaluate_over(const struct gang_rank *ranks, size_t n, const struct gang_view *view,
	struct target_status *ret, enum gang_step *steps)
{
	if (gang_over_ms(ranks, view) == INT64_MAX)
		return false;
	if (!view->is_submitting)
		end_others(ranks, n, GANG_OVER, steps);
	ret->state = count_ended(ranks, n) < n ? RUN_RUNNING : RUN_SUCCEEDED;
	if (ret->state == RUN_SUCCEEDED)
		ret->exit = ranks[view->ends_first].status.exit;
	return true;
}

static void evaluate_going(const struct gang_rank *ranks, size_t n, const struct gang_view *view,
	struct target_status *ret, enum gang_step *steps)
{
	bool all_done = true;

	if (evaluate_failure(ranks, n, view, ret, steps) ||
		evaluate_over(ranks, n, view, ret, steps))
		return;
	ret->state = RUN_STARTING;
	for (size_t i = 0; i < n; i++) {
		const struct gang_rank *rank = &ranks[i];
		bool is_waiting = rank->is_held && !gang_has_ended(rank);
		all_done &= gang_has_ended(rank);
		ret->cancelling |= !rank->is_absent && rank->status.cancelling;
		if (is_waiting && !view->is_submitting && !rank->status.cancelling)
			steps[i] = GANG_GO;
		if (rank->is_going || gang_has_ended(rank))
			ret->state = RUN_RUNNING;
	}
	if (!all_done)
		return;
	/* All that did not succeed were ended with another one: there is none that says why. */
	for (size_t i = 0; i < n; i++)
		if (ranks[i].status.state != RUN_SUCCEEDED) {
			gang_take_end(i, &ranks[i], ret);
			ret->exit.reason = "Cancelled";
			return;
		}
	ret->state = RUN_SUCCEEDED;
	ret->exit = ranks[0].status.exit;
}

/* None has begun, and nobody is there who would tell them to: none ever will. */
static void evaluate_left(const struct gang_rank *ranks, size_t n, const struct gang_view *view,
	struct target_status *ret, enum gang_step *steps)
{
	const char *text = "dlrun was stopped before the run had begun";
	AUTO_FREE char *why = NULL;

	for (size_t i = 0; i < n; i++) {
		/* An absent rank may be on its way. */
		if (!gang_has_ended(&ranks[i])) {
			steps[i] = view->is_ours ? GANG_DROP : GANG_NOTHING;
		} else if (ranks[i].status.state == RUN_CANCELLED) {
			gang_take_end(i, &ranks[i], ret);
			ret->ended_ms = view->now_ms;
			ret->exit.reason = "Cancelled";
			return;
		} else if (!why && !str_eq(ranks[i].status.exit.reason, "Interrupted")) {
			why = gang_text_of(i, &ranks[i]);
		}
	}
	attempt_set_end(ret, RUN_FAILED, EXIT_OURS, 0, "dlrun", "Interrupted", why ? why : text);
	ret->ended_ms = view->now_ms;
}

/* A submit is preparing the run, here or elsewhere. */
static void evaluate_preparing(const struct gang_rank *ranks, size_t n, struct target_status *ret)
{
	ret->state = RUN_PREPARING;
	for (size_t i = 0; i < n; i++) {
		if (ranks[i].is_absent)
			continue;
		ret->state = RUN_STARTING;
		ret->cancelling |= ranks[i].status.cancelling;
		if (!ret->text && !ranks[i].is_held && !str_empty(ranks[i].status.text))
			ret->text = gang_text_of(i, &ranks[i]);
	}
	if (ret->state == RUN_STARTING && !ret->text)
		ret->text = mem_strdup("its hosts are being prepared");
}

void gang_evaluate(const struct gang_rank *ranks, size_t n, const struct gang_view *view,
	struct target_status *ret, enum gang_step *steps)
{
	*ret = (struct target_status){0};
	for (size_t i = 0; i < n; i++)
		steps[i] = GANG_NOTHING;
	if (gang_is_going(ranks, n) || view->was_accepted)
		evaluate_going(ranks, n, view, ret, steps);
	else if (view->is_submitting || (!view->is_ours && count_ended(ranks, n) < n))
		evaluate_preparing(ranks, n, ret);
	else
		evaluate_left(ranks, n, view, ret, steps);
	gang_set_times(ranks, n, ret);
	ret->ranks = gang_ranks_json(ranks, n, view);
	ret->observed = observed_of(ranks, n);
}

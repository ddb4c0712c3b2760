/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/follow.h"

#include <stdlib.h>

#include "app/lifecycle/restart.h"
#include "app/lifecycle/results_query.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/transfer/fetch.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/record/results.h"
#include "core/store/store.h"
#include "core/target/target.h"
#include "targets/targets.h"

/*
 * Keeping the logs of runs that have ended elsewhere.
 */

struct keep {
	struct target_call call;
	struct keeper *keeper;
	struct target *target;
	bool shares_target; /* it is that of another one */
	const struct run *run;
};

struct keeper {
	struct session *session;
	struct keep *keeps;
	size_t n;
	struct loop_wait wait;
};

static void follow_on_done(struct target_call *call, int status, struct err *err)
{
	struct keep *keep = (struct keep *)call;

	if (status < 0)
		log_note("the log of %s is not kept: %s", run_id(keep->run), err->message);
	err_clear(err);
	loop_wait_done(&keep->keeper->wait);
}

static bool is_kept_elsewhere(const struct run *run)
{
	return target_ops_recorded(run)->keep && run_state_is_final(run_state(run)) &&
	       run_handle(run);
}

/* The target of the one before, where it is the same: it reads about members of a study together.
 */
static int keep_open_target(const struct keeper *keeper, struct keep *keep, struct err *err)
{
	const struct keep *before = keep > keeper->keeps ? keep - 1 : NULL;

	if (!before || !before->target || !runs_have_one_target(before->run, keep->run))
		return target_open_run(keeper->session, keep->run, &keep->target, err);
	keep->target = before->target;
	keep->shares_target = true;
	return 0;
}

static void keep_start(struct keeper *keeper, const struct run *run, int64_t deadline_ms)
{
	struct keep *keep = &keeper->keeps[keeper->n++];
	AUTO_ERR struct err err = {0};

	*keep = (struct keep){.keeper = keeper, .run = run};
	keep->call = (struct target_call){.deadline_ms = deadline_ms, .done = follow_on_done};
	int r = keep_open_target(keeper, keep, &err);
	if (r == 0 && !keep->target->ops->keep)
		return;
	if (r == 0)
		r = keep->target->ops->keep(
			keep->target, run_handle(run), false, &keep->call, &err);
	if (r == 0)
		keeper->wait.n_open++;
	else
		log_note("the log of %s is not kept: %s", run_id(run), err.message);
}

static void runs_keep(struct session *session, const struct run_list *runs, int64_t timeout_ms)
{
	int64_t deadline_ms = clock_ms() + timeout_ms;
	struct keeper keeper = {.session = session,
		.wait = {.loop = session_loop(session), .deadline_ms = deadline_ms}};

	keeper.keeps = mem_alloc(runs->n + 1, sizeof(*keeper.keeps));
	vec_foreach (struct run *, run, runs)
		if (is_kept_elsewhere(*run))
			keep_start(&keeper, *run, deadline_ms);
	loop_wait_run(&keeper.wait, NULL);
	for (size_t i = 0; i < keeper.n; i++)
		target_call_cancel(&keeper.keeps[i].call);
	for (size_t i = 0; i < keeper.n; i++)
		if (!keeper.keeps[i].shares_target)
			target_free(keeper.keeps[i].target);
	free(keeper.keeps);
}

enum {
	QUERY_MS = 2000,
	POLL_MS = 50,      /* between two polls of what cannot be watched */
	POLL_MAX_MS = 500, /* for runs that go on for long */
	KEEP_MS = 10000,
	RESULTS_MS = 5000, /* for a list of what was made */
	RESULTS_MAX = 32,  /* members of studies that are asked for one */
};

/*
 * Waiting: runs are polled, less often as time passes. The log of a run that is
 * followed ends with it, so this is only for `wait` and `cancel`.
 */

/* Restore the last known state: an unknown state may be known now. */
static void restore_last_state(struct run *run)
{
	const char *last = json_get_str(run->doc, "last_state");

	if (run_state(run) != RUN_UNKNOWN || !last)
		return;
	json_set_str(run->doc, "state", last);
	json_remove(run->doc, "last_state");
}

static int follow_fail_late(const struct run_list *runs, int64_t timeout_ms, struct err *err)
{
	char time[32];

	duration_text(timeout_ms, time);
	vec_foreach (struct run *, run, runs)
		if (!run_state_is_final(run_state(*run)))
			return err_set(err, E_RUN_TIMEOUT, "%s has not ended within %s",
				run_id(*run), time);
	return 0;
}

/* A run removed meanwhile leaves nothing that tells it from a run that never began: check the
 * store. */
static int check_removed(struct session *session, const struct run_list *runs, struct err *err)
{
	struct store *store;
	int r = session_store(session, &store, err);

	for (size_t i = 0; r == 0 && i < runs->n; i++) {
		const struct run *run = runs->v[i];
		AUTO_RUN struct run *now = NULL;
		AUTO_ERR struct err error = {0};
		if (run_never_began(run) && store_get(store, run_id(run), &now, &error) < 0 &&
			error.id == E_RUN_NOT_FOUND)
			r = err_set(err, E_RUN_NOT_FOUND, "%s was removed meanwhile", run_id(run));
	}
	return r;
}

/* Wait for the end of all runs, or until the first has more than `attempts` attempts (0:
 * ignored). */
struct waiting {
	struct session *session;
	struct run_list *runs;
	int64_t timeout_ms; /* -1: for ever */
	const volatile int *interrupted;
	int attempts;
	bool until_sent;                             /* only until the first is not held */
	bool retries;                                /* start gangs anew whose failure was seen */
	bool reports_state;                          /* what state the first is in */
	void (*notice)(void *ctx, const char *text); /* says so; or NULL */
	void *ctx;
};

static bool follow_is_over(const struct waiting *waiting)
{
	if (waiting->attempts && run_attempts(waiting->runs->v[0]) > waiting->attempts)
		return true;
	if (waiting->until_sent && !run_is_held(waiting->runs->v[0]))
		return true;
	vec_foreach (struct run *, run, waiting->runs)
		if (!run_state_is_final(run_state(*run)))
			return false;
	return true;
}

/* Do not retry a run that failed before the first poll: as far as is known, its user gave it up. */
static int start_anew(struct waiting *waiting, struct run *run, bool *seen, struct err *err)
{
	AUTO_ERR struct err error = {0};
	char *text;

	if (!waiting->retries || !*seen || !run_wants_retry(run))
		return 0;
	int r = run_retry(waiting->session, run, &text, &error);
	if (r < 0) {
		*seen = false;
		text = mem_printf("%s is not started again: %s", run_id(run), error.message);
	}
	if (text && waiting->notice)
		waiting->notice(waiting->ctx, text);
	free(text);
	return r == -ERR_BUG ? err_move(err, &error) : 0;
}

static int follow_poll(struct waiting *waiting, bool *seen, struct err *err)
{
	struct run_list *runs = waiting->runs;
	enum run_state before = run_state(runs->v[0]);

	for (size_t i = 0; i < runs->n; i++) {
		restore_last_state(runs->v[i]);
		seen[i] = seen[i] || !run_state_is_final(run_state(runs->v[i]));
	}
	int r = runs_refresh(waiting->session, runs, QUERY_MS, err);
	if (r == 0) {
		const struct run *run = runs->v[0];
		enum run_state state = run_state(run);
		const char *why = json_get_str(run->doc, "text");
		AUTO_FREE char *text = mem_printf(
			"%s%s%s", run_state_name(state), why ? ": " : "", why ? why : "");

		if (waiting->reports_state && waiting->notice && state != before &&
			!run_state_is_final(state))
			waiting->notice(waiting->ctx, text);
	}
	for (size_t i = 0; r == 0 && i < runs->n; i++)
		r = start_anew(waiting, runs->v[i], &seen[i], err);
	return r;
}

static int wait_for(struct waiting *waiting, struct err *err)
{
	AUTO_FREE bool *seen = mem_alloc(waiting->runs->n + 1, sizeof(*seen));
	int64_t start_ms = clock_ms(), delay_ms = POLL_MS / 5;

	for (;;) {
		int r = follow_poll(waiting, seen, err);

		if (r < 0)
			return r;
		if (follow_is_over(waiting))
			return 0;
		if (waiting->interrupted && *waiting->interrupted)
			return err_set(err, E_CANCELED, "interrupted");
		if (waiting->timeout_ms >= 0 && clock_ms() - start_ms >= waiting->timeout_ms)
			return follow_fail_late(waiting->runs, waiting->timeout_ms, err);
		r = loop_pause(session_loop(waiting->session), delay_ms, NULL, err);
		if (r < 0)
			return r;
		if (clock_ms() - start_ms > 20 * delay_ms && delay_ms < POLL_MAX_MS)
			delay_ms *= 2;
	}
}

/* Whether a target that starts members of a study together would be asked for what it has made. */
static bool results_cost_requests(const struct run *run)
{
	return target_ops_recorded(run)->submit_study && json_get(run->doc, "study") &&
	       !results_is_valid(json_get(run->doc, RESULTS_MEMBER));
}

static void keep_ended(struct waiting *waiting)
{
	struct session *session = waiting->session;
	const struct run_list *runs = waiting->runs;

	runs_keep(session, runs, KEEP_MS);
	take_runs(session, runs, waiting->interrupted, waiting->notice, waiting->ctx);
	/* Members report what they have made. Where many have not, as they were killed, the
	 * requests for each are left to those who ask for one. */
	struct run_list wanted = {0};
	size_t n = 0;

	vec_foreach (struct run *, run, runs)
		n += results_cost_requests(*run);
	vec_foreach (struct run *, run, runs)
		if (n <= RESULTS_MAX || !results_cost_requests(*run))
			*vec_push(&wanted) = *run;
	runs_results(session, &wanted, false, RESULTS_MS);
	vec_done(&wanted);
}

static int wait_for_ends(struct waiting *waiting, struct err *err)
{
	int r = wait_for(waiting, err);

	if (r == 0)
		keep_ended(waiting);
	return r < 0 ? r : check_removed(waiting->session, waiting->runs, err);
}

int runs_wait(struct session *session, struct run_list *runs, int64_t timeout_ms,
	const volatile int *interrupted, struct err *err)
{
	struct waiting waiting = {.session = session,
		.runs = runs,
		.timeout_ms = timeout_ms,
		.interrupted = interrupted};

	return wait_for_ends(&waiting, err);
}

int runs_watch(struct session *session, struct run_list *runs, const struct watch_options *options,
	struct err *err)
{
	struct waiting waiting = {.session = session,
		.runs = runs,
		.timeout_ms = options->timeout_ms,
		.interrupted = options->interrupted,
		.retries = true,
		.notice = options->notice,
		.ctx = options->ctx};

	return wait_for_ends(&waiting, err);
}

/*
 * The log
 */

static int read_attempt(struct session *session, const struct run *run, int number,
	const struct follow_options *options, const struct target_log_events *events,
	struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	const struct target_log_request request = {
		.tail_lines = options->tail_lines,
		.since_ms = options->since_ms,
		.rank = options->rank,
		.follow = options->follow,
		.events = *events,
	};
	const char *handle = run_attempt_handle(run, number);
	char token[TARGET_TOKEN_SIZE] = "";

	/* A run that never came to a target has said nothing. */
	if (!handle)
		return 0;
	/* Save now what the target still has of an ended run: it will not be there for long. */
	struct run *one[] = {(struct run *)run};
	const struct run_list runs = {.v = one, .n = 1, .cap = 1};

	if (run_state_is_final(run_state(run)) && number == run_attempts(run))
		runs_keep(session, &runs, KEEP_MS);
	int r = target_open_run(session, run, &target, err);
	return r < 0 ? r : target_logs(target, handle, &request, token, options->interrupted, err);
}

/* The run goes on, and ends, without what may not be read. */
static bool is_unread(
	const struct run *run, const struct target_log_events *events, const struct err *error)
{
	AUTO_FREE char *text = NULL;

	if (error->id != E_KUBE_DENIED || run_state_is_final(run_state(run)))
		return false;
	text = mem_printf("%s goes on, but its output cannot be shown: %s (dlrun init --rbac "
			  "prints the Role to ask for)",
		run_id(run), error->message);
	if (events->notice)
		events->notice(events->ctx, text);
	return true;
}

/* The run, or its attempt, has just ended, or is waited for unread: what follows is known within
 * moments, or told as it comes. */
static int wait_for_next(struct session *session, struct run *run, int number, bool unread,
	const struct follow_options *options, const struct target_log_events *events,
	struct err *err)
{
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	struct waiting waiting = {.session = session,
		.runs = &one,
		.timeout_ms = -1,
		.interrupted = options->interrupted,
		.attempts = number,
		.retries = true,
		.reports_state = unread,
		.notice = events->notice,
		.ctx = events->ctx};
	int r = wait_for(&waiting, err);

	if (r < 0 || run_attempts(run) > number)
		return r;
	keep_ended(&waiting);
	return check_removed(session, &one, err);
}

/* A run that was not sent has said nothing. */
static void follow_report_unsent(const struct run *run, const struct target_log_events *events)
{
	const char *why = json_get_str(run->doc, "text");

	if (run_attempts(run) > 0 || !why || !events->notice)
		return;
	AUTO_FREE char *text = mem_printf("%s has no output: %s", run_id(run), why);
	events->notice(events->ctx, text);
}

/* Wait until the run is sent, or ends here. */
static int wait_sent(struct session *session, struct run *run, const struct follow_options *options,
	struct err *err)
{
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	struct waiting waiting = {.session = session,
		.runs = &one,
		.timeout_ms = -1,
		.interrupted = options->interrupted,
		.until_sent = true};

	return options->follow && run_is_held(run) ? wait_for(&waiting, err) : 0;
}

int run_follow(struct session *session, struct run *run, const struct follow_options *options,
	const struct target_log_events *events, struct err *err)
{
	struct follow_options each = *options;
	follow_report_unsent(run, events);
	int held = wait_sent(session, run, options, err);
	int newest = run_attempts(run), number = options->attempt ? options->attempt : newest;

	if (held < 0)
		return held;
	if (options->attempt > newest) {
		err_set(err, E_RUN_NOT_FOUND, "%s has no attempt %d", run_id(run), number);
		return err_hint(err, "dlrun show %s", run_id(run));
	}
	for (;;) {
		AUTO_ERR struct err error = {0};
		int r = read_attempt(session, run, number, &each, events, &error);
		bool unread = r < 0 && each.follow && is_unread(run, events, &error);
		if (r < 0 && !unread)
			return err_move(err, &error);
		if (each.follow)
			r = wait_for_next(session, run, number, unread, &each, events, err);
		if (r < 0 || !each.follow || run_attempts(run) <= number)
			return r;
		AUTO_FREE char *text = mem_printf("%s: attempt %d", run_id(run), ++number);

		if (events->notice)
			events->notice(events->ctx, text);
		each.tail_lines = -1;
	}
}

#include "base/clock.h"
#include "base/str.h"
#include "run/ops.h"
#include "run/store.h"

enum {
	ASK_MS = 2000,
	LOOK_MS = 50,      /* between two looks at what cannot be watched */
	LOOK_MAX_MS = 500, /* for runs that go on for long */
	CANCEL_ASK_MS = 10000,
};

/*
 * Waiting: runs are asked again and again, less often as time passes. The log of a run that is
 * followed ends with it, so this is only for `wait` and `cancel`.
 */

static bool all_ended(const struct run_list *runs)
{
	vec_foreach (struct run *, run, runs)
		if (!run_state_is_final(run_state(*run)))
			return false;
	return true;
}

static int on_pause_over(void *ctx, struct err *err)
{
	(void)err;
	loop_stop(ctx);
	return 0;
}

static int pause_on_loop(struct session *session, int64_t ms, struct err *err)
{
	struct loop *loop = session_loop(session);
	struct loop_timer *timer = loop_add_timer(loop, clock_ms() + ms, on_pause_over, loop);
	int r = loop_run(loop, err);

	loop_remove_timer(loop, timer);
	return r;
}

/* What was unknown a moment ago may be known now. */
static void look_anew(struct run *run)
{
	const char *last = json_get_str(run->doc, "last_state");

	if (run_state(run) != RUN_UNKNOWN || !last)
		return;
	json_set_str(run->doc, "state", last);
	json_remove(run->doc, "last_state");
}

static int fail_late(const struct run_list *runs, int64_t timeout_ms, struct err *err)
{
	char time[32];

	duration_text(timeout_ms, time);
	vec_foreach (struct run *, run, runs)
		if (!run_state_is_final(run_state(*run)))
			return err_set(err, E_RUN_TIMEOUT, "%s has not ended within %s",
				run_id(*run), time);
	return 0;
}

/* One that was removed since has left nothing that could tell it from one that never began. */
static int check_removed(struct session *session, const struct run_list *runs, struct err *err)
{
	struct store *store;
	int r = session_store(session, &store, err);

	for (size_t i = 0; r == 0 && i < runs->n; i++) {
		const struct run *run = runs->v[i];
		AUTO_RUN struct run *now = NULL;
		AUTO_ERR struct err fault = {0};
		if (run_never_began(run) && store_get(store, run_id(run), &now, &fault) < 0 &&
			fault.id == E_RUN_NOT_FOUND)
			r = err_set(err, E_RUN_NOT_FOUND, "%s was removed meanwhile", run_id(run));
	}
	return r;
}

int runs_wait(struct session *session, struct run_list *runs, int64_t timeout_ms,
	const volatile int *interrupted, struct err *err)
{
	int64_t start_ms = clock_ms(), pause_ms = LOOK_MS / 5;

	for (;;) {
		vec_foreach (struct run *, run, runs)
			look_anew(*run);
		int r = runs_refresh(session, runs, ASK_MS, err);

		if (r < 0)
			return r;
		if (all_ended(runs))
			return check_removed(session, runs, err);
		if (interrupted && *interrupted)
			return err_set(err, E_CANCELED, "interrupted");
		if (timeout_ms >= 0 && clock_ms() - start_ms >= timeout_ms)
			return fail_late(runs, timeout_ms, err);
		r = pause_on_loop(session, pause_ms, err);
		if (r < 0)
			return r;
		if (clock_ms() - start_ms > 20 * pause_ms && pause_ms < LOOK_MAX_MS)
			pause_ms *= 2;
	}
}

/*
 * The log
 */

/* The run has just ended, or its log has: its state follows within moments. */
static int refresh_end(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err)
{
	struct run_list one = {.v = &run, .n = 1, .cap = 1};

	return runs_wait(session, &one, -1, interrupted, err);
}

int run_follow(struct session *session, struct run *run, const struct follow_options *options,
	const struct target_log_events *events, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	struct target_log_request request = {
		.tail_lines = options->tail_lines,
		.since_ms = options->since_ms,
		.rank = options->rank,
		.follow = options->follow,
		.events = *events,
	};
	char token[TARGET_TOKEN_SIZE] = "";
	int r = 0;

	/* A run that never came to a target has said nothing. */
	if (run_handle(run)) {
		r = target_open(session, run_target(run), &target, err);
		if (r == 0)
			r = target_logs(target, run_handle(run), &request, token,
				options->interrupted, err);
	}
	if (r < 0 || !options->follow)
		return r;
	return refresh_end(session, run, options->interrupted, err);
}

/*
 * Stopping
 */

int run_cancel(struct session *session, struct run *run, int64_t wait_ms, bool *ret_ended_before,
	struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	AUTO_ERR struct err late = {0};

	*ret_ended_before = run_state_is_final(run_state(run));
	if (*ret_ended_before)
		return 0;
	if (!run_handle(run))
		return err_set(err, E_RUN_RUNNING, "%s is still being submitted", run_id(run));
	int r = target_open(session, run_target(run), &target, err);
	if (r == 0)
		r = target_cancel(target, run_handle(run), CANCEL_ASK_MS, err);
	if (r < 0)
		return r;
	r = runs_wait(session, &one, wait_ms, NULL, &late);
	/* Not ended in time: the caller sees it by the state. */
	if (r < 0 && late.id != E_RUN_TIMEOUT)
		return err_move(err, &late);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/restart.h"

#include <stdlib.h>

#include "app/lifecycle/calls.h"
#include "app/prepare/carry_over.h"
#include "app/prepare/prepare.h"
#include "app/runs/after_check.h"
#include "app/runs/deliver.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/context/secrets.h"
#include "core/image/code.h"
#include "core/record/foreign.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "targets/kube/target_kube.h"
#include "targets/targets.h"

/*
 * The next attempt of a run that has ended: the same code, specification and outputs. Its handle is
 * durable in the row before the target is told, and RUN_SUBMIT_LOCK is held until the target has
 * it, so that whoever looks after a kill finds either the run as it was, or an attempt that works,
 * or one that never began (attempt.h) and can be restarted in its turn.
 */

enum { AFTER_MS = 8000, LOCK_MS = 5000 }; /* a submit may still write its git record */

/* A submit from the record of the run: its run is as the store has it. */
struct restart {
	struct submit submit;
	int after; /* that attempt, as a retry; 0: whatever there is */
};

static void restart_done(struct restart *restart)
{
	submit_done(&restart->submit);
}

/*
 * Is it to be started anew?
 */

static bool is_gang(const struct run *run)
{
	const struct target_ops *ops = target_ops_recorded(run);

	/* This machine starts all of its nodes anew by itself. */
	return ops->has_nodes && !ops->is_here &&
	       json_get_int(json_get(run->doc, "resources"), "nodes", 1) > 1;
}

bool run_restarts_by_itself(const struct run *run)
{
	const char *handle = run_handle(run);

	return handle && kube_handle_is_jobset(handle);
}

static bool is_failure(const struct run_exit *exit)
{
	return str_eq(exit->origin, "job");
}

static bool is_disruption(const struct run_exit *exit)
{
	const struct run_reason *reason = run_reason(exit->reason);

	return str_eq(exit->origin, "cluster") && reason && reason->is_disruption;
}

/* Of the program, since somebody has started it by hand. */
static int count_failures(const struct run *run)
{
	const struct json *attempts = json_get(run->doc, "attempts");
	int64_t skip = json_get_int(run->doc, RUN_RETRIES_FROM, 0);
	int n = 0;

	for (const struct json *item = json_first(attempts); item; item = json_next(item)) {
		struct run_exit exit;
		if (skip-- > 0)
			continue;
		run_exit_from_json(json_get(item, "exit"), &exit);
		n += exit.known && exit.code != 0 && is_failure(&exit);
	}
	return n;
}

static int retries_of(const struct run *run)
{
	AUTO_SPEC struct spec spec = {0};

	return spec_from_json(run->spec, &spec, NULL) == 0 ? spec.runtime.retries : 0;
}

bool run_wants_retry(const struct run *run)
{
	struct run_exit exit;

	if (run_state(run) != RUN_FAILED || !is_gang(run) || run_restarts_by_itself(run) ||
		json_get_bool(run->doc, RUN_RETRIES_STOPPED, false) ||
		run_attempts(run) >= RETRY_ATTEMPTS_MAX)
		return false;
	run_get_exit(run, &exit);
	return is_disruption(&exit) ||
	       (is_failure(&exit) && count_failures(run) <= retries_of(run));
}

/* The next attempt might be a second program beside the one that another machine has sent on. */
static int restart_check_elsewhere(const struct run *run, struct err *err)
{
	static const char *const gone[] = {"Lost", "Interrupted", "Cancelled"};
	struct run_exit exit;
	bool is_gone = false;

	run_get_exit(run, &exit);
	for (size_t i = 0; i < ARRAY_LEN(gone); i++)
		is_gone |= str_eq(exit.reason, gone[i]);
	if (!is_gone || !run_may_be_elsewhere(run))
		return 0;
	err_set(err, E_RUN_RUNNING,
		"%s is not on target %s any more: the machine that submitted it may have sent it "
		"to another target",
		run_id(run), run_target(run));
	return err_hint(err, "dlrun submit --from %s", run_id(run));
}

static int check_state(const struct run *run, struct err *err)
{
	enum run_state state = run_state(run);

	if (state == RUN_SUCCEEDED) {
		err_set(err, E_RUN_ENDED,
			"%s has succeeded; only failed, cancelled or lost runs restart",
			run_id(run));
		return err_hint(err, "dlrun submit --from %s", run_id(run));
	}
	if (state == RUN_UNKNOWN) {
		err_set(err, E_TARGET_SILENT, "%s cannot be asked now", run_id(run));
		return err_hint(err, "dlrun why %s", run_id(run));
	}
	if (!run_state_is_final(state)) {
		err_set(err, E_RUN_RUNNING, "%s has not ended: it is %s", run_id(run),
			run_state_name(state));
		return err_hint(err, "dlrun cancel %s", run_id(run));
	}
	if (run_attempts(run) == 0 && run_image_digest(run)) {
		err_set(err, E_RUN_ENDED, "%s was never sent to %s", run_id(run), run_target(run));
		return err_hint(err, "dlrun submit --from %s", run_id(run));
	}
	if (run_image_digest(run))
		return restart_check_elsewhere(run, err);
	if (foreign_is(run)) {
		code_fail_missing(run, err);
		return err_hint(err, "dlrun restart %s   # on that machine", run_id(run));
	}
	err_set(err, E_IMAGE_BASE, "%s ended before its code was kept", run_id(run));
	return err_hint(err, "dlrun submit");
}

/* Two watchers begin a single retry. */
static int lifecycle_restart_check(
	const struct restart *restart, const struct run *run, struct err *err)
{
	if (!restart->after || (run_attempts(run) == restart->after && run_wants_retry(run)))
		return check_state(run, err);
	return err_set(err, E_RUN_RUNNING, "%s was started again by somebody else", run_id(run));
}

/* An automatic retry has no user to ask for missing secrets. */
static int check_missing(const struct restart *restart, const struct strv *missing, struct err *err)
{
	if (!restart->after || missing->n == 0)
		return 0;
	err_set(err, E_SECRET, "%s was set for the run and is not set in this shell",
		missing->v[0]);
	return err_hint(err, "read -rs %s && export %s && dlrun restart %s", missing->v[0],
		missing->v[0], run_id(restart->submit.run));
}

/*
 * The next attempt
 */

static int choose_handle(struct restart *restart, struct err *err)
{
	struct submit *submit = &restart->submit;
	struct target *target = submit->target;
	const struct json *doc = submit->run->doc;
	const struct target_requirements requirements = {
		.run_id = run_id(submit->run),
		.spec = &submit->spec,
		.image = submit->image.layers ? &submit->image : NULL,
		.base = json_get_str(json_get(doc, "image"), "base"),
		.tree_bytes = (uint64_t)json_get_int(json_get(doc, "snapshot"), "bytes", 0),
	};
	AUTO_STRV struct strv notes = {0};
	int r = 0;

	/* A retry goes on as it began, so that its failures stay counted in one place. */
	if (target->ops->learn && !restart->after)
		r = target->ops->learn(target, &requirements, &notes, err);
	if (r < 0)
		return r;
	return target->ops->prepare(target, requirements.run_id, run_attempts(submit->run) + 1,
		&submit->spec, submit->handle, err);
}

/* Results of the attempt before go along in the image. */
static int lifecycle_restart_carry_over(
	struct submit *submit, struct strv *ret_notes, struct err *err)
{
	char *ref;

	if (!submit->target->ops->needs_image)
		return 0;
	int r = carry_over_make(submit->session, submit->target, submit->run, &ref, ret_notes, err);
	if (r < 0 || !ref)
		return r;
	REPLACE(submit->ref, ref);
	submit->carries_over = true;
	return 0;
}

/* As a new submit would find it. On this machine the supervisor waits. */
static int restart_check_after(struct submit *submit, struct err *err)
{
	const struct run *run = submit->run;
	AUTO_AFTER_CHECK struct after_check check = {0};
	const char *open;
	int r;

	if (submit->spec.after.n == 0)
		return 0;
	r = after_refresh(submit->session, &(struct run_list){.v = &submit->run, .n = 1, .cap = 1},
		AFTER_MS, err);
	if (r == 0)
		r = after_check(submit->session, &submit->spec.after, &check, err);
	if (r < 0 || check.state == AFTER_MET)
		return r;
	if (check.state == AFTER_NEVER) {
		err_set(err, E_RUN_AFTER, "%s", check.text);
		return err_hint(err, "dlrun submit --from %s", run_id(run));
	}
	if (target_ops_recorded(run)->is_here)
		return 0;
	open = check.pending.n ? run_id(check.pending.v[0]) : submit->spec.after.v[0].id;
	err_set(err, E_RUN_AFTER, "%s, which it begins after, has not ended", open);
	return err_hint(err, "dlrun wait %s && dlrun restart %s", open, run_id(run));
}

static int lifecycle_restart_prepare(
	struct restart *restart, struct strv *ret_missing, struct strv *ret_notes, struct err *err)
{
	struct submit *submit = &restart->submit;
	struct run *run = submit->run;

	int r = spec_from_json(run->spec, &submit->spec, err);
	if (r == 0 && !restart->after)
		r = restart_check_after(submit, err);
	if (r == 0)
		r = secrets_again(submit->session, run, &submit->spec.secrets, &submit->secret_env,
			ret_missing, err);
	if (submit->secret_env.n > 0)
		os_protect_memory();
	if (r == 0)
		r = check_missing(restart, ret_missing, err);
	if (r == 0)
		r = target_open_run(submit->session, run, &submit->target, err);
	if (r == 0 && submit->target->ops->warm)
		submit->target->ops->warm(submit->target);
	if (r == 0)
		r = submit_load_image(submit, submit->run, err);
	if (r == 0)
		r = choose_handle(restart, err);
	if (r == 0)
		r = lifecycle_restart_carry_over(submit, ret_notes, err);
	return r < 0 ? err_prefix(err, "restarting %s", run_id(run)) : 0;
}

static int lifecycle_restart_hold(struct restart *restart, const struct run *run, struct err *err)
{
	struct submit *submit = &restart->submit;

	submit->dir = dirs_run(&submit->session->dirs, run_id(run));
	AUTO_FREE char *lock = fs_join(submit->dir, RUN_SUBMIT_LOCK);
	int r = fs_mkdirs(submit->dir, 0700, err);
	if (r == 0)
		r = fs_lock(lock, true, LOCK_MS, &submit->lock_fd, err);
	/* Another process may have restarted the run meanwhile; from now on none can. */
	if (r == 0)
		r = store_get(submit->store, run_id(run), &submit->run, err);
	return r < 0 ? r : lifecycle_restart_check(restart, submit->run, err);
}

static int lifecycle_restart_add_attempt(void *ctx, struct run *run, struct err *err)
{
	const struct restart *restart = ctx;
	const struct submit *submit = &restart->submit;
	int r = lifecycle_restart_check(restart, run, err);

	if (r < 0)
		return r;
	json_remove(run->doc, RUN_RETRIES_STOPPED);
	if (!restart->after)
		json_set_int(run->doc, RUN_RETRIES_FROM, run_attempts(run));
	run_add_attempt(run, submit->handle);
	held_restart(run);
	if (submit->carries_over)
		run_set_attempt_image(run, submit->ref);
	run_set_state(run, RUN_QUEUED);
	return 1;
}

/* Everything up to the row, which has the next attempt then. */
static int restart_begin(struct restart *restart, struct session *session, const struct run *run,
	struct strv *ret_missing, struct strv *ret_notes, struct err *err)
{
	struct submit *submit = &restart->submit;

	submit->session = session;
	int r = check_state(run, err);
	if (r == 0)
		r = session_store(session, &submit->store, err);
	if (r == 0)
		r = lifecycle_restart_hold(restart, run, err);
	if (r == 0)
		r = lifecycle_restart_prepare(restart, ret_missing, ret_notes, err);
	return r < 0 ? r
		     : run_change_row(
			       session, submit->run, lifecycle_restart_add_attempt, restart, err);
}

/* r: how the start has ended, with err. Returns how that went; *ret is the run as it is then. */
static int restart_end(struct restart *restart, int r, struct run **ret, struct err *err)
{
	struct submit *submit = &restart->submit;

	/* The record tells the rest: an attempt that never began. */
	if (r < 0 && submit_has_begun(submit) > 0) {
		err_clear(err);
		r = 0;
	}
	if (r == 0)
		deliver_kick(submit->session, submit->run);
	*ret = TAKE(submit->run);
	return r;
}

/* after: as of struct restart. */
static int restart_run(struct session *session, const struct run *run, int after,
	struct strv *ret_missing, struct strv *ret_notes, struct run **ret, struct err *err)
{
	AUTO(restart_done) struct restart restart = {.after = after};

	int r = restart_begin(&restart, session, run, ret_missing, ret_notes, err);
	return r < 0 ? r : restart_end(&restart, submit_create(&restart.submit, err), ret, err);
}

int run_restart(struct session *session, const struct run *run, struct strv *ret_missing,
	struct strv *ret_notes, struct run **ret, struct err *err)
{
	return restart_run(session, run, 0, ret_missing, ret_notes, ret, err);
}

/*
 * Many runs
 */

/* A start among others. */
struct restart_start {
	struct restart restart;
	struct target_job job;
	struct restarted *restarted;
	int64_t begin_ms;
};

static int restart_on_start(void *ctx, size_t i, struct target_call *call, struct err *err)
{
	struct restart_start *start = (struct restart_start *)ctx + i;
	struct target *target = start->restart.submit.target;
	int r = submit_make_start(&start->restart.submit, &start->job, err);

	start->begin_ms = clock_ms();
	return r < 0 ? r : target->ops->submit(target, &start->job, call, err);
}

static void restart_on_started(void *ctx, size_t i, int status, struct err *err)
{
	struct restart_start *start = (struct restart_start *)ctx + i;
	struct submit *submit = &start->restart.submit;
	struct restarted *restarted = start->restarted;
	int r = status;

	if (r < 0 && target_slept(submit->target, start->begin_ms, err)) {
		err_clear(err);
		r = submit_create(submit, err);
	}
	if (restart_end(&start->restart, r, &restarted->run, err) < 0)
		err_move(&restarted->err, err);
}

/* At most CALLS_AT_ONCE runs. */
static int restart_some(struct session *session, struct run *const *runs, size_t n,
	struct restarted *ret, struct err *err)
{
	struct restart_start *starts = mem_alloc(n, sizeof(*starts));
	struct calls calls = {.timeout_ms = SUBMIT_START_MS,
		.start = restart_on_start,
		.done = restart_on_started,
		.ctx = starts};

	for (size_t i = 0; i < n; i++) {
		struct restart_start *start = &starts[calls.n];

		start->restarted = &ret[i];
		if (restart_begin(&start->restart, session, runs[i], &ret[i].missing, &ret[i].notes,
			    &ret[i].err) == 0) {
			calls.n++;
			continue;
		}
		restart_done(&start->restart);
		*start = (struct restart_start){0};
	}
	int r = calls_run(session_loop(session), &calls, err);
	for (size_t i = 0; i < calls.n; i++)
		restart_done(&starts[i].restart);
	free(starts);
	return r;
}

int runs_restart(struct session *session, const struct run_list *runs, struct restarted *ret,
	struct err *err)
{
	int r = 0;

	vec_foreach (struct run *, run, runs)
		if (check_state(*run, err) < 0)
			return -(int)err->code;
	for (size_t at = 0; r == 0 && at < runs->n; at += CALLS_AT_ONCE) {
		size_t left = runs->n - at;
		r = restart_some(session, runs->v + at, left < CALLS_AT_ONCE ? left : CALLS_AT_ONCE,
			ret + at, err);
	}
	return r;
}

void restarted_done(struct restarted *restarted)
{
	run_free(restarted->run);
	strv_done(&restarted->missing);
	strv_done(&restarted->notes);
	err_done(&restarted->err);
}

/*
 * Retries
 */

static char *sentence(const struct run *ended)
{
	const char *text = json_get_str(ended->doc, "text");
	struct run_exit exit;

	run_get_exit(ended, &exit);
	AUTO_FREE char *how =
		is_disruption(&exit)
			? mem_strdup("which is not counted")
			: mem_printf("retry %d of %d", count_failures(ended), retries_of(ended));
	return mem_printf("%s: attempt %d failed%s%s; all nodes start again as attempt %d, %s",
		run_id(ended), run_attempts(ended), text ? ": " : "", text ? text : "",
		run_attempts(ended) + 1, how);
}

int run_retry(struct session *session, struct run *run, char **ret_text, struct err *err)
{
	AUTO_FREE char *text = sentence(run);
	AUTO_STRV struct strv missing = {0}, notes = {0};
	AUTO_ERR struct err error = {0};
	struct run *now = NULL;

	*ret_text = NULL;
	int r = restart_run(session, run, run_attempts(run), &missing, &notes, &now, &error);
	if (now)
		run_replace(run, now);
	if (r == 0) {
		*ret_text = notes.n ? mem_printf("%s; %s", text, notes.v[0]) : TAKE(text);
		return 0;
	}
	if (error.id == E_RUN_RUNNING || error.id == E_RUN_ENDED || error.id == E_IO_LOCK)
		return run_read_row(session, run, err);
	return err_move(err, &error);
}

static int lifecycle_restart_stop(void *ctx UNUSED, struct run *run, struct err *err UNUSED)
{
	if (!run_wants_retry(run))
		return 0;
	json_set_bool(run->doc, RUN_RETRIES_STOPPED, true);
	return 1;
}

int run_stop_retries(struct session *session, struct run *run, struct err *err)
{
	return run_change_row(session, run, lifecycle_restart_stop, NULL, err);
}

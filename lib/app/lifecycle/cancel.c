/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/cancel.h"

#include "app/lifecycle/calls.h"
#include "app/lifecycle/follow.h"
#include "app/lifecycle/restart.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/transfer/fetch.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/group.h"
#include "core/record/results.h"
#include "core/store/store.h"
#include "targets/targets.h"

enum {
	CANCEL_QUERY_MS = 10000,
	CANCEL_EACH_MS = 10,   /* and more for each: that it was asked for is durable first */
	MEMBERS_AT_ONCE = 256, /* logs of members of a study that are followed while they end */
};

/* The request for an end. */
struct cancel {
	struct ending *ending;
	struct target *target;
	bool shares_target; /* it is that of another one */
	struct target_call keep;
	bool is_kept; /* its output is saved meanwhile */
	bool is_asked;
};
struct cancels VEC_OF(struct cancel);

struct canceling {
	struct session *session;
	struct cancels *cancels;
};

static void cancel_on_kept(struct target_call *call UNUSED, int status UNUSED, struct err *err)
{
	err_clear(err);
}

/* The target of the one before, where it is the same: it takes the ends of members of a study
 * together. */
static int cancel_open(const struct canceling *canceling, size_t i, struct err *err)
{
	struct cancel *cancel = &canceling->cancels->v[i], *before = i ? cancel - 1 : NULL;
	const struct run *run = cancel->ending->run;

	if (!before || !before->target || !target_ops_recorded(run)->submit_study ||
		!runs_have_one_target(before->ending->run, run))
		return target_open_run(canceling->session, run, &cancel->target, err);
	cancel->target = before->target;
	cancel->shares_target = true;
	return 0;
}

static int cancel_start(void *ctx, size_t i, struct target_call *call, struct err *err)
{
	const struct canceling *canceling = ctx;
	struct cancel *cancel = &canceling->cancels->v[i];
	const struct run *run = cancel->ending->run;

	int r = cancel_open(canceling, i, err);
	if (r < 0)
		return r;
	/* Save the last output of the run: it would be lost with what the cancel removes there. */
	cancel->keep = (struct target_call){.done = cancel_on_kept};
	if (cancel->is_kept && cancel->target->ops->keep)
		cancel->target->ops->keep(
			cancel->target, run_handle(run), true, &cancel->keep, NULL);
	return cancel->target->ops->cancel(cancel->target, run_handle(run), call, err);
}

static void cancel_done(void *ctx, size_t i, int status, struct err *err)
{
	const struct canceling *canceling = ctx;
	struct cancel *cancel = &canceling->cancels->v[i];

	cancel->is_asked = status == 0;
	if (status < 0)
		err_move(&cancel->ending->err, err);
}

static void cancels_done(struct cancels *cancels)
{
	vec_foreach (struct cancel, cancel, cancels) {
		target_call_cancel(&cancel->keep);
	}
	vec_foreach (struct cancel, cancel, cancels)
		if (!cancel->shares_target)
			target_free(cancel->target);
	vec_done(cancels);
}

/* Wait for the ends of those that were asked. A run that has not ended in time is no failure. */
static int cancels_wait(
	struct session *session, const struct cancels *cancels, int64_t wait_ms, struct err *err)
{
	struct run_list asked = {0};
	AUTO_ERR struct err late = {0};
	int r = 0;

	vec_foreach (struct cancel, cancel, cancels)
		if (cancel->is_asked)
			*vec_push(&asked) = cancel->ending->run;
	if (asked.n)
		r = runs_wait(session, &asked, wait_ms, NULL, &late);
	vec_done(&asked);
	return r < 0 && late.id != E_RUN_TIMEOUT ? err_move(err, &late) : 0;
}

/* Members of a study that a target has started together end together, too. */
static bool cancel_ends_together(const struct run *run)
{
	return target_ops_recorded(run)->submit_study && json_get(run->doc, "study");
}

static size_t cancels_at_once(const struct cancels *cancels)
{
	vec_foreach (struct cancel, cancel, cancels)
		if (!cancel_ends_together(cancel->ending->run))
			return CALLS_AT_ONCE;
	return cancels->n;
}

/* Ask for some ends, and wait for them (wait_ms 0: not). */
static int cancels_run(struct session *session, struct cancels *cancels, int64_t wait_ms,
	run_meanwhile_fn *meanwhile, void *ctx, struct err *err)
{
	struct canceling canceling = {session, cancels};
	const struct calls calls = {.n = cancels->n,
		.at_once = cancels_at_once(cancels),
		.timeout_ms = CANCEL_QUERY_MS + CANCEL_EACH_MS * (int64_t)cancels->n,
		.start = cancel_start,
		.done = cancel_done,
		.ctx = &canceling};
	int r = calls_run(session_loop(session), &calls, err);

	for (size_t i = 0; r == 0 && meanwhile && i < cancels->n; i++)
		if (cancels->v[i].is_asked)
			r = meanwhile(ctx, cancels->v[i].ending->run, err);
	return r == 0 && wait_ms >= 0 ? cancels_wait(session, cancels, wait_ms, err) : r;
}

/*
 * Taking back what was never sent
 */

enum { HELD_LOCK_MS = 15000 }; /* a sender may be about to find that nobody answers */

/* First, so that a sender that is at work sends it no more, or ends it. */
static int cancel_mark_held(void *ctx UNUSED, struct run *run, struct err *err UNUSED)
{
	if (!run_is_held(run) || run_cancelling(run))
		return 0;
	json_set_bool(run->doc, "cancelling", true);
	return 1;
}

/* First as well: who moves it to another place does not send it there. */
static int cancel_mark_moving(void *ctx UNUSED, struct run *run, struct err *err UNUSED)
{
	if (run_cancelling(run) || (!run_is_moving(run) && !run_may_move(run)))
		return 0;
	json_set_bool(run->doc, "cancelling", true);
	return 1;
}

/* *ctx: the number of its attempts, none of which has begun. */
static int cancel_held(void *ctx, struct run *run, struct err *err UNUSED)
{
	const int *attempts = ctx;

	if (!run_is_held(run) || run_attempts(run) != *attempts)
		return 0;
	held_end(run);
	return 1;
}

/* 1: its attempt has begun, or may have. Nobody may hold its lock. */
static int cancel_asks_begun(struct session *session, const struct run *run, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(target_status_done) struct target_status status = {0};

	if (!run_handle(run))
		return 0;
	int r = target_open_run(session, run, &target, err);
	if (r == 0)
		r = target_state(target, run_handle(run), CANCEL_QUERY_MS, &status, err);
	if (r < 0) {
		err_prefix(err, "it ends when %s can be asked", run_target(run));
		return err_hint(err, "dlrun queue --send");
	}
	return !attempt_never_began(&status);
}

/* run is as the store has it then: cancelled, or sent meanwhile. 1: its target has to end it.
 * silent: a member of a study whose target did not answer, or NULL; for another one that target is
 * not waited for again. */
static int cancel_take_back(
	struct session *session, struct ending *ending, const struct ending *silent)
{
	struct run *run = ending->run;
	AUTO_FD int fd = -1;

	int r = run_change_row(session, run, cancel_mark_held, NULL, &ending->err);
	if (r < 0 || !run_is_held(run))
		return r < 0 ? r : !run_state_is_final(run_state(run));
	if (silent && run_handle(run) && str_eq(run_study(run), run_study(silent->run)))
		return err_copy(&ending->err, &silent->err);
	int attempts = run_attempts(run);
	r = run_handle(run) ? cancel_asks_begun(session, run, &ending->err) : 0;
	if (r == 0)
		r = held_lock(&session->dirs, run, HELD_LOCK_MS, &fd, &ending->err);
	if (r == 0)
		r = run_change_row(session, run, cancel_held, &attempts, &ending->err);
	if (r < 0 && ending->err.id == E_IO_LOCK) {
		err_clear(&ending->err);
		ending->is_sending = true;
		return 0;
	}
	if (r != 0)
		return r;
	if (!run_is_held(run))
		held_unmark(&session->dirs, run_id(run));
	return !run_state_is_final(run_state(run));
}

/* Of one study, whose members nobody sends while the lock is held. */
static int cancel_unsent(void *ctx UNUSED, struct run *run, struct err *err UNUSED)
{
	if (!run_is_unsent(run))
		return 0;
	held_end(run);
	return 1;
}

static const char *cancel_study(const struct ending *ending)
{
	const struct run *run = ending->run;

	return run_is_unsent(run) ? run_study(run) : NULL;
}

static int cancel_end_members(struct session *session, struct run_list *members, struct err *err)
{
	AUTO_FD int fd = -1;
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = store_change_all(store, members, cancel_mark_held, NULL, err);
	if (r == 0)
		r = held_lock(&session->dirs, members->v[0], HELD_LOCK_MS, &fd, err);
	return r < 0 ? r : store_change_all(store, members, cancel_unsent, NULL, err);
}

/* Unsent members of the study of endings[at]: together, by two transactions. What is done with, or
 * has failed, is noted; a member that was sent meanwhile is not. */
static void cancel_members(
	struct session *session, struct ending *endings, size_t n, size_t at, bool *is_done)
{
	AUTO_FREE char *study = mem_strdup(cancel_study(&endings[at]));
	AUTO_FREE size_t *indexes = mem_alloc(n + 1, sizeof(*indexes));
	AUTO(run_list_done) struct run_list members = {0};
	AUTO_ERR struct err err = {0};

	for (size_t i = at; i < n; i++) {
		if (is_done[i] || !str_eq(cancel_study(&endings[i]), study))
			continue;
		indexes[members.n] = i;
		*vec_push(&members) = run_copy(endings[i].run);
	}
	int r = cancel_end_members(session, &members, &err);
	/* A member was removed meanwhile: each is taken back by itself. */
	if (err.id == E_RUN_NOT_FOUND)
		return;
	for (size_t i = 0; i < members.n; i++) {
		struct ending *ending = &endings[indexes[i]];
		run_replace(ending->run, TAKE(members.v[i]));
		ending->is_sending = r < 0 && err.id == E_IO_LOCK;
		if (r < 0 && !ending->is_sending)
			err_copy(&ending->err, &err);
		is_done[indexes[i]] = r < 0 || run_state_is_final(run_state(ending->run));
	}
}

/*
 * Many at once
 */

/* Deal with a run that has ended, or has not begun. 1: its end is to be asked for. */
static int cancel_check(struct session *session, struct ending *ending, const struct ending *silent)
{
	struct run *run = ending->run;

	ending->ended_before = run_state_is_final(run_state(run));
	if (ending->ended_before && taken_wait_ms(run))
		return take_give_up(session, run, CANCEL_QUERY_MS, &ending->err);
	if (ending->ended_before)
		return run_wants_retry(run) ? run_stop_retries(session, run, &ending->err) : 0;
	if (run_is_moving(run) || run_may_move(run)) {
		int r = run_change_row(session, run, cancel_mark_moving, NULL, &ending->err);
		if (r < 0 || run_state_is_final(run_state(run)))
			return r;
	}
	if (run_is_held(run)) {
		int r = cancel_take_back(session, ending, silent);
		if (r <= 0)
			return r;
	}
	if (!run_handle(run))
		return err_set(
			&ending->err, E_RUN_RUNNING, "%s is still being submitted", run_id(run));
	return 1;
}

/* Whether its output goes with what the cancel removes. Of many runs those that wait have none. */
static bool cancel_loses_output(const struct run *run, size_t n)
{
	return target_ops_recorded(run)->keep && (n == 1 || run_state(run) != RUN_QUEUED);
}

static void cancels_add(struct cancels *cancels, struct ending *const *endings, size_t n)
{
	for (size_t i = 0; i < n; i++)
		*vec_push(cancels) = (struct cancel){.ending = endings[i], .is_kept = true};
}

static int cancel_portion(struct session *session, struct ending *const *endings, size_t n,
	int64_t wait_ms, run_meanwhile_fn *meanwhile, void *ctx, struct err *err)
{
	AUTO(cancels_done) struct cancels cancels = {0};

	cancels_add(&cancels, endings, n);
	return cancels_run(session, &cancels, wait_ms, meanwhile, ctx, err);
}

struct endings VEC_OF(struct ending *);

static bool endings_end_together(const struct endings *endings)
{
	vec_foreach (struct ending *, ending, endings)
		if (!cancel_ends_together((*ending)->run))
			return false;
	return true;
}

/* Runs that lose nothing are asked first and all together, so that none of them begins when others
 * end; they are waited for last. Members of studies are asked with the first of those that lose
 * something: where these are all, the target ends the study as a whole. */
static int cancel_all(struct session *session, struct endings *plain, struct endings *losing,
	int64_t wait_ms, run_meanwhile_fn *meanwhile, void *ctx, struct err *err)
{
	AUTO(cancels_done) struct cancels cancels = {0};
	bool together = endings_end_together(plain) && endings_end_together(losing);
	size_t at_once = together ? MEMBERS_AT_ONCE : CALLS_AT_ONCE, at = 0;

	vec_foreach (struct ending *, ending, plain)
		vec_push(&cancels)->ending = *ending;
	if (together) {
		at = losing->n < at_once ? losing->n : at_once;
		cancels_add(&cancels, losing->v, at);
	}
	int r = cancels_run(session, &cancels, -1, meanwhile, ctx, err);
	for (; r == 0 && at < losing->n; at += at_once) {
		size_t left = losing->n - at;
		r = cancel_portion(session, losing->v + at, left < at_once ? left : at_once,
			wait_ms, meanwhile, ctx, err);
	}
	return r < 0 ? r : cancels_wait(session, &cancels, wait_ms, err);
}

int runs_cancel(struct session *session, struct ending *endings, size_t n, int64_t wait_ms,
	run_meanwhile_fn *meanwhile, void *ctx, struct err *err)
{
	AUTO_FREE bool *is_done = mem_alloc(n + 1, sizeof(*is_done));
	struct endings plain = {0}, losing = {0};
	const struct ending *silent = NULL;

	for (size_t i = 0; i < n; i++) {
		if (!is_done[i] && cancel_study(&endings[i]))
			cancel_members(session, endings, n, i, is_done);
		int checked = is_done[i] ? 0 : cancel_check(session, &endings[i], silent);
		if (checked < 0 && endings[i].err.code == ERR_NET && run_study(endings[i].run))
			silent = &endings[i];
		if (checked <= 0)
			continue;
		*vec_push(cancel_loses_output(endings[i].run, n) ? &losing : &plain) = &endings[i];
	}
	int r = cancel_all(session, &plain, &losing, wait_ms, meanwhile, ctx, err);
	vec_done(&plain);
	vec_done(&losing);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/sweep.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/lifecycle/restart.h"
#include "app/runs/after_check.h"
#include "app/runs/deliver.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/submit/submit_impl.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/context/secrets.h"
#include "core/store/store.h"
#include "targets/targets.h"

enum { REFRESH_MS = 30000, KNOW_MS = 5000, HOLD_MS = 2000 };

struct sweep {
	struct session *session;
	const struct sweep_events *events;
	struct study *study;
	struct submit submit; /* of the member that is being made */
	struct run *first;    /* a member that has the image */
};

static void sweep_done(struct sweep *sweep)
{
	submit_done(&sweep->submit);
	run_free(sweep->first);
}

static void sweep_report(const struct sweep *sweep, size_t made)
{
	if (sweep->events && sweep->events->made)
		sweep->events->made(sweep->events->ctx, made, sweep->study->cases.n);
}

static int sweep_check_cancelled(const struct sweep *sweep, struct err *err)
{
	const struct sweep_events *events = sweep->events;
	const char *id = sweep->study->id;

	if (events && events->interrupted && *events->interrupted)
		return err_set(err, E_CANCELED, "interrupted before all runs of %s were made", id);
	if (!study_is_cancelled(&sweep->session->dirs, id))
		return 0;
	return err_set(err, E_RUN_ENDED, "%s was cancelled while its runs were made", id);
}

static int sweep_make_member(struct sweep *sweep, size_t index, struct err *err)
{
	struct submit *submit = &sweep->submit;
	bool is_held = run_is_held(sweep->first);
	int r = sweep_check_cancelled(sweep, err);

	if (r == 0 && is_held) {
		AUTO_AFTER struct after_list after = {0};

		r = after_of(sweep->first, &after, err);
		if (r == 0)
			r = held_mark_after(&sweep->session->dirs, sweep->study->id, &after, err);
	}
	if (r == 0)
		r = submit_insert_member(submit, sweep->first, index, err);
	/* The others wait here, too. */
	if (r < 0 || is_held)
		return r;
	r = submit_create(submit, err);
	if (r < 0)
		r = submit_recover(submit, r, err);
	if (r == 0)
		deliver_kick(sweep->session, submit->run);
	return r;
}

/*
 * A new study
 */

/* Keep for submit_finish what submit_run keeps of a run until its git record is written. */
static void sweep_keep_first(struct sweep *sweep)
{
	struct session *session = sweep->session;
	struct submit *submit = &sweep->submit;

	session_end_submit(session);
	session->submitted = TAKE(submit->snapshot);
	session->submitted_fd = submit->lock_fd > 0 ? TAKE_FD(submit->lock_fd) : 0;
	submit->lock_fd = 0;
	sweep->first = TAKE(submit->run);
}

/*
 * Members that a target starts together
 */

static int sweep_send(struct sweep *sweep, struct err *err)
{
	struct submit *submit = &sweep->submit;
	AUTO_STUDY_WORDS struct study_words words = {0};
	struct target_job job;

	spec_done(&submit->spec);
	int r = study_member_spec(sweep->study, 0, &submit->spec, err);
	if (r == 0)
		r = study_all_words(sweep->study, &words, err);
	if (r < 0)
		return r;
	snprintf(submit->handle, sizeof(submit->handle), "%s", run_handle(sweep->first));
	submit_make_job(submit, sweep->first, &job);
	r = submit_set_job_image(submit, &job, err);
	if (r < 0)
		return r;
	const struct target_study study = submit_make_study(&job, &words);
	return target_submit_study(submit->target, &study, SUBMIT_START_MS, err);
}

/* After a request that failed with r: 0 if it has had its effect all the same. */
static int sweep_recover(struct sweep *sweep, struct run_list *others, int r, struct err *err)
{
	struct submit *submit = &sweep->submit;
	struct run_list one = {.v = &sweep->first, .n = 1, .cap = 1};

	/* Release the lock: nobody sends the request any more. */
	session_end_submit(sweep->session);
	if (!target_knows(submit->target, run_handle(sweep->first), KNOW_MS))
		return r;
	if (runs_refresh(sweep->session, &one, REFRESH_MS, NULL) == 0 &&
		!run_never_began(sweep->first)) {
		err_clear(err);
		return 0;
	}
	vec_foreach (struct run *, run, others)
		submit_set_failed(*run, err);
	store_update_all(submit->store, others, NULL);
	return r;
}

/* The row of the first is there, and its lock is held. */
static int sweep_start_together(struct sweep *sweep, struct err *err)
{
	AUTO(run_list_done) struct run_list others = {0};
	int r = submit_insert_members(&sweep->submit, sweep->first, &others, err);

	if (r == 0)
		r = sweep_send(sweep, err);
	return r < 0 && others.n + 1 == sweep->study->cases.n
		       ? sweep_recover(sweep, &others, r, err)
		       : r;
}

int sweep_run(struct session *session, const struct submit_options *options,
	const struct sweep_events *events, struct run **ret, struct err *err)
{
	struct study *study = options->study;
	AUTO(sweep_done)
	struct sweep sweep = {
		.session = session,
		.events = events,
		.study = study,
		.submit = {.session = session,
			.options = options,
			.events = events ? events->submit : NULL,
			.begun_ms = clock_ms(),
			.is_recorded = true,
			.may_hold = true},
	};

	held_kick(session);
	int r = submit_all(&sweep.submit, err);
	bool is_held = r == 0 && run_is_held(sweep.submit.run);
	bool is_whole = r == 0 && !is_held && submit_starts_together(&sweep.submit);
	if (r == 0)
		sweep_keep_first(&sweep);
	if (is_whole)
		r = sweep_start_together(&sweep, err);
	if (is_whole && r == 0)
		deliver_kick(session, sweep.first);
	for (size_t i = 1; r == 0 && !is_whole && !is_held && i < study->cases.n; i++) {
		sweep_report(&sweep, i);
		r = sweep_make_member(&sweep, i, err);
	}
	if (r == 0)
		sweep_report(&sweep, study->cases.n);
	/* A command that follows the study waits until nobody makes members of it. */
	study_release(study);
	*ret = TAKE(sweep.first);
	return r;
}

/*
 * Members that are missing
 */

static int sweep_list(struct sweep *sweep, struct run_list *ret, struct err *err)
{
	AUTO_FREE char *prefix = mem_printf("%s-", sweep->study->name);
	const struct store_filter filter = {.id_prefix = prefix};
	AUTO(run_list_done) struct run_list all = {0};

	int r = session_store(sweep->session, &sweep->submit.store, err);
	if (r == 0)
		r = store_list(sweep->submit.store, &filter, &all, err);
	for (size_t i = 0; r == 0 && i < sweep->study->cases.n; i++)
		*vec_push(ret) = NULL;
	vec_foreach (struct run *, run, &all) {
		const struct json *study = json_get((*run)->doc, "study");
		int64_t index = json_get_int(study, "index", -1);
		if (str_eq(json_get_str(study, "id"), sweep->study->id) && index >= 0 &&
			(size_t)index < ret->n && !ret->v[index])
			ret->v[index] = TAKE(*run);
	}
	return r;
}

static int sweep_find_code(struct sweep *sweep, const struct run_list *members, struct err *err)
{
	for (size_t i = 0; i < members->n; i++)
		if (members->v[i] && run_image_digest(members->v[i]))
			return store_get(
				sweep->submit.store, run_id(members->v[i]), &sweep->first, err);
	err_set(err, E_IMAGE_BASE, "%s ended before its code was kept", sweep->study->id);
	return err_hint(err, "dlrun rm %s", sweep->study->id);
}

static int sweep_open(struct sweep *sweep, struct strv *ret_missing, struct err *err)
{
	struct submit *submit = &sweep->submit;
	struct session *session = sweep->session;

	int r = spec_copy(&sweep->study->spec, &submit->spec, err);
	if (r == 0)
		r = secrets_again(session, sweep->first, &submit->spec.secrets, &submit->secret_env,
			ret_missing, err);
	if (submit->secret_env.n > 0)
		os_protect_memory();
	/* A record of a host names that one, and members go to all of the target. */
	if (r == 0 && target_ops_recorded(sweep->first)->has_login)
		r = target_open(session, run_target(sweep->first), &submit->target, err);
	else if (r == 0)
		r = target_open_run(session, sweep->first, &submit->target, err);
	if (r == 0)
		r = submit_load_image(submit, sweep->first, err);
	return r < 0 ? r : submit_learn(submit, err);
}

/* 1: it was started anew; 0: there was no need. */
static int sweep_restart(
	struct sweep *sweep, struct run *run, struct strv *ret_missing, struct err *err)
{
	AUTO_STRV struct strv notes = {0};
	AUTO_RUN struct run *now = NULL;

	if (!run_never_began(run) || run_state(run) != RUN_FAILED)
		return 0;
	int r = run_restart(sweep->session, run, ret_missing, &notes, &now, err);
	return r < 0 ? r : 1;
}

static bool sweep_none_began(const struct run_list *members)
{
	vec_foreach (struct run *, run, members)
		if (*run && !(run_never_began(*run) && run_state(*run) == RUN_FAILED))
			return false;
	return true;
}

/* As if nothing had been made: what was there of them was never sent. */
static int sweep_make_all(
	struct sweep *sweep, const struct run_list *members, size_t *ret_made, struct err *err)
{
	struct submit *submit = &sweep->submit;
	int r = 0;

	/* The first one last: its row tells the image to whoever goes on after a kill here. */
	for (size_t i = members->n; r == 0 && i-- > 0;)
		if (members->v[i])
			r = store_remove(submit->store, run_id(members->v[i]), err);
	if (r == 0)
		r = submit_insert_member(submit, sweep->first, 0, err);
	if (r < 0)
		return r;
	run_free(TAKE(sweep->first));
	sweep_keep_first(sweep);
	r = sweep_start_together(sweep, err);
	session_end_submit(sweep->session);
	*ret_made = r < 0 ? 0 : members->n;
	return r;
}

int sweep_make_missing(struct session *session, struct study *study,
	const struct sweep_events *events, size_t *ret_made, struct strv *ret_missing,
	struct err *err)
{
	AUTO(sweep_done)
	struct sweep sweep = {.session = session,
		.events = events,
		.study = study,
		.submit = {.session = session, .study = study, .begun_ms = clock_ms()}};
	AUTO(run_list_done) struct run_list members = {0};

	int r = study_hold(&session->dirs, study->id, HOLD_MS, &study->making_fd, err);
	if (r == 0)
		r = study_set_cancelled(&session->dirs, study->id, false, err);
	if (r == 0)
		r = sweep_list(&sweep, &members, err);
	if (r == 0) {
		/* A member whose start was cut short is only known as such by its target. */
		struct run_list made = {0};

		vec_foreach (struct run *, run, &members)
			if (*run)
				*vec_push(&made) = *run;
		r = runs_refresh(sweep.session, &made, REFRESH_MS, err);
		vec_done(&made);
	}
	if (r == 0)
		r = sweep_find_code(&sweep, &members, err);
	if (r == 0)
		r = sweep_open(&sweep, ret_missing, err);
	if (r == 0 && submit_starts_together(&sweep.submit) && sweep_none_began(&members))
		return sweep_make_all(&sweep, &members, ret_made, err);
	for (size_t i = 0; r >= 0 && i < members.n; i++) {
		sweep_report(&sweep, i);
		r = members.v[i] ? sweep_restart(&sweep, members.v[i], ret_missing, err)
				 : sweep_make_member(&sweep, i, err);
		*ret_made += members.v[i] ? r > 0 : r == 0;
	}
	return r < 0 ? r : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/submit.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/environment/image_data.h"
#include "app/environment/environment.h"
#include "app/lifecycle/follow.h"
#include "app/lifecycle/hint_excluded.h"
#include "app/prepare/prepare.h"
#include "app/runs/deliver.h"
#include "app/runs/held.h"
#include "app/submit/place_impl.h"
#include "app/submit/spill_impl.h"
#include "app/submit/submit_impl.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/image/code.h"
#include "core/record/finish.h"
#include "core/store/store.h"
#include "snap/tree/record.h"

enum {
	GC_WAIT_MS = 60000,
	LOCK_MS = 2000,    /* others only look for a moment */
	MISSING_MS = 3000, /* how long the end of a run is waited for that cannot begin */
};

/*
 * Phases
 */

static int submit_open(struct submit *submit, struct err *err)
{
	struct session *session = submit->session;
	int r = session_store(session, &submit->store, err);

	if (r == 0 && store_network(submit->store))
		submit_warn(submit,
			"%s lies on a network file system (%s): use it from one machine at a time",
			session->dirs.state, store_network(submit->store));
	if (r == 0)
		r = session_lock(session, false, GC_WAIT_MS, &submit->gc_fd, err);
	return r < 0 ? r : submit_claim(submit, err);
}

static int submit_snapshot(struct submit *submit, struct err *err)
{
	int r = submit_take_snapshot(submit, err);

	if (r < 0)
		return r;
	submit_lookup(submit);
	submit_report_snapshot(submit);
	if (submit->study && submit->missing_program)
		return err_set(err, E_RUN_COMMAND, "no run of the study could begin: %s",
			submit->warnings.v[submit->warnings.n - 1]);
	return 0;
}

/* Make the row durable with the image, in state queued; from then on gc knows the image. */
static int submit_queue(struct submit *submit, struct err *err)
{
	const struct submit_events *events = submit->events;

	submit_set_image(submit);
	run_set_state(submit->run, RUN_QUEUED);
	int r = submit_update_row(submit, err);
	if (r < 0)
		return r;
	auto_fd(&submit->gc_fd);
	submit->gc_fd = -1;
	if (events && events->target)
		events->target(events->ctx, submit->run);
	for (size_t i = 0; events && events->notice && i < submit->notices.n; i++)
		events->notice(events->ctx, submit->notices.v[i]);
	return 0;
}

/* 1: the target has refused the run, which goes on to another of its places. Closes lock_fd. */
static int submit_go_on(struct submit *submit, const struct err *why)
{
	struct run *run = submit->run;
	const struct queue_events events = {0};
	AUTO_ERR struct err ignored = {0};

	/* A study goes to one target as a whole. */
	if (!why || !submit->may_hold || submit->study || !place_is_refusal(why) ||
		!run_may_go_on(run))
		return 0;
	auto_fd(&submit->lock_fd);
	submit->lock_fd = -1;
	return spill_refused(submit->session, run, submit->target, why, &events, &ignored) > 0;
}

int submit_recover(struct submit *submit, int r, struct err *err)
{
	AUTO_FREE char *lock = fs_join(submit->dir, RUN_SUBMIT_LOCK);
	int begun = submit_go_on(submit, err);

	if (begun == 0)
		begun = submit_has_begun(submit);
	if (begun <= 0)
		return begun < 0 ? r : submit_fail_row(submit, r, err);
	err_clear(err);
	/* If that fails it was removed meanwhile: it gets no git record. */
	fs_lock(lock, true, LOCK_MS, &submit->lock_fd, NULL);
	return 0;
}

static int submit_start(struct submit *submit, struct err *err)
{
	const struct target *target = submit->target;
	int r = submit_create(submit, err);

	/* Nothing was sent by a push, nor into the layout here. */
	if (r == 0 && !target->ops->needs_image && !target->ops->is_here) {
		struct json *image = json_sub(submit->run->doc, "image");
		json_set_int(image, "layers_pushed", target->sent_layers);
		json_set_int(image, "bytes_pushed", (int64_t)target->sent_bytes);
	}
	if (r < 0)
		r = submit_recover(submit, r, err);
	if (r == 0) {
		struct json *phases = json_sub(submit->run->doc, "phases_ms");
		json_set_int(phases, "snapshot", submit->snapshot_ms);
		json_set_int(phases, "pack", submit->pack_ms);
		json_set_int(phases, "push", submit->push_ms);
		json_set_int(phases, "submit", submit->submit_ms);
		json_set_int(phases, "total", clock_ms() - submit->begun_ms);
	}
	submit_set_warnings(submit, submit->run);
	return r;
}

/*
 * All of them. A host that is far away is logged in to while the image is written, and chosen by
 * it; a registry gets the image while the tree is read and the target is asked.
 */

/* Accept the run here, if cause, by which it failed, says that nobody answered, or that one of
 * several places has refused it; else r. */
static int submit_hold_or_fail(struct submit *submit, int r, struct err *err)
{
	AUTO_ERR struct err cause = {0};

	if (!err || (!submit_may_hold(submit, err) && !submit_may_go_on(submit, err)))
		return r;
	err_move(&cause, err);
	return submit_hold(submit, submit->spec.after.n ? NULL : &cause, err);
}

/* None of several places takes the run now, and some of them are silent. */
static int submit_all_silent(struct submit *submit, int r, struct err *err)
{
	AUTO_ERR struct err cause = {0};

	err_move(&cause, err);
	int opened = submit_open(submit, err);
	if (opened == 0) {
		err_move(err, &cause);
		r = submit_hold_or_fail(submit, r, err);
	}
	if (opened < 0 || (r < 0 && !submit->run))
		submit_drop(submit);
	return opened < 0 ? opened : r;
}

/* A run that waits for others is kept here where no supervisor waits in its place. */
static int submit_wait_here(struct submit *submit, struct err *err)
{
	int r = submit_open(submit, err);

	if (r == 0)
		r = submit_hold(submit, NULL, err);
	if (r < 0)
		submit_drop(submit);
	return r;
}

int submit_all(struct submit *submit, struct err *err)
{
	typedef int phase_fn(struct submit *, struct err *);
	static phase_fn *const here[] = {submit_snapshot, submit_open, submit_insert_row,
		submit_pack, submit_queue, NULL},
			       *const there[] = {submit_snapshot, submit_open, submit_pack,
				       submit_learn, submit_insert_row, submit_queue, NULL},
			       *const registry[] = {
				       submit_open, environment_push, submit_queue, NULL};

	bool is_silent;

	int r = submit_check_places(submit, &is_silent, err);
	if (r < 0)
		return is_silent && err ? submit_all_silent(submit, r, err) : r;
	const struct target_ops *ops = submit->target->ops;
	if (submit->spec.after.n && !ops->is_here)
		return submit_wait_here(submit, err);
	phase_fn *const *phase = ops->needs_image ? registry : ops->is_here ? here : there;
	for (; r == 0 && *phase; phase++)
		r = (*phase)(submit, err);
	/* A sweep inserts the rows of the others first. */
	if (r == 0)
		return submit_starts_together(submit) ? 0 : submit_start(submit, err);
	r = submit_hold_or_fail(submit, r, err);
	if (r < 0 && submit->run)
		return submit_fail_row(submit, r, err);
	if (r < 0)
		submit_drop(submit);
	return r;
}

int submit_run(struct session *session, const struct submit_options *options,
	const struct submit_events *events, struct run **ret, struct err *err)
{
	AUTO(submit_done)
	struct submit submit = {
		.session = session,
		.options = options,
		.events = events,
		.begun_ms = clock_ms(),
		.is_recorded = true,
		.may_hold = true,
	};

	held_kick(session);
	int r = submit_all(&submit, err);
	if (r == 0)
		deliver_kick(session, submit.run);
	/* A run whose program is missing has failed already: wait until its record says so. */
	if (r == 0 && submit.missing_program)
		runs_wait(session, &(struct run_list){.v = &submit.run, .n = 1, .cap = 1},
			MISSING_MS, NULL, NULL);
	session_end_submit(session);
	if (r == 0)
		held_watch(&session->dirs, submit.run);
	if (r == 0 && submit.lock_fd > 0) {
		session->submitted = TAKE(submit.snapshot);
		session->submitted_fd = TAKE_FD(submit.lock_fd);
	}
	*ret = TAKE(submit.run);
	return r;
}

/*
 * Preview: nothing is written
 */

#define NO_ID "22222"

static int preview_image(struct submit *submit, bool objects, struct err *err)
{
	objects = objects && submit->target->ops->needs_image;
	int r = image_data_preview(submit, err);
	if (r < 0)
		return r;
	if (objects && (!submit->from_digest || submit->reused.image)) {
		submit->pack.dry = true;
		return submit_push(submit, err);
	}
	if (objects)
		submit->ref = mem_strdup(submit->from_ref);
	r = submit_take_snapshot(submit, err);
	if (r == 0)
		submit_lookup(submit);
	return r;
}

static int preview_objects(struct submit *submit, struct submit_preview *ret, struct err *err)
{
	struct target *target = submit->target;
	AUTO_STUDY_WORDS struct study_words words = {0};
	struct target_job job;

	int r = submit_learn(submit, err);
	if (r == 0)
		r = submit_choose_handle(submit, err);
	if (r < 0)
		return r;
	run_add_attempt(submit->run, submit->handle);
	if (submit->code_apart)
		json_set(submit->run->doc, "image",
			submit_image_json(submit, submit->pack.base_name));
	else if (submit->ref)
		json_set_str(json_sub(submit->run->doc, "image"), "ref", submit->ref);
	submit_make_job(submit, submit->run, &job);
	job.image_ref = submit->code_apart ? submit->base_ref : submit->ref;
	if (submit_starts_together(submit))
		r = study_all_words(submit->study, &words, err);
	const struct target_study study = submit_make_study(&job, &words);
	if (words.n)
		job.study = &study;
	return r < 0 ? r : target->ops->preview(target, &job, &ret->objects, &ret->notes, err);
}

int submit_preview(struct session *session, const struct submit_options *options, bool objects,
	struct submit_preview *ret, struct err *err)
{
	AUTO(submit_done)
	struct submit submit = {
		.session = session, .options = options, .dry_run = true, .begun_ms = clock_ms()};
	bool is_silent;

	int r = submit_check_places(&submit, &is_silent, err);
	if (r == 0 && objects && !submit.target->ops->preview) {
		err_set(err, E_TARGET_UNSUPPORTED, "target %s has no objects to print",
			submit.target->name);
		return err_hint(err, "dlrun submit --dry-run -t kube -o yaml …");
	}
	if (r == 0)
		r = preview_image(&submit, objects, err);
	if (r < 0)
		return r;
	snprintf(submit.id, sizeof(submit.id), "%s-" NO_ID, submit.name);
	if (submit.study) {
		/* The first member. */
		struct study *study = submit.study;

		snprintf(study->id, sizeof(study->id), "%s", submit.id);
		submit_set_study(&submit);
		r = submit_begin_study(&submit, err);
	}
	if (r < 0)
		return r;
	submit.run = submit_new_run(&submit);
	if (objects)
		r = preview_objects(&submit, ret, err);
	if (r < 0)
		return r;
	json_set(submit.run->doc, "id", json_null());
	ret->snapshot = TAKE(submit.snapshot);
	ret->doc = TAKE(submit.run->doc);
	strv_copy(&ret->notices, &submit.notices);
	return 0;
}

void submit_preview_done(struct submit_preview *preview)
{
	if (!preview)
		return;
	snapshot_free(preview->snapshot);
	json_free(preview->doc);
	json_free(preview->objects);
	strv_done(&preview->notes);
	strv_done(&preview->notices);
	*preview = (struct submit_preview){0};
}

/*
 * After the start
 */

static char *record_message(const struct run *run)
{
	const char *snapshot = json_get_str(json_get(run->doc, "snapshot"), "id");
	AUTO_STRV struct strv command = {0};
	AUTO_BUF struct buf out = buf_with(64 << 10);

	words_get(run->doc, "command", &command, NULL);
	buf_addf(&out, "dlrun %s\n\n", run_id(run));
	if (command.n > 0)
		str_shell_join(&out, command.v);
	buf_addf(&out, "\n\nDlrun-Run: %s\nDlrun-Snapshot: %s\n", run_id(run), snapshot);
	return buf_take(&out);
}

static int merge_row(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct session *session = ctx;

	return finish_merge(&session->dirs, run);
}

/* Merge here: no target is polled for a run whose end is known, which is when it would be
 * merged. */
static int merge_ended(struct session *session, const char *id, struct err *err)
{
	AUTO_RUN struct run *now = NULL;
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = store_get(store, id, &now, err);
	if (r < 0 || !run_state_is_final(run_state(now)))
		return r;
	return store_change(store, id, merge_row, session, NULL, err);
}

/* Under the lock of the submit: a run that is removed meanwhile would leave its git record. */
void submit_finish(struct session *session, struct run *run, const struct submit_events *events)
{
	AUTO_ERR struct err err = {0};

	excluded_write(&session->dirs, run, session->submitted, NULL);
	if (session->submitted) {
		AUTO_FREE char *message = record_message(run);
		struct json *json = json_sub(run->doc, "snapshot");
		AUTO(record_done) struct record record = {0};
		struct record_request request = {
			.snapshot = session->submitted,
			.run_id = run_id(run),
			.message = message,
			.wall_ms = run_submitted_ms(run),
		};

		record_write(&request, &record);
		json_set_str(json, "ref", record.commit ? record.ref : NULL);
		json_set_str(json, "record", record.commit);
		json_set_str(json, "record_why", record.why);
	}
	int r = finish_write(&session->dirs, run, &err);
	if (r == 0)
		r = merge_ended(session, run_id(run), &err);
	session_end_submit(session);
	if (r < 0) {
		const struct json *before = json_get(run->doc, "warnings");
		struct json *warnings = before ? json_clone(before) : json_array();

		json_add_str(warnings, err.message);
		json_set(run->doc, "warnings", warnings);
		if (events && events->warning)
			events->warning(events->ctx, err.message);
	}
	/* A place has refused it. */
	if (held_is_for_room(run)) {
		held_kick_soon(&session->dirs);
		held_kick(session);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/submit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/lifecycle/follow.h"
#include "app/lifecycle/hint_left_out.h"
#include "app/runs/refresh.h"
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
	START_MS = 120000, /* a cluster may be away for a while */
	KNOW_MS = 5000,
	LOCK_MS = 2000,    /* others only look for a moment */
	MISSING_MS = 3000, /* how long the end of a run is waited for that cannot begin */
};

/*
 * The image
 */

static int write_layers(
	struct submit_course *course, struct layout *layout, const char *dir, struct err *err)
{
	struct submission *submission = &course->submission;
	struct sink *sink = layout_sink(layout);

	int r = pack_write(&submission->pack, submission->snapshot, sink, dir, course->id,
		&course->image, err);
	sink_free(sink);
	return r;
}

static int carry_layers(struct submit_course *course, struct layout *layout, struct err *err)
{
	struct submission *submission = &course->submission;
	struct sink *sink = layout_sink(layout);

	int r = pack_carry(
		&submission->pack, &submission->carried, sink, course->id, &course->image, err);
	sink_free(sink);
	return r;
}

static int write_image(struct submit_course *course, struct err *err)
{
	struct submission *submission = &course->submission;
	const struct submit_events *events = submission->events;
	AUTO_FREE char *dir = dirs_layout(&submission->session->dirs);
	int64_t start_ms = clock_ms();
	struct layout *layout;

	int r = session_layout(submission->session, &layout, err);
	if (r < 0)
		return r;
	if (submission->carried.image)
		r = carry_layers(course, layout, err);
	else if (submission->from_digest)
		r = image_load(layout, submission->from_digest, &course->image, err);
	else
		r = write_layers(course, layout, dir, err);
	if (r < 0)
		return r;
	course->pack_ms = clock_ms() - start_ms;
	course->ref = mem_printf("oci:%s@%s", dir, course->image.manifest.digest);
	if (events && events->image)
		events->image(events->ctx, &course->image, course->pack_ms);
	return 0;
}

static void set_image(struct submit_course *course)
{
	const struct submission *submission = &course->submission;
	const char *base = submission->pack.base_name;

	/* The record of an image that stays in place was copied unchanged from the earlier run. */
	if (!course->image.layers) {
		json_set_str(json_sub(course->run->doc, "image"), "ref", course->ref);
		return;
	}
	if (submission->parent && !submission->carried.image)
		base = json_get_str(json_get(submission->parent->doc, "image"), "base");
	json_set(course->run->doc, "image", pack_image_json(&course->image, course->ref, base));
	submission_set_snapshot(submission, course->run);
}

/*
 * The start
 */

static void add_code_env(struct submit_course *course)
{
	const struct snapshot *taken = course->submission.snapshot;

	run_code_env(course->run, &course->env, &course->defaults);
	if (taken && taken->git.remote_url)
		strv_addf(&course->defaults, "WANDB_GIT_REMOTE_URL=%s", taken->git.remote_url);
}

void submit_make_job(struct submit_course *course, struct target_job *ret)
{
	const struct submission *submission = &course->submission;
	const struct spec *spec = &submission->spec;

	strv_copy(&course->env, &spec->env);
	strv_done(&course->defaults);
	add_code_env(course);
	/* A run that was to have none takes none by accident. */
	if (spec->world.gpus == 0 && config_is_set(submission->config, "resources.gpus")) {
		strv_add(&course->defaults, "CUDA_VISIBLE_DEVICES=");
		strv_add(&course->defaults, "ROCR_VISIBLE_DEVICES=");
	}
	*ret = run_code_job(course->run, spec);
	ret->followed = course->submission.options->followed;
	ret->handle = course->handle;
	ret->env = &course->env;
	ret->default_env = &course->defaults;
	ret->secret_env = &submission->secret_env;
}

/* Into the layout here is no way to anywhere. */
static void set_sent(struct submit_course *course)
{
	const struct target *target = course->submission.target;
	struct json *image = json_sub(course->run->doc, "image");

	json_set_int(image, "layers_pushed", target->sent_layers);
	json_set_int(image, "bytes_pushed", (int64_t)target->sent_bytes);
}

static int start(struct submit_course *course, struct err *err)
{
	struct submission *submission = &course->submission;
	int64_t start_ms = clock_ms();
	struct target_job job;
	int r = 0;

	submit_make_job(course, &job);
	if (submission->target->ops->takes_image_from_registry) {
		job.image_ref = course->ref;
	} else {
		job.image = &course->image;
		r = session_layout(submission->session, &job.layout, err);
	}
	if (r == 0)
		r = target_submit(submission->target, &job, START_MS, err);
	course->submit_ms = clock_ms() - start_ms;
	if (r == 0 && submission->target->ops->asks_first)
		set_sent(course);
	return r;
}

/* Whether it runs all the same, or has run, or never will: asked once nobody can start it any
 * more. */
static int check_failed_start(struct submit_course *course, int r, struct err *err)
{
	struct run_list one = {.v = &course->run, .n = 1, .cap = 1};
	AUTO_FREE char *lock = fs_join(course->dir, RUN_SUBMIT_LOCK);

	auto_fd(&course->lock_fd);
	course->lock_fd = -1;
	/* If the target cannot tell now, a later refresh will. */
	if (!target_knows(course->submission.target, course->handle, KNOW_MS))
		return r;
	if (runs_refresh(course->submission.session, &one, START_MS, NULL) == 0 &&
		!run_never_began(course->run)) {
		err_clear(err);
		/* If that fails it was removed meanwhile: it gets no git record. */
		fs_lock(lock, true, LOCK_MS, &course->lock_fd, NULL);
		return 0;
	}
	return submit_fail_row(course, r, err);
}

static void set_phases(struct submit_course *course)
{
	struct json *phases = json_sub(course->run->doc, "phases_ms");

	json_set_int(phases, "snapshot", course->submission.snapshot_ms);
	json_set_int(phases, "pack", course->pack_ms);
	json_set_int(phases, "push", course->push_ms);
	json_set_int(phases, "submit", course->submit_ms);
	json_set_int(phases, "total", clock_ms() - course->submission.begun_ms);
}

/* With a row and an image, durable: row with image, durable; target. */
static int commit(struct submit_course *course, struct err *err)
{
	const struct submit_events *events = course->submission.events;

	set_image(course);
	run_set_state(course->run, RUN_QUEUED);
	int r = submit_update_row(course, err);
	if (r < 0)
		return submit_fail_row(course, r, err);
	auto_fd(&course->gc_fd);
	course->gc_fd = -1;
	if (events && events->target)
		events->target(events->ctx, course->run);
	for (size_t i = 0; events && events->notice && i < course->submission.notices.n; i++)
		events->notice(events->ctx, course->submission.notices.v[i]);
	r = start(course, err);
	if (r < 0)
		r = check_failed_start(course, r, err);
	if (r == 0)
		set_phases(course);
	submission_set_warnings(&course->submission, course->run);
	return r;
}

/* A run whose program is missing has failed already: wait until its record says so. */
static void wait_for_missing(struct submit_course *course)
{
	struct run_list one = {.v = &course->run, .n = 1, .cap = 1};

	if (course->submission.missing_program)
		runs_wait(course->submission.session, &one, MISSING_MS, NULL, NULL);
}

static int open_store(struct submit_course *course, struct err *err)
{
	struct session *session = course->submission.session;
	int r = session_store(session, &course->store, err);

	if (r == 0 && store_network(course->store))
		submission_warn(&course->submission,
			"%s lies on a network file system (%s): use it from one machine at a time",
			session->dirs.state, store_network(course->store));
	return r < 0 ? r : session_lock(session, false, GC_WAIT_MS, &course->gc_fd, err);
}

static int take_tree(struct submit_course *course, struct err *err)
{
	const struct submission *submission = &course->submission;
	const struct submit_events *events = submission->events;

	int r = submission_take_all(&course->submission, true, err);
	if (r < 0)
		return r;
	if (events && events->snapshot && submission->snapshot)
		events->snapshot(events->ctx, submission->snapshot, submission->snapshot_ms);
	return open_store(course, err);
}

/* The image in the layout here. */
static int go_local(struct submit_course *course, struct err *err)
{
	int r = take_tree(course, err);
	if (r == 0)
		r = submit_claim_id(course, err);
	if (r == 0)
		r = submit_insert_row(course, err);
	if (r < 0)
		return r;
	r = write_image(course, err);
	return r < 0 ? submit_fail_row(course, r, err) : commit(course, err);
}

/* Before the row there is no run, and nothing stays of it. */
static int give_up(struct submit_course *course, int r, const struct err *err)
{
	if (course->run)
		return submit_fail_row(course, r, err);
	submit_drop_id(course);
	return r;
}

/* The image in the layout here, for a place that is far away: it logs in meanwhile. */
static int go_away(struct submit_course *course, struct err *err)
{
	int r = take_tree(course, err);
	if (r == 0)
		r = submit_claim_dir(course, err);
	if (r < 0)
		return r;
	r = write_image(course, err);
	if (r == 0)
		r = submit_learn(course, err);
	if (r == 0)
		r = submit_choose_handle(course, err);
	if (r == 0)
		r = submit_insert_row(course, err);
	return r < 0 ? give_up(course, r, err) : commit(course, err);
}

/* The image in a registry. */
static int go_remote(struct submit_course *course, struct err *err)
{
	int r = open_store(course, err);

	if (r == 0)
		r = submit_claim_id(course, err);
	if (r < 0)
		return r;
	r = submit_push(course, err);
	return r < 0 ? give_up(course, r, err) : commit(course, err);
}

static int go(struct submit_course *course, struct err *err)
{
	const struct target_ops *ops = course->submission.target->ops;

	if (ops->takes_image_from_registry)
		return go_remote(course, err);
	return ops->asks_first ? go_away(course, err) : go_local(course, err);
}

int submit_run(struct session *session, const struct submit_options *options,
	const struct submit_events *events, struct run **ret, struct err *err)
{
	AUTO(submit_course_done)
	struct submit_course course = {
		.submission = {.session = session,
			.options = options,
			.events = events,
			.begun_ms = clock_ms()},
		.gc_fd = -1,
		.lock_fd = -1,
	};
	struct submission *submission = &course.submission;

	int r = submission_check(submission, err);
	if (r < 0)
		return r;
	r = go(&course, err);
	if (r == 0)
		wait_for_missing(&course);
	session_end_submit(session);
	if (r == 0 && course.lock_fd > 0) {
		session->submitted = TAKE(submission->snapshot);
		session->submitted_fd = TAKE_FD(course.lock_fd);
	}
	*ret = TAKE(course.run);
	return r;
}

/*
 * After the start
 */

static char *record_message(const struct run *run)
{
	const char *snapshot = json_get_str(json_get(run->doc, "snapshot"), "id");
	AUTO_STRV struct strv command = {0};
	AUTO_BUF struct buf out;

	words_get(run->doc, "command", &command, NULL);
	buf_init(&out, 64 << 10);
	buf_addf(&out, "dlrun %s\n\n", run_id(run));
	if (command.n > 0)
		str_shell_join(&out, command.v);
	buf_addf(&out, "\n\nDlrun-Run: %s\nDlrun-Snapshot: %s\n", run_id(run), snapshot);
	return buf_take(&out);
}

static void finish_warn(struct run *run, const struct submit_events *events, const char *text)
{
	const struct json *before = json_get(run->doc, "warnings");
	struct json *warnings = before ? json_clone(before) : json_array();

	json_add_str(warnings, text);
	json_set(run->doc, "warnings", warnings);
	if (events && events->warning)
		events->warning(events->ctx, text);
}

static void write_record(
	struct snapshot *snapshot, struct run *run, const struct submit_events *events)
{
	AUTO_FREE char *message = record_message(run);
	struct json *json = json_sub(run->doc, "snapshot");
	AUTO(record_done) struct record record = {0};
	AUTO_ERR struct err err = {0};
	struct record_request request = {
		.snapshot = snapshot,
		.run_id = run_id(run),
		.message = message,
		.wall_ms = run_submitted_ms(run),
	};

	if (record_write(&request, &record, &err) < 0) {
		AUTO_FREE char *text = mem_printf("no git record: %s", err.message);
		finish_warn(run, events, text);
		return;
	}
	json_set_str(json, "ref", record.commit ? record.ref : NULL);
	json_set_str(json, "record", record.commit);
	json_set_str(json, "record_why", record.why);
}

static int merge_row(void *ctx, struct run *run, struct err *err)
{
	const struct session *session = ctx;

	(void)err;
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

	left_out_write(&session->dirs, run, session->submitted, NULL);
	if (session->submitted)
		write_record(session->submitted, run, events);
	int r = finish_write(&session->dirs, run, &err);
	if (r == 0)
		r = merge_ended(session, run_id(run), &err);
	session_end_submit(session);
	if (r < 0)
		finish_warn(run, events, err.message);
}

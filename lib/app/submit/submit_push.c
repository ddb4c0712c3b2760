/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/prepare/pushing.h"
#include "app/submit/submit_impl.h"
#include "base/loop/task.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/image_facts.h"

enum { CHECK_MS = 10000 };

/*
 * A submit to a place that takes its image from a registry. The tree is read, packed and uploaded
 * by a push; meanwhile the target is asked whether the run could be there. Both come together
 * before the image is committed, and there the row is written: what is refused leaves none, and
 * without a row nothing refers to what was uploaded.
 */
struct remote {
	struct submit_course *course;
	struct pushing pushing;
	struct push_events events;
	struct target_call check;
	int64_t asked_ms;
	struct run *draft; /* what the check is about */
	struct strv notes;
	struct err refused;
	struct task *asking; /* waits for the answer of the check */
	bool is_checked;
};

static void remote_done(struct remote *remote)
{
	target_call_cancel(&remote->check);
	run_free(remote->draft);
	pushing_done(&remote->pushing);
	strv_done(&remote->notes);
	err_done(&remote->refused);
}

/*
 * Facts of the base's configuration, for the target
 */

void submit_set_facts(struct submit_course *course)
{
	struct submission *submission = &course->submission;
	const struct config *config = submission->config;
	const struct image_base *base = submission->pack.base;
	const struct image *carried = submission->carried.image;
	AUTO_IMAGE_FACTS struct image_facts facts = {0};

	if (submission->from_digest && !carried)
		return; /* its specification has them, or it was asked */
	image_facts_of_config(base ? base->config_json : NULL, config_str(config, "platform"),
		carried ? carried->workdir : config_str(config, "workdir"), &facts);
	json_free(submission->image_facts);
	submission->image_facts = image_facts_to_json(&facts);
}

/*
 * May the image be committed?
 */

static int answer(struct remote *remote, struct err *err)
{
	struct submit_course *course = remote->course;
	struct submission *submission = &course->submission;
	int r;

	if (err_is_set(&remote->refused))
		return err_copy(err, &remote->refused);
	for (size_t i = 0; i < remote->notes.n; i++)
		submission_warn(submission, "%s", remote->notes.v[i]);
	submit_set_facts(course);
	r = submission_check_program(submission, err);
	/* The check may have told of a better one. */
	if (r == 0)
		r = submit_choose_handle(course, err);
	if (r < 0)
		return r;
	/* Lent for as long as the work stands still. */
	submission->snapshot = remote->pushing.result.snapshot;
	r = submit_insert_row(course, err);
	submission->snapshot = NULL;
	return r;
}

static void tell(struct remote *remote)
{
	AUTO_ERR struct err err = {0};
	struct task *task = TAKE(remote->asking);
	int r = answer(remote, &err);

	task_answer(task, r, &err);
}

static void may_commit(void *ctx, struct task *task)
{
	struct remote *remote = ctx;

	remote->asking = task;
	if (remote->is_checked)
		tell(remote);
}

static int ask_target(struct remote *remote, struct err *err);

static void on_checked(struct target_call *call, int status, struct err *err)
{
	struct remote *remote = (struct remote *)((char *)call - offsetof(struct remote, check));

	if (status < 0 && target_slept(remote->course->submission.target, remote->asked_ms, err)) {
		err_clear(err);
		status = ask_target(remote, err);
		if (status == 0)
			return;
	}
	if (status < 0)
		err_move(&remote->refused, err);
	remote->is_checked = true;
	if (remote->asking)
		tell(remote);
}

/* With what is known before the tree was read. */
static int ask_target(struct remote *remote, struct err *err)
{
	struct submit_course *course = remote->course;
	struct target *target = course->submission.target;
	struct target_job job;

	course->run = TAKE(remote->draft);
	submit_make_job(course, &job);
	job.attempt = 1;
	remote->asked_ms = clock_ms();
	remote->check = (struct target_call){
		.deadline_ms = remote->asked_ms + CHECK_MS, .done = on_checked};
	strv_done(&remote->notes);
	int r = target->ops->check(target, &job, &remote->notes, &remote->check, err);
	/* The check looks at it until it is done. */
	remote->draft = TAKE(course->run);
	return r;
}

static int start_check(struct remote *remote, struct err *err)
{
	struct submit_course *course = remote->course;

	remote->is_checked = !course->submission.target->ops->check;
	if (remote->is_checked)
		return 0;
	remote->draft = submission_run(&course->submission, course->id);
	return ask_target(remote, err);
}

/*
 * The push
 */

static void on_snapshot(void *ctx, const struct snapshot *snapshot, int64_t ms)
{
	struct remote *remote = ctx;
	const struct submit_events *events = remote->course->submission.events;

	remote->course->submission.snapshot_ms = ms;
	if (events && events->snapshot)
		events->snapshot(events->ctx, snapshot, ms);
}

static void on_progress(void *ctx, const struct uploads_progress *progress)
{
	const struct submit_events *events = ((struct remote *)ctx)->course->submission.events;

	if (events->progress)
		events->progress(events->ctx, progress);
}

static void take_result(struct remote *remote)
{
	struct submit_course *course = remote->course;
	struct push_result *result = &remote->pushing.result;
	const struct submit_events *events = course->submission.events;

	course->submission.snapshot = TAKE(result->snapshot);
	course->image = result->image;
	result->image = (struct image){0};
	course->ref = TAKE(result->ref);
	course->push_ms = result->push_ms;
	course->pack_ms = clock_ms() - course->submission.begun_ms -
			  course->submission.snapshot_ms - result->push_ms;
	for (size_t i = 0; i < result->warnings.n; i++)
		submission_warn(&course->submission, "%s", result->warnings.v[i]);
	if (events && events->image)
		events->image(events->ctx, &course->image, course->pack_ms + course->push_ms);
}

int submit_find_registry(struct pushing *pushing, struct err *err)
{
	const char *target = pushing->submission->target->name;
	int r = push_find_registry(pushing, target, err);

	if (r != 0)
		return r < 0 ? r : 0;
	err_set(err, E_CONFIG, "target %s takes images from a registry, and none is known", target);
	return err_hint(err, "registry: registry.example.com/me/dlrun   # in dlrun.yaml");
}

static int push(struct remote *remote, struct err *err)
{
	int r = submit_find_registry(&remote->pushing, err);

	if (r == 0)
		r = start_check(remote, err);
	if (r == 0)
		r = push_to_registry(&remote->pushing, err);
	if (r == 0)
		take_result(remote);
	return r;
}

/* --from: the image is where the earlier run's was. */
static int reuse(struct submit_course *course, struct err *err)
{
	course->ref = mem_strdup(course->submission.from_ref);
	int r = submit_learn(course, err);
	if (r == 0)
		r = submit_choose_handle(course, err);
	return r < 0 ? r : submit_insert_row(course, err);
}

int submit_push(struct submit_course *course, struct err *err)
{
	static const struct push_options no_options;
	AUTO(remote_done)
	struct remote remote = {.course = course};
	struct submission *submission = &course->submission;

	if (submission->from_digest && !submission->carried.image)
		return reuse(course, err);
	remote.events = (struct push_events){.snapshot = on_snapshot, .ctx = &remote};
	if (submission->events && submission->events->progress)
		remote.events.progress = on_progress;
	remote.pushing = (struct pushing){
		.options = &no_options,
		.events = &remote.events,
		.submission = submission,
		.may_commit = may_commit,
		.may_commit_ctx = &remote,
	};
	return push(&remote, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "app/prepare/pushing.h"
#include "app/submit/submit.h"
#include "app/submit/submit_impl.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * Preview of a submit: nothing is written.
 */

#define NO_ID "22222"

/* The image as it would be, without sending it. */
static int find_image(struct submit_course *course, struct err *err)
{
	static const struct push_options dry = {.dry_run = true};
	static const struct push_events no_events;
	struct submission *submission = &course->submission;
	AUTO(pushing_done)
	struct pushing pushing = {
		.options = &dry,
		.events = &no_events,
		.submission = submission,
	};

	submission->pack.dry = true;
	int r = submit_find_registry(&pushing, err);
	if (r == 0)
		r = push_to_registry(&pushing, err);
	if (r < 0)
		return r;
	submission->snapshot = TAKE(pushing.result.snapshot);
	course->ref = TAKE(pushing.result.ref);
	submit_set_facts(course);
	return 0;
}

static int find_objects(struct submit_course *course, struct submit_preview *ret, struct err *err)
{
	struct target *target = course->submission.target;
	struct target_job job;

	int r = submit_learn(course, err);
	if (r == 0)
		r = submit_choose_handle(course, err);
	if (r < 0)
		return r;
	run_add_attempt(course->run, course->handle);
	if (course->ref)
		json_set_str(json_sub(course->run->doc, "image"), "ref", course->ref);
	submit_make_job(course, &job);
	job.image_ref = course->ref;
	return target->ops->preview(target, &job, &ret->objects, &ret->notes, err);
}

static int take(struct submit_course *course, bool objects, struct err *err)
{
	struct submission *submission = &course->submission;

	objects = objects && submission->target->ops->needs_image;
	if (objects && (!submission->from_digest || submission->carried.image))
		return find_image(course, err);
	if (objects)
		course->ref = mem_strdup(submission->from_ref);
	return submission_take_all(submission, false, err);
}

static int check_objects(const struct submission *submission, struct err *err)
{
	if (submission->target->ops->preview)
		return 0;
	err_set(err, E_TARGET_UNSUPPORTED, "target %s has no objects to print",
		submission->target->name);
	return err_hint(err, "dlrun submit --dry-run -t kube -o yaml …");
}

int submit_preview(struct session *session, const struct submit_options *options, bool objects,
	struct submit_preview *ret, struct err *err)
{
	AUTO(submit_course_done)
	struct submit_course course = {
		.submission = {.session = session, .options = options, .begun_ms = clock_ms()},
		.gc_fd = -1,
		.lock_fd = -1,
	};
	struct submission *submission = &course.submission;

	int r = submission_check(submission, err);
	if (r == 0 && objects)
		r = check_objects(submission, err);
	if (r == 0)
		r = take(&course, objects, err);
	if (r < 0)
		return r;
	snprintf(course.id, sizeof(course.id), "%s-" NO_ID, submission->name);
	course.run = submission_run(submission, course.id);
	if (objects)
		r = find_objects(&course, ret, err);
	if (r < 0)
		return r;
	json_set(course.run->doc, "id", json_null());
	ret->snapshot = TAKE(submission->snapshot);
	ret->doc = TAKE(course.run->doc);
	strv_copy(&ret->notices, &submission->notices);
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

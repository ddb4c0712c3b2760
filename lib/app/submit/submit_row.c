/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "app/submit/submit_impl.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"

enum { ID_TRIES = 20, CONFLICT_TRIES = 20 };

void submit_course_done(struct submit_course *course)
{
	auto_fd(&course->gc_fd);
	auto_fd(&course->lock_fd);
	run_free(course->run);
	free(course->dir);
	free(course->ref);
	strv_done(&course->env);
	strv_done(&course->defaults);
	image_done(&course->image);
	submission_done(&course->submission);
}

/*
 * The row
 */

/* The directory is the claim on the id. */
int submit_claim_dir(struct submit_course *course, struct err *err)
{
	const struct dirs *dirs = &course->submission.session->dirs;
	AUTO_FREE char *runs = mem_printf("%s/runs", dirs->state), *lock = NULL;

	int r = fs_mkdirs(runs, 0700, err);
	for (int i = 0; r == 0; i++) {
		run_make_id(course->submission.name, course->id);
		free(course->dir);
		course->dir = dirs_run(dirs, course->id);
		if (mkdir(course->dir, 0700) == 0)
			break;
		if (errno != EEXIST || i == ID_TRIES)
			r = fs_error(err, errno, "making directory %s", course->dir);
	}
	if (r < 0)
		return r;
	lock = fs_join(course->dir, RUN_SUBMIT_LOCK);
	return fs_lock(lock, true, 0, &course->lock_fd, err);
}

void submit_drop_id(struct submit_course *course)
{
	if (course->dir && *course->id)
		fs_remove_tree(AT_FDCWD, course->dir, NULL);
}

static const char *base_of(const struct submission *submission)
{
	if (submission->parent && !submission->carried.image)
		return json_get_str(json_get(submission->parent->doc, "image"), "base");
	return submission->pack.base_name;
}

int submit_learn(struct submit_course *course, struct err *err)
{
	struct target *target = course->submission.target;
	const struct snapshot *taken = course->submission.snapshot;
	const struct target_wish wish = {
		.run_id = course->id,
		.spec = &course->submission.spec,
		.image = course->image.layers ? &course->image : NULL,
		.base = base_of(&course->submission),
		.tree_bytes = taken ? taken->bytes : 0,
	};
	AUTO_STRV struct strv notes = {0};

	int r = target->ops->learn ? target->ops->learn(target, &wish, &notes, err) : 0;
	for (size_t i = 0; r == 0 && i < notes.n; i++)
		submission_warn(&course->submission, "%s", notes.v[i]);
	return r;
}

int submit_choose_handle(struct submit_course *course, struct err *err)
{
	struct target *target = course->submission.target;

	return target->ops->prepare(
		target, course->id, 1, &course->submission.spec, course->handle, err);
}

int submit_claim_id(struct submit_course *course, struct err *err)
{
	int r = submit_claim_dir(course, err);
	if (r == 0)
		r = submit_choose_handle(course, err);
	if (r < 0)
		submit_drop_id(course);
	return r;
}

int submit_insert_row(struct submit_course *course, struct err *err)
{
	course->run = submission_run(&course->submission, course->id);
	run_add_attempt(course->run, course->handle);
	int r = store_insert(course->store, course->run, err);
	if (r < 0) {
		submit_drop_id(course);
		run_free(TAKE(course->run));
	}
	return r;
}

/* Keep what other processes may have noted: that the run is to be cancelled, or when it was
 * polled. */
static int take_changes(struct submit_course *course, struct err *err)
{
	AUTO_RUN struct run *now = NULL;
	int r = store_get(course->store, course->id, &now, err);

	if (r < 0)
		return r;
	if (run_state_is_final(run_state(now)))
		return err_set(err, E_RUN_ENDED, "%s was ended by another dlrun", course->id);
	json_set_bool(course->run->doc, "cancelling", run_cancelling(now));
	course->run->revision = now->revision;
	return 0;
}

int submit_update_row(struct submit_course *course, struct err *err)
{
	for (int i = 0;; i++) {
		AUTO_ERR struct err changed = {0};
		int r = store_update_known(course->store, course->run, &changed);
		if (r == 0)
			return 0;
		if (changed.id != E_STORE_CHANGED || i == CONFLICT_TRIES)
			return err_move(err, &changed);
		r = take_changes(course, err);
		if (r < 0)
			return r;
	}
}

/* After the row there is a run: how it failed is for its record. */
int submit_fail_row(struct submit_course *course, int r, const struct err *err)
{
	struct run_exit exit = {
		.known = true, .code = 125, .origin = "dlrun", .reason = "StartFailed"};
	struct run *run = course->run;

	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &exit);
	run_set_attempt_exit(run, &exit, 0, clock_wall_ms());
	json_set_str(run->doc, "text", err->message);
	submit_update_row(course, NULL);
	return r;
}

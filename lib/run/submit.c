#include "run/submit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "run/attempt.h"
#include "run/code_env.h"
#include "run/finish.h"
#include "run/hint_left_out.h"
#include "run/ops.h"
#include "run/store.h"
#include "run/submission.h"
#include "run/words.h"
#include "snap/record.h"

enum {
	GC_WAIT_MS = 60000,
	START_MS = 30000,
	LOCK_MS = 2000,    /* others only look for a moment */
	MISSING_MS = 3000, /* how long the end of a run is waited for that cannot begin */
	ID_TRIES = 20,
	CONFLICT_TRIES = 20,
};

/* What a submit holds and makes on disk. */
struct course {
	struct submission submission;
	struct store *store;
	struct run *run;
	char id[RUN_ID_SIZE];
	char handle[TARGET_HANDLE_SIZE];
	char *dir;   /* of the run */
	int gc_fd;   /* until the row names the image */
	int lock_fd; /* submit.lock, until submit_finish */
	struct image image;
	char *ref; /* of the image */
	int64_t pack_ms, submit_ms;
};

static void course_done(struct course *course)
{
	auto_fd(&course->gc_fd);
	auto_fd(&course->lock_fd);
	run_free(course->run);
	free(course->dir);
	free(course->ref);
	image_done(&course->image);
	submission_done(&course->submission);
}

static int prepare(struct submission *submission, bool write, struct err *err)
{
	int64_t start_ms = clock_ms();

	submission->begun_ms = start_ms;
	int r = submission_check(submission, err);
	if (r == 0)
		r = submission_take(submission, write, err);
	submission->snapshot_ms = clock_ms() - start_ms;
	if (r == 0)
		submission_look_up(submission);
	return r;
}

/*
 * The row
 */

/* The directory is the claim on the id. */
static int make_dir(struct course *course, struct err *err)
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

/* Before there is a row nobody knows of the run: nothing stays. */
static void remove_dir(struct course *course)
{
	if (course->dir && *course->id)
		fs_remove_tree(AT_FDCWD, course->dir, NULL);
}

static int insert_row(struct course *course, struct err *err)
{
	struct submission *submission = &course->submission;
	struct target *target = submission->target;

	int r = make_dir(course, err);
	if (r == 0)
		r = target->ops->prepare(target, course->id, 1, course->handle, err);
	if (r == 0) {
		course->run = submission_run(submission, course->id);
		run_add_attempt(course->run, course->handle);
		r = store_insert(course->store, course->run, err);
	}
	if (r < 0) {
		remove_dir(course);
		run_free(TAKE(course->run));
	}
	return r;
}

/* Others may have noted that it is to be cancelled, or when it was looked at: that stays. */
static int take_changes(struct course *course, struct err *err)
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

static int update_row(struct course *course, struct err *err)
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
static int fail_row(struct course *course, int r, const struct err *err)
{
	struct run_exit exit = {
		.known = true, .code = 125, .origin = "dlrun", .reason = "StartFailed"};
	struct run *run = course->run;

	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &exit);
	run_set_attempt_exit(run, &exit, 0, clock_wall_ms());
	json_set_str(run->doc, "text", err->message);
	update_row(course, NULL);
	return r;
}

/*
 * The image
 */

static int write_layers(
	struct course *course, struct layout *layout, const char *dir, struct err *err)
{
	struct submission *submission = &course->submission;
	struct sink *sink = layout_sink(layout);

	int r = pack_write(&submission->pack, submission->snapshot, sink, dir, course->id,
		&course->image, err);
	sink_free(sink);
	return r;
}

static int write_image(struct course *course, struct err *err)
{
	struct submission *submission = &course->submission;
	const struct submit_events *events = submission->events;
	AUTO_FREE char *dir = dirs_layout(&submission->session->dirs);
	int64_t start_ms = clock_ms();
	struct layout *layout;

	int r = session_layout(submission->session, &layout, err);
	if (r < 0)
		return r;
	if (submission->from_digest)
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

static void set_image(struct course *course)
{
	const struct submission *submission = &course->submission;
	const char *base = submission->pack.base_name;

	if (submission->parent)
		base = json_get_str(json_get(submission->parent->doc, "image"), "base");
	json_set(course->run->doc, "image", pack_image_json(&course->image, course->ref, base));
	submission_set_snapshot(submission, course->run);
}

/*
 * The start
 */

static void add_code_env(const struct course *course, struct strv *env, struct strv *defaults)
{
	const struct snapshot *taken = course->submission.snapshot;

	run_code_env(course->run, env, defaults);
	if (taken && taken->git.remote_url)
		strv_addf(defaults, "WANDB_GIT_REMOTE_URL=%s", taken->git.remote_url);
}

static int start(struct course *course, struct err *err)
{
	struct submission *submission = &course->submission;
	const struct spec *spec = &submission->spec;
	AUTO_STRV struct strv env = {0}, defaults = {0};
	int64_t start_ms = clock_ms();
	struct layout *layout;

	int r = session_layout(submission->session, &layout, err);
	if (r < 0)
		return r;
	strv_copy(&env, &spec->env);
	add_code_env(course, &env, &defaults);
	/* A run that was to have none takes none by accident. */
	if (spec->world.gpus == 0 && config_is_set(submission->config, "resources.gpus")) {
		strv_add(&defaults, "CUDA_VISIBLE_DEVICES=");
		strv_add(&defaults, "ROCR_VISIBLE_DEVICES=");
	}
	struct target_job job = run_code_job(course->run, spec);
	job.handle = course->handle;
	job.env = &env;
	job.default_env = &defaults;
	job.secret_env = &submission->secret_env;
	job.layout = layout;
	job.image = &course->image;
	r = target_submit(submission->target, &job, START_MS, err);
	course->submit_ms = clock_ms() - start_ms;
	return r;
}

/* Whether it runs all the same, or has run, or never will: asked once nobody can start it any
 * more. */
static int check_failed_start(struct course *course, int r, struct err *err)
{
	struct run_list one = {.v = &course->run, .n = 1, .cap = 1};
	AUTO_FREE char *lock = fs_join(course->dir, RUN_SUBMIT_LOCK);

	auto_fd(&course->lock_fd);
	course->lock_fd = -1;
	if (runs_refresh(course->submission.session, &one, START_MS, NULL) == 0 &&
		!run_never_began(course->run)) {
		err_clear(err);
		/* If that fails it was removed meanwhile: it gets no git record. */
		fs_lock(lock, true, LOCK_MS, &course->lock_fd, NULL);
		return 0;
	}
	return fail_row(course, r, err);
}

static void set_phases(struct course *course)
{
	struct json *phases = json_sub(course->run->doc, "phases_ms");

	json_set_int(phases, "snapshot", course->submission.snapshot_ms);
	json_set_int(phases, "pack", course->pack_ms);
	json_set_int(phases, "push", 0);
	json_set_int(phases, "submit", course->submit_ms);
	json_set_int(phases, "total", clock_ms() - course->submission.begun_ms);
}

/* With a row: image, durable; row with image, durable; target. */
static int go(struct course *course, struct err *err)
{
	const struct submit_events *events = course->submission.events;

	int r = write_image(course, err);
	if (r < 0)
		return fail_row(course, r, err);
	set_image(course);
	run_set_state(course->run, RUN_QUEUED);
	r = update_row(course, err);
	if (r < 0)
		return fail_row(course, r, err);
	auto_fd(&course->gc_fd);
	course->gc_fd = -1;
	if (events && events->target)
		events->target(events->ctx, course->run);
	if (events && events->notice && course->submission.notice)
		events->notice(events->ctx, course->submission.notice);
	r = start(course, err);
	if (r < 0)
		r = check_failed_start(course, r, err);
	if (r == 0)
		set_phases(course);
	submission_set_warnings(&course->submission, course->run);
	return r;
}

/* It has failed already: its record says so at once. */
static void wait_for_missing(struct course *course)
{
	struct run_list one = {.v = &course->run, .n = 1, .cap = 1};

	if (course->submission.missing_program)
		runs_wait(course->submission.session, &one, MISSING_MS, NULL, NULL);
}

static int open_store(struct course *course, struct err *err)
{
	struct session *session = course->submission.session;
	int r = session_store(session, &course->store, err);

	if (r == 0 && store_network(course->store))
		submission_warn(&course->submission,
			"%s lies on a network file system (%s): use it from one machine at a time",
			session->dirs.state, store_network(course->store));
	return r < 0 ? r : session_lock(session, false, GC_WAIT_MS, &course->gc_fd, err);
}

int submit_run(struct session *session, const struct submit_options *options,
	const struct submit_events *events, struct run **ret, struct err *err)
{
	AUTO(course_done)
	struct course course = {
		.submission = {.session = session, .options = options, .events = events},
		.gc_fd = -1,
		.lock_fd = -1,
	};
	struct submission *submission = &course.submission;

	int r = prepare(submission, true, err);
	if (r < 0)
		return r;
	if (events && events->snapshot && submission->snapshot)
		events->snapshot(events->ctx, submission->snapshot, submission->snapshot_ms);
	r = open_store(&course, err);
	if (r == 0)
		r = insert_row(&course, err);
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

/* Nobody asks for the state of a run whose end is known, which is when it would be merged. */
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

/*
 * What would be
 */

int submit_preview(struct session *session, const struct submit_options *options,
	struct submit_preview *ret, struct err *err)
{
	AUTO(submission_done)
	struct submission submission = {.session = session, .options = options};

	int r = prepare(&submission, false, err);
	if (r < 0)
		return r;
	AUTO_FREE char *id = mem_printf("%s-22222", submission.name);
	AUTO_RUN struct run *run = submission_run(&submission, id);
	json_set(run->doc, "id", json_null());
	ret->snapshot = TAKE(submission.snapshot);
	ret->doc = TAKE(run->doc);
	return 0;
}

void submit_preview_done(struct submit_preview *preview)
{
	if (!preview)
		return;
	snapshot_free(preview->snapshot);
	json_free(preview->doc);
	*preview = (struct submit_preview){0};
}

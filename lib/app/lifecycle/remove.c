/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/remove.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "app/lifecycle/calls.h"
#include "app/runs/after_check.h"
#include "app/runs/refresh.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/store/store.h"
#include "snap/tree/record.h"
#include "targets/targets.h"

/*
 * Forgetting a run. The row goes last, so that whatever stops us leaves a run that can be removed
 * again: each step before it takes what it finds and is content with nothing.
 *
 *	locks      nobody submits it, no supervisor writes its last lines
 *	git ref    small, and it may be refused: before anything is lost
 *	target     what its attempts keep there; it may be out of reach
 *	directory  logs and outputs; its name is gone from the disk before the row is
 *	row
 *
 * The image stays in the layout until gc finds its name without a row. What makes a spare tree has
 * the directory as its own, but needs nothing in it, and may go on.
 */

enum {
	TIMEOUT_MS = 5000, /* for a supervisor that writes its last lines */
	FORGET_MS = 30000,
	REFRESH_MS = 5000,
};

struct removal {
	struct session *session;
	struct store *store;
	const char *id;
	char *dir;       /* of the run */
	struct run *run; /* as the store has it now */
	struct VEC_OF(int) locks;
	int64_t deadline_ms; /* for them */
	bool is_ref_left;    /* there was no space to remove the git ref */
};

static void remove_removal_done(struct removal *removal)
{
	vec_foreach (int, fd, &removal->locks)
		auto_fd(fd);
	vec_done(&removal->locks);
	free(removal->dir);
	run_free(removal->run);
}

static int check_ended(const struct run *run, struct err *err)
{
	if (run_state_is_final(run_state(run)))
		return 0;
	err_set(err, E_RUN_RUNNING, "%s has not ended: it is %s", run_id(run),
		run_state_name(run_state(run)));
	return err_hint(err, "dlrun cancel %s", run_id(run));
}

/* Hold dir/name. A directory that is not there needs no lock. */
static int remove_hold(struct removal *removal, const char *dir, const char *name,
	int64_t deadline_ms, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_ERR struct err error = {0};
	int64_t left_ms = deadline_ms - clock_ms();
	int fd = -1;

	int r = fs_lock(path, true, left_ms > 0 ? left_ms : 0, &fd, &error);
	if (r == 0)
		*vec_push(&removal->locks) = fd;
	else if (access(dir, F_OK) < 0 && errno == ENOENT)
		r = 0;
	return r < 0 ? err_move(err, &error) : 0;
}

/* The state in the store may be outdated, since a full disk prevents updates: refresh it. */
static int check_now(struct session *session, struct run *now, struct err *err)
{
	struct run_list one = {.v = &now, .n = 1, .cap = 1};
	int r = run_state_is_final(run_state(now)) ? 0
						   : runs_refresh(session, &one, REFRESH_MS, err);

	return r < 0 ? r : check_ended(now, err);
}

static int remove_ref(const struct run *run, struct err *err)
{
	AUTO_FREE char *root = words_get_one(json_get(run->doc, "origin"), "root");

	/* Remove the ref whatever commit it names: the submit may have died before recording
	 * that. */
	return root ? record_remove(root, run_id(run), NULL, err) : 0;
}

/* A local target may have lost its name with the configuration that gave it. */
static int remove_open_target(
	struct removal *removal, const struct run *run, struct target **ret, struct err *err)
{
	if (target_ops_recorded(run)->is_here || !run_target(run))
		return target_open(removal->session, "local", ret, err);
	return target_open_run(removal->session, run, ret, err);
}

static int remove_dir(struct removal *removal, struct err *err)
{
	int r = fs_remove_tree(AT_FDCWD, removal->dir, err);

	if (r < 0 && access(removal->dir, F_OK) < 0 && errno == ENOENT) {
		/* Another process was removing it, too. */
		err_clear(err);
		r = 0;
	}
	return r;
}

static int remove_sync(struct session *session, struct err *err)
{
	AUTO_FREE char *parent = fs_join(session->dirs.state, "runs");

	return access(parent, F_OK) < 0 ? 0 : fs_sync_dir(parent, err);
}

/* Copies of its event files: nobody would look for them any more. */
static void remove_mirror(const struct removal *removal, bool scalars_only)
{
	AUTO_FREE char *mirrors = dirs_mirror(&removal->session->dirs, scalars_only);
	AUTO_FREE char *dir = fs_join(mirrors, removal->id);

	fs_remove_tree(AT_FDCWD, dir, NULL);
}

/* Until the places forget what attempts keep there. */
static int remove_begin(struct removal *removal, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int r = 0;

	for (int i = 1; r == 0 && i <= run_attempts(removal->run); i++) {
		AUTO_FREE char *dir = dirs_attempt(&removal->session->dirs, removal->id, i);
		r = remove_hold(removal, dir, ATTEMPT_LOCK, removal->deadline_ms, err);
	}

	/* A ref that cannot be removed for lack of space is removed once there is space. */
	if (r == 0 && remove_ref(removal->run, &error) < 0) {
		removal->is_ref_left = error.id == E_IO_FULL;
		r = removal->is_ref_left ? 0 : err_move(err, &error);
	}
	return r < 0 ? err_prefix(err, "removing %s", removal->id) : 0;
}

static void remove_fail(const struct removal *removal, const struct err *error, struct err *ret)
{
	if (error)
		err_copy(ret, error);
	err_prefix(ret, "removing %s", removal->id);
}

/* Remove the rows of those without an error; theirs is that of all. */
static int remove_rows(
	const struct removal *removals, size_t n, const struct err *errs, struct err *err)
{
	AUTO_STRV struct strv ids = {0};
	struct store *store = NULL;

	for (size_t i = 0; i < n; i++) {
		if (err_is_set(&errs[i]))
			continue;
		store = removals[i].store;
		strv_add(&ids, removals[i].id);
	}
	return store ? store_remove_all(store, &ids, err) : 0;
}

/* Remove the directories of some runs here, then their rows, all by one write to the disk each.
 * Errors go to those of the runs; a run that has one is left out. */
static void remove_all_here(
	struct session *session, struct removal *removals, size_t n, struct err *errs)
{
	AUTO_ERR struct err error = {0};

	for (size_t i = 0; i < n; i++)
		if (!err_is_set(&errs[i]) && remove_dir(&removals[i], &errs[i]) < 0)
			remove_fail(&removals[i], NULL, &errs[i]);
	int r = remove_sync(session, &error);
	for (size_t i = 0; r == 0 && i < n; i++)
		if (!err_is_set(&errs[i]) && removals[i].is_ref_left &&
			remove_ref(removals[i].run, &errs[i]) < 0)
			remove_fail(&removals[i], NULL, &errs[i]);
	if (r == 0)
		r = remove_rows(removals, n, errs, &error);
	for (size_t i = 0; i < n; i++) {
		if (err_is_set(&errs[i]))
			continue;
		if (r < 0)
			remove_fail(&removals[i], &error, &errs[i]);
		for (int k = 0; r == 0 && k < 2; k++)
			remove_mirror(&removals[i], k);
	}
}

/* Lock the run, and read it again. */
static int remove_hold_run(
	struct removal *removal, struct session *session, const struct run *run, struct err *err)
{
	*removal = (struct removal){
		.session = session, .id = run_id(run), .deadline_ms = clock_ms() + TIMEOUT_MS};
	removal->dir = dirs_run(&session->dirs, removal->id);
	int r = session_store(session, &removal->store, err);
	if (r == 0)
		r = check_ended(run, err);
	if (r == 0)
		r = remove_hold(removal, removal->dir, RUN_SUBMIT_LOCK, removal->deadline_ms, err);
	/* Another process may have restarted the run meanwhile; from now on none can. */
	if (r == 0)
		r = store_get(removal->store, removal->id, &removal->run, err);
	return r < 0 ? r : check_now(session, removal->run, err);
}

/*
 * Files of attempts at their targets
 */

struct remove_attempt {
	struct removal *removal;
	struct err *err; /* of the run */
	const char *handle;
	struct run *left; /* of one that was taken back: at the target that it had then */
	struct target *target;
};
struct remove_attempts VEC_OF(struct remove_attempt);

static void remove_attempts_done(struct remove_attempts *attempts)
{
	vec_foreach (struct remove_attempt, attempt, attempts)
		run_free(attempt->left);
	vec_done(attempts);
}

/* An attempt that was taken back has little there, and stops no removal. */
static void remove_add_left(
	struct removal *removal, const struct json *attempt, struct remove_attempts *ret)
{
	const char *handle = json_get_str(attempt, "withdrawn");
	const struct json *target = json_get(attempt, "target");

	if (!handle || json_kind(target) != JSON_OBJECT)
		return;
	struct run *left = run_new(removal->id, run_name(removal->run));
	json_set(left->doc, "target", json_clone(target));
	*vec_push(ret) =
		(struct remove_attempt){.removal = removal, .handle = handle, .left = left};
}

static void remove_add_attempts(
	struct removal *removal, struct err *err, struct remove_attempts *ret)
{
	const struct json *list = json_get(removal->run->doc, "attempts");

	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		const char *handle = json_get_str(item, "handle");
		if (handle)
			*vec_push(ret) = (struct remove_attempt){
				.removal = removal, .err = err, .handle = handle};
		else
			remove_add_left(removal, item, ret);
	}
}

static int remove_on_start(void *ctx, size_t i, struct target_call *call, struct err *err)
{
	struct remove_attempt *attempt = &((struct remove_attempts *)ctx)->v[i];
	const struct run *run = attempt->left ? attempt->left : attempt->removal->run;
	int r = remove_open_target(attempt->removal, run, &attempt->target, err);

	return r < 0 ? r
		     : attempt->target->ops->forget(
			       attempt->target, attempt->handle, true, call, err);
}

static void remove_on_done(void *ctx, size_t i, int status, struct err *err)
{
	struct remove_attempt *attempt = &((struct remove_attempts *)ctx)->v[i];

	target_free(TAKE(attempt->target));
	if (status == 0 || attempt->left || err_is_set(attempt->err))
		return;
	err_move(attempt->err, err);
	err_prefix(attempt->err, "removing %s", attempt->removal->id);
}

/* A run that waits would not learn how this one has ended. */
static int remove_check_waiting(
	const struct run_list *unfinished, const struct run *run, struct err *err)
{
	vec_foreach (struct run *, other, unfinished) {
		if (!after_waits_for(*other, run))
			continue;
		err_set(err, E_RUN_RUNNING, "%s is to begin after %s", run_id(*other), run_id(run));
		return err_hint(err, "dlrun cancel %s", run_id(*other));
	}
	return 0;
}

static bool remove_is_among(const struct run_list *runs, const char *id)
{
	vec_foreach (struct run *, run, runs)
		if (str_eq(run_id(*run), id))
			return true;
	return false;
}

int runs_remove_check(struct session *session, const struct run_list *runs, struct err *err)
{
	AUTO(run_list_done) struct run_list unfinished = {0}, others = {0};

	int r = runs_unfinished(session, NULL, &unfinished, err);
	for (size_t i = 0; r == 0 && i < unfinished.n; i++)
		if (!remove_is_among(runs, run_id(unfinished.v[i])))
			*vec_push(&others) = TAKE(unfinished.v[i]);
	for (size_t i = 0; r == 0 && i < runs->n; i++)
		r = remove_check_waiting(&others, runs->v[i], err);
	return r;
}

/* At most CALLS_AT_ONCE runs. */
static int remove_some(struct session *session, struct run *const *runs, size_t n, struct err *errs,
	struct err *err)
{
	AUTO(run_list_done) struct run_list unfinished = {0};
	struct remove_attempts attempts = {0};

	int r = runs_unfinished(session, NULL, &unfinished, err);
	if (r < 0)
		return r;
	struct removal *removals = mem_alloc(n, sizeof(*removals));
	for (size_t i = 0; i < n; i++) {
		r = remove_hold_run(&removals[i], session, runs[i], &errs[i]);
		if (r == 0)
			r = remove_check_waiting(&unfinished, runs[i], &errs[i]);
		if (r == 0)
			r = remove_begin(&removals[i], &errs[i]);
		if (r == 0)
			remove_add_attempts(&removals[i], &errs[i], &attempts);
	}
	/* Errors go to those of the runs. */
	const struct calls calls = {.n = attempts.n,
		.timeout_ms = FORGET_MS,
		.start = remove_on_start,
		.done = remove_on_done,
		.ctx = &attempts};
	r = calls_run(session_loop(session), &calls, err);

	vec_foreach (struct remove_attempt, attempt, &attempts)
		target_free(attempt->target);
	remove_attempts_done(&attempts);
	if (r == 0)
		remove_all_here(session, removals, n, errs);
	for (size_t i = 0; i < n; i++)
		remove_removal_done(&removals[i]);
	free(removals);
	return r;
}

int runs_remove(
	struct session *session, const struct run_list *runs, struct err *ret, struct err *err)
{
	int r = 0;

	for (size_t at = 0; r == 0 && at < runs->n; at += CALLS_AT_ONCE) {
		size_t left = runs->n - at;
		r = remove_some(session, runs->v + at, left < CALLS_AT_ONCE ? left : CALLS_AT_ONCE,
			ret + at, err);
	}
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/restart.h"

#include <stdlib.h>
#include <unistd.h>

#include "app/lifecycle/retry.h"
#include "app/prepare/carry.h"
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
#include "core/record/spec.h"
#include "core/store/store.h"
#include "targets/targets.h"

/*
 * The next attempt of a run that has ended: the same code, specification and outputs. Its handle is
 * durable in the row before the target is told, and RUN_SUBMIT_LOCK is held until the target has
 * it, so that whoever looks after a kill finds either the run as it was, or an attempt that works,
 * or one that never began (attempt.h) and can be restarted in its turn.
 */

enum {
	LOCK_MS = 5000,    /* a submit may still write its git record */
	START_MS = 120000, /* a cluster may be away for a while */
	KNOW_MS = 5000,
};

struct restart {
	struct session *session;
	struct store *store;
	struct run *run; /* as the store has it */
	struct target *target;
	struct spec spec;
	struct strv secrets, env, defaults;
	struct image image;
	char *dir;
	char *carried_ref; /* the image with results of the attempt before; or NULL */
	char handle[TARGET_HANDLE_SIZE];
	int lock_fd;
	int after; /* that attempt, as a retry; 0: whatever there is */
};

static void restart_done(struct restart *restart)
{
	run_free(restart->run);
	target_free(restart->target);
	spec_done(&restart->spec);
	strv_done(&restart->secrets);
	strv_done(&restart->env);
	strv_done(&restart->defaults);
	image_done(&restart->image);
	free(restart->dir);
	free(restart->carried_ref);
	auto_fd(&restart->lock_fd);
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
	if (run_image_digest(run))
		return 0;
	err_set(err, E_IMAGE_BASE, "%s ended before its code was kept", run_id(run));
	return err_hint(err, "dlrun submit");
}

/* Two watchers begin a single retry. */
static int check(const struct restart *restart, const struct run *run, struct err *err)
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
		missing->v[0], run_id(restart->run));
}

static int load_image(struct restart *restart, struct err *err)
{
	struct layout *layout;
	int r = session_layout(restart->session, &layout, err);

	return r < 0 ? r : image_load(layout, run_image_digest(restart->run), &restart->image, err);
}

static int choose_handle(struct restart *restart, struct err *err)
{
	struct target *target = restart->target;
	const char *id = run_id(restart->run);

	const struct target_wish wish = {
		.run_id = id,
		.spec = &restart->spec,
		.image = restart->image.layers ? &restart->image : NULL,
		.base = json_get_str(json_get(restart->run->doc, "image"), "base"),
		.tree_bytes =
			(uint64_t)json_get_int(json_get(restart->run->doc, "snapshot"), "bytes", 0),
	};
	AUTO_STRV struct strv notes = {0};
	int r = 0;

	/* A retry goes on as it began, so that its failures stay counted in one place. */
	if (target->ops->learn && !restart->after)
		r = target->ops->learn(target, &wish, &notes, err);
	if (r < 0)
		return r;
	return target->ops->prepare(
		target, id, run_attempts(restart->run) + 1, &restart->spec, restart->handle, err);
}

/* Everything that may fail without an effect. */
static int prepare(
	struct restart *restart, struct strv *ret_missing, struct strv *ret_notes, struct err *err)
{
	struct session *session = restart->session;
	struct run *run = restart->run;

	int r = spec_from_json(run->spec, &restart->spec, err);
	if (r == 0)
		r = secrets_again(
			session, run, &restart->spec.secrets, &restart->secrets, ret_missing, err);
	if (restart->secrets.n > 0)
		os_protect_memory();
	if (r == 0)
		r = check_missing(restart, ret_missing, err);
	if (r == 0)
		r = target_open_run(session, run, &restart->target, err);
	if (r == 0 && restart->target->ops->warm)
		restart->target->ops->warm(restart->target);
	if (r == 0 && !restart->target->ops->takes_image_from_registry)
		r = load_image(restart, err);
	if (r == 0)
		r = choose_handle(restart, err);
	if (r == 0 && restart->target->ops->takes_image_from_registry)
		r = carry_make(
			session, restart->target, run, &restart->carried_ref, ret_notes, err);
	return r < 0 ? err_prefix(err, "restarting %s", run_id(run)) : 0;
}

static int hold(struct restart *restart, const struct run *run, struct err *err)
{
	AUTO_FREE char *lock = NULL;

	restart->dir = dirs_run(&restart->session->dirs, run_id(run));
	lock = fs_join(restart->dir, RUN_SUBMIT_LOCK);
	int r = fs_mkdirs(restart->dir, 0700, err);
	if (r == 0)
		r = fs_lock(lock, true, LOCK_MS, &restart->lock_fd, err);
	/* Another process may have restarted the run meanwhile; from now on none can. */
	if (r == 0)
		r = store_get(restart->store, run_id(run), &restart->run, err);
	return r < 0 ? r : check(restart, restart->run, err);
}

static int add_attempt(void *ctx, struct run *run, struct err *err)
{
	const struct restart *restart = ctx;
	int r = check(restart, run, err);

	if (r < 0)
		return r;
	json_remove(run->doc, RUN_RETRIES_STOPPED);
	if (!restart->after)
		json_set_int(run->doc, RUN_RETRIES_FROM, run_attempts(run));
	run_add_attempt(run, restart->handle);
	if (restart->carried_ref)
		run_set_attempt_image(run, restart->carried_ref);
	run_set_state(run, RUN_QUEUED);
	return 1;
}

static int write_row(struct restart *restart, struct err *err)
{
	struct run *now = NULL;
	int r = store_change(restart->store, run_id(restart->run), add_attempt, restart, &now, err);

	if (r < 0)
		return r;
	run_free(restart->run);
	restart->run = now;
	return 0;
}

static int start(struct restart *restart, struct err *err)
{
	const struct spec *spec = &restart->spec;
	const struct run *run = restart->run;
	int r = 0;

	strv_copy(&restart->env, &spec->env);
	run_code_env(run, &restart->env, &restart->defaults);
	struct target_job job = run_code_job(run, spec);
	job.handle = restart->handle;
	job.env = &restart->env;
	job.default_env = &restart->defaults;
	job.secret_env = &restart->secrets;
	if (restart->target->ops->takes_image_from_registry) {
		job.image_ref = restart->carried_ref
					? restart->carried_ref
					: json_get_str(json_get(run->doc, "image"), "ref");
		job.carries = restart->carried_ref != NULL;
	} else {
		job.image = &restart->image;
		r = session_layout(restart->session, &job.layout, err);
	}
	return r < 0 ? r : target_submit(restart->target, &job, START_MS, err);
}

/* Whether it runs all the same: asked once nobody can start it any more. The record tells the rest:
 * an attempt that never began. */
static int check_failed_start(struct restart *restart, int r, struct err *err)
{
	struct run_list one = {.v = &restart->run, .n = 1, .cap = 1};

	auto_fd(&restart->lock_fd);
	restart->lock_fd = -1;
	/* If the target cannot tell now, a later refresh will. */
	if (!target_knows(restart->target, restart->handle, KNOW_MS))
		return r;
	if (runs_refresh(restart->session, &one, START_MS, NULL) < 0 ||
		run_never_began(restart->run))
		return r;
	err_clear(err);
	return 0;
}

int run_restart(struct session *session, const struct run *run, struct strv *ret_missing,
	struct strv *ret_notes, struct run **ret, struct err *err)
{
	return run_restart_after(session, run, 0, ret_missing, ret_notes, ret, err);
}

int run_restart_after(struct session *session, const struct run *run, int after,
	struct strv *ret_missing, struct strv *ret_notes, struct run **ret, struct err *err)
{
	AUTO(restart_done)
	struct restart restart = {.session = session, .lock_fd = -1, .after = after};

	int r = check_state(run, err);
	if (r == 0)
		r = session_store(session, &restart.store, err);
	if (r == 0)
		r = hold(&restart, run, err);
	if (r == 0)
		r = prepare(&restart, ret_missing, ret_notes, err);
	if (r == 0)
		r = write_row(&restart, err);
	if (r < 0)
		return r;
	r = start(&restart, err);
	if (r < 0)
		r = check_failed_start(&restart, r, err);
	*ret = TAKE(restart.run);
	return r;
}

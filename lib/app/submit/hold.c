/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/submit_impl.h"

#include <fcntl.h>
#include <stdlib.h>

#include "app/environment/environment.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/submit/place_impl.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "core/image/code.h"

bool submit_may_hold(const struct submit *submit, const struct err *cause)
{
	const struct target *target = submit->target;

	/* A certificate that is not accepted is an answer. */
	return submit->may_hold && cause->code == ERR_NET && cause->id != E_HTTP_TLS &&
	       submit->dir && target && !target->ops->is_here && !submit->options->no_offline &&
	       !str_eq(config_str(submit->config, "offline"), "fail");
}

bool submit_may_go_on(struct submit *submit, const struct err *cause)
{
	const char *name = submit->target ? submit->target->name : NULL;

	if (!submit->may_hold || !submit->dir || !place_is_refusal(cause))
		return false;
	submit->refused = place_leave_refused(&submit->places, name, cause);
	return submit->refused;
}

/* Whether the image stays in the registry where an earlier run has it. */
static bool image_stays(const struct submit *submit)
{
	return submit->target->ops->needs_image && submit->from_digest && !submit->reused.image;
}

/* The one that was taken for a push is not used: nobody knows how far its work has come. */
static int hold_snapshot(struct submit *submit, struct err *err)
{
	const struct submit_events *events = submit->events;
	bool was_reported = submit->snapshot != NULL;
	size_t n_warnings = submit->warnings.n;

	if (image_stays(submit) || submit->reused.image || submit->image.layers)
		return 0;
	submit->will_walk = NULL;
	submit->will_read = NULL;
	submit->will_ctx = NULL;
	submit->id_later = false;
	snapshot_free(TAKE(submit->snapshot));
	if (was_reported)
		submit->events = NULL;
	int r = submit_take_snapshot(submit, err);
	submit->events = events;
	if (was_reported)
		strv_cut(&submit->warnings, n_warnings);
	if (r == 0 && !was_reported)
		submit_report_snapshot(submit);
	return r;
}

/* Whole, since nobody knows here which layers of earlier images the registry has; without the
 * layers of a base in a registry, which are not here. */
static int hold_image(struct submit *submit, struct err *err)
{
	bool is_packed = !submit->target->ops->needs_image && submit->image.layers;

	if (image_stays(submit) || is_packed)
		return 0;
	image_done(&submit->image);
	free(TAKE(submit->ref));
	submit->pack.get_base = NULL;
	submit->pack.full = true;
	if (submit->pack.base_ref.kind == REF_REGISTRY)
		pack_set_base(&submit->pack, NULL);
	return submit_pack(submit, err);
}

/* A context may lead to another cluster when the run is sent. */
static void hold_set_place(const struct submit *submit, struct json *held)
{
	struct target *target = submit->target;
	char handle[TARGET_HANDLE_SIZE];

	if (!target->ops->needs_image ||
		target->ops->prepare(target, submit->id, 1, &submit->spec, handle, NULL) < 0)
		return;
	AUTO_FREE char *place = held_place(handle);
	json_set_str(held, "place", place);
}

static void hold_set(const struct submit *submit, const struct err *cause, struct run *run)
{
	struct json *held = json_sub(run->doc, RUN_HELD);

	submit_set_moves(submit, held);
	if (submit->places.n <= 1)
		hold_set_place(submit, held);
	if (cause && submit->refused)
		held_set_room(run, submit->refused, NULL);
	else if (cause)
		held_set(run, cause);
	else
		held_set_after(run, &submit->spec.after);
}

struct hold_change {
	struct submit *submit;
	const struct err *cause;
};

static int hold_change_row(void *ctx, struct run *run, struct err *err)
{
	struct hold_change *change = ctx;

	if (run_state_is_final(run_state(run)))
		return err_set(err, E_RUN_ENDED, "%s was ended by another dlrun", run_id(run));
	json_set(run->doc, "image", json_clone(json_get(change->submit->run->doc, "image")));
	json_set(run->doc, "snapshot", json_clone(json_get(change->submit->run->doc, "snapshot")));
	hold_set(change->submit, change->cause, run);
	return 1;
}

/* The row of the run, and those of the other members of its study: all or none. A push that failed
 * late has a row already, whose attempt the target may be asked about. */
static int hold_rows(struct submit *submit, const struct err *cause, struct err *err)
{
	struct hold_change change = {submit, cause};
	AUTO(run_list_done) struct run_list rows = {0};
	AUTO_RUN struct run *now = NULL;
	bool is_new = !submit->run;
	int r = is_new && submit->study ? submit_write_study(submit, err) : 0;

	if (r < 0)
		return r;
	if (is_new)
		submit->run = submit_new_run(submit);
	submit_set_image(submit);
	struct run *first = *vec_push(&rows) = run_copy(submit->run);
	hold_set(submit, cause, first);
	if (submit->study)
		r = submit_new_members(submit, first, &rows, err);
	if (r == 0 && is_new)
		r = store_insert_new(submit->store, &rows, err);
	else if (r == 0)
		r = store_change_and_insert(
			submit->store, submit->id, hold_change_row, &change, &rows, &now, err);
	for (size_t i = 1; r < 0 && i < rows.n; i++) {
		AUTO_FREE char *dir = dirs_run(&submit->session->dirs, run_id(rows.v[i]));
		fs_remove_tree(AT_FDCWD, dir, NULL);
	}
	if (r == 0)
		run_replace(submit->run, now ? TAKE(now) : TAKE(rows.v[0]));
	else if (is_new)
		run_free(TAKE(submit->run));
	return r;
}

int submit_hold(struct submit *submit, const struct err *cause, struct err *err)
{
	const struct submit_events *events = submit->events;
	int r = hold_snapshot(submit, err);

	if (r == 0)
		r = hold_image(submit, err);
	if (r < 0)
		return r;
	environment_warn_held(submit);
	r = held_mark_after(&submit->session->dirs, submit->study ? submit->study->id : submit->id,
		&submit->spec.after, err);
	if (r == 0)
		r = hold_rows(submit, cause, err);
	if (r < 0)
		return r;
	struct json *phases = json_sub(submit->run->doc, "phases_ms");

	json_set_int(phases, "snapshot", submit->snapshot_ms);
	json_set_int(phases, "pack", submit->pack_ms);
	json_set_int(phases, "total", clock_ms() - submit->begun_ms);
	auto_fd(&submit->gc_fd);
	submit->gc_fd = -1;
	submit_set_warnings(submit, submit->run);
	for (size_t i = 0; events && events->notice && i < submit->notices.n; i++)
		events->notice(events->ctx, submit->notices.v[i]);
	return 0;
}

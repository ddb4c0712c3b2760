/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/spill_impl.h"

#include <stdlib.h>

#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/submit/place_impl.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/places.h"
#include "targets/targets.h"

enum {
	SPILL_WITHDRAW_MS = 30000,
	SPILL_FORGET_MS = 5000,
	SPILL_NEVER_MAX = 16, /* runs whose places are asked each time */
};

/* A target of several hosts: how many runs it takes yet, of those that are moved now. */
struct spill_pool {
	char *target;
	unsigned n_left;
};
struct spill_pools VEC_OF(struct spill_pool);

/* Facts about the targets of all runs. */
struct spill_all {
	struct spill_pools pools;
	struct strv silent;  /* hosts and servers (held_place) that did not answer */
	struct strv *places; /* the caller's: names of targets that did not */
	size_t n;            /* runs */
};

/* A run that waits in a place. */
struct spilling {
	struct session *session;
	spill_find_fn *find;
	const struct queue_events *events;
	struct spill_all *all;
	struct run *run;
	struct target *target;
	char *handle; /* of the attempt that waits */
	char *to;     /* the place that takes it, as far as known; or NULL */
	char *why;    /* "10 min in lab without room" */
	char *left;   /* the same for the place: "10 min without room" */
	char *stays;  /* why it is not taken back */
	bool is_refused;
};

static void spill_all_done(struct spill_all *all)
{
	vec_foreach (struct spill_pool, pool, &all->pools)
		free(pool->target);
	vec_done(&all->pools);
	strv_done(&all->silent);
}

static void spilling_done(struct spilling *spilling)
{
	target_free(spilling->target);
	free(spilling->handle);
	free(spilling->to);
	free(spilling->why);
	free(spilling->left);
	free(spilling->stays);
}

/*
 * The row
 */

static bool spill_is_here(const struct spilling *spilling, const struct run *run)
{
	return str_eq(run_handle(run), spilling->handle) && !run_state_is_final(run_state(run));
}

static void spill_set_moving(const struct spilling *spilling, struct run *run)
{
	struct json *moving = json_sub(run->doc, RUN_MOVING);

	json_set_str(moving, "to", spilling->to);
	json_set_str(moving, "text", spilling->why);
	json_set_str(moving, "left", spilling->left);
	if (spilling->is_refused)
		json_set_bool(moving, "refused", true);
	run_set_time(moving, "at", clock_wall_ms());
}

static int spill_change_begin(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct spilling *spilling = ctx;

	if (!spill_is_here(spilling, run) || run_is_moving(run))
		return 0;
	/* A cancel takes it back, too, when it could not be told. */
	if (!run_may_move(run) && !run_cancelling(run))
		return 0;
	spill_set_moving(spilling, run);
	return 1;
}

/* Of a new run, or of one that was held until now. */
static int spill_change_refused(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct spilling *spilling = ctx;

	if (!spill_is_here(spilling, run) || run_is_moving(run) || !run_may_go_on(run))
		return 0;
	if (run_is_held(run))
		held_clear(run);
	run_set_state(run, RUN_QUEUED);
	spill_set_moving(spilling, run);
	return 1;
}

/* Of a run with several places. text: borrowed. */
static void spill_decide(struct run *run, enum run_place_state state, const char *text)
{
	AUTO_RUN_PLACES struct run_places places = {0};

	if (!json_get(run->doc, RUN_PLACES))
		return;
	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	struct run_place *place = run_places_find(&places, run_target(run));
	if (place)
		run_place_decide(place, state, text, clock_wall_ms());
	json_set(run->doc, RUN_PLACES, run_places_to_json(&places));
}

/* The attempt has begun, does so now, or cannot be taken back: the time of the run there begins
 * anew. */
static int spill_change_stay(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct spilling *spilling = ctx;

	if (!spill_is_here(spilling, run) || !run_is_moving(run))
		return 0;
	json_remove(run->doc, RUN_MOVING);
	spill_decide(run, RUN_PLACE_CHOSEN, spilling->stays);
	return 1;
}

static int spill_change_go(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct spilling *spilling = ctx;

	if (!spill_is_here(spilling, run) || !run_is_moving(run))
		return 0;
	run_set_attempt_left(run, clock_wall_ms());
	if (run_cancelling(run)) {
		json_remove(run->doc, RUN_MOVING);
		held_end(run);
		return 1;
	}
	const struct json *moves = json_get(run->doc, RUN_MOVES);
	const struct json *moving = json_get(run->doc, RUN_MOVING);
	const char *why = json_get_str(moving, "text");
	bool is_refused = json_get_bool(moving, "refused", false);

	if (moves)
		json_set(run->doc, RUN_HELD, json_clone(moves));
	spill_decide(
		run, is_refused ? RUN_PLACE_REFUSED : RUN_PLACE_LEFT, json_get_str(moving, "left"));
	held_set_room(run, why ? why : "without room", json_get_str(moving, "to"));
	json_set(run->doc, "ranks", json_null());
	json_remove(run->doc, RUN_MOVING);
	return 1;
}

/*
 * The move
 */

/* Not of an answer that came too late: that may be the run's own fault. */
static void spill_note_silent(struct spilling *spilling, const struct err *why)
{
	AUTO_FREE char *where = spilling->handle ? held_place(spilling->handle) : NULL;

	if (where && why->code == ERR_NET && why->id != E_TARGET_SILENT &&
		strv_find(&spilling->all->silent, where) < 0)
		strv_add(&spilling->all->silent, where);
}

/* From the member "moving" on. */
static int spill_finish(struct spilling *spilling, struct err *err)
{
	struct session *session = spilling->session;
	const struct queue_events *events = spilling->events;
	struct run *run = spilling->run;
	AUTO_ERR struct err why = {0};
	bool is_taken = false;

	int r = target_withdraw(
		spilling->target, spilling->handle, SPILL_WITHDRAW_MS, &is_taken, &why);
	if (r < 0 && why.id != E_TARGET_UNSUPPORTED) {
		spill_note_silent(spilling, &why);
		if (events->kept)
			events->kept(events->ctx, run, &why);
		return 0;
	}
	spilling->stays = mem_strdup(r < 0 ? why.message : "it begins there");
	r = run_change_row(
		session, run, is_taken ? spill_change_go : spill_change_stay, spilling, err);
	if (r == 0 && is_taken) {
		/* The tree of what was taken back. Its directory there stays: a start that is still
		 * on its way finds that it is not to begin. */
		if (!spilling->target->ops->needs_image)
			target_forget(
				spilling->target, spilling->handle, false, SPILL_FORGET_MS, NULL);
	}
	if (r == 0 && run_is_held(run) && events->moved)
		events->moved(events->ctx, run, json_get_str(run->doc, "text"));
	return r;
}

int spill_refused(struct session *session, struct run *run, struct target *target,
	const struct err *why, const struct queue_events *events, struct err *err)
{
	const char *reason = place_reason(run_target(run), why);
	AUTO(spill_all_done) struct spill_all all = {0};
	AUTO(spilling_done)
	struct spilling spilling = {.session = session,
		.events = events,
		.all = &all,
		.run = run,
		.handle = mem_strdup(run_handle(run)),
		.why = place_refused_text(run_target(run), why),
		.left = mem_strdup(reason),
		.is_refused = true};

	if (!run_may_go_on(run))
		return 0;
	/* Before the row is held. */
	int r = held_mark(&session->dirs, run_id(run), err);
	if (r == 0)
		r = run_change_row(session, run, spill_change_refused, &spilling, err);
	if (r < 0 || !run_is_moving(run))
		return r;
	spilling.target = target;
	r = spill_finish(&spilling, err);
	spilling.target = NULL;
	return r < 0 ? r : 1;
}

static bool spill_is_due(const struct run *run, const struct run_place *place)
{
	return run_cancelling(run) ||
	       (place->wait_ms >= 0 && clock_wall_ms() - place->at_ms >= place->wait_ms);
}

/* Whether it waits there for what never comes, which its place could not tell before. */
static bool spill_is_stranded(struct spilling *spilling, const struct run_place *place)
{
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_ERR struct err error = {0};

	if (!spilling->target->ops->has_scheduler)
		return false;
	int r = target_state(spilling->target, spilling->handle, SPILL_FORGET_MS, &status, &error);
	if (r < 0)
		spill_note_silent(spilling, &error);
	if (r < 0 || !status.is_stranded)
		return false;
	spilling->why = mem_printf("it does not begin in %s: %s", place->target, status.text);
	spilling->left = mem_strdup(status.text);
	spilling->is_refused = true;
	return true;
}

/* Whether the place says by now that the run can never begin there: *ret_why. */
static bool spill_is_never(struct spilling *spilling, const struct run_place *place)
{
	AUTO_SPEC struct spec spec = {0};
	AUTO(target_room_done) struct target_room room = {0};
	AUTO_ERR struct err error = {0};
	const struct target_requirements requirements = {
		.run_id = run_id(spilling->run), .spec = &spec};

	/* Of many runs some, by chance: a place is not asked for each of them all the time. */
	if (spilling->all->n > SPILL_NEVER_MAX &&
		random_below((uint32_t)spilling->all->n) >= SPILL_NEVER_MAX)
		return false;
	if (!spilling->target->ops->room || spec_from_json(spilling->run->spec, &spec, NULL) < 0)
		return false;
	int r = target_room(spilling->target, &requirements, SPILL_FORGET_MS, &room, &error);
	if (r < 0)
		spill_note_silent(spilling, &error);
	if (r == 0)
		return spill_is_stranded(spilling, place);
	if (!place_is_refusal(&error))
		return false;
	spilling->why = mem_printf("%s takes it no more (%s)", place->target, error.message);
	spilling->left = mem_strdup(error.message);
	return true;
}

/* Asks the hosts of a target (`pool` of the record) how many runs could begin there now. */
static int spill_ask_pool(struct spilling *spilling, unsigned *ret, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(target_room_done) struct target_room room = {0};
	AUTO_SPEC struct spec spec = {0};
	const struct target_requirements requirements = {
		.run_id = run_id(spilling->run), .spec = &spec};

	int r = spec_from_json(spilling->run->spec, &spec, err);
	if (r == 0)
		r = target_open(spilling->session, run_target(spilling->run), &target, err);
	if (r == 0 && target->ops->room)
		r = target_room(target, &requirements, SPILL_WITHDRAW_MS, &room, err);
	*ret = room.is_now ? room.n_now : 0;
	return r;
}

/* Whether a host is free for the run. Each target is asked once: many runs may wait for one GPU. */
static int spill_take_pool(struct spilling *spilling, bool *ret, struct err *err)
{
	const char *name = run_target(spilling->run);
	unsigned n_left = 0;

	*ret = false;
	vec_foreach (struct spill_pool, pool, &spilling->all->pools) {
		if (!str_eq(pool->target, name))
			continue;
		*ret = pool->n_left > 0;
		pool->n_left -= *ret;
		return 0;
	}
	int r = spill_ask_pool(spilling, &n_left, err);
	*ret = n_left > 0;
	*vec_push(&spilling->all->pools) = (struct spill_pool){mem_strdup(name), n_left - *ret};
	return r;
}

/* 1: it is to go to another host of its target. */
static int spill_begin_host(struct spilling *spilling, struct err *err)
{
	struct run *run = spilling->run;
	const char *host = json_str(json_first(json_get(json_get(run->doc, "target"), "hosts")));
	bool is_free = run_cancelling(run);

	/* A run that is being prepared has its GPUs. */
	if (run_state(run) != RUN_QUEUED)
		return 0;
	int r = is_free ? 0 : spill_take_pool(spilling, &is_free, err);
	if (r < 0 || !is_free)
		return r;
	spilling->why = mem_printf("waited on %s", host ? host : "a host");
	spilling->to = mem_strdup(run_target(run));
	return 1;
}

/* The same to another place. */
static int spill_begin_place(struct spilling *spilling, struct err *err)
{
	struct run *run = spilling->run;
	AUTO_RUN_PLACES struct run_places places = {0};

	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	const struct run_place *place = run_places_find(&places, run_target(run));
	if (!place)
		return 0;
	if (spill_is_due(run, place)) {
		char time[32];
		int64_t ms = clock_wall_ms() - place->at_ms;

		/* Whole minutes of what is longer. */
		if (ms >= 60000)
			ms -= ms % 60000;
		else if (ms >= 1000)
			ms -= ms % 1000;
		duration_text(ms, time);
		spilling->why = mem_printf("%s in %s without room", time, place->target);
		spilling->left = mem_printf("%s without room", time);
	} else if (!spill_is_never(spilling, place)) {
		return 0;
	}
	if (!run_cancelling(run)) {
		int r = spilling->find(
			spilling->session, run, spilling->all->places, &spilling->to, err);
		/* A refused run leaves even if no other place takes it: its record says so. */
		if (r < 0 || (!spilling->to && !spilling->is_refused))
			return r;
	}
	return 1;
}

/* 1: it goes, and its row says so. */
static int spill_begin(struct spilling *spilling, struct err *err)
{
	struct run *run = spilling->run;

	if (run_is_moving(run))
		return 1;
	int r = run_may_change_host(run) ? spill_begin_host(spilling, err)
					 : spill_begin_place(spilling, err);
	if (r <= 0)
		return r;
	r = run_change_row(spilling->session, run, spill_change_begin, spilling, err);
	return r < 0 ? r : run_is_moving(run) && spill_is_here(spilling, run);
}

static int spill_one(struct spilling *spilling, struct err *err)
{
	struct run *run = spilling->run;
	AUTO_FREE char *dir = dirs_run(&spilling->session->dirs, run_id(run));
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);

	/* A submit is at work. */
	if (fs_is_locked(lock))
		return 0;
	int r = run_read_row(spilling->session, run, err);
	if (r < 0 || !run_is_watched(run) || run_is_held(run) || !run_handle(run))
		return r;
	spilling->handle = mem_strdup(run_handle(run));
	AUTO_FREE char *where = held_place(spilling->handle);
	if (strv_find(&spilling->all->silent, where) >= 0)
		return 0;
	r = target_open_run(spilling->session, run, &spilling->target, err);
	if (r == 0 && !spilling->target->ops->withdraw)
		return 0;
	if (r == 0)
		r = spill_begin(spilling, err);
	return r > 0 ? spill_finish(spilling, err) : r;
}

static bool spill_is_waiting(const struct run *run)
{
	return run_is_watched(run) && !run_is_held(run);
}

int spill_all(struct session *session, spill_find_fn *find, struct strv *silent,
	const struct queue_events *events, const volatile int *interrupted, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO(spill_all_done) struct spill_all all = {.places = silent};
	int r = runs_unfinished(session, spill_is_waiting, &runs, err);

	all.n = runs.n;
	for (size_t i = 0; r == 0 && i < runs.n && !(interrupted && *interrupted); i++) {
		AUTO(spilling_done)
		struct spilling spilling = {.session = session,
			.find = find,
			.events = events,
			.all = &all,
			.run = runs.v[i]};
		AUTO_ERR struct err why = {0};

		if (spill_one(&spilling, &why) == 0)
			continue;
		spill_note_silent(&spilling, &why);
		if (why.code == ERR_CANCELED)
			return err_move(err, &why);
		if (why.id != E_RUN_NOT_FOUND && events->kept)
			events->kept(events->ctx, runs.v[i], &why);
	}
	return r;
}

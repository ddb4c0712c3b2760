/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/place_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/runs/held.h"
#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* LIMIT_MS: for all; SETTLE_MS: for earlier places once a later one is known to have room. */
enum { PLACE_LIMIT_MS = 10000, PLACE_SETTLE_MS = 2000, PLACE_REASONS_MAX = 32 << 10 };

struct place_choice;

/* A place that is asked. */
struct place_trial {
	struct target_call call;
	struct place_choice *choice;
	struct run_place *place;
	struct submit submit;
	struct target_room room;
	struct err error; /* why it does not take the run */
	bool is_open;     /* asked, and not answered yet */
	bool was_left;
	enum run_place_state state;
};

struct place_choice {
	struct loop_wait wait;
	int64_t begun_ms;
	struct place_trial *trials;
	size_t n;
};

static void place_choice_done(struct place_choice *choice)
{
	for (size_t i = 0; i < choice->n; i++) {
		struct place_trial *trial = &choice->trials[i];
		target_call_cancel(&trial->call);
		target_room_done(&trial->room);
		err_done(&trial->error);
		trial->submit.run = NULL;
		submit_done(&trial->submit);
	}
	free(choice->trials);
}

/*
 * The rule
 */

/* Of those that were left before, or of the others. *ret_open: the answer of one matters that has
 * not come yet. */
static struct place_trial *place_find(
	const struct place_choice *choice, bool were_left, bool *ret_open)
{
	struct place_trial *later = NULL;

	*ret_open = false;
	for (size_t i = 0; i < choice->n; i++) {
		struct place_trial *trial = &choice->trials[i];
		if (trial->was_left != were_left)
			continue;
		if (trial->is_open) {
			*ret_open = true;
			return NULL;
		}
		if (trial->state == RUN_PLACE_NOW ||
			(trial->state == RUN_PLACE_LATER && trial->place->waits_first))
			return trial;
		if (trial->state == RUN_PLACE_LATER && !later)
			later = trial;
	}
	return later;
}

/* NULL: none, or (*ret_open) not known yet. */
static struct place_trial *place_best(const struct place_choice *choice, bool *ret_open)
{
	struct place_trial *best = place_find(choice, false, ret_open);

	return best || *ret_open ? best : place_find(choice, true, ret_open);
}

/*
 * The questions
 */

static void place_refuse(struct place_trial *trial, struct err *err)
{
	/* Of a run that is sent by itself a login may be had again, and a setting mended. */
	bool is_mended = err->code == ERR_AUTH || err->id == E_TARGET_OTHER;
	bool is_silent = err->code == ERR_NET || (trial->submit.is_held && is_mended);

	trial->state = is_silent ? RUN_PLACE_SILENT : RUN_PLACE_NEVER;
	err_move(&trial->error, err);
}

static void place_on_room(struct target_call *call, int status, struct err *err)
{
	struct place_trial *trial = CONTAINER_OF(call, struct place_trial, call);
	struct loop_wait *wait = &trial->choice->wait;
	bool is_open;

	trial->is_open = false;
	if (status < 0)
		place_refuse(trial, err);
	else
		trial->state = trial->room.is_now ? RUN_PLACE_NOW : RUN_PLACE_LATER;
	loop_wait_done(wait);
	place_best(trial->choice, &is_open);
	if (!is_open) {
		wait->n_open = 0;
		loop_stop(wait->loop);
	} else if (trial->state == RUN_PLACE_NOW &&
		   clock_ms() + PLACE_SETTLE_MS < wait->deadline_ms) {
		wait->deadline_ms = clock_ms() + PLACE_SETTLE_MS;
		loop_stop(wait->loop);
	}
}

static void place_ask(struct place_trial *trial)
{
	struct target *target = trial->submit.target;
	const struct target_requirements requirements = submit_requirements(&trial->submit);
	AUTO_ERR struct err error = {0};

	if (!target->ops->room) {
		trial->state = RUN_PLACE_NOW;
		return;
	}
	trial->call = (struct target_call){
		.deadline_ms = trial->choice->wait.deadline_ms, .done = place_on_room};
	trial->is_open = true;
	trial->choice->wait.n_open++;
	if (target->ops->room(target, &requirements, &trial->room, &trial->call, &error) == 0)
		return;
	trial->is_open = false;
	trial->choice->wait.n_open--;
	place_refuse(trial, &error);
}

/* A context may lead to another cluster when a run is sent that is held now. */
static void place_note_server(struct place_trial *trial)
{
	struct submit *submit = &trial->submit;
	struct target *target = submit->target;
	char handle[TARGET_HANDLE_SIZE];

	if (!submit->is_held && target->ops->needs_image &&
		target->ops->prepare(target, submit->id, 1, &submit->spec, handle, NULL) == 0)
		trial->place->server = held_place(handle);
}

/* Until it has a name an error is one of the run itself. */
static int place_prepare(struct place_trial *trial, const struct submit *common,
	place_prepare_fn *prepare, struct err *err)
{
	AUTO_ERR struct err error = {0};

	trial->submit = *common;
	trial->submit.events = NULL;
	trial->submit.place_name = trial->place->target;
	if (!*trial->submit.id)
		snprintf(trial->submit.id, sizeof(trial->submit.id), "room-22222");
	if (prepare(&trial->submit, &error) == 0) {
		place_note_server(trial);
		return 0;
	}
	/* A word of the list that is no target is an error of the list. */
	bool is_word = error.id == E_TARGET || (error.id == E_USAGE && !trial->submit.target);
	if (is_word || !*trial->submit.name)
		return err_move(err, &error);
	place_refuse(trial, &error);
	return 0;
}

static int place_ask_all(struct place_choice *choice, const struct submit *common,
	place_prepare_fn *prepare, struct err *err)
{
	bool is_open;
	int r = 0;

	for (size_t i = 0; r == 0 && i < choice->n; i++)
		if (choice->trials[i].state == RUN_PLACE_UNTRIED)
			r = place_prepare(&choice->trials[i], common, prepare, err);
	/* This machine's answer may take a moment, during which the others are on their way. */
	for (int here = 0; r == 0 && here < 2; here++)
		for (size_t i = 0; i < choice->n; i++) {
			struct place_trial *trial = &choice->trials[i];
			if (trial->state == RUN_PLACE_UNTRIED &&
				trial->submit.target->ops->is_here == here)
				place_ask(trial);
		}
	place_best(choice, &is_open);
	return r < 0 || !is_open ? r : loop_wait_run(&choice->wait, err);
}

/*
 * Refusals
 */

/* Errors of a proxy, a portal, this machine or a server that is out of order. */
static bool is_unclear(enum err_id id)
{
	static const enum err_id ids[] = {E_HTTP_LIMIT, E_HTTP_PROTOCOL, E_HTTP_REDIRECT,
		E_HTTP_URL, E_HTTP_ZONE, E_KUBE_GONE, E_KUBE_NOT_FOUND, E_KUBE_RESPONSE,
		E_KUBE_SERVER, E_NODE_PROTOCOL, E_REGISTRY_NOT_FOUND, E_REGISTRY_RESPONSE,
		E_REGISTRY_UNSUPPORTED, E_SSH_REFUSED};

	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* A 404 without a code of the registry's own may be a portal's. */
static bool is_base_missing(const struct err *why)
{
	for (size_t i = 0; i < why->n_evidence; i++)
		if (strstr(why->evidence[i], "_UNKNOWN"))
			return true;
	return false;
}

/* An answer of the target itself that another try will not change. Settings of this machine may be
 * mended. */
bool place_is_refusal(const struct err *why)
{
	switch (why->code) {
	case ERR_USAGE:
		return why->id == E_GPU_COUNT;
	case ERR_CONFIG:
		return why->id == E_KUBE_STORAGE || why->id == E_KUBE_HOST_PATH ||
		       why->id == E_KUBE_OVERLAY;
	case ERR_NOTFOUND:
	case ERR_REMOTE:
	case ERR_LIMIT:
		if (why->id == E_IMAGE_BASE)
			return is_base_missing(why);
		return !is_unclear(why->id);
	default:
		return false;
	}
}

/*
 * The decision
 */

const char *place_reason(const char *place, const struct err *why)
{
	const char *text = why->message;
	AUTO_FREE char *target = mem_printf("target %s: ", place);
	AUTO_FREE char *host =
		mem_printf("%s: ", str_starts(place, "ssh:") ? place + strlen("ssh:") : place);

	if (text && str_starts(text, target))
		return text + strlen(target);
	return text && str_starts(text, host) ? text + strlen(host) : text;
}

char *place_refused_text(const char *place, const struct err *why)
{
	return mem_printf("%s refused it: %s", place, place_reason(place, why));
}

char *place_leave_refused(struct run_places *places, const char *name, const struct err *why)
{
	struct run_place *place = run_places_find(places, name);

	if (!place || !run_places_any_other(places, name))
		return NULL;
	run_place_decide(place, RUN_PLACE_REFUSED, place_reason(name, why), clock_wall_ms());
	return place_refused_text(name, why);
}

static void place_decide(struct place_trial *trial, const struct place_trial *chosen)
{
	bool is_refused = err_is_set(&trial->error);
	const char *text =
		is_refused ? place_reason(trial->place->target, &trial->error) : trial->room.text;

	if (trial == chosen)
		run_place_decide(trial->place, RUN_PLACE_CHOSEN, text, clock_wall_ms());
	else if (!trial->was_left && trial->state != RUN_PLACE_REFUSED)
		run_place_decide(trial->place, trial->state, text, clock_wall_ms());
}

/* A place that has refused the run does so for ever; one that was silent does not answer now. */
static void place_remember(struct place_trial *trial, const struct strv *silent)
{
	const struct run_place *place = trial->place;

	if (place->state == RUN_PLACE_REFUSED) {
		trial->state = RUN_PLACE_REFUSED;
		err_set(&trial->error, E_RUN_START, "%s",
			place->text ? place->text : "refused the run");
	} else if (silent && strv_find(silent, place->target) >= 0) {
		trial->state = RUN_PLACE_SILENT;
		err_set(&trial->error, E_TARGET_SILENT, "no answer a moment ago");
	}
}

static void place_add_silent(const struct place_choice *choice, struct strv *silent)
{
	for (size_t i = 0; silent && i < choice->n; i++) {
		const struct place_trial *trial = &choice->trials[i];
		const char *name = trial->place->target;
		if (trial->state == RUN_PLACE_SILENT && trial->error.code == ERR_NET &&
			strv_find(silent, name) < 0)
			strv_add(silent, name);
	}
}

/* Places that have not answered, although (is_waited) they were waited for. */
static void place_end(struct place_choice *choice, bool is_waited)
{
	char time[32];

	for (size_t i = 0; i < choice->n; i++) {
		struct place_trial *trial = &choice->trials[i];
		if (!trial->is_open)
			continue;
		target_call_cancel(&trial->call);
		trial->is_open = false;
		if (!is_waited)
			continue;
		trial->state = RUN_PLACE_SILENT;
		err_set(&trial->error, E_TARGET_SILENT, "no answer within %s",
			duration_text(choice->wait.deadline_ms - choice->begun_ms, time));
	}
}

static const struct place_trial *place_first(
	const struct place_choice *choice, enum run_place_state state)
{
	for (size_t i = 0; i < choice->n; i++)
		if (choice->trials[i].state == state)
			return &choice->trials[i];
	return NULL;
}

/* A line for each place, as far as an error has lines: the last one has the rest. */
static void place_add_reasons(const struct place_choice *choice, struct err *err)
{
	AUTO_BUF struct buf rest = buf_with(PLACE_REASONS_MAX);

	for (size_t i = 0; i < choice->n; i++) {
		const struct place_trial *trial = &choice->trials[i];
		const char *name = trial->place->target;
		const char *reason = place_reason(name, &trial->error);
		if (i + 1 < ERR_EVIDENCE_MAX || choice->n == ERR_EVIDENCE_MAX)
			err_evidence(err, "%s: %s", name, reason);
		else
			buf_addf(&rest, "%s%s: %s", rest.len ? " · " : "", name, reason);
	}
	if (rest.len)
		err_evidence(err, "%s", rest.data);
}

/* A place that is silent may take it yet; else the first error stands for all, if all are alike. */
static int place_fail(const struct place_choice *choice, struct submit *submit, struct err *err)
{
	const struct place_trial *silent = place_first(choice, RUN_PLACE_SILENT),
				 *first = place_first(choice, RUN_PLACE_NEVER);
	bool is_same = true;

	if (!first)
		first = &choice->trials[0];
	if (silent) {
		submit->place_name = silent->place->target;
		err_set(err, silent->error.id, "%s", silent->error.message);
		place_add_reasons(choice, err);
		return silent->error.hint ? err_hint(err, "%s", silent->error.hint)
					  : -(int)silent->error.code;
	}
	for (size_t i = 0; i < choice->n; i++)
		is_same &= str_eq(choice->trials[i].error.message, first->error.message);
	if (is_same)
		return err_copy(err, &first->error);
	err_set(err, first->error.id, "none of the %zu targets takes the run", choice->n);
	place_add_reasons(choice, err);
	return err_hint(err, "dlrun targets --gpus");
}

int place_choose(struct submit *submit, const struct submit *common, place_prepare_fn *prepare,
	struct strv *silent, struct err *err)
{
	int64_t now_ms = clock_ms();
	AUTO(place_choice_done)
	struct place_choice choice = {
		.wait = {.loop = session_loop(submit->session),
			.deadline_ms = now_ms + PLACE_LIMIT_MS},
		.begun_ms = now_ms,
		.trials = mem_alloc(submit->places.n + 1, sizeof(*choice.trials)),
		.n = submit->places.n,
	};
	bool is_open;

	for (size_t i = 0; i < choice.n; i++) {
		choice.trials[i] = (struct place_trial){.choice = &choice,
			.place = &submit->places.v[i],
			.was_left = submit->places.v[i].state == RUN_PLACE_LEFT};
		place_remember(&choice.trials[i], silent);
	}
	int r = place_ask_all(&choice, common, prepare, err);
	if (r < 0)
		return r;
	place_best(&choice, &is_open);
	place_end(&choice, is_open);
	place_add_silent(&choice, silent);
	const struct place_trial *chosen = place_best(&choice, &is_open);
	for (size_t i = 0; i < choice.n; i++)
		place_decide(&choice.trials[i], chosen);
	if (!chosen)
		return place_fail(&choice, submit, err);
	submit->place_name = chosen->place->target;
	return 0;
}

/*
 * Of a new run
 */

int submit_check_places(struct submit *submit, bool *ret_silent, struct err *err)
{
	const struct strv *waits = submit->options->waits;
	const struct submit common = *submit;
	AUTO_ERR struct err silence = {0};

	*ret_silent = false;
	int r = session_config(submit->session, &submit->config, err);
	if (r == 0)
		r = run_places_from_config(submit->config, waits, &submit->places, err);
	if (r < 0)
		return r;
	if (submit->places.n <= 1)
		return submit_check(submit, err);
	r = place_choose(submit, &common, submit_check, NULL, &silence);
	if (r < 0 && silence.code != ERR_NET)
		return err_move(err, &silence);
	const struct submit_events *events = submit->events;
	AUTO_FREE char *text = run_places_text(&submit->places);

	if (events && events->places)
		events->places(events->ctx, text);
	/* The choice is no part of the time that the snapshot takes. */
	submit->begun_ms = clock_ms();
	int checked = submit_check(submit, err);
	if (checked < 0 || r == 0)
		return checked;
	*ret_silent = true;
	return err_move(err, &silence);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/state.h"

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/mismatch.h"
#include "core/autoscale/snapshot.h"

/* Waits until a failure is forgotten, and until a grow is dropped that is not repeated, or not to
 * be seen in the size of its group. */
enum { MINUTE_MS = 60 * 1000, FORGET_MS = 24 * 60 * MINUTE_MS, STATE_REPEAT_MS = 2 * MINUTE_MS };
/* A machine may have been a node for a while when nobody has looked for so long, or for two turns.
 * All ids together fit into a ConfigMap with the rest. */
enum { STATE_AWAY_MS = 10 * MINUTE_MS, STATE_SIZE_MAX = 512 << 10 };
/* A machine that is not listed for so long is gone. */
enum { STATE_UNLISTED_MS = 5 * MINUTE_MS };
/* Until a machine is bought again for pods for which the last one was too small, or was not as its
 * template says: it may have been the fault of that one. */
enum { STATE_ROOM_MS = 20 * MINUTE_MS, STATE_TIMES_MAX = 100 };
/* Tries and mismatches of all groups together, about; those beyond are not remembered. */
enum { STATE_TRIES_MAX = 64 << 10, STATE_TRY_SIZE = 128 };
/* So much the clocks of a provider and of the cluster may differ. */
enum { STATE_CLOCKS_MS = MINUTE_MS };

/* Capacity comes back in minutes, quotas and configuration when a person has done something. */
static const struct {
	int64_t first_ms, max_ms;
} state_waits[] = {
	[SCALE_FAILED_CAPACITY] = {3 * MINUTE_MS, 30 * MINUTE_MS},
	[SCALE_FAILED_QUOTA] = {60 * MINUTE_MS, 60 * MINUTE_MS},
	[SCALE_FAILED_PRICE] = {20 * MINUTE_MS, 20 * MINUTE_MS},
	[SCALE_FAILED_CONFIG] = {10 * MINUTE_MS, 60 * MINUTE_MS},
	[SCALE_FAILED_THROTTLE] = {15 * 1000, 5 * MINUTE_MS},
	[SCALE_FAILED_OTHER] = {MINUTE_MS, 30 * MINUTE_MS},
};

static void state_drop_rooms(struct scale_state_group *group)
{
	vec_foreach (struct scale_state_room, room, &group->rooms)
		free(room->resource);
	vec_done(&group->rooms);
	scale_mismatches_done(&group->mismatches);
	group->shown_ms = group->disappointments = 0;
}

static void state_drop_try(struct scale_state_group *group)
{
	REPLACE(group->tried, NULL);
	group->tried_ms = 0;
}

static void scale_state_group_done(struct scale_state_group *group)
{
	state_drop_rooms(group);
	state_drop_try(group);
	free(group->id);
	free(group->text);
	free(group->token);
	free(group->before.token);
	vec_foreach (struct scale_state_machine, machine, &group->machines)
		free(machine->id);
	vec_done(&group->machines);
}

/* As text. */
static size_t state_id_size(const char *id)
{
	return 2 * strlen(id) + sizeof("\"\",");
}

/* A machine beyond the limit is as one that was not bought here. */
static void state_add_machine(
	struct scale_state *state, struct scale_state_group *group, const char *id, bool was_node)
{
	if (!str_is_plain(id))
		return;
	if (state->size + state_id_size(id) > STATE_SIZE_MAX) {
		group->is_cut = true;
		return;
	}
	state->size += state_id_size(id);
	*vec_push(&group->machines) = (struct scale_state_machine){
		.id = mem_strdup(id), .was_node = was_node || group->is_cut};
}

void scale_state_done(struct scale_state *state)
{
	vec_foreach (struct scale_state_group, group, &state->groups)
		scale_state_group_done(group);
	vec_done(&state->groups);
}

static int64_t state_time(const struct json *json, const char *key)
{
	const char *text = json_get_str(json, key);
	int64_t wall_ms = 0;

	return text && clock_parse(text, &wall_ms, NULL) == 0 ? wall_ms : 0;
}

static void state_read_machines(const struct json *json, const char *key, struct scale_state *state,
	struct scale_state_group *group)
{
	const struct json *list = json_get(json, key);

	for (const struct json *m = json_first(list); m; m = json_next(m))
		if (json_str(m))
			state_add_machine(state, group, json_str(m), str_eq(key, "joined"));
}

static void state_read_rooms(const struct json *json, struct scale_state_group *group)
{
	for (const struct json *m = json_first(json_get(json, "rooms"));
		m && group->rooms.n < SCALE_RESOURCES_MAX; m = json_next(m))
		if (json_key(m) && json_kind(m) == JSON_OBJECT)
			*vec_push(&group->rooms) =
				(struct scale_state_room){.resource = mem_strdup(json_key(m)),
					.told = json_get_int(m, "told", -1),
					.room = json_get_int(m, "room", 0),
					.made_ms = state_time(m, "made")};
	const struct json *tried = json_get(json, "tried");
	group->tried = mem_strdup(json_get_str(tried, "template"));
	group->tried_ms = state_time(tried, "since");
	mismatch_read(json_get(json, "mismatches"), &group->mismatches);
	group->shown_ms = state_time(json, "shown");
	group->disappointments = json_get_int(json, "disappointments", 0);
}

static void state_read_group(const struct json *json, struct scale_state *state)
{
	const struct json *grow = json_get(json, "grow");
	const char *failure = json_get_str(json, "failure");
	struct scale_state_group *group = vec_push(&state->groups);
	int word = SCALE_NO_FAILURE;

	group->id = mem_strdup(json_key(json));
	if (failure && !scale_word(scale_failure_names, failure, &word))
		word = SCALE_FAILED_OTHER;
	group->failure = (enum scale_failure)word;
	group->text = mem_strdup(json_get_str(json, "text"));
	group->failures = json_get_int(json, "failures", 0);
	group->wait_until_ms = state_time(json, "wait_until");
	state_read_machines(json, "awaited", state, group);
	state_read_machines(json, "joined", state, group);
	group->is_cut = group->is_cut || json_get_bool(json, "cut", false);
	group->missing_ms = state_time(json, "missing");
	group->unlisted_ms = state_time(json, "unlisted");
	state_read_rooms(json, group);
	group->failed_due_ms = state_time(json_get(json, "failed_grow"), "due");
	group->failed_until_ms = state_time(json_get(json, "failed_grow"), "until");
	if (!json_get_str(grow, "token"))
		return;
	group->token = mem_strdup(json_get_str(grow, "token"));
	group->to = json_get_int(grow, "to", 0);
	group->asked_ms = state_time(grow, "asked");
	group->due_to = json_get_int(grow, "due_to", group->to);
	group->due_ms = json_get(grow, "due") ? state_time(grow, "due") : group->asked_ms;
	group->doubts = json_get_int(grow, "doubts", 0);
	group->is_answered = json_get_bool(grow, "answered", false);
}

static int state_by_id(const void *left, const void *right)
{
	return strcmp(((const struct scale_state_group *)left)->id,
		((const struct scale_state_group *)right)->id);
}

int scale_state_read(const struct json *json, struct scale_state *ret, struct err *err)
{
	*ret = (struct scale_state){0};
	if (!json)
		return 0;
	const struct json *groups = json_get(json, "groups");
	if (json_get_int(json, "version", 0) != 1 || !groups || json_kind(groups) != JSON_OBJECT)
		return err_set(err, E_DATA, "its version is not 1, or it has no groups");
	if (json_count(groups) > STATE_GROUPS_MAX)
		return err_set(err, E_DATA_LIMIT, "it has over %d groups", STATE_GROUPS_MAX);
	for (const struct json *m = json_first(groups); m; m = json_next(m))
		if (json_kind(m) == JSON_OBJECT)
			state_read_group(m, ret);
	ret->looked_ms = state_time(json, "looked");
	vec_sort(&ret->groups, state_by_id);
	return 0;
}

static void state_set_time(struct json *json, const char *key, int64_t wall_ms)
{
	char text[CLOCK_TEXT_SIZE];

	if (!wall_ms)
		return;
	clock_format(wall_ms, text);
	json_set_str(json, key, text);
}

static void state_set_machines(
	struct json *json, const char *key, const struct scale_state_group *group, bool was_node)
{
	struct json *list = json_array();

	vec_foreach (const struct scale_state_machine, machine, &group->machines)
		if (machine->was_node == was_node)
			json_add(list, json_string(machine->id));
	if (json_first(list))
		json_set(json, key, list);
	else
		json_free(list);
}

/* Not each turn another text. */
static int64_t state_minute(int64_t wall_ms)
{
	return wall_ms - wall_ms % MINUTE_MS;
}

static void state_set_rooms(struct json *json, const struct scale_state_group *group)
{
	vec_foreach (const struct scale_state_room, room, &group->rooms) {
		struct json *one = json_sub(json_sub(json, "rooms"), room->resource);
		json_set_int(one, "told", room->told);
		json_set_int(one, "room", room->room);
		state_set_time(one, "made", room->made_ms);
	}
	if (group->tried) {
		struct json *tried = json_sub(json, "tried");
		json_set_str(tried, "template", group->tried);
		state_set_time(tried, "since", group->tried_ms);
	}
	if (group->mismatches.n)
		json_set(json, "mismatches", mismatch_write(&group->mismatches));
	if (!group->rooms.n && !group->mismatches.n)
		return;
	state_set_time(json, "shown", state_minute(group->shown_ms));
	json_set_int(json, "disappointments", group->disappointments);
}

struct json *scale_state_write(const struct scale_state *state)
{
	struct json *json = json_object(), *groups = json_object();
	bool is_looked_at = false;

	vec_foreach (const struct scale_state_group, group, &state->groups) {
		struct json *one = json_sub(groups, group->id);
		/* Of templates alone nothing is lost while nobody looks. */
		is_looked_at |=
			group->token || group->failures || group->machines.n || group->rooms.n;
		if (group->failure != SCALE_NO_FAILURE)
			json_set_str(one, "failure", scale_failure_names[group->failure]);
		if (group->text)
			json_set_str(one, "text", group->text);
		if (group->failures)
			json_set_int(one, "failures", group->failures);
		state_set_time(one, "wait_until", group->wait_until_ms);
		state_set_machines(one, "awaited", group, false);
		state_set_machines(one, "joined", group, true);
		if (group->is_cut)
			json_set_bool(one, "cut", true);
		state_set_time(one, "missing", group->missing_ms);
		state_set_time(one, "unlisted", group->unlisted_ms);
		state_set_rooms(one, group);
		if (group->failed_due_ms) {
			struct json *failed = json_sub(one, "failed_grow");
			state_set_time(failed, "due", group->failed_due_ms);
			state_set_time(failed, "until", group->failed_until_ms);
		}
		if (!group->token)
			continue;
		struct json *grow = json_sub(one, "grow");
		json_set_str(grow, "token", group->token);
		json_set_int(grow, "to", group->to);
		state_set_time(grow, "asked", group->asked_ms);
		json_set_int(grow, "due_to", group->due_to);
		state_set_time(grow, "due", group->due_ms);
		if (group->doubts)
			json_set_int(grow, "doubts", group->doubts);
		json_set_bool(grow, "answered", group->is_answered);
	}
	json_set_int(json, "version", 1);
	if (is_looked_at)
		state_set_time(json, "looked", state_minute(state->looked_ms));
	json_set(json, "groups", groups);
	return json;
}

struct scale_state_group *scale_state_find(const struct scale_state *state, const char *id)
{
	size_t at = vec_bound(&state->groups, group, strcmp(group->id, id) < 0);

	return at < state->groups.n && str_eq(state->groups.v[at].id, id) ? &state->groups.v[at]
									  : NULL;
}

static struct scale_state_group *state_group(struct scale_state *state, const char *id)
{
	struct scale_state_group *group = scale_state_find(state, id);

	if (group)
		return group;
	vec_push(&state->groups)->id = mem_strdup(id);
	vec_sort(&state->groups, state_by_id);
	return scale_state_find(state, id);
}

const char *scale_state_ask(
	struct scale_state *state, const char *id, int64_t to, const char *token, int64_t now_ms)
{
	struct scale_state_group *group = state_group(state, id);

	free(group->before.token);
	group->before.token = mem_strdup(group->token);
	group->before.to = group->to;
	group->before.due_to = group->due_to;
	group->before.due_ms = group->due_ms;
	group->before.asked_ms = group->asked_ms;
	group->before.is_answered = group->is_answered;
	if (!group->token || !group->is_answered) {
		group->due_to = to;
		group->due_ms = now_ms;
	}
	if (!group->token || group->is_answered || group->to != to)
		REPLACE(group->token, mem_strdup(token));
	group->to = to;
	group->asked_ms = now_ms;
	group->is_answered = false;
	return group->token;
}

bool scale_state_take_back(struct scale_state *state, const char *id)
{
	struct scale_state_group *group = state_group(state, id);

	REPLACE(group->token, TAKE(group->before.token));
	group->to = group->before.to;
	group->due_to = group->before.due_to;
	group->due_ms = group->before.due_ms;
	group->asked_ms = group->before.asked_ms;
	group->is_answered = group->before.is_answered;
	return !group->token || group->is_answered;
}

void scale_state_bought(struct scale_state *state, const char *id, const char *machine)
{
	struct scale_state_group *group = state_group(state, id);

	vec_foreach (const struct scale_state_machine, known, &group->machines)
		if (str_eq(known->id, machine))
			return;
	state_add_machine(state, group, machine, false);
}

int64_t scale_state_doubt(struct scale_state *state, const char *id)
{
	return ++state_group(state, id)->doubts;
}

void scale_state_answer(struct scale_state *state, const char *id)
{
	struct scale_state_group *group = state_group(state, id);

	group->doubts = 0;
	group->is_answered = true;
}

int64_t scale_state_wait_ms(enum scale_failure failure, int64_t failures)
{
	unsigned n = failures > 0 && failures < 100 ? (unsigned)failures : failures > 0 ? 100 : 1;

	/* Clients that one server slows down must not come back together. */
	if (failure == SCALE_FAILED_THROTTLE)
		return backoff_jitter_ms(
			n, state_waits[failure].first_ms, state_waits[failure].max_ms);
	return backoff_ms(n, state_waits[failure].first_ms, state_waits[failure].max_ms);
}

static void state_end_grow(struct scale_state_group *group)
{
	REPLACE(group->token, NULL);
	group->to = group->asked_ms = group->doubts = 0;
	group->due_to = group->due_ms = 0;
	group->is_answered = false;
}

void scale_state_fail(struct scale_state *state, const char *id, enum scale_failure failure,
	const char *text, int64_t now_ms)
{
	struct scale_state_group *group = state_group(state, id);

	if (failure == SCALE_NO_FAILURE)
		failure = SCALE_FAILED_OTHER;
	bool is_same = failure == group->failure && group->failures < INT32_MAX;
	bool is_waiting = group->wait_until_ms > now_ms;
	group->failures = !is_same ? 1 : is_waiting ? group->failures : group->failures + 1;
	group->failure = failure;
	size_t len = str_fit(text ? text : "", STATE_TEXT_MAX);
	REPLACE(group->text, len ? mem_strndup(text, len) : NULL);
	group->wait_until_ms = now_ms + scale_state_wait_ms(failure, group->failures);
	if (group->token) {
		group->failed_due_ms = group->due_ms;
		group->failed_until_ms = now_ms + STATE_REPEAT_MS;
	}
	state_end_grow(group);
}

static void state_settle_grow(struct scale_state *state, struct scale_state_group *group,
	int64_t nodes, int64_t desired, const struct scale_model *model)
{
	if (group->is_answered && nodes >= group->due_to && group->due_to < group->to) {
		group->due_to = group->to;
		group->due_ms = group->asked_ms;
	} else if (group->is_answered && nodes >= group->due_to) {
		state_end_grow(group);
		group->failures = 0;
		group->failure = SCALE_NO_FAILURE;
		group->wait_until_ms = 0;
		REPLACE(group->text, NULL);
	} else if (model->now_ms - group->asked_ms > STATE_REPEAT_MS &&
		   (!group->is_answered || desired < group->to)) {
		state_end_grow(group);
	} else if (model->now_ms - group->due_ms > model->limits.boot_ms) {
		scale_state_fail(state, group->id, SCALE_FAILED_OTHER,
			"its machines did not come in time", model->now_ms);
	}
}

static bool state_is_old(const struct scale_state_group *group, int64_t now_ms)
{
	int64_t last_ms =
		group->wait_until_ms > group->asked_ms ? group->wait_until_ms : group->asked_ms;

	if (group->is_awaited || group->rooms.n || group->mismatches.n || group->tried)
		return false;
	if (group->missing_ms && group->machines.n && now_ms - group->missing_ms <= FORGET_MS)
		return false;
	return (!group->token && !group->failures) || now_ms - last_ms > FORGET_MS;
}

/* Machines of one group and of the nodes, by id. */
struct state_seen {
	struct map listed, stopping, known, nodes;
	bool is_away;            /* nobody has looked for a while, or not at the group */
	bool is_patient;         /* what is not listed has not been so for long */
	int64_t now_ms, from_ms; /* machines since then are of a grow; 0: none are */
};

/* Whether a machine is still to come though the provider does not list it. */
static bool state_is_overlooked(
	const struct state_seen *seen, const struct scale_state_machine *machine)
{
	return seen->is_patient && !machine->was_node && !map_get(&seen->listed, machine->id) &&
	       !map_get(&seen->stopping, machine->id);
}

static bool state_is_kept(const struct state_seen *seen, const struct scale_state_machine *machine)
{
	const struct scale_instance *instance = map_get(&seen->listed, machine->id);
	bool is_before = instance && instance->since_ms && instance->since_ms < seen->from_ms;

	if (seen->from_ms && !is_before)
		return true;
	return !machine->was_node && (instance || state_is_overlooked(seen, machine));
}

/* Drop what is remembered of machines and no longer of use. */
static void state_keep_machines(struct scale_state_group *group, struct state_seen *seen)
{
	bool is_unlisted = false;
	size_t kept = 0;

	vec_foreach (struct scale_state_machine, machine, &group->machines) {
		machine->was_node =
			machine->was_node || seen->is_away || map_get(&seen->nodes, machine->id);
		if (!state_is_kept(seen, machine)) {
			free(machine->id);
			continue;
		}
		if (state_is_overlooked(seen, machine))
			is_unlisted = group->is_awaited = true;
		if (!machine->was_node && map_get(&seen->listed, machine->id))
			group->is_awaited = true;
		group->machines.v[kept++] = *machine;
		map_put(&seen->known, machine->id, seen);
	}
	group->machines.n = kept;
	if (!is_unlisted)
		group->unlisted_ms = 0;
	else if (!group->unlisted_ms)
		group->unlisted_ms = seen->now_ms;
}

/* Machines that have got another id are still the same. */
static void state_rename(
	struct scale_state *state, struct scale_state_group *group, const struct scale_group *of)
{
	struct map known = {0};

	vec_foreach (struct scale_state_machine, machine, &group->machines)
		map_put(&known, machine->id, machine);
	vec_foreach (const struct scale_instance, instance, &of->instances) {
		const char *id = instance->id;
		struct scale_state_machine *machine =
			str_empty(instance->was) ? NULL : map_get(&known, instance->was);
		if (!machine || !str_eq(machine->id, instance->was) || str_empty(id) ||
			map_get(&known, id) || !str_is_plain(id) ||
			state->size + state_id_size(id) > STATE_SIZE_MAX)
			continue;
		state->size += state_id_size(id);
		REPLACE(machine->id, mem_strdup(id));
	}
	map_done(&known);
}

/* While a grow is under way, and for a while after it has failed, machines that were launched since
 * are of it. */
static void state_look(struct scale_state *state, struct scale_state_group *group,
	const struct scale_group *of, struct state_seen *seen)
{
	if (seen->now_ms > group->failed_until_ms)
		group->failed_due_ms = group->failed_until_ms = 0;
	int64_t due_ms = group->token ? group->due_ms : group->failed_due_ms;
	seen->from_ms = due_ms > STATE_CLOCKS_MS ? due_ms - STATE_CLOCKS_MS : 0;
	group->is_cut = group->is_cut && seen->from_ms;
	seen->listed = seen->stopping = seen->known = (struct map){0};
	state_rename(state, group, of);
	vec_foreach (struct scale_instance, instance, &of->instances)
		if (!str_empty(instance->id))
			map_put(instance->state == SCALE_STOPPING ? &seen->stopping : &seen->listed,
				instance->id, instance);
	seen->is_patient =
		!group->unlisted_ms || seen->now_ms - group->unlisted_ms <= STATE_UNLISTED_MS;
	state_keep_machines(group, seen);
	vec_foreach (const struct scale_instance, instance, &of->instances)
		if (seen->from_ms && instance->since_ms >= seen->from_ms &&
			map_get(&seen->listed, instance->id) &&
			!map_get(&seen->known, instance->id))
			state_add_machine(state, group, instance->id,
				seen->is_away || map_get(&seen->nodes, instance->id));
	map_done(&seen->listed);
	map_done(&seen->stopping);
	map_done(&seen->known);
}

static size_t state_size(const struct scale_state *state)
{
	size_t size = 0;

	vec_foreach (const struct scale_state_group, group, &state->groups)
		vec_foreach (const struct scale_state_machine, machine, &group->machines)
			size += state_id_size(machine->id);
	return size;
}

static void state_look_at_all(
	struct scale_state *state, const struct scale_model *model, int64_t every_ms)
{
	int64_t turns_ms = 2 * every_ms + MINUTE_MS;
	int64_t away_ms = turns_ms > STATE_AWAY_MS ? turns_ms : STATE_AWAY_MS;
	bool is_away = model->now_ms - state->looked_ms > away_ms;
	struct state_seen seen = {.now_ms = model->now_ms};

	vec_foreach (const struct scale_node, node, &model->nodes)
		if (node->instance)
			map_put(&seen.nodes, node->instance, node->name);
	state->size = state_size(state);
	vec_foreach (struct scale_state_group, group, &state->groups)
		if (!group->missing_ms && group->machines.n)
			group->missing_ms = model->now_ms;
	vec_foreach (const struct scale_group, of, &model->groups) {
		struct scale_state_group *group = scale_state_find(state, of->id);
		if (!group)
			continue;
		seen.is_away = is_away ||
			       (group->missing_ms && model->now_ms - group->missing_ms > away_ms);
		group->missing_ms = 0;
		state_look(state, group, of, &seen);
	}
	state->looked_ms = model->now_ms;
	map_done(&seen.nodes);
}

static void state_note_room(struct scale_state_group *group, const struct scale_model *model,
	const struct scale_group *of, int resource)
{
	const char *name = model->resources[resource];
	size_t at = 0;

	while (at < group->rooms.n && !str_eq(group->rooms.v[at].resource, name))
		at++;
	if (at == group->rooms.n && of->room.of[resource] >= of->told.of[resource])
		return;
	if (at == group->rooms.n)
		vec_push(&group->rooms)->resource = mem_strdup(name);
	struct scale_state_room *room = &group->rooms.v[at];
	if (of->shown_ms.of[resource] < room->made_ms && of->told.of[resource] == room->told)
		return;
	room->told = of->told.of[resource];
	room->room = of->room.of[resource];
	room->made_ms = of->shown_ms.of[resource];
}

static int64_t state_room_wait_ms(const struct scale_state_group *group)
{
	int64_t n = group->disappointments;

	n = n < 1 ? 1 : n < STATE_TIMES_MAX ? n : STATE_TIMES_MAX;
	return backoff_ms((unsigned)n, STATE_ROOM_MS, FORGET_MS);
}

/* Whether what is remembered of its rooms and mismatches counts. */
static bool state_is_disappointed(const struct scale_state_group *group, int64_t now_ms)
{
	return (group->rooms.n || group->mismatches.n) &&
	       now_ms - group->shown_ms <= state_room_wait_ms(group);
}

/* Whether a pod waits that only a machine as the template says would hold. */
static bool state_is_missed(
	const struct scale_model *model, const bool *is_waiting, const struct scale_group *group)
{
	for (size_t i = 0; i < model->shapes.n; i++)
		if (is_waiting[i] && scale_holds(model, &model->shapes.v[i], &group->told, NULL) &&
			!scale_holds(model, &model->shapes.v[i], &group->room, NULL))
			return true;
	return false;
}

/* Pods of that group waited in vain now. */
static void state_disappoint(struct scale_state_group *group, int64_t now_ms)
{
	if (!state_is_disappointed(group, now_ms) && group->disappointments < STATE_TIMES_MAX)
		group->disappointments++;
	group->shown_ms = now_ms;
}

static void state_note_rooms(
	struct scale_state *state, const struct scale_model *model, const bool *is_waiting)
{
	vec_foreach (struct scale_state_group, group, &state->groups)
		if (model->now_ms - group->shown_ms > state_room_wait_ms(group) + FORGET_MS)
			state_drop_rooms(group);
	vec_foreach (const struct scale_group, of, &model->groups) {
		if (!of->shown_ms.of[SCALE_CPU] || !state_is_missed(model, is_waiting, of))
			continue;
		struct scale_state_group *group = state_group(state, of->id);
		state_disappoint(group, model->now_ms);
		for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
			if (of->shown_ms.of[r])
				state_note_room(group, model, of, r);
	}
}

static char *state_digest(const struct scale_group *of)
{
	enum { BYTES = 8 };
	AUTO_DIGEST struct digest digest = {0};
	AUTO_STRV struct strv texts = {0};
	struct scale_pairs labels = {0};
	struct scale_taints taints = {0};
	uint8_t out[SHA256_SIZE];
	char hex[2 * BYTES + 1];

	mismatch_told(of, &labels, &taints);
	digest_begin(&digest, DIGEST_SHA256);
	vec_foreach (const struct scale_pair, label, &labels) {
		digest_add(&digest, label->key, strlen(label->key) + 1);
		digest_add(&digest, label->value, strlen(label->value) + 1);
	}
	vec_foreach (const struct scale_taint, taint, &taints)
		strv_addf(&texts, "!%s=%s:%d", taint->key, taint->value, (int)taint->effect);
	strv_sort(&texts); /* providers have taints in any order */
	for (size_t i = 0; i < texts.n; i++)
		digest_add(&digest, texts.v[i], strlen(texts.v[i]) + 1);
	digest_end(&digest, out);
	hex_encode(out, BYTES, hex);
	vec_done(&labels);
	vec_done(&taints);
	return mem_strdup(hex);
}

void scale_state_try(struct scale_state *state, const struct scale_group *of, int64_t now_ms)
{
	AUTO_FREE char *digest = state_digest(of);
	struct scale_state_group *group = state_group(state, of->id);

	if (str_eq(group->tried, digest))
		return;
	REPLACE(group->tried, TAKE(digest));
	group->tried_ms = now_ms;
}

/* The newest nodes of a group that were made for the template as it is: of all, and of those that
 * are as they will be. -1: there is none. */
struct state_newest {
	int32_t any, settled;
	bool may_settle; /* some may still become as the template says */
};

static void state_take_newer(const struct scale_model *model, size_t i, int32_t *at)
{
	const struct scale_node *node = &model->nodes.v[i];

	if (node->is_ready && (*at < 0 || node->created_ms > model->nodes.v[*at].created_ms))
		*at = (int32_t)i;
}

static void state_find_newest(
	const struct scale_state *state, const struct scale_model *model, struct state_newest *ret)
{
	AUTO_FREE int64_t *since_ms = mem_alloc(model->groups.n + 1, sizeof(*since_ms));

	for (size_t g = 0; g < model->groups.n; g++) {
		const struct scale_state_group *group =
			scale_state_find(state, model->groups.v[g].id);
		ret[g] = (struct state_newest){-1, -1, false};
		since_ms[g] = group && group->tried ? group->tried_ms : INT64_MAX;
	}
	for (size_t i = 0; i < model->nodes.n; i++) {
		const struct scale_node *node = &model->nodes.v[i];
		struct state_newest *newest = node->group >= 0 ? &ret[node->group] : NULL;
		bool may_settle = mismatch_may_settle(model, node);
		/* A node that somebody drains tells nothing of its template. */
		if (!newest || node->has_no_instance || node->cordoned != SCALE_OPEN ||
			node->created_ms < since_ms[node->group])
			continue;
		newest->may_settle = newest->may_settle || may_settle;
		state_take_newer(model, i, &newest->any);
		if (!may_settle)
			state_take_newer(model, i, &newest->settled);
	}
}

/* Whether nodes show that the template is wrong in what was not known, or a new one shows it again:
 * each shows it once, however long it lives. */
static bool state_find_faults(struct scale_state_group *group, const struct scale_model *model,
	const struct state_newest *newest, const bool *is_waiting)
{
	const int32_t nodes[] = {newest->settled, newest->any};
	bool is_news = false;

	if (newest->settled >= 0)
		mismatch_drop_refuted(&group->mismatches, &model->nodes.v[newest->settled]);
	for (size_t i = 0; i < ARRAY_LEN(nodes); i++) {
		struct scale_mismatches found = {0};
		if (nodes[i] < 0)
			continue;
		mismatch_find(model, (size_t)nodes[i], is_waiting, &found);
		bool is_new = model->nodes.v[nodes[i]].created_ms > group->shown_ms;
		is_news = is_news || (found.n && is_new);
		is_news = mismatch_merge(&found, &group->mismatches) || is_news;
	}
	return is_news;
}

static void state_note_mismatch(struct scale_state_group *group, const struct scale_model *model,
	const struct state_newest *newest, const bool *is_waiting)
{
	if (state_find_faults(group, model, newest, is_waiting))
		state_disappoint(group, model->now_ms);
	if (newest->settled >= 0 && !group->mismatches.n) {
		if (!group->rooms.n)
			state_drop_rooms(group);
		if (!newest->may_settle && !group->token)
			state_drop_try(group);
	}
	/* No node came of it, or all have gone. */
	if (newest->any < 0 && !newest->may_settle && !group->token &&
		model->now_ms - group->tried_ms > model->limits.boot_ms + SCALE_SETTLING_MS)
		state_drop_try(group);
}

/* Keep within the space that there is. */
static void state_bound_tries(struct scale_state *state)
{
	size_t size = 0;

	vec_foreach (struct scale_state_group, group, &state->groups) {
		size += group->tried ? STATE_TRY_SIZE : 0;
		vec_foreach (const struct scale_mismatch, m, &group->mismatches)
			size += STATE_TRY_SIZE + 2 * (strlen(m->key) + strlen(m->node));
		if (size <= STATE_TRIES_MAX)
			continue;
		state_drop_try(group);
		scale_mismatches_done(&group->mismatches);
	}
}

static void state_note_mismatches(
	struct scale_state *state, const struct scale_model *model, const bool *is_waiting)
{
	AUTO_FREE struct state_newest *newest = mem_alloc(model->groups.n + 1, sizeof(*newest));
	struct map there = {0};

	state_find_newest(state, model, newest);
	for (size_t g = 0; g < model->groups.n; g++)
		map_put(&there, model->groups.v[g].id, (void *)(intptr_t)(g + 1));
	vec_foreach (struct scale_state_group, group, &state->groups) {
		intptr_t at = group->tried ? (intptr_t)map_get(&there, group->id) : 0;
		const struct scale_group *of = at ? &model->groups.v[at - 1] : NULL;
		bool is_told = of && of->has_template && !of->is_copied;
		AUTO_FREE char *digest = is_told ? state_digest(of) : NULL;
		if (digest && str_eq(group->tried, digest))
			state_note_mismatch(group, model, &newest[at - 1], is_waiting);
		else if (digest || model->now_ms - group->tried_ms > FORGET_MS)
			state_drop_try(group);
	}
	map_done(&there);
	state_bound_tries(state);
}

/* Faults of templates, by pods that wait. */
static void state_note(struct scale_state *state, const struct scale_model *model)
{
	AUTO_FREE bool *is_waiting = mem_alloc(model->shapes.n + 1, sizeof(*is_waiting));

	vec_foreach (const struct scale_pod, pod, &model->pods)
		is_waiting[pod->shape] =
			is_waiting[pod->shape] || (pod->node < 0 && !pod->is_daemon);
	state_note_rooms(state, model, is_waiting);
	state_note_mismatches(state, model, is_waiting);
}

static void state_at_most(int64_t *wall_ms, int64_t most_ms)
{
	if (*wall_ms > most_ms)
		*wall_ms = most_ms;
}

/* A clock that stepped back makes nothing last longer than if it began now. */
static void state_step_back(struct scale_state *state, int64_t now_ms)
{
	vec_foreach (struct scale_state_group, group, &state->groups) {
		state_at_most(&group->wait_until_ms, now_ms + state_waits[group->failure].max_ms);
		state_at_most(&group->asked_ms, now_ms);
		state_at_most(&group->due_ms, now_ms);
		state_at_most(&group->failed_due_ms, now_ms);
		state_at_most(&group->failed_until_ms, now_ms + STATE_REPEAT_MS);
		state_at_most(&group->missing_ms, now_ms);
		state_at_most(&group->unlisted_ms, now_ms);
		state_at_most(&group->shown_ms, now_ms);
		state_at_most(&group->tried_ms, now_ms);
		vec_foreach (struct scale_state_room, room, &group->rooms)
			state_at_most(&room->made_ms, now_ms);
	}
}

void scale_state_settle(
	struct scale_state *state, const struct scale_model *model, int64_t every_ms)
{
	AUTO_FREE int64_t *nodes = mem_alloc(model->groups.n + 1, sizeof(*nodes));
	size_t kept = 0;

	state_step_back(state, model->now_ms);
	state_look_at_all(state, model, every_ms);
	state_note(state, model);
	vec_foreach (const struct scale_node, node, &model->nodes)
		if (node->group >= 0 && !node->has_no_instance)
			nodes[node->group]++;
	for (size_t g = 0; g < model->groups.n; g++) {
		const struct scale_group *of = &model->groups.v[g];
		struct scale_state_group *group = scale_state_find(state, of->id);
		if (group && group->token)
			state_settle_grow(state, group, nodes[g], of->desired, model);
	}
	vec_foreach (struct scale_state_group, group, &state->groups) {
		if (state_is_old(group, model->now_ms))
			scale_state_group_done(group);
		else
			state->groups.v[kept++] = *group;
	}
	state->groups.n = kept;
}

static void state_apply_machines(
	const struct scale_state_group *known, int64_t now_ms, struct scale_group *group)
{
	int64_t due_ms = !known ? 0 : known->token ? known->due_ms : known->failed_due_ms;
	struct map awaited = {0};

	for (size_t i = 0; known && i < known->machines.n; i++)
		if (!known->machines.v[i].was_node)
			map_put(&awaited, known->machines.v[i].id, known->id);
	vec_foreach (struct scale_instance, instance, &group->instances) {
		instance->is_awaited = map_get(&awaited, instance->id) != NULL;
		/* By a clock that has not stepped back it would be late when that is as far. */
		if (instance->is_awaited && due_ms && instance->since_ms > now_ms + STATE_CLOCKS_MS)
			instance->since_ms = due_ms;
	}
	map_done(&awaited);
}

static void state_apply_rooms(const struct scale_state_group *known,
	const struct scale_model *model, struct scale_group *group)
{
	if (!state_is_disappointed(known, model->now_ms))
		return;
	mismatch_apply(&known->mismatches, group);
	vec_foreach (const struct scale_state_room, room, &known->rooms)
		for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
			int64_t shown_ms = group->shown_ms.of[r];
			if (str_eq(model->resources[r], room->resource) &&
				(!shown_ms || shown_ms < room->made_ms) &&
				group->told.of[r] == room->told && room->room >= 0 &&
				room->room < group->room.of[r])
				group->room.of[r] = room->room;
		}
}

/* Once, though it is applied more than once in a turn. */
static void state_tell_cut(const struct scale_state_group *group, struct strv *remarks)
{
	AUTO_FREE char *text = mem_printf("group %s: not all of its new machines can be "
					  "remembered: those that are late may not be ended",
		group->id);

	if (strv_find(remarks, text) < 0)
		strv_add(remarks, text);
}

void scale_state_apply(struct scale_state *state, struct scale_model *model)
{
	state_step_back(state, model->now_ms);
	vec_foreach (struct scale_group, group, &model->groups) {
		const struct scale_state_group *known = scale_state_find(state, group->id);
		state_apply_machines(known, model->now_ms, group);
		if (known)
			state_apply_rooms(known, model, group);
		if (known && known->is_cut)
			state_tell_cut(known, &model->remarks);
		if (!known || known->wait_until_ms <= model->now_ms)
			continue;
		group->wait_until_ms = known->wait_until_ms;
		group->failure = known->failure;
		REPLACE(group->failure_text, mem_strdup(known->text));
	}
}

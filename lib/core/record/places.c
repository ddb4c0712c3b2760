/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/places.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/target_names.h"
#include "core/record/run.h"

enum { PLACES_TEXT_MAX = 32 << 10 };

static const char *const run_place_states[] = {
	[RUN_PLACE_UNTRIED] = "untried",
	[RUN_PLACE_NOW] = "now",
	[RUN_PLACE_LATER] = "later",
	[RUN_PLACE_NEVER] = "never",
	[RUN_PLACE_SILENT] = "silent",
	[RUN_PLACE_LEFT] = "left",
	[RUN_PLACE_REFUSED] = "refused",
	[RUN_PLACE_CHOSEN] = "chosen",
};

const char *run_place_state_name(enum run_place_state state)
{
	return run_place_states[state];
}

static enum run_place_state run_place_state_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(run_place_states); i++)
		if (str_eq(run_place_states[i], name))
			return (enum run_place_state)i;
	return RUN_PLACE_UNTRIED;
}

void run_places_done(struct run_places *places)
{
	if (!places)
		return;
	vec_foreach (struct run_place, place, places) {
		free(place->target);
		free(place->server);
		free(place->text);
	}
	vec_done(places);
}

/*
 * Waits
 */

static int run_places_fail_wait(const struct run_places *places, const char *name, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);
	const char *names[TARGET_NAMES_MAX], *near;
	size_t n = 0;

	vec_foreach (const struct run_place, place, places)
		names[n++] = place->target;
	near = str_suggest(name, names, n);
	err_set(err, E_USAGE, "--wait-for %s: it is not one of the targets of this run", shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	/* A target of hosts takes what follows it, so the new one stands in front. */
	AUTO_BUF struct buf hint = buf_with(PLACES_TEXT_MAX);
	buf_addf(&hint, "-t %s", shown);
	vec_foreach (const struct run_place, place, places)
		buf_addf(&hint, ",%s", place->target);
	return err_hint(err, "%s", hint.data);
}

/* A name may have "=" in it, a time has none. */
static int run_places_add_wait(struct run_places *places, const char *wait, struct err *err)
{
	const char *equals = strrchr(wait, '=');
	AUTO_FREE char *name = mem_strndup(wait, equals ? (size_t)(equals - wait) : strlen(wait));
	AUTO_FREE char *shown = str_shown(wait);
	struct run_place *place = run_places_find(places, name);
	int64_t ms;

	if (!equals) {
		err_set(err, E_USAGE, "--wait-for %s: how long is missing", shown);
		return err_hint(err, "--wait-for %s=30m", shown);
	}
	if (!*name) {
		err_set(err, E_USAGE, "--wait-for %s: which target is missing", shown);
		return err_hint(err, "--wait-for %s%s", places->v[0].target, shown);
	}
	if (duration_parse(equals + 1, &ms, err) < 0) {
		err_prefix(err, "--wait-for %s", shown);
		return err_hint(err, "--wait-for %s=30m", name);
	}
	if (!place)
		return run_places_fail_wait(places, name, err);
	place->wait_ms = ms;
	place->waits_first = true;
	return 0;
}

int run_places_from_config(const struct config *config, const struct strv *waits,
	struct run_places *ret, struct err *err)
{
	const char *text = config_str(config, "target");
	AUTO_RUN_PLACES struct run_places places = {0};
	AUTO_STRV struct strv names = {0};
	int r = target_names_split(config, text ? text : "local", &names, err);

	if (r < 0)
		return config_blame(config, "target", err);
	for (size_t i = 0; i < names.n; i++)
		*vec_push(&places) = (struct run_place){.target = mem_strdup(names.v[i]),
			.wait_ms = config_duration(config, "spill_after", -1)};
	if (names.n == 1 && waits && waits->n) {
		err_set(err, E_USAGE, "--wait-for requires several targets: there is only %s",
			names.v[0]);
		return err_hint(err, "-t %s,OTHER", names.v[0]);
	}
	for (size_t i = 0; r == 0 && waits && i < waits->n; i++)
		r = run_places_add_wait(&places, waits->v[i], err);
	if (r < 0)
		return r;
	*ret = places;
	places = (struct run_places){0};
	return 0;
}

/*
 * The record
 */

struct run_place *run_places_find(const struct run_places *places, const char *target)
{
	vec_foreach (struct run_place, place, places)
		if (str_eq(place->target, target))
			return place;
	return NULL;
}

bool run_places_any_other(const struct run_places *places, const char *target)
{
	vec_foreach (const struct run_place, place, places)
		if (place->state != RUN_PLACE_REFUSED && !str_eq(place->target, target))
			return true;
	return false;
}

void run_place_decide(
	struct run_place *place, enum run_place_state state, const char *text, int64_t at_ms)
{
	char *copy = mem_strdup(text);

	REPLACE(place->text, copy);
	place->state = state;
	place->at_ms = at_ms;
}

struct json *run_places_to_json(const struct run_places *places)
{
	struct json *list = json_array();

	vec_foreach (const struct run_place, place, places) {
		struct json *item = json_object();
		json_set_str(item, "target", place->target);
		if (place->wait_ms >= 0)
			json_set_int(item, "wait_ms", place->wait_ms);
		if (place->waits_first)
			json_set_bool(item, "waits_first", true);
		if (place->server)
			json_set_str(item, "server", place->server);
		json_set_str(item, "state", run_place_state_name(place->state));
		json_set_str(item, "text", place->text);
		run_set_time(item, "at", place->at_ms);
		json_add(list, item);
	}
	return list;
}

void run_places_from_json(const struct json *json, struct run_places *ret)
{
	*ret = (struct run_places){0};
	for (const struct json *item = json_first(json); item && ret->n < TARGET_NAMES_MAX;
		item = json_next(item)) {
		const char *target = json_get_str(item, "target"), *at = json_get_str(item, "at");
		struct run_place *place;

		if (str_empty(target) || run_places_find(ret, target))
			continue;
		place = vec_push(ret);
		*place = (struct run_place){.target = mem_strdup(target),
			.wait_ms = json_get_int(item, "wait_ms", -1),
			.waits_first = json_get_bool(item, "waits_first", false),
			.server = mem_strdup(json_get_str(item, "server")),
			.state = run_place_state_find(json_get_str(item, "state")),
			.text = mem_strdup(json_get_str(item, "text"))};
		if (at && clock_parse(at, &place->at_ms, NULL) < 0)
			place->at_ms = 0;
	}
}

char *run_places_text(const struct run_places *places)
{
	const char *chosen = NULL;
	AUTO_BUF struct buf out = buf_with(PLACES_TEXT_MAX);

	vec_foreach (const struct run_place, place, places) {
		bool is_chosen = place->state == RUN_PLACE_CHOSEN;
		if (is_chosen)
			chosen = place->target;
		/* A place behind the one that was taken at once says nothing. */
		if (place->state == RUN_PLACE_UNTRIED)
			continue;
		buf_addf(&out, "%s%s: %s", out.len ? " · " : "", place->target,
			place->text ? place->text
			: is_chosen ? "room"
				    : run_place_state_name(place->state));
	}
	if (chosen)
		buf_addf(&out, " → %s", chosen);
	return buf_take(&out);
}

char *run_places_of(const struct run *run)
{
	AUTO_RUN_PLACES struct run_places places = {0};

	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	return places.n ? run_places_text(&places) : NULL;
}

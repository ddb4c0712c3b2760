/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places of a run: targets in the order of preference (`-t lab,eu,us`), of which the run is at
 * one at a time (target.name of its record). The member "places" of dlrun/run/v1, where there are
 * several: in the order given
 *
 *	{"target", "wait_ms", "waits_first", "server", "state", "text", "at"}
 *
 * with the decision that was made about each: its state, one sentence why, and the time. wait_ms
 * (absent: without end) is how long the run waits there before it goes on to the next place;
 * waits_first (--wait-for) is set where it waits there although a later place has room. server is
 * of a cluster: "kube:SERVER", which it was at the submit, whatever the name leads to later.
 *
 * Beside it the member "moves" {platform, workdir, remote_url, no_gpus}: of the submit, for the one
 * who sends the run to another place, as in "held" (held.h).
 */
#ifndef DLRUN_CORE_RECORD_PLACES_H
#define DLRUN_CORE_RECORD_PLACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/config/config.h"

#define RUN_PLACES "places"
#define RUN_MOVES  "moves"

enum run_place_state {
	RUN_PLACE_UNTRIED, /* not asked, or not yet */
	RUN_PLACE_NOW,     /* has room */
	RUN_PLACE_LATER,   /* the run would wait there */
	RUN_PLACE_NEVER,   /* takes no such run */
	RUN_PLACE_SILENT,  /* does not answer */
	RUN_PLACE_LEFT,    /* the run was there, and was taken back */
	RUN_PLACE_REFUSED, /* had room, but did not take the run when it came: not asked again */
	RUN_PLACE_CHOSEN,  /* the run is there */
};
/* "now", "later", … */
const char *run_place_state_name(enum run_place_state state);

struct run_place {
	char *target;
	int64_t wait_ms; /* < 0: without end */
	bool waits_first;
	enum run_place_state state;
	char *server;
	char *text;    /* why, one sentence; or NULL */
	int64_t at_ms; /* wall clock; 0: no decision yet */
};
struct run_places VEC_OF(struct run_place);
void run_places_done(struct run_places *places);
#define AUTO_RUN_PLACES AUTO(run_places_done)

/* The places of a submit, all of them untried: from `target` and spill_after, with waits (of
 * --wait-for: "PLACE=TIME"). E_USAGE: as of target_names_split; a wait of a place that is not in
 * the list, or without a time; with a single place any wait at all. */
int run_places_from_config(const struct config *config, const struct strv *waits,
	struct run_places *ret, struct err *err);

/* NULL: it is none of them. */
struct run_place *run_places_find(const struct run_places *places, const char *target);
/* Whether a place other than target has not refused the run. */
bool run_places_any_other(const struct run_places *places, const char *target);
/* Write down a decision: text (or NULL) is copied. */
void run_place_decide(
	struct run_place *place, enum run_place_state state, const char *text, int64_t at_ms);

struct json *run_places_to_json(const struct run_places *places);
/* Lenient: what is of another form counts as not given. */
void run_places_from_json(const struct json *json, struct run_places *ret);
/* "lab: 8 hosts, none free · eu: queue gpu full · us: 3 × a100 free → us": what is known of each,
 * and where the run is. The caller frees. */
char *run_places_text(const struct run_places *places);
/* The same of a record; NULL: it has one place. The caller frees. */
struct run;
char *run_places_of(const struct run *run);

#endif

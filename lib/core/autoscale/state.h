/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the autoscaler that outlives a turn and a process: which groups failed, how long
 * each is not asked again, the newest grow of each, and its machines. An engine; times are wall
 * clock of the cluster.
 *
 * A grow is written here before the provider is asked (scale_state_ask), so that whoever takes over
 * repeats the request with the same token. JSON, in the member "state" of the
 * ConfigMap dlrun-autoscale-state:
 *
 *	{"version": 1, "looked": TIME, "groups": {"gpu-a": {"failure": "capacity", "text": "…",
 *	    "failures": 2, "wait_until": TIME, "grow": {"token": "…", "to": 9, "asked": TIME,
 *	    "due_to": 9, "due": TIME, "doubts": 1, "answered": true},
 *	    "awaited": [ID of a machine that was bought and was no node up to `looked`, …],
 *	    "joined": [ID of one that was or may have been, …],
 *	    "cut": true where there was no space for some of them,
 *	    "missing": TIME since when the group is not there,
 *	    "unlisted": TIME since when one of the awaited is not,
 *	    "rooms": {"cpu": {"told": 3920, "room": 3770, "made": TIME}, …},
 *	    "tried": {"template": DIGEST, "since": TIME}, "mismatches": [as in mismatch.h],
 *	    "shown": TIME, "disappointments": 1,
 *	    "failed_grow": {"due": TIME, "until": TIME (more may come of it)}}}}
 */
#ifndef DLRUN_CORE_AUTOSCALE_STATE_H
#define DLRUN_CORE_AUTOSCALE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/autoscale/model.h"

/* Groups: with those that are gone, and in any case a ConfigMap has 1 MiB. */
enum { STATE_TEXT_MAX = 160, STATE_TOKEN_SIZE = 33, STATE_GROUPS_MAX = 5000 };

/* A machine that was bought. Only those of which it is known that they never were nodes are ended
 * without having been idle: who has deleted the object of a node may still need its machine. */
struct scale_state_machine {
	char *id;
	bool was_node; /* or may have been, while nobody looked */
};
/* A node left so much of a resource; in the units of amounts. */
struct scale_state_room {
	char *resource;
	int64_t told; /* as its template said */
	int64_t room;
	int64_t made_ms; /* the node */
};
struct scale_state_group {
	char *id;
	enum scale_failure failure;
	char *text;       /* the provider's, of STATE_TEXT_MAX bytes; or NULL */
	int64_t failures; /* in a row */
	int64_t wait_until_ms;
	char *token; /* of the newest grow; NULL: none is under way */
	int64_t to;  /* the size of it */
	/* Of the oldest grow of which machines are still to come: its size, and when it was asked
	 * for. */
	int64_t due_to, due_ms;
	int64_t doubts; /* grows in a row without a response that says whether they had an effect */
	int64_t asked_ms; /* when it was written */
	bool is_answered; /* the provider has accepted it */
	/* The grow before, for scale_state_take_back; not written. */
	struct {
		char *token;
		int64_t to, due_to, due_ms, asked_ms;
		bool is_answered;
	} before;
	/* Of the newest grow that failed: its due_ms, and how long more machines may come of it, as
	 * they do where a provider launches them one by one. */
	int64_t failed_due_ms, failed_until_ms;
	/* Machines that are not known to have been nodes; and while more may come the others, lest
	 * they seem to be new. */
	struct scale_state_machines VEC_OF(struct scale_state_machine) machines;
	/* There was no space for some. Until the grow is over, those that are found are taken for
	 * some of them, which may have been nodes. */
	bool is_cut;
	/* Since when the provider does not list the group, or some machine that is to come: what is
	 * not listed once may only have been overlooked. 0: it does. */
	int64_t missing_ms, unlisted_ms;
	bool is_awaited; /* one of them is to come; set by scale_state_settle */
	/* Of the newest node, if a pod waited that the template would have held: else a machine
	 * would be bought for it each time that the last one has been given back. */
	struct scale_state_rooms VEC_OF(struct scale_state_room) rooms;
	/* Of what labels and taints of the template there was a purchase, as a digest, and since
	 * when: nodes made since then show whether they are right, until the newest one does. NULL:
	 * there was none. */
	char *tried;
	int64_t tried_ms;
	/* Faults of the template that the newest of them showed, where pods waited for the
	 * opposite. */
	struct scale_mismatches mismatches;
	int64_t shown_ms; /* when rooms or mismatches were last so */
	/* How often in a row: the times until such a machine is bought again grow with it. */
	int64_t disappointments;
};
/* By id. */
struct scale_state {
	struct scale_state_groups VEC_OF(struct scale_state_group) groups;
	int64_t looked_ms; /* when machines and nodes were last compared */
	size_t size;       /* of the ids of machines, as text */
};
void scale_state_done(struct scale_state *state);
#define AUTO_SCALE_STATE AUTO(scale_state_done)

/* json: NULL is an empty state. E_DATA: it is not in this format. */
int scale_state_read(const struct json *json, struct scale_state *ret, struct err *err);
/* The caller frees. */
struct json *scale_state_write(const struct scale_state *state);
/* NULL: nothing is remembered of it. */
struct scale_state_group *scale_state_find(const struct scale_state *state, const char *id);

/* A grow is about to be asked for. One to the same size that is not answered keeps its token; else
 * token becomes the grow's. Returns the one that counts. */
const char *scale_state_ask(
	struct scale_state *state, const char *id, int64_t to, const char *token, int64_t now_ms);
/* Machines are about to be bought of a group as its template is. */
void scale_state_try(struct scale_state *state, const struct scale_group *of, int64_t now_ms);
/* The grow was not sent: the one before it counts again. False where that one was not answered and
 * may have had an effect. */
bool scale_state_take_back(struct scale_state *state, const char *id);
/* There was no response that says whether it had an effect: how often, in a row. Who asks gives up
 * after some. */
int64_t scale_state_doubt(struct scale_state *state, const char *id);
/* The grow's machines are, or have among them, this one. */
void scale_state_bought(struct scale_state *state, const char *id, const char *machine);
/* The provider accepted it. */
void scale_state_answer(struct scale_state *state, const char *id);
/* The group failed: it is not asked for a time that grows with the failures in a row; failures
 * during that time are of the same row. The grow is over. */
void scale_state_fail(struct scale_state *state, const char *id, enum scale_failure failure,
	const char *text, int64_t now_ms);
/* Machines that are nodes are noted. Grows whose machines are nodes are over, and the failures
 * before them; those whose machines are none after limits.boot_ms have failed. A grow that was not
 * answered and is not asked for again is dropped, as is one whose group has been shrunk. Failures
 * and rooms are forgotten a day after their wait. every_ms: from turn to turn. */
void scale_state_settle(
	struct scale_state *state, const struct scale_model *model, int64_t every_ms);
/* Sets wait_until, failure and failure_text of the model's groups, and is_awaited of their
 * machines; adds a remark where there was no space for some of them. Groups have no more room than
 * is remembered of a newer node than is there, as long as their template says the same, and labels
 * and taints as their nodes had them (mismatch.h). Here as in scale_state_settle, times from the
 * future, of a clock that has stepped back, become now. */
void scale_state_apply(struct scale_state *state, struct scale_model *model);

/* The wait after so many failures of that class in a row, at least 1. That of SCALE_FAILED_THROTTLE
 * is random in part. */
int64_t scale_state_wait_ms(enum scale_failure failure, int64_t failures);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's record. Its truth is one JSON object, exactly what `show --json` prints: dlrun/run/v1
 * (cli.md), complete from the start, with null where nothing is known yet. This module makes it,
 * checks it, and reads and writes the members that the code asks for by name.
 */
#ifndef DLRUN_CORE_RECORD_RUN_H
#define DLRUN_CORE_RECORD_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

#define RUN_SCHEMA "dlrun/run/v1"

enum { RUN_NAME_MAX = 40, RUN_SUFFIX = 5, RUN_ID_SIZE = RUN_NAME_MAX + 1 + RUN_SUFFIX + 1 };
enum { RUN_INDEX_MAX = 6 }; /* bytes of "-INDEX" in the name of a member of a study */

enum run_state {
	RUN_PREPARING, /* accepted by the checks, not yet by the target */
	RUN_QUEUED,
	RUN_STARTING,
	RUN_RUNNING,
	RUN_SUCCEEDED,
	RUN_FAILED,
	RUN_CANCELLED,
	RUN_LOST,
	RUN_UNKNOWN,
	RUN_STATES,
};
const char *run_state_name(enum run_state state);
/* RUN_UNKNOWN for a word that is not a state. */
enum run_state run_state_find(const char *name);
/* succeeded, failed, cancelled, lost. */
bool run_state_is_final(enum run_state state);
/* Whether the state machine of cli.md allows the step. */
bool run_state_may_follow(enum run_state from, enum run_state to);

/* How an attempt or a run ended. */
struct run_exit {
	bool known;
	int code;           /* 0 to 255, of the program; 128 + n for a signal */
	int signal;         /* 0: none */
	const char *origin; /* "job": the program; "setup"; "dlrun": dlrun or its limits */
	const char *reason; /* the name of a run_reason; static text, as is origin */
};
struct run_reason {
	const char *name;
	enum err_id id;     /* that the command fails with */
	const char *text;   /* for people; NULL: the exit code says it */
	bool is_disruption; /* from "cluster": not the program's doing */
};
/* NULL: there is none of that name, which may be NULL. */
const struct run_reason *run_reason(const char *name);
/* {code, signal, origin, reason}, null when not known; reading is lenient. */
struct json *run_exit_to_json(const struct run_exit *exit);
void run_exit_from_json(const struct json *json, struct run_exit *ret);

struct run {
	struct json *doc;  /* dlrun/run/v1 */
	struct json *spec; /* what is needed to start it again; never secrets: spec.h */
	int64_t revision;  /* of the row in the store; 0: not stored */
	/* Observations that the target reported with its last state in this process:
	 * dlrun/observed/v1 (observe.h). Not a part of the record; or NULL. */
	struct json *seen;
};

/* A new record in state preparing with every member present. */
struct run *run_new(const char *id, const char *name);
/* Make a run from the store's text; E_DATA if doc is not a record. Takes doc and spec. */
int run_from_json(struct json *doc, struct json *spec, struct run **ret, struct err *err);
struct run *run_copy(const struct run *run);
void run_free(struct run *run);
AUTO_POINTER(struct run, run_free)
#define AUTO_RUN AUTO(run_free_auto)

struct run_list VEC_OF(struct run *);
void run_list_done(struct run_list *list);

const char *run_id(const struct run *run);
const char *run_name(const struct run *run);
enum run_state run_state(const struct run *run);
const char *run_target(const struct run *run); /* its name */
/* Wall clock; 0: not yet. */
int64_t run_submitted_ms(const struct run *run);
int64_t run_started_ms(const struct run *run);
int64_t run_ended_ms(const struct run *run);
/* "sha256:…" of the image's manifest, or NULL. */
const char *run_image_digest(const struct run *run);
/* Member of the record's image, where no registry has that image: the base, "REPO@sha256:…", which
 * pods take, while the code reaches them by the cluster. NULL: they take the image itself. */
#define RUN_BASE_REF "base_ref"
const char *run_base_ref(const struct run *run);
#define RUN_STREAMED "streamed" /* member of it: the code is sent to each node (ops->deliver) */
bool run_is_streamed(const struct run *run);
void run_set_state(struct run *run, enum run_state state);
void run_get_exit(const struct run *run, struct run_exit *ret);
void run_set_exit(struct run *run, const struct run_exit *exit);
bool run_cancelling(const struct run *run);
/* A time as RFC 3339 text in any object of the record; null for 0. */
void run_set_time(struct json *object, const char *key, int64_t wall_ms);

/* Attempts count from 1; 0: there is none yet. */
int run_attempts(const struct run *run);
/* The end of the previous attempt is no longer that of the run. */
void run_add_attempt(struct run *run, const char *handle);
/* The newest attempt is known by another handle. */
void run_set_handle(struct run *run, const char *handle);
const char *run_handle(const struct run *run); /* of the newest attempt, or NULL */
/* The handle of attempt number, from 1; NULL if there is none. */
const char *run_attempt_handle(const struct run *run, int number);
/* Set the newest attempt's own image: that of the run, and more (carry_over.h). NULL: it has
 * none. */
void run_set_attempt_image(struct run *run, const char *ref);
const char *run_attempt_image_digest(const struct run *run);
/* Set the end of the newest attempt; the run's times follow (started: of the first attempt). 0: not
 * yet. */
void run_set_attempt_exit(
	struct run *run, const struct run_exit *exit, int64_t started_ms, int64_t ended_ms);

/* The newest attempt was taken back before it had begun: it has no handle any more, and its end is
 * not the run's. */
void run_set_attempt_left(struct run *run, int64_t ended_ms);

/* Map a name to the form of an id: lower case, other bytes to '-', at most 40; *ret_mapped: whether
 * anything had to change. E_RUN_NAME when nothing of it can stay. */
int run_name_map(
	const char *wanted, char ret[static RUN_NAME_MAX + 1], bool *ret_mapped, struct err *err);
/* name-xxxxx: five of 23456789abcdefghjkmnpqrstuvwxyz, random. */
void run_make_id(const char *name, char ret[static RUN_ID_SIZE]);
/* The id of a member of a study: NAME-INDEX-SUFFIX, where the study's id is NAME-SUFFIX; NAME is at
 * most RUN_NAME_MAX - RUN_INDEX_MAX long. Nobody else makes such an id but by chance. */
void run_member_id(const char *study, size_t index, char ret[static RUN_ID_SIZE]);
/* Whether s has the form of a whole id. */
bool run_id_is_valid(const char *s);

/* Whether the run failed because dlrun was stopped before it had begun. */
bool run_never_began(const struct run *run);
/* The exit status of a command that follows this run to its end (cli.md): the program's, 124 for a
 * time limit, 143 cancelled, 125 lost or unknown. */
int run_exit_status(const struct run *run);

/* params of dlrun/run/v1 from the words of a command: --k v, --k=v, k=v (also Hydra's +k=v); at
 * most 1,000. ret_others: the words that are none, added; may be NULL. */
struct json *run_params(const struct strv *command, struct strv *ret_others);

/* Add a tag, "K" or "K=V", to tags of dlrun/run/v1. A name that is not UTF-8 is ignored. */
void run_tags_add(struct json *tags, const char *tag);
/* E_USAGE without a name: "WHAT must have a name". */
int run_tag_check(const char *tag, const char *what, const char *hint, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Studies: many runs that one command made. A study is one JSON object, dlrun/study/v1, kept as
 * STATE/studies/ID/study.json; it is durable before the first member has a record, so that
 * whoever looks after a kill knows which members are missing and how they are made. Its members are
 * ordinary runs: ids follow from the study's (run_member_id), "group" is the study's id, and
 * "study" is {id, index}.
 */
#ifndef DLRUN_CORE_STUDY_STUDY_H
#define DLRUN_CORE_STUDY_STUDY_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/record/dirs.h"
#include "core/record/run.h"
#include "core/record/spec.h"
#include "core/study/axes.h"

#define STUDY_SCHEMA "dlrun/study/v1"
#define STUDY_STOP   "stop" /* member of the object: a rule (stop_rule.h), or it is absent */

struct study {
	char id[RUN_ID_SIZE];
	char name[RUN_NAME_MAX + 1]; /* members are called NAME-INDEX */
	struct cases cases;          /* a row for each member */
	int parallel;                /* 0: no limit */
	bool fail_fast;
	struct spec spec; /* of the members, with {k} for the values of the axes */
	/* Beside what stands above: "user", "submitted", "target", "name_template" of members, and
	 * how the cases were asked for: "over", "file", "zip", "sample", "seed". */
	struct json *doc;
	int making_fd; /* study_hold; 0: not held */
};
void study_done(struct study *study);
#define AUTO_STUDY AUTO(study_done)

/* Hold the study: as long as somebody makes members of it, and for an instant by who cancels or
 * removes it. study_release and study_done release it. A group that is no study of its own is not
 * held. E_IO_LOCK. */
int study_hold(
	const struct dirs *dirs, const char *id, int64_t timeout_ms, int *ret_fd, struct err *err);
void study_release(struct study *study);
bool study_is_held(const struct dirs *dirs, const char *id);
/* Take a new id for a study of that name (cut where an index would not fit) and make its directory,
 * which nobody else has. The study is held then. */
int study_claim(const struct dirs *dirs, const char *name, struct study *ret, struct err *err);
/* Write the object of a claimed study: doc has the members that study_claim and the following do
 * not: those that describe how it was asked for. Durable when it returns. */
int study_write(const struct dirs *dirs, struct study *study, struct err *err);
/* E_RUN_NOT_FOUND without such a study here; E_DATA if it is damaged. */
int study_read(const struct dirs *dirs, const char *id, struct study *ret, struct err *err);
/* The id of the study that text is, or begins. E_RUN_NOT_FOUND; E_USAGE where there are several. */
int study_find(
	const struct dirs *dirs, const char *text, char ret[static RUN_ID_SIZE], struct err *err);
/* Remove what is kept of the study itself. One that is not there, or a group without an object, is
 * removed already. */
int study_remove(const struct dirs *dirs, const char *id, struct err *err);

/* Tell whoever makes members to make no more of them, or that they may be made. A group that is no
 * study of its own: nothing is told. */
int study_set_cancelled(const struct dirs *dirs, const char *id, bool cancelled, struct err *err);
/* Also where its object is gone. */
bool study_is_cancelled(const struct dirs *dirs, const char *id);

/* Make spec say which member it is of. */
void study_set_place(const struct study *study, size_t index, struct spec *spec);
/* The specification of a member: values in place of {k}, and its place in the study. E_USAGE for a
 * template that names no axis. */
int study_member_spec(const struct study *study, size_t index, struct spec *ret, struct err *err);
/* The words of all members. */
struct study_words {
	size_t n;
	struct strv *commands;
	struct strv *env;     /* K=V that have {k}, the same names in each; NULL: there are none */
	struct json **params; /* objects: the values of the axes */
};
int study_all_words(const struct study *study, struct study_words *ret, struct err *err);
void study_words_done(struct study_words *words);
#define AUTO_STUDY_WORDS AUTO(study_words_done)
/* The members that describe it in its record: name, group, study, and params beside those that are
 * there. */
void study_describe_member(const struct study *study, size_t index, struct json *run);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal declarations that the parts of app/submit/submit.c share.
 */
#ifndef DLRUN_APP_SUBMIT_SUBMIT_IMPL_H
#define DLRUN_APP_SUBMIT_SUBMIT_IMPL_H

#include "app/prepare/submission.h"
#include "core/record/run.h"
#include "core/store/store.h"
#include "oci/image/image.h"

/* State of a submit, and what it creates on disk. */
struct submit_course {
	struct submission submission;
	struct store *store;
	struct run *run;
	char id[RUN_ID_SIZE];
	char handle[TARGET_HANDLE_SIZE];
	char *dir;   /* of the run */
	int gc_fd;   /* until the row names the image */
	int lock_fd; /* submit.lock, until submit_finish */
	struct image image;
	char *ref;                 /* of the image */
	struct strv env, defaults; /* of the job */
	int64_t pack_ms, push_ms, submit_ms;
};

void submit_course_done(struct submit_course *course);

/* submit_row.c */
/* A new id, by a directory with a lock in it, and the handle of the first attempt: nobody knows of
 * them yet. */
int submit_claim_id(struct submit_course *course, struct err *err);
int submit_claim_dir(struct submit_course *course, struct err *err); /* the id only */
/* By what is known of the target now; submit_learn asks it, where its check is not made. */
int submit_choose_handle(struct submit_course *course, struct err *err);
int submit_learn(struct submit_course *course, struct err *err);
/* Without a row nothing stays of it. */
void submit_drop_id(struct submit_course *course);
/* The row of what stands in the submission, in state preparing. On failure the id is dropped. */
int submit_insert_row(struct submit_course *course, struct err *err);
int submit_update_row(struct submit_course *course, struct err *err);
/* After the row there is a run: how it failed is for its record. Returns r. */
int submit_fail_row(struct submit_course *course, int r, const struct err *err);

/* Describe the run as it is now for the target; *ret borrows from course. */
void submit_make_job(struct submit_course *course, struct target_job *ret);

/* submit_push.c: for targets that take images from a registry. Snapshot and image are made and
 * pushed, while the target is asked whether the run could be there; the row is inserted before the
 * image is committed. course->run is NULL on a failure before that. */
int submit_push(struct submit_course *course, struct err *err);
/* Where the submission's target takes images from, into pushing; E_CONFIG where nothing says it. */
struct pushing;
int submit_find_registry(struct pushing *pushing, struct err *err);
/* Set the facts of the base's configuration, for the run's specification. */
void submit_set_facts(struct submit_course *course);

/* submit_doc.c */
/* A new record of it, in state preparing. */
struct run *submission_run(struct submission *submission, const char *id);
/* The members that follow from the snapshot as it is now. */
void submission_set_snapshot(const struct submission *submission, struct run *run);
void submission_set_warnings(const struct submission *submission, struct run *run);

#endif

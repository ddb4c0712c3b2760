/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal declarations that the parts of app/prepare/push.c share.
 */
#ifndef DLRUN_APP_PREPARE_PUSHING_H
#define DLRUN_APP_PREPARE_PUSHING_H

#include "app/prepare/push.h"
#include "app/prepare/submission.h"
#include "base/loop/task.h"
#include "oci/model/ref.h"

/* State of one push. */
struct pushing {
	const struct push_options *options;
	const struct push_events *events; /* never NULL */
	struct submission *submission;
	/* Asked before the image is committed, when its base is known; ends with task_answer. NULL:
	 * it may be. */
	task_ask_fn *may_commit;
	void *may_commit_ctx;
	const struct pack_added *added; /* instead of a tree: to the image there; or NULL */
	struct ref to;                  /* where it goes */
	char *pull;                     /* of a registry: the repository as runs name it */
	struct push_result result;      /* as far as it goes */
};

/* The snapshot into result, and when it was hashed. */
int push_take_snapshot(struct pushing *pushing, struct err *err);
/* Tell the user interface of it: on the caller's thread. */
void push_say_snapshot(const struct pushing *pushing);
/* The registry of a target (NULL: none in particular) into `to` and `pull`: 1, or 0: there is
 * none. */
int push_find_registry(struct pushing *pushing, const char *target, struct err *err);
void pushing_done(struct pushing *pushing);
/* The whole of a push to a registry. */
int push_to_registry(struct pushing *pushing, struct err *err);

#endif

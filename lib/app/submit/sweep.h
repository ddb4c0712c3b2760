/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many runs by one command: one snapshot, one image, one push. The object of the study is durable
 * before the first row, the ids of its members follow from it, and each row is durable before its
 * target is told: after a kill at any instant sweep_make_missing makes those that are not there,
 * and none twice.
 */
#ifndef DLRUN_APP_SUBMIT_SWEEP_H
#define DLRUN_APP_SUBMIT_SWEEP_H

#include "app/submit/submit.h"
#include "core/study/study.h"

struct sweep_events {
	const struct submit_events *submit; /* of the first member */
	/* Members that have been made, of all; the first time when there is one. */
	void (*made)(void *ctx, size_t made, size_t n);
	const volatile int *interrupted; /* no more are made; or NULL */
	void *ctx;
};

/* options.study has the cases, parallel, fail_fast, and in doc how it was asked for;
 * options.command and options.env have {k} for their values (E_USAGE as of cases_check). On
 * success, and where members have been made before a failure, its id is set and *ret is the first
 * member, for submit_finish. */
int sweep_run(struct session *session, const struct submit_options *options,
	const struct sweep_events *events, struct run **ret, struct err *err);

/* Make the members of a study that have no record, and start anew those whose start was cut short;
 * *ret_made counts them. Names of secrets without a value are added to ret_missing. */
int sweep_make_missing(struct session *session, struct study *study,
	const struct sweep_events *events, size_t *ret_made, struct strv *ret_missing,
	struct err *err);

#endif

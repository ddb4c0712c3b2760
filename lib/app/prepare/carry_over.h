/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results that ended with the pods of an attempt, and were taken to the record here
 * (app/transfer/fetch.h), go along with the next attempt: as a tar in a layer over the image of its
 * code, from which the script in the pod puts them back. Made before the attempt is written down,
 * from nothing but the record: whoever is killed in between makes the same again.
 */
#ifndef DLRUN_APP_PREPARE_CARRY_OVER_H
#define DLRUN_APP_PREPARE_CARRY_OVER_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

/* *ret_ref: the image with what is carried over to the next attempt of the run, which has ended;
 * NULL: nothing is. What waits in the cluster yet is taken first. Notes (one sentence each): what
 * is carried over, or why not. Blocks. */
int carry_over_make(struct session *session, struct target *target, struct run *run, char **ret_ref,
	struct strv *ret_notes, struct err *err);

#endif

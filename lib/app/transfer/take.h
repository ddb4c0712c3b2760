/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results that lie nowhere but in the pods of a run that has ended: they wait there for a while,
 * and are taken to the directory of the run here, from where they are fetched from then on.
 */
#ifndef DLRUN_APP_TRANSFER_TAKE_H
#define DLRUN_APP_TRANSFER_TAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/dirs.h"
#include "core/record/run.h"

/* Take them, and let the pods end. While the program runs: take what there is by now. 0 when there
 * is nothing. */
int take_run(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err);
/* Behind that, when the run is being cancelled: once its program has ended, what it has written
 * since. */
int take_ending(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err);
/* The run goes on after all: what is here is not what it leaves. */
void take_undo(struct session *session, const struct run *run);
/* Let the pods end without that. */
int take_give_up(struct session *session, struct run *run, int64_t timeout_ms, struct err *err);
/* All that wait; notice (may be NULL) says what could not be taken. */
void take_runs(struct session *session, const struct run_list *runs,
	const volatile int *interrupted, void (*notice)(void *ctx, const char *text), void *ctx);

#endif

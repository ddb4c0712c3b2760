/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending what is held here (held.h), in the order of submission. One process does it at a time, by
 * a lock of the queue; each run is sent under its RUN_SUBMIT_LOCK, so that it can be taken back
 * until then:
 *
 *	image in the registry → durable row with the handle → started there → row not held
 *
 * A run that waits for others is sent when they have ended as it asked for, and ends here when one
 * did not.
 *
 * A study of a target that starts all members together goes by one request: the rows of all members
 * get their handles by one transaction, and those that have ended or are being cancelled are left
 * out. Of a study with several targets one is chosen for all; on hosts each member is then sent by
 * itself.
 *
 * A process that is killed leaves a held run. Where its row has a handle the target is asked first,
 * and the same name is used again, so that it begins once whatever came of the start before.
 * What waits in one of several places without room comes here before, and goes on (spill_impl.h).
 * Configuration and working directory are those that the run was submitted in, as they are now.
 */
#ifndef DLRUN_APP_SUBMIT_SEND_H
#define DLRUN_APP_SUBMIT_SEND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"

struct queue_events {
	/* n: runs, of a study of which all were sent together, and run is one. */
	void (*sent)(void *ctx, const struct run *run, size_t n);
	/* Refused by the target: it has failed, and its record says why. */
	void (*refused)(void *ctx, const struct run *run, const struct err *why);
	/* The run is on its way from one of its places to the next: a sentence. */
	void (*moved)(void *ctx, const struct run *run, const char *text);
	/* Cancelled, since a run that it was to begin after ended otherwise. */
	void (*ended)(void *ctx, const struct run *run);
	/* An error of one run that its record does not have; the others go on. */
	void (*failed)(void *ctx, const struct run *run, const struct err *why);
	/* The run stays here, or where it is. */
	void (*kept)(void *ctx, const struct run *run, const struct err *why);
	void *ctx;
};

/* The held runs, the oldest first. */
int queue_list(struct session *session, struct run_list *ret, struct err *err);
/* Try to send each of them, but no further run to a target that did not answer. Ends between two
 * runs when *interrupted (may be NULL). Waits for
 * another process that is sending: E_IO_LOCK after 30 s. Blocks. */
int queue_send(struct session *session, const struct queue_events *events,
	const volatile int *interrupted, struct err *err);

#endif

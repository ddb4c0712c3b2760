/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Current usage of runs and machines, updated only while the user watches: runs whose target does
 * not report it with their state are sampled beside their programs (target_ops.sample), machines
 * are queried. Each is queried again some seconds after its response, the later the longer that
 * took. A failure leaves the usage unknown; it is never an error of the runs.
 */
#ifndef DLRUN_APP_TOP_LIVE_H
#define DLRUN_APP_TOP_LIVE_H

#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/machine.h"
#include "core/record/run.h"

struct live;
/* Contacts nobody yet. The session must outlive it. */
struct live *live_new(struct session *session);
void live_free(struct live *live); /* what is under way is forgotten */
AUTO_POINTER(struct live, live_free)

/* From now on the machines of a target count: this one, all hosts, or the nodes of a cluster.
 * E_TARGET and what else the configuration fails with. */
int live_add_target(struct live *live, const char *name, struct err *err);
/* And those that runs are on: this machine and hosts, no clusters. */
void live_add_places(struct live *live, const struct run_list *runs);

/* Send the requests that are due; nothing is waited for. */
void live_begin(struct live *live, const struct run_list *runs);

/* Runs the loop until there are responses to all requests, limit_ms at most, or until *interrupted
 * (may be NULL). */
int live_wait(
	struct live *live, int64_t limit_ms, const volatile int *interrupted, struct err *err);

/* Store the newest samples in the runs' `seen`. */
void live_store_samples(const struct live *live, const struct run_list *runs);
/* The known usage of the machines, in the order in which they were added; *ret is filled anew. This
 * machine is sampled for it. */
void live_machines(struct live *live, const struct run_list *runs, struct machine_list *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Lease dlrun-autoscale: one autoscaler works on a cluster at a time, its holder
 * (coordination.k8s.io/v1, as the leader election of Kubernetes's own controllers uses it). It is
 * acquired and renewed automatically, on the loop. Others take it over when it has not changed for
 * LEASE_SECONDS by their own clocks, so that clocks that differ do no harm; its holder counts it as
 * lost LEASE_HELD_MS after it sent the last renewal that succeeded, which is earlier.
 */
#ifndef DLRUN_APP_AUTOSCALE_LEASE_H
#define DLRUN_APP_AUTOSCALE_LEASE_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "kube/api/client.h"

enum {
	LEASE_SECONDS = 15,
	LEASE_HELD_MS = 11 * 1000,
	LEASE_RENEW_MS = 4 * 1000,
	LEASE_RETRY_MS = 2 * 1000,
};

struct lease;
/* Begins to ask for it. holder: a name that no other process has, copied. */
struct lease *lease_new(struct kube_client *client, const char *holder);
/* Gives the Lease up, so that the next one has it at once; waits for that for a moment. NULL is
 * accepted. */
void lease_free(struct lease *lease);
bool lease_is_held(const struct lease *lease);
/* A number that is another one when the Lease may have been another holder's meanwhile. */
int64_t lease_term(const struct lease *lease);
/* Renews it after work in one piece since since_ms (clock_ms), which has kept it from being
 * renewed; nothing is done where that was short. E_CANCELED; E_SCALE_LEASE: it was another holder's
 * meanwhile, or cannot be renewed for seconds. */
int lease_renew(
	struct lease *lease, int64_t since_ms, const volatile int *interrupted, struct err *err);
/* Waits until it is held. E_CANCELED; kube errors that do not pass by themselves, or not within
 * seconds; E_SCALE_LEASE: after patience_ms (0: no limit) another one has it, and has renewed it
 * meanwhile. note is called once with a sentence when another one has it. */
int lease_wait(struct lease *lease, int64_t patience_ms, const volatile int *interrupted,
	void (*note)(void *ctx, const char *text), void *ctx, struct err *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The autoscaler of a cluster, turn by turn: look, plan, act. Without `apply` it only looks and
 * plans.
 *
 * A turn acts while the Lease is held, without a break since it began, and what it saw is younger
 * than TURN_FRESH_MS, and asks before each act; after a plan that took long, the Lease is renewed
 * first. Before a provider is asked to grow, the grow stands in the state (publish.h);
 * when it fails at once, the same pods are planned again without that group, in the same turn, and
 * machines that no gang is complete with any more are given back. Nothing is evicted: a node that
 * runs more than daemons stays. Work that a process left unfinished is found by the next one in the
 * state, in the groups of the providers, and on the nodes.
 */
#ifndef DLRUN_APP_AUTOSCALE_TURN_H
#define DLRUN_APP_AUTOSCALE_TURN_H

#include <stdbool.h>

#include "app/autoscale/supply.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/settings.h"
#include "targets/kube/kube_open.h"

enum {
	TURN_FRESH_MS = 90 * 1000,
	TURN_ROUNDS_MAX = 32,
	TURN_SOON_MS = 3 * 1000,      /* between turns after a purchase */
	TURN_REFUSED_MS = 60 * 1000,  /* so long is it asked whether it is refused */
	TURN_PATIENCE_MS = 30 * 1000, /* of --once */
};

/* Something was done, or could not be. Texts are valid during the call. */
struct turn_event {
	const char
		*what; /* "grow", "cordon", "uncordon", "remove", "terminate", "shrink", "forget",
	 * "mark", "publish" */
	const char *group;          /* or NULL */
	const char *node;           /* or NULL */
	const char *text;           /* a sentence for people */
	enum scale_failure failure; /* of a provider */
	bool is_problem;
	int64_t machines; /* bought, or ended */
};

struct autoscaler_options {
	struct kube_cluster *cluster;
	const struct scale_settings *settings;
	struct supply *supply;
	bool apply;
	int64_t patience_ms; /* with another one that holds the Lease and works; 0: no limit */
	const volatile int *interrupted;
	void (*event)(void *ctx, const struct turn_event *event);
	void (*note)(void *ctx, const char *text); /* a sentence for people */
	void *ctx;
};

struct autoscaler;
/* With apply: begins to ask for the Lease. */
struct autoscaler *autoscaler_new(const struct autoscaler_options *options);
void autoscaler_free(struct autoscaler *autoscaler); /* NULL is accepted */

/* With apply: waits for the Lease first. Errors end the turn; those that pass by themselves, in the
 * next turn, are not E_CANCELED, E_KUBE_DENIED, E_KUBE_AUTH, nor E_SCALE_LEASE where patience has a
 * limit. model and plan are those of the turn, as far as it came. */
int autoscaler_turn(struct autoscaler *autoscaler, struct scale_model *model,
	struct scale_plan *plan, struct err *err);

/* How long to wait for the next turn: less than `every` while a provider may still refuse what this
 * one has bought. */
int64_t autoscaler_wait_ms(const struct autoscaler *autoscaler);

/* A model of the cluster and its groups as they are now, with what is remembered of them, for
 * plans. It is as scale_model_init leaves it before. */
int autoscaler_look(
	const struct autoscaler_options *options, struct scale_model *model, struct err *err);

#endif

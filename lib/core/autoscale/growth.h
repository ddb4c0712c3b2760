/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growth of a cluster: what its autoscaler tells everybody who may submit there. The key `growth`
 * of the ConfigMap dlrun-autoscale in the namespace dlrun-system is one JSON text of GROWTH_MAX
 * bytes at most, renewed every two minutes at least. A preflight, `why` and a run's cost read it.
 * An engine.
 *
 *	{"version": 1, "cluster": "lab", "updated": TIME, "every_s": 15, "applies": true,
 *	 "groups": [{"id": …, "region": …, "zone": …, "spot": …, "price": …, "max": n,
 *	   "desired": n, "boot_s": n, "template": {…}, "failure": …, "wait_until": …,
 *	   "nodes": [NAME, …], "gone": [NAME, …]}],
 *	 "waiting": [{"name": "NAMESPACE/POD or gang", "group": ID, "expected": TIME} |
 *	             {"name": …, "reasons": ["gpu-a: its maximum is 10", …]}],
 *	 "more_groups": n, "more_waiting": n}
 *
 * "boot_s" is how long the last machine of the group took to become a node; left out: not known.
 * "nodes" are those of a group with a price, "gone" those that it had before, the last ones first.
 * "waiting" has what waits for a machine, not what is placed on nodes that are there. A gang is
 * expected with its last machine; "expected" is left out where that is not known. "more_…": how
 * many were left out, because the text is bounded; left out for 0. A group that is not the
 * autoscaler's to change has "max" as "desired". Unknown members are ignored.
 */
#ifndef DLRUN_CORE_AUTOSCALE_GROWTH_H
#define DLRUN_CORE_AUTOSCALE_GROWTH_H

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "core/autoscale/plan.h"
#include "kube/api/kinds.h"

#define GROWTH_NAMESPACE KUBE_GROWTH_NAMESPACE
#define GROWTH_NAME      KUBE_GROWTH_NAME
#define GROWTH_KEY       "growth"
enum {
	GROWTH_MAX = 512 << 10,
	GROWTH_WAITING_MAX = 500,
	GROWTH_REASONS_MAX = 8,
	GROWTH_GONE_MAX = 100, /* of a group */
};

struct growth;

struct growth_turn {
	const struct scale_model *model; /* its now_ms is the time of the text */
	const struct scale_plan *plan;
	int64_t every_ms;
	bool applies;
	/* The text that this one replaces: nodes that are gone, and how long machines took where
	 * none is there. NULL: none. */
	const struct growth *before;
};
/* The value of "data" of the ConfigMap: {GROWTH_KEY: TEXT}. The caller frees. */
struct json *growth_write(const struct growth_turn *turn);

/* Set the groups' boot_ms where they do not say: by their last nodes, or the text before (NULL:
 * none). */
void growth_learn_boots(const struct growth *before, struct scale_model *model);
/* Wall clock at which the machine of a placement on a group is there, if it takes that long and,
 * where it is new, is begun now. 0: not known. */
int64_t growth_expected_ms(
	const struct scale_model *model, const struct scale_placement *placement, int64_t boot_ms);

/* The growth of a cluster as a reader knows it: groups are in a model without nodes. */
struct growth {
	struct scale_model model;
	int64_t updated_ms;
	/* The text was not renewed for five minutes, or three turns and a minute where that is
	 * longer, or is from the future by as much: one of the clocks is wrong. */
	bool is_silent;
	bool applies;      /* what it plans is done */
	struct json *json; /* the whole text */
	struct map nodes;  /* by name: a number of a group, from 1, as a pointer */
};
/* Read a ConfigMap (NULL: none). E_SCALE_SNAPSHOT, E_DATA_LIMIT; growth_done in any case. */
int growth_read(const struct json *map, int64_t now_ms, struct growth *ret, struct err *err);
void growth_done(struct growth *growth);
#define AUTO_GROWTH AUTO(growth_done)
/* The member of "waiting" of that name, or NULL. */
const struct json *growth_waiting(const struct growth *growth, const char *name);
/* How long machines of one of its groups take to come, by the last that did; 0: not known. */
int64_t growth_boot_ms(const struct growth *growth, size_t group);
/* The group that has or had a node of that name. -1: none is known. */
int growth_group_of(const struct growth *growth, const char *node);
/* Find the cheapest of its groups on whose machines a pod of that PodSpec could run alone, of
 * those that may have one more now, else of all. -1: none, and reasons, "gpu-a: …",
 * GROWTH_REASONS_MAX at most. */
int growth_group_for(struct growth *growth, const struct json *spec, struct strv *ret_reasons);
/* Whether a group may have one more machine now. */
bool growth_may_buy(const struct growth *growth, size_t group);
/* The part of a machine of that group that a pod of that PodSpec requests, 0 to 1: by the resource
 * of which it is the largest. */
double growth_share(struct growth *growth, size_t group, const struct json *spec);

#endif

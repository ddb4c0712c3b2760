/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the planner. What is derived from a model once (prepared), and a try at packing it
 * (packing): tries differ in their order and in how they compare groups, the best is the plan.
 */
#ifndef DLRUN_CORE_AUTOSCALE_PLAN_IMPL_H
#define DLRUN_CORE_AUTOSCALE_PLAN_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/map.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/pool.h"

/* Machines that one plan buys at most, and reasons that it gives. */
enum {
	PLAN_MACHINES_MAX = 100 * 1000,
	PLAN_REASONS_MAX = 1000 * 1000,
	PLAN_FITS_MAX = 96 << 20,
	PLAN_KEY_MAX = 4 << 20
};

/* Pods of one shape and gang that wait: entries [at, at + n) of waiting. */
struct scale_lot {
	int32_t shape, gang, unit;
	int64_t count;
	size_t at, n;
};
struct scale_lots VEC_OF(struct scale_lot);

/* A pod that waits, with the priority of all of its gang: the highest of those that wait. */
struct scale_waiting {
	const struct scale_pod *pod;
	int32_t priority;
};
struct scale_waitings VEC_OF(struct scale_waiting);

/* Lots that are placed together: those of a gang, or one. */
struct scale_unit {
	int32_t priority, gang;
	size_t lot, n_lots;
	int64_t count;
	int64_t at_once;                /* so many are placed or none; 0: each is of use alone */
	bool wants_gpu, is_unsupported; /* some of its pods */
};
struct scale_units VEC_OF(struct scale_unit);

struct scale_supply_of_group {
	int32_t machine_class, zone;
	int64_t nodes;  /* that are there */
	int64_t coming; /* machines that are no nodes yet */
	int64_t lost;   /* machines that are asked for and late, of which there is no id */
	int64_t size;   /* what a purchase is added to */
	bool has_gpu;
	int64_t nameless; /* nodes of it whose machines are not known */
};

/* Prices of one of each resource for an hour; and the room of all machines together that are worth
 * their price. */
struct scale_weights {
	double of[SCALE_RESOURCES_MAX];
	double room[SCALE_RESOURCES_MAX];
};

struct scale_group_list VEC_OF(const struct scale_group *);

/* Labels and taints that a node will have; their texts are borrowed. */
struct scale_expected {
	struct scale_pairs labels;
	struct scale_taints taints;
};

struct scale_prepared {
	const struct scale_model *model;
	int n_resources;
	struct scale_amounts largest;      /* of all machines, at least 1 */
	double scale[SCALE_RESOURCES_MAX]; /* as in scale_pool */
	struct scale_amounts *free;        /* of each node */
	bool *is_leaving;                  /* the node's machine stops */
	bool *is_booting; /* it lacks resources or labels that its group's machines have */
	struct scale_expected_list VEC_OF(struct scale_expected *) expected;
	bool *is_busy; /* more than daemons run on the node */
	int32_t *node_class, *node_zone;
	int32_t *shape_signature; /* shapes alike but for their requests have the same */
	struct scale_supply_of_group *groups;
	struct scale_weights *weights; /* of each group: by the last bound; 0: not known */
	double no_price; /* of groups whose price is not known: 0, or 1 where none is */
	const struct scale_group **ranked; /* groups by weight, price, spot, id */
	struct scale_group_list *in_zone;  /* of no zone, then of each, in the same order */
	bool has_singles;                  /* pods that wait without a gang */
	struct scale_machines VEC_OF(struct scale_machine) classes;
	signed char *allows; /* [signature][class]; -1: not known yet; NULL: too many */
	unsigned char *fits; /* [shape and whether its gang has GPUs][group]: a denial and 1; 0: not
			      * known yet; NULL: too many */
	signed char *has_other; /* of each shape: groups without GPUs that hold it; -1: not known */
	bool has_marks;
	struct scale_marks *marks, *apart; /* of each shape */
	struct scale_waitings waiting;
	struct scale_lots lots;
	struct scale_units units;
	struct map zones, texts;         /* names of zones, marks by number */
	struct map instances;            /* ids of machines that are nodes */
	int32_t *gang_zone, *gang_group; /* where members run; -1: none do */
	int64_t *gang_running;
	int64_t total; /* machines of all groups */
	double price;  /* of them */
};
void prepared_make(const struct scale_model *model, struct scale_prepared *ret);
void prepared_done(struct scale_prepared *prepared);
bool prepared_allows(struct scale_prepared *prepared, int32_t shape, int32_t machine_class);
/* Whether a group is asked for machines at all: it does not wait after a failure, and owes none. */
bool prepared_sells(const struct scale_prepared *prepared, size_t group);

/* Why a group gives no machine. */
enum scale_denial {
	SCALE_GRANTED,
	SCALE_DENIED_REFUSED,
	SCALE_DENIED_TEMPLATE,
	SCALE_DENIED_FIT,
	SCALE_DENIED_GPU,
	SCALE_DENIED_WAIT,
	SCALE_DENIED_LOST,
	SCALE_DENIED_MAX,
	SCALE_DENIED_NODES,
	SCALE_DENIED_STEP,
	SCALE_DENIED_PRICE,
	SCALE_DENIED_NO_PRICE,
};

struct scale_entry {
	int32_t pool, bin, lot;
	int64_t count;
	size_t n_marks, n_apart; /* of the bin before */
};
struct scale_entries VEC_OF(struct scale_entry);

/* Where a gang has to be; SCALE_ANY: it does not say. */
enum { SCALE_ANY = -2 };
struct scale_where {
	int32_t zone, group;
};
/* State of a unit in a packing. */
struct scale_progress {
	bool is_there; /* so many as are of use at once have their place */
	struct scale_where where;
	size_t failed_at; /* when it was last tried without success; 0: it was not */
};

enum scale_order {
	SCALE_BY_SUM,
	SCALE_BY_LARGEST,
	SCALE_BY_CPU_AND_MEMORY,
	SCALE_AS_THEY_CAME,
	SCALE_N_ORDERS
};
enum scale_buying { SCALE_BY_MACHINE, SCALE_BY_PATTERN, SCALE_BY_SHARE };
struct scale_numbers VEC_OF(int32_t);

/* A zone or group, where gangs may have to be. */
struct scale_place {
	struct scale_numbers pools;
	double free[SCALE_RESOURCES_MAX]; /* on all of its machines together */
};
/* Machines that were bought at once. */
struct scale_purchase {
	int32_t group;
	int64_t n;
	bool is_coming; /* they had been bought by a plan before */
};

/* Units in the order in which they are placed: who needs a GPU before who may take its machine. */
struct scale_turn {
	const struct scale_unit *unit;
	bool wants_gpu;
	double size; /* the largest are first */
};
struct scale_turns VEC_OF(struct scale_turn);

struct scale_packing {
	struct scale_prepared *prepared;
	enum scale_buying buying;
	struct scale_pools VEC_OF(struct scale_pool) pools;
	int32_t *new_pool, *coming_pool; /* of each group; -1: none */
	int64_t *bought;                 /* of each group */
	int64_t *coming, n_coming;       /* of each group, of all: on their way, and not used yet */
	int64_t *left;                   /* of each lot */
	struct scale_progress *progress; /* of each unit */
	struct scale_entries entries;
	struct scale_purchases VEC_OF(struct scale_purchase) purchases;
	size_t n_purchased;                 /* with those that were undone */
	struct scale_place *zones, *groups; /* of none, then of each */
	int64_t helped, n_bought;
	int64_t pattern_steps; /* of the search for patterns */
	double price;          /* of what was bought; of groups whose price is not known: 0 */
};
void packing_turns(
	const struct scale_prepared *prepared, enum scale_order order, struct scale_turns *ret);
void packing_make(struct scale_prepared *prepared, const struct scale_turns *turns,
	enum scale_buying buying, struct scale_packing *ret);
void packing_done(struct scale_packing *packing);
/* Of a packing: the nodes that exist, without pods that wait. */
void packing_start(
	struct scale_prepared *prepared, enum scale_buying buying, struct scale_packing *ret);
/* Whether pods of a unit are left that may be placed. */
bool packing_is_open(const struct scale_packing *packing, const struct scale_unit *unit);
/* Place as much of a unit as is of use; and pods of a lot on what exists, or was bought. */
void packing_unit(struct scale_packing *packing, const struct scale_unit *unit);
void packing_on_present(struct scale_packing *packing, int32_t lot);
/* New machines that a plan may have. */
int64_t plan_step(const struct scale_limits *limits);
/* How many more machines a group may give, at most want, with those on their way. */
int64_t packing_allowance(const struct scale_packing *packing, size_t group, int64_t want,
	enum scale_denial *ret_denial);
/* Whether the machines of a group hold pods of a lot, and may be bought for them. */
enum scale_denial packing_fits(
	const struct scale_packing *packing, const struct scale_lot *lot, size_t group);
/* At most *n machines of a group, which become as many as there were: first those on their way,
 * which were bought before in this way, so that a plan that is made again while they come is the
 * same; then new ones. Returns their pool, *ret_bin is the first of them there. */
size_t packing_buy(struct scale_packing *packing, size_t group, int64_t *n, size_t *ret_bin);
void packing_take(struct scale_packing *packing, size_t pool, size_t bin, int32_t lot, int64_t n);
/* New machines for the lots, by the weights of the bound. Pods without marks. Some of them may be
 * left. */
void packing_by_patterns(struct scale_packing *packing, const struct scale_numbers *lots);

/* Sets the weights of groups, too. */
void plan_bound(const struct scale_packing *packing, struct scale_bound *ret);
void plan_reasons(const struct scale_packing *packing, struct scale_plan *plan);
/* Actions: nodes that come back, and what goes. */
void plan_uncordon(const struct scale_packing *packing, struct scale_plan *plan);
void plan_shrink(const struct scale_packing *packing, struct scale_plan *plan);

#endif

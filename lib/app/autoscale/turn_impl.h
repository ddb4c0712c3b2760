/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a turn: requests to providers (turn_ask.c), buying (buy.c), giving back
 * (give_back.c). */
#ifndef DLRUN_APP_AUTOSCALE_TURN_IMPL_H
#define DLRUN_APP_AUTOSCALE_TURN_IMPL_H

#include "app/autoscale/lease.h"
#include "app/autoscale/node_acts.h"
#include "app/autoscale/publish.h"
#include "app/autoscale/turn.h"

struct autoscaler {
	struct autoscaler_options options;
	struct kube_client *client;
	struct lease *lease; /* NULL without apply */
	struct state_store store;
	struct growth_store growth;
	size_t n_marked; /* nodes, by all turns: where the next one goes on */
	int64_t seen_ms; /* wall clock of the cluster, of the newest turn */
};

/* A turn while it goes on. */
struct turn {
	struct autoscaler *autoscaler;
	struct scale_model *model;
	struct scale_plan *plan;
	int64_t begun_ms, looked_ms; /* clock_ms() before it looked, and after that */
	int64_t term;                /* of the Lease, when it began */
	/* Of each group: whether a grow of this turn may have had an effect that is not known. */
	bool *is_unknown;
	bool has_failed; /* a purchase of this round */
};

/* Whether it holds the Lease, and nobody else has had it since the turn began. */
bool turn_holds_lease(const struct turn *turn);
/* Whether this turn still may act: it holds the Lease like that, and what it saw is fresh.
 * E_SCALE_LEASE otherwise. */
int turn_may_act(const struct turn *turn, struct err *err);
void turn_tell(const struct turn *turn, const struct turn_event *event);
/* Do to the nodes of the plan's actions of that kind. Errors of single ones are in acts, in the
 * order of the actions. */
int turn_act_on_nodes(struct turn *turn, enum scale_action_kind action, enum node_act_kind act,
	struct node_acts *acts, struct err *err);
/* The request of a verb for a group; the caller frees. */
struct json *turn_request(
	const struct turn *turn, const char *verb, const struct scale_group *group);

/* A request out of several that go out together. */
struct turn_ask {
	const struct turn *turn;
	int32_t group;
	struct json *request; /* owned */
	/* Of one that ends machines: clock_ms() before their nodes were looked at again. If it has
	 * to wait for others, it is not asked long after that. 0: of others. */
	int64_t looked_ms;
	struct provider_call *call;
	struct loop_wait *wait;
	struct provider_reply reply; /* its error and response are owned */
	bool is_done;
};
struct turn_asks VEC_OF(struct turn_ask);
void turn_asks_done(struct turn_asks *asks);
#define AUTO_TURN_ASKS AUTO(turn_asks_done)
/* A request is taken. */
void turn_asks_add(struct turn_asks *asks, int32_t group, struct json *take_request);
/* Ask all of them and wait, timeout_ms at most for each SUPPLY_PROGRAMS_MAX of them. Those that
 * have to wait for others are asked only while the turn may act, and soon after looked_ms.
 * E_CANCELED. */
int turn_asks_run(struct turn *turn, struct turn_asks *asks, int64_t timeout_ms, struct err *err);

/* buy.c: what has become of grows that were asked for before; failures of them are noted. */
int turn_resume(struct turn *turn, struct err *err);
/* All uncordons and grows of the plan; what fails is planned again. */
int turn_buy(struct turn *turn, struct err *err);

/* give_back.c: what the plan says of machines that are not needed. */
int turn_give_back(struct turn *turn, struct err *err);

/* A request to end machines of a group, whose size is `to` then; the caller frees. */
struct json *turn_request_shrink(
	const struct turn *turn, int32_t group, const struct strv *ids, int64_t to);
/* The response to it is told with a reason, and the group gets its new size. Ids that are gone are
 * added to ret_gone (NULL: nobody asks). False: it was refused. */
bool turn_read_shrink(struct turn *turn, const struct turn_ask *ask, const char *what,
	const char *why, struct strv *ret_gone);

#endif

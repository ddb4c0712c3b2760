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
	int64_t seen_ms; /* wall clock of the cluster, of the newest turn */
};

/* A turn while it goes on. */
struct turn {
	struct autoscaler *autoscaler;
	struct scale_model *model;
	struct scale_plan *plan;
	int64_t begun_ms; /* clock_ms() before it looked */
	/* Of each group: machines that this turn has asked for, and their ids as far as known. */
	struct turn_purchase {
		int64_t bought;
		struct strv instances;
	} * purchases;
	bool has_failed; /* a purchase of it */
};

/* Whether this turn still may act. E_SCALE_LEASE otherwise. */
int turn_may_act(const struct turn *turn, struct err *err);
void turn_tell(const struct turn *turn, const struct turn_event *event);
/* The request of a verb for a group; the caller frees. */
struct json *turn_request(
	const struct turn *turn, const char *verb, const struct scale_group *group);

/* A request out of several that go out together. */
struct turn_ask {
	int32_t group;
	struct json *request; /* owned */
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
/* Ask all of them at once and wait. E_CANCELED. */
int turn_asks_run(struct turn *turn, struct turn_asks *asks, struct err *err);

/* buy.c: grows that were asked for before and did not have an answer, and failures of those that
 * had one. The groups of the model are changed as they turn out to be. */
int turn_resume(struct turn *turn, struct err *err);
/* All uncordons and grows of the plan; what fails is planned again. */
int turn_buy(struct turn *turn, struct err *err);

/* give_back.c: what the plan says of machines that are not needed. */
int turn_give_back(struct turn *turn, struct err *err);
/* End these machines of a group, whose size is `to` then; what and why are for the event. Those
 * that the provider says are gone are added to ret_gone (NULL: nobody asks). What fails there is
 * told, and is no error. */
int turn_shrink(struct turn *turn, int32_t group, const struct strv *ids, int64_t to,
	const char *what, const char *why, struct strv *ret_gone, struct err *err);

#endif

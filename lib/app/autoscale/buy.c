/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "app/autoscale/turn_impl.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"

enum {
	TOKEN_BYTES = (STATE_TOKEN_SIZE - 1) / 2,
	BUY_INSTANCES_MAX = 100 * 1000,
	BUY_DOUBTS_MAX = 2,
	BUY_STATUS_MS = 10 * 1000,
};

/* A group has refused machines. */
static void buy_fail(struct turn *turn, int32_t at, enum scale_failure failure, const char *text)
{
	struct scale_group *group = &turn->model->groups.v[at];

	scale_state_fail(
		&turn->autoscaler->store.state, group->id, failure, text, turn->model->now_ms);
	turn->has_failed = true;
	turn_tell(turn, &(struct turn_event){.what = "grow",
				.group = group->id,
				.text = text,
				.failure = failure,
				.is_problem = true});
}

/* Whether a response tells of failures, of which the first counts. */
static bool buy_read_failed(struct turn *turn, int32_t at, const struct json *response)
{
	const struct json *first = json_first(json_get(response, "failed"));
	AUTO_FREE char *text = NULL;

	if (!first)
		return false;
	enum scale_failure failure = provider_failure(first, &text);
	buy_fail(turn, at, failure, text);
	return true;
}

/* Note a grow that was refused, was not sent, or had no response. Where it may have had an effect,
 * nothing else is bought for its pods in this turn, and the next one asks with the same token if it
 * is still needed. A group that does so again has failed. */
static void buy_read_nothing(struct turn *turn, const struct turn_ask *ask)
{
	const struct provider_reply *reply = &ask->reply;
	struct scale_state *state = &turn->autoscaler->store.state;
	struct scale_group *group = &turn->model->groups.v[ask->group];
	int64_t to = json_get_int(ask->request, "to", group->desired);
	bool is_refused = !reply->is_unknown && !reply->is_unsent;

	if (is_refused ||
		(reply->is_unknown && scale_state_doubt(state, group->id) >= BUY_DOUBTS_MAX)) {
		buy_fail(turn, ask->group, reply->failure, reply->error.message);
		return;
	}
	bool is_nothing = reply->is_unsent && scale_state_take_back(state, group->id);
	if (!is_nothing) {
		group->desired = to > group->desired ? to : group->desired;
		turn->is_unknown[ask->group] = true;
	}
	turn_tell(turn, &(struct turn_event){.what = "grow",
				.group = group->id,
				.text = reply->error.message,
				.failure = reply->is_unsent ? SCALE_NO_FAILURE : reply->failure,
				.is_problem = true});
}

/* The outcome of a grow: the group of the model becomes what it is now. */
static void buy_read_grow(struct turn *turn, const struct turn_ask *ask)
{
	struct scale_group *group = &turn->model->groups.v[ask->group];
	int64_t to = json_get_int(ask->request, "to", group->desired), before = group->desired;

	if (!ask->reply.response) {
		buy_read_nothing(turn, ask);
		return;
	}
	int64_t accepted = json_get_int(ask->reply.response, "accepted", to);
	group->desired = accepted < before ? before : accepted > to ? to : accepted;
	int64_t bought = group->desired - before;
	const struct json *id = json_first(json_get(ask->reply.response, "instances"));
	for (int64_t i = 0; i < bought && i < BUY_INSTANCES_MAX; i++, id = json_next(id)) {
		*vec_push(&group->instances) =
			(struct scale_instance){.id = mem_strdup(json_str(id) ? json_str(id) : ""),
				.state = SCALE_PENDING,
				.since_ms = turn->model->now_ms};
		if (!str_empty(json_str(id)))
			scale_state_bought(&turn->autoscaler->store.state, group->id, json_str(id));
	}
	scale_state_answer(&turn->autoscaler->store.state, group->id);
	AUTO_FREE char *text = mem_printf("%" PRId64 " > %" PRId64, before, group->desired);
	if (bought)
		turn_tell(turn, &(struct turn_event){.what = "grow",
					.group = group->id,
					.text = text,
					.machines = bought});
	if (!buy_read_failed(turn, ask->group, ask->reply.response) && group->desired < to)
		buy_fail(turn, ask->group, SCALE_FAILED_CAPACITY,
			"the provider returned fewer machines");
}

static struct json *buy_request_grow(
	const struct turn *turn, const struct scale_group *group, int64_t to, const char *token)
{
	struct json *request = turn_request(turn, "grow", group);

	json_set_int(request, "from", group->desired);
	json_set_int(request, "to", to);
	json_set_str(request, "token", token);
	return request;
}

static bool buy_is_ours(const struct turn *turn, const struct scale_group *group)
{
	return !group->refused && supply_provider(turn->autoscaler->options.supply, group);
}

static int buy_status(struct turn *turn, struct err *err)
{
	AUTO_TURN_ASKS struct turn_asks asks = {0};
	struct scale_state *state = &turn->autoscaler->store.state;
	char since[CLOCK_TEXT_SIZE];

	for (size_t g = 0; g < turn->model->groups.n; g++) {
		const struct scale_group *group = &turn->model->groups.v[g];
		const struct scale_state_group *known = scale_state_find(state, group->id);
		if (!known || !known->token || !known->is_answered || !buy_is_ours(turn, group))
			continue;
		struct json *request = turn_request(turn, "status", group);
		clock_format(known->due_ms, since);
		json_set_str(request, "token", known->token);
		json_set_str(request, "since", since);
		turn_asks_add(&asks, (int32_t)g, request);
	}
	ERR_TRY(turn_asks_run(turn, &asks, BUY_STATUS_MS, err));
	vec_foreach (const struct turn_ask, ask, &asks)
		if (ask->reply.response)
			buy_read_failed(turn, ask->group, ask->reply.response);
	return 0;
}

int turn_resume(struct turn *turn, struct err *err)
{
	struct scale_state *state = &turn->autoscaler->store.state;

	for (size_t g = 0; g < turn->model->groups.n; g++) {
		const struct scale_group *group = &turn->model->groups.v[g];
		const struct scale_state_group *known = scale_state_find(state, group->id);
		if (!known || !known->token)
			continue;
		if (!known->is_answered && group->desired >= known->to)
			scale_state_answer(state, group->id);
	}
	return buy_status(turn, err);
}

/* Machines that were asked for and that no provider lists any more would be bought a second
 * time. */
static bool buy_is_blind(const struct turn *turn)
{
	const struct scale_model *model = turn->model;

	/* The machines of all groups count for these. */
	if ((model->limits.nodes || model->limits.price > 0) &&
		supply_is_blind(turn->autoscaler->options.supply)) {
		turn_tell(turn, &(struct turn_event){.what = "grow",
					.text = "nothing is bought: the groups of a provider are "
						"not known, and the limits count all groups",
					.is_problem = true});
		return true;
	}
	vec_foreach (const struct scale_state_group, known, &turn->autoscaler->store.state.groups) {
		bool is_there =
			!known->token || model->now_ms - known->asked_ms > model->limits.boot_ms;
		for (size_t g = 0; !is_there && g < model->groups.n; g++)
			is_there = str_eq(model->groups.v[g].id, known->id);
		if (is_there)
			continue;
		turn_tell(turn, &(struct turn_event){.what = "grow",
					.group = known->id,
					.text = "nothing is bought: machines of this group are on "
						"their way, and its provider does not list it",
					.is_problem = true});
		return true;
	}
	return false;
}

static int buy_grow(struct turn *turn, struct err *err)
{
	AUTO_TURN_ASKS struct turn_asks asks = {0};
	struct state_store *store = &turn->autoscaler->store;

	vec_foreach (const struct scale_action, action, &turn->plan->actions) {
		if (action->kind != SCALE_GROW)
			continue;
		if (!asks.n && buy_is_blind(turn))
			return 0;
		const struct scale_group *group = &turn->model->groups.v[action->group];
		uint8_t bytes[TOKEN_BYTES];
		char token[STATE_TOKEN_SIZE];
		random_bytes(bytes, sizeof(bytes));
		hex_encode(bytes, sizeof(bytes), token);
		scale_state_try(&store->state, group, turn->model->now_ms);
		const char *used = scale_state_ask(
			&store->state, group->id, action->to, token, turn->model->now_ms);
		turn_asks_add(
			&asks, action->group, buy_request_grow(turn, group, action->to, used));
	}
	if (!asks.n)
		return 0;
	ERR_TRY(state_store_write(store, err));
	ERR_TRY(turn_may_act(turn, err));
	ERR_TRY(turn_asks_run(turn, &asks, PROVIDER_MS, err));
	vec_foreach (const struct turn_ask, ask, &asks)
		buy_read_grow(turn, ask);
	return state_store_write(store, err);
}

static int buy_uncordon(struct turn *turn, struct err *err)
{
	AUTO_NODE_ACTS struct node_acts acts = {0};

	ERR_TRY(turn_act_on_nodes(turn, SCALE_UNCORDON, NODE_ACT_UNCORDON, &acts, err));
	vec_foreach (struct node_act, act, &acts) {
		struct scale_node *node = &turn->model->nodes.v[act->node];
		bool is_problem = err_is_set(&act->error);
		/* A node that cannot be uncordoned counts as cordoned by others. */
		node->cordoned = is_problem ? SCALE_CORDONED : SCALE_OPEN;
		turn->has_failed = turn->has_failed || is_problem;
		turn_tell(turn, &(struct turn_event){.what = "uncordon",
					.node = node->name,
					.text = is_problem ? act->error.message : "",
					.is_problem = is_problem});
	}
	return 0;
}

/* Machines of a group that were bought and are on their way, the oldest first, and how many the
 * newest plan uses. */
struct buy_coming {
	struct strv ids; /* of those that have one */
	int64_t listed, used;
};

static void buy_find_coming(
	const struct turn *turn, const struct map *nodes, size_t g, struct buy_coming *ret)
{
	const struct scale_model *model = turn->model;
	const struct scale_group *group = &model->groups.v[g];
	int64_t of_new = 0, of_coming = 0;

	vec_foreach (const struct scale_placement, placed, &turn->plan->placements) {
		int64_t *used = placed->supply == SCALE_NEW ? &of_new : &of_coming;
		if ((placed->supply == SCALE_NEW || placed->supply == SCALE_ON_ITS_WAY) &&
			placed->group == (int32_t)g && placed->machine >= *used)
			*used = placed->machine + 1;
	}
	ret->used = of_new + of_coming;
	vec_foreach (const struct scale_instance, instance, &group->instances) {
		bool is_node = (!str_empty(instance->id) && map_get(nodes, instance->id)) ||
			       scale_may_be_node(model, group, instance);
		bool is_known = str_empty(instance->id) || instance->is_awaited;
		if (instance->state == SCALE_STOPPING || is_node || !is_known ||
			scale_is_late(model, instance))
			continue;
		ret->listed++;
		if (!str_empty(instance->id))
			strv_add(&ret->ids, instance->id);
	}
}

/* Give back machines on their way that nothing is placed on, of a group that is being bought or
 * that has refused: their gang cannot be completed. Machines that have become nodes stay: pods may
 * run there. */
static void buy_add_unused(
	const struct turn *turn, const struct map *nodes, size_t g, struct turn_asks *asks)
{
	const struct scale_group *group = &turn->model->groups.v[g];
	const struct scale_state_group *known =
		scale_state_find(&turn->autoscaler->store.state, group->id);
	bool is_open = known && (known->token || known->failures);
	struct buy_coming coming = {0};
	AUTO_STRV struct strv ids = {0};

	if (!is_open || turn->is_unknown[g] || !buy_is_ours(turn, group))
		return;
	buy_find_coming(turn, nodes, g, &coming);
	int64_t unused = coming.listed - coming.used - turn->model->limits.spares;
	int64_t nameless = coming.listed - (int64_t)coming.ids.n,
		most = group->desired - group->min;
	unused = unused < most ? unused : most;
	for (size_t i = coming.ids.n; i > 0 && (int64_t)ids.n + nameless < unused; i--)
		strv_add(&ids, coming.ids.v[i - 1]);
	int64_t n = nameless < unused ? (int64_t)ids.n + nameless : unused;
	if (n > 0)
		turn_asks_add(asks, (int32_t)g,
			turn_request_shrink(turn, (int32_t)g, &ids, group->desired - n));
	strv_done(&coming.ids);
}

/* Whether a group has refused machines lately: plans may have changed in the middle of a gang. */
static bool buy_is_refused(const struct scale_model *model)
{
	vec_foreach (const struct scale_group, group, &model->groups)
		if (group->wait_until_ms > model->now_ms)
			return true;
	return false;
}

static int buy_undo(struct turn *turn, struct err *err)
{
	AUTO_TURN_ASKS struct turn_asks asks = {0};
	struct map nodes = {0};
	struct autoscaler *autoscaler = turn->autoscaler;

	if (!buy_is_refused(turn->model))
		return 0;
	int r = node_acts_instances(
		autoscaler->client, autoscaler->options.interrupted, &nodes, err);
	for (size_t g = 0; r == 0 && g < turn->model->groups.n; g++)
		buy_add_unused(turn, &nodes, g, &asks);
	map_done(&nodes);
	if (r < 0 || !asks.n)
		return r;
	if (!turn_holds_lease(turn))
		return turn_may_act(turn, err);
	ERR_TRY(turn_asks_run(turn, &asks, PROVIDER_MS, err));
	vec_foreach (const struct turn_ask, ask, &asks)
		turn_read_shrink(turn, ask, "shrink", "no gang can be completed with them", NULL);
	return 0;
}

/* The loop stands still meanwhile, and nothing renews the Lease. */
static int buy_plan(struct turn *turn, struct err *err)
{
	const struct autoscaler *autoscaler = turn->autoscaler;
	int64_t begun_ms = clock_ms();

	scale_plan_done(turn->plan);
	scale_plan_make(turn->model, turn->plan);
	int r = lease_renew(autoscaler->lease, begun_ms, autoscaler->options.interrupted, err);
	return r == 0 ? 0
		      : err_prefix(err, "nothing is done by a plan that took %" PRId64 " s",
				(clock_ms() - begun_ms) / 1000);
}

int turn_buy(struct turn *turn, struct err *err)
{
	for (int round = 0; round < TURN_ROUNDS_MAX; round++) {
		ERR_TRY(buy_plan(turn, err));
		turn->has_failed = false;
		ERR_TRY(buy_uncordon(turn, err));
		ERR_TRY(buy_grow(turn, err));
		scale_state_apply(&turn->autoscaler->store.state, turn->model);
		if (!turn->has_failed)
			break;
	}
	return buy_undo(turn, err);
}

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

/* A grow without a response, or refused. Where it may have had an effect, nothing else is bought
 * for its pods in this turn, and the next one asks with the same token if it is still needed. A
 * group that does so again has failed. */
static void buy_read_nothing(struct turn *turn, const struct turn_ask *ask)
{
	struct scale_group *group = &turn->model->groups.v[ask->group];
	int64_t to = json_get_int(ask->request, "to", group->desired);

	if (!ask->reply.is_unknown ||
		scale_state_doubt(&turn->autoscaler->store.state, group->id) >= BUY_DOUBTS_MAX) {
		buy_fail(turn, ask->group, ask->reply.failure, ask->reply.error.message);
		return;
	}
	group->desired = to > group->desired ? to : group->desired;
	turn->purchases[ask->group].is_unknown = true;
	turn_tell(turn, &(struct turn_event){.what = "grow",
				.group = group->id,
				.text = ask->reply.error.message,
				.failure = ask->reply.failure,
				.is_problem = true});
}

/* The outcome of a grow: the group of the model becomes what it is now. */
static void buy_read_grow(struct turn *turn, const struct turn_ask *ask)
{
	struct scale_group *group = &turn->model->groups.v[ask->group];
	struct turn_purchase *purchase = &turn->purchases[ask->group];
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
		if (json_str(id))
			strv_add(&purchase->instances, json_str(id));
		*vec_push(&group->instances) =
			(struct scale_instance){.id = mem_strdup(json_str(id) ? json_str(id) : ""),
				.state = SCALE_PENDING,
				.since_ms = turn->model->now_ms};
	}
	purchase->bought += bought;
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
		clock_format(known->asked_ms, since);
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
		int64_t most = known->to < group->desired ? known->to : group->desired;
		turn->purchases[g].bought = most > known->from ? most - known->from : 0;
	}
	ERR_TRY(buy_status(turn, err));
	turn->has_failed = false;
	return 0;
}

/* Machines that were asked for and of which no provider tells now would be bought a second time. */
static bool buy_is_blind(const struct turn *turn)
{
	const struct scale_model *model = turn->model;

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
		const struct scale_group *group = &turn->model->groups.v[action->group];
		uint8_t bytes[TOKEN_BYTES];
		char token[STATE_TOKEN_SIZE];
		random_bytes(bytes, sizeof(bytes));
		hex_encode(bytes, sizeof(bytes), token);
		const char *used = scale_state_ask(&store->state, group->id, group->desired,
			action->to, token, turn->model->now_ms);
		turn_asks_add(
			&asks, action->group, buy_request_grow(turn, group, action->to, used));
	}
	if (!asks.n || buy_is_blind(turn))
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

	vec_foreach (const struct scale_action, action, &turn->plan->actions)
		if (action->kind == SCALE_UNCORDON)
			*vec_push(&acts) =
				(struct node_act){.kind = NODE_ACT_UNCORDON, .node = action->node};
	ERR_TRY(turn_may_act(turn, err));
	ERR_TRY(node_acts_do(turn->autoscaler->client, turn->autoscaler->options.interrupted,
		turn->model, &acts, err));
	vec_foreach (struct node_act, act, &acts) {
		struct scale_node *node = &turn->model->nodes.v[act->node];
		bool is_problem = err_is_set(&act->error);
		/* A node that cannot be had counts as a stranger's: the rest is planned without
		 * it. */
		node->cordoned = is_problem ? SCALE_CORDONED : SCALE_OPEN;
		turn->has_failed = turn->has_failed || is_problem;
		turn_tell(turn, &(struct turn_event){.what = "uncordon",
					.node = node->name,
					.text = is_problem ? act->error.message : "",
					.is_problem = is_problem});
	}
	return 0;
}

/* Of each group: machines that are no nodes and that the newest plan places nothing on. */
static int64_t *buy_unused(const struct turn *turn)
{
	const struct scale_model *model = turn->model;
	int64_t *unused = mem_alloc(model->groups.n + 1, sizeof(*unused));
	AUTO_FREE int64_t *coming = mem_alloc(model->groups.n + 1, sizeof(*coming));
	AUTO_FREE int64_t *new = mem_alloc(model->groups.n + 1, sizeof(*new));

	vec_foreach (const struct scale_placement, placed, &turn->plan->placements) {
		bool is_new = placed->supply == SCALE_NEW;
		int64_t *used = is_new ? new : coming;
		if ((is_new || placed->supply == SCALE_ON_ITS_WAY) &&
			placed->machine >= used[placed->group])
			used[placed->group] = placed->machine + 1;
	}
	vec_foreach (const struct scale_node, node, &model->nodes)
		if (node->group >= 0 && !node->has_no_instance)
			coming[node->group]++;
	for (size_t g = 0; g < model->groups.n; g++)
		unused[g] = model->groups.v[g].desired - coming[g] - new[g];
	return unused;
}

/* The newest machines of a group, n at most, that are no nodes by now. */
static void buy_newest(
	const struct turn *turn, size_t group, int64_t n, const struct map *nodes, struct strv *ret)
{
	const struct strv *ids = &turn->purchases[group].instances;

	for (size_t i = ids->n; i > 0 && (int64_t)ret->n < n; i--)
		if (!map_get(nodes, ids->v[i - 1]))
			strv_add(ret, ids->v[i - 1]);
}

/* Give back machines that were bought for a gang of which the rest was refused, by all groups that
 * could have it. Who has become a node meanwhile stays: pods may run there. */
static int buy_undo(struct turn *turn, struct err *err)
{
	AUTO_FREE int64_t *unused = buy_unused(turn);
	AUTO_TURN_ASKS struct turn_asks asks = {0};
	struct map nodes = {0};
	struct autoscaler *autoscaler = turn->autoscaler;

	int r = node_acts_instances(
		autoscaler->client, autoscaler->options.interrupted, &nodes, err);
	for (size_t g = 0; r == 0 && g < turn->model->groups.n; g++) {
		const struct turn_purchase *purchase = &turn->purchases[g];
		AUTO_STRV struct strv ids = {0};
		int64_t n = unused[g] < purchase->bought ? unused[g] : purchase->bought;
		if (n <= 0 || purchase->is_unknown)
			continue;
		buy_newest(turn, g, n, &nodes, &ids);
		/* Machines without a known id: the provider ends none that is there. */
		n = purchase->instances.n ? (int64_t)ids.n : n;
		if (n > 0)
			turn_asks_add(&asks, (int32_t)g,
				turn_request_shrink(turn, (int32_t)g, &ids,
					turn->model->groups.v[g].desired - n));
	}
	map_done(&nodes);
	if (r < 0 || !lease_is_held(autoscaler->lease))
		return r;
	ERR_TRY(turn_asks_run(turn, &asks, PROVIDER_MS, err));
	vec_foreach (const struct turn_ask, ask, &asks)
		turn_read_shrink(turn, ask, "shrink", "no gang can be completed with them", NULL);
	return 0;
}

int turn_buy(struct turn *turn, struct err *err)
{
	bool has_failed = false;

	for (int round = 0; round < TURN_ROUNDS_MAX; round++) {
		scale_plan_done(turn->plan);
		scale_plan_make(turn->model, turn->plan);
		turn->has_failed = false;
		ERR_TRY(buy_uncordon(turn, err));
		ERR_TRY(buy_grow(turn, err));
		if (!turn->has_failed)
			break;
		has_failed = true;
		scale_state_apply(&turn->autoscaler->store.state, turn->model);
	}
	return has_failed ? buy_undo(turn, err) : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "app/autoscale/turn_impl.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Providers end so long before the wait for them, so that they can still say why. */
enum { ASK_AHEAD_MS = 2000 };
/* So long what was seen of nodes that go is good enough: later a pod may run there. */
enum { ASK_LOOKED_MS = 10 * 1000 };

bool turn_holds_lease(const struct turn *turn)
{
	const struct lease *lease = turn->autoscaler->lease;

	return lease_is_held(lease) && lease_term(lease) == turn->term;
}

int turn_may_act(const struct turn *turn, struct err *err)
{
	if (!turn_holds_lease(turn))
		return err_set(err, E_SCALE_LEASE, "the lease was lost in the middle of a turn");
	if (clock_ms() - turn->begun_ms > TURN_FRESH_MS)
		return err_set(err, E_SCALE_LEASE, "the turn took over %d s; starting over",
			TURN_FRESH_MS / 1000);
	return 0;
}

void turn_tell(const struct turn *turn, const struct turn_event *event)
{
	const struct autoscaler_options *options = &turn->autoscaler->options;

	options->event(options->ctx, event);
}

int turn_act_on_nodes(struct turn *turn, enum scale_action_kind kind, enum node_act_kind act,
	struct node_acts *acts, struct err *err)
{
	const struct autoscaler *autoscaler = turn->autoscaler;

	vec_foreach (const struct scale_action, action, &turn->plan->actions)
		if (action->kind == kind)
			*vec_push(acts) = (struct node_act){.kind = act, .node = action->node};
	ERR_TRY(turn_may_act(turn, err));
	return node_acts_do(
		autoscaler->client, autoscaler->options.interrupted, turn->model, acts, err);
}

struct json *turn_request(
	const struct turn *turn, const char *verb, const struct scale_group *group)
{
	struct json *request = json_object();

	json_set_str(request, "verb", verb);
	json_set_str(request, "cluster", settings_cluster(turn->autoscaler->options.settings));
	json_set_str(request, "group", group->id);
	return request;
}

void turn_asks_done(struct turn_asks *asks)
{
	vec_foreach (struct turn_ask, ask, asks) {
		provider_cancel(ask->call);
		json_free(ask->request);
		json_free(ask->reply.response);
		err_clear(&ask->reply.error);
	}
	vec_done(asks);
}

void turn_asks_add(struct turn_asks *asks, int32_t group, struct json *take_request)
{
	*vec_push(asks) = (struct turn_ask){.group = group, .request = take_request};
}

static int turn_on_reply(void *ctx, struct provider_reply *reply, struct err *err UNUSED)
{
	struct turn_ask *ask = ctx;

	ask->call = NULL;
	ask->is_done = true;
	ask->reply = *reply;
	*reply = (struct provider_reply){0};
	loop_wait_done(ask->wait);
	return 0;
}

static int turn_ask_may_begin(void *ctx, struct err *err)
{
	const struct turn_ask *ask = ctx;

	ERR_TRY(turn_may_act(ask->turn, err));
	if (ask->looked_ms && clock_ms() - ask->looked_ms > ASK_LOOKED_MS)
		return err_set(err, E_SCALE_PROVIDER,
			"nothing was done: its nodes were looked at over %d s ago",
			ASK_LOOKED_MS / 1000);
	return 0;
}

int turn_asks_run(struct turn *turn, struct turn_asks *asks, int64_t timeout_ms, struct err *err)
{
	const struct autoscaler_options *options = &turn->autoscaler->options;
	int64_t rounds = ((int64_t)asks->n + SUPPLY_PROGRAMS_MAX - 1) / SUPPLY_PROGRAMS_MAX;
	int64_t each_ms = clock_deadline(timeout_ms - ASK_AHEAD_MS);
	struct loop_wait wait = {.loop = kube_client_loop(turn->autoscaler->client),
		.n_open = asks->n,
		.deadline_ms = clock_deadline(rounds * timeout_ms),
		.interrupted = options->interrupted};

	vec_foreach (struct turn_ask, ask, asks) {
		const struct scale_group *group = &turn->model->groups.v[ask->group];
		ask->turn = turn;
		ask->wait = &wait;
		ask->call = provider_start(supply_provider(options->supply, group), ask->request,
			each_ms, turn_on_reply, ask);
		provider_may_begin(ask->call, turn_ask_may_begin);
	}
	ERR_TRY(loop_wait_run(&wait, err));
	vec_foreach (struct turn_ask, ask, asks) {
		if (ask->is_done)
			continue;
		ask->reply.failure = SCALE_FAILED_OTHER;
		ask->reply.is_unsent = provider_is_waiting(ask->call);
		ask->reply.is_unknown = !ask->reply.is_unsent;
		err_set(&ask->reply.error, E_SCALE_PROVIDER, "%s",
			ask->reply.is_unsent ? "requests before it took all the time"
					     : "no response in time");
		provider_cancel(TAKE(ask->call));
	}
	return 0;
}

struct json *turn_request_shrink(
	const struct turn *turn, int32_t group, const struct strv *ids, int64_t to)
{
	struct json *request = turn_request(turn, "shrink", &turn->model->groups.v[group]);
	struct json *list = json_array();

	json_add_strv(list, ids);
	json_set(request, "instances", list);
	int64_t min = turn->model->groups.v[group].min;

	json_set_int(request, "to", to > min ? to : min);
	return request;
}

/* How many were not ended. */
static int64_t turn_read_ended(const struct turn *turn, const struct scale_group *group,
	const struct json *response, struct strv *ret_gone)
{
	const struct json *list = json_get(response, "instances");
	int64_t n_failed = 0;

	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *id = json_get_str(m, "id"), *error = json_get_str(m, "error");
		if (id && ret_gone && json_get_bool(m, "gone", false))
			strv_add(ret_gone, id);
		if (!error)
			continue;
		n_failed++;
		AUTO_FREE char *text = mem_printf("%.64s: %.300s", id ? id : "?", error);
		AUTO_FREE char *shown = str_escaped(text);
		turn_tell(turn, &(struct turn_event){.what = "terminate",
					.group = group->id,
					.text = shown,
					.failure = SCALE_FAILED_OTHER,
					.is_problem = true});
	}
	return n_failed;
}

bool turn_read_shrink(struct turn *turn, const struct turn_ask *ask, const char *what,
	const char *why, struct strv *ret_gone)
{
	struct scale_group *group = &turn->model->groups.v[ask->group];
	int64_t before = group->desired, to = json_get_int(ask->request, "to", before);

	if (!ask->reply.response) {
		turn_tell(turn, &(struct turn_event){.what = what,
					.group = group->id,
					.text = ask->reply.error.message,
					.failure = ask->reply.failure,
					.is_problem = true});
		return false;
	}
	group->desired = to + turn_read_ended(turn, group, ask->reply.response, ret_gone);
	AUTO_FREE char *text =
		mem_printf("%" PRId64 " > %" PRId64 ": %s", before, group->desired, why);
	if (group->desired < before)
		turn_tell(turn, &(struct turn_event){.what = what,
					.group = group->id,
					.text = text,
					.machines = before - group->desired});
	return true;
}

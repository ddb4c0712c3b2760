/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "app/autoscale/collect.h"
#include "app/autoscale/turn_impl.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"

/* Marks in one turn: the first turn on a large cluster has thousands. */
enum { HOLDER_BYTES = 4, HOST_MAX = 64, MARKS_MAX = 500 };

/* A name that no other process has. */
static struct lease *autoscaler_lease(struct kube_client *client)
{
	char host[HOST_MAX + 1] = "", hex[2 * HOLDER_BYTES + 1];
	uint8_t bytes[HOLDER_BYTES];

	gethostname(host, HOST_MAX);
	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), hex);
	AUTO_FREE char *holder = mem_printf("%s_%s", host, hex);
	return lease_new(client, holder);
}

struct autoscaler *autoscaler_new(const struct autoscaler_options *options)
{
	struct autoscaler *autoscaler = mem_alloc(1, sizeof(*autoscaler));

	autoscaler->options = *options;
	autoscaler->client = options->cluster->client;
	autoscaler->store = state_store_of(autoscaler->client);
	autoscaler->growth = growth_store_of(autoscaler->client);
	if (options->apply)
		autoscaler->lease = autoscaler_lease(autoscaler->client);
	return autoscaler;
}

void autoscaler_free(struct autoscaler *autoscaler)
{
	if (!autoscaler)
		return;
	lease_free(autoscaler->lease);
	state_store_done(&autoscaler->store);
	growth_store_done(&autoscaler->growth);
	free(autoscaler);
}

int turn_may_act(const struct turn *turn, struct err *err)
{
	if (!lease_is_held(turn->autoscaler->lease))
		return err_set(err, E_SCALE_LEASE, "the Lease was lost in the middle of a turn");
	if (clock_ms() - turn->begun_ms > TURN_FRESH_MS)
		return err_set(err, E_SCALE_LEASE, "the turn took so long that it begins again");
	return 0;
}

void turn_tell(const struct turn *turn, const struct turn_event *event)
{
	const struct autoscaler_options *options = &turn->autoscaler->options;

	options->event(options->ctx, event);
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

int turn_asks_run(struct turn *turn, struct turn_asks *asks, struct err *err)
{
	const struct autoscaler_options *options = &turn->autoscaler->options;
	struct loop_wait wait = {.loop = kube_client_loop(turn->autoscaler->client),
		.n_open = asks->n,
		.deadline_ms = clock_deadline(PROVIDER_MS),
		.interrupted = options->interrupted};

	vec_foreach (struct turn_ask, ask, asks) {
		const struct scale_group *group = &turn->model->groups.v[ask->group];
		ask->wait = &wait;
		ask->call = provider_start(supply_provider(options->supply, group), ask->request,
			wait.deadline_ms, turn_on_reply, ask);
	}
	ERR_TRY(loop_wait_run(&wait, err));
	vec_foreach (struct turn_ask, ask, asks) {
		if (ask->is_done)
			continue;
		provider_cancel(TAKE(ask->call));
		ask->reply.failure = SCALE_FAILED_OTHER;
		ask->reply.is_unknown = true;
		err_set(&ask->reply.error, E_SCALE_PROVIDER, "no response in time");
	}
	return 0;
}

int autoscaler_look(
	const struct autoscaler_options *options, struct scale_model *model, struct err *err)
{
	struct state_store store = state_store_of(options->cluster->client);
	AUTO_ERR struct err error = {0};

	REPLACE(model->cluster, mem_strdup(settings_cluster(options->settings)));
	model->limits = *settings_limits(options->settings);
	ERR_TRY(collect_cluster(
		options->cluster, options->supply, options->interrupted, model, err));
	if (state_store_read(&store, &error) == 0)
		scale_state_apply(&store.state, model);
	else
		strv_addf(&model->remarks, "what the autoscaler remembers is not known: %s",
			error.message);
	state_store_done(&store);
	return 0;
}

/* Since when nodes are idle, and whose they are. */
static int turn_mark_nodes(struct turn *turn, struct err *err)
{
	AUTO_NODE_ACTS struct node_acts acts = {0};

	for (size_t i = 0; i < turn->model->nodes.n && acts.n < MARKS_MAX; i++)
		if (turn->model->nodes.v[i].is_unmarked)
			*vec_push(&acts) =
				(struct node_act){.kind = NODE_ACT_MARK, .node = (int32_t)i};
	ERR_TRY(node_acts_do(turn->autoscaler->client, turn->autoscaler->options.interrupted,
		turn->model, &acts, err));
	vec_foreach (struct node_act, act, &acts) {
		struct scale_node *node = &turn->model->nodes.v[act->node];
		node->is_unmarked = err_is_set(&act->error);
		if (!node->is_unmarked)
			continue;
		/* An idle time that is not noted has not begun. */
		if (node->idle_since_ms)
			node->idle_since_ms = turn->model->now_ms;
		turn_tell(turn, &(struct turn_event){.what = "mark",
					.node = node->name,
					.text = act->error.message,
					.is_problem = true});
	}
	return 0;
}

static int turn_act(struct turn *turn, struct err *err)
{
	struct autoscaler *autoscaler = turn->autoscaler;

	ERR_TRY(turn_may_act(turn, err));
	scale_state_settle(&autoscaler->store.state, turn->model);
	ERR_TRY(turn_resume(turn, err));
	scale_state_apply(&autoscaler->store.state, turn->model);
	ERR_TRY(turn_mark_nodes(turn, err));
	ERR_TRY(turn_buy(turn, err));
	ERR_TRY(turn_give_back(turn, err));
	ERR_TRY(state_store_write(&autoscaler->store, err));
	return growth_store_write(&autoscaler->growth, turn->model, turn->plan,
		settings_every_ms(autoscaler->options.settings), err);
}

int autoscaler_turn(struct autoscaler *autoscaler, struct scale_model *model,
	struct scale_plan *plan, struct err *err)
{
	const struct autoscaler_options *options = &autoscaler->options;
	struct turn turn = {.autoscaler = autoscaler, .model = model, .plan = plan};

	if (!options->apply) {
		ERR_TRY(autoscaler_look(options, model, err));
		scale_plan_make(model, plan);
		return 0;
	}
	ERR_TRY(lease_wait(
		autoscaler->lease, options->interrupted, options->note, options->ctx, err));
	turn.begun_ms = clock_ms();
	ERR_TRY(state_store_read(&autoscaler->store, err));
	REPLACE(model->cluster, mem_strdup(settings_cluster(options->settings)));
	model->limits = *settings_limits(options->settings);
	ERR_TRY(collect_cluster(
		options->cluster, options->supply, options->interrupted, model, err));
	turn.purchases = mem_alloc(model->groups.n + 1, sizeof(*turn.purchases));
	int r = turn_act(&turn, err);
	for (size_t i = 0; i < model->groups.n; i++)
		strv_done(&turn.purchases[i].instances);
	free(turn.purchases);
	return r;
}

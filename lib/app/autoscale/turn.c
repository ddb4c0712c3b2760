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

int64_t autoscaler_wait_ms(const struct autoscaler *autoscaler)
{
	int64_t every_ms = settings_every_ms(autoscaler->options.settings);
	int64_t now_ms = autoscaler->seen_ms;

	vec_foreach (const struct scale_state_group, group, &autoscaler->store.state.groups)
		if (group->token && now_ms - group->asked_ms < TURN_REFUSED_MS)
			return every_ms < TURN_SOON_MS ? every_ms : TURN_SOON_MS;
	return every_ms;
}

/* Mark nodes with their group and since when they are idle. */
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
	autoscaler->seen_ms = model->now_ms;
	turn.purchases = mem_alloc(model->groups.n + 1, sizeof(*turn.purchases));
	int r = turn_act(&turn, err);
	for (size_t i = 0; i < model->groups.n; i++)
		strv_done(&turn.purchases[i].instances);
	free(turn.purchases);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "app/autoscale/collect.h"
#include "app/autoscale/turn_impl.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/log.h"
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

static int autoscaler_collect(
	const struct autoscaler_options *options, struct scale_model *model, struct err *err)
{
	REPLACE(model->cluster, mem_strdup(settings_cluster(options->settings)));
	model->limits = *settings_limits(options->settings);
	return collect_cluster(options->cluster, options->supply, options->interrupted, model, err);
}

int autoscaler_look(
	const struct autoscaler_options *options, struct scale_model *model, struct err *err)
{
	struct state_store store = state_store_of(options->cluster->client);
	struct growth_store growth = growth_store_of(options->cluster->client);
	AUTO_ERR struct err error = {0};

	ERR_TRY(autoscaler_collect(options, model, err));
	growth_store_learn(&growth, model);
	growth_store_done(&growth);
	if (state_store_read(&store, &error) == 0)
		scale_state_apply(&store.state, model);
	else
		strv_addf(&model->remarks, "the state of the autoscaler is not known: %s",
			error.message);
	state_store_done(&store);
	return 0;
}

int64_t autoscaler_wait_ms(const struct autoscaler *autoscaler)
{
	int64_t every_ms = settings_every_ms(autoscaler->options.settings);
	int64_t now_ms = autoscaler->seen_ms;

	vec_foreach (const struct scale_state_group, group, &autoscaler->store.state.groups)
		if (group->token && now_ms >= group->asked_ms &&
			now_ms - group->asked_ms < TURN_REFUSED_MS)
			return every_ms < TURN_SOON_MS ? every_ms : TURN_SOON_MS;
	return every_ms;
}

/* Mark nodes with their group and since when they are idle: each turn some, another part each. */
static int turn_mark_nodes(struct turn *turn, struct err *err)
{
	AUTO_NODE_ACTS struct node_acts acts = {0};
	struct scale_nodes *nodes = &turn->model->nodes;
	const struct err *first = NULL;
	size_t n_failed = 0, start = nodes->n ? turn->autoscaler->n_marked % nodes->n : 0;

	for (size_t i = 0; i < nodes->n && acts.n < MARKS_MAX; i++) {
		size_t at = (start + i) % nodes->n;
		if (nodes->v[at].is_unmarked)
			*vec_push(&acts) =
				(struct node_act){.kind = NODE_ACT_MARK, .node = (int32_t)at};
	}
	if (!acts.n)
		return 0;
	ERR_TRY(turn_may_act(turn, err));
	ERR_TRY(node_acts_do(turn->autoscaler->client, turn->autoscaler->options.interrupted,
		turn->model, &acts, err));
	turn->autoscaler->n_marked += acts.n;
	vec_foreach (struct node_act, act, &acts) {
		struct scale_node *node = &nodes->v[act->node];
		if (!err_is_set(&act->error))
			continue;
		first = first ? first : &act->error;
		n_failed++;
		/* Unless recorded, the idle time starts now. */
		if (node->idle_since_ms)
			node->idle_since_ms = turn->model->now_ms;
	}
	if (n_failed) {
		AUTO_FREE char *text = mem_printf(
			"%zu %s: %s", n_failed, n_failed == 1 ? "node" : "nodes", first->message);
		turn_tell(turn,
			&(struct turn_event){.what = "mark", .text = text, .is_problem = true});
	}
	return 0;
}

/* Publish the growth, without which others can do for a while: no reason to end a turn. */
static void turn_publish(struct turn *turn)
{
	AUTO_ERR struct err error = {0};
	struct autoscaler *autoscaler = turn->autoscaler;

	if (growth_store_write(&autoscaler->growth, turn->model, turn->plan,
		    settings_every_ms(autoscaler->options.settings), &error) < 0)
		turn_tell(turn,
			&(struct turn_event){
				.what = "publish", .text = error.message, .is_problem = true});
}

static int turn_act(struct turn *turn, struct err *err)
{
	struct autoscaler *autoscaler = turn->autoscaler;

	ERR_TRY(turn_may_act(turn, err));
	scale_state_settle(&autoscaler->store.state, turn->model,
		settings_every_ms(autoscaler->options.settings));
	ERR_TRY(turn_resume(turn, err));
	scale_state_apply(&autoscaler->store.state, turn->model);
	ERR_TRY(turn_mark_nodes(turn, err));
	ERR_TRY(turn_buy(turn, err));
	ERR_TRY(turn_give_back(turn, err));
	ERR_TRY(state_store_write(&autoscaler->store, err));
	int64_t acted_ms = clock_ms();
	turn_publish(turn);
	log_note("turn: looked for %" PRId64 " ms, planned and acted for %" PRId64
		 " ms, published for %" PRId64 " ms",
		turn->looked_ms - turn->begun_ms, acted_ms - turn->looked_ms,
		clock_ms() - acted_ms);
	return 0;
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
	ERR_TRY(lease_wait(autoscaler->lease, options->patience_ms, options->interrupted,
		options->note, options->ctx, err));
	turn.begun_ms = clock_ms();
	turn.term = lease_term(autoscaler->lease);
	ERR_TRY(state_store_read(&autoscaler->store, err));
	ERR_TRY(autoscaler_collect(options, model, err));
	/* Objects of a large cluster are read in one piece. */
	ERR_TRY(lease_renew(autoscaler->lease, turn.begun_ms, options->interrupted, err));
	turn.looked_ms = clock_ms();
	autoscaler->seen_ms = model->now_ms;
	turn.is_unknown = mem_alloc(model->groups.n + 1, sizeof(*turn.is_unknown));
	int r = turn_act(&turn, err);
	free(turn.is_unknown);
	return r;
}

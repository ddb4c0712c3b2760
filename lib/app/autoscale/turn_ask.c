/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/turn_impl.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

/* Providers end so long before the wait for them, so that they can still say why. */
enum { ASK_AHEAD_MS = 5000 };

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
			wait.deadline_ms - ASK_AHEAD_MS, turn_on_reply, ask);
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

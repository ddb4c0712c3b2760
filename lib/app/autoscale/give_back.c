/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "app/autoscale/turn_impl.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static void give_back_tell(const struct turn *turn, const char *what,
	const struct scale_action *action, const char *problem)
{
	const struct scale_model *model = turn->model;

	turn_tell(turn,
		&(struct turn_event){.what = what,
			.group = action->group >= 0 ? model->groups.v[action->group].id : NULL,
			.node = action->node >= 0 ? model->nodes.v[action->node].name : NULL,
			.text = problem ? problem : action->why,
			.is_problem = problem});
}

static void give_back_read(const struct turn *turn, const struct scale_group *group,
	const struct json *response, struct strv *ret_gone)
{
	const struct json *list = json_get(response, "instances");

	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *id = json_get_str(m, "id"), *error = json_get_str(m, "error");
		if (id && ret_gone && json_get_bool(m, "gone", false))
			strv_add(ret_gone, id);
		if (!error)
			continue;
		AUTO_FREE char *shown = str_escaped(error);
		AUTO_FREE char *text = mem_printf("%.64s: %s", id ? id : "?", shown);
		turn_tell(turn, &(struct turn_event){.what = "terminate",
					.group = group->id,
					.text = text,
					.failure = SCALE_FAILED_OTHER,
					.is_problem = true});
	}
}

int turn_shrink(struct turn *turn, int32_t at, const struct strv *ids, int64_t to, const char *what,
	const char *why, struct strv *ret_gone, struct err *err)
{
	AUTO_TURN_ASKS struct turn_asks asks = {0};
	struct scale_group *group = &turn->model->groups.v[at];
	struct json *request = turn_request(turn, "shrink", group), *list = json_array();
	AUTO_FREE char *text = mem_printf("%" PRId64 " > %" PRId64 ": %s", group->desired, to, why);

	json_add_strv(list, ids);
	json_set(request, "instances", list);
	json_set_int(request, "to", to);
	turn_asks_add(&asks, at, request);
	ERR_TRY(turn_may_act(turn, err));
	ERR_TRY(turn_asks_run(turn, &asks, err));
	const struct provider_reply *reply = &asks.v[0].reply;
	turn_tell(turn, &(struct turn_event){.what = what,
				.group = group->id,
				.text = reply->response ? text : reply->error.message,
				.failure = reply->failure,
				.is_problem = !reply->response,
				.machines = reply->response ? group->desired - to : 0});
	if (!reply->response)
		return 0;
	group->desired = to;
	give_back_read(turn, group, reply->response, ret_gone);
	return 0;
}

static int give_back_cordon(struct turn *turn, struct err *err)
{
	AUTO_NODE_ACTS struct node_acts acts = {0};
	size_t i = 0;

	vec_foreach (const struct scale_action, action, &turn->plan->actions)
		if (action->kind == SCALE_CORDON)
			*vec_push(&acts) =
				(struct node_act){.kind = NODE_ACT_CORDON, .node = action->node};
	ERR_TRY(turn_may_act(turn, err));
	ERR_TRY(node_acts_do(turn->autoscaler->client, turn->autoscaler->options.interrupted,
		turn->model, &acts, err));
	vec_foreach (const struct scale_action, action, &turn->plan->actions)
		if (action->kind == SCALE_CORDON)
			give_back_tell(turn, "cordon", action, acts.v[i++].error.message);
	return 0;
}

/* Of a node that has just been looked at: NULL, or why it stays. */
static char *give_back_look(struct turn *turn, const struct scale_action *action, char **ret_uid)
{
	const struct scale_node *node = &turn->model->nodes.v[action->node];
	AUTO_ERR struct err error = {0};
	char *why = NULL;

	int r = action->kind == SCALE_REMOVE
			? node_acts_is_free(turn->autoscaler->client, node, ret_uid, &why, &error)
			: node_acts_is_dead(turn->autoscaler->client, node, ret_uid, &why, &error);
	return r < 0 ? mem_strdup(error.message) : why;
}

static int give_back_forget(
	struct turn *turn, const char *name, const char *uid, const char *why, struct err *err)
{
	AUTO_ERR struct err error = {0};

	ERR_TRY(turn_may_act(turn, err));
	int r = node_acts_forget(turn->autoscaler->client, name, uid, &error);
	turn_tell(turn, &(struct turn_event){.what = "forget",
				.node = name,
				.text = r < 0 ? error.message : why,
				.is_problem = r < 0});
	return 0;
}

static int give_back_group(struct turn *turn, int32_t group, struct err *err)
{
	AUTO_STRV struct strv ids = {0}, uids = {0}, names = {0}, gone = {0};
	const struct scale_group *of = &turn->model->groups.v[group];

	vec_foreach (const struct scale_action, action, &turn->plan->actions) {
		AUTO_FREE char *uid = NULL, *why = NULL;
		if (action->group != group ||
			(action->kind != SCALE_REMOVE && action->kind != SCALE_TERMINATE))
			continue;
		if (action->kind == SCALE_TERMINATE) {
			strv_add(&ids, of->instances.v[action->instance].id);
			strv_add(&uids, "");
			strv_add(&names, "");
			give_back_tell(turn, "terminate", action, NULL);
			continue;
		}
		why = give_back_look(turn, action, &uid);
		give_back_tell(turn, "remove", action, why);
		if (why)
			continue;
		strv_add(&ids, turn->model->nodes.v[action->node].instance);
		strv_add(&uids, uid);
		strv_add(&names, turn->model->nodes.v[action->node].name);
	}
	if (!ids.n)
		return 0;
	ERR_TRY(turn_shrink(turn, group, &ids, of->desired - (int64_t)ids.n, "terminate",
		"machines that are not needed", &gone, err));
	/* The object goes when the provider has confirmed that the machine is gone. */
	for (size_t i = 0; i < ids.n; i++)
		for (size_t k = 0; k < gone.n; k++)
			if (*uids.v[i] && str_eq(gone.v[k], ids.v[i]))
				ERR_TRY(give_back_forget(
					turn, names.v[i], uids.v[i], "its machine is gone", err));
	return 0;
}

int turn_give_back(struct turn *turn, struct err *err)
{
	static const struct strv none;

	vec_foreach (const struct scale_action, action, &turn->plan->actions)
		if (action->kind == SCALE_SHRINK)
			ERR_TRY(turn_shrink(turn, action->group, &none, action->to, "shrink",
				action->why, NULL, err));
	vec_foreach (const struct scale_action, action, &turn->plan->actions) {
		AUTO_FREE char *uid = NULL, *why = NULL;
		if (action->kind != SCALE_FORGET)
			continue;
		why = give_back_look(turn, action, &uid);
		if (why)
			give_back_tell(turn, "forget", action, why);
		else
			ERR_TRY(give_back_forget(turn, turn->model->nodes.v[action->node].name, uid,
				action->why, err));
	}
	for (size_t g = 0; g < turn->model->groups.n; g++)
		ERR_TRY(give_back_group(turn, (int32_t)g, err));
	return give_back_cordon(turn, err);
}

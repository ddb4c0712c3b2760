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

static int give_back_cordon(struct turn *turn, struct err *err)
{
	AUTO_NODE_ACTS struct node_acts acts = {0};
	size_t i = 0;

	ERR_TRY(turn_act_on_nodes(turn, SCALE_CORDON, NODE_ACT_CORDON, &acts, err));
	vec_foreach (const struct scale_action, action, &turn->plan->actions)
		if (action->kind == SCALE_CORDON)
			give_back_tell(turn, "cordon", action, acts.v[i++].error.message);
	return 0;
}

/* Machines of a group that go in this turn. uids and names are of their nodes, "" where there is
 * none. */
struct give_back {
	int32_t group;
	struct strv ids, uids, names;
	int64_t from;      /* the size before they go */
	int64_t looked_ms; /* clock_ms() before the first of them was looked at again */
	const char *why;   /* of a smaller size without any of them; or NULL */
	bool has_dead;     /* machines that did not become nodes */
};
struct give_backs VEC_OF(struct give_back);

static void give_backs_done(struct give_backs *list)
{
	vec_foreach (struct give_back, one, list) {
		strv_done(&one->ids);
		strv_done(&one->uids);
		strv_done(&one->names);
	}
	vec_done(list);
}

static struct give_back *give_back_of(
	const struct turn *turn, struct give_backs *list, int32_t group)
{
	vec_foreach (struct give_back, one, list)
		if (one->group == group)
			return one;
	struct give_back *one = vec_push(list);
	one->group = group;
	one->from = turn->model->groups.v[group].desired;
	return one;
}

static void give_back_add(
	struct give_back *one, int64_t looked_ms, const char *id, const char *uid, const char *name)
{
	if (!one->looked_ms)
		one->looked_ms = looked_ms;
	for (size_t i = 0; i < one->ids.n; i++)
		if (str_eq(one->ids.v[i], id))
			return;
	strv_add(&one->ids, id);
	strv_add(&one->uids, uid);
	strv_add(&one->names, name);
}

/* Look again at all nodes of the plan's actions of that kind; why some of them stay is told. */
static int give_back_look(struct turn *turn, enum scale_action_kind kind, const char *what,
	struct node_looks *looks, struct err *err)
{
	const struct scale_actions *actions = &turn->plan->actions;

	for (size_t i = 0; i < actions->n; i++) {
		const struct scale_action *action = &actions->v[i];
		bool is_of_size = kind == SCALE_REMOVE && turn->is_unknown[action->group];
		if (action->kind == kind && !is_of_size)
			*vec_push(looks) =
				(struct node_look){.node = action->node, .action = (int32_t)i};
	}
	ERR_TRY(node_acts_look(turn->autoscaler->client, turn->autoscaler->options.interrupted,
		turn->model, kind == SCALE_FORGET, looks, err));
	vec_foreach (const struct node_look, look, looks)
		if (look->why)
			give_back_tell(turn, what, &actions->v[look->action], look->why);
	return 0;
}

static int give_back_idle(struct turn *turn, struct give_backs *list, struct err *err)
{
	AUTO_NODE_LOOKS struct node_looks looks = {0};
	int64_t looked_ms = clock_ms();

	ERR_TRY(give_back_look(turn, SCALE_REMOVE, "remove", &looks, err));
	vec_foreach (const struct node_look, look, &looks) {
		const struct scale_node *node = &turn->model->nodes.v[look->node];
		if (!look->why)
			give_back_add(give_back_of(turn, list, node->group), looked_ms,
				node->instance, look->uid, node->name);
	}
	return 0;
}

/* Machines that did not become nodes, and still are none. */
static int give_back_dead(struct turn *turn, struct give_backs *list, struct err *err)
{
	struct map nodes = {0};
	int64_t looked_ms = clock_ms();
	bool is_read = false;
	int r = 0;

	vec_foreach (const struct scale_action, action, &turn->plan->actions) {
		if (action->kind != SCALE_TERMINATE)
			continue;
		const char *id =
			turn->model->groups.v[action->group].instances.v[action->instance].id;
		if (turn->is_unknown[action->group])
			continue;
		if (!is_read)
			r = node_acts_instances(turn->autoscaler->client,
				turn->autoscaler->options.interrupted, &nodes, err);
		is_read = true;
		if (r < 0)
			break;
		if (map_get(&nodes, id))
			continue;
		struct give_back *one = give_back_of(turn, list, action->group);
		give_back_add(one, looked_ms, id, "", "");
		one->has_dead = true;
	}
	map_done(&nodes);
	return r;
}

static int give_back_forget(struct turn *turn, const char *name, const char *uid,
	const char *version, const char *why, struct err *err)
{
	AUTO_ERR struct err error = {0};

	ERR_TRY(turn_may_act(turn, err));
	int r = node_acts_forget(turn->autoscaler->client, name, uid, version, &error);
	turn_tell(turn, &(struct turn_event){.what = "forget",
				.node = name,
				.text = r < 0 ? error.message : why,
				.is_problem = r < 0});
	return 0;
}

/* The object of a node goes when the provider has confirmed that its machine is gone. */
static int give_back_end(
	struct turn *turn, const struct turn_ask *ask, const struct give_back *one, struct err *err)
{
	AUTO_STRV struct strv gone = {0};

	if (!turn_read_shrink(turn, ask, one->ids.n ? "terminate" : "shrink",
		    one->ids.n ? "machines that are not needed" : one->why, &gone))
		return 0;
	if (one->has_dead)
		scale_state_fail(&turn->autoscaler->store.state,
			turn->model->groups.v[one->group].id, SCALE_FAILED_OTHER,
			"its machines did not become nodes", turn->model->now_ms);
	for (size_t i = 0; i < one->ids.n; i++)
		for (size_t k = 0; k < gone.n; k++)
			if (*one->uids.v[i] && str_eq(gone.v[k], one->ids.v[i]))
				ERR_TRY(give_back_forget(turn, one->names.v[i], one->uids.v[i],
					NULL, "its machine is gone", err));
	return 0;
}

static int give_back_machines(struct turn *turn, const struct give_backs *list, struct err *err)
{
	AUTO_TURN_ASKS struct turn_asks asks = {0};

	if (!list->n)
		return 0;
	vec_foreach (const struct give_back, one, list) {
		turn_asks_add(&asks, one->group,
			turn_request_shrink(
				turn, one->group, &one->ids, one->from - (int64_t)one->ids.n));
		asks.v[asks.n - 1].looked_ms = one->looked_ms;
	}
	ERR_TRY(turn_may_act(turn, err));
	ERR_TRY(turn_asks_run(turn, &asks, PROVIDER_MS, err));
	for (size_t i = 0; i < list->n; i++)
		ERR_TRY(give_back_end(turn, &asks.v[i], &list->v[i], err));
	return 0;
}

/* Machines that were asked for and do not come. */
static void give_back_never(struct turn *turn, struct give_backs *list)
{
	vec_foreach (const struct scale_action, action, &turn->plan->actions) {
		const struct scale_group *group =
			action->group >= 0 ? &turn->model->groups.v[action->group] : NULL;
		if (action->kind != SCALE_SHRINK || group->desired <= action->to ||
			turn->is_unknown[action->group])
			continue;
		struct give_back *one = give_back_of(turn, list, action->group);
		one->from = action->to;
		one->why = action->why;
	}
}

static int give_back_dead_nodes(struct turn *turn, struct err *err)
{
	AUTO_NODE_LOOKS struct node_looks looks = {0};

	ERR_TRY(give_back_look(turn, SCALE_FORGET, "forget", &looks, err));
	vec_foreach (const struct node_look, look, &looks)
		if (!look->why)
			ERR_TRY(give_back_forget(turn, turn->model->nodes.v[look->node].name,
				look->uid, look->version, turn->plan->actions.v[look->action].why,
				err));
	return 0;
}

int turn_give_back(struct turn *turn, struct err *err)
{
	struct give_backs list = {0};

	give_back_never(turn, &list);
	int r = give_back_cordon(turn, err);
	if (r == 0)
		r = give_back_dead_nodes(turn, err);
	if (r == 0)
		r = give_back_dead(turn, &list, err);
	if (r == 0)
		r = give_back_idle(turn, &list, err);
	if (r == 0)
		r = give_back_machines(turn, &list, err);
	give_backs_done(&list);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/node_acts.h"

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/objects.h"
#include "core/autoscale/snapshot.h"
#include "kube/status/object.h"

enum { NODE_ACT_MS = 20 * 1000 };

void node_acts_done(struct node_acts *acts)
{
	vec_foreach (struct node_act, act, acts)
		err_clear(&act->error);
	vec_done(acts);
}

struct node_acting {
	struct node_act *act;
	struct scale_node *node;
	struct kube_call *call;
	struct loop_wait *wait;
};

static int node_acts_on_patch(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct node_acting *acting = ctx;

	acting->call = NULL;
	if (err_is_set(&response->error))
		err_move(&acting->act->error, &response->error);
	else if (acting->act->kind != NODE_ACT_MARK)
		REPLACE(acting->node->version,
			mem_strdup(kube_str_at(response->object, "metadata.resourceVersion")));
	loop_wait_done(acting->wait);
	return 0;
}

/* A value of a merge patch: NULL removes the member (RFC 7396). */
static void node_acts_note(struct json *annotations, const char *key, const char *value)
{
	json_set(annotations, key, value ? json_string(value) : json_null());
}

static struct json *node_acts_patch(const struct scale_model *model, const struct node_act *act)
{
	const struct scale_node *node = &model->nodes.v[act->node];
	struct json *patch = json_object();
	struct json *metadata = json_sub(patch, "metadata");
	struct json *annotations = json_sub(metadata, "annotations");
	bool is_cordon = act->kind == NODE_ACT_CORDON;
	bool is_cordon_noted = act->kind != NODE_ACT_MARK || node->is_taken_back;
	char now[CLOCK_TEXT_SIZE], idle[CLOCK_TEXT_SIZE];

	/* A change that somebody has made meanwhile wins; marks of group and idle time concern
	 * nobody else, and their response does not stand for what was listed. */
	if (node->version && is_cordon_noted)
		json_set_str(metadata, "resourceVersion", node->version);
	clock_format(model->now_ms, now);
	clock_format(node->idle_since_ms, idle);
	if (act->kind == NODE_ACT_MARK) {
		node_acts_note(annotations, SCALE_GROUP, model->groups.v[node->group].id);
		node_acts_note(annotations, SCALE_IDLE_SINCE, node->idle_since_ms ? idle : NULL);
	} else if (is_cordon) {
		json_set_bool(json_sub(patch, "spec"), "unschedulable", true);
	} else {
		json_set(json_sub(patch, "spec"), "unschedulable", json_null());
	}
	if (is_cordon_noted) {
		node_acts_note(annotations, SCALE_CORDONED_BY, is_cordon ? SCALE_US : NULL);
		node_acts_note(annotations, SCALE_CORDONED_SINCE, is_cordon ? now : NULL);
	}
	return patch;
}

static void node_acts_start(
	struct kube_client *client, const struct scale_model *model, struct node_acting *acting)
{
	AUTO_JSON struct json *patch = node_acts_patch(model, acting->act);
	AUTO_FREE char *path =
		kube_path("/api/v1/nodes/%s", model->nodes.v[acting->act->node].name);

	acting->call = kube_start(client, &(struct kube_request){.method = "PATCH",
						  .path = path,
						  .body = patch,
						  .content_type = "application/merge-patch+json",
						  .is_idempotent = true,
						  .deadline_ms = acting->wait->deadline_ms,
						  .done = node_acts_on_patch,
						  .ctx = acting});
}

static int node_acts_run(struct kube_client *client, const volatile int *interrupted,
	struct scale_model *model, struct node_acts *acts, struct err *err)
{
	AUTO_FREE struct node_acting *acting = mem_alloc(acts->n + 1, sizeof(*acting));
	struct loop_wait wait = {.loop = kube_client_loop(client),
		.deadline_ms = clock_deadline(NODE_ACT_MS),
		.interrupted = interrupted};

	for (size_t i = 0; i < acts->n; i++) {
		if (acts->v[i].is_done)
			continue;
		wait.n_open++;
		acting[i] = (struct node_acting){.act = &acts->v[i],
			.node = &model->nodes.v[acts->v[i].node],
			.wait = &wait};
		node_acts_start(client, model, &acting[i]);
	}
	int r = loop_wait_run(&wait, err);
	for (size_t i = 0; i < acts->n; i++) {
		if (acting[i].call && r == 0)
			err_set(&acts->v[i].error, E_KUBE_UNREACHABLE, "no response in time");
		kube_cancel(acting[i].call);
		acts->v[i].is_done = true;
	}
	return r;
}

static int node_acts_get(struct kube_client *client, const struct scale_node *node,
	struct json **ret, struct err *err)
{
	AUTO_FREE char *path = kube_path("/api/v1/nodes/%s", node->name);

	return kube_query(client,
		&(struct kube_request){
			.method = "GET", .path = path, .deadline_ms = clock_deadline(NODE_ACT_MS)},
		ret, err);
}

/* Controllers and kubelets write on nodes all the time: what counts is whether it is cordoned as it
 * was. A patch whose response was lost may have been done. */
static void node_acts_judge_conflict(
	struct kube_client *client, struct node_act *act, struct scale_node *node)
{
	AUTO_JSON struct json *object = NULL;
	AUTO_ERR struct err error = {0};

	if (node_acts_get(client, node, &object, &error) < 0)
		return;
	int now = objects_cordon(object);
	int wanted = act->kind == NODE_ACT_CORDON ? SCALE_CORDONED_BY_US : SCALE_OPEN;
	if (act->kind != NODE_ACT_MARK && now == wanted) {
		err_clear(&act->error);
	} else if (now == (int)node->cordoned) {
		REPLACE(node->version, mem_strdup(kube_str_at(object, "metadata.resourceVersion")));
		err_clear(&act->error);
		act->is_done = false;
	} else {
		err_set(&act->error, E_KUBE_CONFLICT, "it was changed by someone else");
	}
}

int node_acts_do(struct kube_client *client, const volatile int *interrupted,
	struct scale_model *model, struct node_acts *acts, struct err *err)
{
	ERR_TRY(node_acts_run(client, interrupted, model, acts, err));
	vec_foreach (struct node_act, act, acts)
		if (act->error.id == E_KUBE_CONFLICT)
			node_acts_judge_conflict(client, act, &model->nodes.v[act->node]);
	return node_acts_run(client, interrupted, model, acts, err);
}

void node_looks_done(struct node_looks *looks)
{
	vec_foreach (struct node_look, look, looks) {
		free(look->uid);
		free(look->version);
		free(look->why);
	}
	vec_done(looks);
}

/* NULL, or the name of a pod that is more than a daemon. */
static const char *node_acts_find_pod(const struct json *pods)
{
	for (const struct json *m = kube_first(pods, "items"); m; m = json_next(m))
		if (!objects_is_daemon(m))
			return kube_str_at(m, "metadata.name") ? kube_str_at(m, "metadata.name")
							       : "?";
	return NULL;
}

/* NULL, or why it may not go. */
static char *node_acts_judge(
	const struct json *object, const struct scale_node *node, bool is_dead, const char *pod)
{
	bool is_ours = objects_cordon(object) == SCALE_CORDONED_BY_US;
	AUTO_STRV struct strv ids = {0};

	objects_ids(object, &ids);

	if (is_dead && kube_condition_is(object, "Ready", "True"))
		return mem_strdup("it has come back");
	if (strv_find(&ids, node->instance) < 0 || (!is_dead && !is_ours))
		return mem_strdup("it was changed by someone else");
	return pod ? mem_printf("pod %s was scheduled there", pod) : objects_kept(object);
}

/* A request of the two for a node. */
struct node_looking {
	struct loop_wait *wait;
	struct kube_call *call;
	struct json *object;
	struct err error;
};

static int node_acts_on_look(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct node_looking *looking = ctx;

	looking->call = NULL;
	err_move(&looking->error, &response->error);
	looking->object = TAKE(response->object);
	loop_wait_done(looking->wait);
	return 0;
}

static void node_acts_ask(struct kube_client *client, const char *path, const char *const *query,
	struct node_looking *looking)
{
	looking->wait->n_open++;
	looking->call = kube_start(client, &(struct kube_request){.method = "GET",
						   .path = path,
						   .query = query,
						   .deadline_ms = looking->wait->deadline_ms,
						   .done = node_acts_on_look,
						   .ctx = looking});
}

static void node_acts_read_look(struct node_looking *of_node, struct node_looking *of_pods,
	const struct scale_node *node, bool is_dead, struct node_look *look)
{
	const struct err *error = err_is_set(&of_node->error) ? &of_node->error : &of_pods->error;
	bool is_open = of_node->call || of_pods->call;

	if (is_open || err_is_set(error))
		look->why = mem_strdup(is_open ? "no response in time" : error->message);
	else
		look->why = node_acts_judge(
			of_node->object, node, is_dead, node_acts_find_pod(of_pods->object));
	if (look->why)
		return;
	look->uid = mem_strdup(kube_str_at(of_node->object, "metadata.uid"));
	look->version = mem_strdup(kube_str_at(of_node->object, "metadata.resourceVersion"));
}

int node_acts_look(struct kube_client *client, const volatile int *interrupted,
	const struct scale_model *model, bool is_dead, struct node_looks *looks, struct err *err)
{
	AUTO_FREE struct node_looking *looking = mem_alloc(2 * looks->n + 1, sizeof(*looking));
	struct loop_wait wait = {.loop = kube_client_loop(client),
		.deadline_ms = clock_deadline(NODE_ACT_MS),
		.interrupted = interrupted};

	for (size_t i = 0; i < looks->n; i++) {
		const char *name = model->nodes.v[looks->v[i].node].name;
		AUTO_FREE char *path = kube_path("/api/v1/nodes/%s", name);
		AUTO_FREE char *selector = mem_printf(
			"spec.nodeName=%s,status.phase!=Succeeded,status.phase!=Failed", name);
		looking[2 * i].wait = looking[2 * i + 1].wait = &wait;
		node_acts_ask(client, path, NULL, &looking[2 * i]);
		if (!is_dead)
			node_acts_ask(client, "/api/v1/pods",
				(const char *const[]){"fieldSelector", selector, NULL},
				&looking[2 * i + 1]);
	}
	int r = loop_wait_run(&wait, err);
	for (size_t i = 0; i < looks->n; i++)
		node_acts_read_look(&looking[2 * i], &looking[2 * i + 1],
			&model->nodes.v[looks->v[i].node], is_dead, &looks->v[i]);
	for (size_t i = 0; i < 2 * looks->n; i++) {
		kube_cancel(looking[i].call);
		json_free(looking[i].object);
		err_clear(&looking[i].error);
	}
	return r;
}

int node_acts_forget(struct kube_client *client, const char *name, const char *uid,
	const char *version, struct err *err)
{
	AUTO_FREE char *path = kube_path("/api/v1/nodes/%s", name);
	AUTO_JSON struct json *body = json_object();
	AUTO_ERR struct err error = {0};
	struct json *preconditions = json_sub(body, "preconditions");

	json_set_str(body, "kind", "DeleteOptions");
	json_set_str(body, "apiVersion", "v1");
	json_set_str(preconditions, "uid", uid);
	if (version)
		json_set_str(preconditions, "resourceVersion", version);
	int r = kube_query(client,
		&(struct kube_request){.method = "DELETE",
			.path = path,
			.body = body,
			.is_idempotent = true,
			.deadline_ms = clock_deadline(NODE_ACT_MS)},
		NULL, &error);
	return r < 0 && error.id != E_KUBE_NOT_FOUND ? err_move(err, &error) : 0;
}

struct node_list {
	struct loop_wait wait;
	struct map *instances;
	struct err error;
};

static int node_acts_on_list(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct node_list *list = ctx;

	err_move(&list->error, &response->error);
	for (const struct json *m = kube_first(response->object, "items"); m; m = json_next(m)) {
		AUTO_STRV struct strv ids = {0};
		objects_ids(m, &ids);
		for (size_t i = 0; i < ids.n; i++)
			map_put(list->instances, ids.v[i], list);
	}
	loop_wait_done(&list->wait);
	return 0;
}

int node_acts_instances(struct kube_client *client, const volatile int *interrupted,
	struct map *ret, struct err *err)
{
	struct node_list list = {.wait = {.loop = kube_client_loop(client),
					 .n_open = 1,
					 .deadline_ms = clock_deadline(NODE_ACT_MS),
					 .interrupted = interrupted},
		.instances = ret};

	struct kube_call *call = kube_list(client, objects_path(OBJECTS_NODES), NULL,
		SCALE_NODES_LIMIT, list.wait.deadline_ms, node_acts_on_list, &list);
	kube_list_trim(call, objects_trim);
	int r = loop_wait_run(&list.wait, err);
	if (list.wait.n_open) {
		kube_cancel(call);
		return r < 0 ? r : err_set(err, E_KUBE_UNREACHABLE, "nodes: no response in time");
	}
	return r < 0 ? r : err_is_set(&list.error) ? err_move(err, &list.error) : 0;
}

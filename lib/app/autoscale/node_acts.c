/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/node_acts.h"

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/objects.h"
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
	struct kube_call *call;
	struct loop_wait *wait;
};

static int node_acts_on_patch(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct node_acting *acting = ctx;

	acting->call = NULL;
	if (err_is_set(&response->error))
		err_move(&acting->act->error, &response->error);
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
	struct json *annotations = json_sub(json_sub(patch, "metadata"), "annotations");
	bool is_cordon = act->kind == NODE_ACT_CORDON;
	char now[CLOCK_TEXT_SIZE], idle[CLOCK_TEXT_SIZE];

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
	if (act->kind != NODE_ACT_MARK || node->cordoned == SCALE_OPEN) {
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

int node_acts_do(struct kube_client *client, const volatile int *interrupted,
	const struct scale_model *model, struct node_acts *acts, struct err *err)
{
	AUTO_FREE struct node_acting *acting = mem_alloc(acts->n + 1, sizeof(*acting));
	struct loop_wait wait = {.loop = kube_client_loop(client),
		.n_open = acts->n,
		.deadline_ms = clock_deadline(NODE_ACT_MS),
		.interrupted = interrupted};

	for (size_t i = 0; i < acts->n; i++) {
		acting[i] = (struct node_acting){.act = &acts->v[i], .wait = &wait};
		node_acts_start(client, model, &acting[i]);
	}
	int r = loop_wait_run(&wait, err);
	for (size_t i = 0; i < acts->n; i++) {
		if (acting[i].call && r == 0)
			err_set(&acts->v[i].error, E_KUBE_UNREACHABLE, "no response in time");
		kube_cancel(acting[i].call);
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

/* A pod there that is more than a daemon. */
static int node_acts_find_pod(
	struct kube_client *client, const char *name, char **ret_pod, struct err *err)
{
	AUTO_FREE char *selector =
		mem_printf("spec.nodeName=%s,status.phase!=Succeeded,status.phase!=Failed", name);
	const char *const query[] = {"fieldSelector", selector, NULL};
	AUTO_JSON struct json *pods = NULL;

	ERR_TRY(kube_query(client,
		&(struct kube_request){.method = "GET",
			.path = "/api/v1/pods",
			.query = query,
			.deadline_ms = clock_deadline(NODE_ACT_MS)},
		&pods, err));
	for (const struct json *m = kube_first(pods, "items"); m; m = json_next(m))
		if (!objects_is_daemon(m)) {
			*ret_pod = mem_strdup(kube_str_at(m, "metadata.name"));
			break;
		}
	return 0;
}

int node_acts_is_free(struct kube_client *client, const struct scale_node *node, char **ret_uid,
	char **ret_why, struct err *err)
{
	AUTO_JSON struct json *object = NULL;
	AUTO_FREE char *pod = NULL, *instance = NULL;

	ERR_TRY(node_acts_get(client, node, &object, err));
	instance = objects_instance(object);
	bool is_ours = json_get_bool(json_get(object, "spec"), "unschedulable", false) &&
		       str_eq(kube_annotation(object, SCALE_CORDONED_BY), SCALE_US);
	if (!is_ours || !str_eq(instance, node->instance)) {
		*ret_why = mem_strdup("somebody has changed it");
		return 0;
	}
	ERR_TRY(node_acts_find_pod(client, node->name, &pod, err));
	if (pod) {
		*ret_why = mem_printf("pod %s has come there", pod);
		return 0;
	}
	*ret_uid = mem_strdup(kube_str_at(object, "metadata.uid"));
	return 1;
}

int node_acts_is_dead(struct kube_client *client, const struct scale_node *node, char **ret_uid,
	char **ret_why, struct err *err)
{
	AUTO_JSON struct json *object = NULL;
	AUTO_FREE char *instance = NULL;

	ERR_TRY(node_acts_get(client, node, &object, err));
	instance = objects_instance(object);
	if (kube_condition_is(object, "Ready", "True") || !str_eq(instance, node->instance)) {
		*ret_why = mem_strdup("it has come back");
		return 0;
	}
	*ret_uid = mem_strdup(kube_str_at(object, "metadata.uid"));
	return 1;
}

int node_acts_forget(struct kube_client *client, const char *name, const char *uid, struct err *err)
{
	AUTO_FREE char *path = kube_path("/api/v1/nodes/%s", name);
	AUTO_JSON struct json *body = json_object();
	AUTO_ERR struct err error = {0};

	json_set_str(body, "kind", "DeleteOptions");
	json_set_str(body, "apiVersion", "v1");
	json_set_str(json_sub(body, "preconditions"), "uid", uid);
	int r = kube_query(client,
		&(struct kube_request){.method = "DELETE",
			.path = path,
			.body = body,
			.is_idempotent = true,
			.deadline_ms = clock_deadline(NODE_ACT_MS)},
		NULL, &error);
	/* Another node of that name has another uid: a conflict. */
	bool is_gone = error.id == E_KUBE_NOT_FOUND || error.id == E_KUBE_CONFLICT;
	return r < 0 && !is_gone ? err_move(err, &error) : 0;
}

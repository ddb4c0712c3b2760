/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_poll.h"

#include <stdlib.h>
#include <string.h>

#include "base/loop/loop.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/response.h"
#include "kube/job/preflight.h"

enum { LIST_MAX = 20000, WORD_MAX = 200 };

/*
 * Rights
 */

static const struct {
	const char *name, *text, *tier;
	const char *group, *resource, *sub;
	const char *verbs; /* all of them are needed */
	bool everywhere;
	bool is_upgrade; /* create is needed as well where kube_upgrade_creates */
} rights[KUBE_RIGHTS] = {
	[KUBE_RIGHT_SUBMIT] = {"submit", "start runs", "submit", "batch", "jobs", NULL,
		"create delete"},
	[KUBE_RIGHT_LOGS] = {"logs", "read logs", "logs", "", "pods", "log", "get"},
	[KUBE_RIGHT_EXEC] = {"exec", "run commands in pods", "exec", "", "pods", "exec", "get",
		.is_upgrade = true},
	[KUBE_RIGHT_FORWARD] = {"forward", "forward ports", "exec", "", "pods", "portforward",
		"get", .is_upgrade = true},
	[KUBE_RIGHT_SECRETS] = {"secrets", "give runs secrets", "secrets", "", "secrets", NULL,
		"create"},
	[KUBE_RIGHT_EVENTS] = {"events", "read events", "submit", "", "events", NULL, "list"},
	[KUBE_RIGHT_NODES] = {"nodes", "list nodes", NULL, "", "nodes", NULL, "list", true},
	[KUBE_RIGHT_STUDIES] = {"studies", "start studies", "submit", "", "configmaps", NULL,
		"create"},
};

const char *kube_right_text(enum kube_right right)
{
	return rights[right].text;
}

const char *kube_right_tier(enum kube_right right)
{
	return rights[right].tier;
}

void kube_poll_done(struct kube_poll *poll)
{
	err_done(&poll->error);
	free(poll->version);
	free(poll->user);
	free(poll->enforced);
	free(poll->pull_secret_type);
	free(poll->default_class);
	vec_done(&poll->gpus);
	*poll = (struct kube_poll){0};
}

/*
 * Requests and responses
 */

struct round;
struct view;

struct question {
	struct view *view;
	struct kube_call *call;
	void (*take)(
		struct view *view, const struct question *question, struct kube_response *response);
	int right;
};

/* A cluster that is being checked. */
struct view {
	struct round *round;
	struct kube_poll *poll;
	struct question questions[KUBE_RIGHTS + 13];
	size_t n;
	bool upgrade_creates;
	enum kube_may may_create[KUBE_RIGHTS]; /* where is_upgrade */
	struct json *nodes;                    /* until their pods are known, too */
};

struct round {
	struct loop_wait wait;
	int64_t begun_ms;
};

static int kube_poll_on_response(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct question *question = ctx;
	struct round *round = question->view->round;
	struct kube_poll *poll = question->view->poll;
	bool is_first = poll->response_ms < 0;

	question->call = NULL;
	/* Any HTTP status but 401 shows that the server knows the user; 0 is no response. */
	bool is_unknown = response->status == 0 || response->status == 401;

	if (response->status != 0 && poll->response_ms < 0)
		poll->response_ms = 0;
	if (!is_unknown)
		poll->reached = true;
	else if (!err_is_set(&poll->error))
		err_move(&poll->error, &response->error);
	if (is_first && poll->response_ms == 0)
		poll->response_ms = clock_ms() - round->begun_ms;
	question->take(question->view, question, response);
	loop_wait_done(&round->wait);
	return 0;
}

typedef void take_fn(
	struct view *view, const struct question *question, struct kube_response *response);

static struct question *kube_poll_add(struct view *view, take_fn *take)
{
	struct question *question = &view->questions[view->n++];

	BUG_ON(view->n > ARRAY_LEN(view->questions));
	*question = (struct question){.view = view, .take = take};
	view->round->wait.n_open++;
	return question;
}

/* path is taken. body: POST it. */
static struct question *kube_poll_query(
	struct view *view, char *path, const struct json *body, take_fn *take)
{
	struct question *question = kube_poll_add(view, take);
	const struct kube_request request = {
		.method = body ? "POST" : "GET",
		.path = path,
		.body = body,
		.is_idempotent = true,
		.deadline_ms = view->round->wait.deadline_ms,
		.done = kube_poll_on_response,
		.ctx = question,
	};

	question->call = kube_start(view->poll->cluster->client, &request);
	free(path);
	return question;
}

static void kube_poll_query_list(
	struct view *view, const char *path, const char *const *query, take_fn *take)
{
	struct question *question = kube_poll_add(view, take);

	question->call = kube_list(view->poll->cluster->client, path, query, LIST_MAX,
		view->round->wait.deadline_ms, kube_poll_on_response, question);
}

/* A word of the server's, or NULL. */
static char *word(const char *text)
{
	return str_empty(text) ? NULL : kube_words(text, strlen(text), WORD_MAX);
}

static void kube_poll_take_version(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	view->poll->version = word(json_get_str(response->object, "gitVersion"));
	view->upgrade_creates = kube_upgrade_creates(response->object);
}

static void take_user(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	view->poll->user = word(kube_who_name(response->object));
}

static void take_may(const struct kube_response *response, enum kube_may *may)
{
	const struct json *status = json_get(response->object, "status");

	if (response->status / 100 != 2 || !json_get(status, "allowed") || *may == KUBE_MAY_NOT)
		return;
	*may = json_get_bool(status, "allowed", false) ? KUBE_MAY : KUBE_MAY_NOT;
}

static void take_right(
	struct view *view, const struct question *question, struct kube_response *response)
{
	take_may(response, &view->poll->rights[question->right]);
}

static void take_create(
	struct view *view, const struct question *question, struct kube_response *response)
{
	take_may(response, &view->may_create[question->right]);
}

static void kube_poll_take_namespace(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	const struct json *metadata = json_get(response->object, "metadata");
	const char *level =
		json_get_str(json_get(metadata, "labels"), "pod-security.kubernetes.io/enforce");

	view->poll->namespace_status = response->status;
	if (response->status == 200)
		view->poll->enforced = word(level ? level : "privileged");
}

static void take_queue(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	view->poll->queue_status = response->status;
	if (response->status == 200)
		view->poll->queue_pending =
			json_get_int(json_get(response->object, "status"), "pendingWorkloads", -1);
}

static void take_pull_secret(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	view->poll->pull_secret_status = response->status;
	view->poll->pull_secret_type = word(json_get_str(response->object, "type"));
}

static void take_classes(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	const struct json *items =
		response->status == 200 ? json_get(response->object, "items") : NULL;

	for (const struct json *item = json_first(items); item; item = json_next(item)) {
		const struct json *metadata = json_get(item, "metadata");
		const char *is_default = json_get_str(json_get(metadata, "annotations"),
			"storageclass.kubernetes.io/is-default-class");
		if (str_eq(is_default, "true") && !view->poll->default_class)
			view->poll->default_class = word(json_get_str(metadata, "name"));
	}
}

static void take_claims(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	view->poll->may_claim =
		response->status / 100 == 2 &&
		json_get_bool(json_get(response->object, "status"), "allowed", false);
	if (view->poll->may_claim)
		kube_poll_query_list(
			view, "/apis/storage.k8s.io/v1/storageclasses", NULL, take_classes);
}

static void take_pods(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	if (response->status != 200)
		return;
	kube_capacity_of(view->nodes, response->object, &view->poll->capacity);
	vec_done(&view->poll->gpus);
	kube_gpus_of(view->nodes, response->object, &view->poll->gpus);
}

static void take_nodes(
	struct view *view, const struct question *question UNUSED, struct kube_response *response)
{
	static const char *const query[] = {
		"fieldSelector", "status.phase!=Succeeded,status.phase!=Failed", NULL};

	if (response->status != 200)
		return;
	view->poll->capacity_known = true;
	view->nodes = TAKE(response->object);
	kube_capacity_of(view->nodes, NULL, &view->poll->capacity);
	kube_gpus_of(view->nodes, NULL, &view->poll->gpus);
	if (view->poll->capacity.gpus > 0)
		kube_poll_query_list(view, "/api/v1/pods", query, take_pods);
}

static void kube_poll_query_verb(struct view *view, int right, const char *verb, take_fn *take)
{
	const char *space = view->poll->cluster->access.kube_namespace;
	const struct kube_deed deed = {
		.kube_namespace = rights[right].everywhere ? NULL : space,
		.verb = verb,
		.group = rights[right].group,
		.resource = rights[right].resource,
		.sub = rights[right].sub,
	};
	AUTO_JSON struct json *body = kube_may_query(&deed);

	kube_poll_query(view, mem_strdup(KUBE_MAY_PATH), body, take)->right = right;
}

static void kube_poll_query_all(struct view *view)
{
	const struct kube_poll *poll = view->poll;
	const char *space = poll->cluster->access.kube_namespace;

	kube_poll_query(view, mem_strdup("/version"), NULL, kube_poll_take_version);
	for (int i = 0; i < KUBE_RIGHTS; i++) {
		const char *at = rights[i].verbs;
		while (*at) {
			size_t len = strcspn(at, " ");
			AUTO_FREE char *verb = mem_strndup(at, len);

			kube_poll_query_verb(view, i, verb, take_right);
			at += len + (at[len] == ' ');
		}
		if (rights[i].is_upgrade)
			kube_poll_query_verb(view, i, "create", take_create);
	}
	kube_poll_query(
		view, kube_path("/api/v1/namespaces/%s", space), NULL, kube_poll_take_namespace);
	if (poll->who) {
		AUTO_JSON struct json *body = kube_who_query();

		kube_poll_query(view, mem_strdup(KUBE_WHO_PATH), body, take_user);
	}
	if (poll->claims) {
		const struct kube_deed deed = {
			.kube_namespace = view->poll->cluster->access.kube_namespace,
			.verb = "create",
			.group = "",
			.resource = "persistentvolumeclaims",
		};
		AUTO_JSON struct json *body = kube_may_query(&deed);

		kube_poll_query(view, mem_strdup(KUBE_MAY_PATH), body, take_claims);
	}
	if (poll->queue)
		kube_poll_query(view,
			kube_path("/apis/kueue.x-k8s.io/v1beta1/namespaces/%s/localqueues/%s",
				space, poll->queue),
			NULL, take_queue);
	if (poll->pull_secret)
		kube_poll_query(view,
			kube_path("/api/v1/namespaces/%s/secrets/%s", space, poll->pull_secret),
			NULL, take_pull_secret);
	kube_poll_query_list(view, "/api/v1/nodes", NULL, take_nodes);
}

/*
 * The round
 */

/* Sets the error of a cluster that has not responded within the limit. */
static void blame_silence(const struct view *view, int64_t limit_ms)
{
	const struct kube_access *access = &view->poll->cluster->access;
	struct err *error = &view->poll->error;
	AUTO_FREE char *command = access->exec ? str_shown(access->exec->command) : NULL;
	char time[32];

	duration_text(limit_ms, time);
	if (view->poll->reached || err_is_set(error))
		return;
	if (command && view->poll->response_ms < 0) {
		err_set(error, E_KUBE_UNREACHABLE,
			"no answer within %s: %s, which logs in, or the cluster at %s is slow",
			time, command, access->server.host);
		kube_hint_version(access->context, "does it log in?", error);
	} else {
		err_set(error, E_KUBE_UNREACHABLE, "the cluster at %s has not answered within %s",
			access->server.host, time);
		kube_hint_version(access->context, "is the VPN up?", error);
	}
}

static void kube_poll_end(struct view *view, int64_t limit_ms)
{
	for (size_t i = 0; i < view->n; i++)
		kube_cancel(view->questions[i].call);
	json_free(view->nodes);
	for (int i = 0; i < KUBE_RIGHTS; i++)
		if (rights[i].is_upgrade && view->upgrade_creates &&
			view->poll->rights[i] == KUBE_MAY)
			view->poll->rights[i] = view->may_create[i];
	if (view->poll->cluster)
		blame_silence(view, limit_ms);
	if (view->poll->reached)
		err_clear(&view->poll->error);
}

int kube_poll_all(struct session *session, struct kube_poll *polls, size_t n, int64_t limit_ms,
	const volatile int *interrupted, struct err *err)
{
	AUTO_FREE struct view *views = mem_alloc(n + 1, sizeof(*views));
	struct round round = {.begun_ms = clock_ms(),
		.wait = {.loop = session_loop(session),
			.deadline_ms = clock_deadline(limit_ms),
			.interrupted = interrupted}};

	for (size_t i = 0; i < n; i++) {
		views[i] = (struct view){.round = &round, .poll = &polls[i]};
		struct view *view = &views[i];
		struct kube_poll *poll = view->poll;

		poll->response_ms = -1;
		poll->queue_pending = -1;
		poll->capacity.gpus_free = -1;
		if (kube_open(session, poll->context, poll->kube_namespace, &poll->cluster,
			    &poll->error) < 0)
			poll->cluster = NULL;
		else
			kube_poll_query_all(view);
	}
	int r = loop_wait_run(&round.wait, err);
	if (r < 0 && interrupted && *interrupted) {
		err_clear(err);
		err_set(err, E_CANCELED, "stopped");
	}
	for (size_t i = 0; i < n; i++)
		kube_poll_end(&views[i], limit_ms);
	return r;
}

/*
 * Reporting
 */

static void add_queue(const struct kube_poll *poll, struct buf *out)
{
	AUTO_FREE char *queue = poll->queue ? str_shown(poll->queue) : NULL;

	if (!queue)
		return;
	buf_addf(out, ", %squeue %s", poll->queue_status == 404 ? "no " : "", queue);
	if (poll->queue_pending > 0)
		buf_addf(out, " (%lld wait)", (long long)poll->queue_pending);
}

char *kube_poll_text(const struct kube_poll *poll)
{
	AUTO_BUF struct buf out = buf_with(4096);

	if (!poll->reached)
		return mem_strdup(poll->error.message ? poll->error.message : "not known");
	buf_addf(&out, "%s", poll->version ? poll->version : "answers");
	if (poll->namespace_status == 404)
		buf_adds(&out, ", has no such namespace");
	else if (poll->rights[KUBE_RIGHT_SUBMIT] != KUBE_MAY_UNKNOWN)
		buf_addf(&out, ", may %ssubmit",
			poll->rights[KUBE_RIGHT_SUBMIT] == KUBE_MAY ? "" : "not ");
	const struct kube_capacity *has = &poll->capacity;

	if (poll->capacity_known) {
		buf_addf(&out, ", %lld %s", (long long)has->nodes,
			has->nodes == 1 ? "node" : "nodes");
		if (has->gpus > 0 && has->gpus_free >= 0)
			buf_addf(&out, ", %lld of %lld GPUs free", (long long)has->gpus_free,
				(long long)has->gpus);
		else if (has->gpus > 0)
			buf_addf(&out, ", %lld %s", (long long)has->gpus,
				has->gpus == 1 ? "GPU" : "GPUs");
	}
	add_queue(poll, &out);
	return buf_take(&out);
}

static void set_known(struct json *json, const char *key, int64_t value)
{
	if (value < 0)
		json_set_str(json, key, NULL);
	else
		json_set_int(json, key, value);
}

void kube_poll_add_rights(
	const struct kube_poll *poll, enum kube_may wanted, const char *before, struct buf *out)
{
	bool any = false;

	for (int i = 0; i < KUBE_RIGHTS; i++) {
		if (poll->rights[i] != wanted)
			continue;
		buf_addf(out, "%s%s", any ? ", " : before, kube_right_text(i));
		any = true;
	}
}

void kube_poll_to_json(const struct kube_poll *poll, struct json *json)
{
	struct json *may = json_sub(json, "may");

	json_set_bool(json, "reachable", poll->reached);
	json_set_str(json, "version", poll->version);
	for (int i = 0; i < KUBE_RIGHTS; i++) {
		if (poll->rights[i] == KUBE_MAY_UNKNOWN)
			json_set_str(may, rights[i].name, NULL);
		else
			json_set_bool(may, rights[i].name, poll->rights[i] == KUBE_MAY);
	}
	set_known(json, "nodes", poll->capacity_known ? poll->capacity.nodes : -1);
	set_known(json, "gpus", poll->capacity_known ? poll->capacity.gpus : -1);
	set_known(json, "gpus_free", poll->capacity.gpus_free);
	json_set_str(json, "queue", poll->queue);
	set_known(json, "queue_pending", poll->queue_pending);
	json_set_str(json, "security", poll->enforced);
}

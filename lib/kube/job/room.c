/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/room.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/api/response.h"
#include "kube/status/object.h"
#include "kube/status/status.h"

#define ROOM_KUEUE      "/apis/kueue.x-k8s.io/v1beta1"
#define ROOM_MULTIKUEUE "kueue.x-k8s.io/multikueue"

/* Subjects of questions, behind all of a preflight. */
enum { ROOM_PODS = 2000, ROOM_CLUSTER_QUEUE, ROOM_ADMISSION_CHECK };

enum { ROOM_WORDS_MAX = 200, ROOM_CHECKS_MAX = KUBE_ROOM_MORE_MAX - 1 };

/*
 * Questions
 */

static struct kube_question *room_add(
	struct kube_questions *list, int subject, const char *name, char *path)
{
	struct kube_question *question = vec_push(list);

	*question =
		(struct kube_question){.path = path, .subject = subject, .name = mem_strdup(name)};
	return question;
}

void kube_room_query(const struct kube_run *run, struct kube_questions *ret)
{
	static const char *const live[] = {
		"fieldSelector", "status.phase!=Succeeded,status.phase!=Failed", NULL};
	struct kube_question *question;

	if (run->queue)
		return;
	question = room_add(ret, ROOM_PODS, "", mem_strdup("/api/v1/pods"));
	question->is_list = true;
	question->query = live;
}

static bool room_is_queue(const struct kube_question *question)
{
	return strstr(question->path, "/localqueues/") != NULL;
}

/* Names of another object's spec stand in a path: any that is none of Kubernetes' is left out. */
static void room_add_named(
	struct kube_questions *list, int subject, const char *kind, const char *name)
{
	if (str_empty(name) || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.")] != '\0')
		return;
	room_add(list, subject, name, mem_printf(ROOM_KUEUE "/%s/%s", kind, name));
}

void kube_room_query_more(const struct kube_question *answered, const struct kube_reply *reply,
	struct kube_questions *ret)
{
	const struct json *spec = json_get(reply->object, "spec");
	int n = 0;

	if (reply->status != 200)
		return;
	if (room_is_queue(answered))
		room_add_named(ret, ROOM_CLUSTER_QUEUE, "clusterqueues",
			json_get_str(spec, "clusterQueue"));
	if (answered->subject != ROOM_CLUSTER_QUEUE)
		return;
	for (const struct json *m = kube_first(spec, "admissionChecks");
		m && n < ROOM_CHECKS_MAX / 2; m = json_next(m), n++)
		room_add_named(ret, ROOM_ADMISSION_CHECK, "admissionchecks", json_str(m));
	for (const struct json *m = kube_first(spec, "admissionChecksStrategy.admissionChecks");
		m && n < ROOM_CHECKS_MAX; m = json_next(m), n++)
		room_add_named(
			ret, ROOM_ADMISSION_CHECK, "admissionchecks", json_get_str(m, "name"));
}

/*
 * The meaning of the replies
 */

struct room_facts {
	const struct json *queue, *cluster_queue, *nodes, *pods; /* NULL: not known */
	bool is_federated;
	struct kube_demand all; /* of all pods */
};

static void room_read(const struct kube_questions *questions, const struct kube_reply *replies,
	struct room_facts *ret)
{
	for (size_t i = 0; i < questions->n; i++) {
		const struct kube_question *question = &questions->v[i];
		const struct json *object = replies[i].object;

		if (replies[i].status != 200)
			continue;
		if (room_is_queue(question))
			ret->queue = object;
		else if (question->subject == ROOM_CLUSTER_QUEUE)
			ret->cluster_queue = object;
		else if (question->subject == ROOM_PODS)
			ret->pods = object;
		else if (str_eq(question->path, "/api/v1/nodes"))
			ret->nodes = object;
		else if (question->subject == ROOM_ADMISSION_CHECK)
			ret->is_federated |=
				str_eq(kube_str_at(object, "spec.controllerName"), ROOM_MULTIKUEUE);
	}
}

/*
 * A queue of Kueue
 */

/* Of a ClusterQueue, over its flavors: the most of a resource that one has, and that is left. */
struct room_quota {
	int64_t most, free;
	bool is_limited; /* it says anything about the resource */
};

static int64_t room_reserved(
	const struct json *cluster_queue, const char *flavor, const char *resource)
{
	const struct json *of_flavor =
		kube_named(cluster_queue, "status.flavorsReservation", flavor);
	const struct json *row = kube_named(of_flavor, "resources", resource);

	return row ? kube_quantity_of(json_get(row, "total")) / 1000 : 0;
}

static void room_read_quota(
	const struct json *cluster_queue, const char *resource, struct room_quota *ret)
{
	*ret = (struct room_quota){0};
	for (const struct json *group = kube_first(cluster_queue, "spec.resourceGroups"); group;
		group = json_next(group))
		for (const struct json *flavor = kube_first(group, "flavors"); flavor;
			flavor = json_next(flavor)) {
			const char *name = json_get_str(flavor, "name");
			const struct json *row = kube_named(flavor, "resources", resource);
			if (!row || !name)
				continue;
			int64_t has = kube_quantity_of(json_get(row, "nominalQuota")) / 1000;
			int64_t left = has - room_reserved(cluster_queue, name, resource);
			ret->is_limited = true;
			ret->most = has > ret->most ? has : ret->most;
			ret->free = left > ret->free ? left : ret->free;
		}
}

static int room_set(struct kube_room *ret, bool is_now, char *take)
{
	ret->is_now = is_now;
	ret->text = take;
	return 0;
}

static int room_by_quota(const struct kube_run *run, const struct room_facts *facts,
	struct kube_room *ret, struct err *err)
{
	int64_t want = facts->all.gpus;
	bool may_borrow = !str_empty(kube_str_at(facts->cluster_queue, "spec.cohort"));
	struct room_quota quota;

	room_read_quota(facts->cluster_queue, facts->all.resource, &quota);
	if (want == 0 || !quota.is_limited)
		return room_set(ret, true, mem_printf("queue %s: nothing ahead", run->queue));
	if (quota.free >= want)
		return room_set(ret, true,
			mem_printf("queue %s: %lld GPU%s free", run->queue, (long long)quota.free,
				quota.free == 1 ? "" : "s"));
	if (may_borrow)
		return room_set(ret, false,
			mem_printf("queue %s full, but for what it may borrow", run->queue));
	if (quota.most >= want)
		return room_set(ret, false, mem_printf("queue %s full", run->queue));
	err_set(err, E_SCHED_QUOTA, "queue %s never has %lld GPUs: its quota is %lld", run->queue,
		(long long)want, (long long)quota.most);
	return run->n_roles ? err_hint(err, "dlrun targets --gpus")
			    : err_hint(err, "dlrun submit -g %lld …",
				      (long long)(quota.most / run->nodes));
}

static int room_by_queue(const struct kube_run *run, const struct room_facts *facts,
	struct kube_room *ret, struct err *err)
{
	const struct json *active = kube_condition(facts->queue, "Active");
	const char *why = json_get_str(active, "message");
	int64_t ahead = json_get_int(kube_at(facts->queue, "status"), "pendingWorkloads", 0);

	if (!facts->queue)
		return room_set(
			ret, false, mem_printf("what waits in queue %s is not known", run->queue));
	/* Other clusters get the Job, but not the gate that a run with several targets has. */
	if (facts->is_federated) {
		err_set(err, E_TARGET_UNSUPPORTED,
			"queue %s chooses a cluster itself (MultiKueue): "
			"a run with several targets would not begin there",
			run->queue);
		return err_hint(err, "dlrun submit -t kube --queue %s …", run->queue);
	}
	if (active && str_eq(json_get_str(active, "status"), "False")) {
		AUTO_FREE char *shown = why ? kube_words(why, strlen(why), ROOM_WORDS_MAX) : NULL;
		return room_set(ret, false,
			mem_printf("queue %s admits nothing now%s%s", run->queue, shown ? ": " : "",
				shown ? shown : ""));
	}
	if (ahead > 0)
		return room_set(ret, false,
			mem_printf("queue %s: %lld ahead", run->queue, (long long)ahead));
	return room_by_quota(run, facts, ret, err);
}

/*
 * Nodes
 */

struct room_list VEC_OF(const struct json *);

static struct kube_items room_items(const struct json *list, struct room_list *items)
{
	for (const struct json *m = kube_first(list, "items"); m; m = json_next(m))
		*vec_push(items) = m;
	return (struct kube_items){items->v, items->n, list != NULL};
}

/* "NVIDIA-A100-SXM4-80GB" without the vendor. */
static const char *room_model(const char *model)
{
	static const char vendor[] = "NVIDIA-";

	return str_starts(model, vendor) ? model + strlen(vendor) : model;
}

/* The caller frees. */
static char *room_text_now(const struct kube_free *left, const struct kube_demand *want)
{
	long long nodes = left->nodes, gpus = left->gpus;

	if (!want->gpus)
		return mem_printf("%lld node%s", nodes, nodes == 1 ? "" : "s");
	if (*left->model)
		return mem_printf("%lld × %s free", gpus, room_model(left->model));
	return mem_printf("%lld GPU%s free", gpus, gpus == 1 ? "" : "s");
}

static char *room_text_later(const struct kube_free *left, const struct kube_demand *want)
{
	const char *many = left->nodes == 1 ? "" : "s";
	long long nodes = left->nodes, gpus = left->gpus;

	if (!want->gpus)
		return mem_printf("%lld node%s, all full", nodes, many);
	if (gpus == 0)
		return mem_printf("%lld node%s, none free", nodes, many);
	return mem_printf(
		"%lld node%s, %lld GPU%s free in all", nodes, many, gpus, gpus == 1 ? "" : "s");
}

/* Pods of one role, or of a run without roles, as they would be beside nothing else. */
struct room_part {
	int64_t nodes;
	struct kube_demand want; /* of one pod */
	struct kube_free left;
	struct strv names; /* of nodes that could run one */
};

static bool room_is_small(const struct room_part *part)
{
	return !part->want.gpus && !part->want.cpu_milli && !part->want.memory;
}

static bool room_has_part(const struct room_part *part)
{
	return part->left.known ? part->left.pods >= part->nodes : room_is_small(part);
}

static int room_by_free(const struct room_part *part, struct kube_room *ret)
{
	bool is_now = room_has_part(part);

	/* Most users may not list nodes; a run that asks for nothing special fits somewhere. */
	if (!part->left.known)
		return room_set(ret, is_now,
			mem_strdup(is_now ? "it answers" : "what is free there is not known"));
	return room_set(ret, is_now,
		is_now ? room_text_now(&part->left, &part->want)
		       : room_text_later(&part->left, &part->want));
}

/* The first role that has no room decides, else the one that wants most GPUs. */
static int room_by_nodes(const struct kube_run *run, const struct kube_objects *objects,
	const struct room_facts *facts, struct kube_room *ret)
{
	struct room_list nodes = {0}, pods = {0};
	struct kube_facts cluster = {.nodes = room_items(facts->nodes, &nodes),
		.node_pods = room_items(facts->pods, &pods)};
	struct room_part part = {0}, chosen = {0};
	const struct json *spec;

	for (size_t i = 0; (spec = kube_objects_pods(run, objects, i, &part.nodes)); i++) {
		bool is_full = i > 0 && !room_has_part(&chosen);

		kube_demand_of(spec, &part.want);
		kube_free_of(&cluster, spec, &part.left, &part.names);
		bool is_chosen =
			i == 0 ||
			(!is_full && (!room_has_part(&part) || part.want.gpus > chosen.want.gpus));
		strv_done(is_chosen ? &chosen.names : &part.names);
		if (is_chosen)
			chosen = part;
		part.names = (struct strv){0};
	}
	vec_done(&nodes);
	vec_done(&pods);
	ret->nodes = chosen.names;
	return room_by_free(&chosen, ret);
}

int kube_room_evaluate(const struct kube_run *run, const struct kube_objects *objects,
	const struct kube_questions *questions, const struct kube_reply *replies,
	struct kube_room *ret, struct err *err)
{
	struct room_facts facts = {0};
	struct kube_demand want;
	const struct json *spec;
	int64_t pods;

	for (size_t i = 0; (spec = kube_objects_pods(run, objects, i, &pods)); i++) {
		kube_demand_of(spec, &want);
		kube_demand_add(&facts.all, &want, pods);
	}
	room_read(questions, replies, &facts);
	return run->queue ? room_by_queue(run, &facts, ret, err)
			  : room_by_nodes(run, objects, &facts, ret);
}

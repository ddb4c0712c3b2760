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
	AUTO_FREE char *format = mem_printf("%s/%s/", ROOM_KUEUE, kind);

	if (str_empty(name) || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.")] != '\0')
		return;
	room_add(list, subject, name, mem_printf("%s%s", format, name));
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
	struct kube_demand want; /* of one pod */
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
	int64_t want = facts->want.gpus * run->nodes;
	bool may_borrow = !str_empty(kube_str_at(facts->cluster_queue, "spec.cohort"));
	struct room_quota quota;

	room_read_quota(facts->cluster_queue, facts->want.resource, &quota);
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
	return err_hint(err, "dlrun submit -g %lld …", (long long)(quota.most / run->nodes));
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

static int room_by_free(const struct kube_run *run, const struct kube_free *left,
	const struct kube_demand *want, struct kube_room *ret)
{
	bool is_small = !want->gpus && !want->cpu_milli && !want->memory;

	/* Most users may not list nodes; a run that asks for nothing special fits somewhere. */
	if (!left->known)
		return room_set(ret, is_small,
			mem_strdup(is_small ? "it answers" : "what is free there is not known"));
	if (left->pods >= run->nodes)
		return room_set(ret, true, room_text_now(left, want));
	return room_set(ret, false, room_text_later(left, want));
}

static int room_by_nodes(const struct kube_run *run, const struct kube_objects *objects,
	const struct room_facts *facts, struct kube_room *ret)
{
	struct kube_facts cluster = {.job = objects->job};
	AUTO_JSON struct json *job = NULL;
	struct room_list nodes = {0}, pods = {0};
	struct kube_free left;

	/* The template of a JobSet's Job has the same form. */
	if (objects->is_jobset) {
		const struct json *template = kube_kind_template(KUBE_KIND_JOBSET, objects->job);
		job = template ? json_clone(template) : json_object();
		cluster.job = job;
	}
	cluster.nodes = room_items(facts->nodes, &nodes);
	cluster.node_pods = room_items(facts->pods, &pods);
	kube_free_of(&cluster, &left);
	vec_done(&nodes);
	vec_done(&pods);
	return room_by_free(run, &left, &facts->want, ret);
}

int kube_room_evaluate(const struct kube_run *run, const struct kube_objects *objects,
	const struct kube_questions *questions, const struct kube_reply *replies,
	struct kube_room *ret, struct err *err)
{
	const enum kube_kind kind = objects->is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB;
	struct room_facts facts = {0};

	kube_demand_of(
		kube_at(kube_kind_template(kind, objects->job), "spec.template.spec"), &facts.want);
	room_read(questions, replies, &facts);
	return run->queue ? room_by_queue(run, &facts, ret, err)
			  : room_by_nodes(run, objects, &facts, ret);
}

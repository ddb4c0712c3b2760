/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/observed.h"
#include "core/record/params.h"
#include "core/record/results.h"
#include "kube/api/watch.h"
#include "kube/status/object.h"
#include "kube/status/status.h"
#include "targets/kube/kube_facts.h"
#include "targets/kube/kube_growth.h"
#include "targets/kube/kube_reconcile.h"
#include "targets/kube/kube_study_pods.h"

/*
 * Facts about a run
 */

static const struct json *jobset_of(
	struct json *const lists[static KUBE_FACTS_KINDS], const struct kube_handle *handle)
{
	return handle->kind == KUBE_KIND_JOBSET ? kube_item(lists[KUBE_FACTS_JOBSETS], handle->name)
						: NULL;
}

const struct json *kube_facts_made(
	struct json *const lists[static KUBE_FACTS_KINDS], const struct kube_handle *handle)
{
	const struct json *jobset = jobset_of(lists, handle);

	return jobset ? jobset : kube_item(lists[KUBE_FACTS_JOB], handle->job);
}

/* The Job of a pod, or the one that the Jobs of all roles count as; or NULL. */
static const char *kube_state_job_of(const struct json *pod)
{
	static const char *const labels[] = {
		KUBE_LABEL_GANG, "batch.kubernetes.io/job-name", "job-name"};
	const char *name = NULL;

	for (size_t i = 0; !name && i < ARRAY_LEN(labels); i++)
		name = kube_label(pod, labels[i]);
	return name;
}

/* Of all pods of a Job, "JOB/INDEX" of those of a member. The caller frees. */
static char *kube_state_key(const char *job, const char *index)
{
	return mem_printf("%s%s%s", job, index ? "/" : "", index ? index : "");
}

static void kube_state_put(struct kube_pod_index *index, char *take_key, const struct json *pod)
{
	AUTO_FREE char *key = take_key;
	struct kube_objects_list *list = map_get(&index->map, key);

	if (!list) {
		list = mem_alloc(1, sizeof(*list));
		*list = (struct kube_objects_list){0};
		map_put(&index->map, key, list);
	}
	*vec_push(list) = pod;
}

void kube_pod_index_make(const struct json *pods, struct kube_pod_index *ret)
{
	*ret = (struct kube_pod_index){0};
	for (const struct json *pod = kube_first(pods, "items"); pod; pod = json_next(pod)) {
		const char *job = kube_state_job_of(pod), *number = kube_completion_index(pod);
		if (job)
			kube_state_put(ret, kube_state_key(job, NULL), pod);
		if (job && number && kube_label(pod, KUBE_LABEL_STUDY))
			kube_state_put(ret, kube_state_key(job, number), pod);
	}
}

void kube_pod_index_done(struct kube_pod_index *index)
{
	size_t pos = 0;
	const char *key;
	void *value;

	while (map_each(&index->map, &pos, &key, &value)) {
		struct kube_objects_list *list = value;
		vec_done(list);
		free(list);
	}
	map_done(&index->map);
}

/* Pods of this Job only, not those of an earlier attempt of the same run; of a member its own. They
 * belong to the index. */
static const struct kube_objects_list *pick_pods(
	const struct kube_pod_index *index, const struct kube_handle *handle)
{
	static const struct kube_objects_list none = {0};
	AUTO_FREE char *number = handle->is_member ? mem_printf("%d", handle->index) : NULL;
	AUTO_FREE char *key = kube_state_key(handle->job, number);
	const struct kube_objects_list *pods = map_get(&index->map, key);

	return pods ? pods : &none;
}

/* Pods of a Job, and what a JobSet makes, have its name and more behind a dash; those of a member
 * its index, too. */
static void pick_events(
	const struct json *list, const struct kube_handle *handle, struct kube_objects_list *ret)
{
	AUTO_FREE char *made = handle->is_member ? mem_printf("%s-%d-", handle->name, handle->index)
						 : mem_printf("%s-", handle->name);

	for (const struct json *event = kube_first(list, "items"); event;
		event = json_next(event)) {
		const struct json *about = json_get(event, "involvedObject");
		const char *name =
			json_get_str(about ? about : json_get(event, "regarding"), "name");
		if (name && (str_eq(name, handle->name) || str_starts(name, made)))
			*vec_push(ret) = event;
	}
}

static const struct json *workload_of(const struct json *list, const struct json *made)
{
	const char *uid = kube_str_at(made, "metadata.uid");

	for (const struct json *item = kube_first(list, "items"); uid && item;
		item = json_next(item)) {
		const struct json *owner = kube_first(item, "metadata.ownerReferences");
		for (; owner; owner = json_next(owner))
			if (str_eq(json_get_str(owner, "uid"), uid))
				return item;
	}
	return NULL;
}

static struct kube_items kube_state_items_of(const struct kube_objects_list *list, bool known)
{
	return (struct kube_items){list->v, list->n, known};
}

/* Only for a pod without a node it counts what the pods want. */
static bool kube_state_waits_for_node(const struct kube_objects_list *pods)
{
	vec_foreach (const struct json *, pod, pods)
		if (str_empty(kube_str_at(*pod, "spec.nodeName")))
			return true;
	return false;
}

void kube_facts_of(struct json *const lists[static KUBE_FACTS_KINDS],
	const struct kube_pod_index *index, const struct kube_handle *handle,
	struct kube_facts_store *ret)
{
	const struct json *job = kube_item(lists[KUBE_FACTS_JOB], handle->job);
	const struct kube_objects_list *pods = pick_pods(index, handle);

	*ret = (struct kube_facts_store){0};
	pick_events(lists[KUBE_FACTS_EVENTS], handle, &ret->events);
	if (handle->is_member)
		ret->job = kube_member_job(job, handle->index, kube_state_waits_for_node(pods));
	const struct json *list = lists[KUBE_FACTS_NODES];
	for (const struct json *item = kube_first(list, "items"); item; item = json_next(item))
		*vec_push(&ret->nodes) = item;
	ret->facts = (struct kube_facts){
		.run_id = handle->run_id,
		.job_name = handle->name,
		.is_jobset = handle->kind == KUBE_KIND_JOBSET,
		.jobset = jobset_of(lists, handle),
		.kube_namespace = handle->kube_namespace,
		.job = handle->is_member ? ret->job : job,
		.is_member = handle->is_member,
		.pods = kube_state_items_of(pods, lists[KUBE_FACTS_PODS] != NULL),
		.events = kube_state_items_of(&ret->events, lists[KUBE_FACTS_EVENTS] != NULL),
		.nodes = kube_state_items_of(&ret->nodes, lists[KUBE_FACTS_NODES] != NULL),
		.workload =
			workload_of(lists[KUBE_FACTS_WORKLOADS], kube_facts_made(lists, handle)),
	};
}

void kube_facts_store_done(struct kube_facts_store *store)
{
	vec_done(&store->events);
	vec_done(&store->nodes);
	json_free(store->job);
}

/* Whether it waits for what Kueue or the scheduler says of it. */
static bool kube_facts_is_suspended(const struct json *job)
{
	return json_get_bool(json_get(job, "spec"), "suspend", false);
}

static bool kube_facts_is_unscheduled(
	const struct kube_pod_index *index, const struct kube_handle *handle)
{
	const struct kube_objects_list *pods = pick_pods(index, handle);

	vec_foreach (const struct json *, pod, pods)
		if (kube_condition_is(*pod, "PodScheduled", "False"))
			return true;
	return false;
}

bool kube_facts_job_needs_pods(const struct json *jobs, const struct kube_handle *handle)
{
	const struct json *job = kube_item(jobs, handle->job);
	const struct json *status = json_get(job, "status");

	/* The Job of a study says only whether a member has ended. */
	if (job && handle->is_member)
		return true;
	if (!job || kube_condition_is(job, "Complete", "True"))
		return false;
	return json_get_int(status, "ready", 0) == 0 || json_get_int(status, "failed", 0) > 0;
}

bool kube_facts_needs_jobset(const struct json *jobs, const struct kube_handle *handle)
{
	const struct json *job = kube_item(jobs, handle->job);

	if (handle->kind != KUBE_KIND_JOBSET)
		return false;
	return !job || kube_condition_is(job, "Failed", "True") ||
	       kube_condition_is(job, "FailureTarget", "True") || kube_facts_is_suspended(job);
}

/*
 * Watches
 */

enum { QUERIES_BEFORE = 3, EVENTS_MS = 5000, FRESH_MS = 10 * 1000, OBJECTS_MAX = 20000 };

/* State of one watch. */
struct side {
	struct kube_watch *watch;
	struct map objects; /* uid → struct json */
	bool synced, troubled, over;
	int64_t heard_ms; /* clock_ms() when it was known to be current */
};

struct kube_watcher {
	char *key; /* namespace and run */
	int queries;
	struct side jobs, pods, jobsets; /* jobsets: where it is one */
	int64_t events_ms;               /* clock_ms() of the last look; 0: none yet */
};

/*
 * Watches
 */

static void on_put(void *ctx, const struct json *object)
{
	struct side *side = ctx;
	const char *uid = kube_str_at(object, "metadata.uid");

	side->heard_ms = clock_ms();
	if (uid)
		json_free(map_put(&side->objects, uid, json_clone(object)));
}

/* A map only grows: what is gone is there as null. */
static void kube_state_on_gone(void *ctx, const struct json *object)
{
	struct side *side = ctx;
	const char *uid = kube_str_at(object, "metadata.uid");

	side->heard_ms = clock_ms();
	if (uid && map_get(&side->objects, uid))
		json_free(map_put(&side->objects, uid, json_null()));
}

static void kube_state_on_synced(void *ctx)
{
	struct side *side = ctx;

	side->heard_ms = clock_ms();
	side->synced = true;
}

static void on_trouble(void *ctx, const struct err *error, int64_t since_ms UNUSED)
{
	((struct side *)ctx)->troubled = error != NULL;
}

static int kube_state_on_failed(void *ctx, struct err *error UNUSED, struct err *err UNUSED)
{
	((struct side *)ctx)->over = true;
	return 0;
}

static void kube_state_start(
	struct side *side, struct kube_client *client, const char *path, const char *selector)
{
	const char *const query[] = {"labelSelector", selector, NULL};
	const struct kube_watch_request request = {
		.path = path,
		.query = query,
		.max_objects = OBJECTS_MAX,
		.events = {.put = on_put,
			.gone = kube_state_on_gone,
			.synced = kube_state_on_synced,
			.trouble = on_trouble,
			.failed = kube_state_on_failed,
			.ctx = side},
	};

	side->watch = kube_watch_start(client, &request);
}

static void side_done(struct side *side)
{
	size_t pos = 0;
	const char *key;
	void *value;

	kube_watch_free(side->watch);
	while (map_each(&side->objects, &pos, &key, &value))
		json_free(value);
	map_done(&side->objects);
	*side = (struct side){0};
}

static bool is_live(const void *value)
{
	return json_kind(value) == JSON_OBJECT;
}

static struct json *kube_state_list_of(const struct side *side)
{
	struct json *list = json_object(), *items = json_array();
	size_t pos = 0;
	const char *key;
	void *value;

	while (map_each(&side->objects, &pos, &key, &value))
		if (is_live(value))
			json_add(items, json_clone(value));
	json_set(list, "items", items);
	return list;
}

/* Whether it tells what a list tells that was just asked for. */
static bool agrees(const struct side *side, const struct json *list)
{
	const struct json *items = json_get(list, "items");
	size_t pos = 0, n = 0;
	const char *key;
	void *value;

	while (map_each(&side->objects, &pos, &key, &value))
		n += is_live(value);
	if (n != json_count(items))
		return false;
	for (const struct json *item = json_first(items); item; item = json_next(item)) {
		const char *uid = kube_str_at(item, "metadata.uid");
		const struct json *known = uid ? map_get(&side->objects, uid) : NULL;
		if (!is_live(known) || !str_eq(kube_str_at(known, "metadata.resourceVersion"),
					       kube_str_at(item, "metadata.resourceVersion")))
			return false;
	}
	return true;
}

/* A watch that has fallen behind may be dead without anybody noticing: drop it. */
static void kube_state_compare(struct side *side, const struct json *list, int64_t now_ms)
{
	if (!side->synced || !list)
		return;
	if (agrees(side, list))
		side->heard_ms = now_ms;
	else
		side_done(side);
}

/*
 * The watcher
 */

static struct kube_watcher *watcher_find(
	struct kube_watchers *watchers, const struct kube_handle *handle)
{
	AUTO_FREE char *key = mem_printf("%s/%s", handle->kube_namespace, handle->run_id);

	vec_foreach (struct kube_watcher *, watcher, watchers)
		if (str_eq((*watcher)->key, key))
			return *watcher;
	struct kube_watcher *watcher = mem_alloc(1, sizeof(*watcher));
	*watcher = (struct kube_watcher){.key = TAKE(key)};
	*vec_push(watchers) = watcher;
	return watcher;
}

struct kube_watcher *kube_watcher_of(struct kube_watchers *watchers, struct kube_client *client,
	const struct kube_handle *handle)
{
	struct kube_watcher *watcher = watcher_find(watchers, handle);

	if (++watcher->queries < QUERIES_BEFORE)
		return NULL;
	const char *space = handle->kube_namespace;
	AUTO_FREE char *jobs = kube_kind_collection(KUBE_KIND_JOB, space);
	AUTO_FREE char *jobsets = kube_kind_collection(KUBE_KIND_JOBSET, space);
	AUTO_FREE char *pods = kube_path("/api/v1/namespaces/%s/pods", space);
	AUTO_FREE char *of_jobs = kube_handle_jobs(handle), *of_pods = kube_handle_pods(handle);

	if (!watcher->jobs.watch)
		kube_state_start(&watcher->jobs, client, jobs, of_jobs);
	if (!watcher->pods.watch)
		kube_state_start(&watcher->pods, client, pods, of_pods);
	if (handle->kind == KUBE_KIND_JOBSET && !watcher->jobsets.watch)
		kube_state_start(&watcher->jobsets, client, jobsets, of_jobs);
	return watcher;
}

static bool kube_state_is_current(const struct side *side, int64_t now_ms)
{
	return side->synced && !side->troubled && !side->over && now_ms - side->heard_ms < FRESH_MS;
}

bool kube_watcher_lists(const struct kube_watcher *watcher, const struct kube_handle *handle,
	int64_t now_ms, struct json *ret_lists[static KUBE_FACTS_KINDS])
{
	const struct side *sides[KUBE_FACTS_KINDS] = {[KUBE_FACTS_JOB] = &watcher->jobs,
		[KUBE_FACTS_PODS] = &watcher->pods,
		[KUBE_FACTS_JOBSETS] = watcher->jobsets.watch ? &watcher->jobsets : NULL};
	struct json *lists[KUBE_FACTS_KINDS] = {0};
	bool is_known;

	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		if (sides[i] && !kube_state_is_current(sides[i], now_ms))
			return false;
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		lists[i] = sides[i] ? kube_state_list_of(sides[i]) : NULL;
	kube_join_roles(lists[KUBE_FACTS_JOB]);
	is_known = kube_facts_made(lists, handle);
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++) {
		if (is_known && lists[i])
			ret_lists[i] = lists[i];
		else
			json_free(lists[i]);
	}
	return is_known;
}

void kube_watcher_compare(
	struct kube_watcher *watcher, struct json *const lists[static KUBE_FACTS_KINDS])
{
	int64_t now_ms = clock_ms();

	kube_state_compare(&watcher->jobs, lists[KUBE_FACTS_JOB], now_ms);
	kube_state_compare(&watcher->pods, lists[KUBE_FACTS_PODS], now_ms);
	kube_state_compare(&watcher->jobsets, lists[KUBE_FACTS_JOBSETS], now_ms);
}

/* Whether events are worth another look, at most every few seconds. */
static bool kube_watcher_wants_events(struct kube_watcher *watcher)
{
	int64_t now_ms = clock_ms();

	if (watcher->events_ms && now_ms - watcher->events_ms < EVENTS_MS)
		return false;
	watcher->events_ms = now_ms;
	return true;
}

void kube_watchers_done(struct kube_watchers *watchers)
{
	vec_foreach (struct kube_watcher *, watcher, watchers) {
		side_done(&(*watcher)->jobs);
		side_done(&(*watcher)->pods);
		side_done(&(*watcher)->jobsets);
		free((*watcher)->key);
		free(*watcher);
	}
	vec_done(watchers);
}

/*
 * The state of attempts: asked for together with all that are asked for in the same turn of the
 * loop. One alone is asked for with its pods and events, which tell why; several by one list of
 * Jobs, and by one of pods where some of them have failed or not begun. JobSets are asked for where
 * one may begin again. Where Jobs may not be listed each is got by itself; without pods the Jobs
 * tell what they can.
 */

enum {
	JOBS_MAX = 20000,
	PODS_MAX = 50000,
	EVENTS_LIST_MAX = 5000,
	NODES_MAX = 5000,
	WORKLOADS_MAX = 100,
	NODES_FRESH_MS = 15 * 1000,
	PRICES_FRESH_MS = 5 * 60 * 1000,
	PRICES_MS = 3000, /* that a run's end waits for its price */
	FAILED_REPAIRS_MAX = 3,
	DENIED_MS = 30 * 1000, /* until a list is tried again */
};

/* A request for a single object. */
struct one {
	struct question *question;
	enum kube_facts_kind kind;
	struct kube_call *call;
};

struct question {
	struct target_work work;
	struct kube_batch *batch;
	struct question *next;
	struct target_call *call; /* NULL: given up */
	struct target_status *ret;
	struct kube_handle handle;
	enum kube_arrival arrival; /* of a Job that is not there */
	struct kube_reconcile *repair;
	struct one ones[2]; /* Job, JobSet */
	bool adopts;
	bool was_accepted; /* when the cluster was asked */
};

/* Pods of a study, of which some members are asked about. */
struct study_pods {
	struct kube_batch *batch;
	const struct kube_handle *handle; /* of one of them */
	struct kube_study_pods *pods;
};

/* A request for a list. */
struct list_request {
	struct kube_batch *batch;
	enum kube_facts_kind kind;
	struct kube_call *call;
};

struct kube_batch {
	struct target_kube *kube;
	struct loop_timer *timer;
	struct question *questions;
	size_t n_questions, n_given_up;
	struct list_request requests[KUBE_FACTS_KINDS];
	struct kube_call *growth_call;
	struct json *responses[KUBE_FACTS_KINDS]; /* but for nodes, which the cluster keeps */
	struct json *items[KUBE_FACTS_KINDS];     /* of a response that is put together; or NULL */
	struct err error;
	int n_open;
	bool has_pods;
	bool has_jobsets;
	/* Of several questions pods are listed for each study, and for all other runs. */
	struct VEC_OF(struct study_pods *) studies;
	struct json *pod_items; /* what has come of them */
	struct err pods_error;
	size_t n_pod_lists; /* that are still to come */
	int pods_denied;    /* how often */
	size_t n_repairs;
	const char
		*repaired; /* owner of the last objects that something was repaired of; or NULL */
	struct kube_pod_index pods; /* of the response, once all that was asked for has come */
	bool has_index;
	bool has_more; /* what explains its waiting was asked for */
	bool hides_workloads;
	bool is_answered; /* but for the cost of what has ended, for which was asked: */
	bool has_prices, has_priced_pods;
	/* the cluster's, to be compared with the responses; or NULL */
	struct kube_watcher *watcher;
};

static void kube_state_batch_free(struct kube_batch *batch)
{
	if (batch->kube->batch == batch)
		batch->kube->batch = NULL;
	loop_remove_timer(batch->kube->target.loop, batch->timer);
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++) {
		kube_cancel(batch->requests[i].call);
		json_free(batch->responses[i]);
	}
	kube_cancel(batch->growth_call);
	for (struct question *q = batch->questions, *next; q; q = next) {
		next = q->next;
		kube_reconcile_cancel(q->repair);
		for (size_t i = 0; i < ARRAY_LEN(q->ones); i++)
			kube_cancel(q->ones[i].call);
		free(q);
	}
	vec_foreach (struct study_pods *, study, &batch->studies) {
		kube_study_pods_cancel((*study)->pods);
		free(*study);
	}
	vec_done(&batch->studies);
	json_free(batch->pod_items);
	kube_pod_index_done(&batch->pods);
	err_done(&batch->pods_error);
	err_done(&batch->error);
	free(batch);
}

static void drop_question(struct target_work *work)
{
	struct question *question = (struct question *)work;
	struct kube_batch *batch = question->batch;

	question->call = NULL;
	if (++batch->n_given_up == batch->n_questions && batch->n_open >= 0)
		kube_state_batch_free(batch);
}

/*
 * Responses
 */

/* The pods that were listed; not before all that was asked for has come. */
static const struct kube_pod_index *kube_state_pods(struct kube_batch *batch)
{
	if (!batch->has_index)
		kube_pod_index_make(batch->responses[KUBE_FACTS_PODS], &batch->pods);
	batch->has_index = true;
	return &batch->pods;
}

static enum run_state kube_state_of(enum kube_phase phase)
{
	static const enum run_state states[KUBE_PHASES] = {
		[KUBE_QUEUED] = RUN_QUEUED,
		[KUBE_STARTING] = RUN_STARTING,
		[KUBE_RUNNING] = RUN_RUNNING,
		[KUBE_SUCCEEDED] = RUN_SUCCEEDED,
		[KUBE_FAILED] = RUN_FAILED,
		[KUBE_CANCELLED] = RUN_CANCELLED,
		[KUBE_LOST] = RUN_LOST,
	};

	return states[phase];
}

static struct run_exit kube_state_exit(const struct kube_exit *exit)
{
	return (struct run_exit){.known = exit->known,
		.code = exit->code,
		.signal = exit->signal,
		.origin = exit->origin,
		.reason = exit->reason};
}

/* Exit status of a final state, also where the program has none of its own. */
static struct run_exit exit_of(const struct kube_status *status)
{
	if (status->exit.known)
		return kube_state_exit(&status->exit);
	if (status->phase == KUBE_CANCELLED)
		return (struct run_exit){
			.known = true, .code = 143, .origin = "dlrun", .reason = "Cancelled"};
	return (struct run_exit){.known = true, .code = 125, .origin = "dlrun", .reason = "Lost"};
}

static struct json *kube_state_ranks_json(const struct kube_status *status)
{
	struct json *list = json_array();

	vec_foreach (struct kube_rank, rank, &status->ranks) {
		struct json *item = json_object();
		json_set_int(item, "rank", rank->rank);
		json_set_str(item, "state", kube_phase_name(rank->phase));
		json_set_str(item, "pod", rank->pod);
		json_set_str(item, "host", rank->node);
		json_set_int(item, "attempt", rank->attempt);
		if (status->has_roles && kube_phase_is_final(rank->phase) && rank->exit.known) {
			const struct run_exit exit = kube_state_exit(&rank->exit);
			json_set(item, "exit", run_exit_to_json(&exit));
		}
		json_add(list, item);
	}
	return list;
}

static void kube_status_to_target(const struct kube_status *status, struct target_status *ret)
{
	*ret = (struct target_status){
		.state = kube_state_of(status->phase),
		.started_ms = status->started_ms,
		.ended_ms = status->ended_ms,
		.results_until_ms = status->results_until_ms,
		.results_lost = status->results_lost ? mem_strdup(status->results_lost) : NULL,
		.results_unsent = mem_strdup(status->results_unsent),
		.cancelling = status->cancelling,
		.is_stranded = status->is_stranded,
		.waits_for_code = status->waits_for_code,
		.text = status->sentence ? mem_strdup(status->sentence) : NULL,
		.hint = status->hint ? mem_strdup(status->hint) : NULL,
		.ranks = kube_state_ranks_json(status),
	};
	if (kube_phase_is_final(status->phase))
		ret->exit = exit_of(status);
	if (status->evidence.n == 0)
		return;
	ret->evidence = json_array();
	json_add_strv(ret->evidence, &status->evidence);
}

/* The cluster has no such Job, and was never seen to have it; whether that says it all. */
static bool never_began(const struct question *question, struct target_status *ret)
{
	const struct target_kube *kube = question->batch->kube;
	bool cancelled = kube_is_cancelled(kube, &question->handle);

	if (question->arrival == KUBE_ARRIVED)
		return false;
	*ret = (struct target_status){.state = RUN_PREPARING, .cancelling = cancelled};
	if (question->arrival == KUBE_SUBMITTING)
		return true;
	if (question->arrival == KUBE_ARRIVING) {
		ret->text = mem_strdup("its submit was stopped; the cluster does not have it yet");
		return true;
	}
	if (cancelled)
		attempt_set_end(ret, RUN_CANCELLED, 143, 0, "dlrun", "Cancelled",
			"cancelled before the cluster had the run");
	else
		attempt_set_end(ret, RUN_FAILED, 125, 0, "dlrun", "Interrupted",
			"dlrun was stopped before the cluster had the run");
	ret->ended_ms = clock_wall_ms();
	return true;
}

/* The versions of data that pods have told: of the first rank that has. */
static void kube_state_add_data(const struct kube_status *status, struct json **observed)
{
	for (size_t i = 0; i < status->ranks.n; i++) {
		if (!status->ranks.v[i].versions)
			continue;
		if (!*observed)
			*observed = json_object();
		runtime_reported_data(status->ranks.v[i].versions, *observed);
		return;
	}
}

static void response_question(struct kube_batch *batch, struct question *question)
{
	AUTO_KUBE_STATUS struct kube_status status = {0};
	AUTO_KUBE_GROWTH struct kube_growth growth = {0};
	struct json *lists[KUBE_FACTS_KINDS];
	struct kube_facts_store store;

	memcpy(lists, batch->responses, sizeof(lists));
	if (batch->has_more)
		lists[KUBE_FACTS_NODES] = batch->kube->cluster->nodes;
	kube_facts_of(lists, kube_state_pods(batch), &question->handle, &store);
	store.facts.workload_hidden = batch->hides_workloads;
	if (!store.facts.job && !store.facts.jobset && !store.facts.pods.n &&
		never_began(question, question->ret)) {
		kube_facts_store_done(&store);
		return;
	}
	store.facts.now_ms = clock_wall_ms();
	if (batch->has_more && kube_growth_of(batch->kube->cluster, &store.facts, &growth))
		store.facts.growth = &growth;
	store.facts.was_cancelled = kube_is_cancelled(batch->kube, &question->handle);
	store.facts.is_stopped =
		store.facts.was_cancelled && kube_member_is_stopped(batch->kube, &question->handle);
	kube_status_of(&store.facts, &status);
	kube_status_to_target(&status, question->ret);
	question->ret->observed = kube_observed(batch->kube, &question->handle);
	kube_state_add_data(&status, &question->ret->observed);
	if (kube_phase_is_final(status.phase)) {
		/* Adds what the pods have reported about results. */
		struct json **observed = &question->ret->observed;
		AUTO_FREE char **texts = mem_alloc(status.ranks.n + 1, sizeof(*texts));
		struct json *params = NULL, *results;

		for (size_t i = 0; i < status.ranks.n; i++)
			texts[i] = status.ranks.v[i].reported;
		results = results_reported(texts, status.ranks.n, &params);
		if (results) {
			if (!*observed)
				*observed = json_object();
			params_complete(json_get(*observed, "params"), params);
			json_set(*observed, "params", params);
			json_set(*observed, RESULTS_MEMBER, results);
		}
	}
	kube_facts_store_done(&store);
}

/*
 * Unfinished work of a killed submit or cancel
 */

static void kube_state_finish(struct kube_batch *batch);

/* As long as something of it may be there it has not ended. */
static void kube_state_give_up(struct question *question)
{
	if (question->arrival == KUBE_NEVER_SENT)
		question->arrival = KUBE_ARRIVING;
}

static void on_mended(void *ctx, struct err *error)
{
	struct question *question = ctx;
	struct kube_batch *batch = question->batch;

	question->repair = NULL;
	if (question->adopts)
		kube_annotation_accepted(batch->kube, &question->handle, !err_is_set(error));
	if (err_is_set(error)) {
		log_note("%s", error->message);
		err_clear(error);
		batch->kube->cluster->failed_repairs++;
		kube_state_give_up(question);
	}
	if (--batch->n_repairs == 0)
		kube_state_finish(batch);
}

/* Of a Job that is not there: it never came, or a cancel was stopped when it had removed it. */
static bool is_left_over(const struct question *question)
{
	const struct target_kube *kube = question->batch->kube;
	const struct kube_handle *handle = &question->handle;

	return question->arrival == KUBE_NEVER_SENT ||
	       (question->arrival == KUBE_ARRIVED && kube_is_cancelled(kube, handle) &&
		       !kube_is_adopted(kube, handle));
}

/* A node that did not know yet that the member was cancelled may have begun it. */
static bool kube_state_is_to_stop(const struct question *question, const struct json *job)
{
	struct kube_batch *batch = question->batch;
	const struct kube_handle *handle = &question->handle;

	if (kube_member_has_ended(job, handle->index))
		return false;
	if (!kube_member_is_stopped(batch->kube, handle))
		return true;
	const struct kube_objects_list *pods = pick_pods(kube_state_pods(batch), handle);
	vec_foreach (const struct json *, pod, pods)
		if (!kube_deleted_ms(*pod) && kube_at(kube_pod_program(*pod), "state.running"))
			return true;
	return false;
}

static unsigned what_to_reconcile(struct question *question, const struct json *made)
{
	const struct target_kube *kube = question->batch->kube;
	const struct kube_handle *handle = &question->handle;

	if (!kube_is_own(kube, handle))
		return 0;
	if (!made) {
		/* The response does not include changes made after the request was sent. */
		enum kube_arrival arrival = kube_arrival(question->batch->kube, &question->handle);

		question->arrival = arrival == KUBE_ARRIVED && !question->was_accepted
					    ? KUBE_SUBMITTING
					    : arrival;
		return is_left_over(question) ? KUBE_RECONCILE_PARTS : 0;
	}
	if (kube_str_at(made, "metadata.deletionTimestamp"))
		return 0;
	if (kube_is_cancelled(kube, handle) && handle->is_member)
		return kube_state_is_to_stop(question, made) ? KUBE_RECONCILE_MEMBER : 0;
	if (kube_is_cancelled(kube, handle))
		return KUBE_RECONCILE_JOB | KUBE_RECONCILE_PARTS;
	question->adopts = !kube_is_adopted(kube, handle);
	return question->adopts ? KUBE_RECONCILE_ADOPT : 0;
}

/* Members of a study have the same objects. */
static bool kube_state_is_repaired(struct kube_batch *batch, const struct kube_handle *handle)
{
	bool is_done = handle->is_member && str_eq(batch->repaired, handle->owner);

	batch->repaired = handle->owner;
	return is_done;
}

static void reconcile(struct question *question)
{
	struct kube_batch *batch = question->batch;
	const struct json *made = kube_facts_made(batch->responses, &question->handle);
	const struct kube_reconcile_request request = {
		.handle = &question->handle,
		.what = what_to_reconcile(question, made),
		.in_foreground = true,
		.made = made,
		.deadline_ms = question->call->deadline_ms,
		.done = on_mended,
		.ctx = question,
	};

	if (!request.what || (request.what != KUBE_RECONCILE_MEMBER &&
				     kube_state_is_repaired(batch, &question->handle)))
		return;
	if (batch->kube->cluster->failed_repairs >= FAILED_REPAIRS_MAX) {
		kube_state_give_up(question);
		return;
	}
	batch->n_repairs++;
	question->repair = kube_reconcile_start(batch->kube, &request);
}

static void reconcile_all(struct kube_batch *batch)
{
	bool is_known = !err_is_set(&batch->error);

	for (struct question *q = batch->questions; is_known && q; q = q->next)
		if (q->call)
			reconcile(q);
	if (batch->n_repairs == 0)
		kube_state_finish(batch);
}

/*
 * The end
 */

/* When its program began is known of its pods only. */
static bool kube_state_wants_cost(const struct question *q)
{
	return q->call && run_state_is_final(q->ret->state) && q->ret->ended_ms &&
	       !json_get(q->ret->observed, OBSERVED_COST);
}

/* By the prices of now: a record of a run that has ended is not asked about again, unless its
 * results wait. */
static void kube_state_add_cost(struct kube_batch *batch, struct question *question)
{
	AUTO_KUBE_STATUS struct kube_status status = {0};
	struct kube_facts_store store;
	struct json **observed = &question->ret->observed;

	if (!kube_growth_is_fresh(batch->kube->cluster, PRICES_FRESH_MS))
		return;
	kube_facts_of(batch->responses, kube_state_pods(batch), &question->handle, &store);
	store.facts.now_ms = clock_wall_ms();
	store.facts.was_cancelled = kube_is_cancelled(batch->kube, &question->handle);
	kube_status_of(&store.facts, &status);
	struct json *cost = kube_growth_cost(batch->kube->cluster, &store.facts, &status);
	kube_facts_store_done(&store);
	if (!*observed)
		*observed = json_object();
	json_set(*observed, OBSERVED_COST, cost ? cost : json_null());
	if (question->ret->results_until_ms)
		kube_observed_keep(batch->kube, &question->handle, *observed);
}

static void kube_state_end(struct kube_batch *batch)
{
	/* A callback may give up questions that are reported later: keep the batch until all
	 * were. */
	batch->n_open = -1;
	for (struct question *q = batch->questions; q; q = q->next) {
		AUTO_ERR struct err error = {0};

		if (!q->call)
			continue;
		if (err_is_set(&batch->error))
			err_copy(&error, &batch->error);
		else if (kube_state_wants_cost(q))
			kube_state_add_cost(batch, q);
		target_call_end_as(q->call, &error);
	}
	kube_state_batch_free(batch);
}

static bool kube_state_query_cost(struct kube_batch *batch);

static void kube_state_finish(struct kube_batch *batch)
{
	for (struct question *q = batch->questions; q; q = q->next)
		if (q->call && !err_is_set(&batch->error))
			response_question(batch, q);
	batch->is_answered = true;
	if (err_is_set(&batch->error) || !kube_state_query_cost(batch))
		kube_state_end(batch);
}

/*
 * Requests
 */

static void kube_state_query(struct kube_batch *batch, enum kube_facts_kind kind);

static bool question_needs_pods(const struct kube_batch *batch, const struct question *question)
{
	return question->call &&
	       kube_facts_job_needs_pods(batch->responses[KUBE_FACTS_JOB], &question->handle);
}

static bool needs_pods(const struct kube_batch *batch)
{
	for (const struct question *q = batch->questions; q; q = q->next)
		if (question_needs_pods(batch, q))
			return true;
	return false;
}

/* JobSets that do not own their Secret yet are needed themselves to become its owner. */
static bool needs_jobsets(const struct kube_batch *batch)
{
	for (const struct question *q = batch->questions; q; q = q->next) {
		if (!q->call || q->handle.kind != KUBE_KIND_JOBSET)
			continue;
		if (kube_facts_needs_jobset(batch->responses[KUBE_FACTS_JOB], &q->handle) ||
			(kube_is_own(batch->kube, &q->handle) &&
				!kube_is_adopted(batch->kube, &q->handle)))
			return true;
	}
	return false;
}

static bool is_denied(const struct kube_batch *batch, enum kube_facts_kind kind)
{
	int64_t at_ms = batch->kube->cluster->denied_ms[kind];

	return at_ms && clock_ms() < at_ms + DENIED_MS;
}

static bool query_more(struct kube_batch *batch);
static void kube_state_query_pods(struct kube_batch *batch);
static bool query_each(struct kube_batch *batch, enum kube_facts_kind kind);

/* All that was asked for has come, or the next is asked for. */
static void kube_state_go_on(struct kube_batch *batch)
{
	if (batch->is_answered) {
		err_clear(&batch->error); /* the state is known without what was asked for since */
		if (batch->n_open == 0 && !kube_state_query_cost(batch))
			kube_state_end(batch);
		return;
	}
	if (batch->n_open == 0 && !err_is_set(&batch->error) && batch->responses[KUBE_FACTS_JOB]) {
		/* Requests what the Jobs do not tell. A server that has just started denies for
		 * a moment what it allows: one denial does not prove that a run has ended. */
		bool is_doubtful = batch->pods_denied == 1 && !batch->responses[KUBE_FACTS_PODS];

		if ((!batch->has_pods || is_doubtful) && needs_pods(batch))
			kube_state_query_pods(batch);
		if (!batch->has_jobsets && needs_jobsets(batch))
			kube_state_query(batch, KUBE_FACTS_JOBSETS);
		batch->has_pods = batch->has_jobsets = true;
	}
	if (batch->n_open > 0 || query_more(batch))
		return;
	reconcile_all(batch);
}

static void take_error(struct kube_batch *batch, enum kube_facts_kind kind, struct err *error)
{
	bool is_denied = error->id == E_KUBE_DENIED;

	batch->pods_denied += is_denied && kind == KUBE_FACTS_PODS;
	if (is_denied && (kind != KUBE_FACTS_PODS || batch->pods_denied > 1))
		batch->kube->cluster->denied_ms[kind] = clock_ms();
	if (is_denied && query_each(batch, kind))
		return;
	/* Events explain; what may not be seen, or is gone, is not known. JobSets are gone where
	 * nobody knows what they are any more. */
	if ((kind == KUBE_FACTS_JOB || (kind == KUBE_FACTS_PODS && error->id != E_KUBE_DENIED) ||
		    (kind == KUBE_FACTS_JOBSETS && error->id != E_KUBE_NOT_FOUND)) &&
		!err_is_set(&batch->error))
		err_move(&batch->error, error);
}

/* A list as the server gave it. */
static void kube_state_take_list(
	struct kube_batch *batch, enum kube_facts_kind kind, struct json *take)
{
	struct json *raw[KUBE_FACTS_KINDS] = {0};

	raw[kind] = take;
	if (batch->watcher)
		kube_watcher_compare(batch->watcher, raw);
	if (kind == KUBE_FACTS_JOB)
		kube_join_roles(take);
	batch->responses[kind] = take;
}

static int kube_state_on_list(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct list_request *request = ctx;
	struct kube_batch *batch = request->batch;
	enum kube_facts_kind kind = request->kind;

	/* A list is empty where nothing is: a 404 is of something in between. */
	request->call = NULL;
	batch->n_open--;
	if (kind == KUBE_FACTS_WORKLOADS)
		batch->hides_workloads = err_is_set(&response->error) && response->status != 404;
	if (err_is_set(&response->error))
		take_error(batch, kind, &response->error);
	else
		kube_state_take_list(batch, kind, TAKE(response->object));
	if (kind == KUBE_FACTS_NODES) {
		struct kube_cluster *cluster = batch->kube->cluster;

		json_free(cluster->nodes);
		cluster->nodes = TAKE(batch->responses[KUBE_FACTS_NODES]);
		cluster->nodes_ms = clock_ms();
	}
	kube_state_go_on(batch);
	return 0;
}

static int kube_state_on_growth(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_batch *batch = ctx;

	batch->growth_call = NULL;
	batch->n_open--;
	kube_growth_keep(batch->kube->cluster, response->status, response->object);
	kube_state_go_on(batch);
	return 0;
}

static void kube_state_query_growth(struct kube_batch *batch, int64_t deadline_ms)
{
	batch->n_open++;
	batch->growth_call =
		kube_growth_query(batch->kube->cluster, deadline_ms, kube_state_on_growth, batch);
}

static int64_t kube_state_deadline_of(const struct kube_batch *batch)
{
	int64_t deadline_ms = 0;

	for (const struct question *q = batch->questions; q; q = q->next)
		if (q->call && q->call->deadline_ms > deadline_ms)
			deadline_ms = q->call->deadline_ms;
	return deadline_ms;
}

static const struct {
	const char *group, *name;
	size_t max;
	bool everywhere;
} lists[KUBE_FACTS_KINDS] = {
	[KUBE_FACTS_JOB] = {"/apis/batch/v1", "jobs", JOBS_MAX},
	[KUBE_FACTS_JOBSETS] = {"/apis/jobset.x-k8s.io/v1alpha2", "jobsets", JOBS_MAX},
	[KUBE_FACTS_PODS] = {"/api/v1", "pods", PODS_MAX},
	[KUBE_FACTS_EVENTS] = {"/api/v1", "events", EVENTS_LIST_MAX},
	[KUBE_FACTS_NODES] = {"/api/v1", "nodes", NODES_MAX, true},
	[KUBE_FACTS_WORKLOADS] = {"/apis/kueue.x-k8s.io/v1beta1", "workloads", WORKLOADS_MAX},
};

/* An object that does not exist is left out of the list. */
static int kube_state_on_one(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct one *one = ctx;
	struct kube_batch *batch = one->question->batch;

	one->call = NULL;
	batch->n_open--;
	if (!err_is_set(&response->error))
		json_add(batch->items[one->kind], TAKE(response->object));
	else if (response->error.id != E_KUBE_NOT_FOUND && !err_is_set(&batch->error))
		err_move(&batch->error, &response->error);
	kube_state_go_on(batch);
	return 0;
}

static void kube_state_query_one(
	struct kube_batch *batch, struct question *question, enum kube_kind kind)
{
	const struct kube_handle *handle = &question->handle;
	struct one *one = &question->ones[kind];
	AUTO_FREE char *path = kube_kind_path(kind, handle->kube_namespace,
		kind == KUBE_KIND_JOBSET ? handle->name : handle->job);
	const struct kube_request request = {.method = "GET",
		.path = path,
		.deadline_ms = question->call->deadline_ms,
		.done = kube_state_on_one,
		.ctx = one};

	*one = (struct one){.question = question,
		.kind = kind == KUBE_KIND_JOBSET ? KUBE_FACTS_JOBSETS : KUBE_FACTS_JOB};
	batch->n_open++;
	one->call = kube_start(batch->kube->cluster->client, &request);
}

/* false: such a thing is not to be had by itself, or nobody wants one. */
static bool query_each(struct kube_batch *batch, enum kube_facts_kind kind)
{
	int n_before = batch->n_open;

	if (kind != KUBE_FACTS_JOB && kind != KUBE_FACTS_JOBSETS)
		return false;
	batch->responses[kind] = json_object();
	batch->items[kind] = json_array();
	json_set(batch->responses[kind], "items", batch->items[kind]);
	const char *study = NULL; /* of the last question that is asked */

	for (struct question *q = batch->questions; q; q = q->next) {
		if (!q->call || (q->handle.is_member && str_eq(study, q->handle.owner)))
			continue;
		study = q->handle.is_member ? q->handle.owner : NULL;
		if (kind == KUBE_FACTS_JOB)
			kube_state_query_one(batch, q, KUBE_KIND_JOB);
		else if (q->handle.kind == KUBE_KIND_JOBSET)
			kube_state_query_one(batch, q, KUBE_KIND_JOBSET);
	}
	return batch->n_open > n_before;
}

/* selector: NULL: all. */
static void kube_state_query_list(struct kube_batch *batch, enum kube_facts_kind kind,
	const char *selector, int64_t deadline_ms)
{
	const char *const query[] = {"labelSelector", selector, NULL};
	AUTO_FREE char *inside = lists[kind].everywhere
					 ? mem_printf("/%s", lists[kind].name)
					 : kube_path("/namespaces/%s/%s",
						   batch->kube->kube_namespace, lists[kind].name);
	AUTO_FREE char *path = mem_printf("%s%s", lists[kind].group, inside);

	struct list_request *request = &batch->requests[kind];

	*request = (struct list_request){.batch = batch, .kind = kind};
	batch->n_open++;
	request->call = kube_list(batch->kube->cluster->client, path, selector ? query : NULL,
		lists[kind].max, deadline_ms, kube_state_on_list, request);
}

/* The handle of the only question, or of members that have one Job; NULL: there are more Jobs. */
static const struct kube_handle *kube_state_one_job(const struct kube_batch *batch)
{
	const struct kube_handle *first = &batch->questions->handle;

	for (const struct question *q = batch->questions->next; q; q = q->next)
		if (!first->is_member || !str_eq(q->handle.job, first->job))
			return NULL;
	return first;
}

static void kube_state_query(struct kube_batch *batch, enum kube_facts_kind kind)
{
	const struct kube_handle *one = kube_state_one_job(batch);
	AUTO_FREE char *selector =
		one ? kind == KUBE_FACTS_PODS ? kube_handle_pods(one) : kube_handle_jobs(one)
		    : mem_strdup("app.kubernetes.io/managed-by=" KUBE_MANAGED_BY);

	if (is_denied(batch, kind) && (query_each(batch, kind) || kind == KUBE_FACTS_PODS))
		return;
	kube_state_query_list(batch, kind, kind == KUBE_FACTS_EVENTS ? NULL : selector,
		kube_state_deadline_of(batch));
}

/*
 * Pods for several questions
 */

/* items: an array, moved from; NULL: error. */
static void kube_state_add_pods(struct kube_batch *batch, struct json *items, struct err *error)
{
	if (err_is_set(error) && !err_is_set(&batch->pods_error))
		err_move(&batch->pods_error, error);
	if (!batch->pod_items)
		batch->pod_items = TAKE(items);
	for (const struct json *pod = json_first(items); pod; pod = json_next(pod))
		json_add(batch->pod_items, json_clone(pod));
	json_free(items);
	batch->n_open--;
	if (--batch->n_pod_lists > 0)
		return;
	if (err_is_set(&batch->pods_error)) {
		take_error(batch, KUBE_FACTS_PODS, &batch->pods_error);
		err_clear(&batch->pods_error);
		json_free(TAKE(batch->pod_items));
	} else {
		batch->responses[KUBE_FACTS_PODS] = json_object();
		json_set(batch->responses[KUBE_FACTS_PODS], "items", TAKE(batch->pod_items));
	}
}

static void kube_state_on_study_pods(void *ctx, struct json *items, struct err *error)
{
	struct study_pods *study = ctx;
	struct kube_batch *batch = study->batch;

	study->pods = NULL;
	kube_state_add_pods(batch, items, error);
	kube_state_go_on(batch);
}

static int kube_state_on_other_pods(
	void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_batch *batch = ctx;
	struct json *items = NULL;

	batch->requests[KUBE_FACTS_PODS].call = NULL;
	if (!err_is_set(&response->error))
		items = json_clone(json_get(response->object, "items"));
	kube_state_add_pods(batch, items, &response->error);
	kube_state_go_on(batch);
	return 0;
}

static bool kube_state_has_study(const struct kube_batch *batch, const struct kube_handle *handle)
{
	vec_foreach (struct study_pods *, study, &batch->studies)
		if (str_eq((*study)->handle->job, handle->job))
			return true;
	return false;
}

/* Pods of the members of that study that are asked about. */
static void kube_state_query_study(struct kube_batch *batch, const struct kube_handle *handle)
{
	const struct json *job = kube_item(batch->responses[KUBE_FACTS_JOB], handle->job);
	int64_t n = json_get_int(json_get(job, "spec"), "completions", 0);
	AUTO_FREE bool *wanted = mem_alloc(KUBE_MEMBERS_MAX, sizeof(*wanted));
	struct study_pods *study = mem_alloc(1, sizeof(*study));

	for (const struct question *q = batch->questions; q; q = q->next)
		if (q->call && q->handle.is_member && str_eq(q->handle.job, handle->job))
			wanted[q->handle.index] = true;
	*study = (struct study_pods){.batch = batch, .handle = handle};
	*vec_push(&batch->studies) = study;
	const struct kube_study_pods_request request = {.handle = handle,
		.job = job,
		.wanted = wanted,
		.n = n > 0 && n <= KUBE_MEMBERS_MAX ? (int)n : 0,
		.deadline_ms = kube_state_deadline_of(batch),
		.done = kube_state_on_study_pods,
		.ctx = study};
	batch->n_open++;
	batch->n_pod_lists++;
	study->pods = kube_study_pods_start(batch->kube->cluster->client, &request);
}

static void kube_state_query_others(struct kube_batch *batch)
{
	static const char *const query[] = {"labelSelector",
		"app.kubernetes.io/managed-by=" KUBE_MANAGED_BY ",!" KUBE_LABEL_STUDY, NULL};
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", batch->kube->kube_namespace);

	batch->n_open++;
	batch->n_pod_lists++;
	batch->requests[KUBE_FACTS_PODS].call = kube_list(batch->kube->cluster->client, path, query,
		PODS_MAX, kube_state_deadline_of(batch), kube_state_on_other_pods, batch);
}

static void kube_state_query_pods(struct kube_batch *batch)
{
	bool has_others = false;

	if (is_denied(batch, KUBE_FACTS_PODS))
		return;
	if (batch->n_questions == 1) {
		kube_state_query(batch, KUBE_FACTS_PODS);
		return;
	}
	vec_foreach (struct study_pods *, study, &batch->studies)
		free(*study);
	vec_done(&batch->studies);
	for (const struct question *q = batch->questions; q; q = q->next) {
		if (!question_needs_pods(batch, q))
			continue;
		if (!q->handle.is_member)
			has_others = true;
		else if (!kube_state_has_study(batch, &q->handle))
			kube_state_query_study(batch, &q->handle);
	}
	if (has_others)
		kube_state_query_others(batch);
}

/* Requests the reasons why the run waits; the state is not delayed past its deadline for them. */
static bool query_more(struct kube_batch *batch)
{
	const struct kube_handle *handle = &batch->questions->handle;
	const struct json *made = kube_facts_made(batch->responses, handle);
	int64_t now_ms = clock_ms();
	int64_t deadline_ms = now_ms + (kube_state_deadline_of(batch) - now_ms) / 2;

	if (batch->has_more || batch->n_questions != 1 || !made || err_is_set(&batch->error))
		return false;
	batch->has_more = true;
	const char *uid = kube_str_at(made, "metadata.uid");
	AUTO_FREE char *selector = mem_printf("kueue.x-k8s.io/job-uid=%s", uid ? uid : "");

	if (!str_empty(uid) && kube_facts_is_suspended(made))
		kube_state_query_list(batch, KUBE_FACTS_WORKLOADS, selector, deadline_ms);
	const struct kube_cluster *cluster = batch->kube->cluster;

	if (kube_facts_is_unscheduled(kube_state_pods(batch), handle) &&
		(!cluster->nodes_ms || clock_ms() - cluster->nodes_ms >= NODES_FRESH_MS)) {
		kube_state_query_list(batch, KUBE_FACTS_NODES, NULL, deadline_ms);
		if (!kube_growth_is_fresh(cluster, NODES_FRESH_MS))
			kube_state_query_growth(batch, deadline_ms);
	}
	return batch->n_open > 0;
}

/* Requests the prices of nodes, once for each run that has ended, and where there are any the pods
 * of a run whose Job alone told its end. */
static bool kube_state_query_cost(struct kube_batch *batch)
{
	const struct kube_cluster *cluster = batch->kube->cluster;
	int64_t now_ms = clock_ms();
	int64_t left_ms = (kube_state_deadline_of(batch) - now_ms) / 2;
	bool wants = false, wants_pods = false;

	for (const struct question *q = batch->questions; q; q = q->next) {
		wants |= kube_state_wants_cost(q);
		wants_pods |= kube_state_wants_cost(q) && !q->handle.is_member;
	}
	if (wants && !batch->has_prices && !kube_growth_is_fresh(cluster, PRICES_FRESH_MS))
		kube_state_query_growth(
			batch, now_ms + (left_ms < PRICES_MS ? left_ms : PRICES_MS));
	else if (wants_pods && cluster->growth && batch->n_questions > 1 &&
		 !batch->responses[KUBE_FACTS_PODS] && !batch->has_priced_pods) {
		batch->has_priced_pods = true;
		kube_pod_index_done(&batch->pods);
		batch->has_index = false;
		kube_state_query_others(batch);
	}
	batch->has_prices = true;
	return batch->n_open > 0;
}

/* Frequent callers have a watch; then only events are requested, now and then. */
static bool response_by_watch(struct kube_batch *batch)
{
	struct kube_cluster *cluster = batch->kube->cluster;
	struct kube_watcher *watcher =
		kube_watcher_of(&cluster->watchers, cluster->client, &batch->questions->handle);

	if (!watcher || !kube_watcher_lists(
				watcher, &batch->questions->handle, clock_ms(), batch->responses)) {
		batch->watcher = watcher;
		return false;
	}
	if (kube_watcher_wants_events(watcher))
		kube_state_query(batch, KUBE_FACTS_EVENTS);
	else if (!query_more(batch))
		reconcile_all(batch);
	return true;
}

static int state_begin(void *ctx, struct err *err UNUSED)
{
	struct kube_batch *batch = ctx;

	batch->timer = NULL;
	batch->kube->batch = NULL;
	for (struct question *q = batch->questions; q; q = q->next)
		q->was_accepted = q->call && kube_is_accepted(batch->kube, &q->handle);
	batch->has_pods = batch->n_questions == 1;
	batch->has_jobsets = batch->has_pods && batch->questions->handle.kind == KUBE_KIND_JOBSET;
	if (batch->has_pods && response_by_watch(batch))
		return 0;
	kube_state_query(batch, KUBE_FACTS_JOB);
	if (batch->has_pods) {
		kube_state_query(batch, KUBE_FACTS_PODS);
		kube_state_query(batch, KUBE_FACTS_EVENTS);
	}
	if (batch->has_jobsets)
		kube_state_query(batch, KUBE_FACTS_JOBSETS);
	return 0;
}

int kube_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct question *question = mem_alloc(1, sizeof(*question));

	*question = (struct question){.work = {drop_question}, .call = call, .ret = ret};
	int r = kube_handle_parse(kube, handle, &question->handle, err);
	if (r < 0) {
		free(question);
		return r;
	}
	if (!kube->batch) {
		kube->batch = mem_alloc(1, sizeof(*kube->batch));
		*kube->batch = (struct kube_batch){.kube = kube};
		kube->batch->timer = loop_add_timer(target->loop, 0, state_begin, kube->batch);
	}
	question->batch = kube->batch;
	question->next = kube->batch->questions;
	kube->batch->questions = question;
	kube->batch->n_questions++;
	target_call_begin(call, &question->work);
	return 0;
}

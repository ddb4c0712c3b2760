/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_facts.h"

#include <string.h>

#include "base/util/str.h"

static const struct json *first_item(const struct json *list)
{
	const struct json *items = json_get(list, "items");

	return items ? json_first(items) : NULL;
}

static const char *name_of(const struct json *object)
{
	return json_get_str(json_get(object, "metadata"), "name");
}

/* The one of that name in a list; or NULL. */
static const struct json *find(const struct json *list, const char *name)
{
	for (const struct json *item = first_item(list); item; item = json_next(item))
		if (str_eq(name_of(item), name))
			return item;
	return NULL;
}

static const struct json *jobset_of(
	struct json *const lists[static KUBE_FACTS_KINDS], const struct kube_handle *handle)
{
	return handle->kind == KUBE_KIND_JOBSET ? find(lists[KUBE_FACTS_JOBSETS], handle->name)
						: NULL;
}

const struct json *kube_facts_made(
	struct json *const lists[static KUBE_FACTS_KINDS], const struct kube_handle *handle)
{
	const struct json *jobset = jobset_of(lists, handle);

	return jobset ? jobset : find(lists[KUBE_FACTS_JOB], handle->job);
}

/* Pods of this Job only, not those of an earlier attempt of the same run. */
static void pick_pods(const struct json *list, const char *job, struct kube_objects_list *ret)
{
	for (const struct json *pod = first_item(list); pod; pod = json_next(pod)) {
		const struct json *labels = json_get(json_get(pod, "metadata"), "labels");
		if (str_eq(json_get_str(labels, "batch.kubernetes.io/job-name"), job) ||
			str_eq(json_get_str(labels, "job-name"), job))
			*vec_push(ret) = pod;
	}
}

/* Pods of a Job, and what a JobSet makes, have its name and more behind a dash. */
static void pick_events(const struct json *list, const char *made, struct kube_objects_list *ret)
{
	size_t len = strlen(made);

	for (const struct json *event = first_item(list); event; event = json_next(event)) {
		const struct json *about = json_get(event, "involvedObject");
		const char *name =
			json_get_str(about ? about : json_get(event, "regarding"), "name");
		if (name && strncmp(name, made, len) == 0 && (!name[len] || name[len] == '-'))
			*vec_push(ret) = event;
	}
}

static void pick_all(const struct json *list, struct kube_objects_list *ret)
{
	for (const struct json *item = first_item(list); item; item = json_next(item))
		*vec_push(ret) = item;
}

static const struct json *workload_of(const struct json *list, const struct json *made)
{
	const char *uid = json_get_str(json_get(made, "metadata"), "uid");

	for (const struct json *item = first_item(list); uid && item; item = json_next(item)) {
		const struct json *owners = json_get(json_get(item, "metadata"), "ownerReferences");
		for (const struct json *owner = owners ? json_first(owners) : NULL; owner;
			owner = json_next(owner))
			if (str_eq(json_get_str(owner, "uid"), uid))
				return item;
	}
	return NULL;
}

static struct kube_items items_of(const struct kube_objects_list *list, bool known)
{
	return (struct kube_items){list->v, list->n, known};
}

void kube_facts_of(struct json *const lists[static KUBE_FACTS_KINDS],
	const struct kube_handle *handle, struct kube_facts_store *ret)
{
	*ret = (struct kube_facts_store){0};
	pick_pods(lists[KUBE_FACTS_PODS], handle->job, &ret->pods);
	pick_events(lists[KUBE_FACTS_EVENTS], handle->name, &ret->events);
	pick_all(lists[KUBE_FACTS_NODES], &ret->nodes);
	ret->facts = (struct kube_facts){
		.run_id = handle->run_id,
		.job_name = handle->name,
		.is_jobset = handle->kind == KUBE_KIND_JOBSET,
		.jobset = jobset_of(lists, handle),
		.kube_namespace = handle->kube_namespace,
		.job = find(lists[KUBE_FACTS_JOB], handle->job),
		.pods = items_of(&ret->pods, lists[KUBE_FACTS_PODS] != NULL),
		.events = items_of(&ret->events, lists[KUBE_FACTS_EVENTS] != NULL),
		.nodes = items_of(&ret->nodes, lists[KUBE_FACTS_NODES] != NULL),
		.workload =
			workload_of(lists[KUBE_FACTS_WORKLOADS], kube_facts_made(lists, handle)),
	};
}

void kube_facts_store_done(struct kube_facts_store *store)
{
	vec_done(&store->pods);
	vec_done(&store->events);
	vec_done(&store->nodes);
}

static bool has_condition(const struct json *status, const char *type, const char *is)
{
	const struct json *list = json_get(status, "conditions");

	for (const struct json *item = list ? json_first(list) : NULL; item; item = json_next(item))
		if (str_eq(json_get_str(item, "type"), type) &&
			str_eq(json_get_str(item, "status"), is))
			return true;
	return false;
}

bool kube_facts_is_suspended(const struct json *job)
{
	return json_get_bool(json_get(job, "spec"), "suspend", false);
}

bool kube_facts_is_unscheduled(const struct json *pods, const char *job)
{
	struct kube_objects_list own = {0};
	bool r = false;

	pick_pods(pods, job, &own);
	for (size_t i = 0; i < own.n && !r; i++)
		r = has_condition(json_get(own.v[i], "status"), "PodScheduled", "False");
	vec_done(&own);
	return r;
}

bool kube_facts_job_needs_pods(const struct json *jobs, const struct kube_handle *handle)
{
	const struct json *job = find(jobs, handle->job);
	const struct json *status = json_get(job, "status");

	if (!job || has_condition(status, "Complete", "True"))
		return false;
	return json_get_int(status, "ready", 0) == 0 || json_get_int(status, "failed", 0) > 0;
}

bool kube_facts_needs_jobset(const struct json *jobs, const struct kube_handle *handle)
{
	const struct json *job = find(jobs, handle->job), *status = json_get(job, "status");

	if (handle->kind != KUBE_KIND_JOBSET)
		return false;
	return !job || has_condition(status, "Failed", "True") ||
	       has_condition(status, "FailureTarget", "True") || kube_facts_is_suspended(job);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_study_pods.h"

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "kube/status/object.h"
#include "kube/status/status.h"

enum {
	PODS_MAX = 50000,
	INDEXES_MAX = 500, /* of one request: proxies take URLs of some 4 KiB at least */
	PARTS_AT_ONCE = 4, /* each response may have 10 MiB */
	BEHIND = 64,       /* indexes that may have begun beyond those that the Job tells of */
};

struct study_member {
	bool wanted;
	bool is_active; /* a pod of it has not ended */
	bool was_again; /* and it has failed before */
	bool has_ended; /* as the Job says */
};

/* A request for the pods of some members. */
struct study_part {
	struct kube_study_pods *pods;
	struct kube_call *call;
};

struct kube_study_pods {
	struct kube_client *client;
	struct kube_handle handle;
	const struct json *job;
	struct study_member *members;
	int n, next; /* next: index that the next request begins with */
	struct kube_call *active;
	struct json *listed; /* those that have not ended; until what they are used for is known */
	struct study_part parts[PARTS_AT_ONCE];
	size_t n_open;
	struct json *items;
	int64_t deadline_ms;
	struct err error;
	void (*done)(void *ctx, struct json *items, struct err *error);
	void *ctx;
};

void kube_study_pods_cancel(struct kube_study_pods *pods)
{
	if (!pods)
		return;
	kube_cancel(pods->active);
	for (size_t i = 0; i < ARRAY_LEN(pods->parts); i++)
		kube_cancel(pods->parts[i].call);
	json_free(pods->listed);
	json_free(pods->items);
	free(pods->members);
	err_done(&pods->error);
	free(pods);
}

static void study_pods_end(struct kube_study_pods *pods)
{
	AUTO_ERR struct err error = {0};
	AUTO_JSON struct json *items = TAKE(pods->items);
	void (*done)(void *, struct json *, struct err *) = pods->done;
	void *ctx = pods->ctx;
	bool has_failed = err_is_set(&pods->error);

	if (has_failed)
		err_move(&error, &pods->error);
	kube_study_pods_cancel(pods);
	done(ctx, has_failed ? NULL : TAKE(items), &error);
}

/*
 * Pods
 */

/* Most of a pod is the command of its program and who has set which field. */
static void study_pods_trim(struct json *pod)
{
	static const char *const lists[] = {"containers", "initContainers"};
	static const char *const members[] = {"args", "command", "env"};
	struct json *spec = json_sub(pod, "spec");

	json_remove(json_sub(pod, "metadata"), "managedFields");
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		const struct json *list = json_get(spec, lists[i]);
		for (const struct json *at = json_first(list); at; at = json_next(at))
			for (size_t k = 0; k < ARRAY_LEN(members); k++)
				json_remove((struct json *)(uintptr_t)at, members[k]);
	}
}

static void study_pods_add(struct kube_study_pods *pods, const struct json *pod)
{
	study_pods_trim((struct json *)(uintptr_t)pod);
	json_add(pods->items, json_clone(pod));
}

/* The member of a pod; NULL: of none. */
static struct study_member *study_pods_member(
	const struct kube_study_pods *pods, const struct json *pod)
{
	int64_t index = kube_number(kube_completion_index(pod), -1);

	return index >= 0 && index < pods->n ? &pods->members[index] : NULL;
}

/*
 * Pods that have ended
 */

/* Members from `next` on behind the selector; false: none is left. */
static bool study_pods_choose(struct kube_study_pods *pods, struct buf *selector)
{
	size_t n = 0;

	for (; pods->next < pods->n && n < INDEXES_MAX; pods->next++) {
		if (!pods->members[pods->next].wanted)
			continue;
		buf_addf(selector, n ? ",%d" : "," KUBE_INDEX " in (%d", pods->next);
		n++;
	}
	buf_adds(selector, ")");
	return n > 0;
}

static void study_pods_send(struct kube_study_pods *pods);

static int study_pods_on_part(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct study_part *part = ctx;
	struct kube_study_pods *pods = part->pods;

	part->call = NULL;
	pods->n_open--;
	if (err_is_set(&response->error) && !err_is_set(&pods->error))
		err_move(&pods->error, &response->error);
	for (const struct json *pod = kube_first(response->object, "items"); pod;
		pod = json_next(pod))
		study_pods_add(pods, pod);
	study_pods_send(pods);
	return 0;
}

static struct kube_call *study_pods_list(
	struct kube_study_pods *pods, const char *const *query, kube_done_fn *done, void *ctx)
{
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", pods->handle.kube_namespace);

	return kube_list(pods->client, path, query, PODS_MAX, pods->deadline_ms, done, ctx);
}

static bool study_pods_send_part(struct kube_study_pods *pods, struct study_part *part)
{
	AUTO_FREE char *of_study = kube_handle_jobs(&pods->handle);
	AUTO_BUF struct buf selector = buf_with(64 << 10);

	buf_adds(&selector, of_study);
	if (!study_pods_choose(pods, &selector))
		return false;
	const char *const query[] = {"labelSelector", selector.data, NULL};
	*part = (struct study_part){.pods = pods};
	part->call = study_pods_list(pods, query, study_pods_on_part, part);
	pods->n_open++;
	return true;
}

/* Request what is still to come, or end. */
static void study_pods_send(struct kube_study_pods *pods)
{
	for (size_t i = 0; i < ARRAY_LEN(pods->parts) && !err_is_set(&pods->error); i++)
		if (!pods->parts[i].call && !study_pods_send_part(pods, &pods->parts[i]))
			break;
	if (pods->n_open == 0 || err_is_set(&pods->error))
		study_pods_end(pods);
}

/*
 * Pods that have not ended
 */

/* The last index of which a pod may have been made. The Job counts ends a moment late, and a pod
 * may be made and end between two requests. */
static int study_pods_last(const struct kube_study_pods *pods)
{
	int64_t at_once = json_get_int(json_get(pods->job, "spec"), "parallelism", 0);
	int64_t last = -1;

	if (at_once <= 0)
		at_once = kube_number(kube_annotation(pods->job, KUBE_ANNOTATION_AT_ONCE), 0);
	if (at_once <= 0)
		return pods->n - 1;
	for (int i = 0; i < pods->n; i++)
		if (pods->members[i].is_active || pods->members[i].has_ended)
			last = i;
	last += 2 * at_once + BEHIND;
	return last < pods->n ? (int)last : pods->n - 1;
}

/* Leave those wanted that are to be listed by index. A pod that goes on after others of its member
 * have failed is listed again with them. */
static void study_pods_sort(struct kube_study_pods *pods)
{
	int last = study_pods_last(pods);

	for (int i = 0; i < pods->n; i++) {
		struct study_member *member = &pods->members[i];
		bool may_tell =
			member->is_active ? member->was_again : member->has_ended || i <= last;
		member->wanted = member->wanted && may_tell;
	}
}

static int study_pods_on_active(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	static const char failures[] = "batch.kubernetes.io/job-index-failure-count";
	struct kube_study_pods *pods = ctx;
	const struct json *pod;
	struct study_member *member;

	pods->active = NULL;
	if (err_is_set(&response->error)) {
		err_move(&pods->error, &response->error);
		study_pods_end(pods);
		return 0;
	}
	pods->listed = TAKE(response->object);
	for (pod = kube_first(pods->listed, "items"); pod; pod = json_next(pod)) {
		member = study_pods_member(pods, pod);
		if (!member)
			continue;
		member->is_active = true;
		member->was_again |= kube_number(kube_annotation(pod, failures), 0) > 0;
	}
	study_pods_sort(pods);
	for (pod = kube_first(pods->listed, "items"); pod; pod = json_next(pod)) {
		member = study_pods_member(pods, pod);
		if (member && !member->wanted)
			study_pods_add(pods, pod);
	}
	json_free(TAKE(pods->listed));
	study_pods_send(pods);
	return 0;
}

struct kube_study_pods *kube_study_pods_start(
	struct kube_client *client, const struct kube_study_pods_request *request)
{
	struct kube_study_pods *pods = mem_alloc(1, sizeof(*pods));
	const struct json *status = json_get(request->job, "status");
	AUTO_FREE char *of_study = kube_handle_jobs(request->handle);
	const char *const query[] = {"labelSelector", of_study, "fieldSelector",
		"status.phase!=Succeeded,status.phase!=Failed", NULL};

	*pods = (struct kube_study_pods){.client = client,
		.handle = *request->handle,
		.job = request->job,
		.members = mem_alloc((size_t)request->n + 1, sizeof(struct study_member)),
		.n = request->n,
		.items = json_array(),
		.deadline_ms = request->deadline_ms,
		.done = request->done,
		.ctx = request->ctx};
	for (int i = 0; i < pods->n; i++)
		pods->members[i].wanted = request->wanted[i];
	AUTO_FREE bool *ended = mem_alloc((size_t)request->n + 1, sizeof(*ended));

	kube_mark_indexes(json_get_str(status, "completedIndexes"), ended, pods->n);
	kube_mark_indexes(json_get_str(status, "failedIndexes"), ended, pods->n);
	for (int i = 0; i < pods->n; i++)
		pods->members[i].has_ended = ended[i];
	if (request->job)
		pods->active = study_pods_list(pods, query, study_pods_on_active, pods);
	else
		study_pods_send(pods);
	return pods;
}

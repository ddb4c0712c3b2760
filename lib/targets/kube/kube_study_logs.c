/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_study_logs.h"

#include <stdlib.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "kube/status/object.h"
#include "targets/kube/kube_study_pods.h"

/* A member; NULL in the list below where none is. */
struct kube_study_log {
	struct kube_study_logs *logs;
	int index;
	struct kube_watch_events pods, job;
};

/* Members of one Job that follow, or that have ended. */
struct kube_study_logs {
	struct kube_study_logs *next;
	struct target_kube *kube;
	struct kube_handle handle; /* of the first of them */
	bool follow;
	struct loop_timer *timer; /* until it begins */
	struct kube_watch *pods, *job;
	struct kube_study_pods *ended;
	struct kube_study_log_list VEC_OF(struct kube_study_log *) members; /* by index */
	size_t n;                                                           /* how many there are */
	int64_t deadline_ms;
};

static void study_logs_free(struct kube_study_logs *logs)
{
	struct kube_study_logs **at = &logs->kube->study_logs;

	while (*at && *at != logs)
		at = &(*at)->next;
	if (*at)
		*at = logs->next;
	loop_remove_timer(logs->kube->target.loop, logs->timer);
	kube_watch_free(logs->pods);
	kube_watch_free(logs->job);
	kube_study_pods_cancel(logs->ended);
	vec_foreach (struct kube_study_log *, log, &logs->members)
		free(*log);
	vec_done(&logs->members);
	free(logs);
}

void kube_study_logs_free(struct kube_study_logs *logs)
{
	for (struct kube_study_logs *next; logs; logs = next) {
		next = logs->next;
		study_logs_free(logs);
	}
}

void kube_study_log_leave(struct kube_study_log *log)
{
	struct kube_study_logs *logs = log ? log->logs : NULL;

	if (!logs)
		return;
	logs->members.v[log->index] = NULL;
	free(log);
	if (--logs->n == 0)
		study_logs_free(logs);
}

/*
 * Events
 */

static void study_logs_on_pod(void *ctx, const struct json *pod)
{
	const struct kube_study_logs *logs = ctx;
	int64_t index = kube_number(kube_completion_index(pod), -1);
	bool is_member = index >= 0 && index < (int64_t)logs->members.n;
	const struct kube_study_log *log = is_member ? logs->members.v[index] : NULL;

	if (log)
		log->pods.put(log->pods.ctx, pod);
}

/* The pod has ended, or is not there any more. A list that lacks it tells only its name: the log
 * that has it knows whose it was. */
static void study_logs_on_pod_gone(void *ctx, const struct json *pod)
{
	const struct kube_study_logs *logs = ctx;
	const char *phase = kube_str_at(pod, "status.phase");

	if (!kube_deleted_ms(pod) && (str_eq(phase, "Succeeded") || str_eq(phase, "Failed"))) {
		study_logs_on_pod(ctx, pod);
		return;
	}
	vec_foreach (struct kube_study_log *, log, &logs->members)
		if (*log)
			(*log)->pods.gone((*log)->pods.ctx, pod);
}

static void study_logs_on_pods_synced(void *ctx)
{
	const struct kube_study_logs *logs = ctx;

	vec_foreach (struct kube_study_log *, log, &logs->members)
		if (*log)
			(*log)->pods.synced((*log)->pods.ctx);
}

static void study_logs_on_trouble(void *ctx, const struct err *error, int64_t since_ms)
{
	const struct kube_study_logs *logs = ctx;

	vec_foreach (struct kube_study_log *, log, &logs->members)
		if (*log)
			(*log)->pods.trouble((*log)->pods.ctx, error, since_ms);
}

static int study_logs_on_failed(void *ctx, struct err *error, struct err *err)
{
	const struct kube_study_logs *logs = ctx;
	int r = 0;

	vec_foreach (struct kube_study_log *, log, &logs->members) {
		AUTO_ERR struct err own = {0};

		err_copy(&own, error);
		if (r == 0 && *log)
			r = (*log)->pods.failed((*log)->pods.ctx, &own, err);
	}
	return r;
}

static void study_logs_on_job(void *ctx, const struct json *job)
{
	const struct kube_study_logs *logs = ctx;

	vec_foreach (struct kube_study_log *, log, &logs->members)
		if (*log)
			(*log)->job.put((*log)->job.ctx, job);
}

static void study_logs_on_job_gone(void *ctx, const struct json *job)
{
	const struct kube_study_logs *logs = ctx;

	vec_foreach (struct kube_study_log *, log, &logs->members)
		if (*log)
			(*log)->job.gone((*log)->job.ctx, job);
}

static void study_logs_on_job_synced(void *ctx)
{
	const struct kube_study_logs *logs = ctx;

	vec_foreach (struct kube_study_log *, log, &logs->members)
		if (*log)
			(*log)->job.synced((*log)->job.ctx);
}

static void study_logs_on_ended(void *ctx, struct json *take_items, struct err *error)
{
	struct kube_study_logs *logs = ctx;
	AUTO_JSON struct json *items = take_items;

	logs->ended = NULL;
	if (!items) {
		study_logs_on_failed(logs, error, NULL);
		return;
	}
	for (const struct json *pod = json_first(items); pod; pod = json_next(pod))
		study_logs_on_pod(logs, pod);
	study_logs_on_pods_synced(logs);
}

/*
 * Requests
 */

static void study_logs_watch(struct kube_study_logs *logs)
{
	struct kube_client *client = logs->kube->cluster->client;
	const struct kube_handle *handle = &logs->handle;
	AUTO_FREE char *label = kube_handle_jobs(handle);
	AUTO_FREE char *name = mem_printf("metadata.name=%s", handle->name);
	AUTO_FREE char *pods = kube_path("/api/v1/namespaces/%s/pods", handle->kube_namespace);
	AUTO_FREE char *jobs = kube_kind_collection(handle->kind, handle->kube_namespace);

	logs->pods = kube_watch_start(client,
		&(struct kube_watch_request){.path = pods,
			.query = (const char *const[]){"labelSelector", label, "fieldSelector",
				"status.phase!=Succeeded,status.phase!=Failed", NULL},
			.events = {.put = study_logs_on_pod,
				.gone = study_logs_on_pod_gone,
				.synced = study_logs_on_pods_synced,
				.trouble = study_logs_on_trouble,
				.failed = study_logs_on_failed,
				.ctx = logs}});
	logs->job = kube_watch_start(
		client, &(struct kube_watch_request){.path = jobs,
				.query = (const char *const[]){"fieldSelector", name, NULL},
				.name = handle->name,
				.events = {.put = study_logs_on_job,
					.gone = study_logs_on_job_gone,
					.synced = study_logs_on_job_synced,
					.failed = study_logs_on_failed,
					.ctx = logs}});
}

static int study_logs_begin(void *ctx, struct err *err UNUSED)
{
	struct kube_study_logs *logs = ctx;
	AUTO_FREE bool *wanted = mem_alloc(logs->members.n, sizeof(*wanted));

	logs->timer = NULL;
	if (logs->follow) {
		study_logs_watch(logs);
		return 0;
	}
	for (size_t i = 0; i < logs->members.n; i++)
		wanted[i] = logs->members.v[i] != NULL;
	logs->ended = kube_study_pods_start(logs->kube->cluster->client,
		&(struct kube_study_pods_request){.handle = &logs->handle,
			.wanted = wanted,
			.n = (int)logs->members.n,
			.deadline_ms = logs->deadline_ms,
			.done = study_logs_on_ended,
			.ctx = logs});
	return 0;
}

/* Whether requests for the same Job have not begun yet, and have no such member. */
static bool study_logs_takes(
	const struct kube_study_logs *logs, const struct kube_handle *handle, bool follow)
{
	return logs->timer && logs->follow == follow && str_eq(logs->handle.job, handle->job) &&
	       str_eq(logs->handle.kube_namespace, handle->kube_namespace) &&
	       ((size_t)handle->index >= logs->members.n || !logs->members.v[handle->index]);
}

static struct kube_study_logs *study_logs_find(
	struct target_kube *kube, const struct kube_handle *handle, bool follow)
{
	struct kube_study_logs *logs = kube->study_logs;

	while (logs && !study_logs_takes(logs, handle, follow))
		logs = logs->next;
	if (logs)
		return logs;
	logs = mem_alloc(1, sizeof(*logs));
	*logs = (struct kube_study_logs){
		.next = kube->study_logs, .kube = kube, .handle = *handle, .follow = follow};
	logs->timer = loop_add_timer(kube->target.loop, 0, study_logs_begin, logs);
	kube->study_logs = logs;
	return logs;
}

struct kube_study_log *kube_study_log_join(struct target_kube *kube,
	const struct kube_handle *handle, bool follow, int64_t deadline_ms,
	struct kube_runlog *runlog)
{
	struct kube_study_logs *logs = study_logs_find(kube, handle, follow);
	struct kube_study_log *log = mem_alloc(1, sizeof(*log));

	*log = (struct kube_study_log){.logs = logs,
		.index = handle->index,
		.pods = kube_runlog_pod_events(runlog),
		.job = kube_runlog_job_events(runlog)};
	while (logs->members.n <= (size_t)handle->index)
		*vec_push(&logs->members) = NULL;
	logs->members.v[handle->index] = log;
	logs->n++;
	if (deadline_ms > logs->deadline_ms)
		logs->deadline_ms = deadline_ms;
	return log;
}

/*
 * Logs that are saved
 */

void kube_saving_begin(struct target_kube *kube, struct kube_saving *saving)
{
	saving->next = kube->savings;
	kube->savings = saving;
}

void kube_saving_end(struct target_kube *kube, const struct kube_saving *saving)
{
	struct kube_saving **at = &kube->savings;

	while (*at != saving)
		at = &(*at)->next;
	*at = saving->next;
}

bool kube_logs_are_opening(const struct target_kube *kube, const struct kube_handle *handle)
{
	for (const struct kube_saving *at = kube->savings; at; at = at->next)
		if (str_eq(at->handle.job, handle->job) &&
			str_eq(at->handle.kube_namespace, handle->kube_namespace) &&
			kube_runlog_is_opening(at->runlog))
			return true;
	return false;
}

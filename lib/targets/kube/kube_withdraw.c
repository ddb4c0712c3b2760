/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"
#include "targets/kube/kube_reconcile.h"

/*
 * Taking back an attempt that waits. Its gate is a ConfigMap (kube_job_gate_name) that each pod
 * needs: a node begins no container whose ConfigMap is missing.
 *
 *	1. read the Job, and its resourceVersion
 *	2. remove the gate: what gets a node from now on does not begin
 *	3. list the pods. One has a node, or follows one that had: it has begun, or may: the Job
 *	   is touched, so that a removal that is still on its way misses it, and the gate is
 *	   made again
 *	4. none has: that is noted here, then the Job is removed, if it is as it was read; else
 *	   from 1 on
 *	5. until no pod is left. One that has begun in spite of all, because its node had an old
 *	   copy of the gate, is an attempt that has begun
 *
 * Whoever is stopped at any step leaves an attempt that waits without beginning, or is gone; the
 * next one who asks goes on from 1, and finds by the note of 4 why the Job is gone.
 */

enum {
	WITHDRAW_PODS_MAX = 50000,
	WITHDRAW_AGAIN_MS = 100,
	WITHDRAW_LEFT_MS = 300,
	WITHDRAW_SUSPEND_MS = 300000, /* until a new Job that is suspended is known to be */
};

struct withdrawing {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_handle handle;
	struct kube_call *request;
	struct kube_reconcile *repair;
	struct loop_timer *timer;
	struct json *job; /* as it was read */
	bool *ret_taken;
};

static void withdraw_drop(struct target_work *work)
{
	struct withdrawing *withdrawing = (struct withdrawing *)work;

	kube_cancel(withdrawing->request);
	kube_reconcile_cancel(withdrawing->repair);
	loop_remove_timer(withdrawing->kube->target.loop, withdrawing->timer);
	json_free(withdrawing->job);
	free(withdrawing);
}

static int withdraw_end(struct withdrawing *withdrawing, bool is_taken)
{
	*withdrawing->ret_taken = is_taken;
	target_call_end_as(withdrawing->call, NULL);
	return 0;
}

static int withdraw_fail(struct withdrawing *withdrawing, struct err *error)
{
	target_call_end_as(withdrawing->call, error);
	return 0;
}

static void withdraw_send(struct withdrawing *withdrawing, const char *method, const char *path,
	const struct json *body, kube_done_fn *done)
{
	withdrawing->request = kube_reconcile_send(withdrawing->kube, method, path, body,
		withdrawing->call->deadline_ms, done, withdrawing);
}

static char *withdraw_job_path(const struct withdrawing *withdrawing)
{
	const struct kube_handle *handle = &withdrawing->handle;

	return kube_kind_path(handle->kind, handle->kube_namespace, handle->name);
}

static void withdraw_list(struct withdrawing *withdrawing, kube_done_fn *done)
{
	const struct kube_handle *handle = &withdrawing->handle;
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", handle->kube_namespace);
	AUTO_FREE char *pods = kube_handle_pods(handle);
	const char *query[] = {"labelSelector", pods, NULL};

	withdrawing->request = kube_list(withdrawing->kube->cluster->client, path, query,
		WITHDRAW_PODS_MAX, withdrawing->call->deadline_ms, done, withdrawing);
}

static int withdraw_begin(void *ctx, struct err *err);

static void withdraw_again(struct withdrawing *withdrawing, int64_t ms, loop_timer_fn *fn)
{
	withdrawing->timer =
		loop_add_timer(withdrawing->kube->target.loop, clock_ms() + ms, fn, withdrawing);
}

/*
 * An attempt that stays
 */

static int withdraw_on_opened(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;

	withdrawing->request = NULL;
	if (err_is_set(&response->error) && response->error.id != E_KUBE_EXISTS)
		return withdraw_fail(withdrawing, &response->error);
	return withdraw_end(withdrawing, false);
}

/* The gate as the submit has made it, and the Job's from the beginning. */
static struct json *withdraw_gate(const struct withdrawing *withdrawing)
{
	AUTO_FREE char *name = kube_job_gate_name(withdrawing->handle.name);
	struct json *gate = kube_job_owner(withdrawing->job);
	struct json *metadata = json_sub(gate, "metadata");
	const struct json *labels = kube_at(withdrawing->job, "metadata.labels");

	json_set_str(gate, "apiVersion", "v1");
	json_set_str(gate, "kind", "ConfigMap");
	json_set_str(metadata, "name", name);
	json_set_str(metadata, "namespace", withdrawing->handle.kube_namespace);
	if (labels)
		json_set(metadata, "labels", json_clone(labels));
	return gate;
}

static int withdraw_on_touched(void *ctx, struct kube_response *response, struct err *err)
{
	struct withdrawing *withdrawing = ctx;

	withdrawing->request = NULL;
	if (response->error.id == E_KUBE_NOT_FOUND)
		return withdraw_begin(withdrawing, err);
	/* A user who may not touch the Job may open its gate all the same. */
	if (err_is_set(&response->error) && response->error.id != E_KUBE_DENIED)
		return withdraw_fail(withdrawing, &response->error);
	/* Not before: a removal that came earlier than the touch has taken it back. */
	kube_annotation_stays(withdrawing->kube, &withdrawing->handle);
	AUTO_JSON struct json *gate = withdraw_gate(withdrawing);
	AUTO_FREE char *path =
		kube_path("/api/v1/namespaces/%s/configmaps", withdrawing->handle.kube_namespace);
	withdraw_send(withdrawing, "POST", path, gate, withdraw_on_opened);
	return 0;
}

static int withdraw_stay(struct withdrawing *withdrawing)
{
	AUTO_FREE char *path = withdraw_job_path(withdrawing);
	AUTO_JSON struct json *body = json_object();

	run_set_time(json_sub(json_sub(body, "metadata"), "annotations"), KUBE_ANNOTATION_STAYS,
		clock_wall_ms());
	withdraw_send(withdrawing, "PATCH", path, body, withdraw_on_touched);
	return 0;
}

/*
 * An attempt that goes
 */

static void withdraw_on_swept(void *ctx, struct err *error)
{
	struct withdrawing *withdrawing = ctx;

	err_clear(error);
	withdrawing->repair = NULL;
	withdraw_end(withdrawing, true);
}

/* Objects that were not given to the Job yet did not go with it. */
static int withdraw_sweep(struct withdrawing *withdrawing)
{
	const struct kube_reconcile_request request = {
		.handle = &withdrawing->handle,
		.what = KUBE_RECONCILE_PARTS,
		.deadline_ms = withdrawing->call->deadline_ms,
		.done = withdraw_on_swept,
		.ctx = withdrawing,
	};

	if (kube_is_adopted(withdrawing->kube, &withdrawing->handle))
		return withdraw_end(withdrawing, true);
	withdrawing->repair = kube_reconcile_start(withdrawing->kube, &request);
	return 0;
}

static bool withdraw_pod_has_begun(const struct json *pod)
{
	const struct json *program = kube_pod_program(pod);
	const struct json *state = json_get(program, "state");

	return json_get(state, "running") || kube_at(program, "lastState.terminated") ||
	       kube_str_at(state, "terminated.startedAt");
}

static int withdraw_look(void *ctx, struct err *err);

static int withdraw_on_left(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;
	const struct json *pod = json_first(json_get(response->object, "items"));

	withdrawing->request = NULL;
	if (err_is_set(&response->error))
		return withdraw_fail(withdrawing, &response->error);
	for (const struct json *item = pod; item; item = json_next(item))
		if (withdraw_pod_has_begun(item)) {
			kube_annotation_stays(withdrawing->kube, &withdrawing->handle);
			return withdraw_end(withdrawing, false);
		}
	if (!pod)
		return withdraw_sweep(withdrawing);
	withdraw_again(withdrawing, WITHDRAW_LEFT_MS, withdraw_look);
	return 0;
}

static int withdraw_look(void *ctx, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;

	withdrawing->timer = NULL;
	withdraw_list(withdrawing, withdraw_on_left);
	return 0;
}

static int withdraw_on_removed(void *ctx, struct kube_response *response, struct err *err)
{
	struct withdrawing *withdrawing = ctx;

	withdrawing->request = NULL;
	if (response->error.id == E_KUBE_CONFLICT || response->error.id == E_KUBE_EXISTS) {
		withdraw_again(withdrawing, WITHDRAW_AGAIN_MS, withdraw_begin);
		return 0;
	}
	if (err_is_set(&response->error) && response->error.id != E_KUBE_NOT_FOUND)
		return withdraw_fail(withdrawing, &response->error);
	return withdraw_look(withdrawing, err);
}

static int withdraw_go(struct withdrawing *withdrawing)
{
	AUTO_FREE char *path = withdraw_job_path(withdrawing);
	AUTO_JSON struct json *body = kube_reconcile_removal("Background");
	struct json *as_read = json_sub(body, "preconditions");
	AUTO_ERR struct err error = {0};

	if (kube_annotation_gone(withdrawing->kube, &withdrawing->handle, &error) < 0)
		return withdraw_fail(withdrawing, &error);
	json_set_str(as_read, "uid", kube_str_at(withdrawing->job, "metadata.uid"));
	json_set_str(as_read, "resourceVersion",
		kube_str_at(withdrawing->job, "metadata.resourceVersion"));
	withdraw_send(withdrawing, "DELETE", path, body, withdraw_on_removed);
	return 0;
}

/*
 * The decision
 */

/* A pod that takes the place of one that has ended, or was taken off its node. */
static bool withdraw_is_replaced(const struct json *pod)
{
	static const char *const counters[] = {"batch.kubernetes.io/job-index-failure-count",
		"batch.kubernetes.io/job-index-ignored-failure-count"};

	for (size_t i = 0; i < ARRAY_LEN(counters); i++) {
		const char *count = kube_annotation(pod, counters[i]);
		if (!str_empty(count) && !str_eq(count, "0"))
			return true;
	}
	return false;
}

/* Whether pods of it may have begun that are not there any more: they have failed, or Kueue has let
 * it begin, and suspended it again. */
static bool withdraw_may_have_begun(const struct json *job)
{
	const struct json *status = json_get(job, "status");
	const struct json *suspended = kube_condition(job, "Suspended");
	int64_t since_ms = kube_time_at(suspended, "lastTransitionTime");
	int64_t made_ms = kube_time_at(job, "metadata.creationTimestamp");

	return json_get_int(status, "failed", 0) > 0 || json_get_int(status, "restarts", 0) > 0 ||
	       (kube_condition_is(job, "Suspended", "True") && made_ms > 0 &&
		       since_ms - made_ms > WITHDRAW_SUSPEND_MS);
}

static int withdraw_on_pods(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;
	const struct json *pod = json_first(json_get(response->object, "items"));

	withdrawing->request = NULL;
	if (err_is_set(&response->error))
		return withdraw_fail(withdrawing, &response->error);
	for (; pod; pod = json_next(pod))
		if (!str_empty(json_get_str(json_get(pod, "spec"), "nodeName")) ||
			withdraw_is_replaced(pod))
			return withdraw_stay(withdrawing);
	return withdraw_go(withdrawing);
}

static int withdraw_on_closed(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;

	withdrawing->request = NULL;
	if (response->error.id == E_KUBE_CONFLICT) {
		withdraw_again(withdrawing, WITHDRAW_AGAIN_MS, withdraw_begin);
		return 0;
	}
	if (err_is_set(&response->error) && response->error.id != E_KUBE_NOT_FOUND)
		return withdraw_fail(withdrawing, &response->error);
	withdraw_list(withdrawing, withdraw_on_pods);
	return 0;
}

/* The one that was read: a removal that comes late does not close a gate that was made again. */
static int withdraw_on_gate(void *ctx, struct kube_response *response, struct err *err)
{
	struct withdrawing *withdrawing = ctx;
	AUTO_FREE char *path = kube_gate_path(&withdrawing->handle);
	AUTO_JSON struct json *body = kube_reconcile_removal(NULL);

	withdrawing->request = NULL;
	if (err_is_set(&response->error))
		return withdraw_on_closed(withdrawing, response, err);
	json_set_str(json_sub(body, "preconditions"), "uid",
		kube_str_at(response->object, "metadata.uid"));
	withdraw_send(withdrawing, "DELETE", path, body, withdraw_on_closed);
	return 0;
}

/* The cluster has no Job of it. */
static int withdraw_missing(struct withdrawing *withdrawing, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (kube_annotation_is_gone(withdrawing->kube, &withdrawing->handle))
		return withdraw_look(withdrawing, err);
	switch (kube_arrival(withdrawing->kube, &withdrawing->handle)) {
	case KUBE_NEVER_SENT:
		return withdraw_sweep(withdrawing);
	case KUBE_ARRIVED:
		return withdraw_end(withdrawing, false);
	default:
		err_set(&error, E_TARGET_SILENT, "what was sent of %s may still arrive",
			withdrawing->handle.run_id);
		return withdraw_fail(withdrawing, &error);
	}
}

static int withdraw_on_job(void *ctx, struct kube_response *response, struct err *err)
{
	struct withdrawing *withdrawing = ctx;
	const struct kube_handle *handle = &withdrawing->handle;
	AUTO_ERR struct err error = {0};

	withdrawing->request = NULL;
	if (response->error.id == E_KUBE_NOT_FOUND)
		return withdraw_missing(withdrawing, err);
	if (err_is_set(&response->error))
		return withdraw_fail(withdrawing, &response->error);
	json_free(withdrawing->job);
	withdrawing->job = TAKE(response->object);
	if (kube_str_at(withdrawing->job, "metadata.deletionTimestamp"))
		return kube_annotation_is_gone(withdrawing->kube, handle)
			       ? withdraw_look(withdrawing, err)
			       : withdraw_end(withdrawing, false);
	if (kube_kind_has_ended(handle->kind, withdrawing->job))
		return withdraw_end(withdrawing, false);
	if (!kube_annotation(withdrawing->job, KUBE_ANNOTATION_GATE)) {
		err_set(&error, E_TARGET_UNSUPPORTED,
			"%s was submitted for this cluster alone, and is not taken back",
			handle->run_id);
		return withdraw_fail(withdrawing, &error);
	}
	if (withdraw_may_have_begun(withdrawing->job))
		return withdraw_stay(withdrawing);
	AUTO_FREE char *path = kube_gate_path(&withdrawing->handle);
	withdraw_send(withdrawing, "GET", path, NULL, withdraw_on_gate);
	return 0;
}

static int withdraw_begin(void *ctx, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;
	AUTO_FREE char *path = withdraw_job_path(withdrawing);

	withdrawing->timer = NULL;
	withdraw_send(withdrawing, "GET", path, NULL, withdraw_on_job);
	return 0;
}

int kube_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle parsed;
	struct withdrawing *withdrawing;

	int r = kube_handle_parse(kube, handle, &parsed, err);
	if (r == 0 && parsed.is_member)
		r = err_set(err, E_TARGET_UNSUPPORTED,
			"%s is one of a study, which stays in its cluster", parsed.run_id);
	if (r < 0)
		return r;
	withdrawing = mem_alloc(1, sizeof(*withdrawing));
	*withdrawing = (struct withdrawing){.work = {withdraw_drop},
		.kube = kube,
		.call = call,
		.handle = parsed,
		.ret_taken = ret_taken};
	target_call_begin(call, &withdrawing->work);
	withdraw_again(withdrawing, 0, withdraw_begin);
	return 0;
}

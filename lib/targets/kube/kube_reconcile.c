/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_reconcile.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "kube/status/object.h"
#include "kube/status/status.h"
#include "targets/kube/kube_study_logs.h"

enum {
	STEPS_MAX = 5 + KUBE_CODE_OBJECTS,
	ARRIVAL_S = 15,
	MARK_MAX = 64,
	LOGS_MS = 20, /* between two looks whether logs that are saved have begun */
};

#define MARK_MISSED  "missed"
#define MARK_STOPPED "stopped"
#define MARK_GONE    "withdrawn"
#define TEXT_ADOPTED "adopted\n"

/*
 * Notes
 */

static char *kube_reconcile_dir(const struct target_kube *kube, const struct kube_handle *handle)
{
	return handle->is_member
		       ? dirs_study(&kube->session->dirs, handle->owner)
		       : dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);
}

static char *mark_path(
	const struct target_kube *kube, const struct kube_handle *handle, const char *name)
{
	AUTO_FREE char *dir = kube_reconcile_dir(kube, handle);

	return fs_join(dir, name);
}

static bool has_mark(
	const struct target_kube *kube, const struct kube_handle *handle, const char *name)
{
	AUTO_FREE char *path = mark_path(kube, handle, name);

	return access(path, F_OK) == 0;
}

static void kube_reconcile_write_mark(const struct target_kube *kube,
	const struct kube_handle *handle, const char *name, const char *text)
{
	AUTO_FREE char *path = mark_path(kube, handle, name);
	AUTO_ERR struct err err = {0};

	int r = kube_annotation_sending(kube, handle, &err);
	if (r == 0)
		r = fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, &err);
	if (r < 0)
		log_note("%s", err.message);
}

int kube_annotation_sending(
	const struct target_kube *kube, const struct kube_handle *handle, struct err *err)
{
	AUTO_FREE char *dir = kube_reconcile_dir(kube, handle);

	return fs_mkdirs(dir, 0700, err);
}

void kube_annotation_accepted(
	const struct target_kube *kube, const struct kube_handle *handle, bool adopted)
{
	kube_reconcile_write_mark(kube, handle, ATTEMPT_ACCEPTED, adopted ? TEXT_ADOPTED : "");
}

void kube_annotation_mark(
	const struct target_kube *kube, const struct kube_handle *handle, const char *mark)
{
	kube_reconcile_write_mark(kube, handle, mark, "");
}

int kube_annotation_gone(
	const struct target_kube *kube, const struct kube_handle *handle, struct err *err)
{
	AUTO_FREE char *path = mark_path(kube, handle, MARK_GONE);
	int r = kube_annotation_sending(kube, handle, err);

	return r < 0 ? r : fs_replace(path, "", 0, 0600, FS_SYNC_FULL, err);
}

void kube_annotation_stays(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *path = mark_path(kube, handle, MARK_GONE);

	unlink(path);
}

bool kube_annotation_is_gone(const struct target_kube *kube, const struct kube_handle *handle)
{
	return has_mark(kube, handle, MARK_GONE);
}

bool kube_is_accepted(const struct target_kube *kube, const struct kube_handle *handle)
{
	return !kube_is_own(kube, handle) || has_mark(kube, handle, ATTEMPT_ACCEPTED);
}

bool kube_is_adopted(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *path = mark_path(kube, handle, ATTEMPT_ACCEPTED);
	AUTO_BUF struct buf text = {0};

	return fs_read(path, MARK_MAX, &text, NULL, NULL) == 0 && text.len == strlen(TEXT_ADOPTED);
}

bool kube_is_own(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *dir = dirs_run(&kube->session->dirs, handle->run_id);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);

	return access(lock, F_OK) == 0;
}

static bool kube_reconcile_is_locked(const struct target_kube *kube, const char *run_id)
{
	AUTO_FREE char *dir = dirs_run(&kube->session->dirs, run_id);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);

	return fs_is_locked(lock);
}

/* The lock of the first member is held as long as its study is made. */
static bool is_submitting(const struct target_kube *kube, const struct kube_handle *handle)
{
	char first[RUN_ID_SIZE];

	if (kube_reconcile_is_locked(kube, handle->run_id))
		return true;
	if (!handle->is_member)
		return false;
	run_member_id(handle->owner, 0, first);
	return kube_reconcile_is_locked(kube, first);
}

/* Counted from the first look, as nobody knows when the last request was sent. */
static bool kube_reconcile_is_over(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *path = mark_path(kube, handle, MARK_MISSED);
	struct stat st;
	int64_t age_s = -1;

	if (stat(path, &st) == 0)
		age_s = clock_wall_ms() / 1000 - st.st_mtime;
	if (age_s < 0)
		kube_annotation_mark(kube, handle, MARK_MISSED);
	return age_s >= ARRIVAL_S;
}

enum kube_arrival kube_arrival(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *attempt = mark_path(kube, handle, "");

	if (kube_is_accepted(kube, handle))
		return KUBE_ARRIVED;
	if (is_submitting(kube, handle))
		return KUBE_SUBMITTING;
	if (access(attempt, F_OK) < 0 || has_mark(kube, handle, KUBE_MARK_REFUSED))
		return KUBE_NEVER_SENT;
	return kube_reconcile_is_over(kube, handle) ? KUBE_NEVER_SENT : KUBE_ARRIVING;
}

/*
 * Requests
 */

static struct kube_request kube_reconcile_change(
	const char *method, const char *path, const struct json *body, int64_t deadline_ms)
{
	return (struct kube_request){
		.method = method,
		.path = path,
		.body = body,
		.content_type = str_eq(method, "PATCH") ? "application/merge-patch+json" : NULL,
		.is_idempotent = true,
		.deadline_ms = deadline_ms,
	};
}

struct kube_call *kube_reconcile_send(const struct target_kube *kube, const char *method,
	const char *path, const struct json *body, int64_t deadline_ms, kube_done_fn *done,
	void *ctx)
{
	struct kube_request request = kube_reconcile_change(method, path, body, deadline_ms);

	request.done = done;
	request.ctx = ctx;
	return kube_start(kube->cluster->client, &request);
}

struct json *kube_reconcile_removal(const char *policy)
{
	struct json *body = json_object();

	json_set_str(body, "apiVersion", "v1");
	json_set_str(body, "kind", "DeleteOptions");
	if (policy)
		json_set_str(body, "propagationPolicy", policy);
	return body;
}

struct step {
	struct kube_reconcile *repair;
	struct kube_call *call;
	bool is_job;
};

struct stopping;

static void stop_drop(struct stopping *stopping);

struct kube_reconcile {
	struct target_kube *kube;
	struct loop_timer *timer;  /* until logs that are saved have begun */
	struct stopping *stopping; /* of a member; or NULL */
	struct kube_handle handle;
	unsigned what; /* KUBE_RECONCILE_ */
	bool is_gated, has_code;
	struct json *owner; /* with ADOPT */
	struct step steps[STEPS_MAX];
	size_t n, n_open;
	int64_t deadline_ms;
	struct err error;
	void (*done)(void *ctx, struct err *error);
	void *ctx;
};

void kube_reconcile_cancel(struct kube_reconcile *repair)
{
	if (!repair)
		return;
	for (size_t i = 0; i < repair->n; i++)
		kube_cancel(repair->steps[i].call);
	loop_remove_timer(repair->kube->target.loop, repair->timer);
	stop_drop(repair->stopping);
	json_free(repair->owner);
	err_done(&repair->error);
	free(repair);
}

static bool kube_reconcile_is_error(const struct step *step, const struct err *error)
{
	if (!err_is_set(error) || error->id == E_KUBE_NOT_FOUND)
		return false;
	return step->is_job || error->id != E_KUBE_DENIED;
}

static void kube_reconcile_end(struct kube_reconcile *repair)
{
	AUTO_ERR struct err error = {0};
	void (*done)(void *, struct err *) = repair->done;
	void *ctx = repair->ctx;

	if (err_is_set(&repair->error))
		err_move(&error, &repair->error);
	kube_reconcile_cancel(repair);
	done(ctx, &error);
}

/*
 * Members of a study that are ended
 */

enum { PODS_MAX = 50000 };

/* A member. */
struct stopping {
	struct kube_stop *stop;
	struct kube_handle handle;
	struct kube_reconcile *repair; /* NULL: given up */
};

/* A pod that is removed. */
struct stop_removal {
	struct kube_stop *stop;
	struct kube_call *call;
};

/* Members of one Job. */
struct kube_stop {
	struct kube_stop *next;
	struct target_kube *kube;
	struct kube_handle handle; /* of the first of them */
	struct VEC_OF(struct stopping *) list;
	struct loop_timer *timer; /* until it begins */
	struct kube_call *call;
	struct json *job, *config, *pods;
	struct stop_removal *removals;
	size_t n_removals, n_open;
	int64_t deadline_ms;
	bool *wanted; /* by index, below n: in list */
	int n;
	struct err error;
};

bool kube_member_is_stopped(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *path = kube_attempt_path(kube, handle, MARK_STOPPED);

	return handle->is_member && access(path, F_OK) == 0;
}

static void stop_free(struct kube_stop *stop)
{
	struct kube_stop **at = &stop->kube->stops;

	while (*at && *at != stop)
		at = &(*at)->next;
	if (*at)
		*at = stop->next;
	loop_remove_timer(stop->kube->target.loop, stop->timer);
	kube_cancel(stop->call);
	for (size_t i = 0; i < stop->n_removals; i++)
		kube_cancel(stop->removals[i].call);
	free(stop->removals);
	vec_foreach (struct stopping *, item, &stop->list)
		free(*item);
	vec_done(&stop->list);
	json_free(stop->job);
	json_free(stop->config);
	json_free(stop->pods);
	free(stop->wanted);
	err_done(&stop->error);
	free(stop);
}

void kube_stops_free(struct kube_stop *stops)
{
	for (struct kube_stop *next; stops; stops = next) {
		next = stops->next;
		stop_free(stops);
	}
}

/* NULL is accepted. */
static void stop_drop(struct stopping *stopping)
{
	struct kube_stop *stop = stopping ? stopping->stop : NULL;

	if (!stop)
		return;
	stopping->repair = NULL;
	vec_foreach (struct stopping *, item, &stop->list)
		if ((*item)->repair)
			return;
	stop_free(stop);
}

static void stop_end(struct kube_stop *stop)
{
	struct VEC_OF(struct kube_reconcile *) repairs = {0};

	vec_foreach (struct stopping *, item, &stop->list) {
		struct kube_reconcile *repair = (*item)->repair;
		AUTO_FREE char *mark =
			kube_attempt_path(stop->kube, &(*item)->handle, MARK_STOPPED);
		AUTO_ERR struct err err = {0};
		if (!err_is_set(&stop->error) &&
			fs_replace(mark, "", 0, 0600, FS_SYNC_NONE, &err) < 0)
			log_note("%s", err.message);
		if (!repair)
			continue;
		repair->stopping = NULL;
		err_copy(&repair->error, &stop->error);
		*vec_push(&repairs) = repair;
	}
	stop_free(stop);
	vec_foreach (struct kube_reconcile *, repair, &repairs)
		kube_reconcile_end(*repair);
	vec_done(&repairs);
}

/* Entries of the ConfigMap, one for each member that is wanted; NULL as value removes them. */
static void stop_add_marks(const struct kube_stop *stop, const char *prefix, const bool *wanted,
	const char *value, struct json *body)
{
	struct json *data = json_sub(body, "data");

	for (int i = 0; i < stop->n; i++) {
		AUTO_FREE char *key = mem_printf("%s%d", prefix, i);
		if (wanted[i])
			json_set_str(data, key, value);
	}
}

static char *stop_config_path(const struct kube_stop *stop)
{
	return kube_path("/api/v1/namespaces/%s/configmaps/%s", stop->handle.kube_namespace,
		stop->handle.name);
}

static void stop_fail(struct kube_stop *stop, struct err *error)
{
	if (error->id != E_KUBE_NOT_FOUND && !err_is_set(&stop->error))
		err_move(&stop->error, error);
}

static struct kube_call *stop_send(const struct kube_stop *stop, const char *method,
	const char *path, const struct json *body, kube_done_fn *done, void *ctx)
{
	return kube_reconcile_send(stop->kube, method, path, body, stop->deadline_ms, done, ctx);
}

static char *stop_job_path(const struct kube_stop *stop)
{
	return kube_kind_path(KUBE_KIND_JOB, stop->handle.kube_namespace, stop->handle.name);
}

/*
 * All that is left of a study
 */

static int stop_on_last(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_stop *stop = ctx;

	stop->call = NULL;
	if (err_is_set(&response->error))
		stop_fail(stop, &response->error);
	stop_end(stop);
	return 0;
}

static void stop_remove_job(struct kube_stop *stop)
{
	AUTO_FREE char *path = stop_job_path(stop);
	AUTO_JSON struct json *body = kube_reconcile_removal("Foreground");

	stop->call = stop_send(stop, "DELETE", path, body, stop_on_last, stop);
}

/* A user who may not change Jobs may remove them. */
static int stop_on_ended(void *ctx, struct kube_response *response, struct err *err)
{
	struct kube_stop *stop = ctx;

	if (response->error.id != E_KUBE_DENIED)
		return stop_on_last(ctx, response, err);
	stop->call = NULL;
	stop_remove_job(stop);
	return 0;
}

/* A Job that has no pod and fails by its deadline keeps the pods of those that have ended. */
static void stop_job(struct kube_stop *stop)
{
	const struct json *status = json_get(stop->job, "status");
	bool has_begun = json_get_int(status, "active", 0) > 0 ||
			 !str_empty(json_get_str(status, "completedIndexes")) ||
			 !str_empty(json_get_str(status, "failedIndexes"));
	AUTO_FREE char *path = stop_job_path(stop);
	AUTO_JSON struct json *body = json_object();
	struct json *spec = json_sub(body, "spec");

	if (!has_begun && json_get_bool(json_get(stop->job, "spec"), "suspend", false)) {
		stop_remove_job(stop);
		return;
	}
	int64_t at_once = json_get_int(json_get(stop->job, "spec"), "parallelism", 0);
	AUTO_FREE char *text = mem_printf("%lld", (long long)at_once);

	if (at_once > 0)
		json_set_str(json_sub(json_sub(body, "metadata"), "annotations"),
			KUBE_ANNOTATION_AT_ONCE, text);
	json_set_int(spec, "parallelism", 0);
	json_set_int(spec, "activeDeadlineSeconds", 1);
	stop->call = stop_send(stop, "PATCH", path, body, stop_on_ended, stop);
}

/*
 * Some of its members
 */

static bool stop_is_wanted(const struct kube_stop *stop, const struct json *pod)
{
	const char *phase = kube_str_at(pod, "status.phase");
	int64_t index = kube_number(kube_completion_index(pod), -1);

	return index >= 0 && index < stop->n && stop->wanted[index] && !kube_deleted_ms(pod) &&
	       !str_eq(phase, "Succeeded") && !str_eq(phase, "Failed");
}

/*
 * With --fail-fast the failure of a member whose pod is removed is not to end the others: until the
 * pod has ended, one more may fail.
 */

static bool stop_is_fast(const struct kube_stop *stop)
{
	return json_get(json_get(stop->job, "spec"), "maxFailedIndexes") != NULL;
}

/* The change of the Job that the ConfigMap's marks ask for. */
static struct json *stop_allowance(const struct kube_stop *stop)
{
	static const size_t prefix = sizeof(KUBE_STUDY_CANCEL) - 1;
	const struct json *item = json_get(stop->config, "data");
	AUTO_FREE bool *marks = mem_alloc((size_t)stop->n + 1, sizeof(*marks));
	struct json *body = json_object();
	int64_t n = 0;

	for (item = json_first(item); item; item = json_next(item)) {
		bool is_cancel = str_starts(json_key(item), KUBE_STUDY_CANCEL);
		int64_t index = is_cancel ? kube_number(json_key(item) + prefix, -1) : -1;
		if (index >= 0 && index < stop->n)
			marks[index] = true;
		n += str_starts(json_key(item), KUBE_STUDY_ENDS);
	}
	AUTO_FREE char *cancelled = kube_list_indexes(marks, stop->n);
	json_set_str(json_sub(json_sub(body, "metadata"), "annotations"), KUBE_ANNOTATION_CANCELLED,
		cancelled);
	json_set_int(json_sub(body, "spec"), "maxFailedIndexes", n);
	return body;
}

/* Members whose pods are removed, but for those that have tries left: they do not fail by that, and
 * their next pod does not begin. */
static bool stop_choose_ends(const struct kube_stop *stop, bool *ret)
{
	static const char failures[] = "batch.kubernetes.io/job-index-failure-count";
	int64_t retries = json_get_int(json_get(stop->job, "spec"), "backoffLimitPerIndex", 0);
	const struct json *pod = kube_first(stop->pods, "items");
	bool any = false;

	for (; pod; pod = json_next(pod)) {
		if (!stop_is_wanted(stop, pod) ||
			kube_number(kube_annotation(pod, failures), 0) < retries)
			continue;
		ret[kube_number(kube_completion_index(pod), 0)] = true;
		any = true;
	}
	return any;
}

/* A pod that may not be removed goes on, and so does the member. */
static void stop_take_back(const struct kube_stop *stop)
{
	AUTO_FREE char *path = stop_config_path(stop), *job_path = stop_job_path(stop);
	AUTO_JSON struct json *body = json_object(), *job = NULL;

	stop_add_marks(stop, KUBE_STUDY_CANCEL, stop->wanted, NULL, body);
	stop_add_marks(stop, KUBE_STUDY_ENDS, stop->wanted, NULL, body);
	const struct kube_request request =
		kube_reconcile_change("PATCH", path, body, stop->deadline_ms);
	kube_start_detached(stop->kube->cluster->client, &request);
	if (!stop_is_fast(stop))
		return;
	for (const struct json *item = json_first(json_get(body, "data")); item;
		item = json_next(item))
		json_remove(json_sub(stop->config, "data"), json_key(item));
	job = stop_allowance(stop);
	const struct kube_request change =
		kube_reconcile_change("PATCH", job_path, job, stop->deadline_ms);
	kube_start_detached(stop->kube->cluster->client, &change);
}

static int stop_on_removed(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct stop_removal *removal = ctx;
	struct kube_stop *stop = removal->stop;

	removal->call = NULL;
	if (err_is_set(&response->error))
		stop_fail(stop, &response->error);
	if (--stop->n_open > 0)
		return 0;
	if (stop->error.id == E_KUBE_DENIED)
		stop_take_back(stop);
	stop_end(stop);
	return 0;
}

static void stop_remove_pods(struct kube_stop *stop)
{
	const struct json *pod = kube_first(stop->pods, "items");

	stop->removals =
		mem_alloc(json_count(json_get(stop->pods, "items")) + 1, sizeof(*stop->removals));
	for (; pod; pod = json_next(pod)) {
		const char *name = kube_str_at(pod, "metadata.name");
		if (!name || !stop_is_wanted(stop, pod))
			continue;
		AUTO_FREE char *path = kube_path(
			"/api/v1/namespaces/%s/pods/%s", stop->handle.kube_namespace, name);
		struct stop_removal *removal = &stop->removals[stop->n_removals++];
		removal->stop = stop;
		stop->n_open++;
		removal->call = stop_send(stop, "DELETE", path, NULL, stop_on_removed, removal);
	}
	if (stop->n_open == 0)
		stop_end(stop);
}

static int stop_on_allowed(void *ctx, struct kube_response *response, struct err *err)
{
	struct kube_stop *stop = ctx;

	/* Members that are marked would end with 0, and be taken for done. */
	if (response->error.id == E_KUBE_DENIED)
		stop_take_back(stop);
	if (err_is_set(&response->error))
		return stop_on_last(ctx, response, err);
	stop->call = NULL;
	stop_remove_pods(stop);
	return 0;
}

static void stop_allow(struct kube_stop *stop)
{
	AUTO_FREE char *path = stop_job_path(stop);
	AUTO_JSON struct json *body = stop_allowance(stop);

	stop->call = stop_send(stop, "PATCH", path, body, stop_on_allowed, stop);
}

static int stop_on_counted(void *ctx, struct kube_response *response, struct err *err)
{
	struct kube_stop *stop = ctx;

	if (err_is_set(&response->error))
		return stop_on_last(ctx, response, err);
	stop->call = NULL;
	json_free(stop->config);
	stop->config = TAKE(response->object);
	stop_allow(stop);
	return 0;
}

static int stop_on_pods(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_stop *stop = ctx;
	AUTO_FREE bool *ends = mem_alloc((size_t)stop->n + 1, sizeof(*ends));
	AUTO_FREE char *path = stop_config_path(stop);
	AUTO_JSON struct json *body = json_object();

	stop->call = NULL;
	if (err_is_set(&response->error))
		stop_fail(stop, &response->error);
	stop->pods = TAKE(response->object);
	if (err_is_set(&stop->error) || !stop_is_fast(stop)) {
		stop_remove_pods(stop);
	} else if (stop_choose_ends(stop, ends)) {
		stop_add_marks(stop, KUBE_STUDY_ENDS, ends, "", body);
		stop->call = stop_send(stop, "PATCH", path, body, stop_on_counted, stop);
	} else {
		stop_allow(stop);
	}
	return 0;
}

static int stop_on_marked(void *ctx, struct kube_response *response, struct err *err)
{
	struct kube_stop *stop = ctx;

	if (err_is_set(&response->error))
		return stop_on_last(ctx, response, err);
	stop->call = NULL;
	stop->config = TAKE(response->object);
	const struct kube_handle *handle = &stop->handle;
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", handle->kube_namespace);
	AUTO_FREE char *selector =
		stop->list.n == 1 ? kube_handle_pods(handle) : kube_handle_jobs(handle);
	const char *const query[] = {"labelSelector", selector, "fieldSelector",
		"status.phase!=Succeeded,status.phase!=Failed", NULL};
	stop->call = kube_list(stop->kube->cluster->client, path, query, PODS_MAX,
		stop->deadline_ms, stop_on_pods, stop);
	return 0;
}

/*
 * The choice
 */

static bool stop_is_over(const struct kube_stop *stop, int index)
{
	char id[RUN_ID_SIZE];

	if (stop->wanted[index] || kube_member_has_ended(stop->job, index))
		return true;
	run_member_id(stop->handle.owner, (size_t)index, id);
	AUTO_FREE char *dir = dirs_attempt(&stop->kube->session->dirs, id, 1);
	AUTO_FREE char *mark = fs_join(dir, ATTEMPT_CANCEL);
	return access(mark, F_OK) == 0;
}

/* Nothing of the study is left to run. The search begins behind the member, so that it is short for
 * those that are cancelled one after the other. */
static bool stop_is_last(const struct kube_stop *stop)
{
	int last = stop->list.v[stop->list.n - 1]->handle.index;

	for (int i = 1; i <= stop->n; i++)
		if (!stop_is_over(stop, (last + i) % stop->n))
			return false;
	return true;
}

static int stop_on_job(void *ctx, struct kube_response *response, struct err *err)
{
	struct kube_stop *stop = ctx;

	if (err_is_set(&response->error) || kube_kind_has_ended(KUBE_KIND_JOB, response->object))
		return stop_on_last(ctx, response, err);
	stop->call = NULL;
	stop->job = TAKE(response->object);
	int64_t n = json_get_int(json_get(stop->job, "spec"), "completions", 0);
	stop->n = n > 0 && n <= KUBE_MEMBERS_MAX ? (int)n : 0;
	stop->wanted = mem_alloc((size_t)stop->n + 1, sizeof(bool));
	vec_foreach (struct stopping *, item, &stop->list)
		if ((*item)->handle.index < stop->n)
			stop->wanted[(*item)->handle.index] = true;
	if (stop_is_last(stop)) {
		stop_job(stop);
		return 0;
	}
	AUTO_FREE char *path = stop_config_path(stop);
	AUTO_JSON struct json *body = json_object();
	stop_add_marks(stop, KUBE_STUDY_CANCEL, stop->wanted, "", body);
	stop->call = stop_send(stop, "PATCH", path, body, stop_on_marked, stop);
	return 0;
}

/* The marks of all of them, before anything is sent. The first directory makes a journal write what
 * belongs to the others. */
static int stop_sync_marks(const struct kube_stop *stop, struct err *err)
{
	const struct dirs *dirs = &stop->kube->session->dirs;
	int r = 0;

	vec_foreach (struct stopping *, item, &stop->list) {
		const struct kube_handle *handle = &(*item)->handle;
		AUTO_FREE char *dir = dirs_attempt(dirs, handle->run_id, handle->attempt);
		if (r == 0)
			r = fs_sync_dir(dir, err);
	}
	return r;
}

/* Not before logs that are saved meanwhile have begun: they end with their pods. */
static int stop_begin(void *ctx, struct err *err UNUSED)
{
	struct kube_stop *stop = ctx;
	AUTO_FREE char *path = stop_job_path(stop);

	if (kube_logs_are_opening(stop->kube, &stop->handle)) {
		stop->timer = loop_add_timer(
			stop->kube->target.loop, clock_ms() + LOGS_MS, stop_begin, stop);
		return 0;
	}
	stop->timer = NULL;
	if (stop_sync_marks(stop, &stop->error) < 0) {
		stop_end(stop);
		return 0;
	}
	stop->call = stop_send(stop, "GET", path, NULL, stop_on_job, stop);
	return 0;
}

static struct stopping *stop_member(struct target_kube *kube, struct kube_reconcile *repair)
{
	const struct kube_handle *handle = &repair->handle;
	struct stopping *stopping = mem_alloc(1, sizeof(*stopping));
	struct kube_stop *stop = kube->stops;

	while (stop && (!stop->timer || !str_eq(stop->handle.name, handle->name) ||
			       !str_eq(stop->handle.kube_namespace, handle->kube_namespace)))
		stop = stop->next;
	if (!stop) {
		stop = mem_alloc(1, sizeof(*stop));
		*stop = (struct kube_stop){.next = kube->stops, .kube = kube, .handle = *handle};
		stop->timer = loop_add_timer(kube->target.loop, 0, stop_begin, stop);
		kube->stops = stop;
	}
	if (repair->deadline_ms > stop->deadline_ms)
		stop->deadline_ms = repair->deadline_ms;
	*stopping = (struct stopping){.stop = stop, .handle = *handle, .repair = repair};
	*vec_push(&stop->list) = stopping;
	return stopping;
}

/*
 * Steps
 */

static void send_rest(struct kube_reconcile *repair);

static int on_step(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct step *step = ctx;
	struct kube_reconcile *repair = step->repair;

	step->call = NULL;
	if (kube_reconcile_is_error(step, &response->error) && !err_is_set(&repair->error))
		err_move(&repair->error, &response->error);
	if (--repair->n_open > 0)
		return 0;
	/* A Job that is still there needs what goes with it. */
	if (step->is_job && !err_is_set(&repair->error))
		send_rest(repair);
	if (repair->n_open == 0)
		kube_reconcile_end(repair);
	return 0;
}

static void send_step(struct kube_reconcile *repair, const char *method, const char *path,
	const struct json *body, bool is_job)
{
	struct step *step = &repair->steps[repair->n++];

	*step = (struct step){.repair = repair, .is_job = is_job};
	repair->n_open++;
	step->call = kube_reconcile_send(
		repair->kube, method, path, body, repair->deadline_ms, on_step, step);
}

static void remove_job(struct kube_reconcile *repair, bool in_foreground)
{
	const struct kube_handle *handle = &repair->handle;
	AUTO_FREE char *path = kube_kind_path(handle->kind, handle->kube_namespace, handle->name);
	AUTO_JSON struct json *body =
		kube_reconcile_removal(in_foreground ? "Foreground" : "Background");

	send_step(repair, "DELETE", path, body, true);
}

/* Logs end with the pods that are removed. */
static int remove_when_logged(void *ctx, struct err *err UNUSED)
{
	struct kube_reconcile *repair = ctx;
	struct loop *loop = repair->kube->target.loop;

	repair->timer = NULL;
	if (kube_logs_are_opening(repair->kube, &repair->handle))
		repair->timer =
			loop_add_timer(loop, clock_ms() + LOGS_MS, remove_when_logged, repair);
	else
		remove_job(repair, true);
	return 0;
}

char *kube_gate_path(const struct kube_handle *handle)
{
	AUTO_FREE char *name = kube_job_gate_name(handle->name);

	return kube_path("/api/v1/namespaces/%s/configmaps/%s", handle->kube_namespace, name);
}

static void send_parts(struct kube_reconcile *repair, const char *method, const struct json *body)
{
	const struct kube_handle *handle = &repair->handle;
	AUTO_FREE char *name = kube_job_secret_name(handle->name);
	AUTO_FREE char *secret =
		kube_path("/api/v1/namespaces/%s/secrets/%s", handle->kube_namespace, name);
	AUTO_FREE char *other = kube_path("/api/v1/namespaces/%s/%s/%s", handle->kube_namespace,
		handle->is_member ? "configmaps" : "services", handle->name);
	AUTO_FREE char *gate = kube_gate_path(handle);

	send_step(repair, method, secret, body, false);
	if (repair->is_gated)
		send_step(repair, method, gate, body, false);
	for (size_t i = 0; repair->has_code && i < KUBE_CODE_OBJECTS; i++) {
		AUTO_FREE char *code = kube_job_code_name(handle->name, i);
		AUTO_FREE char *path = kube_path(
			"/api/v1/namespaces/%s/configmaps/%s", handle->kube_namespace, code);
		send_step(repair, method, path, body, false);
	}
	/* The Service of a JobSet belongs to the JobSet already. */
	if (handle->kind == KUBE_KIND_JOB)
		send_step(repair, method, other, body, false);
}

static void send_rest(struct kube_reconcile *repair)
{
	if (repair->what & KUBE_RECONCILE_PARTS)
		send_parts(repair, "DELETE", NULL);
	if (repair->what & KUBE_RECONCILE_CLAIM) {
		const struct kube_handle *handle = &repair->handle;
		AUTO_FREE char *name = kube_job_claim_name(handle->owner);
		AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/persistentvolumeclaims/%s",
			handle->kube_namespace, name);

		send_step(repair, "DELETE", path, NULL, false);
	}
	if (repair->what & KUBE_RECONCILE_ADOPT)
		send_parts(repair, "PATCH", repair->owner);
}

struct kube_reconcile *kube_reconcile_start(
	struct target_kube *kube, const struct kube_reconcile_request *request)
{
	struct kube_reconcile *repair = mem_alloc(1, sizeof(*repair));
	bool adopts = request->what & KUBE_RECONCILE_ADOPT;

	*repair = (struct kube_reconcile){.kube = kube,
		.handle = *request->handle,
		.what = request->what,
		.is_gated = has_mark(kube, request->handle, KUBE_MARK_GATED),
		.has_code = has_mark(kube, request->handle, KUBE_MARK_CODE),
		.owner = adopts ? kube_job_owner(request->made) : NULL,
		.deadline_ms = request->deadline_ms,
		.done = request->done,
		.ctx = request->ctx};
	if (request->what & KUBE_RECONCILE_MEMBER)
		repair->stopping = stop_member(kube, repair);
	else if (request->what & KUBE_RECONCILE_JOB && request->in_foreground)
		remove_when_logged(repair, NULL);
	else if (request->what & KUBE_RECONCILE_JOB)
		remove_job(repair, false);
	else
		send_rest(repair);
	return repair;
}

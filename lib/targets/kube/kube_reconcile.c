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

enum { STEPS_MAX = 4, ARRIVAL_S = 15, MARK_MAX = 64 };

#define MARK_REFUSED "refused"
#define MARK_MISSED  "missed"
#define TEXT_ADOPTED "adopted\n"

/*
 * Notes
 */

static char *mark_path(
	const struct target_kube *kube, const struct kube_handle *handle, const char *name)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);

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
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);

	return fs_mkdirs(dir, 0700, err);
}

void kube_annotation_accepted(
	const struct target_kube *kube, const struct kube_handle *handle, bool adopted)
{
	kube_reconcile_write_mark(kube, handle, ATTEMPT_ACCEPTED, adopted ? TEXT_ADOPTED : "");
}

void kube_annotation_refused(const struct target_kube *kube, const struct kube_handle *handle)
{
	kube_reconcile_write_mark(kube, handle, MARK_REFUSED, "");
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

static bool is_submitting(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *dir = dirs_run(&kube->session->dirs, handle->run_id);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);

	return fs_is_locked(lock);
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
		kube_reconcile_write_mark(kube, handle, MARK_MISSED, "");
	return age_s >= ARRIVAL_S;
}

enum kube_arrival kube_arrival(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *attempt = mark_path(kube, handle, "");

	if (kube_is_accepted(kube, handle))
		return KUBE_ARRIVED;
	if (is_submitting(kube, handle))
		return KUBE_SUBMITTING;
	if (access(attempt, F_OK) < 0 || has_mark(kube, handle, MARK_REFUSED))
		return KUBE_NEVER_SENT;
	return kube_reconcile_is_over(kube, handle) ? KUBE_NEVER_SENT : KUBE_ARRIVING;
}

/*
 * Requests
 */

struct step {
	struct kube_reconcile *repair;
	struct kube_call *call;
	bool is_job;
};

struct kube_reconcile {
	struct kube_client *client;
	struct kube_handle handle;
	unsigned what;      /* KUBE_RECONCILE_ */
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

static void send_rest(struct kube_reconcile *repair);

static int on_step(void *ctx, struct kube_response *response, struct err *err)
{
	struct step *step = ctx;
	struct kube_reconcile *repair = step->repair;

	(void)err;
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
	const struct kube_request request = {
		.method = method,
		.path = path,
		.body = body,
		.content_type = str_eq(method, "PATCH") ? "application/merge-patch+json" : NULL,
		.is_idempotent = true,
		.deadline_ms = repair->deadline_ms,
		.done = on_step,
		.ctx = step,
	};

	*step = (struct step){.repair = repair, .is_job = is_job};
	repair->n_open++;
	step->call = kube_start(repair->client, &request);
}

static void remove_job(struct kube_reconcile *repair, bool in_foreground)
{
	const struct kube_handle *handle = &repair->handle;
	AUTO_FREE char *path = kube_kind_path(handle->kind, handle->kube_namespace, handle->name);
	AUTO_JSON struct json *body = json_object();

	json_set_str(body, "apiVersion", "v1");
	json_set_str(body, "kind", "DeleteOptions");
	json_set_str(body, "propagationPolicy", in_foreground ? "Foreground" : "Background");
	send_step(repair, "DELETE", path, body, true);
}

static void send_parts(struct kube_reconcile *repair, const char *method, const struct json *body)
{
	const struct kube_handle *handle = &repair->handle;
	AUTO_FREE char *name = kube_job_secret_name(handle->name);
	AUTO_FREE char *secret =
		kube_path("/api/v1/namespaces/%s/secrets/%s", handle->kube_namespace, name);
	AUTO_FREE char *service = kube_path(
		"/api/v1/namespaces/%s/services/%s", handle->kube_namespace, handle->name);

	send_step(repair, method, secret, body, false);
	/* The Service of a JobSet belongs to the JobSet already. */
	if (handle->kind == KUBE_KIND_JOB)
		send_step(repair, method, service, body, false);
}

static void send_rest(struct kube_reconcile *repair)
{
	if (repair->what & KUBE_RECONCILE_PARTS)
		send_parts(repair, "DELETE", NULL);
	if (repair->what & KUBE_RECONCILE_CLAIM) {
		const struct kube_handle *handle = &repair->handle;
		AUTO_FREE char *name = kube_job_claim_name(handle->run_id);
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

	*repair = (struct kube_reconcile){.client = kube->cluster->client,
		.handle = *request->handle,
		.what = request->what,
		.owner = adopts ? kube_job_owner(request->made) : NULL,
		.deadline_ms = request->deadline_ms,
		.done = request->done,
		.ctx = request->ctx};
	if (request->what & KUBE_RECONCILE_JOB)
		remove_job(repair, request->in_foreground);
	else
		send_rest(repair);
	return repair;
}

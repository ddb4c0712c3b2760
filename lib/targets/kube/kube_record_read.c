/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_record_read.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/foreign.h"
#include "kube/job/job.h"
#include "targets/kube/target_kube.h"

enum { USER_MAX = 4096 };

static struct json *parse(const struct json *notes, const char *key)
{
	const char *text = json_get_str(notes, key);
	struct json *json = NULL;

	if (!text || json_parse(text, strlen(text), KUBE_RECORD_MAX, key, &json, NULL) < 0)
		return NULL;
	if (json_kind(json) == JSON_OBJECT)
		return json;
	json_free(json);
	return NULL;
}

/*
 * Runs
 */

static bool is_own(const struct kube_record_place *place, const char *user)
{
	return user && (str_eq(user, place->cluster_user) || str_eq(user, place->login));
}

/* All attempts up to the newest that there is a Job of. */
static void add_attempts(
	struct run *run, const struct kube_record_place *place, const struct kube_handle *newest)
{
	for (int i = 1; i <= newest->attempt && i <= KUBE_RECORD_ATTEMPTS_MAX; i++) {
		AUTO_FREE char *name = kube_job_name(newest->run_id, i);
		AUTO_FREE char *handle = kube_handle_text(
			place->server_id, place->kube_namespace, newest->kind, name);
		run_add_attempt(run, handle);
	}
}

static struct run *make(const struct json *object, const struct kube_handle *handle,
	const struct kube_record_place *place)
{
	const struct json *notes = json_get(json_get(object, "metadata"), "annotations");
	const char *user = json_get_str(notes, KUBE_NOTE_USER);
	AUTO_JSON struct json *record = parse(notes, KUBE_NOTE_RECORD);
	AUTO_JSON struct json *spec = parse(notes, KUBE_NOTE_SPEC);
	AUTO_FREE char *name = mem_strndup(handle->run_id, strlen(handle->run_id) - RUN_SUFFIX - 1);
	struct run *run = run_new(handle->run_id, name);
	struct json *adopted;

	foreign_take(run, record, spec, NULL);
	json_set(run->doc, "target", json_clone(place->target));
	if (!json_get(json_get(run->doc, "target"), "hosts"))
		json_set(json_sub(run->doc, "target"), "hosts", json_array());
	adopted = json_sub(run->doc, "adopted");
	json_set_str(adopted, "user", user && strlen(user) <= USER_MAX ? user : NULL);
	json_set_bool(adopted, "own", is_own(place, user));
	run_set_state(run, RUN_QUEUED);
	add_attempts(run, place, handle);
	return run;
}

/* The handle that the object's name and labels agree on. */
static bool read_handle(const struct json *object, enum kube_kind list,
	const struct kube_record_place *place, struct kube_handle *ret)
{
	const struct json *metadata = json_get(object, "metadata");
	const struct json *labels = json_get(metadata, "labels");
	const char *name = json_get_str(metadata, "name");
	const char *jobset =
		list == KUBE_KIND_JOBSET ? name : json_get_str(labels, KUBE_JOBSET_NAME);
	enum kube_kind kind = jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB;
	struct kube_cluster cluster = {0};
	const struct target_kube kube = {.cluster = &cluster};

	if (!name || !str_eq(json_get_str(labels, "app.kubernetes.io/managed-by"), KUBE_MANAGED_BY))
		return false;
	AUTO_FREE char *text = kube_handle_text(
		place->server_id, place->kube_namespace, kind, jobset ? jobset : name);
	memcpy(cluster.server_id, place->server_id, strlen(place->server_id) + 1);
	return kube_handle_parse(&kube, text, ret, NULL) == 0 &&
	       (list == KUBE_KIND_JOBSET || str_eq(ret->job, name)) &&
	       str_eq(json_get_str(labels, KUBE_LABEL_RUN), ret->run_id);
}

/* An attempt that is older than the one that is known already says nothing new. */
static bool is_known(struct run_list *runs, const struct kube_handle *handle)
{
	for (size_t i = 0; i < runs->n; i++) {
		if (!str_eq(run_id(runs->v[i]), handle->run_id))
			continue;
		if (run_attempts(runs->v[i]) >= handle->attempt)
			return true;
		run_free(runs->v[i]);
		runs->v[i] = runs->v[--runs->n];
		return false;
	}
	return false;
}

void kube_record_read(const struct json *objects, enum kube_kind kind, const char *id,
	const struct kube_record_place *place, struct run_list *ret)
{
	const struct json *items = json_get(objects, "items");

	for (const struct json *at = items ? json_first(items) : NULL; at; at = json_next(at)) {
		struct kube_handle handle;

		if (!read_handle(at, kind, place, &handle) || (id && !str_eq(id, handle.run_id)) ||
			is_known(ret, &handle))
			continue;
		*vec_push(ret) = make(at, &handle, place);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/kube/target_kube.h"

/*
 * Preview of a submit: the objects it would create, and whether the API server accepts them.
 */

enum { ASK_MS = 10000, BEFORE_MAX = 3 };

/* The server checks every field and keeps nothing. */
static int ask(const struct target_kube *kube, const struct json *object, struct strv *notes,
	struct err *err)
{
	static const char *const query[] = {"dryRun", "All", "fieldValidation", "Strict", NULL};
	AUTO_FREE char *path = kube_object_collection(object);
	AUTO_ERR struct err fault = {0};
	const struct kube_request request = {
		.method = "POST",
		.path = path,
		.query = query,
		.body = object,
		.is_idempotent = true,
		.deadline_ms = clock_ms() + ASK_MS,
	};

	if (kube_ask(kube->cluster->client, &request, NULL, NULL, &fault) == 0)
		return 0;
	if (fault.id == E_KUBE_INVALID)
		return err_move(err, &fault);
	strv_addf(notes, "not checked by the cluster: %s", fault.message);
	return 1;
}

static struct json *without_values(const struct json *object)
{
	struct json *copy = json_clone(object), *data = json_object();

	if (!json_get(object, "data"))
		json_free(data);
	else {
		for (const struct json *item = json_first(json_get(object, "data")); item;
			item = json_next(item))
			json_set_str(data, json_key(item), "");
		json_set(copy, "data", data);
	}
	return copy;
}

int kube_preview(struct target *target, const struct target_job *job, struct json **ret,
	struct strv *ret_notes, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	AUTO_KUBE_PLAN struct kube_plan plan = {0};
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_JSON struct json *list = json_array();
	const struct json *all[BEFORE_MAX + 1];
	size_t n;
	int r = kube_plan_make(kube, job, &plan, err);

	if (r == 0)
		r = kube_job_make(&plan.run, &objects, err);
	if (r < 0)
		return r;
	n = kube_objects_before(&objects, all);
	all[n++] = objects.job;
	for (size_t i = 0; i < objects.notes.n; i++)
		strv_add(ret_notes, objects.notes.v[i]);
	for (size_t i = 0; i < n; i++) {
		if (r == 0)
			r = ask(kube, all[i], ret_notes, err);
		if (r < 0)
			return r;
		json_add(list, without_values(all[i]));
	}
	*ret = TAKE(list);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_record.h"

#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "core/store/store.h"

static int make(const struct target_kube *kube, const struct kube_handle *handle,
	const struct run *run, struct json **ret, struct err *err)
{
	AUTO_FREE char *text = kube_handle_text(
		handle->server, handle->kube_namespace, handle->kind, handle->name);
	AUTO_SPEC struct spec spec = {0};
	AUTO_KUBE_PLAN struct kube_plan plan = {0};
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	int r = spec_from_json(run->spec, &spec, err);
	if (r < 0)
		return r;
	const struct target_job job = {
		.run_id = handle->run_id,
		.attempt = handle->attempt,
		.handle = text,
		.command = &spec.command,
		.shell = spec.shell,
		.cwd = spec.cwd,
		.env = &spec.env,
		.spec = run->spec,
		.run = run,
		.image_ref = json_get_str(json_get(run->doc, "image"), "ref"),
	};
	r = kube_plan_make(kube, &job, &plan, err);
	if (r == 0)
		r = kube_job_make(&plan.run, &objects, err);
	if (r == 0)
		*ret = TAKE(objects.job);
	return r;
}

int kube_record_job(const struct target_kube *kube, const struct kube_handle *handle,
	struct json **ret, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	struct store *store;

	int r = session_store(kube->session, &store, err);
	if (r == 0)
		r = store_get(store, handle->run_id, &run, err);
	return r < 0 ? r : make(kube, handle, run, ret, err);
}

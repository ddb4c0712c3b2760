/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/kinds.h"

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"

const struct kube_kind_info kube_kinds[KUBE_KINDS] = {
	[KUBE_KIND_JOB] = {"Job", "batch/v1", "/apis/batch/v1", "jobs", "Complete"},
	[KUBE_KIND_JOBSET] = {"JobSet", "jobset.x-k8s.io/v1alpha2",
		"/apis/jobset.x-k8s.io/v1alpha2", "jobsets", "Completed"},
};

char *kube_kind_collection(enum kube_kind kind, const char *kube_namespace)
{
	AUTO_FREE char *inside =
		kube_path("/namespaces/%s/%s", kube_namespace, kube_kinds[kind].resource);

	return mem_printf("%s%s", kube_kinds[kind].group_path, inside);
}

char *kube_kind_path(enum kube_kind kind, const char *kube_namespace, const char *name)
{
	AUTO_FREE char *collection = kube_kind_collection(kind, kube_namespace);
	AUTO_FREE char *last = kube_path("/%s", name);

	return mem_printf("%s%s", collection, last);
}

char *kube_kind_job(enum kube_kind kind, const char *name)
{
	return mem_printf(kind == KUBE_KIND_JOBSET ? "%s-" JOB_GANG "-0" : "%s", name);
}

const struct json *kube_kind_template_at(enum kube_kind kind, const struct json *object, size_t i)
{
	const struct json *list = json_get(json_get(object, "spec"), "replicatedJobs");
	const struct json *part = list ? json_first(list) : NULL;

	if (kind == KUBE_KIND_JOB)
		return i == 0 ? object : NULL;
	while (part && i-- > 0)
		part = json_next(part);
	return json_get(part, "template");
}

const struct json *kube_kind_template(enum kube_kind kind, const struct json *object)
{
	return kube_kind_template_at(kind, object, 0);
}

bool kube_kind_has_ended(enum kube_kind kind, const struct json *object)
{
	const struct json *list = json_get(json_get(object, "status"), "conditions");

	json_foreach (at, list) {
		const char *type = json_get_str(at, "type");
		bool is_end = str_eq(type, kube_kinds[kind].succeeded) || str_eq(type, "Failed");
		if (is_end && str_eq(json_get_str(at, "status"), "True"))
			return true;
	}
	return false;
}

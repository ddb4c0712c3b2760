/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects that one attempt of a run is in a cluster: a Job (batch/v1), or for a gang that the
 * cluster restarts as a whole a JobSet (jobset.x-k8s.io/v1alpha2), which makes the Job. An engine:
 * no I/O.
 */
#ifndef DLRUN_KUBE_API_KINDS_H
#define DLRUN_KUBE_API_KINDS_H

#include "base/data/json.h"

#define KUBE_JOBSET_NAME    "jobset.sigs.k8s.io/jobset-name"     /* labels of what it makes */
#define KUBE_JOBSET_RESTART "jobset.sigs.k8s.io/restart-attempt" /* "0": none yet */

enum kube_kind { KUBE_KIND_JOB, KUBE_KIND_JOBSET, KUBE_KINDS };

struct kube_kind_info {
	const char *name, *version;
	const char *group_path, *resource; /* of its API */
	const char *succeeded;             /* condition; that of a failure is Failed */
};
extern const struct kube_kind_info kube_kinds[KUBE_KINDS];

/* Paths of the collection in a namespace, and of one object. The caller frees. */
char *kube_kind_collection(enum kube_kind kind, const char *kube_namespace);
char *kube_kind_path(enum kube_kind kind, const char *kube_namespace, const char *name);
/* The name of the Job that has the pods: that of the object itself, or of what it makes, the same
 * in all restarts. The caller frees. */
char *kube_kind_job(enum kube_kind kind, const char *name);
/* {metadata, spec} of that Job, as the object says it; or NULL. */
const struct json *kube_kind_template(enum kube_kind kind, const struct json *object);
/* Whether it has ended: conditions of its status. */
bool kube_kind_has_ended(enum kube_kind kind, const struct json *object);

#endif

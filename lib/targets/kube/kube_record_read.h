/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of runs as annotations and labels of Jobs and JobSets tell them. An engine: no I/O.
 * Whoever may make Jobs in a namespace may write anything there: only what has the form of a record
 * is taken over, no path of a machine, no handle; ids and names of Jobs must agree.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_RECORD_READ_H
#define DLRUN_TARGETS_KUBE_KUBE_RECORD_READ_H

#include "base/data/json.h"
#include "core/record/run.h"
#include "kube/api/kinds.h"

enum { KUBE_RECORD_MAX = 256 << 10, KUBE_RECORD_ATTEMPTS_MAX = 1000 };

/* Where the Jobs are, and who asks. */
struct kube_record_place {
	const char *server_id, *kube_namespace;
	const struct json *target; /* what records say of the target: copied */
	const char *login;         /* of this user here */
	const char *cluster_user;  /* of this user there; or NULL */
};

/* Add the runs that the Jobs or JobSets of a List are attempts of, those of id only unless that is
 * NULL. A run that is in ret already with an older attempt is replaced. The member "adopted"
 * {user, own} of each says whose it is. */
void kube_record_read(const struct json *objects, enum kube_kind kind, const char *id,
	const struct kube_record_place *place, struct run_list *ret);

/* The same of the members of studies: those Jobs of a List that are one, with their ConfigMaps. */
void kube_record_read_studies(const struct json *jobs, const struct json *configs, const char *id,
	const struct kube_record_place *place, struct run_list *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the results of a run in a cluster lie, as its pods say, and the pod that reads them when no
 * pod of the run is there any more. An engine: no I/O.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_STORAGE_H
#define DLRUN_TARGETS_KUBE_KUBE_STORAGE_H

#include <stdbool.h>

#include "base/data/json.h"
#include "base/util/vec.h"

#define KUBE_READER_NAME      "dlrun-fetch" /* app.kubernetes.io/name of such pods */
#define KUBE_READER_CONTAINER "fetch"
#define KUBE_READER_OWNER     "dlrun.io/fetched-by" /* annotation: MACHINE/PID/START */
enum { KUBE_READER_LIFE_S = 4 * 3600 };

/* Storage for results in the specification of a pod; all borrowed. */
struct kube_storage {
	const struct json *volume;    /* of its volumes */
	const char *sub_path;         /* or NULL; of a study an expression (kube_member_path) */
	const struct json *container; /* that has them */
	bool is_kept;                 /* outlives pods, and all ranks have it */
	bool is_host;                 /* a directory of the node */
	const char *s3; /* they go to this address in S3, an expression as sub_path is; or NULL */
};
/* false: it has none. */
bool kube_storage_of(const struct json *pod_spec, struct kube_storage *ret);

/* A pod with the results of another at the same place, to be read only. */
struct kube_reader {
	const char *name, *kube_namespace, *run_id, *user;
	const char *owner_id;        /* label run-id of the run's pods; NULL: run_id */
	const char *index;           /* of a member of a study, as text; or NULL */
	const char *owner;           /* for KUBE_READER_OWNER */
	const struct json *job;      /* it goes with this one; or NULL */
	const struct json *pod_spec; /* of the run */
	const struct kube_storage *storage;
};
struct json *kube_reader_make(const struct kube_reader *reader);
bool kube_reader_is_one(const struct json *pod);

/* The pods of a run that run now, one for each rank: the newest attempt's. */
struct kube_rank_pod {
	int rank, attempt;
	const char *name;      /* borrowed */
	const char *container; /* of the program, or where results wait behind its end */
	bool lingers;          /* the latter */
};
struct kube_rank_pods VEC_OF(struct kube_rank_pod);
/* pods: a List. Sorted by rank. ending: those that are being or will be removed, where results may
 * wait. */
void kube_rank_pods_of(const struct json *pods, bool ending, struct kube_rank_pods *ret);

#endif

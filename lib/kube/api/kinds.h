/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects that one attempt of a run is in a cluster: a Job (batch/v1), or for a gang that the
 * cluster restarts as a whole a JobSet (jobset.x-k8s.io/v1alpha2), which makes the Job; and
 * the names of both and inside of them. An engine: no I/O.
 */
#ifndef DLRUN_KUBE_API_KINDS_H
#define DLRUN_KUBE_API_KINDS_H

#include <stdbool.h>

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
/* {metadata, spec} of that Job, as the object says it, of a run with roles that of the first; or
 * NULL. */
const struct json *kube_kind_template(enum kube_kind kind, const struct json *object);
/* The same of the role at i; or NULL. */
const struct json *kube_kind_template_at(enum kube_kind kind, const struct json *object, size_t i);
/* Whether it has ended: conditions of its status. */
bool kube_kind_has_ended(enum kube_kind kind, const struct json *object);

/*
 * Names of the objects of a run in a cluster, and inside them: containers, directories, labels,
 * annotations, termination messages. Shared by all code that makes or reads them.
 */

/* ConfigMap of dlrun's autoscaler (core/autoscale/growth.h). */
#define KUBE_GROWTH_NAMESPACE "dlrun-system"
#define KUBE_GROWTH_NAME      "dlrun-autoscale"
#define KUBE_GROWTH_MAPS      "/api/v1/namespaces/" KUBE_GROWTH_NAMESPACE "/configmaps"
#define KUBE_GROWTH_PATH      KUBE_GROWTH_MAPS "/" KUBE_GROWTH_NAME

#define KUBE_CONTAINER     "program"
#define KUBE_MANAGED_BY    "dlrun"
#define KUBE_JOB_TIMEOUT   "dlrun: time limit" /* termination messages of dlrun's own script */
#define KUBE_JOB_SETUP     "dlrun: setup failed"
#define KUBE_JOB_CANCELLED "dlrun: cancelled" /* a member of a study, before it began */
/* Behind those: what the results on lasting storage were at the end, within a message's 4096 bytes.
 * Lines "dlrun: results FILES BYTES MORE" (names that are left out), "FILES BYTES NAME" of names at
 * the top (a directory with a slash behind it; \\ and \n are escaped), and "params BYTES PATH" with
 * that many bytes and a newline behind it. A rank reports its own. */
#define KUBE_JOB_RESULTS "dlrun: results"
/* Lines "dlrun: data VERSION PATH" of the init containers KUBE_VERSIONS and KUBE_S3: what a
 * run reads of data whose place names no version. */
#define KUBE_JOB_DATA     "dlrun: data"
#define KUBE_VERSIONS     "versions"
#define KUBE_OUTPUT_DIR   "/dlrun/outputs" /* $DLRUN_OUTPUT_DIR */
#define KUBE_ATTEMPT_DIR  "/dlrun/attempt"
#define KUBE_HOME_DIR     "/dlrun/home"    /* HOME in the restricted level */
#define KUBE_CODE         "code"           /* the init container that unpacks it */
#define KUBE_CODE_DIR     "/dlrun/code"    /* unpacked, below it as from the root */
#define KUBE_CODE_PARTS   "/dlrun/code-in" /* what comes in ConfigMaps */
#define KUBE_STUDY_DIR    "/dlrun/study"   /* the ConfigMap of a study */
#define KUBE_STUDY_CANCEL "cancel-" /* key of it, with an index: that member does not begin */
#define KUBE_STUDY_ENDS   "ends-"   /* the same: its pod was removed, with fail_fast */
#define KUBE_S3           "data"    /* the init container that fetches data from S3 */
#define KUBE_S3_DIR       "/dlrun/s3"
#define KUBE_KEEPER       "results" /* the container that waits until they were taken */
#define KUBE_COLLECTOR    KUBE_ATTEMPT_DIR "/collect" /* "sh it all": does that now */
#define KUBE_COLLECTED    ".dlrun-collected" /* in the results: what of them comes from the tree */
/* In the image: a tar of results of the attempt before and notes, those of rank N in rank-N/. */
#define KUBE_CARRIED "/dlrun/carried/results.tar"
/* In the image: data of the tree, by its paths there, which are links in the trees of runs. */
#define KUBE_DATA_DIR "/dlrun/data"
/* In the image, an environment: what the setup has made in the tree, by its paths there, and the
 * paths, a line for each, that are links in the trees of runs. */
#define KUBE_BAKED       "/dlrun/env/tree"
#define KUBE_BAKED_LINKS "/dlrun/env/links"
enum {
	KUBE_MASTER_PORT = 29500,
	KUBE_MEMBERS_MAX = 100 * 1000, /* completions of an Indexed Job without further limits */
};

/* Labels and annotations of all objects of a run. */
#define KUBE_LABEL_RUN     "dlrun.io/run-id"
#define KUBE_LABEL_ATTEMPT "dlrun.io/attempt"
#define KUBE_LABEL_USER    "dlrun.io/user"
#define KUBE_LABEL_STUDY   "dlrun.io/study" /* of those of a study: its id, as run-id is */
#define KUBE_LABEL_TREE    "dlrun.io/tree"
/* Of Jobs and pods of a run with roles, each of which has a Job: the role's name, and the name of
 * the Job that they count as (kube_kind_job). */
#define KUBE_LABEL_ROLE        "dlrun.io/role"
#define KUBE_LABEL_ZONE        "topology.kubernetes.io/zone" /* of nodes */
#define KUBE_LABEL_SPOT        "dlrun/spot" /* of nodes of our autoscaler; a taint, too */
#define KUBE_LABEL_GANG        "dlrun.io/gang"
#define KUBE_ANNOTATION_SPEC   "dlrun.io/spec"
#define KUBE_ANNOTATION_RECORD "dlrun.io/record"
#define KUBE_ANNOTATION_USER   "dlrun.io/user"
#define KUBE_ANNOTATION_COMMIT "dlrun.io/commit"
#define KUBE_ANNOTATION_IMAGE  "dlrun.io/image"
/* Of a Job: the ConfigMap without which none of its pods begins; when it was last not taken back */
#define KUBE_ANNOTATION_GATE   "dlrun.io/gate"
#define KUBE_ANNOTATION_STAYS  "dlrun.io/stays"
#define KUBE_ANNOTATION_LINGER "dlrun.io/linger" /* of pods: seconds for which results wait */
/* Of those with a role: the rank of completion index 0. Of those Jobs: names and nodes of all roles
 * in the order of ranks, "learner 1,actors 12", and the role whose end is that of the run. */
#define KUBE_ANNOTATION_FIRST "dlrun.io/first-rank"
#define KUBE_ANNOTATION_ROLES "dlrun.io/roles"
#define KUBE_ANNOTATION_ENDS  "dlrun.io/ends-with"
/* Of the Job of a study with fail_fast: indexes of members that were cancelled, "0,2-5". */
#define KUBE_ANNOTATION_CANCELLED "dlrun.io/cancelled"
/* Of the Job of a study that is being stopped: how many of its members might run at once. */
#define KUBE_ANNOTATION_AT_ONCE "dlrun.io/at-once"

#define KUBE_INDEX "batch.kubernetes.io/job-completion-index" /* annotation; label since 1.28 */

#define JOB_GANG "w" /* the replicated job of a JobSet */

#endif
